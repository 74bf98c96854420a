// Recurrences: a thread goes through the rows of a chunk, with numbers of the state that are its own.
//
// All take the same first parameters: the block before the chunk, the addresses of the `kept` blocks after its last
// rows, a block for the rows before them, the first row, the number of rows, and 1 if they continue a sequence.

// Returns the block that a row writes.
DEVICE float *block_after(const u64 *after, u32 kept, float *work, u32 rows, u32 n) {
    return n + kept >= rows ? (float *)after[n + kept - rows] : work;
}

// Sums `f` of the indices below `count` over eight running sums.
template <class F> DEVICE float dot(u32 count, F f) {
    float s[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    float tail = -0.0f;
    u32 whole = count / 8u * 8u;
    for (u32 k = whole; k < count; ++k) tail += f(k);
    for (u32 k = 0; k < whole; k += 8u) {
        for (u32 lane = 0; lane < 8u; ++lane) s[lane] += f(k + lane);
    }
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])) + tail;
}

// Rounds numbers in place.
PARTS_KERNEL(round_numbers, float *x, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) x[n] = round_to(dtype, x[n]);
    }
}

// e^x of each number, in f32.
KERNEL(exponentials, const u8 *x, u32 stored, float *y, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) y[n] = expf(load(x, stored, n));
    }
}

// softplus(dt + bias), each step rounded to `grid`, between bounds.
KERNEL(scan_steps, const u8 *x, u32 stored, u32 width, const float *bias, float low, float high, u32 grid, float *y,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float z = load(x, stored, n);
            if (bias) z = round_to(grid, z + bias[n % width]);
            z = round_to(grid, softplus(z));
            z = z < low ? low : z;
            y[n] = z > high ? high : z;
        }
    }
}
