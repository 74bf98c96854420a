// Bytes move, or become one byte. Copies and fills are kernels like all other work, so that one list has all of it.
// Memory of the host is read here too.

struct alignas(16) SixteenBytes {
    u64 low, high;
};

// A thread has 16 bytes, and moves them at once where both addresses allow it.
KERNEL(copy_bytes, u8 *to, const u8 *from, u64 bytes) {
    PHASE(t) {
        u64 at = ((u64)BLOCK * THREADS + t) * 16u;
        if (((u64)to | (u64)from) % 16u == 0u && at + 16u <= bytes) {
            *(SixteenBytes *)(to + at) = *(const SixteenBytes *)(from + at);
        } else {
            for (u64 k = at; k < bytes && k < at + 16u; ++k) to[k] = from[k];
        }
    }
}

KERNEL(fill_bytes, u8 *to, u32 byte, u64 bytes) {
    PHASE(t) {
        u64 at = ((u64)BLOCK * THREADS + t) * 16u;
        u64 eight = byte * 0x0101010101010101ull;
        if ((u64)to % 16u == 0u && at + 16u <= bytes) {
            *(SixteenBytes *)(to + at) = SixteenBytes{eight, eight};
        } else {
            for (u64 k = at; k < bytes && k < at + 16u; ++k) to[k] = (u8)byte;
        }
    }
}
