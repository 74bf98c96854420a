// `embed`: one row of a matrix per token.

KERNEL(embed, const u8 *matrix, u32 stored, float factor, const u32 *tokens, u32 width, float scale, u32 scaled, u8 *y, u32 dtype,
       u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float x = matrix_number(matrix, stored, factor, tokens[n / width], width, (u32)(n % width));
            x = round_to(dtype, x);
            store(y, dtype, n, scaled ? x * scale : x);
        }
    }
}
