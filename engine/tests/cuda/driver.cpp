// A driver of CUDA and NVRTC without a GPU, for tests: device memory is memory of the process, and kernels are those
// of a library that the C++ compiler built.
//
// Work is done as late as the driver's manual allows: when the host waits. So memory that is given back or overwritten
// too early shows. New memory is NaN. Calls without a current context, and calls after the device was lost, fail.
//
// ONBOARD_TEST_KERNELS: the library of kernels. ONBOARD_TEST_DRIVER: settings, as `devices=2,lost=100`.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

typedef unsigned long long Address;

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
};

struct Kernel {
    void (*run)(void **, uint32_t, uint32_t);
    uint32_t parameters;
};

struct Event {
    uint64_t until = 0;
};

static std::recursive_mutex lock;
static std::deque<std::function<void()>> work;
static uint64_t given = 0, done = 0, launched = 0;
static std::map<Address, size_t> allocated, pinned;
static size_t used = 0;
static long long allocations = 0;
static int lost = SUCCESS;
static int context_object, stream_object;
static thread_local void *current = nullptr;

static long long setting(const char *name, long long usual) {
    const char *all = getenv("ONBOARD_TEST_DRIVER");
    std::string text = all ? std::string(",") + all + "," : "", key = std::string(",") + name + "=";
    size_t at = text.find(key);
    return at == std::string::npos ? usual : atoll(text.c_str() + at + key.size());
}

static bool inside(const std::map<Address, size_t> &all, Address at, size_t bytes) {
    auto found = all.upper_bound(at);
    if (found == all.begin()) return false;
    --found;
    return at + bytes <= found->first + found->second;
}

static void give(std::function<void()> what) {
    work.push_back(what);
    ++given;
}

static void finish(uint64_t until) {
    while (done < until && !work.empty()) {
        auto what = work.front();
        work.pop_front();
        ++done;
        if (lost == SUCCESS) what();
    }
}

#define ENTER                                                                                                          \
    std::lock_guard<std::recursive_mutex> guard(lock);                                                                 \
    if (current != &context_object) return INVALID_CONTEXT;                                                            \
    if (lost != SUCCESS) return lost

#define CHECK(condition)                                                                                               \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "driver: %s is false\n", #condition);                                                          \
        abort();                                                                                                       \
    }

extern "C" {

int cuInit(unsigned) { return SUCCESS; }

int cuDriverGetVersion(int *version) {
    *version = (int)setting("version", 13000);
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = (int)setting("devices", 1);
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int) {
    snprintf(name, (size_t)length, "a device of tests");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 75: *value = (int)setting("major", 9); return SUCCESS;
    case 76: *value = (int)setting("minor", 0); return SUCCESS;
    case 115: *value = (int)setting("pools", 1); return SUCCESS;
    }
    return INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = &context_object;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

int cuCtxSetCurrent(void *context) {
    current = context;
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned) {
    ENTER;
    *stream = &stream_object;
    return SUCCESS;
}

int cuStreamSynchronize(void *stream) {
    ENTER;
    CHECK(stream == &stream_object);
    finish(given);
    return lost;
}

int cuStreamDestroy_v2(void *) { return SUCCESS; }

int cuModuleLoadData(void **module, const void *image) {
    ENTER;
    CHECK(strstr((const char *)image, "compiled by the driver of tests"));
    *module = dlopen(getenv("ONBOARD_TEST_KERNELS"), RTLD_NOW);
    return *module ? SUCCESS : INVALID_VALUE;
}

int cuModuleUnload(void *) { return SUCCESS; }

int cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER;
    auto run = (void (*)(void **, uint32_t, uint32_t))dlsym(module, name);
    auto count = (uint32_t(*)())dlsym(module, (std::string("count_") + name).c_str());
    if (!run || !count) return NOT_FOUND;
    *function = new Kernel{run, count()};
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER;
    *total = (size_t)setting("memory", 1ll << 40);
    *free = *total - used;
    return SUCCESS;
}

int cuMemAllocAsync(Address *at, size_t bytes, void *) {
    ENTER;
    // Memory may run out below what `cuMemGetInfo` promised, as if another process took it.
    if (used + bytes > (size_t)setting("memory", 1ll << 40)) return OUT_OF_MEMORY;
    if (++allocations >= setting("fails", 1ll << 40)) return OUT_OF_MEMORY;
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(memory, 0xff, bytes);
    *at = (Address)memory;
    allocated[*at] = bytes;
    used += bytes;
    return SUCCESS;
}

