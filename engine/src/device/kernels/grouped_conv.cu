// The sum of `dot`, lane after lane: registers hold sums whose products are long.
template <class F> DEVICE float dot_by_lanes(u32 count, F f) {
    u32 whole = count / 8u * 8u;
    auto lane = [&](u32 first) {
        float sum = 0.0f;
        for (u32 k = first; k < whole; k += 8u) sum += f(k);
        return sum;
    };
    float tail = -0.0f;
    for (u32 k = whole; k < count; ++k) tail += f(k);
    float even = (lane(0u) + lane(4u)) + (lane(1u) + lane(5u));
    float odd = (lane(2u) + lane(6u)) + (lane(3u) + lane(7u));
    return even + odd + tail;
}

// `grouped_conv`: each channel over its last inputs, and groups of channels over the last results of that. The weight of the
// second convolution is `[channels, group, second]`.
PARTS_KERNEL(grouped_conv, const u8 *x, u32 stored, u32 x_row, u32 rows, u32 channels, const float *weight,
             const float *bias, const float *grouped, const float *grouped_bias, u32 width, u32 second, u32 group,
             const u8 *past, u32 past_dtype, u32 first, u32 start, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * channels) {
            u32 output = (u32)(n % channels), row = (u32)(n / channels), from = output / group * group;
            float sum = 0.0f;
            for (u32 tap = 0; tap < second; ++tap) {
                sum += dot_by_lanes(group, [&](u32 k) {
                    u32 c = from + k;
                    float between = 0.0f;
                    for (u32 inner = 0; inner < width; ++inner) {
                        // Inputs before the first position are zero.
                        u32 back = (second - 1u - tap) + (width - 1u - inner);
                        float z = 0.0f;
                        if (row >= back)
                            z = load(x, stored, (u64)(x_row + row - back) * channels + c);
                        else if (start + row >= back)
                            z = load(past, past_dtype, (u64)(start + row - back - first) * channels + c);
                        between += z * weight[(u64)c * width + inner];
                    }
                    return round_to(dtype, between + bias[c]) * grouped[((u64)output * group + k) * second + tap];
                });
            }
            store(y, dtype, (u64)x_row * channels + n, sum + grouped_bias[output]);
        }
    }
}
