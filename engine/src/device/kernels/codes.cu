// Products in integers: `kernels/q8.rs`. Rows are rounded to blocks of 32 codes with one scale, and multiplied with the
// levels of weights in blocks. Sums of a group are integers, which are exact; groups are added in their order.

// Steps of 32 inputs that a block of threads multiplies before their sums are added: threads of an output.
#define CODE_STEPS 16u

// Rounds blocks of 32 numbers as `input.rs` does, a thread for each.
KERNEL(round_codes, const u8 *x, u32 stored, i8 *codes, float *scales, u64 blocks) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < blocks) {
            const float MAGIC = 12582912.0f;
            u32 most = 0u;
            for (u32 k = 0; k < 32u; ++k) {
                u32 bits = __float_as_uint(load(x, stored, n * 32u + k)) & 0x7fffffffu;
                most = bits > most ? bits : most;
            }
            float size = __uint_as_float(most);
            bool finite = most < 0x7f800000u, some = finite && size >= 1e-35f;
            float inverse = 127.0f / size;
            for (u32 k = 0; k < 32u; ++k) {
                u32 bits = __float_as_uint(load(x, stored, n * 32u + k) * inverse + MAGIC);
                codes[n * 32u + k] = some ? (i8)(int)(bits - __float_as_uint(MAGIC)) : (i8)0;
            }
            scales[n] = some ? size / 127.0f : finite ? 0.0f : NOT_A_NUMBER;
        }
    }
}

// Reads four bytes at an even address.
DEVICE u32 even_word(const u8 *from) { return (u32)((const u16 *)from)[0] | (u32)((const u16 *)from)[1] << 16; }

// Returns the offset that is added to the levels of a type.
DEVICE int level_offset(u32 type) { return type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == Q6_K ? 32 : 0; }

// Returns levels `4 * n` to `4 * n + 3` of step `step` of a block as bytes, with the offset of their type.
DEVICE u32 four_levels(u32 type, const u8 *block, u32 step, u32 n) {
    const u32 LOW = 0x0f0f0f0fu;
    if (type == Q8_0) return even_word(block + 2u + 4u * n);
    if (type == Q4_K || type == Q5_K) {
        u32 word = ((const u32 *)(block + (type == Q5_K ? 48u : 16u) + step / 2u * 32u))[n];
        u32 levels = (step % 2u == 0u ? word : word >> 4) & LOW;
        if (type == Q5_K) levels |= (((const u32 *)(block + 16u))[n] >> step & 0x01010101u) << 4;
        return levels;
    }
    if (type == Q6_K) {
        u32 half = step / 4u, part = step % 4u;
        u32 word = even_word(block + half * 64u + part % 2u * 32u + 4u * n);
        u32 high = even_word(block + 128u + half * 32u + 4u * n) >> (2u * part) & 0x03030303u;
        return ((part < 2u ? word : word >> 4) & LOW) | high << 4;
    }
    if (type == MXFP4) {
        u32 levels = 0u;
        for (u32 k = 0; k < 4u; ++k) levels |= ((u32)block_level(type, block, 4u * n + k) & 255u) << (8u * k);
        return levels;
    }
    u32 word = even_word(block + (type == Q5_0 ? 6u : 2u) + n % 4u * 4u);
    u32 levels = (n < 4u ? word : word >> 4) & LOW;
    if (type == Q5_0) {
        u32 fifths = even_word(block + 2u) >> (4u * n);
        levels |= (fifths & 1u) << 4 | (fifths & 2u) << 11 | (fifths & 4u) << 18 | (fifths & 8u) << 25;
    }
    return levels;
}

// What the steps of a block of threads leave for the sums: `[row, thread, group]`, and `[row, thread]`.
struct CodeSums {
    float *sums, *both, *mins, *shares;
};