int cuMemFreeAsync(Address at, void *) {
    ENTER;
    CHECK(allocated.count(at));
    used -= allocated[at];
    give([at] {
        memset((void *)at, 0xff, allocated[at]);
        allocated.erase(at);
        free((void *)at);
    });
    return SUCCESS;
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    ENTER;
    *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    pinned[(Address)*at] = bytes;
    return SUCCESS;
}

int cuMemFreeHost(void *at) {
    ENTER;
    CHECK(pinned.erase((Address)at) == 1);
    free(at);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *) {
    ENTER;
    CHECK(inside(allocated, to, bytes));
    if (inside(pinned, (Address)from, bytes)) {
        give([=] { memcpy((void *)to, from, bytes); });
    } else {
        // Memory that is not pinned is copied aside before the call returns.
        auto aside = new std::vector<char>((const char *)from, (const char *)from + bytes);
        give([=] {
            memcpy((void *)to, aside->data(), bytes);
            delete aside;
        });
    }
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *) {
    ENTER;
    CHECK(inside(allocated, from, bytes));
    give([=] { memcpy(to, (const void *)from, bytes); });
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *) {
    ENTER;
    CHECK(inside(allocated, to, bytes) && inside(allocated, from, bytes));
    give([=] { memcpy((void *)to, (const void *)from, bytes); });
    return SUCCESS;
}

int cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, void *) {
    ENTER;
    CHECK(inside(allocated, to, bytes));
    give([=] { memset((void *)to, byte, bytes); });
    return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    ENTER;
    CHECK(x > 0 && y == 1 && z == 1 && threads == 128 && b == 1 && c == 1 && shared == 0 && !extra);
    CHECK(stream == &stream_object);
    auto kernel = (Kernel *)function;
    // The driver copies the arguments before it returns.
    std::vector<uint64_t> words(kernel->parameters);
    for (size_t n = 0; n < words.size(); ++n) memcpy(&words[n], parameters[n], 8);
    give([=]() mutable {
        if (++launched == (uint64_t)setting("lost", 0)) {
            lost = ILLEGAL_ADDRESS;
            return;
        }
        std::vector<void *> places;
        for (auto &word : words) places.push_back(&word);
        kernel->run(places.data(), x, 0);
    });
    return SUCCESS;
}

int cuEventCreate(void **event, unsigned) {
    ENTER;
    *event = new Event;
    return SUCCESS;
}

int cuEventRecord(void *event, void *) {
    ENTER;
    ((Event *)event)->until = given;
    return SUCCESS;
}

int cuEventSynchronize(void *event) {
    ENTER;
    finish(((Event *)event)->until);
    return lost;
}

int cuEventDestroy_v2(void *event) {
    delete (Event *)event;
    return SUCCESS;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "an error";
    return SUCCESS;
}

int nvrtcVersion(int *major, int *minor) {
    *major = (int)setting("compiler", 13);
    *minor = 0;
    return SUCCESS;
}

int nvrtcCreateProgram(void **program, const char *text, const char *, int, const char *const *, const char *const *) {
    *program = new std::string(strstr(text, "KERNEL(linear,") ? "// compiled by the driver of tests" : "");
    return SUCCESS;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    bool plain = false, target = false;
    for (int n = 0; n < count; ++n) {
        plain = plain || !strcmp(options[n], "--fmad=false");
        target = target || !strcmp(options[n], "--gpu-architecture=compute_90");
    }
    return plain && target && !((std::string *)program)->empty() ? SUCCESS : 6;
}

int nvrtcGetPTXSize(void *program, size_t *size) {
    *size = ((std::string *)program)->size() + 1;
    return SUCCESS;
}

int nvrtcGetPTX(void *program, char *to) {
    strcpy(to, ((std::string *)program)->c_str());
    return SUCCESS;
}

int nvrtcGetProgramLogSize(void *, size_t *size) {
    *size = 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(void *, char *to) {
    *to = 0;
    return SUCCESS;
}

int nvrtcDestroyProgram(void **program) {
    delete (std::string *)*program;
    *program = nullptr;
    return SUCCESS;
}

const char *nvrtcGetErrorString(int) { return "NVRTC_ERROR"; }

// For the library of matrix products (`library.cpp`).

void *driver_stream() { return &stream_object; }

bool driver_holds(Address at, size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    return inside(allocated, at, bytes);
}

void driver_give(const std::function<void()> &what) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    give(what);
}
}
