// `delta_rule`: a matrix per head that decays, forgets what it held for a key and learns what comes in its place.

// -rate * softplus(x + dt), or with a floor, floor * sigmoid(rate * (x + dt)).
KERNEL(log_decay, const u8 *x, u32 stored, u32 width, const float *rates, u32 per_head, const float *dt, u32 bounded,
       float floor, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            u32 at = (u32)(n % width);
            float rate = rates[at / per_head], z = load(x, stored, n) + dt[at];
            store(y, dtype, n, bounded ? floor * sigmoid(rate * z) : -rate * softplus(z));
        }
    }
}

// Heads of length 1, if `normed`, times a factor; a block for each head.
KERNEL(unit_heads, const u8 *x, u32 stored, u32 head, u32 normed, float eps, u32 divides, float scale, float *y) {
    SHARED(float, lanes, THREADS);
    SHARED(double, total, 1);
    u64 first = (u64)BLOCK * head;
    fold(
        head,
        [&](u32 k) {
            float z = load(x, stored, first + k);
            return z * z;
        },
        lanes, total);
    PHASE(t) {
        float length = sqrtf((float)total[0] + eps);
        float inverse = 1.0f / length;
        for (u32 k = t; k < head; k += THREADS) {
            float z = load(x, stored, first + k);
            if (normed) z = divides ? z / length : z * inverse;
            y[first + k] = z * scale;
        }
    }
}

// States are `[heads, key, value]`; a thread for each column of a head's matrix. `channels`: numbers of a head's decay,
// one or one for each row of the matrix.
PARTS_KERNEL(delta_rule, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows,
             u32 continued, const float *q, const float *k, const u8 *v, u32 v_dtype, const float *decays, u32 channels,
             const u8 *beta, u32 beta_dtype, u32 heads, u32 key_heads, u32 key, u32 value, u8 *y, u32 dtype) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < (u64)heads * value) {
            u32 head = (u32)(n / value);
            u64 column = (u64)head * key * value + n % value;
            const float *from = before + column;
            for (u32 row = 0; row < rows; ++row) {
                float *to = block_after(after, kept, work, rows, row) + column;
                u64 at = first + row, own = at * heads + head;
                u64 shared = (at * key_heads + head / (heads / key_heads)) * key;
                const float *decay = decays + own * channels;
                float held = 0.0f;
                for (u32 a = 0; a < key; ++a) {
                    float s = from[(u64)a * value] * decay[channels == 1u ? 0u : a];
                    to[(u64)a * value] = s;
                    held += s * k[shared + a];
                }
                float delta = (load(v, v_dtype, own * value + n % value) - held) * load(beta, beta_dtype, own);
                float out = 0.0f;
                for (u32 a = 0; a < key; ++a) {
                    float s = to[(u64)a * value] + k[shared + a] * delta;
                    to[(u64)a * value] = s;
                    out += s * q[shared + a];
                }
                store(y, dtype, own * value + n % value, out);
                from = to;
            }
        }
    }
}
