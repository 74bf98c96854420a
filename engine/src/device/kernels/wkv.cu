// `wkv`: a mean of values whose weights decay with the distance; a thread for each channel. A block is `[channels, 3]`:
// sums of weighted values and of weights, and the exponent that both are divided by.

PARTS_KERNEL(wkv, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows, u32 continued,
             const u8 *k, u32 k_dtype, const u8 *v, u32 v_dtype, const float *decay, const float *bonus, u32 channels,
             u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < channels) {
            float values = before[3u * n], weights = before[3u * n + 1u], held = before[3u * n + 2u];
            if (!continued) held = -1e38f;
            for (u32 row = 0; row < rows; ++row) {
                u64 at = (u64)(first + row) * channels + n;
                float key = load(k, k_dtype, at), value = load(v, v_dtype, at);
                float boosted = key + bonus[n], top = held > boosted ? held : boosted;
                float old = expf(held - top), fresh = expf(boosted - top);
                store(y, dtype, at, (old * values + fresh * value) / (old * weights + fresh));
                float faded = held + decay[n];
                top = faded > key ? faded : key;
                old = expf(faded - top);
                fresh = expf(key - top);
                values = old * values + fresh * value;
                weights = old * weights + fresh;
                held = top;
                float *block = block_after(after, kept, work, rows, row) + 3u * n;
                block[0] = values;
                block[1] = weights;
                block[2] = held;
            }
        }
    }
}
