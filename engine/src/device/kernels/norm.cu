// `rms_norm`, `layer_norm`, `l2_norm`: statistics in f32 over the last axis, a block for each row.

// `centred`: subtract the mean first. `before`: round before the weight is applied. `plus_one`: the weight is
// 1 + w, rounded to `sum_dtype`. `period`: rows of the axis after which weight and bias begin again.
KERNEL(norm, const u8 *x, u32 stored, const float *weight, u32 weight_period, const float *bias, u32 bias_period,
       u32 axis, float eps, u32 centred, u32 before, u32 plus_one, u32 sum_dtype, u8 *y, u32 dtype) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    SHARED(float, mean, 1);
    u64 row = (u64)BLOCK * axis;
    PHASE(t) {
        if (t == 0) mean[0] = 0.0f;
    }
    if (centred) {
        fold(axis, [&](u32 k) { return load(x, stored, row + k); }, lanes, total);
        PHASE(t) {
            if (t == 0) mean[0] = (float)total[0] / (float)axis;
        }
    }
    fold(
        axis,
        [&](u32 k) {
            float z = load(x, stored, row + k);
            z = centred ? z - mean[0] : z;
            return z * z;
        },
        lanes, total);
    PHASE(t) {
        float scale = 1.0f / sqrtf((float)total[0] / (float)axis + eps);
        for (u32 k = t; k < axis; k += THREADS) {
            float z = load(x, stored, row + k);
            z = (centred ? z - mean[0] : z) * scale;
            if (before) z = round_to(dtype, z);
            if (weight) {
                float w = weight[(u64)(BLOCK % weight_period) * axis + k];
                z *= plus_one ? round_to(sum_dtype, 1.0f + w) : w;
            }
            if (bias) z += bias[(u64)(BLOCK % bias_period) * axis + k];
            store(y, dtype, row + k, z);
        }
    }
}
