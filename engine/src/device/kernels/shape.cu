// Numbers move, none changes: `split`, `slice`, `concat`, `copies`, `regroup`, chosen rows.

// Copies `width` columns of every line, from column `from` of lines of `x_axis` numbers to column `to` of lines of
// `y_axis`.
KERNEL(columns, const u8 *x, u32 stored, u32 x_axis, u32 from, u8 *y, u32 dtype, u32 y_axis, u32 to, u32 width,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 line = n / width, k = n % width;
            store(y, dtype, line * y_axis + to + k, load(x, stored, line * x_axis + from + k));
        }
    }
}

// Copies the given rows.
KERNEL(chosen_rows, const u8 *x, u32 stored, const u32 *rows, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, load(x, stored, (u64)rows[n / width] * width + n % width));
    }
}

// Groups of heads of `width` numbers change places with the `size` heads of a group.
KERNEL(regroup, const u8 *x, u32 stored, u32 groups, u32 size, u32 width, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u64 head = n / width, place = head % ((u64)groups * size);
            u64 from = head - place + place % groups * size + place / groups;
            store(y, dtype, n, load(x, stored, from * width + n % width));
        }
    }
}

// Copies numbers into another dtype.
KERNEL(convert, const u8 *x, u32 stored, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, load(x, stored, n));
    }
}
