// What is done before and after products of matrices by the library of the device.

// Decodes the numbers of a matrix.
KERNEL(matrix_numbers, const u8 *weight, u32 stored, float factor, u32 inputs, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, matrix_number(weight, stored, factor, n / inputs, inputs, (u32)(n % inputs)));
    }
}

// Adds a bias to sums, and rounds once.
KERNEL(sums_with_bias, const float *sums, const float *bias, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, bias ? sums[n] + bias[n % width] : sums[n]);
    }
}

// Gathers the rows of sorted pairs; `share` pairs have a row together.
KERNEL(rows_of_pairs, const u8 *x, u32 stored, const u32 *order, u32 share, u32 width, u8 *y, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, stored, n, load(x, stored, (u64)(order[n / width] / share) * width + n % width));
    }
}

// Puts the products of sorted pairs back in the order of pairs, and adds the biases of their experts.
KERNEL(pairs_of_rows, const u8 *x, u32 stored, const u32 *order, const u32 *experts, const u64 *table, u32 n, u32 width,
       u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 m = (u64)BLOCK * THREADS + t;
        if (m < count && experts[m / width] < n) {
            const float *bias = (const float *)table[(u64)experts[m / width] * EXPERT_WORDS + 2u];
            float sum = round_to(dtype, load(x, stored, m));
            // A bias is added to the rounded product.
            store(y, dtype, (u64)order[m / width] * width + m % width, bias ? sum + bias[m % width] : sum);
        }
    }
}
