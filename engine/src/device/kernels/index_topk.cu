// `index_topk` and `index_blocks`: the positions, or blocks of them, that a sparse attention looks at, by small keys of
// their own.

// Multiplies one head of a query with the key of a position.
DEVICE float index_product(const u8 *q, u32 q_dtype, u64 own, const u8 *keys, u32 form, const float *scales, u32 group,
                           u32 position, u32 size) {
    u64 key = (u64)position * size;
    float whole = -0.0f;
    for (u32 from = 0; from < size; from += 64u) {
        u32 length = size - from < 64u ? size - from : 64u;
        whole += dot(length, [&](u32 k) {
            return load(q, q_dtype, own * size + from + k) * cached(keys, form, scales, group, key + from + k);
        });
    }
    return whole;
}

// Writes the `topk` numbers below `count` with the largest scores, ascending, then -1. Every thread of the block calls it.
DEVICE void write_largest(const float *own, u32 count, u32 topk, u8 *y, u32 dtype, u64 line, u32 *counts, u32 *places,
                          u32 *found) {
    if (count > topk) {
        select_largest(
            count, topk, [&](u32 k) { return order_key(own[k]); }, counts, places, found,
            [&](u32 k, u32 place) { store(y, dtype, line + place, (float)k); }, [&](u32) {});
    } else {
        PHASE(t) {
            for (u32 k = t; k < topk; k += THREADS) store(y, dtype, line + k, k < count ? (float)k : -1.0f);
        }
    }
}

// Scores of `[rows, span]` blocks, a thread each. A block has the key of its last position; `w` may be null.
PARTS_KERNEL(index_scores, const u8 *q, u32 q_dtype, const u8 *w, u32 w_dtype, u32 first, u32 rows, u32 heads, u32 size,
             const u8 *keys, u32 form, const float *scales, u32 group, u32 start, u32 span, u32 block, float scale,
             float *scores) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        u32 row = (u32)(n / span), number = (u32)(n % span);
        if (n < (u64)rows * span && number < (start + row + 1u) / block) {
            u32 position = number * block + block - 1u;
            float sum = 0.0f;
            for (u32 head = 0; head < heads; ++head) {
                u64 own = (u64)(first + row) * heads + head;
                float hit = index_product(q, q_dtype, own, keys, form, scales, group, position, size) * scale;
                // NaN stays NaN.
                sum = sum + (w ? load(w, w_dtype, own) : 1.0f) * (hit < 0.0f ? 0.0f : hit);
            }
            scores[n] = sum;
        }
    }
}

// The blocks with the largest scores, ascending, then that which is not complete if `newest`, then -1; a block of threads
// for each row.
PARTS_KERNEL(index_select, const float *scores, u32 first, u32 start, u32 span, u32 block, u32 topk, u32 newest, u8 *y,
             u32 dtype) {
    SHARED(u32, counts, THREADS);
    SHARED(u32, places, THREADS);
    SHARED(u32, found, 2);
    u32 seen = start + BLOCK + 1u, complete = seen / block;
    u64 line = (u64)(first + BLOCK) * (topk + newest);
    write_largest(scores + (u64)BLOCK * span, complete, topk, y, dtype, line, counts, places, found);
    if (newest) {
        PHASE(t) {
            // It comes behind the selected blocks, and the last place is free if those are few.
            if (t == 0u) {
                u32 place = complete < topk ? complete : topk;
                if (place < topk) store(y, dtype, line + topk, -1.0f);
                store(y, dtype, line + place, seen % block ? (float)complete : -1.0f);
            }
        }
    }
}

// Scores of `[rows, heads, span]` blocks, a thread each: the largest product of a query and a key up to its own, or
// infinity in the last `local` blocks.
PARTS_KERNEL(block_scores, const u8 *q, u32 q_dtype, u32 first, u32 rows, u32 heads, u32 size, const u8 *keys, u32 form,
             const float *scales, u32 group, u32 start, u32 span, u32 block, u32 local, float *scores) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        u32 number = (u32)(n % span), head = (u32)(n / span % heads), row = (u32)(n / span / heads);
        u32 last = (start + row) / block;
        if (n < (u64)rows * heads * span && number <= last) {
            float most = -INFINITE;
            u64 own = (u64)(first + row) * heads + head;
            u64 from = (u64)number * block, to = from + block < (u64)start + row + 1u ? from + block : (u64)start + row + 1u;
            for (u64 p = from; p < to && last - number >= local; ++p) {
                float x = index_product(q, q_dtype, own, keys, form, scales, group, (u32)p, size);
                most = x > most || is_nan(x) ? x : most;
            }
            scores[n] = last - number < local ? INFINITE : most;
        }
    }
}

// The blocks with the largest scores, ascending, then -1; a block of threads for each row and head.
PARTS_KERNEL(block_select, const float *scores, u32 first, u32 heads, u32 start, u32 span, u32 block, u32 topk, u8 *y,
             u32 dtype) {
    SHARED(u32, counts, THREADS);
    SHARED(u32, places, THREADS);
    SHARED(u32, found, 2);
    u32 row = BLOCK / heads, head = BLOCK % heads;
    write_largest(scores + (u64)BLOCK * span, (start + row) / block + 1u, topk, y, dtype,
                  ((u64)(first + row) * heads + head) * topk, counts, places, found);
}

// The mean of the block of keys that ends at a row, or zeros; a thread for each number.
PARTS_KERNEL(block_mean, const u8 *keys, u32 form, const float *scales, u32 group, u32 first, u32 rows, u32 size, u32 start,
             u32 block, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * size) {
            u32 end = start + (u32)(n / size) + 1u;
            float sum = 0.0f;
            for (u32 p = end - block; end % block == 0u && p < end; ++p)
                sum += cached(keys, form, scales, group, (u64)p * size + n % size);
            store(y, dtype, (u64)first * size + n, sum / (float)block);
        }
    }
}
