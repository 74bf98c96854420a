// `linear`: sixteen threads for each output, one for each lane of `kernels/matmul.rs`, and four rows at a time.

#define LINEAR_ROWS 4u

#define LINEAR_OUTPUTS (THREADS / 16u)

// Adds the products of one lane for up to four rows, which begin at `starts`. A bf16 row goes in pairs, the odd number
// first.
template <u32 STORED, bool PAIRS>
DEVICE void lane_sums(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, const u8 *weight, float factor, u64 output,
                      u32 inputs, u32 lane, float *sums) {
    for (u32 r = 0; r < LINEAR_ROWS; ++r) sums[r] = 0.0f;
    for (u32 from = 0; from < inputs; from += 32u) {
        for (u32 phase = 0; phase < 2u; ++phase) {
            u32 k = from + (PAIRS ? 2u * lane + 1u - phase : lane + 16u * phase);
            float w = k < inputs ? matrix_number(weight, STORED, factor, output, inputs, k) : 0.0f;
            for (u32 r = 0; r < LINEAR_ROWS; ++r) {
                float z = r < rows && k < inputs ? load(x, x_dtype, starts[r] + k) : 0.0f;
                sums[r] = r < rows ? fmaf(w, z, sums[r]) : sums[r];
            }
        }
    }
}

DEVICE void lane_of(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, const u8 *weight, u32 stored, float factor,
                    u64 output, u32 inputs, u32 lane, float *sums) {
#define LANE(STORED, PAIRS) lane_sums<STORED, PAIRS>(x, x_dtype, starts, rows, weight, factor, output, inputs, lane, sums)
    if (stored == BF16) return LANE(BF16, true);
    switch (stored & 255u) {
    case BF16: return LANE(BF16, false);
    case F16: return LANE(F16, false);
    case Q8_0: return LANE(Q8_0, false);
    case Q4_0: return LANE(Q4_0, false);
    case Q4_K: return LANE(Q4_K, false);
    case Q6_K: return LANE(Q6_K, false);
    case MXFP4: return LANE(MXFP4, false);
    case Q5_0: return LANE(Q5_0, false);
    case Q5_K: return LANE(Q5_K, false);
    default: return LANE(F32, false);
    }
#undef LANE
}

// Adds the sums of sixteen lanes; every thread of the block calls it.
DEVICE void add_lanes(float *part) {
    for (u32 half = 8u; half > 0u; half /= 2u) {
        PHASE(t) {
            if (t % 16u < half) {
                for (u32 r = 0; r < LINEAR_ROWS; ++r) part[r * THREADS + t] += part[r * THREADS + t + half];
            }
        }
    }
}

KERNEL(linear, const u8 *x, u32 x_dtype, u32 rows, const u8 *weight, u32 stored, float factor, u32 outputs, u32 inputs,
       const float *bias, u8 *y, u32 dtype) {
    SHARED(float, part, THREADS * LINEAR_ROWS);
    u32 groups = (outputs + LINEAR_OUTPUTS - 1u) / LINEAR_OUTPUTS;
    u32 first = BLOCK / groups * LINEAR_ROWS;
    u32 count = rows - first < LINEAR_ROWS ? rows - first : LINEAR_ROWS;
    u32 output = BLOCK % groups * LINEAR_OUTPUTS;
    PHASE(t) {
        u64 starts[LINEAR_ROWS];
        float sums[LINEAR_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 r = 0; r < LINEAR_ROWS; ++r) starts[r] = (u64)(first + r) * inputs;
        u32 o = output + t / 16u;
        if (o < outputs) lane_of(x, x_dtype, starts, count, weight, stored, factor, o, inputs, t % 16u, sums);
        for (u32 r = 0; r < LINEAR_ROWS; ++r) part[r * THREADS + t] = sums[r];
    }
    add_lanes(part);
    PHASE(t) {
        u32 o = output + t / 16u, r = t % 16u;
        if (o < outputs && r < count) {
            float sum = part[r * THREADS + t / 16u * 16u];
            store(y, dtype, (u64)(first + r) * outputs + o, bias ? sum + bias[o] : sum);
        }
    }
}
