// `embed`: one row of a matrix per token. `ngram_embed`: one for each hash of the last tokens.

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

// The row of each hash of the last tokens, `[rows, hashes]`, a thread each. Equal shares of the hashes take 2, 3, up to
// `longest` tokens; those before an `end` count as `end`. `past`: tokens before the step, from position `held` on.
PARTS_KERNEL(ngram_rows, const u32 *tokens, u32 first, u32 rows, const u8 *past, u32 past_dtype, u32 held, u32 start,
             const u64 *factors, u32 longest, const u32 *sizes, u32 hashes, u32 end, u32 *places) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)rows * hashes) {
            u32 row = (u32)(n / hashes), hash = (u32)(n % hashes), count = hash / (hashes / (longest - 1u)) + 2u;
            u64 whole = 0u;
            bool ended = false;
            for (u32 back = 0; back < count; ++back) {
                u32 token = end;
                if (!ended && row >= back)
                    token = tokens[first + row - back];
                else if (!ended && start + row >= back)
                    token = (u32)(load(past, past_dtype, start + row - back - held) + 0.5f);
                ended = ended || (back > 0u && token == end);
                whole ^= (u64)token * factors[back];
            }
            u32 size = sizes[hash], offset = 0u;
            for (u32 k = 0; k < hash; ++k) offset += sizes[k];
            // The remainder of a signed number, never below 0.
            u64 rest = (long long)whole < 0 ? size - 1u - ~whole % size : whole % size;
            places[(u64)first * hashes + n] = offset + (u32)rest;
        }
    }
}
