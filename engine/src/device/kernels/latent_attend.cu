// `latent_attend`: attention whose keys and values are expanded from a latent. The weights of a query are those of
// `attend_weights`.
//
// A row of `expanded` has the key and the value of each head; `rest` is the part of the key that all heads share.
// `picked`: the positions that each row sees, `[rows, span]`; null if it sees those of `seen`. `first`, `rest_first`: the
// positions of the first rows that are kept.

// Gathers the chosen positions of each row, ascending, and their number; a thread for each row.
PARTS_KERNEL(picked_keys, const u8 *chosen, u32 stored, u32 first, u32 rows, u32 width, u32 start, u32 *picked,
             u32 *seen) {
    PHASE(t) {
        u64 row = (u64)BLOCK * THREADS + t;
        if (row < rows) {
            u32 count = 0u;
            for (u32 n = 0; n < width; ++n) {
                float place = load(chosen, stored, (first + row) * width + n);
                if (place >= 0.0f && place < (float)(start + (u32)row) + 1.0f) picked[row * width + count++] = (u32)place;
            }
            seen[2u * row] = 0u;
            seen[2u * row + 1u] = count;
        }
    }
}

// Scores `[rows, heads, span]`; a block for each row, head and THREADS keys.
PARTS_KERNEL(latent_scores, const u8 *q, u32 q_dtype, u32 q_row, u32 heads, u32 nope, u32 shared, u32 value,
             const u8 *expanded, u32 expanded_dtype, u32 first, const u8 *rest, u32 rest_dtype, u32 rest_first,
             const u32 *seen, const u32 *picked, u32 base, u32 span, float scale, u32 dtype, float *scores) {
    SHARED(float, tile, THREADS * (TILE + 1u));
    SHARED(float, own, SCORE_HEADS * TILE);
    SHARED(float, sums, SCORE_HEADS * THREADS);
    u32 tiles = score_tiles(span), head = BLOCK / tiles % heads, row = BLOCK / tiles / heads, dim = nope + shared;
    u32 from = base + BLOCK % tiles * THREADS, to = from + THREADS;
    from = from > seen[2u * row] ? from : seen[2u * row];
    to = to < seen[2u * row + 1u] ? to : seen[2u * row + 1u];
    u64 query = (u64)(q_row + row) * heads + head;
    scores_of_block(
        1u, dim, expanded_dtype, from, to, [&](u32, u32 k) { return load(q, q_dtype, query * dim + k); },
        [&](u32 kept, u32 key, u32 k) {
            u64 position = picked ? picked[(u64)row * span + key] : key;
            return k < nope ? load(expanded, kept, ((position - first) * heads + head) * (nope + value) + k)
                            : load(rest, rest_dtype, (position - rest_first) * shared + k - nope);
        },
        [&](u32, u32 key, float sum) {
            scores[((u64)row * heads + head) * span + key - base] = round_to(dtype, round_to(dtype, sum) * scale);
        },
        tile, own, sums);
}

// Weighted sums of values; a block for each query and COLUMNS numbers.
PARTS_KERNEL(latent_values, const float *scores, u32 heads, u32 nope, u32 value, const u8 *expanded,
             u32 expanded_dtype, u32 first, const u32 *seen, const u32 *picked, u32 base, u32 span, u8 *y, u32 dtype,
             u32 y_row) {
    SHARED(float, sums, THREADS);
    SHARED(float, totals, COLUMNS);
    u32 pieces = (value + COLUMNS - 1u) / COLUMNS, query = BLOCK / pieces, start = BLOCK % pieces * COLUMNS;
    u32 row = query / heads, head = query % heads;
    values_of_block(
        scores + (u64)query * span - base, expanded_dtype, seen[2u * row], seen[2u * row + 1u],
        value - start < COLUMNS ? value - start : COLUMNS,
        [&](u32 kept, u32 key, u32 column) {
            u64 position = picked ? picked[(u64)row * span + key] : key;
            return load(expanded, kept, ((position - first) * heads + head) * (nope + value) + nope + start + column);
        },
        [&](u32 column, float total) {
            store(y, dtype, ((u64)y_row * heads + query) * value + start + column, total);
        },
        sums, totals);
}
