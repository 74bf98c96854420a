// `block_pool`: weighted means of blocks of positions. `attend_pooled`: attention to a window of keys, and behind them to
// keys of blocks. Keys are values too. The weights of a query are those of `attend_weights`.

// A thread for each number of a result. A row has `numbers` and as many gates; inputs before the step come from the state.
PARTS_KERNEL(block_pool, const u8 *x, u32 stored, u32 x_row, u32 rows, u32 numbers, const float *bias, u32 block,
             u32 overlap, const u8 *past, u32 past_dtype, u32 first, u32 start, u8 *y, u32 dtype) {
    u32 size = overlap ? numbers / 2u : numbers;
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * size) {
            u32 row = (u32)(n / size), c = (u32)(n % size), end = start + row + 1u;
            u32 count = overlap && end > block ? 2u * block : block;
            // The newest block has its numbers in the last half.
            auto place = [&](u32 k) { return count - k <= block ? numbers - size + c : c; };
            auto input = [&](u32 k, u32 number) {
                u32 back = count - 1u - k;
                if (row >= back) return load(x, stored, (u64)(x_row + row - back) * 2u * numbers + number);
                return load(past, past_dtype, (u64)(start + row - back - first) * 2u * numbers + number);
            };
            auto score = [&](u32 k) {
                return input(k, numbers + place(k)) + bias[(u64)(k % block) * numbers + place(k)];
            };
            float sum = 0.0f;
            if (end % block == 0u) {
                float most = -INFINITE, total = -0.0f;
                for (u32 k = 0; k < count; ++k) most = fmaxf(most, score(k));
                for (u32 k = 0; k < count; ++k) total += exponential(score(k) - most);
                sum = -0.0f;
                for (u32 k = 0; k < count; ++k) {
                    float weight = round_to(dtype, exponential(score(k) - most) / total);
                    sum += round_to(dtype, input(k, place(k)) * weight);
                }
            }
            store(y, dtype, (u64)x_row * size + n, sum);
        }
    }
}

// Marks the number of a block among positions.
#define OF_BLOCK 0x80000000u

// Gathers what each row sees, a thread for each: positions of the window, then complete blocks, or the chosen ones of
// them. `picked`: `[rows, span]`; `seen` has their number.
PARTS_KERNEL(pooled_keys, const u8 *chosen, u32 stored, u32 first, u32 rows, u32 width, u32 window, u32 block, u32 start,
             u32 span, u32 *picked, u32 *seen) {
    PHASE(t) {
        u64 row = (u64)BLOCK * THREADS + t;
        if (row < rows) {
            u32 count = 0u, end = start + (u32)row + 1u, complete = end / block;
            for (u32 p = end > window ? end - window : 0u; p < end; ++p) picked[row * span + count++] = p;
            for (u32 n = 0; n < (chosen ? width : complete); ++n) {
                float place = chosen ? load(chosen, stored, ((u64)first + row) * width + n) : (float)n;
                if (place >= 0.0f && place < (float)complete && count < span)
                    picked[row * span + count++] = OF_BLOCK | (chosen ? (u32)place : n);
            }
            seen[2u * row] = 0u;
            seen[2u * row + 1u] = count;
        }
    }
}

// Reads a number of a key: of a position, the first of which is `first`, or of a block.
DEVICE float pooled_key(const u8 *keys, const u8 *blocks, u32 stored, u32 first, u32 place, u32 dim, u32 k) {
    if (place & OF_BLOCK) return load(blocks, stored, (u64)(place & ~OF_BLOCK) * dim + k);
    return load(keys, stored, (u64)(place - first) * dim + k);
}

// Scores `[rows, heads, span]`; a block for each row, THREADS keys and SCORE_HEADS heads.
PARTS_KERNEL(pooled_scores, const u8 *q, u32 q_dtype, u32 first_row, u32 heads, u32 dim, const u8 *keys, u32 form,
             u32 first, const u8 *blocks, const u32 *seen, const u32 *picked, u32 span, float scale, u32 dtype,
             float *scores) {
    SHARED(float, tile, THREADS * (TILE + 1u));
    SHARED(float, own, SCORE_HEADS * TILE);
    SHARED(float, sums, SCORE_HEADS * THREADS);
    u32 tiles = score_tiles(span), batches = (heads + SCORE_HEADS - 1u) / SCORE_HEADS;
    u32 head = BLOCK / tiles % batches * SCORE_HEADS, row = BLOCK / tiles / batches;
    u32 from = BLOCK % tiles * THREADS, to = from + THREADS;
    to = to < seen[2u * row + 1u] ? to : seen[2u * row + 1u];
    from = from < to ? from : to;
    u32 count = heads - head < SCORE_HEADS ? heads - head : SCORE_HEADS;
    u64 queries = (u64)(first_row + row) * heads + head;
    scores_of_block(
        count, dim, form, from, to, [&](u32 h, u32 k) { return load(q, q_dtype, (queries + h) * dim + k); },
        [&](u32 kept, u32 key, u32 k) {
            return pooled_key(keys, blocks, kept, first, picked[(u64)row * span + key], dim, k);
        },
        [&](u32 h, u32 key, float sum) {
            scores[((u64)row * heads + head + h) * span + key] =
                finished_score(sum, (const float *)0, head + h, key, scale, SCORES_ROUNDED, dtype);
        },
        tile, own, sums);
}

// Weighted sums of keys; a block for each query and COLUMNS numbers.
PARTS_KERNEL(pooled_values, const float *scores, u32 heads, u32 dim, const u8 *keys, u32 form, u32 first,
             const u8 *blocks, const u32 *seen, const u32 *picked, u32 span, u8 *y, u32 dtype, u32 y_row) {
    SHARED(float, sums, THREADS);
    SHARED(float, totals, COLUMNS);
    u32 pieces = (dim + COLUMNS - 1u) / COLUMNS, query = BLOCK / pieces, start = BLOCK % pieces * COLUMNS;
    u32 row = query / heads;
    values_of_block(
        scores + (u64)query * span, form, 0u, seen[2u * row + 1u], dim - start < COLUMNS ? dim - start : COLUMNS,
        [&](u32 kept, u32 key, u32 column) {
            return pooled_key(keys, blocks, kept, first, picked[(u64)row * span + key], dim, start + column);
        },
        [&](u32 column, float total) { store(y, dtype, ((u64)y_row * heads + query) * dim + start + column, total); },
        sums, totals);
}
