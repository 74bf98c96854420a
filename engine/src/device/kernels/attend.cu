// `attend`: attention of the rows of one chunk over a cache, in the order of `kernels/attention.rs`.
//
// `seen` has two numbers for each row: the first position that it sees, and one past the last.

#define SPAN 512u
#define SCORES_ROUNDED 0u
#define SCORES_ONCE 1u
#define SCORES_F32 2u

// Queries of a block, whose heads share keys, and numbers of a key that are read at once.
#define SCORE_HEADS 4u
#define TILE 32u
// Keys of a thread whose numbers are read before the first is kept.
#define KEYS_AHEAD 8u

// Blocks of `scores_of_block` for each row and head of keys: a thread for each of `span` positions.
DEVICE u32 score_tiles(u32 span) { return (span + THREADS - 1u) / THREADS; }

// Products of queries and keys, each one chain over the dims in pairs, the second of a pair first. Calls
// `done(head, position, sum)` for the first `heads` queries and positions `from..to`, at most THREADS of them. Every
// thread of the block calls it. `key(form, position, k)` reads a number. Keys go through shared memory, so that neighbouring threads read neighbouring numbers.
template <class Q, class K, class D>
DEVICE void scores_of_block(u32 heads, u32 dim, u32 form, u32 from, u32 to, Q query, K key, D done, float *tile,
                            float *own, float *sums) {
    PHASE(t) {
        for (u32 h = 0; h < SCORE_HEADS; ++h) sums[h * THREADS + t] = 0.0f;
    }
    for (u32 start = 0; start < dim && from < to; start += TILE) {
        u32 length = dim - start < TILE ? dim - start : TILE;
        PHASE(t) {
            u32 k = t % TILE, n = t / TILE;
            if (k < length) {
                with_form(form, [&](u32 kept) {
                    for (u32 first = n; first < to - from; first += KEYS_AHEAD * (THREADS / TILE)) {
                        float x[KEYS_AHEAD];
                        // The last key again where there are no more, so that no read waits for a branch.
                        for (u32 a = 0; a < KEYS_AHEAD; ++a) {
                            u32 p = first + a * (THREADS / TILE);
                            x[a] = key(kept, p < to - from ? from + p : to - 1u, start + k);
                        }
                        for (u32 a = 0; a < KEYS_AHEAD; ++a) {
                            u32 p = first + a * (THREADS / TILE);
                            if (p < to - from) tile[p * (TILE + 1u) + k] = x[a];
                        }
                    }
                });
                if (n < heads) own[n * TILE + k] = query(n, start + k);
            }
        }
        PHASE(t) {
            if (from + t < to) {
                const float *mine = tile + t * (TILE + 1u);
                float sum[SCORE_HEADS];
                for (u32 h = 0; h < SCORE_HEADS; ++h) sum[h] = sums[h * THREADS + t];
                for (u32 k = 0; k < length; k += 2u) {
                    bool pair = k + 1u < length;
                    float one = mine[k], two = pair ? mine[k + 1u] : 0.0f;
                    for (u32 h = 0; h < SCORE_HEADS; ++h) {
                        if (h < heads) {
                            if (pair) sum[h] = fmaf(own[h * TILE + k + 1u], two, sum[h]);
                            sum[h] = fmaf(own[h * TILE + k], one, sum[h]);
                        }
                    }
                }
                for (u32 h = 0; h < SCORE_HEADS; ++h) sums[h * THREADS + t] = sum[h];
            }
        }
    }
    PHASE(t) {
        for (u32 h = 0; h < heads && from + t < to; ++h) done(h, from + t, sums[h * THREADS + t]);
    }
}

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

// Adds to a score the number of a query for a key `distance` positions before it; 0 beyond `count`. `query` counts from
// the first of `relative`, which is null if queries have none.
DEVICE float relative_score(float score, const u8 *relative, u32 stored, u32 count, u64 query, u32 distance, u32 rounding,
                            u32 dtype) {
    if (!relative || distance >= count) return score;
    score += load(relative, stored, query * count + distance);
    return rounding == SCORES_ROUNDED ? round_to(dtype, score) : score;
}

