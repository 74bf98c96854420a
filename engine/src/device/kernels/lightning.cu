// `lightning`: linear attention with a fixed decay per head, every step rounded; a thread for each column of a head's
// matrix. States are `[heads, key, value]`.

// Computes what rows `start..end` of a block leave of a column. `end - start` rows have the last of the key decays.
DEVICE void lightning_left(const u8 *k, u32 k_dtype, const u8 *v, u32 v_dtype, u64 k_at, u64 k_row, u64 v_at, u64 v_row,
                           u32 start, u32 end, const float *key_decay, u32 block, float slope, u32 key, u32 value,
                           u32 grid, const float *from, float *to) {
    u32 count = end - start;
    float decay = round_to(grid, expf(round_to(grid, -slope * (float)count)));
    for (u32 a = 0; a < key; ++a) {
        float sum = 0.0f;
        for (u32 row = start; row < end; ++row) {
            float own = round_to(grid, load(k, k_dtype, k_at + row * k_row + a) * key_decay[block - count + row - start]);
            sum += own * load(v, v_dtype, v_at + row * v_row);
        }
        float past = round_to(grid, from[(u64)a * value] * decay);
        to[(u64)a * value] = round_to(grid, past + round_to(grid, sum));
    }
}

// `work` of a chunk that begins a sequence: two blocks of the state, in which the sequence of blocks goes on.
PARTS_KERNEL(lightning, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows,
             u32 continued, const u8 *q, u32 q_dtype, const u8 *k, u32 k_dtype, const u8 *v, u32 v_dtype,
             const float *slopes, const float *query_decays, const float *key_decays, const float *diagonal_decays,
             u32 heads, u32 key, u32 value, u32 block, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)heads * value) {
            u32 head = (u32)(n / value), column = (u32)(n % value);
            u64 place = (u64)head * key * value + column;
            u64 k_row = (u64)heads * key, v_row = (u64)heads * value;
            u64 k_at = first * k_row + (u64)head * key, v_at = first * v_row + (u64)head * value + column;
            const float *query_decay = query_decays + (u64)head * block, *key_decay = key_decays + (u64)head * block;
            const float *diagonal = diagonal_decays + (u64)head * block * block;
            float slope = slopes[head];
            if (continued) {
                float ratio = round_to(dtype, expf(-slope));
                const float *from = before + place;
                for (u32 row = 0; row < rows; ++row) {
                    float *to = block_after(after, kept, work, rows, row) + place;
                    float own = load(v, v_dtype, v_at + row * v_row), out = 0.0f;
                    for (u32 a = 0; a < key; ++a) {
                        float past = round_to(dtype, ratio * from[(u64)a * value]);
                        float s = round_to(dtype, past + round_to(dtype, load(k, k_dtype, k_at + row * k_row + a) * own));
                        to[(u64)a * value] = s;
                        out += load(q, q_dtype, k_at + row * k_row + a) * s;
                    }
                    store(y, dtype, v_at + row * v_row, out);
                    from = to;
                }
            } else {
                u64 width = (u64)heads * key * value;
                float *now = work + place, *next = work + width + place;
                for (u32 a = 0; a < key; ++a) now[(u64)a * value] = 0.0f;
                for (u32 start = 0; start < rows; start += block) {
                    u32 end = start + block < rows ? start + block : rows;
                    for (u32 row = start; row < end; ++row) {
                        float within = 0.0f;
                        for (u32 other = start; other <= row; ++other) {
                            float score = -0.0f;
                            for (u32 a = 0; a < key; ++a)
                                score += load(q, q_dtype, k_at + row * k_row + a) * load(k, k_dtype, k_at + other * k_row + a);
                            float decay = diagonal[(u64)(row - start) * block + other - start];
                            score = round_to(dtype, round_to(dtype, score) * decay);
                            within += score * load(v, v_dtype, v_at + other * v_row);
                        }
                        float out = 0.0f;
                        for (u32 a = 0; a < key; ++a) {
                            float z = load(q, q_dtype, k_at + row * k_row + a) * query_decay[row - start];
                            out += round_to(dtype, z) * now[(u64)a * value];
                        }
                        store(y, dtype, v_at + row * v_row, round_to(dtype, out) + round_to(dtype, within));
                        // What the sequence would have left, had it ended here.
                        if (row + kept >= rows)
                            lightning_left(k, k_dtype, v, v_dtype, k_at, k_row, v_at, v_row, start, row + 1u, key_decay,
                                           block, slope, key, value, dtype, now,
                                           (float *)after[row + kept - rows] + place);
                    }
                    lightning_left(k, k_dtype, v, v_dtype, k_at, k_row, v_at, v_row, start, end, key_decay, block, slope,
                                   key, value, dtype, now, next);
                    float *spare = now;
                    now = next;
                    next = spare;
                }
            }
        }
    }
}
