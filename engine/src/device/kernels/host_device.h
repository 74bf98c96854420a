// The CPU's side of device.h: phases are loops over the threads of a block, and a kernel is a function that takes
// its arguments the way a driver passes them.

#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#define DEVICE inline

inline thread_local u32 own_block;
// True to run blocks and threads from the last to the first: a kernel that depends on their order differs then.
inline thread_local bool host_reversed;

static inline u32 host_thread(u32 n) { return host_reversed ? THREADS - 1u - n : n; }

#define SHARED(type, name, count) type name[count]; std::memset(name, 0xff, sizeof name)
#define PHASE(t) for (u32 t##_n = 0, t = host_thread(0); t##_n < THREADS; ++t##_n, t = host_thread(t##_n))

static inline u32 __float_as_uint(float x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(u32 bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Adds the products of four signed bytes each.
static inline int __dp4a(int a, int b, int sum) {
    for (int shift = 0; shift < 32; shift += 8) sum += (int)(i8)(a >> shift) * (int)(i8)(b >> shift);
    return sum;
}

template <class... A, std::size_t... N>
static void host_call(void (*body)(A...), void **arguments, std::index_sequence<N...>) {
    body(*static_cast<A *>(arguments[N])...);
}

template <class... A> static u32 host_count(void (*)(A...)) { return sizeof...(A); }

template <class... A> static void host_run(void (*body)(A...), void **arguments, u32 blocks, u32 reversed) {
    host_reversed = reversed != 0;
    for (u32 n = 0; n < blocks; ++n) {
        own_block = reversed ? blocks - 1u - n : n;
        host_call(body, arguments, std::index_sequence_for<A...>());
    }
}

#define KERNEL(name, ...)                                                                                          \
    static void name##_body(__VA_ARGS__);                                                                          \
    extern "C" void op_##name(void **arguments, u32 blocks, u32 reversed) {                                             \
        host_run(name##_body, arguments, blocks, reversed);                                                        \
    }                                                                                                              \
    extern "C" u32 count_op_##name() { return host_count(name##_body); }                                           \
    static void name##_body(__VA_ARGS__)