// Scores `[rows, heads, span]`, where the first column is `base`; a block for each row, THREADS positions and
// SCORE_HEADS heads that share keys.
PARTS_KERNEL(attend_scores, const u8 *q, u32 q_dtype, u32 q_row, u32 heads, u32 kv_heads, u32 dim, const u8 *keys,
             u32 form, const float *scales, u32 group, u32 first, const u32 *seen, u32 base, u32 span,
             const float *slopes, const u8 *relative, u32 relative_dtype, u32 distances, float scale, u32 rounding,
             u32 dtype, float *scores) {
    SHARED(float, tile, THREADS * (TILE + 1u));
    SHARED(float, own, SCORE_HEADS * TILE);
    SHARED(float, sums, SCORE_HEADS * THREADS);
    u32 shared = heads / kv_heads, tiles = score_tiles(span), batches = (shared + SCORE_HEADS - 1u) / SCORE_HEADS;
    u32 batch = BLOCK / tiles % batches * SCORE_HEADS;
    u32 kv = BLOCK / tiles / batches % kv_heads, row = BLOCK / tiles / batches / kv_heads;
    u32 from = base + BLOCK % tiles * THREADS, to = from + THREADS;
    from = from > seen[2u * row] ? from : seen[2u * row];
    to = to < seen[2u * row + 1u] ? to : seen[2u * row + 1u];
    u32 head = kv * shared + batch, count = shared - batch < SCORE_HEADS ? shared - batch : SCORE_HEADS;
    u64 queries = (u64)(q_row + row) * heads + head;
    scores_of_block(
        count, dim, form, from, to, [&](u32 h, u32 k) { return load(q, q_dtype, (queries + h) * dim + k); },
        [&](u32 kept, u32 position, u32 k) {
            return cached(keys, kept, scales, group, ((u64)(position - first) * kv_heads + kv) * dim + k);
        },
        [&](u32 h, u32 position, float sum) {
            u64 query = (u64)row * heads + head + h;
            float score = finished_score(sum, slopes, head + h, position, scale, rounding, dtype);
            scores[query * span + position - base] =
                relative_score(score, relative, relative_dtype, distances, query, seen[2u * row + 1u] - 1u - position,
                               rounding, dtype);
        },
        tile, own, sums);
}

// The rounding of the weights of keys.
#define SOFTMAX_F32 0u
#define SOFTMAX_ACTIVATION 1u
#define SOFTMAX_UNROUNDED 2u

// Scores become weights in place; a block for each query. The sigmoid of a sink that gates is in `gates`.
// `worth`: added to the scores of `[kv_heads, span]` keys, of which only the `most` that are worth most stay.
// `sink_row`: numbers from the sinks of a row to those of the next, 0 if all rows have the same.
PARTS_KERNEL(attend_weights, float *scores, u32 heads, const u32 *seen, u32 base, u32 span, float cap,
             const u8 *sinks, u32 sink_dtype, u32 sink_row, u32 gated, u32 softmax, u32 dtype, float *gates, const float *worth,
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
    float sink = sinks ? load(sinks, sink_dtype, (u64)(BLOCK / heads) * sink_row + head) : 0.0f;
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
                float rest = round_to(dtype, round_to(dtype, log + most) - sink);
                gates[BLOCK] = round_to(dtype, sigmoid(rest));
            }
        }
    }
    PHASE(t) {
        float most = sinks && !gated ? sink : -INFINITE;
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
            row[p] = exponential(softmax == SOFTMAX_ACTIVATION ? round_to(dtype, s) : s);
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
            float rest = sink - top[0];
            sum += exponential(softmax == SOFTMAX_ACTIVATION ? round_to(dtype, rest) : rest);
        } else {
            sum += 0.0f;
        }
        for (u32 p = from + t; p < to; p += THREADS)
            row[p] = softmax == SOFTMAX_UNROUNDED ? row[p] / sum : round_to(dtype, row[p] / sum);
    }
}

// Numbers of a value in a block, which goes through as many spans at once as it has threads for each.
#define COLUMNS 32u
// Positions whose values are read before the first is added.
#define VALUES_AHEAD 8u

