// `linear`: sixteen threads for each output, one for each lane of `kernels/matmul.rs`, and four rows at a time.

#define LINEAR_ROWS 4u

#define LINEAR_OUTPUTS (THREADS / 16u)

// Words of an expert in a table of matrices: the address, the form with the bits of the factor above it, and the
// address of a bias.
#define EXPERT_WORDS 3u

// Steps whose weights are read before they are multiplied, so that many reads are under way. Other dtypes than bf16 take
// much code for each step.
DEVICE constexpr u32 steps_ahead(u32 stored, u32 x) { return stored == BF16 && x == BF16 ? 8u : 1u; }

// A dtype that is known when the kernel runs.
#define ANY_DTYPE 255u

// Returns the two numbers of a lane in a step of 32, from a row of `inputs` numbers that begins at `start`.
template <u32 DTYPE, bool PAIRS>
DEVICE void step_numbers(const u8 *numbers, u32 dtype, u64 start, u32 inputs, u32 from, u32 lane, float *of) {
    if (DTYPE == BF16 && PAIRS && inputs % 2u == 0u) {
        // Rows begin at even places, so a pair is one read.
        bool there = from + 2u * lane < inputs;
        u32 pair = there ? ((const u32 *)numbers)[(start + from) / 2u + lane] : 0u;
        of[0] = __uint_as_float(pair & 0xffff0000u);
        of[1] = __uint_as_float(pair << 16);
        return;
    }
    for (u32 phase = 0; phase < 2u; ++phase) {
        u32 k = from + (PAIRS ? 2u * lane + 1u - phase : lane + 16u * phase);
        of[phase] = k < inputs ? load(numbers, DTYPE == ANY_DTYPE ? dtype : DTYPE, start + k) : 0.0f;
    }
}

// Returns the two weights of a lane in a step of 32, in the order in which they are multiplied.
template <u32 STORED, bool PAIRS>
DEVICE void step_weights(const u8 *weight, float factor, u64 output, u32 inputs, u32 from, u32 lane, float *w) {
    if (STORED >= Q8_0) {
        u32 numbers = block_numbers(STORED), at = from % numbers;
        const u8 *block = weight + (output * (inputs / numbers) + from / numbers) * block_bytes(STORED);
        for (u32 phase = 0; phase < 2u; ++phase) {
            BlockScale scale = block_scale(STORED, block, at / 16u + phase);
            w[phase] = block_number(STORED, scale, block_level(STORED, block, at + lane + 16u * phase)) * factor;
        }
        return;
    }
    step_numbers<STORED, PAIRS>(weight, STORED, output * inputs, inputs, from, lane, w);
}

// Adds the products of a step to the sums of rows, which begin at `starts`.
template <u32 X, bool PAIRS, u32 ROWS>
DEVICE void add_step(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, u32 inputs, u32 from, u32 lane, const float *w,
                     float *sums) {
    for (u32 r = 0; r < ROWS; ++r) {
        if (r < rows) {
            float z[2];
            step_numbers<X, PAIRS>(x, x_dtype, starts[r], inputs, from, lane, z);
            sums[r] = fmaf(w[1], z[1], fmaf(w[0], z[0], sums[r]));
        }
    }
}

// Adds the products of one lane for up to ROWS rows. A bf16 row goes in pairs, the odd number first.
template <u32 STORED, u32 X, bool PAIRS, u32 ROWS>
DEVICE void lane_sums(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, const u8 *weight, float factor, u64 output,
                      u32 inputs, u32 lane, float *sums) {
    constexpr u32 AHEAD = steps_ahead(STORED, X);
    for (u32 r = 0; r < ROWS; ++r) sums[r] = 0.0f;
    u32 from = 0;
    for (; from + 32u * AHEAD <= inputs; from += 32u * AHEAD) {
        float w[AHEAD][2];
        for (u32 n = 0; n < AHEAD; ++n)
            step_weights<STORED, PAIRS>(weight, factor, output, inputs, from + 32u * n, lane, w[n]);
        for (u32 n = 0; n < AHEAD; ++n)
            add_step<X, PAIRS, ROWS>(x, x_dtype, starts, rows, inputs, from + 32u * n, lane, w[n], sums);
    }
    for (; from < inputs; from += 32u) {
        float w[2];
        step_weights<STORED, PAIRS>(weight, factor, output, inputs, from, lane, w);
        add_step<X, PAIRS, ROWS>(x, x_dtype, starts, rows, inputs, from, lane, w, sums);
    }
}

