// `mlstm`: a matrix per head that gates of exponential form decay and add to; a block for each head, whose threads take
// columns. A head's part of the state is `[key, value + 1]`, the last column with sums of keys, and the exponent of the
// gates behind it.

DEVICE float log_sigmoid(float x) { return (x < 0.0f ? x : 0.0f) - log1pf(expf(-fabsf(x))); }

PARTS_KERNEL(mlstm, const float *before, const u64 *after, u32 kept, float *work, u32 first, u32 rows, u32 continued,
             const u8 *q, u32 q_dtype, const u8 *k, u32 k_dtype, const u8 *v, u32 v_dtype, const u8 *inputs,
             u32 inputs_dtype, const u8 *forgets, u32 forgets_dtype, u32 heads, u32 key, u32 value, float scale,
             float eps, u32 stepwise, u8 *y, u32 dtype) {
    SHARED(float, gates, 3);
    SHARED(float, divisor, 1);
    u32 columns = value + 1u, head = BLOCK;
    u64 part = (u64)head * ((u64)key * columns + 1u);
    const float *from = before + part;
    for (u32 row = 0; row < rows && head < heads; ++row) {
        float *to = block_after(after, kept, work, rows, row) + part;
        u64 own = (u64)(first + row) * heads + head;
        PHASE(t) {
            if (t == 0u) {
                float input = load(inputs, inputs_dtype, own);
                float faded = round_to(dtype, log_sigmoid(load(forgets, forgets_dtype, own))) + from[(u64)key * columns];
                float top = faded > input ? faded : input;
                gates[0] = expf(faded - top);
                gates[1] = expf(input - top);
                gates[2] = top;
            }
        }
        PHASE(t) {
            for (u32 column = t; column < columns; column += THREADS) {
                float sum = 0.0f;
                for (u32 a = 0; a < key; ++a) {
                    float z = load(k, k_dtype, own * key + a);
                    if (column < value) z = round_to(dtype, z * load(v, v_dtype, own * value + column));
                    float s = gates[0] * from[(u64)a * columns + column] + gates[1] * z;
                    to[(u64)a * columns + column] = stepwise && continued ? round_to(dtype, s) : s;
                    sum += round_to(dtype, load(q, q_dtype, own * key + a) * scale) * round_to(dtype, s);
                }
                sum = round_to(dtype, sum);
                if (column < value) {
                    store(y, dtype, own * value + column, sum);
                } else {
                    float least = expf(-gates[2]);
                    sum = fabsf(sum);
                    divisor[0] = (sum > least ? sum : least) + eps;
                    to[(u64)key * columns] = stepwise && continued ? round_to(dtype, gates[2]) : gates[2];
                }
            }
        }
        PHASE(t) {
            for (u32 column = t; column < value; column += THREADS) {
                u64 at = own * value + column;
                store(y, dtype, at, load(y, dtype, at) / divisor[0]);
            }
        }
        from = to;
    }
}
