// Rows rounded to codes of few bits with a scale, and back, in the order of `kernels/tokens.rs`.

#define CODES_E4M3 0u
#define CODES_SYMMETRIC 1u
#define CODES_ASYMMETRIC 2u

// A block for each group of `group` numbers of a row. Codes are from `least` to `most`. `fixed`: with the given scale
// and code of zero, or else with those that follow from the group, which stays as it is if a number is not finite.
KERNEL(round_inputs, const u8 *x, u32 stored, u32 width, u32 group, u32 codes, float least, float most, u32 fixed,
       float fixed_scale, float fixed_zero, float epsilon, u32 grid, float *y) {
    SHARED(float, lows, THREADS);
    SHARED(float, highs, THREADS);
    SHARED(u32, bad, 1);
    SHARED(float, scale, 1);
    SHARED(float, zero, 1);
    u32 groups = (width + group - 1u) / group, start = BLOCK % groups * group;
    u32 count = width - start < group ? width - start : group;
    u64 first = (u64)(BLOCK / groups) * width + start;
    PHASE(t) {
        if (t == 0) bad[0] = 0u;
    }
    PHASE(t) {
        float low = 0.0f, high = 0.0f;
        for (u32 k = t; k < count; k += THREADS) {
            float z = load(x, stored, first + k);
            if (!(fabsf(z) < INFINITE)) bad[0] = 1u;
            low = z < low ? z : low;
            high = z > high ? z : high;
        }
        lows[t] = low;
        highs[t] = high;
    }
    PHASE(t) {
        if (t == 0) {
            float low = 0.0f, high = 0.0f;
            for (u32 n = 0; n < THREADS; ++n) {
                low = lows[n] < low ? lows[n] : low;
                high = highs[n] > high ? highs[n] : high;
            }
            float s = fixed_scale, z = fixed_zero;
            if (!fixed && codes == CODES_ASYMMETRIC) {
                s = round_to(grid, round_to(grid, high - low) / (most - least));
                z = round_to(grid, least - round_to(grid, low / s));
                z = z < least ? least : z > most ? most : z;
                // For a row of zeros the quotient is NaN, and any zero point will do.
                z = is_nan(z) ? 0.0f : rintf(z);
            } else if (!fixed) {
                float size = high > -low ? high : -low;
                s = round_to(grid, size / ((most - least) / 2.0f));
                z = 0.0f;
            }
            scale[0] = !fixed && s == 0.0f ? epsilon : s;
            zero[0] = z;
        }
    }
    PHASE(t) {
        for (u32 k = t; k < count; k += THREADS) {
            float z = load(x, stored, first + k);
            if (fixed || !bad[0]) {
                float scaled = round_to(grid, round_to(grid, z / scale[0]) + zero[0]);
                scaled = scaled < least ? least : scaled > most ? most : scaled;
                float code = codes == CODES_E4M3 ? from_fp8(to_fp8(scaled)) : rintf(scaled);
                z = round_to(grid, (code - zero[0]) * scale[0]);
            }
            y[first + k] = z;
        }
    }
}
