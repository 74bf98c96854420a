// `latent_attend`: attention whose keys and values are expanded from a latent. The weights of a query are those of
// `attend_weights`.
//
// A row of `expanded` has the key and the value of each head; `rest` is the part of the key that all heads share.
// `picked`: the positions that each row sees, `[rows, span]`; null if it sees those of `seen`.

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

// Scores of `[rows, heads, span]` keys, a thread each.
PARTS_KERNEL(latent_scores, const u8 *q, u32 q_dtype, u32 q_row, u32 rows, u32 heads, u32 nope, u32 shared, u32 value,
             const u8 *expanded, u32 expanded_dtype, const u8 *rest, u32 rest_dtype, const u32 *seen, const u32 *picked,
             u32 base, u32 span, float scale, u32 dtype, float *scores) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * heads * span) {
            u32 key = base + (u32)(n % span);
            u32 head = (u32)(n / span % heads), row = (u32)(n / span / heads);
            if (key >= seen[2u * row] && key < seen[2u * row + 1u]) {
                u64 position = picked ? picked[(u64)row * span + key] : key;
                u32 dim = nope + shared;
                u64 a = ((u64)(q_row + row) * heads + head) * dim;
                u64 b = (position * heads + head) * (nope + value), c = position * shared;
                auto of = [&](u32 k) {
                    return k < nope ? load(expanded, expanded_dtype, b + k) : load(rest, rest_dtype, c + k - nope);
                };
                float sum = 0.0f;
                for (u32 k = 0; k < dim; k += 2u) {
                    if (k + 1u < dim) sum = fmaf(load(q, q_dtype, a + k + 1u), of(k + 1u), sum);
                    sum = fmaf(load(q, q_dtype, a + k), of(k), sum);
                }
                scores[n] = round_to(dtype, round_to(dtype, sum) * scale);
            }
        }
    }
}

// Weighted sums of values, a thread for each number.
PARTS_KERNEL(latent_values, const float *scores, u32 rows, u32 heads, u32 nope, u32 value, const u8 *expanded,
             u32 expanded_dtype, const u32 *seen, const u32 *picked, u32 base, u32 span, u8 *y, u32 dtype, u32 y_row) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * heads * value) {
            u64 query = n / value, row = query / heads, column = query % heads * (nope + value) + nope + n % value;
            u32 from = seen[2u * row], to = seen[2u * row + 1u];
            const float *weights = scores + query * span - base;
            auto add = [&](u32 key, float sum) {
                u64 position = picked ? picked[row * span + key] : key;
                return fmaf(weights[key], load(expanded, expanded_dtype, position * heads * (nope + value) + column), sum);
            };
            float total = 0.0f;
            for (u32 p = from; p < to;) {
                u32 end = (p / SPAN + 1u) * SPAN;
                end = end < to ? end : to;
                float sum = 0.0f;
                if (p % 2u == 1u) sum = add(p++, sum);
                for (; p < end; p += 2u) {
                    if (p + 1u < end) sum = add(p + 1u, sum);
                    sum = add(p, sum);
                }
                p = end;
                total += sum;
            }
            store(y, dtype, (u64)y_row * heads * value + n, total);
        }
    }
}
