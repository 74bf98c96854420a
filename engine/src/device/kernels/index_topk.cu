// `index_topk`: the positions that a sparse attention looks at, by small keys of their own.

// Scores of `[rows, span]` positions, a thread each.
PARTS_KERNEL(index_scores, const u8 *q, u32 q_dtype, const u8 *w, u32 w_dtype, u32 first, u32 rows, u32 heads, u32 size,
             const u8 *keys, u32 form, const float *scales, u32 group, u32 start, u32 span, float scale,
             float *scores) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        u32 row = (u32)(n / span), position = (u32)(n % span);
        if (n < (u64)rows * span && position <= start + row) {
            float sum = 0.0f;
            for (u32 head = 0; head < heads; ++head) {
                u64 own = (u64)(first + row) * heads + head, key = (u64)position * size;
                float whole = -0.0f;
                for (u32 from = 0; from < size; from += 64u) {
                    u32 length = size - from < 64u ? size - from : 64u;
                    whole += dot(length, [&](u32 k) {
                        return load(q, q_dtype, own * size + from + k) * cached(keys, form, scales, group, key + from + k);
                    });
                }
                float hit = whole * scale;
                // NaN stays NaN.
                sum = sum + load(w, w_dtype, own) * (hit < 0.0f ? 0.0f : hit);
            }
            scores[n] = sum;
        }
    }
}

// The positions with the largest scores, ascending, then -1; a block for each row.
PARTS_KERNEL(index_select, const float *scores, u32 first, u32 start, u32 span, u32 topk, u8 *y, u32 dtype) {
    SHARED(u32, counts, THREADS);
    SHARED(u32, places, THREADS);
    SHARED(u32, found, 2);
    u32 count = start + BLOCK + 1u;
    u64 line = (u64)(first + BLOCK) * topk;
    const float *own = scores + (u64)BLOCK * span;
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
