/* Products of rows with weights in few bits, 16 outputs side by side. They are in floats, but for weights of 4 and 8 bit on
 * processors for which integers.c has three digits: those are told by `multiply` at the end.
 *
 * Weights lie in panels of 16 outputs, block after block of 32 weights. A block of a panel is a number of vectors of 16
 * outputs x 4 bytes, and its scales are 16 d (then 16 m) in half precision; weights with one scale a row have none here:
 *
 *   4 bit         4 vectors; byte i of vector j: weight 4j + i low, 16 + 4j + i high; d * q + m
 *   8 bit, rows   8 vectors; byte i of vector j: weight 4j + i, as q + 128; d * q
 *   bf16         16 vectors; half i of vector j: weight 2j + i
 *
 * Each weight is read once for up to TILE rows, and made a float in a register. Every row is summed in the same order, so
 * its result does not depend on how many rows are computed with it.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef _Float16 half;

#ifdef __AVX512F__
#include <immintrin.h>
enum { TILE = 9 }; /* rows whose sums fit the registers: the widest verification */
#else
enum { TILE = 2 };
#endif
enum { CHUNK_ROWS = 128 }; /* so many rows stay in the cache until all panels are multiplied */

INLINE floats halves(const half *from) {
#ifdef __AVX512F__
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    floats value;
    for (int l = 0; l < LANES; l++) value[l] = (float)from[l];
    return value;
#endif
}

/* Weight i of the bytes of each output, without its scale. */
INLINE floats weight(const int kind, ints packed, const int i) {
    if (kind == HALVES) return (floats)(i ? packed & (int32_t)0xffff0000 : packed << 16);
    if (kind != FOUR) return __builtin_convertvector((packed << (24 - 8 * i)) >> 24, floats);
#ifdef __AVX512F__
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (floats)_mm512_permutexvar_ps((__m512i)(ints)_mm512_srli_epi32((__m512i)packed, 4 * i), table);
#else
    return __builtin_convertvector((packed >> (4 * i)) & 15, floats);
#endif
}

/* One panel of a few rows; kind and rows are constants where this is inlined. `sums` are those of x by block. */
INLINE void tile(const int kind, const int rows, const float *x, const float *sums, long width, const uint8_t *codes,
                 const void *scales, float *y, long outputs, long count) {
    const long blocks = width / BLOCK;
    const int vectors = vectors_of(kind), each = BLOCK / vectors;
    floats total[TILE];
    UNROLL for (int r = 0; r < rows; r++) total[r] = (floats){0};
    for (long b = 0; b < blocks; b++) {
        floats even[TILE], odd[TILE];
        UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = (floats){0};
        for (int j = 0; j < vectors; j++) {
            const uint8_t *place = codes + (b * vectors + j) * VECTOR;
            ints packed;
            memcpy(&packed, place, sizeof packed);
            __builtin_prefetch(place + AHEAD);
            if (kind == EIGHT || kind == ROWS) packed ^= (int32_t)0x80808080;
            UNROLL for (int i = 0; i < each; i++) {
                const floats q = weight(kind, packed, i);
                const long k = b * BLOCK + (kind == FOUR ? 4 * j + i / 2 + i % 2 * 16 : each * j + i);
                UNROLL for (int r = 0; r < rows; r++) {
                    if (i % 2) odd[r] += q * x[r * width + k];
                    else even[r] += q * x[r * width + k];
                }
            }
        }
        if (kind == FOUR || kind == EIGHT) {
            const half *scale = (const half *)scales + b * (kind == FOUR ? 2 * LANES : LANES);
            const floats d = halves(scale);
            UNROLL for (int r = 0; r < rows; r++) total[r] += (even[r] + odd[r]) * d;
            if (kind == FOUR) {
                const floats m = halves(scale + LANES);
                UNROLL for (int r = 0; r < rows; r++) total[r] += m * sums[r * blocks + b];
            }
        } else {
            UNROLL for (int r = 0; r < rows; r++) total[r] += even[r] + odd[r];
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        if (kind == ROWS) {
            floats whole = {0};
            memcpy(&whole, scales, sizeof whole);
            total[r] *= whole;
        }
        memcpy(y + r * outputs, &total[r], count * sizeof(float));
    }
}

#define CASE(n) case n: tile(kind, n, x, sums, width, codes, scales, y, outputs, count); break;
/* One panel of any number of rows; `count` of its outputs are there. */
INLINE void panel(const int kind, const float *x, const float *sums, long rows, long width, const uint8_t *codes,
                  const void *scales, float *y, long outputs, long count) {
    while (rows > 0) {
        const long size = rows < TILE ? rows : TILE;
#ifdef __AVX512F__
        switch (size) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) }
#else
        switch (size) { CASE(1) CASE(2) }
#endif
        rows -= size, x += size * width, sums += size * (width / BLOCK), y += size * outputs;
    }
}

/* What a panel needs beside its place. */
typedef struct {
    int kind;
    const float *x, *sums;
    long rows, width;
    const uint8_t *codes;
    const void *scales;
    float *y;
    long outputs;
} Product;

/* Panel p. The kind becomes a constant here, inside the parallel section: what such a section takes from outside is read at
 * run time, and the loops would not be unrolled.
 */
static void panel_of(const Product *of, long p) {
    const long count = outputs_of(of->outputs, p), blocks = of->width / BLOCK;
    const uint8_t *codes = codes_of(of->codes, of->kind, of->width, p);
    const char *scales = of->scales;
    float *y = of->y + p * LANES;
#define PANEL(kind, bytes) \
    panel(kind, of->x, of->sums, of->rows, of->width, codes, scales + p * LANES * (bytes), y, of->outputs, count); break;
    switch (of->kind) {
        case FOUR: PANEL(FOUR, 4 * blocks)
        case EIGHT: PANEL(EIGHT, 2 * blocks)
        case ROWS: PANEL(ROWS, 4)
        case HALVES: PANEL(HALVES, 0)
    }
}

/* y (rows, outputs) = x (rows, width) times the weight (outputs, width) transposed; width is a multiple of 32. Returns 0, or
 * 1 where there is no memory for the sums of x.
 */
int multiply(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
              long outputs, int threads) {
    if (kind != HALVES && has_integers()) return multiply_digits(kind, x, rows, width, codes, scales, y, outputs, threads);
    const long blocks = width / BLOCK;
    float *sums = malloc((CHUNK_ROWS < rows ? CHUNK_ROWS : rows) * blocks * sizeof(float) + 1);
    if (!sums) return 1;
    for (long from = 0; from < rows; from += CHUNK_ROWS, x += CHUNK_ROWS * width, y += CHUNK_ROWS * outputs) {
        const long size = rows - from < CHUNK_ROWS ? rows - from : CHUNK_ROWS;
        if (kind == FOUR)
            for (long b = 0; b < size * blocks; b++) {
                float sum = 0.0f;
                for (int i = 0; i < BLOCK; i++) sum += x[b * BLOCK + i];
                sums[b] = sum;
            }
        const Product of = {kind, x, sums, size, width, codes, scales, y, outputs};
#pragma omp parallel for schedule(static) num_threads(threads)
        for (long p = 0; p < (outputs + LANES - 1) / LANES; p++) panel_of(&of, p);
    }
    free(sums);
    return 0;
}