// Multiplies one step of an output with the codes of some rows.
template <u32 TYPE>
DEVICE void code_step(const i8 *codes, const float *scales, const u32 *rows, u32 count, const u8 *weight, u64 output,
                      u32 inputs, u32 step, u32 t, CodeSums into) {
    u32 numbers = block_numbers(TYPE), at = step * 32u % numbers;
    const u8 *block = weight + (output * (inputs / numbers) + step * 32u / numbers) * block_bytes(TYPE);
    u32 levels[8];
    for (u32 n = 0; n < 8u; ++n) levels[n] = four_levels(TYPE, block, at / 32u, n);
    BlockScale half[2] = {block_scale(TYPE, block, at / 16u), block_scale(TYPE, block, at / 16u + 1u)};
    into.mins[t] = half[0].min;
    for (u32 r = 0; r < LINEAR_ROWS; ++r) {
        if (r < count) {
            u64 place = (u64)rows[r] * (inputs / 32u) + step;
            const int *own = (const int *)codes + place * 8u;
            float scale = scales[place];
            int all = 0, sum[2];
            for (u32 g = 0; g < 2u; ++g) {
                int part = 0, dot = 0;
                for (u32 n = 4u * g; n < 4u * g + 4u; ++n) {
                    part = __dp4a(0x01010101, own[n], part);
                    dot = __dp4a((int)levels[n], own[n], dot);
                }
                sum[g] = dot - level_offset(TYPE) * part;
                all += part;
            }
            u32 first = (r * THREADS + t) * 2u;
            // Only Q6_K has a scale for each 16 numbers.
            into.sums[first] = (float)(TYPE == Q6_K ? sum[0] : sum[0] + sum[1]);
            into.sums[first + 1u] = (float)sum[1];
            into.both[first] = half[0].scale * scale;
            into.both[first + 1u] = half[1].scale * scale;
            into.shares[r * THREADS + t] = scale * (float)all;
        }
    }
}

DEVICE void code_step_of(u32 type, const i8 *codes, const float *scales, const u32 *rows, u32 count, const u8 *weight,
                         u64 output, u32 inputs, u32 step, u32 t, CodeSums into) {
#define STEP_OF(TYPE) code_step<TYPE>(codes, scales, rows, count, weight, output, inputs, step, t, into)
    switch (type) {
    case Q8_0: return STEP_OF(Q8_0);
    case Q4_0: return STEP_OF(Q4_0);
    case Q4_K: return STEP_OF(Q4_K);
    case Q6_K: return STEP_OF(Q6_K);
    case Q5_0: return STEP_OF(Q5_0);
    case Q5_K: return STEP_OF(Q5_K);
    default: return STEP_OF(MXFP4);
    }
#undef STEP_OF
}

// Multiplies rows with LINEAR_OUTPUTS outputs from `output` on; every thread of the block calls it. The sum of row `r` and
// output `o` is `totals[r * LINEAR_OUTPUTS + o]` afterwards.
DEVICE void code_products(const i8 *codes, const float *scales, const u32 *rows, u32 count, const u8 *weight, u32 stored,
                          u32 output, u32 outputs, u32 inputs, CodeSums into, float *totals) {
    u32 type = stored & 255u, steps = inputs / 32u;
    for (u32 from = 0; from < steps; from += CODE_STEPS) {
        PHASE(t) {
            u32 o = output + t / CODE_STEPS, step = from + t % CODE_STEPS;
            if (o < outputs && step < steps)
                code_step_of(type, codes, scales, rows, count, weight, o, inputs, step, t, into);
        }
        PHASE(t) {
            u32 r = t / LINEAR_OUTPUTS, o = t % LINEAR_OUTPUTS;
            if (r < count && output + o < outputs) {
                float total = from == 0u ? 0.0f : totals[t];
                for (u32 k = 0; k < CODE_STEPS && from + k < steps; ++k) {
                    u32 place = o * CODE_STEPS + k, first = (r * THREADS + place) * 2u;
                    total = fmaf(into.sums[first], into.both[first], total);
                    if (type == Q6_K) total = fmaf(into.sums[first + 1u], into.both[first + 1u], total);
                    if (type == Q4_K || type == Q5_K)
                        total = fmaf(-into.mins[place], into.shares[r * THREADS + place], total);
                }
                totals[t] = total;
            }
        }
    }
}

