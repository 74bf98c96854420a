// Arithmetic number by number.

#define ADD 0u
#define SUBTRACT 1u
#define MULTIPLY 2u
#define DIVIDE 3u
#define DIVIDE_INTO 4u

DEVICE float combine(u32 kind, float a, float b) {
    if (kind == ADD) return a + b;
    if (kind == SUBTRACT) return a - b;
    if (kind == MULTIPLY) return a * b;
    return kind == DIVIDE ? a / b : b / a;
}

// The place of an operand for number `at` of a row: that of `map`, or the same without one.
DEVICE u64 place_in(const u32 *map, u64 at) { return map ? map[at] : at; }

// Two values. `*_map` gives for each number of a row the place of its operand; null for the same place.
KERNEL(binary, u32 kind, const u8 *a, u32 a_dtype, const u32 *a_map, u32 a_width, const u8 *b, u32 b_dtype,
       const u32 *b_map, u32 b_width, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 row = n / width, at = n % width;
            float p = load(a, a_dtype, row * a_width + place_in(a_map, at));
            float q = load(b, b_dtype, row * b_width + place_in(b_map, at));
            store(y, dtype, n, combine(kind, p, q));
        }
    }
}

// A value and a number.
KERNEL(scalar, u32 kind, const u8 *x, u32 stored, float s, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, combine(kind, load(x, stored, n), s));
    }
}

// A weight in f32 as the value of each row.
KERNEL(parameter, const float *weight, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, weight[n % width]);
    }
}

// A value and a weight in f32, broadcast by `map` as above.
KERNEL(with_weight, u32 kind, const u8 *x, u32 stored, const float *weight, const u32 *map, u32 width, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, combine(kind, load(x, stored, n), weight[place_in(map, n % width)]));
    }
}

// Shares of two values by a weight in f32: `a * w + b * (1 - w)`, each step rounded.
KERNEL(weight_blend, const u8 *a, u32 a_dtype, const u8 *b, u32 b_dtype, const float *weight, const u32 *map, u32 width,
       u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float w = weight[place_in(map, n % width)];
            float one = round_to(dtype, load(a, a_dtype, n) * w);
            store(y, dtype, n, one + round_to(dtype, load(b, b_dtype, n) * round_to(dtype, 1.0f - w)));
        }
    }
}

// `c * tanh(x / c)`, each step rounded.
KERNEL(softcap, const u8 *x, u32 stored, float c, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float z = round_to(dtype, load(x, stored, n) / c);
            store(y, dtype, n, round_to(dtype, tanhf(z)) * c);
        }
    }
}

KERNEL(clamp, const u8 *x, u32 stored, float low, float high, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float z = load(x, stored, n);
            float above = z > low ? z : low;
            store(y, dtype, n, is_nan(z) ? z : above < high ? above : high);
        }
    }
}