// As `lane_sums` for bf16 rows and weights of an even width: a read is a pair, and whole steps have no bounds.
template <u32 ROWS>
DEVICE void even_sums(const u8 *x, const u64 *starts, u32 rows, const u8 *weight, u64 output, u32 inputs, u32 lane, float *sums) {
    constexpr u32 AHEAD = steps_ahead(BF16, BF16);
    const u32 *w = (const u32 *)weight + output * inputs / 2u + lane;
    const u32 *z[ROWS];
    for (u32 r = 0; r < ROWS; ++r) {
        z[r] = (const u32 *)x + (r < rows ? starts[r] / 2u + lane : 0u);
        sums[r] = 0.0f;
    }
    auto add = [&](u32 r, u32 a, u32 b) {
        sums[r] = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16),
                       fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sums[r]));
    };
    u32 at = 0, pairs = inputs / 2u;
    for (; at + 16u * AHEAD <= pairs; at += 16u * AHEAD) {
        u32 a[AHEAD];
        for (u32 n = 0; n < AHEAD; ++n) a[n] = w[16u * n];
        for (u32 r = 0; r < ROWS; ++r) {
            if (r < rows) {
                u32 b[AHEAD];
                for (u32 n = 0; n < AHEAD; ++n) b[n] = z[r][16u * n];
                for (u32 n = 0; n < AHEAD; ++n) add(r, a[n], b[n]);
            }
            z[r] += 16u * AHEAD;
        }
        w += 16u * AHEAD;
    }
    for (; at < pairs; at += 16u) {
        bool there = at + lane < pairs;
        u32 a = there ? w[0] : 0u;
        for (u32 r = 0; r < ROWS; ++r) {
            if (r < rows) add(r, a, there ? z[r][0] : 0u);
            z[r] += 16u;
        }
        w += 16u;
    }
}

template <u32 STORED, u32 X, bool PAIRS>
DEVICE void rows_of(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, const u8 *weight, float factor, u64 output,
                    u32 inputs, u32 lane, float *sums) {
    if (rows == 1u)
        lane_sums<STORED, X, PAIRS, 1u>(x, x_dtype, starts, 1u, weight, factor, output, inputs, lane, sums);
    else
        lane_sums<STORED, X, PAIRS, LINEAR_ROWS>(x, x_dtype, starts, rows, weight, factor, output, inputs, lane, sums);
}

DEVICE void lane_of(const u8 *x, u32 x_dtype, const u64 *starts, u32 rows, const u8 *weight, u32 stored, float factor,
                    u64 output, u32 inputs, u32 lane, float *sums) {
#define LANE(STORED, X, PAIRS) rows_of<STORED, X, PAIRS>(x, x_dtype, starts, rows, weight, factor, output, inputs, lane, sums)
    if (stored == BF16 && x_dtype == BF16) {
        if (inputs % 2u == 1u) return LANE(BF16, BF16, true);
        if (rows == 1u) return even_sums<1u>(x, starts, 1u, weight, output, inputs, lane, sums);
        return even_sums<LINEAR_ROWS>(x, starts, rows, weight, output, inputs, lane, sums);
    }
    if (stored == BF16) return LANE(BF16, ANY_DTYPE, true);
    switch (stored & 255u) {
    case BF16: return LANE(BF16, ANY_DTYPE, false);
    case F16: return LANE(F16, ANY_DTYPE, false);
    case Q8_0: return LANE(Q8_0, ANY_DTYPE, false);
    case Q4_0: return LANE(Q4_0, ANY_DTYPE, false);
    case Q4_K: return LANE(Q4_K, ANY_DTYPE, false);
    case Q6_K: return LANE(Q6_K, ANY_DTYPE, false);
    case MXFP4: return LANE(MXFP4, ANY_DTYPE, false);
    case Q5_0: return LANE(Q5_0, ANY_DTYPE, false);
    case Q5_K: return LANE(Q5_K, ANY_DTYPE, false);
    default: return LANE(F32, ANY_DTYPE, false);
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
