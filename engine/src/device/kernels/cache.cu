// Rows of caches.

// Returns the f8 e4m3 of a number; what is larger than the largest saturates.
DEVICE u8 to_fp8(float x) {
    u32 bits = __float_as_uint(x);
    u8 sign = (u8)((bits >> 24) & 0x80u);
    float size = __uint_as_float(bits & 0x7fffffffu);
    if (is_nan(x)) return (u8)(sign | 0x7fu);
    if (size >= 448.0f) return (u8)(sign | 0x7eu);
    if (size < 0.015625f) {
        // Steps of 2^-9; adding and subtracting 1.5 * 2^14 rounds to them, ties to even.
        float steps = (size + 24576.0f) - 24576.0f;
        return (u8)(sign | (u32)(steps * 512.0f));
    }
    u32 rounded = (__float_as_uint(size) + 0x7ffffu + ((bits >> 20) & 1u)) >> 20;
    return (u8)(sign | (rounded - (120u << 3)));
}

DEVICE float from_fp8(u8 code) {
    u32 sign = ((u32)code & 0x80u) << 24;
    u32 size = (u32)code & 0x7fu;
    if (size == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
    if (size < 8u) return __uint_as_float(sign | __float_as_uint((float)size * 0.001953125f));
    return __uint_as_float(sign | ((size + (120u << 3)) << 20));
}

// Reads a number of a cache. `scales` and `group` are of the 8-bit forms: a scale for each group, or the one scale
// with the grid that products are rounded to in `group`.
DEVICE float cached(const u8 *from, u32 form, const float *scales, u32 group, u64 at) {
    if (form == FP8_GROUPS) return from_fp8(from[at]) * scales[at / group];
    if (form == FP8_FIXED) return round_to(group, from_fp8(from[at]) * scales[0]);
    return load(from, form, at);
}

// Calls `f` with the encoding of a cache as a constant, so that its loops read many numbers before they use the first.
template <class F> DEVICE void with_form(u32 form, F f) {
    switch (form) {
    case BF16: return f(BF16);
    case F16: return f(F16);
    case FP8_GROUPS: return f(FP8_GROUPS);
    case FP8_FIXED: return f(FP8_FIXED);
    default: return f(F32);
    }
}

// Writes numbers into rows of a dtype.
PARTS_KERNEL(keep_rows, const u8 *x, u32 stored, u64 from, u8 *y, u32 dtype, u64 to, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, to + n, load(x, stored, from + n));
    }
}

// Writes groups of numbers in 8 bits with the scale that makes the largest of each 448; a thread for each group.
PARTS_KERNEL(keep_groups, const u8 *x, u32 stored, u64 from, u8 *y, float *scales, u32 group, u64 to, u64 groups) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < groups) {
            float peak = 0.0f;
            for (u32 k = 0; k < group; ++k) {
                float size = fabsf(load(x, stored, from + n * group + k));
                peak = size > peak ? size : peak;
            }
            float scale = peak / 448.0f;
            scale = peak == 0.0f ? 1.0f : scale > 1.17549435e-38f ? scale : 1.17549435e-38f;
            scales[to / group + n] = scale;
            for (u32 k = 0; k < group; ++k) {
                y[to + n * group + k] = to_fp8(load(x, stored, from + n * group + k) / scale);
            }
        }
    }
}

// Writes numbers in 8 bits with one scale; quotients are rounded to `dtype`.
PARTS_KERNEL(keep_fixed, const u8 *x, u32 stored, u64 from, u8 *y, const float *scale, u32 dtype, u64 to, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) y[to + n] = to_fp8(round_to(dtype, load(x, stored, from + n) / scale[0]));
    }
}
