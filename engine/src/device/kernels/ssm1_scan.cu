// `ssm1_scan`: h = exp(dt·A)·h + (dt·B)·x, y = h·C + D·x; a thread for each channel.

// States are `[channels, size]`, and `dim` channels make a head. Numbers of the state are rounded to `grid` where they
// are read. `stepwise`: rows that continue a sequence round D·x and the sum.
PARTS_KERNEL(ssm1_scan, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows,
             u32 continued, const u8 *x, u32 x_dtype, const float *steps, const u8 *b, u32 b_dtype, const u8 *c,
             u32 c_dtype, const float *decays, const float *skips, u32 channels, u32 dim, u32 size, u32 grid,
             u32 stepwise, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < channels) {
            const float *from = before + n * size, *decay = decays + n * size;
            for (u32 row = 0; row < rows; ++row) {
                float *to = block_after(after, kept, work, rows, row) + n * size;
                u64 at = first + row, shared = (at * (channels / dim) + n / dim) * size;
                float dt = steps[at * channels + n], z = load(x, x_dtype, at * channels + n);
                for (u32 k = 0; k < size; ++k)
                    to[k] = exponential(decay[k] * dt) * from[k] + dt * load(b, b_dtype, shared + k) * z;
                float sum = dot(size, [&](u32 k) { return round_to(grid, to[k]) * load(c, c_dtype, shared + k); });
                float read = round_to(grid, sum), skip = z * skips[n];
                float made = read + skip;
                if (stepwise && continued) made = round_to(grid, read + round_to(grid, skip));
                store(y, dtype, at * channels + n, made);
                from = to;
            }
        }
    }
}