#define CODE_ARRAYS                                                                                                    \
    SHARED(float, sums, LINEAR_ROWS *THREADS * 2u);                                                                    \
    SHARED(float, both, LINEAR_ROWS *THREADS * 2u);                                                                    \
    SHARED(float, mins, THREADS);                                                                                      \
    SHARED(float, shares, LINEAR_ROWS *THREADS);                                                                       \
    SHARED(float, totals, LINEAR_ROWS *LINEAR_OUTPUTS);                                                                \
    CodeSums into = {sums, both, mins, shares}

KERNEL(linear_codes, const i8 *codes, const float *scales, u32 rows, const u8 *weight, u32 stored, float factor,
       u32 outputs, u32 inputs, const float *bias, u8 *y, u32 dtype) {
    CODE_ARRAYS;
    u32 groups = (outputs + LINEAR_OUTPUTS - 1u) / LINEAR_OUTPUTS;
    u32 first = BLOCK / groups * LINEAR_ROWS, output = BLOCK % groups * LINEAR_OUTPUTS;
    u32 count = rows - first < LINEAR_ROWS ? rows - first : LINEAR_ROWS;
    u32 own[LINEAR_ROWS];
    for (u32 r = 0; r < LINEAR_ROWS; ++r) own[r] = first + r;
    code_products(codes, scales, own, count, weight, stored, output, outputs, inputs, into, totals);
    PHASE(t) {
        u32 r = t / LINEAR_OUTPUTS, o = output + t % LINEAR_OUTPUTS;
        if (r < count && o < outputs) {
            float sum = totals[t] * factor;
            store(y, dtype, (u64)(first + r) * outputs + o, bias ? sum + bias[o] : sum);
        }
    }
}

// As `experts_linear`, for experts whose matrices are all in blocks.
KERNEL(experts_codes, const i8 *codes, const float *scales, u32 share, const u32 *order, const u32 *experts, u32 pairs,
       const u64 *table, u32 n, u32 outputs, u32 inputs, u8 *y, u32 dtype) {
    CODE_ARRAYS;
    u32 groups = (outputs + LINEAR_OUTPUTS - 1u) / LINEAR_OUTPUTS;
    u32 first = BLOCK / groups * LINEAR_ROWS, output = BLOCK % groups * LINEAR_OUTPUTS;
    u32 count = pairs - first < LINEAR_ROWS ? pairs - first : LINEAR_ROWS;
    for (u32 r = 0; r < count;) {
        u32 expert = experts[first + r], run = 1u;
        while (r + run < count && experts[first + r + run] == expert) ++run;
        if (expert < n) {
            u32 own[LINEAR_ROWS];
            for (u32 m = 0; m < LINEAR_ROWS; ++m) own[m] = m < run ? order[first + r + m] / share : 0u;
            const u64 *matrix = table + (u64)expert * EXPERT_WORDS;
            code_products(codes, scales, own, run, (const u8 *)matrix[0], (u32)matrix[1], output, outputs, inputs, into,
                          totals);
            PHASE(t) {
                u32 m = t / LINEAR_OUTPUTS, o = output + t % LINEAR_OUTPUTS;
                if (m < run && o < outputs) {
                    const float *bias = (const float *)matrix[2];
                    float sum = round_to(dtype, totals[t] * __uint_as_float((u32)(matrix[1] >> 32)));
                    // A bias is added to the rounded product.
                    store(y, dtype, (u64)order[first + r + m] * outputs + o, bias ? sum + bias[o] : sum);
                }
            }
        }
        r += run;
    }
}
