// `attend`: attention of the rows of one chunk over a cache, in the order of `kernels/attention.rs`.
//
// `seen` has two numbers for each row: the first position that it sees, and one past the last.

#define SPAN 512u
#define SCORES_ROUNDED 0u
#define SCORES_ONCE 1u
#define SCORES_F32 2u

// Makes the score of a sum of products.
DEVICE float finished_score(float sum, const float *slopes, u32 head, u32 position, float scale, u32 rounding, u32 dtype) {
    if (rounding == SCORES_ROUNDED) sum = round_to(dtype, sum);
    sum *= scale;
    if (rounding == SCORES_ROUNDED) sum = round_to(dtype, sum);
    if (slopes) {
        float bias = slopes[head] * (float)position;
        sum += rounding == SCORES_ONCE ? round_to(dtype, bias) : bias;
    }
    return rounding == SCORES_ONCE ? round_to(dtype, sum) : sum;
}

// Scores of one query and one position, a thread each: `[rows, heads, span]`, where the first column is `base`.
PARTS_KERNEL(attend_scores, const u8 *q, u32 q_dtype, u32 q_row, u32 rows, u32 heads, u32 kv_heads, u32 dim,
             const u8 *keys, u32 form, const float *scales, u32 group, u32 first, const u32 *seen, u32 base, u32 span,
             const float *slopes, float scale, u32 rounding, u32 dtype, float *scores) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        u64 count = (u64)rows * heads * span;
        if (n < count) {
            u32 position = base + (u32)(n % span);
            u32 head = (u32)(n / span % heads), row = (u32)(n / span / heads);
            if (position >= seen[2u * row] && position < seen[2u * row + 1u]) {
                u64 a = ((u64)(q_row + row) * heads + head) * dim;
                u64 b = ((u64)(position - first) * kv_heads + head / (heads / kv_heads)) * dim;
                float sum = 0.0f;
                for (u32 k = 0; k < dim; k += 2u) {
                    if (k + 1u < dim)
                        sum = fmaf(load(q, q_dtype, a + k + 1u), cached(keys, form, scales, group, b + k + 1u), sum);
                    sum = fmaf(load(q, q_dtype, a + k), cached(keys, form, scales, group, b + k), sum);
                }
                scores[n] = finished_score(sum, slopes, head, position, scale, rounding, dtype);
            }
        }
    }
}

// Scores become weights in place; a block for each query. The sigmoid of a sink that gates is in `gates`.
// `worth`: added to the scores of `[kv_heads, span]` keys, of which only the `most` that are worth most stay.
PARTS_KERNEL(attend_weights, float *scores, u32 heads, const u32 *seen, u32 base, u32 span, float cap,
             const float *sinks, u32 gated, u32 softmax_rounds, u32 dtype, float *gates, const float *worth,
             u32 kv_heads, u32 most) {
    SHARED(float, lanes, THREADS);
    SHARED(double, part, 1);
    SHARED(double, total, 1);
    SHARED(float, top, 1);
    SHARED(u32, nan, 1);
    SHARED(u32, counts, THREADS);
    SHARED(u32, places, THREADS);
    SHARED(u32, found, 2);
    u32 head = BLOCK % heads;
    u32 from = seen[2u * (BLOCK / heads)], to = seen[2u * (BLOCK / heads) + 1u];
    float *row = scores + (u64)BLOCK * span - base;
    if (worth) {
        const float *own = worth + (u64)(head / (heads / kv_heads)) * span - base;
        PHASE(t) {
            for (u32 p = from + t; p < to; p += THREADS) row[p] = round_to(dtype, row[p] + own[p]);
        }
        if (most < to - from)
            select_largest(
                to - from, most,
                [&](u32 k) {
                    u32 bits = __float_as_uint(own[from + k]);
                    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
                },
                counts, places, found, [&](u32, u32) {}, [&](u32 k) { row[from + k] = -INFINITE; });
    }
    if (sinks && gated) {
        PHASE(t) {
            if (t == 0) {
                float most = -INFINITE, sum = 0.0f;
                for (u32 p = from; p < to; ++p) most = row[p] > most ? row[p] : most;
                for (u32 p = from; p < to; ++p)
                    sum += round_to(dtype, exponential(round_to(dtype, row[p] - most)));
                float log = round_to(dtype, logf(round_to(dtype, sum)));
                float rest = round_to(dtype, round_to(dtype, log + most) - sinks[head]);
                gates[BLOCK] = round_to(dtype, sigmoid(rest));
            }
        }
    }
    PHASE(t) {
        float most = sinks && !gated ? sinks[head] : -INFINITE;
        bool bad = is_nan(most);
        for (u32 p = from + t; p < to; p += THREADS) {
            float s = row[p];
            if (cap != 0.0f) {
                s = round_to(dtype, round_to(dtype, tanhf(round_to(dtype, s / cap))) * cap);
                row[p] = s;
            }
            most = s > most ? s : most;
            bad = bad || is_nan(s);
        }
        lanes[t] = bad ? NOT_A_NUMBER : most;
    }
    PHASE(t) {
        if (t == 0) {
            float most = lanes[0];
            nan[0] = 0u;
            for (u32 k = 0; k < THREADS; ++k) {
                nan[0] |= is_nan(lanes[k]) ? 1u : 0u;
                most = lanes[k] > most ? lanes[k] : most;
            }
            top[0] = nan[0] ? NOT_A_NUMBER : most;
            total[0] = 0.0;
        }
    }
    PHASE(t) {
        for (u32 p = from + t; p < to; p += THREADS) {
            float s = row[p] - top[0];
            row[p] = exponential(softmax_rounds ? round_to(dtype, s) : s);
        }
    }
    for (u32 span_start = from; span_start < to; span_start = (span_start / SPAN + 1u) * SPAN) {
        u32 span_end = (span_start / SPAN + 1u) * SPAN;
        span_end = span_end < to ? span_end : to;
        fold(span_end - span_start, [&](u32 k) { return row[span_start + k]; }, lanes, part);
        PHASE(t) {
            // The sum of a span is a number in f32.
            if (t == 0) total[0] += (double)(float)part[0];
        }
    }
    PHASE(t) {
        float sum = (float)total[0];
        if (sinks && !gated) {
            float rest = sinks[head] - top[0];
            sum += exponential(softmax_rounds ? round_to(dtype, rest) : rest);
        } else {
            sum += 0.0f;
        }
        for (u32 p = from + t; p < to; p += THREADS) row[p] = round_to(dtype, row[p] / sum);
    }
}

