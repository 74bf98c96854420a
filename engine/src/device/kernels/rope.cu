// `rope`: rotates pairs of the first numbers of every head.

// A thread makes one number. `interleaved`: pairs lie side by side in the input; `gathers`: halves apart in the
// output. Products are rounded to `inner`.
KERNEL(rope, const u8 *x, u32 stored, const float *cosines, const float *sines, u32 pairs, u32 head, u32 width,
       u32 interleaved, u32 gathers, u32 inverse, u32 inner, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 k = (u32)(n % head);
            if (k < 2u * pairs) {
                u64 base = n - k, angle = n / width * pairs;
                u32 pair = gathers ? k % pairs : k / 2u;
                bool second = gathers ? k >= pairs : k % 2u == 1u;
                float a = load(x, stored, base + (interleaved ? 2u * pair : pair));
                float b = load(x, stored, base + (interleaved ? 2u * pair + 1u : pair + pairs));
                float c = cosines[angle + pair], s = sines[angle + pair];
                s = inverse ? -s : s;
                float own = second ? b : a, other = second ? a : -b;
                store(y, dtype, n, round_to(inner, own * c) + round_to(inner, other * s));
            } else {
                store(y, dtype, n, load(x, stored, n));
            }
        }
    }
}
