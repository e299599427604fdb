/* What the compiled kernels offer each other and Python; see floats.c, integers.c, kernels.c and layer.c. */
#ifndef SPECPILOT_KERNELS_H
#define SPECPILOT_KERNELS_H

#include <stdint.h>

enum { FOUR, EIGHT, ROWS, HALVES };           /* forms of a weight, as in blocks.py */
enum { LANES = 16, BLOCK = 32, VECTOR = 64 }; /* floats of a vector, weights of a block, bytes of a vector */
enum { AHEAD = 4096 };                        /* bytes that codes are fetched ahead: panels are read once */
enum { FEW = 16 };                            /* rows up to which one thread does the small parts */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Panels, see floats.c: vectors of a block, outputs of panel p, and where its codes begin. */
INLINE int vectors_of(const int kind) { return kind == FOUR ? 4 : kind == HALVES ? 16 : 8; }
INLINE int outputs_of(long outputs, long p) { return (int)(outputs - p * LANES < LANES ? outputs - p * LANES : LANES); }
INLINE const uint8_t *codes_of(const uint8_t *codes, int kind, long width, long p) {
    return codes + p * (width / BLOCK) * VECTOR * vectors_of(kind);
}

int multiply(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
             long outputs, int threads);
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads);
int multiply_digits(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                    long outputs, int threads);
int has_integers(void);
void normalise(const float *x, const float *weight, float *y, long rows, long width, float eps, int threads);
void gate(const float *x, float *y, long rows, long width, int threads);
void attend(const float *qkv, const float *cosine, const float *sine, float *keys, float *values, float *seen, long rows,
            long length, long capacity, long heads, long groups, long size, float scale, int threads);

#endif
