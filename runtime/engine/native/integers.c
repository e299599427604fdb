/* Products in integers: rows in 8 bit by blocks of 32, with weights of 4 or 8 bit in panels as in floats.c. For processors
 * that multiply bytes and add the products in one instruction (AVX-512 VNNI); for others `has_integers` is 0 and this is
 * not used.
 *
 * A row is one digit of 8 bit a number, or three: 24 bits of the largest number of a block. Numbers much smaller than that
 * one keep fewer bits than floats would; the products of a block and their sum are exact. Three digits take fewer
 * instructions than making floats of the weights and multiplying those.
 *
 * Integers are added exactly, and floats in one order whatever the number of rows: a row does not depend on the others.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

enum { ONE = 1, THREE = 3 };                            /* digits */
enum { TILE = 9, TILE_OF_THREE = 6 };                   /* rows whose sums fit the registers */
enum { CHUNK_ROWS = 512 };                              /* rows that are rounded before they are multiplied */
enum { LARGEST = 127, LARGEST_OF_THREE = 127 * 65536 }; /* numbers that digits hold, and that may be rounded up by one */

#ifdef __AVX512VNNI__
#include <immintrin.h>

int has_integers(void) { return 1; }

typedef struct {
    int8_t *codes;   /* block after block: 32 of each digit, the last first */
    float *scales;   /* of a block */
    float *shifts;   /* scale * sum of the block */
    int32_t *starts; /* -128 * sum of the codes: of the first digit; of three also of the other two as one number */
} Rows;

/* Digits of 16 numbers, and what is left of those: the number is 256 * left + digit. */
INLINE __m512i digit(__m512i *numbers) {
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(*numbers, 24), 24);
    *numbers = _mm512_srai_epi32(_mm512_sub_epi32(*numbers, low), 8);
    return low;
}

INLINE void put(int8_t *codes, __m512i first, __m512i second) {
    _mm_storeu_si128((__m128i *)codes, _mm512_cvtsepi32_epi8(first));
    _mm_storeu_si128((__m128i *)(codes + LANES), _mm512_cvtsepi32_epi8(second));
}

/* What takes back the 128 that codes of 8 bit are stored with. It overflows for rows that are not finite, which is no harm. */
INLINE int32_t start(int32_t sum) { return (int32_t)(-128u * (uint32_t)sum); }

/* Blocks `from` to `to` of rows in digits. Blocks of less than 1e-30 are zeros: the inverse of their step is no float. */
INLINE void quantise(const int digits, const float *x, long from, long to, const Rows *rows) {
    const float largest = digits == THREE ? LARGEST_OF_THREE : LARGEST;
    for (long b = from; b < to; b++) {
        const __m512 low = _mm512_loadu_ps(x + b * BLOCK), high = _mm512_loadu_ps(x + b * BLOCK + LANES);
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        const __m512 inverse = _mm512_set1_ps(most > 1e-30f ? largest / most : 0.0f);
        __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
        __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        const int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        const int strange = _mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q);
        rows->scales[b] = strange ? __builtin_nanf("") : most / largest;
        rows->shifts[b] = rows->scales[b] * (float)sum;
        int8_t *codes = rows->codes + b * BLOCK * digits;
        if (digits == THREE) {
            for (int g = 0; g < 2; g++) {
                const __m512i one = digit(&first), other = digit(&second);
                put(codes + g * BLOCK, one, other);
            }
            codes += 2 * BLOCK;
        }
        put(codes, first, second);
        const int32_t top = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        rows->starts[b * (digits == THREE ? 2 : 1)] = start(top);
        if (digits == THREE) rows->starts[2 * b + 1] = start((int32_t)((uint32_t)sum - 65536u * (uint32_t)top));
    }
}

static void quantise_one(const float *x, long from, long to, const Rows *rows) { quantise(ONE, x, from, to, rows); }
static void quantise_three(const float *x, long from, long to, const Rows *rows) { quantise(THREE, x, from, to, rows); }

/* `sum` and the products of four bytes of each output with the same four codes of a row. The instruction reads those from
 * memory itself, which halves what the processor has to decode; GCC 12 does not know that it can.
 */
