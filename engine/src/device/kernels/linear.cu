// `linear`: sixteen threads for each output, one for each lane of `kernels/matmul.rs`, and four rows at a time.

#define LINEAR_ROWS 4u

// Adds the products of one lane for up to four rows. A bf16 row goes in pairs, the odd number first.
template <u32 STORED>
DEVICE void lane_sums(const u8 *x, u32 x_dtype, u64 first, u32 rows, const u8 *weight, u64 output, u32 inputs, u32 lane,
                      float *sums) {
    for (u32 from = 0; from < inputs; from += 32u) {
        for (u32 phase = 0; phase < 2u; ++phase) {
            u32 k = from + (STORED == BF16 ? 2u * lane + 1u - phase : lane + 16u * phase);
            float w = k < inputs ? load(weight, STORED, output * inputs + k) : 0.0f;
            for (u32 r = 0; r < rows; ++r) {
                float z = k < inputs ? load(x, x_dtype, (first + r) * inputs + k) : 0.0f;
                sums[r] = fmaf(w, z, sums[r]);
            }
        }
    }
}

KERNEL(linear, const u8 *x, u32 x_dtype, u32 rows, const u8 *weight, u32 stored, u32 outputs, u32 inputs,
       const float *bias, u8 *y, u32 dtype) {
    SHARED(float, part, THREADS * LINEAR_ROWS);
    u32 groups = (outputs + THREADS / 16u - 1u) / (THREADS / 16u);
    u32 first = BLOCK / groups * LINEAR_ROWS;
    u32 count = rows - first < LINEAR_ROWS ? rows - first : LINEAR_ROWS;
    u32 output = BLOCK % groups * (THREADS / 16u);
    PHASE(t) {
        float sums[LINEAR_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
        u32 o = output + t / 16u;
        if (o < outputs) {
            if (stored == BF16)
                lane_sums<BF16>(x, x_dtype, first, count, weight, o, inputs, t % 16u, sums);
            else if (stored == F16)
                lane_sums<F16>(x, x_dtype, first, count, weight, o, inputs, t % 16u, sums);
            else
                lane_sums<F32>(x, x_dtype, first, count, weight, o, inputs, t % 16u, sums);
        }
        for (u32 r = 0; r < LINEAR_ROWS; ++r) part[r * THREADS + t] = sums[r];
    }
    for (u32 half = 8u; half > 0u; half /= 2u) {
        PHASE(t) {
            if (t % 16u < half) {
                for (u32 r = 0; r < LINEAR_ROWS; ++r) part[r * THREADS + t] += part[r * THREADS + t + half];
            }
        }
    }
    PHASE(t) {
        u32 o = output + t / 16u, r = t % 16u;
        if (o < outputs && r < count) {
            float sum = part[r * THREADS + t / 16u * 16u];
            store(y, dtype, (u64)(first + r) * outputs + o, bias ? sum + bias[o] : sum);
        }
    }
}
