// Activations of one value, and `glu`: an activation of one value times another.

#define SILU 0u
#define GELU 1u
#define GELU_TANH 2u
#define GELU_NEW 3u
#define GELU_FAST 4u
#define RELU 5u
#define RELU2 6u
#define SIGMOID 7u
#define TANH 8u
#define SOFTPLUS 9u
#define QUICK_GELU 10u
#define SQUARE_ROOT 11u
#define EXP 13u

#define SQRT_2_OVER_PI 0.7978846f

DEVICE float activate(u32 kind, u32 d, float x) {
    switch (kind) {
    case SILU: return round_to(d, silu(x));
    case GELU: return round_to(d, 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)));
    case GELU_TANH:
        return round_to(d, 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))));
    case GELU_NEW: {
        float cube = d == BF16 ? round_to(d, round_to(d, x * x) * x) : round_to(d, x * x * x);
        float inner = round_to(d, SQRT_2_OVER_PI * round_to(d, x + round_to(d, 0.044715f * cube)));
        return round_to(d, round_to(d, 0.5f * x) * round_to(d, 1.0f + round_to(d, tanhf(inner))));
    }
    case GELU_FAST: {
        float bent = round_to(d, 1.0f + round_to(d, round_to(d, 0.044715f * x) * x));
        float inner = round_to(d, round_to(d, x * 0.7978846f) * bent);
        return round_to(d, round_to(d, 0.5f * x) * round_to(d, 1.0f + round_to(d, tanhf(inner))));
    }
    case RELU: return x < 0.0f ? 0.0f : x;
    case RELU2: {
        float z = x < 0.0f ? 0.0f : x;
        return round_to(d, z * z);
    }
    case SIGMOID: return round_to(d, sigmoid(x));
    case TANH: return round_to(d, tanhf(x));
    case SOFTPLUS: return round_to(d, softplus(x));
    case QUICK_GELU: return round_to(d, x * round_to(d, sigmoid(round_to(d, 1.702f * x))));
    case SQUARE_ROOT: return round_to(d, sqrtf(x));
    case EXP: return round_to(d, expf(x));
    default: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
    }
}

KERNEL(activation, u32 kind, const u8 *x, u32 stored, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) store(y, dtype, n, activate(kind, dtype, load(x, stored, n)));
    }
}

KERNEL(glu, u32 kind, const u8 *gate, u32 gate_dtype, const u8 *up, u32 up_dtype, u8 *y, u32 dtype, u64 count) {
    PHASE(t) {
        u64 n = (u64)BLOCK * THREADS + t;
        if (n < count) {
            float z = activate(kind, dtype, load(gate, gate_dtype, n));
            store(y, dtype, n, z * load(up, up_dtype, n));
        }
    }
}
