// Numbers of weights that are kept in blocks (`formats/src/codec`), decoded where they are used.

#define Q8_0 16u
#define Q4_0 17u
#define Q4_K 18u
#define Q6_K 19u
#define MXFP4 20u
#define Q5_0 21u
#define Q5_K 22u

// A matrix whose 16-bit numbers are added in the order of f32: added to its dtype.
#define PLAIN_ORDER 256u

DEVICE float f16_at(const u8 *from) { return from_f16((u16)(from[0] | from[1] << 8)); }

// Returns level `k` of 32 levels of 4 bits: low halves first.
DEVICE int nibble(const u8 *from, u32 k) { return k < 16u ? from[k] & 15 : from[k - 16u] >> 4; }

// What the levels of 16 numbers of a block are multiplied by, and what is subtracted.
struct BlockScale {
    float scale, min;
};

// Returns the scale of numbers `16 * sixteen` on; formats without minima have none.
DEVICE BlockScale block_scale(u32 type, const u8 *block, u32 sixteen) {
    if (type == MXFP4) {
        // Half of a power of two.
        u32 e = block[0];
        return {__uint_as_float(e < 2u ? 0x00200000u << e : (e - 1u) << 23), 0.0f};
    }
    if (type == Q4_K || type == Q5_K) {
        u32 j = sixteen / 2u;
        const u8 *s = block + 4;
        u32 scale = j < 4u ? s[j] & 63u : (s[j + 4u] & 15u) | (u32)(s[j - 4u] >> 6) << 4;
        u32 min = j < 4u ? s[j + 4u] & 63u : (u32)(s[j + 4u] >> 4) | (u32)(s[j] >> 6) << 4;
        return {f16_at(block) * (float)scale, f16_at(block + 2) * (float)min};
    }
    if (type == Q6_K) return {f16_at(block + 208) * (float)(i8)block[192u + sixteen], 0.0f};
    return {f16_at(block), 0.0f};
}

// Returns the level of number `k` of a block.
DEVICE int block_level(u32 type, const u8 *block, u32 k) {
    if (type == Q8_0) return (i8)block[2u + k];
    if (type == Q4_0) return nibble(block + 2, k) - 8;
    if (type == Q5_0) {
        int fifth = block[2u + k / 8u] >> (k % 8u) & 1;
        return (nibble(block + 6, k) | fifth << 4) - 16;
    }
    if (type == MXFP4) {
        // E2M1 counted in halves.
        int level = nibble(block + 1, k), exponent = level >> 1 & 3;
        int size = exponent == 0 ? level & 7 : (2 | (level & 1)) << exponent >> 1;
        return level & 8 ? -size : size;
    }
    if (type == Q4_K || type == Q5_K) {
        u32 j = k / 32u;
        u32 byte = block[(type == Q5_K ? 48u : 16u) + j / 2u * 32u + k % 32u];
        u32 level = j % 2u == 0u ? byte & 15u : byte >> 4;
        if (type == Q5_K) level |= (u32)(block[16u + k % 32u] >> j & 1) << 4;
        return (int)level;
    }
    // Q6_K: four bits of each level, then two, then the scales of 16 levels.
    u32 half = k / 128u, own = k % 128u;
    u32 byte = block[half * 64u + own % 64u];
    u32 low = own < 64u ? byte & 15u : byte >> 4;
    u32 high = block[128u + half * 32u + own % 32u] >> (own / 32u * 2u) & 3u;
    return (int)(high << 4 | low) - 32;
}

// Returns the number of a level.
DEVICE float block_number(u32 type, BlockScale of, int level) {
    float number = of.scale * (float)level;
    return type == Q4_K || type == Q5_K ? number - of.min : number;
}

// Returns the numbers of a block, and its bytes.
DEVICE u32 block_numbers(u32 type) { return type == Q4_K || type == Q5_K || type == Q6_K ? 256u : 32u; }

DEVICE u32 block_bytes(u32 type) {
    switch (type) {
    case Q8_0: return 34u;
    case Q4_0: return 18u;
    case Q5_0: return 22u;
    case Q4_K: return 144u;
    case Q5_K: return 176u;
    case Q6_K: return 210u;
    default: return 17u;
    }
}

// Reads number `k` of a row of a matrix with `inputs` columns. Numbers of blocks are multiplied by `factor`.
DEVICE float matrix_number(const u8 *matrix, u32 stored, float factor, u64 row, u32 inputs, u32 k) {
    u32 type = stored & 255u;
    if (type < Q8_0) return load(matrix, type, row * inputs + k);
    u32 numbers = block_numbers(type);
    const u8 *block = matrix + (row * (inputs / numbers) + k / numbers) * block_bytes(type);
    k %= numbers;
    return block_number(type, block_scale(type, block, k / 16u), block_level(type, block, k)) * factor;
}
