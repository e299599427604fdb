/* What the compiled kernels offer each other and Python; see kernels.c and integers.c. */
#ifndef SPECPILOT_KERNELS_H
#define SPECPILOT_KERNELS_H

#include <stdint.h>

void multiply(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
              long outputs, int threads);
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads);
void normalise(const float *x, const float *weight, float *y, long rows, long width, float eps, int threads);
void gate(const float *x, float *y, long rows, long width, int threads);
void attend(const float *qkv, const float *cosine, const float *sine, float *keys, float *values, float *seen, long rows,
            long length, long capacity, long heads, long groups, long size, float scale, int threads);

#endif
