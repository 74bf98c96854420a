// `embed`: one row of a matrix per token.

KERNEL(embed, const u8 *matrix, u32 stored, const u32 *tokens, u32 width, float scale, u32 scaled, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float x = load(matrix, stored, (u64)tokens[n / width] * width + n % width);
            x = round_to(dtype, x);
            store(y, dtype, n, scaled ? x * scale : x);
        }
    }
}
