// `gated_norm`: a norm of the root mean square per group, with a gate before or after it; a block for each group.

// `grids`: the dtype that each row is rounded to. `sigmoids`: the gate's activation is a sigmoid, or else silu.
KERNEL(gated_norm, const u8 *x, u32 stored, const u8 *gate, u32 gate_dtype, const float *weight, u32 axis, u32 width,
       u32 group, float eps, u32 before, u32 gate_first, u32 sigmoids, const u32 *grids, u8 *y, u32 dtype) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    u64 first = (u64)BLOCK * group;
    u32 grid = grids[first / width];
    auto gated = [&](u32 k) {
        float g = load(gate, gate_dtype, first + k);
        return sigmoids ? sigmoid(g) : silu(g);
    };
    auto input = [&](u32 k) {
        float z = load(x, stored, first + k);
        return gate_first ? z * gated(k) : z;
    };
    fold(
        group,
        [&](u32 k) {
            float z = input(k);
            return z * z;
        },
        lanes, total);
    PHASE(t) {
        float scale = 1.0f / sqrtf((float)total[0] / (float)group + eps);
        for (u32 k = t; k < group; k += THREADS) {
            float z = input(k) * scale;
            if (before) z = round_to(grid, z);
            z *= weight[(first + k) % axis];
            if (before) z = round_to(grid, z);
            if (!gate_first) z *= gated(k);
            store(y, dtype, first + k, round_to(grid, z));
        }
    }
}