INLINE __m512i dot(__m512i sum, __m512i bytes, const int8_t *codes) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*(const int8_t(*)[4])codes));
    return sum;
}

INLINE __m512 halves(const uint16_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }

/* One panel of `rows` rows from `first` on; kind, digits and rows are constants where this is inlined. */
INLINE void tile(const int kind, const int digits, const int rows, const Rows *x, long first, long width,
                 const uint8_t *codes, const uint16_t *scales, const float *row_scales, float *y, long outputs,
                 __mmask16 there) {
    const long blocks = width / BLOCK;
    /* Sums of a row: one a digit, or two where there are so few that one would wait for itself. */
    const int chains = digits == ONE && rows < 8 ? 2 : digits, vectors = vectors_of(kind);
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 total[TILE];
    UNROLL for (int r = 0; r < rows; r++) total[r] = _mm512_setzero_ps();
    for (long b = 0; b < blocks; b++) {
        __m512i sum[TILE][THREE];
        UNROLL for (int r = 0; r < rows; r++) {
            const int32_t *starts = x->starts + ((first + r) * blocks + b) * (digits == THREE ? 2 : 1);
            UNROLL for (int c = 0; c < chains; c++) sum[r][c] = _mm512_setzero_si512();
            if (kind != FOUR) sum[r][digits - 1] = _mm512_set1_epi32(starts[0]);
            if (kind != FOUR && digits == THREE) sum[r][0] = _mm512_set1_epi32(starts[1]);
        }
        for (int pair = 0; pair < vectors; pair += 2) { /* in pairs, for `odd` is a constant then */
            UNROLL for (int odd = 0; odd < 2; odd++) {
                const long j = pair + odd;
                const uint8_t *place = codes + (b * vectors + j) * VECTOR;
                const __m512i packed = _mm512_loadu_si512(place);
                _mm_prefetch((const char *)place + AHEAD, _MM_HINT_T0);
                const __m512i low = kind == FOUR ? _mm512_and_si512(packed, nibble) : packed;
                const __m512i high = kind == FOUR ? _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble) : packed;
                UNROLL for (int r = 0; r < rows; r++) {
                    const int8_t *row = x->codes + ((first + r) * blocks + b) * BLOCK * digits + 4 * j;
                    UNROLL for (int g = 0; g < digits; g++) {
                        /* Of two chains: low and high nibbles, or every second vector. */
                        const int c = chains > digits && kind != FOUR ? odd : g, other = chains > digits ? 1 : g;
                        sum[r][c] = dot(sum[r][c], low, row + g * BLOCK);
                        if (kind == FOUR)
                            sum[r][other] = dot(sum[r][other], high, row + g * BLOCK + LANES);
                    }
                }
            }
        }
        const __m512 d = kind == ROWS ? _mm512_set1_ps(1.0f) : halves(scales + b * (kind == FOUR ? 32 : 16));
        const __m512 m = kind == FOUR ? halves(scales + b * 32 + LANES) : _mm512_setzero_ps();
        UNROLL for (int r = 0; r < rows; r++) {
            const long at = (first + r) * blocks + b;
            const __m512 scale = _mm512_set1_ps(x->scales[at]);
            __m512 dots;
            if (digits == THREE) {
                const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sum[r][2], 8), sum[r][1]);
                dots = _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(sum[r][0]));
            } else {
                dots = _mm512_cvtepi32_ps(chains == 1 ? sum[r][0] : _mm512_add_epi32(sum[r][0], sum[r][1]));
            }
            total[r] = _mm512_fmadd_ps(dots, kind == ROWS ? scale : _mm512_mul_ps(d, scale), total[r]);
            if (kind == FOUR) total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x->shifts[at]), total[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        if (kind == ROWS) total[r] = _mm512_mul_ps(total[r], _mm512_maskz_loadu_ps(there, row_scales));
        _mm512_mask_storeu_ps(y + (first + r) * outputs, there, total[r]);
    }
}

