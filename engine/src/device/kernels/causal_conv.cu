// `causal_conv`: each channel over its last inputs; those before the step come from the state. `previous`: the input
// before.

#define NO_ACTIVATION 14u

// `added`: numbers of rows that are added to the kernel of all channels of a head, `[heads, taps]`, that of the row itself
// first.
PARTS_KERNEL(causal_conv, const u8 *x, u32 stored, u32 x_row, u32 rows, u32 channels, const float *weight, u32 taps,
             u32 dilation, const u8 *added, u32 added_dtype, u32 heads, const float *bias, const u8 *past, u32 past_dtype,
             u32 first, u32 start, u32 stepwise, u32 kind, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * channels) {
            u32 c = (u32)(n % channels), row = (u32)(n / channels);
            float sum = 0.0f;
            for (u32 tap = 0; tap < taps; ++tap) {
                // Inputs before the first position are zero.
                u32 back = (taps - 1u - tap) * dilation;
                float z = 0.0f;
                if (row >= back)
                    z = load(x, stored, (u64)(x_row + row - back) * channels + c);
                else if (start + row >= back)
                    z = load(past, past_dtype, (u64)(start + row - back - first) * channels + c);
                float factor = weight[(u64)c * taps + tap];
                if (added)
                    factor += load(added, added_dtype, ((u64)(x_row + row) * heads + c / (channels / heads)) * taps + taps - 1u - tap);
                float product = z * factor;
                sum += stepwise ? round_to(dtype, product) : product;
            }
            if (stepwise) sum = round_to(dtype, sum);
            if (bias) sum += bias[c];
            sum = round_to(dtype, sum);
            if (kind != NO_ACTIVATION) sum = activate(kind, dtype, sum);
            store(y, dtype, (u64)x_row * channels + n, sum);
        }
    }
}

// Keeps a row as the block of a recurrence.
PARTS_KERNEL(keep_row, const u8 *x, u32 stored, u32 row, u32 width, float *block, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < width) block[n] = round_to(dtype, load(x, stored, (u64)row * width + n));
    }
}

PARTS_KERNEL(previous, const u8 *x, u32 stored, u32 x_row, u32 rows, u32 width, const u8 *past, u32 past_dtype,
             u32 first, u32 start, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * width) {
            u64 row = n / width, k = n % width;
            float z = 0.0f;
            if (row > 0u)
                z = load(x, stored, (x_row + row - 1u) * width + k);
            else if (start > 0u)
                z = load(past, past_dtype, (u64)(start - 1u - first) * width + k);
            store(y, dtype, (u64)x_row * width + n, z);
        }
    }
}
