// Arithmetic of rows: `temperature`, `zero_first`, `mean`, `mix_streams`, `outer`, `sinkhorn`, `heads_linear`, `xielu`, `differ`.

// Rows times a factor for each.
KERNEL(scale_rows, const u8 *x, u32 stored, const float *factors, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, load(x, stored, n) * factors[n / width]);
    }
}

// Copies rows; those with a flag become 0.
KERNEL(zero_rows, const u8 *x, u32 stored, const u32 *flags, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, flags[n / width] ? 0.0f : load(x, stored, n));
    }
}

// The mean of a line, a block for each.
KERNEL(mean, const u8 *x, u32 stored, u32 axis, u8 *y, u32 dtype) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    u64 line = (u64)BLOCK * axis;
    fold(axis, [&](u32 k) { return load(x, stored, line + k); }, lanes, total);
    PHASE(t) {
        if (t == 0) store(y, dtype, BLOCK, (float)total[0] / (float)axis);
    }
}

// The mean over the heads of a group, for each number of a head.
KERNEL(mean_of_heads, const u8 *x, u32 stored, u32 heads, u32 size, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 group = n / size, k = n % size;
            float sum = 0.0f;
            for (u32 head = 0; head < heads; ++head) sum += load(x, stored, (group * heads + head) * size + k);
            store(y, dtype, n, sum / (float)heads);
        }
    }
}

// y[m] = Σ c[m][n] x[n] over the `from` streams of a row.
KERNEL(mix_streams, const u8 *x, u32 stored, const u8 *c, u32 c_dtype, u32 from, u32 to, u32 width, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 row = n / width / to, m = n / width % to, column = n % width;
            float sum = 0.0f;
            for (u32 s = 0; s < from; ++s)
                sum += load(c, c_dtype, (row * to + m) * from + s) * load(x, stored, (row * from + s) * width + column);
            store(y, dtype, n, sum);
        }
    }
}

// y[n] = c[n] x.
KERNEL(outer, const u8 *x, u32 stored, const u8 *c, u32 c_dtype, u32 streams, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, load(c, c_dtype, n / width) * load(x, stored, n / width / streams * width + n % width));
    }
}

// The most rows of a matrix of `sinkhorn`.
#define SIDE 32u

// Divides a matrix `[size, size]` by the sums of its columns, and then by those of rows and columns in turn; a block for
// each matrix.
KERNEL(sinkhorn, const u8 *x, u32 stored, u32 size, u32 iterations, float eps, u8 *y, u32 dtype) {
    SHARED(float, m, SIDE * SIDE);
    u64 first = (u64)BLOCK * size * size;
    PHASE(t) {
        for (u32 n = t; n < size * size; n += THREADS) m[n] = load(x, stored, first + n);
    }
    for (u32 n = 0; n == 0u || n < iterations; ++n) {
        PHASE(t) {
            if (n > 0u && t < size) {
                float total = -0.0f;
                for (u32 k = 0; k < size; ++k) total += m[t * size + k];
                for (u32 k = 0; k < size; ++k) m[t * size + k] /= total + eps;
            }
        }
        PHASE(t) {
            if (t < size) {
                float total = -0.0f;
                for (u32 k = 0; k < size; ++k) total += m[k * size + t];
                for (u32 k = 0; k < size; ++k) m[k * size + t] /= total + eps;
            }
        }
    }
    PHASE(t) {
        for (u32 n = t; n < size * size; n += THREADS) store(y, dtype, first + n, m[n]);
    }
}

// A matrix for each head, or one for all. `turned`: matrices are `[size, out]`, or else `[out, size]`.
KERNEL(heads_linear, const u8 *x, u32 stored, const float *weight, const float *bias, u32 heads, u32 size, u32 out,
       u32 turned, u32 shared, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 line = (u32)(n % ((u64)heads * out));
            u64 row = n / out * size, matrix = shared ? 0u : (u64)(line / out) * size * out;
            float sum = dot(size, [&](u32 k) {
                u64 at = matrix + (turned ? (u64)k * out + line % out : (u64)(line % out) * size + k);
                return load(x, stored, row + k) * weight[at];
            });
            store(y, dtype, n, sum + (bias ? bias[line] : 0.0f));
        }
    }
}

// A learned activation, a rounding after every step.
KERNEL(xielu, const u8 *x, u32 stored, float positive, float negative, float beta, float eps, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float z = load(x, stored, n);
            float bent = round_to(dtype, round_to(dtype, positive * z) * z);
            if (!(z > 0.0f)) {
                bent = round_to(dtype, round_to(dtype, expm1f(fminf(z, eps))) - z);
                bent = round_to(dtype, bent * negative);
            }
            store(y, dtype, n, bent + round_to(dtype, beta * z));
        }
    }
}

// The first half of a row less a share of the second.
KERNEL(differ, const u8 *x, u32 stored, float share, u32 half, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 row = n / half * half * 2u, column = n % half;
            float second = round_to(dtype, load(x, stored, row + half + column) * share);
            store(y, dtype, n, load(x, stored, row + column) - second);
        }
    }
}