#define CASE(n) case n: tile(kind, digits, n, x, at, width, codes, scales, row_scales, y, outputs, there); break;
INLINE void panel(const int kind, const int digits, const Rows *x, long rows, long width, const uint8_t *codes,
                  const uint16_t *scales, const float *row_scales, float *y, long outputs, __mmask16 there) {
    const long most = digits == THREE ? TILE_OF_THREE : TILE;
    for (long at = 0; at < rows; at += most) {
        const long size = rows - at < most ? rows - at : most;
        switch (size) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        }
        if (digits == ONE) /* three have no registers for so many */
            switch (size) { CASE(7) CASE(8) CASE(9) }
    }
}

/* What a panel needs beside its place. */
typedef struct {
    int kind, digits;
    const Rows *x;
    long rows, width;
    const uint8_t *codes;
    const void *scales;
    float *y;
    long outputs;
} Product;

/* Panel p. Kind and digits become constants here, inside the parallel section: what such a section takes from outside is
 * read at run time, and the loops would not be unrolled.
 */
static void panel_of(const Product *of, long p) {
    const __mmask16 there = (__mmask16)((1u << outputs_of(of->outputs, p)) - 1);
    const uint8_t *codes = codes_of(of->codes, of->kind, of->width, p);
    const uint16_t *scales = (const uint16_t *)of->scales + p * (of->width / BLOCK) * (of->kind == FOUR ? 32 : 16);
    const float *row_scales = (const float *)of->scales + p * LANES;
#define PANEL(kind, digits) panel(kind, digits, of->x, of->rows, of->width, codes, scales, row_scales, of->y + p * LANES, \
                                  of->outputs, there); break;
    switch (of->digits * 4 + of->kind) {
        case ONE * 4 + FOUR: PANEL(FOUR, ONE)
        case ONE * 4 + EIGHT: PANEL(EIGHT, ONE)
        case ONE * 4 + ROWS: PANEL(ROWS, ONE)
        case THREE * 4 + FOUR: PANEL(FOUR, THREE)
        case THREE * 4 + EIGHT: PANEL(EIGHT, THREE)
        case THREE * 4 + ROWS: PANEL(ROWS, THREE)
    }
}

static int multiply_rounded(int digits, int kind, const float *x, long rows, long width, const uint8_t *codes,
                            const void *scales, float *y, long outputs, int threads) {
    const long blocks = width / BLOCK, most = rows < CHUNK_ROWS ? rows : CHUNK_ROWS, count = most * blocks;
    const long block_bytes = BLOCK * digits + 4 * (digits == THREE ? 4 : 3);
    char *scratch = aligned_alloc(VECTOR, (count * block_bytes + VECTOR) / VECTOR * VECTOR); /* never none */
    if (!scratch) return 1;
    float *steps = (float *)(scratch + count * BLOCK * digits), *shifts = steps + count;
    const Rows rounded = {(int8_t *)scratch, steps, shifts, (int32_t *)(shifts + count)};
    for (long from = 0; from < rows; from += most) {
        const long size = rows - from < most ? rows - from : most, parts = size > FEW ? threads : 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1)
        for (long part = 0; part < parts; part++)
            (digits == ONE ? quantise_one : quantise_three)(x + from * width, part * size * blocks / parts,
                                                            (part + 1) * size * blocks / parts, &rounded);
        const Product of = {kind, digits, &rounded, size, width, codes, scales, y + from * outputs, outputs};
#pragma omp parallel for schedule(static) num_threads(threads)
        for (long p = 0; p < (outputs + LANES - 1) / LANES; p++) panel_of(&of, p);
    }
    free(scratch);
    return 0;
}

/* y (rows, outputs) = x (rows, width), rounded to 8 bit, times the weight (outputs, width) transposed; width is a multiple
 * of 32. Returns 0, or 1 where there is no memory for the rounded rows.
 */
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads) {
    return multiply_rounded(ONE, kind, x, rows, width, codes, scales, y, outputs, threads);
}

/* The same with rows of three digits. */
int multiply_digits(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                    long outputs, int threads) {
    return multiply_rounded(THREE, kind, x, rows, width, codes, scales, y, outputs, threads);
}

#else

int has_integers(void) { return 0; }
int multiply_integers(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                      long outputs, int threads) {
    return 1;
}
int multiply_digits(int kind, const float *x, long rows, long width, const uint8_t *codes, const void *scales, float *y,
                    long outputs, int threads) {
    return 1;
}

#endif
