// A driver of CUDA and NVRTC without a GPU, for tests: device memory is memory of the process, and kernels are those
// of a library that the C++ compiler built.
//
// Work is done as late as the driver's manual allows: when the host waits. So memory that is given back or overwritten
// too early shows. New memory is NaN. Calls without a current context, and calls after the device was lost, fail.
// Handles that are no more are refused, and so is a context that is left with memory or graphs.
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
#include <set>
#include <string>
#include <vector>

typedef unsigned long long Address;

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
    ILLEGAL_ADDRESS = 700,
};

struct Kernel {
    void (*run)(void **, uint32_t, uint32_t);
    uint32_t parameters;
};

struct Event {
    uint64_t until = 0;
};

// A launch of a kernel, with a word for each argument.
struct Launch {
    Kernel *kernel;
    unsigned blocks;
    std::vector<uint64_t> words;
};

// `CUDA_KERNEL_NODE_PARAMS` of the driver.
struct NodeParams {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
};

struct Node {
    Launch launch;
};

struct Graph {
    std::vector<Node *> nodes;
};

struct Executable {
    std::map<Node *, size_t> places;
    std::vector<Launch> launches;
};

static std::recursive_mutex lock;
static std::deque<std::function<void()>> work;
static uint64_t given = 0, done = 0, launched = 0;
static std::map<Address, size_t> allocated, pinned;
static size_t used = 0;
static std::set<Graph *> graphs;
static std::set<Executable *> executables;
// Calls of `cuLaunchKernel`, `cuGraphLaunch`, `cuGraphExecKernelNodeSetParams_v2` and `cuDevicePrimaryCtxRelease_v2`.
static long long single_launches = 0, graph_launches = 0, set_params = 0, left = 0;
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

static void run(Launch &launch) {
    if (++launched == (uint64_t)setting("lost", 0)) {
        lost = ILLEGAL_ADDRESS;
        return;
    }
    std::vector<void *> places;
    for (auto &word : launch.words) places.push_back(&word);
    launch.kernel->run(places.data(), launch.blocks, 0);
}

// Calls of graphs that a driver may refuse: the first three always, the others once.
enum Refusable { CREATE = 1, ADD, INSTANTIATE, SET_PARAMS, LAUNCH };

static bool refuses(Refusable call) { return setting("refuses", 0) == call; }

#define ENTER                                                                                                          \
    std::lock_guard<std::recursive_mutex> guard(lock);                                                                 \
    if (current != &context_object) return INVALID_CONTEXT;                                                            \
    if (lost != SUCCESS) return lost

#define CHECK(condition)                                                                                               \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "driver: %s is false\n", #condition);                                                          \
        abort();                                                                                                       \
    }

// The driver copies the arguments before it returns.
static Launch copied(void *function, const unsigned *grid, const unsigned *block, unsigned shared, void **parameters, void **extra) {
    CHECK(grid[0] > 0 && grid[1] == 1 && grid[2] == 1 && block[0] == 128 && block[1] == 1 && block[2] == 1);
    CHECK(shared == 0 && !extra);
    auto kernel = (Kernel *)function;
    std::vector<uint64_t> words(kernel->parameters);
    for (size_t n = 0; n < words.size(); ++n) memcpy(&words[n], parameters[n], 8);
    return Launch{kernel, grid[0], words};
}

static Launch copied(const NodeParams *params) {
    CHECK(!params->kernel && !params->context);
    return copied(params->function, params->grid, params->block, params->shared, params->parameters, params->extra);
}

extern "C" {

int cuInit(unsigned) { return setting("devices", 1) == 0 ? NO_DEVICE : SUCCESS; }

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
    if (setting("busy", 0)) return DEVICE_UNAVAILABLE;
    *context = &context_object;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    CHECK(lost != SUCCESS || (graphs.empty() && executables.empty() && allocated.empty() && pinned.empty() && work.empty()));
    ++left;
    return SUCCESS;
}

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
    size_t bytes = allocated[at];
    allocated.erase(at);
    used -= bytes;
    give([=] {
        memset((void *)at, 0xff, bytes);
        free((void *)at);
    });
    return SUCCESS;
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    ENTER;
    CHECK(flags == 2); // mapped, for kernels that read it
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

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    ENTER;
    CHECK(stream == &stream_object);
    unsigned grid[] = {x, y, z}, block[] = {a, b, c};
    Launch launch = copied(function, grid, block, shared, parameters, extra);
    ++single_launches;
    give([=]() mutable { run(launch); });
    return SUCCESS;
}

int cuGraphCreate(void **graph, unsigned flags) {
    ENTER;
    CHECK(flags == 0);
    if (refuses(CREATE)) return OUT_OF_MEMORY;
    *graph = *graphs.insert(new Graph).first;
    return SUCCESS;
}

int cuGraphAddKernelNode_v2(void **node, void *of, void *const *before, size_t count, const NodeParams *params) {
    ENTER;
    auto graph = (Graph *)of;
    CHECK(graphs.count(graph));
    // Launches that do not depend on each other may run at once.
    CHECK(count == (graph->nodes.empty() ? 0u : 1u) && (count == 0 || before[0] == graph->nodes.back()));
    if (refuses(ADD) && graph->nodes.size() == 5) return OUT_OF_MEMORY;
    graph->nodes.push_back(new Node{copied(params)});
    *node = graph->nodes.back();
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(void **made, void *of, unsigned long long flags) {
    ENTER;
    auto graph = (Graph *)of;
    CHECK(graphs.count(graph) && flags == 0);
    if (refuses(INSTANTIATE)) return NOT_SUPPORTED;
    auto executable = *executables.insert(new Executable).first;
    for (auto node : graph->nodes) {
        executable->places[node] = executable->launches.size();
        executable->launches.push_back(node->launch);
    }
    *made = executable;
    return SUCCESS;
}

// Later launches have the arguments; those that were given before keep theirs.
int cuGraphExecKernelNodeSetParams_v2(void *of, void *node, const NodeParams *params) {
    ENTER;
    auto executable = (Executable *)of;
    CHECK(executables.count(executable) && executable->places.count((Node *)node));
    if (++set_params == 4 && refuses(SET_PARAMS)) return INVALID_VALUE;
    auto &launch = executable->launches[executable->places[(Node *)node]];
    CHECK(launch.kernel == params->function);
    launch = copied(params);
    return SUCCESS;
}

int cuGraphLaunch(void *of, void *stream) {
    ENTER;
    auto executable = (Executable *)of;
    CHECK(executables.count(executable) && stream == &stream_object);
    if (++graph_launches == 9 && refuses(LAUNCH)) return OUT_OF_MEMORY;
    for (auto launch : executable->launches) give([=]() mutable { run(launch); });
    return SUCCESS;
}

int cuGraphDestroy(void *of) {
    ENTER;
    auto graph = (Graph *)of;
    CHECK(graphs.erase(graph) == 1);
    for (auto node : graph->nodes) delete node;
    delete graph;
    return SUCCESS;
}

// Launches that were given before go on.
int cuGraphExecDestroy(void *of) {
    ENTER;
    CHECK(executables.erase((Executable *)of) == 1);
    delete (Executable *)of;
    return SUCCESS;
}

// Kernels that have run, calls, allocated bytes and graphs, for trials.
void driver_counts(long long *to) {
    to[0] = (long long)launched, to[1] = single_launches, to[2] = graph_launches, to[3] = set_params;
    to[4] = (long long)used, to[5] = (long long)executables.size(), to[6] = left;
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
