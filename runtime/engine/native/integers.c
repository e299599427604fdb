/* Products in integers: rows in 8 bit by blocks of 32, with weights of 4 or 8 bit in panels as in floats.c. For processors
 * that multiply bytes and add the products in one instruction (AVX-512 VNNI); for others `has_integers` is 0 and this is
 * not used.
 *
 * Integers are added exactly, and floats in one order whatever the number of rows: a row does not depend on the others.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 9 };  /* rows whose sums fit the registers */
enum { WIDE = 16 }; /* rows from which on all threads round */

#ifdef __AVX512VNNI__
#include <immintrin.h>

int has_integers(void) { return 1; }

/* Blocks `from` to `to` of rows in 8 bit: codes; their scale; scale * sum of codes; sum of codes. */
INLINE void quantise(const float *x, long from, long to, int8_t *codes, float *scales, float *shifts, int32_t *sums) {
    for (long b = from; b < to; b++) {
        const __m512 low = _mm512_loadu_ps(x + b * BLOCK), high = _mm512_loadu_ps(x + b * BLOCK + LANES);
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        const __m512 inverse = _mm512_set1_ps(most > 0.0f ? 127.0f / most : 0.0f);
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
        const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        _mm_storeu_si128((__m128i *)(codes + b * BLOCK), _mm512_cvtsepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(codes + b * BLOCK + LANES), _mm512_cvtsepi32_epi8(second));
        sums[b] = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        const int strange = _mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q);
        scales[b] = strange ? __builtin_nanf("") : most / 127.0f;
        shifts[b] = scales[b] * (float)sums[b];
    }
}

typedef struct {
    const int8_t *codes;
    const float *scales, *shifts;
    const int32_t *sums;
} Rows;

INLINE __m512i four_of(const int8_t *codes) {
    int32_t four;
    memcpy(&four, codes, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE __m512 halves(const uint16_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }

/* One panel of `rows` rows from `first` on; kind and rows are constants where this is inlined. */
INLINE void tile(const int kind, const int rows, const Rows *x, long first, long width, const uint8_t *codes,
                 const uint16_t *scales, const float *row_scales, float *y, long outputs, __mmask16 there) {
    const long blocks = width / BLOCK;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 total[TILE];
    UNROLL for (int r = 0; r < rows; r++) total[r] = _mm512_setzero_ps();
    for (long b = 0; b < blocks; b++) {
        __m512i even[TILE], odd[TILE];
        UNROLL for (int r = 0; r < rows; r++) {
            const long at = (first + r) * blocks + b;
            even[r] = kind == FOUR ? _mm512_setzero_si512() : _mm512_set1_epi32(-128 * x->sums[at]);
            odd[r] = _mm512_setzero_si512();
        }
        const int vectors = kind == FOUR ? 4 : 8;
        UNROLL for (int j = 0; j < vectors; j++) {
            const uint8_t *place = codes + (b * vectors + j) * VECTOR;
            const __m512i packed = _mm512_loadu_si512(place);
            _mm_prefetch((const char *)place + AHEAD, _MM_HINT_T0);
            if (kind == FOUR) {
                const __m512i low = _mm512_and_si512(packed, nibble);
                const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
                UNROLL for (int r = 0; r < rows; r++) {
                    const int8_t *row = x->codes + (first + r) * width + b * BLOCK + 4 * j;
                    even[r] = _mm512_dpbusd_epi32(even[r], low, four_of(row));
                    odd[r] = _mm512_dpbusd_epi32(odd[r], high, four_of(row + LANES));
                }
            } else {
                UNROLL for (int r = 0; r < rows; r++) {
                    const __m512i four = four_of(x->codes + (first + r) * width + b * BLOCK + 4 * j);
                    if (j % 2) odd[r] = _mm512_dpbusd_epi32(odd[r], packed, four);
                    else even[r] = _mm512_dpbusd_epi32(even[r], packed, four);
                }
            }
        }
        const __m512 d = kind == ROWS ? _mm512_set1_ps(1.0f) : halves(scales + b * (kind == FOUR ? 32 : 16));
        const __m512 m = kind == FOUR ? halves(scales + b * 32 + LANES) : _mm512_setzero_ps();
        UNROLL for (int r = 0; r < rows; r++) {
            const long at = (first + r) * blocks + b;
            const __m512 scale = _mm512_set1_ps(x->scales[at]);
            const __m512 dots = _mm512_cvtepi32_ps(_mm512_add_epi32(even[r], odd[r]));
            total[r] = _mm512_fmadd_ps(dots, kind == ROWS ? scale : _mm512_mul_ps(d, scale), total[r]);
            if (kind == FOUR) total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x->shifts[at]), total[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        if (kind == ROWS) total[r] = _mm512_mul_ps(total[r], _mm512_maskz_loadu_ps(there, row_scales));
        _mm512_mask_storeu_ps(y + (first + r) * outputs, there, total[r]);
    }
}

#define CASE(n) case n: tile(kind, n, x, at, width, codes, scales, row_scales, y, outputs, there); break;
INLINE void panel(const int kind, const Rows *x, long rows, long width, const uint8_t *codes, const uint16_t *scales,
                  const float *row_scales, float *y, long outputs, __mmask16 there) {
    for (long at = 0; at < rows; at += TILE) {
        const long size = rows - at < TILE ? rows - at : TILE;
        switch (size) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) }
    }
}

INLINE void product(const int kind, const Rows *x, long rows, long width, const uint8_t *codes, const void *scales,
                    float *y, long outputs, int threads) {
    const long blocks = width / BLOCK, panels = (outputs + LANES - 1) / LANES;
    const long step = blocks * VECTOR * (kind == FOUR ? 4 : 8), halves_step = blocks * (kind == FOUR ? 32 : 16);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long p = 0; p < panels; p++) {
        const long left = outputs - p * LANES;
        const __mmask16 there = left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
        panel(kind, x, rows, width, codes + p * step, (const uint16_t *)scales + p * halves_step,
              (const float *)scales + p * LANES, y + p * LANES, outputs, there);
    }
}

/* y (rows, outputs) = x (rows, width), rounded to 8 bit, times the weight (outputs, width) transposed; width is a multiple
 * of 32. Returns 0, or 1 where there is no memory for the rounded rows.
 */
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads) {
    const long blocks = width / BLOCK, room = (rows * (width + 12 * blocks) + VECTOR) / VECTOR * VECTOR; /* never none */
    char *scratch = aligned_alloc(VECTOR, room);
    if (!scratch) return 1;
    int8_t *rounded = (int8_t *)scratch;
    float *steps = (float *)(scratch + rows * width), *shifts = steps + rows * blocks;
    int32_t *sums = (int32_t *)(shifts + rows * blocks);
    const long parts = rows < WIDE ? 1 : threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1)
    for (long part = 0; part < parts; part++)
        quantise(x, part * rows / parts * blocks, (part + 1) * rows / parts * blocks, rounded, steps, shifts, sums);
    const Rows given = {rounded, steps, shifts, sums};
    switch (kind) {
        case FOUR: product(FOUR, &given, rows, width, codes, scales, y, outputs, threads); break;
        case EIGHT: product(EIGHT, &given, rows, width, codes, scales, y, outputs, threads); break;
        case ROWS: product(ROWS, &given, rows, width, codes, scales, y, outputs, threads); break;
    }
    free(scratch);
    return 0;
}

#else

int has_integers(void) { return 0; }
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads) {
    return 1;
}

#endif