// Weighted sums of values, a thread for each number. `stored` is the size of a value as it is cached; a value that
// is twice as long is two of them, from both halves of the heads.
PARTS_KERNEL(attend_values, const float *scores, u32 rows, u32 heads, u32 kv_heads, u32 dim, u32 stored,
             const u8 *values, u32 form, const float *scales, u32 group, u32 first, const u32 *seen, u32 base, u32 span,
             const float *gates, u8 *y, u32 dtype, u32 y_row) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * heads * dim) {
            u32 k = (u32)(n % dim);
            u64 query = n / dim;
            u32 kv = (u32)(query % heads) / (heads / kv_heads);
            u32 from = seen[2u * (query / heads)], to = seen[2u * (query / heads) + 1u];
            if (dim != stored) {
                u32 half = kv_heads / 2u;
                kv = kv % half + (k >= stored ? half : 0u);
            }
            u32 column = kv * stored + k % stored, width = kv_heads * stored;
            const float *row = scores + query * span - base;
            float total = 0.0f;
            for (u32 p = from; p < to;) {
                u32 end = (p / SPAN + 1u) * SPAN;
                end = end < to ? end : to;
                float sum = 0.0f;
                if (p % 2u == 1u) {
                    sum = fmaf(row[p], cached(values, form, scales, group, (u64)(p - first) * width + column), sum);
                    ++p;
                }
                for (; p < end; p += 2u) {
                    u64 at = (u64)(p - first) * width + column;
                    if (p + 1u < end) sum = fmaf(row[p + 1u], cached(values, form, scales, group, at + width), sum);
                    sum = fmaf(row[p], cached(values, form, scales, group, at), sum);
                }
                p = end;
                total += sum;
            }
            float z = round_to(dtype, total);
            store(y, dtype, (u64)y_row * heads * dim + n, gates ? z * gates[query] : z);
        }
    }
}

// What each key is worth by its value: exp(a * softplus(weight * values)) of each head, each step rounded; a block for
// each of `[kv_heads, span]`.
PARTS_KERNEL(key_salience, const u8 *values, u32 form, const float *scales, u32 group, u32 first, u32 base, u32 span,
             const u8 *weight, u32 stored, float factor, const float *bias, const float *a, u32 width, u32 dtype,
             float *worth) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    u32 head = BLOCK / span;
    u64 row = (u64)(base + BLOCK % span - first) * width;
    fold(
        width,
        [&](u32 k) { return matrix_number(weight, stored, factor, head, width, k) * cached(values, form, scales, group, row + k); },
        lanes, total);
    PHASE(t) {
        if (t == 0) {
            float y = round_to(dtype, (float)total[0] + (bias ? bias[head] : 0.0f));
            y = round_to(dtype, a[head] * round_to(dtype, softplus(y)));
            worth[BLOCK] = round_to(dtype, exponential(y));
        }
    }
}

// For products by the library of the device: sums of `[rows, heads, span]` become scores in place.
KERNEL(attend_finish, float *scores, u32 heads, const u32 *seen, u32 base, u32 span, const float *slopes, float scale,
       u32 rounding, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 position = base + (u32)(n % span), head = (u32)(n / span % heads);
            u64 row = n / span / heads;
            if (position >= seen[2u * row] && position < seen[2u * row + 1u])
                scores[n] = finished_score(scores[n], slopes, head, position, scale, rounding, dtype);
        }
    }
}

// For the library: weights in a dtype, which are on its grid; 0 for what a row does not see.
KERNEL(attend_seen, const float *weights, u32 heads, const u32 *seen, u32 base, u32 span, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 position = base + (u32)(n % span);
            u64 row = n / span / heads;
            bool sees = position >= seen[2u * row] && position < seen[2u * row + 1u];
            store(y, dtype, n, sees ? weights[n] : 0.0f);
        }
    }
}
