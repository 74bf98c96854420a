// `attend` to selected positions. Each group of key heads sees positions of its own, so that the heads of a group are
// a row here: row `row * groups + group` has `heads` query heads and `kv_heads` key heads. The weights of a query are
// those of `attend_weights`.
//
// `picked`: the positions that each of these rows sees, `[rows, span]`; `seen` has their number.

// Gathers the positions of the selected blocks of each row; a thread for each of `rows * groups` rows.
PARTS_KERNEL(selected_keys, const u8 *chosen, u32 stored, u32 first, u32 rows, u32 groups, u32 width, u32 block, u32 start,
             u32 span, u32 *picked, u32 *seen) {
    PHASE(t) {
        u64 row = (u64)BLOCK * THREADS + t;
        if (row < (u64)rows * groups) {
            u32 count = 0u, end = start + (u32)(row / groups) + 1u;
            for (u32 n = 0; n < width; ++n) {
                float place = load(chosen, stored, ((u64)first * groups + row) * width + n);
                if (place >= 0.0f && place < (float)end) {
                    u64 from = (u64)place * block;
                    for (u64 p = from; p < from + block && p < end && count < span; ++p)
                        picked[row * span + count++] = (u32)p;
                }
            }
            seen[2u * row] = 0u;
            seen[2u * row + 1u] = count;
        }
    }
}

// Scores `[rows, heads, span]`; a block for each row, THREADS keys and SCORE_HEADS heads that share keys.
PARTS_KERNEL(selected_scores, const u8 *q, u32 q_dtype, u32 first_row, u32 groups, u32 heads, u32 kv_heads, u32 dim,
             const u8 *keys, u32 form, const float *scales, u32 group, u32 first, const u32 *seen, const u32 *picked,
             u32 span, float scale, u32 rounding, u32 dtype, float *scores) {
    SHARED(float, tile, THREADS * (TILE + 1u));
    SHARED(float, own, SCORE_HEADS * TILE);
    SHARED(float, sums, SCORE_HEADS * THREADS);
    u32 shared = heads / kv_heads, tiles = score_tiles(span), batches = (shared + SCORE_HEADS - 1u) / SCORE_HEADS;
    u32 batch = BLOCK / tiles % batches * SCORE_HEADS;
    u32 kv = BLOCK / tiles / batches % kv_heads, row = BLOCK / tiles / batches / kv_heads;
    u32 from = BLOCK % tiles * THREADS, to = from + THREADS;
    to = to < seen[2u * row + 1u] ? to : seen[2u * row + 1u];
    from = from < to ? from : to;
    u32 head = kv * shared + batch, count = shared - batch < SCORE_HEADS ? shared - batch : SCORE_HEADS;
    u32 member = row % groups * kv_heads + kv, width = groups * kv_heads;
    u64 queries = ((u64)first_row * groups + row) * heads + head;
    scores_of_block(
        count, dim, form, from, to, [&](u32 h, u32 k) { return load(q, q_dtype, (queries + h) * dim + k); },
        [&](u32 kept, u32 key, u32 k) {
            u64 position = picked[(u64)row * span + key];
            return cached(keys, kept, scales, group, ((position - first) * width + member) * dim + k);
        },
        [&](u32 h, u32 key, float sum) {
            scores[((u64)row * heads + head + h) * span + key] =
                finished_score(sum, (const float *)0, head + h, key, scale, rounding, dtype);
        },
        tile, own, sums);
}

// Weighted sums of values; a block for each query and COLUMNS numbers.
PARTS_KERNEL(selected_values, const float *scores, u32 groups, u32 heads, u32 kv_heads, u32 dim, const u8 *values,
             u32 form, const float *scales, u32 group, u32 first, const u32 *seen, const u32 *picked, u32 span, u8 *y,
             u32 dtype, u32 y_row) {
    SHARED(float, sums, THREADS);
    SHARED(float, totals, COLUMNS);
    u32 pieces = (dim + COLUMNS - 1u) / COLUMNS, query = BLOCK / pieces, start = BLOCK % pieces * COLUMNS;
    u32 row = query / heads, width = groups * kv_heads;
    u32 member = row % groups * kv_heads + query % heads / (heads / kv_heads);
    values_of_block(
        scores + (u64)query * span, form, 0u, seen[2u * row + 1u], dim - start < COLUMNS ? dim - start : COLUMNS,
        [&](u32 kept, u32 key, u32 column) {
            u64 position = picked[(u64)row * span + key];
            return cached(values, kept, scales, group, ((position - first) * width + member) * dim + start + column);
        },
        [&](u32 column, float total) {
            store(y, dtype, ((u64)y_row * groups * heads + query) * dim + start + column, total);
        },
        sums, totals);
}
