// Ops that routers are made of: `softmax`, `total`, `p_norm`, `choose`, `choose_by_token`,
// `pick`, `near_shares`.

// The most groups of scores of a row: `GROUPS` of `ops/device/route.rs`.
#define GROUPS 256u

// A block for each line of `axis` numbers.
KERNEL(softmax, const u8 *x, u32 stored, u32 axis, u8 *y, u32 dtype) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    SHARED(float, top, 1);
    u64 line = (u64)BLOCK * axis;
    PHASE(t) {
        float most = -INFINITE;
        for (u32 k = t; k < axis; k += THREADS) {
            float z = load(x, stored, line + k);
            most = z > most ? z : most;
        }
        lanes[t] = most;
    }
    PHASE(t) {
        if (t == 0) {
            float most = lanes[0];
            for (u32 k = 1; k < THREADS; ++k) most = lanes[k] > most ? lanes[k] : most;
            top[0] = most;
        }
    }
    fold(axis, [&](u32 k) { return exponential(load(x, stored, line + k) - top[0]); }, lanes, total);
    PHASE(t) {
        float whole = (float)total[0];
        for (u32 k = t; k < axis; k += THREADS)
            store(y, dtype, line + k, exponential(load(x, stored, line + k) - top[0]) / whole);
    }
}

// The sum of a line, a thread for each.
KERNEL(total, const u8 *x, u32 stored, u32 width, u8 *y, u32 dtype, u64 rows) {
    PHASE(t) {
        u64 row = (u64)BLOCK * THREADS + t;
        if (row < rows) {
            float sum = -0.0f;
            for (u32 k = 0; k < width; ++k) sum += load(x, stored, row * width + k);
            store(y, dtype, row, sum);
        }
    }
}

// (Σ |x|^p)^(1/p) of a line, at least `least`; a thread for each.
KERNEL(p_norm, const u8 *x, u32 stored, u32 width, float p, float least, u8 *y, u32 dtype, u64 rows) {
    PHASE(t) {
        u64 row = (u64)BLOCK * THREADS + t;
        if (row < rows) {
            float sum = -0.0f;
            for (u32 k = 0; k < width; ++k) sum += powf(fabsf(load(x, stored, row * width + k)), p);
            float norm = powf(sum, 1.0f / p);
            store(y, dtype, row, norm < least ? least : norm);
        }
    }
}

// The places of the `k` largest scores of a row, best first; a block for each row. With `groups` of `size` scores, only
// those of the `keep` best groups count: a group has the sum of its `best` scores. Of a row with NaN all places are NaN.
KERNEL(choose, const u8 *x, u32 stored, u32 width, u32 k, u32 groups, u32 size, u32 keep, u32 best, u32 zero, u8 *y,
       u32 dtype) {
    SHARED(u32, keys, THREADS);
    SHARED(u32, places, THREADS);
    SHARED(u32, last, 2);
    SHARED(u32, nan, 1);
    SHARED(float, sums, GROUPS);
    SHARED(u32, kept, GROUPS);
    u64 row = (u64)BLOCK * width;
    PHASE(t) {
        if (t == 0) {
            nan[0] = 0u;
            last[0] = NO_PLACE;
        }
    }
    PHASE(t) {
        for (u32 n = t; n < width; n += THREADS)
            if (is_nan(load(x, stored, row + n))) nan[0] = 1u;
        for (u32 g = t; g < groups; g += THREADS) {
            float first = 0.0f, second = 0.0f;
            u32 found = 0u;
            for (u32 n = 0; n < size; ++n) {
                float z = load(x, stored, row + (u64)g * size + n);
                if (found == 0u || order_key(z) > order_key(first)) {
                    second = first;
                    first = z;
                    ++found;
                } else if (found == 1u || order_key(z) > order_key(second)) {
                    second = z;
                    ++found;
                }
            }
            sums[g] = best > 1u && size > 1u ? first + second : first;
            kept[g] = 0u;
        }
    }
    if (groups > 0u) {
        for (u32 n = 0; n < keep; ++n) {
            next_best(groups, [&](u32 g) { return sums[g]; }, keys, places, last);
            PHASE(t) {
                if (t == 0) kept[last[0]] = 1u;
            }
        }
        PHASE(t) {
            if (t == 0) last[0] = NO_PLACE;
        }
    }
    for (u32 n = 0; n < k; ++n) {
        next_best(
            width,
            [&](u32 at) {
                bool counts = groups == 0u || (at / size < groups && kept[at / size]);
                return counts ? load(x, stored, row + at) : zero ? 0.0f : -INFINITE;
            },
            keys, places, last);
        PHASE(t) {
            if (t == 0) store(y, dtype, (u64)BLOCK * k + n, nan[0] ? NOT_A_NUMBER : (float)last[0]);
        }
    }
}

// Returns the place that a number names; `count` if it is none.
DEVICE u32 named_place(float place, u32 count) {
    if (!(place >= 0.0f && place < (float)count)) return count;
    return (float)(u32)place == place ? (u32)place : count;
}

DEVICE u32 place_of(const u8 *chosen, u32 stored, u64 at, u32 count) {
    return named_place(load(chosen, stored, at), count);
}

// The `k` choices that are listed for each token, among `places`; NaN for a number that is no place.
KERNEL(choose_by_token, const float *lists, const u32 *tokens, u32 k, u32 places, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float place = lists[(u64)tokens[n / k] * k + n % k];
            store(y, dtype, n, named_place(place, places) < places ? place : NOT_A_NUMBER);
        }
    }
}

// The numbers at chosen places; NaN where there is no such place.
KERNEL(pick, const u8 *x, u32 stored, u32 width, const u8 *chosen, u32 chosen_dtype, u32 k, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 at = place_of(chosen, chosen_dtype, n, width);
            store(y, dtype, n, at < width ? load(x, stored, n / k * width + at) : NOT_A_NUMBER);
        }
    }
}

// For each choice its softmax among the scores that are left and nearly as large; a thread for each choice.
KERNEL(near_shares, const u8 *x, u32 stored, u32 width, const u8 *chosen, u32 chosen_dtype, u32 k, float margin, u8 *y,
       u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 row = n / k * width, first = n / k * k;
            u32 at = place_of(chosen, chosen_dtype, n, width);
            float best = at < width ? load(x, stored, row + at) : NOT_A_NUMBER;
            float whole = -0.0f;
            for (u32 place = 0; place < width; ++place) {
                bool left = true;
                for (u64 earlier = first; earlier < n; ++earlier)
                    left = left && place_of(chosen, chosen_dtype, earlier, width) != place;
                float score = load(x, stored, row + place);
                float apart = round_to(dtype, best - score);
                apart = round_to(dtype, apart / fmaxf(fabsf(score), best));
                // If both are 0 the quotient is NaN, and the score stays.
                if (left && (is_nan(apart) || apart <= margin)) whole += exponential(score - best);
            }
            store(y, dtype, n, at < width ? 1.0f / whole : NOT_A_NUMBER);
        }
    }
}
