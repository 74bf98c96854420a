// cuBLASLt without a GPU, for tests: products are work of the driver of tests (`driver.cpp`), done as late as its other work.
//
// Matrices are stored column by column. What the manual forbids ends the process: addresses that are less aligned than the
// algorithm was asked for, sums of parts in 16 bits, matrices outside allocated memory.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>

typedef unsigned long long Address;

enum Status { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };

struct Product {
    int compute, scale;
    int32_t turned = 0;
};

struct Matrix {
    int type;
    uint64_t rows, columns;
    int64_t step;
    int32_t count = 1;
    int64_t between = 0;
};

struct Preference {
    uint64_t workspace = 0;
    uint32_t sums = 7;
    uint32_t aligned[4] = {256, 256, 256, 256};
};

// What the caller keeps of an algorithm.
struct Algorithm {
    uint64_t known, workspace;
    uint32_t aligned[4];
    uint64_t rest[4];
};

struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static const uint64_t KNOWN = 0x616c676f72697468;

#define CHECK(condition)                                                                                               \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "library: %s is false\n", #condition);                                                         \
        abort();                                                                                                       \
    }

template <class F> static F of_driver(const char *name) {
    void *driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    F found = driver ? (F)dlsym(driver, name) : nullptr;
    CHECK(found);
    return found;
}

static size_t size_of(int type) { return type == F32 ? 4 : 2; }

static float read(const char *from, int type, uint64_t n) {
    if (type == F32) return ((const float *)from)[n];
    if (type == F16) return (float)((const _Float16 *)from)[n];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[n] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void write(char *to, int type, uint64_t n, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (type == F32) ((float *)to)[n] = x;
    else if (type == F16) ((_Float16 *)to)[n] = (_Float16)x;
    else ((uint16_t *)to)[n] = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static bool fits(const Matrix &m, const void *at) {
    if (m.step < (int64_t)m.rows || m.count < 1 || m.between < 0) return false;
    uint64_t last = (uint64_t)(m.count - 1) * m.between + (m.columns - 1) * m.step + m.rows;
    return of_driver<bool (*)(Address, size_t)>("driver_holds")((Address)at, last * size_of(m.type));
}

// The smallest of the distances and the address is what an algorithm may rely on.
static bool aligned(const void *at, uint32_t bytes) { return (Address)at % bytes == 0; }

extern "C" {

int cublasLtCreate(void **handle) {
    *handle = new int(1);
    return SUCCESS;
}

int cublasLtDestroy(void *handle) {
    delete (int *)handle;
    return SUCCESS;
}

int cublasLtMatmulDescCreate(void **product, int compute, int scale) {
    *product = new Product{compute, scale};
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(void *product, int attribute, const void *value, size_t bytes) {
    if (attribute != 3 || bytes != 4) return INVALID_VALUE;
    memcpy(&((Product *)product)->turned, value, bytes);
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(void *product) {
    delete (Product *)product;
    return SUCCESS;
}

int cublasLtMatrixLayoutCreate(void **matrix, int type, uint64_t rows, uint64_t columns, int64_t step) {
    *matrix = new Matrix{type, rows, columns, step};
    return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(void *matrix, int attribute, const void *value, size_t bytes) {
    Matrix *m = (Matrix *)matrix;
    if (attribute == 5 && bytes == 4) memcpy(&m->count, value, bytes);
    else if (attribute == 6 && bytes == 8) memcpy(&m->between, value, bytes);
    else return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(void *matrix) {
    delete (Matrix *)matrix;
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **preference) {
    *preference = new Preference;
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    Preference *p = (Preference *)preference;
    if (attribute == 1 && bytes == 8) memcpy(&p->workspace, value, bytes);
    else if (attribute == 3 && bytes == 4) memcpy(&p->sums, value, bytes);
    else if (attribute >= 5 && attribute <= 8 && bytes == 4) memcpy(&p->aligned[attribute - 5], value, bytes);
    else return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(void *preference) {
    delete (Preference *)preference;
    return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *, void *, void *, void *, void *preference, int wanted,
                                   Heuristic *found, int *count) {
    CHECK(handle && product && wanted == 1);
    Preference *p = (Preference *)preference;
    CHECK(p->sums == 2); // in the dtype of the computation
    *count = 1;
    *found = Heuristic{};
    found->algorithm = Algorithm{KNOWN, p->workspace, {p->aligned[0], p->aligned[1], p->aligned[2], p->aligned[3]}, {}};
    found->workspace = p->workspace;
    return SUCCESS;
}

int cublasLtMatmul(void *handle, void *product, const float *alpha, const void *a, void *of_a, const void *b, void *of_b,
                   const float *beta, const void *c, void *of_c, void *d, void *of_d, const Algorithm *algorithm, void *workspace,
                   size_t bytes, void *stream) {
    CHECK(handle && algorithm->known == KNOWN && bytes >= algorithm->workspace && c == d && of_c == of_d);
    CHECK(stream == of_driver<void *(*)()>("driver_stream")());
    CHECK(of_driver<bool (*)(Address, size_t)>("driver_holds")((Address)workspace, bytes));
    Product p = *(Product *)product;
    Matrix x = *(Matrix *)of_a, y = *(Matrix *)of_b, z = *(Matrix *)of_d;
    if (p.compute != 68 || p.scale != F32 || x.type != y.type || (z.type != x.type && z.type != F32)) return NOT_SUPPORTED;
    uint64_t depth = p.turned ? x.rows : x.columns, rows = p.turned ? x.columns : x.rows;
    CHECK(depth == y.rows && rows == z.rows && y.columns == z.columns && x.count == z.count && y.count == z.count);
    CHECK(fits(x, a) && fits(y, b) && fits(z, d));
    CHECK(aligned(a, algorithm->aligned[0]) && aligned(b, algorithm->aligned[1]) && aligned(d, algorithm->aligned[3]));
    float scale = *alpha, kept = *beta;
    auto work = [=] {
        for (int64_t n = 0; n < z.count; ++n)
            for (uint64_t column = 0; column < z.columns; ++column)
                for (uint64_t row = 0; row < rows; ++row) {
                    float sum = 0.0f;
                    for (uint64_t k = 0; k < depth; ++k) {
                        uint64_t left = p.turned ? k + row * x.step : row + k * x.step;
                        sum += read((const char *)a, x.type, n * x.between + left) *
                               read((const char *)b, y.type, n * y.between + k + column * y.step);
                    }
                    uint64_t at = n * z.between + row + column * z.step;
                    float old = kept == 0.0f ? 0.0f : kept * read((const char *)d, z.type, at);
                    write((char *)d, z.type, at, scale * sum + old);
                }
    };
    of_driver<void (*)(const std::function<void()> &)>("driver_give")(work);
    return SUCCESS;
}
}
