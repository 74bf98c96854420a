// `rg_lru`: log a = -8·σ(r)·softplus(P), h = a·h + √(1 - a²)·σ(i)·x; a thread for each channel.

// `soft`: softplus(P), rounded. Gates and decays are rounded to `grid`; the first position of a sequence takes its
// input whole.
PARTS_KERNEL(rg_lru, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows, u32 continued,
             const u8 *x, u32 x_dtype, const u8 *input, u32 input_dtype, const u8 *gate, u32 gate_dtype,
             const float *soft, u32 channels, u32 grid, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < channels) {
            float held = before[n];
            for (u32 row = 0; row < rows; ++row) {
                u64 at = (u64)(first + row) * channels + n;
                bool reset = row == 0u && !continued;
                float open = round_to(grid, sigmoid(load(gate, gate_dtype, at)));
                float log = round_to(grid, round_to(grid, -8.0f * open) * soft[n]);
                float taken = round_to(grid, sigmoid(load(input, input_dtype, at)));
                float gated = round_to(grid, load(x, x_dtype, at) * taken);
                float kept_square = round_to(grid, expf(round_to(grid, 2.0f * log)));
                float share = reset ? 1.0f : round_to(grid, sqrtf(round_to(grid, 1.0f - kept_square)));
                float decay = reset ? 0.0f : round_to(grid, expf(log));
                held = decay * held + round_to(grid, gated * share);
                block_after(after, kept, work, rows, row)[n] = held;
                store(y, dtype, at, round_to(grid, held));
            }
        }
    }
}
