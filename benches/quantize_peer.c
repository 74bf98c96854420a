// Speed of ggml's quantizers on one thread, in million values per second, to be compared with
// `cargo bench -p onboard-formats --bench codecs`: without and with an importance matrix.
//
// cc -O3 -I GGML/include benches/quantize_peer.c -o quantize_peer -L LIBS -lggml-base -lm
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml.h"

enum { ROW = 4096, ROWS = 64 };

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

int main(int argc, char **argv) {
    float *numbers = malloc(sizeof(float) * ROW * ROWS);
    float *importance = malloc(sizeof(float) * ROW);
    void *out = malloc(sizeof(float) * ROW * ROWS);
    unsigned seed = 1;
    for (int i = 0; i < ROW * ROWS; i++) {
        float sum = -6.0f;
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (seed >> 8) / 16777216.0f;
        }
        numbers[i] = sum * 0.02f;
    }
    for (int i = 0; i < ROW; i++) {
        importance[i] = numbers[i] * numbers[i];
    }
    for (enum ggml_type type = 0; type < GGML_TYPE_COUNT; type++) {
        const char *name = ggml_type_name(type);
        if (!name || !ggml_is_quantized(type) || type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K) {
            continue;
        }
        if (argc > 1 && !strstr(name, argv[1])) {
            continue;
        }
        ggml_quantize_init(type);
        printf("%-8s", name);
        for (int weighted = 0; weighted < 2; weighted++) {
            if (!weighted && ggml_quantize_requires_imatrix(type)) {
                printf(" %9s", "-");
                continue;
            }
            double best = 1e9, begin = seconds();
            for (int run = 0; run < 2 || (seconds() - begin < 0.25 && run < 50); run++) {
                double from = seconds();
                ggml_quantize_chunk(type, numbers, out, 0, ROWS, ROW, weighted ? importance : NULL);
                double took = seconds() - from;
                best = took < best ? took : best;
            }
            printf(" %9.2f", ROW * ROWS / best / 1e6);
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