// Sums weights times values of positions `from..to` of one span in pairs, the second of a pair first.
template <class V> DEVICE float sum_of_span(const float *weights, u32 from, u32 to, V value) {
    float sum = 0.0f;
    u32 p = from;
    if (p % 2u == 1u && p < to) {
        sum = fmaf(weights[p], value(p), sum);
        ++p;
    }
    for (; p + VALUES_AHEAD <= to; p += VALUES_AHEAD) {
        float weight[VALUES_AHEAD], x[VALUES_AHEAD];
        for (u32 n = 0; n < VALUES_AHEAD; ++n) {
            weight[n] = weights[p + n];
            x[n] = value(p + n);
        }
        for (u32 n = 0; n < VALUES_AHEAD; n += 2u) {
            sum = fmaf(weight[n + 1u], x[n + 1u], sum);
            sum = fmaf(weight[n], x[n], sum);
        }
    }
    for (; p < to; p += 2u) {
        if (p + 1u < to) sum = fmaf(weights[p + 1u], value(p + 1u), sum);
        sum = fmaf(weights[p], value(p), sum);
    }
    return sum;
}

// Weighted sums of values of positions `from..to` for `columns` numbers, a thread for each number and span; sums of
// spans are added in order. Calls `done(column, sum)`. Every thread of the block calls it.
template <class V, class D>
DEVICE void values_of_block(const float *weights, u32 form, u32 from, u32 to, u32 columns, V value, D done, float *sums,
                            float *totals) {
    PHASE(t) {
        if (t < COLUMNS) totals[t] = 0.0f;
    }
    for (u32 start = from / SPAN * SPAN; start < to; start += SPAN * (THREADS / COLUMNS)) {
        PHASE(t) {
            u32 column = t % COLUMNS, span = start + t / COLUMNS * SPAN;
            u32 first = span > from ? span : from, end = span + SPAN < to ? span + SPAN : to;
            if (column < columns && first < end)
                with_form(form, [&](u32 kept) {
                    sums[t] = sum_of_span(weights, first, end, [&](u32 p) { return value(kept, p, column); });
                });
        }
        PHASE(t) {
            if (t < columns) {
                for (u32 n = 0; n < THREADS / COLUMNS && start + n * SPAN < to; ++n) totals[t] += sums[n * COLUMNS + t];
            }
        }
    }
    PHASE(t) {
        if (t < columns) done(t, totals[t]);
    }
}

// Weighted sums of values; a block for each query and COLUMNS numbers. `stored` is the size of a value as it is cached;
// a value that is twice as long is two of them, from both halves of the heads.
PARTS_KERNEL(attend_values, const float *scores, u32 heads, u32 kv_heads, u32 dim, u32 stored, const u8 *values,
             u32 form, const float *scales, u32 group, u32 first, const u32 *seen, u32 base, u32 span,
             const float *gates, u8 *y, u32 dtype, u32 y_row) {
    SHARED(float, sums, THREADS);
    SHARED(float, totals, COLUMNS);
    u32 pieces = (dim + COLUMNS - 1u) / COLUMNS, query = BLOCK / pieces, start = BLOCK % pieces * COLUMNS;
    u32 own = query % heads / (heads / kv_heads), half = kv_heads / 2u, width = kv_heads * stored;
    values_of_block(
        scores + (u64)query * span - base, form, seen[2u * (query / heads)], seen[2u * (query / heads) + 1u],
        dim - start < COLUMNS ? dim - start : COLUMNS,
        [&](u32 kept, u32 position, u32 column) {
            u32 k = start + column;
            u32 kv = dim == stored ? own : own % half + (k >= stored ? half : 0u);
            return cached(values, kept, scales, group, (u64)(position - first) * width + kv * stored + k % stored);
        },
        [&](u32 column, float total) {
            float z = round_to(dtype, total);
            u64 at = ((u64)y_row * heads + query) * dim + start + column;
            store(y, dtype, at, gates ? z * gates[query] : z);
        },
        sums, totals);
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
KERNEL(attend_finish, float *scores, u32 heads, const u32 *seen, u32 base, u32 span, const float *slopes,
       const u8 *relative, u32 relative_dtype, u32 distances, float scale, u32 rounding, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 position = base + (u32)(n % span), head = (u32)(n / span % heads);
            u64 row = n / span / heads;
            if (position >= seen[2u * row] && position < seen[2u * row + 1u]) {
                float score = finished_score(scores[n], slopes, head, position, scale, rounding, dtype);
                scores[n] = relative_score(score, relative, relative_dtype, distances, n / span,
                                           seen[2u * row + 1u] - 1u - position, rounding, dtype);
            }
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
