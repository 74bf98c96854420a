// The language of the kernels: C++ that NVRTC compiles for a GPU and g++ for the CPU.
//
// A kernel is a sequence of phases. On a GPU a phase runs once in each thread of a block, and all threads wait
// for each other at its end. On the CPU a phase is a loop over the threads. So threads share numbers across
// phases in SHARED arrays only, and no phase returns early.
//
// Products and sums are contracted nowhere (`--fmad=false`, `-ffp-contract=off`); fused multiply-adds are written.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

// Threads of every block.
#define THREADS 128u

#ifdef __CUDACC_RTC__
#define DEVICE __device__ __forceinline__
#define KERNEL(name, ...) extern "C" __global__ void op_##name(__VA_ARGS__)
#define SHARED(type, name, count) __shared__ type name[count]
#define PHASE(t) for (u32 t = threadIdx.x, t##_once = 1u; t##_once; t##_once = 0u, __syncthreads())

// The block within the grid.
struct GridBlock {
    DEVICE operator u32() const { return blockIdx.x; }
};
__device__ GridBlock own_block;
#else
#include "host_device.h"
#endif

// The block within the grid, or in a kernel of parts the block within the part.
#define BLOCK own_block

// A kernel that runs many parts in one launch, each with arguments and blocks of its own. The body is that of a KERNEL
// of one part. `table`: for each part the number of blocks of all parts up to its last, then for each part a row of its
// arguments.
#define PARTS_KERNEL(name, ...)                                                                                        \
    DEVICE void name##_part(u32 own_block, __VA_ARGS__);                                                               \
    KERNEL(name, const u64 *table, u32 parts) { run_part(name##_part, table, parts, BLOCK); }                          \
    DEVICE void name##_part(u32 own_block, __VA_ARGS__)

// An argument of a part, read as the type of its parameter.
struct PartWord {
    u64 word;
    template <class A> DEVICE operator A *() const { return (A *)word; }
    DEVICE operator u64() const { return word; }
    DEVICE operator u32() const { return (u32)word; }
    DEVICE operator float() const { return __uint_as_float((u32)word); }
};

// `Places<0, 1, ...>` is `PlacesBelow<COUNT>::list`.
template <u32... N> struct Places {};
template <u32 COUNT, u32... N> struct PlacesBelow : PlacesBelow<COUNT - 1u, COUNT - 1u, N...> {};
template <u32... N> struct PlacesBelow<0u, N...> {
    typedef Places<N...> list;
};

template <class... A, u32... N>
DEVICE void call_part(void (*body)(u32, A...), u32 block, const u64 *row, Places<N...>) {
    body(block, PartWord{row[N]}...);
}

// Finds the part of a block, the first that ends after it, and runs it.
template <class... A> DEVICE void run_part(void (*body)(u32, A...), const u64 *table, u32 parts, u32 block) {
    u32 low = 0u, high = parts - 1u;
    while (low < high) {
        u32 middle = (low + high) / 2u;
        if (table[middle] <= block)
            low = middle + 1u;
        else
            high = middle;
    }
    const u64 *row = table + parts + (u64)low * sizeof...(A);
    call_part(body, block - (low == 0u ? 0u : (u32)table[low - 1u]), row, typename PlacesBelow<sizeof...(A)>::list());
}

// Dtypes of numbers in memory.
#define F32 0u
#define BF16 1u
#define F16 2u
// 8 bits with a scale for each group, and with one scale for all.
#define FP8_GROUPS 3u
#define FP8_FIXED 4u

#define INFINITE __uint_as_float(0x7f800000u)
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

DEVICE bool is_nan(float x) { return x != x; }

// Rounds to the grid of bf16, ties to even.
DEVICE float round_bf16(float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return is_nan(x) ? x : __uint_as_float(rounded);
}

// Rounds to the grid of f16, ties to even. Below 2^-14 the grid is 2^-24 apart.
DEVICE float round_f16(float x) {
    u32 sign = __float_as_uint(x) & 0x80000000u;
    u32 bits = __float_as_uint(x) & 0x7fffffffu;
    float size = __uint_as_float(bits);
    float normal = __uint_as_float((bits + 0x0fffu + ((bits >> 13) & 1u)) & 0xffffe000u);
    float small = (size + 0.5f) - 0.5f;
    float rounded = size < 6.1035156e-5f ? small : normal;
    rounded = size >= 65520.0f ? INFINITE : rounded;
    rounded = __uint_as_float(__float_as_uint(rounded) | sign);
    return is_nan(x) ? x : rounded;
}

DEVICE float round_to(u32 dtype, float x) {
    return dtype == F32 ? x : dtype == BF16 ? round_bf16(x) : round_f16(x);
}

// Returns the bits of a number on the grid of f16.
DEVICE u16 f16_bits(float x) {
    u32 bits = __float_as_uint(x);
    u32 sign = (bits >> 16) & 0x8000u;
    u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (u16)(sign | 0x7e00u);
    if (size == 0x7f800000u) return (u16)(sign | 0x7c00u);
    if (size < 0x38800000u) return (u16)(sign | (u32)(__uint_as_float(size) * 16777216.0f));
    return (u16)(sign | ((size - 0x38000000u) >> 13));
}

DEVICE float from_f16(u16 half) {
    u32 sign = ((u32)half & 0x8000u) << 16;
    u32 size = (u32)half & 0x7fffu;
    if (size >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | ((size & 0x3ffu) << 13));
    if (size < 0x0400u) return __uint_as_float(sign | __float_as_uint((float)size * 5.9604645e-8f));
    return __uint_as_float(sign | ((size << 13) + 0x38000000u));
}

DEVICE float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Reads a number of a value or of a plain matrix.
DEVICE float load(const u8 *from, u32 dtype, u64 at) {
    if (dtype == F32) return ((const float *)from)[at];
    u16 bits = ((const u16 *)from)[at];
    return dtype == BF16 ? from_bf16(bits) : from_f16(bits);
}

// Rounds a number to the grid of the dtype and writes it.
DEVICE void store(u8 *to, u32 dtype, u64 at, float x) {
    if (dtype == F32) {
        ((float *)to)[at] = x;
    } else if (dtype == BF16) {
        u32 bits = __float_as_uint(x);
        u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        ((u16 *)to)[at] = is_nan(x) ? (u16)((bits >> 16) | 0x40u) : (u16)rounded;
    } else {
        ((u16 *)to)[at] = f16_bits(round_f16(x));
    }
}

// e^x as `kernels/math.rs` computes it.
DEVICE float exponential(float x) {
    const float ROUND = 12582912.0f;
    float clamped = x > 89.0f ? 89.0f : x;
    clamped = clamped < -104.0f ? -104.0f : clamped;
    float shifted = clamped * 1.44269504088896340736f + ROUND;
    float n = shifted - ROUND;
    float r = clamped - n * 0.6933594f;
    r = r + n * 2.1219444e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    float y = p * (r * r) + r + 1.0f;
    int m = (int)(__float_as_uint(shifted) - __float_as_uint(ROUND));
    int half = m >> 1;
    float one = __uint_as_float((u32)(half + 127) << 23);
    float two = __uint_as_float((u32)(m - half + 127) << 23);
    return y * one * two;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
DEVICE float silu(float x) { return x / (1.0f + exponential(-x)); }
DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Sums `f` of the indices below `count` in the order of `math::fold`: eight running sums in f32 over 512
// numbers, and those in f64. Every thread of the block calls it; the sum is in `*total` afterwards.
template <class F> DEVICE void fold(u32 count, F f, float *lanes, double *total) {
    PHASE(t) {
        if (t == 0) *total = -0.0;
    }
    for (u32 from = 0; from < count; from += 512u * (THREADS / 8u)) {
        PHASE(t) {
            u32 start = from + t / 8u * 512u;
            float sum = 0.0f;
            if (start < count) {
                u32 length = count - start < 512u ? count - start : 512u;
                for (u32 k = t % 8u; k < length / 8u * 8u; k += 8u) sum += f(start + k);
            }
            lanes[t] = sum;
        }
        PHASE(t) {
            if (t == 0) {
                for (u32 b = 0; b < THREADS / 8u && from + b * 512u < count; ++b) {
                    u32 start = from + b * 512u;
                    u32 length = count - start < 512u ? count - start : 512u;
                    float tail = -0.0f;
                    for (u32 k = length / 8u * 8u; k < length; ++k) tail += f(start + k);
                    const float *s = lanes + b * 8u;
                    float sum = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
                    *total += (double)(sum + tail);
                }
            }
        }
    }
}
