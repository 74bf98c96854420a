// `ssd_scan`: S = exp(dt·A)·S + dt·x⊗B, y = S·C + D·x; a thread for each number of a head.

// States are `[heads, dim, size]`. `grid`: rows that continue a sequence are rounded to it; F32 for none.
PARTS_KERNEL(ssd_scan, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows, u32 continued,
             const u8 *x, u32 x_dtype, const float *steps, const u8 *b, u32 b_dtype, const u8 *c, u32 c_dtype,
             const float *decays, const float *skips, u32 heads, u32 dim, u32 groups, u32 size, u32 grid, u8 *y,
             u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)heads * dim) {
            u32 head = (u32)(n / dim), group = head / (heads / groups);
            bool rounds = continued && grid != F32;
            const float *from = before + n * size;
            for (u32 row = 0; row < rows; ++row) {
                float *to = block_after(after, kept, work, rows, row) + n * size;
                u64 at = first + row, shared = (at * groups + group) * size;
                float dt = steps[at * heads + head];
                float z = load(x, x_dtype, at * heads * dim + n);
                float decay = expf(dt * decays[head]), dx = z * dt;
                for (u32 k = 0; k < size; ++k) {
                    float own = load(b, b_dtype, shared + k);
                    float added = rounds ? round_to(grid, round_to(grid, dt * own) * z) : dx * own;
                    to[k] = from[k] * decay + added;
                }
                float sum = dot(size, [&](u32 k) {
                    return (rounds ? round_to(grid, to[k]) : to[k]) * load(c, c_dtype, shared + k);
                });
                float made = sum + skips[head] * z;
                if (rounds) made = round_to(grid, round_to(grid, sum) + round_to(grid, z * skips[head]));
                store(y, dtype, at * heads * dim + n, made);
                from = to;
            }
        }
    }
}
