/* What stands between the products of a forward: attention over a cache, the norm and the gate; and what follows the last
 * product. Compiled on the machine that runs it (see library.py): GCC or Clang, any processor.
 */
#include "kernels.h"

#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float floats __attribute__((vector_size(64)));
typedef float floats8 __attribute__((vector_size(32)));
typedef float floats4 __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(64)));

enum { CHUNK = 64 };         /* keys and values that a query looks at in one go */
enum { QUERIES = 16 };       /* queries that look at a chunk one after the other */
enum { LARGEST_HEAD = 512 }; /* numbers of a head, as in modules.py */

INLINE floats load(const float *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store(float *to, floats value) { memcpy(to, &value, sizeof value); }

INLINE float sum(floats value) {
    floats8 a, b;
    floats4 c, d;
    memcpy(&a, &value, sizeof a);
    memcpy(&b, (const char *)&value + sizeof a, sizeof b);
    a += b;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (const char *)&a + sizeof c, sizeof d);
    c += d;
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* e^x for x <= 0, to a rounding or two; 0 below -87. Source: Cephes, expf. */
INLINE floats exponential(floats x) {
    const ints there = x > -87.0f;
    x = (floats)((ints)x & there);
    const ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    const floats whole = __builtin_convertvector(n, floats);
    const floats r = x - whole * 0.693359375f - whole * -2.12194440e-4f;
    floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (floats)((ints)(p * (floats)((n + 127) << 23)) & there);
}

/* -- between the products ----------------------------------------------------------------------------------------- */

/* y = x / sqrt(mean(x^2) + eps) * weight, row by row; width is a multiple of 16. */
void normalise(const float *x, const float *weight, float *y, long rows, long width, float eps, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > FEW)
    for (long r = 0; r < rows; r++) {
        const float *row = x + r * width;
        floats squares = {0};
        for (long i = 0; i < width; i += LANES) squares += load(row + i) * load(row + i);
        const float factor = 1.0f / __builtin_sqrtf(sum(squares) / width + eps);
        for (long i = 0; i < width; i += LANES) store(y + r * width + i, load(row + i) * factor * load(weight + i));
    }
}

/* y (rows, width) = silu(gate) * up, of rows (gate, up); width is a multiple of 16. */
void gate(const float *x, float *y, long rows, long width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > FEW)
    for (long r = 0; r < rows; r++) {
        const float *row = x + 2 * r * width;
        for (long i = 0; i < width; i += LANES) {
            const floats g = load(row + i), e = exponential((floats)((ints)g | INT32_MIN)); /* e^-|g| */
            const ints below = g < 0.0f;
            const floats over = (floats)(((ints)e & below) | ((int32_t)0x3f800000 & ~below)); /* e or 1 */
            store(y + r * width + i, g * over / (1.0f + e) * load(row + width + i));
        }
    }
}

/* Turn a head by its position: halves (a, b) become (a cos - b sin, b cos + a sin). */
INLINE void turn(const float *from, const float *cosine, const float *sine, float *to, long size) {
    const long half_size = size / 2;
    for (long i = 0; i < half_size; i++) {
        const float a = from[i], b = from[i + half_size];
        to[i] = a * cosine[i] - b * sine[i];
        to[i + half_size] = b * cosine[i + half_size] + a * sine[i + half_size];
    }
}

/* Where a query stands that has looked at some chunks: the running softmax. */
typedef struct {
    const float *query;
    float *seen; /* sum of the values so far, each by its weight */
    long length; /* keys it sees */
    float most;  /* largest score so far */
    floats whole;
} Look;

/* The sums of 16 vectors, side by side. */
INLINE floats sums(const floats *of) {
    floats result;
#ifdef __AVX512F__ /* pairs at a time: a third of the instructions of one sum after the other */
    __m512 v[LANES];
    for (int k = 0; k < LANES; k++) v[k] = (__m512)of[k];
    UNROLL for (int k = 0; k < 8; k++)
        v[k] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * k], v[2 * k + 1]), _mm512_unpackhi_ps(v[2 * k], v[2 * k + 1]));
    UNROLL for (int k = 0; k < 4; k++) {
        const __m512d a = (__m512d)v[2 * k], b = (__m512d)v[2 * k + 1];
        v[k] = _mm512_add_ps((__m512)_mm512_unpacklo_pd(a, b), (__m512)_mm512_unpackhi_pd(a, b));
    }
    UNROLL for (int n = 2; n; n /= 2) /* quarters of a vector, of four vectors and then of two */
        UNROLL for (int k = 0; k < n; k++)
            v[k] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * k], v[2 * k + 1], 0x88),
                                 _mm512_shuffle_f32x4(v[2 * k], v[2 * k + 1], 0xdd));
    result = (floats)v[0];
#else
    for (int k = 0; k < LANES; k++) result[k] = sum(of[k]);
#endif
    return result;
}

/* One query at `count` keys and values, at most CHUNK; size is a multiple of 16. */
INLINE void look(Look *at, const float *keys, const float *values, long count, const long size, float scale) {
    floats scores[CHUNK / LANES], tops = (floats){0} + at->most;
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const floats nothing = (floats){0} - __builtin_inff();
    floats query[LARGEST_HEAD / LANES];
    UNROLL for (long i = 0; i < size / LANES; i++) query[i] = load(at->query + i * LANES);
    for (long j = 0; j < CHUNK; j += LANES) {
        floats dots[LANES];
        UNROLL for (int k = 0; k < LANES; k++) {
            dots[k] = (floats){0};
            if (j + k < count)
                UNROLL for (long i = 0; i < size / LANES; i++)
                    dots[k] += query[i] * load(keys + (j + k) * size + i * LANES);
        }
        const ints there = lane < (int32_t)(count - j);
        const floats score = (floats)(((ints)(sums(dots) * scale) & there) | ((ints)nothing & ~there));
        const ints more = score > tops;
        tops = (floats)(((ints)score & more) | ((ints)tops & ~more));
        scores[j / LANES] = score;
    }
    float best = at->most;
    for (int l = 0; l < LANES; l++) best = tops[l] > best ? tops[l] : best;
    const float shrink = exponential((floats){0} + (at->most - best))[0];
    at->most = best;
    at->whole *= shrink;
    float weights[CHUNK];
    for (long j = 0; j < CHUNK; j += LANES) {
        const floats weight = exponential(scores[j / LANES] - best);
        store(weights + j, weight);
        at->whole += weight;
    }
    for (long i = 0; i < size; i += 4 * LANES) { /* eight sums at once: one would wait for itself */
        floats even[4] = {{0}}, odd[4] = {{0}};
        const long lanes = size - i < 4 * LANES ? (size - i) / LANES : 4;
        const float *value = values + i;
        for (long j = 0; j + 1 < count; j += 2, value += 2 * size)
            for (long l = 0; l < lanes; l++) {
                even[l] += weights[j] * load(value + l * LANES);
                odd[l] += weights[j + 1] * load(value + size + l * LANES);
            }
        if (count % 2)
            for (long l = 0; l < lanes; l++) even[l] += weights[count - 1] * load(value + l * LANES);
        for (long l = 0; l < lanes; l++) {
            float *seen = at->seen + i + l * LANES;
            store(seen, load(seen) * shrink + (even[l] + odd[l]));
        }
    }
}

/* Some queries at all keys that they see, chunk by chunk: a chunk stays in the nearest cache for all of them. */
INLINE void look_all(Look *looks, long queries, const float *keys, const float *values, const long size, float scale) {
    long longest = 0;
    for (long q = 0; q < queries; q++) {
        longest = looks[q].length > longest ? looks[q].length : longest;
        looks[q].most = -1e30f;
        looks[q].whole = (floats){0};
        for (long i = 0; i < size; i += LANES) store(looks[q].seen + i, (floats){0});
    }
    for (long from = 0; from < longest; from += CHUNK)
        for (long q = 0; q < queries; q++) {
            const long left = looks[q].length - from;
            const long count = left < CHUNK ? left : CHUNK;
            if (left > 0) look(&looks[q], keys + from * size, values + from * size, count, size, scale);
        }
    for (long q = 0; q < queries; q++) {
        const float share = 1.0f / sum(looks[q].whole);
        for (long i = 0; i < size; i += LANES) store(looks[q].seen + i, load(looks[q].seen + i) * share);
    }
}

/* With the size as a constant, for the usual ones. */
static void look_sized(Look *looks, long queries, const float *keys, const float *values, long size, float scale) {
    if (size == 64)
        look_all(looks, queries, keys, values, 64, scale);
    else if (size == 128)
        look_all(looks, queries, keys, values, 128, scale);
    else
        look_all(looks, queries, keys, values, size, scale);
}

/* Causal attention of `rows` new tokens behind `length` cached ones.
 *
 *   qkv      (rows, (heads + 2 groups) size): queries, keys, values of each token
 *   cosine   (rows, size), and sine
 *   keys     (groups, capacity, size): those of the new tokens are written behind the others; and values
 *   seen     (rows, heads size)
 */
void attend(const float *qkv, const float *cosine, const float *sine, float *keys, float *values, float *seen, long rows,
            long length, long capacity, long heads, long groups, long size, float scale, int threads) {
    const long stride = (heads + 2 * groups) * size, each = heads / groups;
    for (long r = 0; r < rows; r++) {
        const float *own = qkv + r * stride;
        const float *c = cosine + r * size, *s = sine + r * size;
        for (long g = 0; g < groups; g++) {
            const long at = (g * capacity + length + r) * size;
            turn(own + (heads + g) * size, c, s, keys + at, size);
            memcpy(values + at, own + (heads + groups + g) * size, size * sizeof(float));
        }
    }
    const long all = groups * rows * each; /* queries of a group are neighbours: they see the same keys */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long part = 0; part < threads; part++) {
        float queries[QUERIES * LARGEST_HEAD];
        Look looks[QUERIES];
        const long end = (part + 1) * all / threads;
        long count = 0;
        for (long p = part * all / threads; p < end; p += count) {
            const long g = p / (rows * each), last = (g + 1) * rows * each < end ? (g + 1) * rows * each : end;
            count = last - p < QUERIES ? last - p : QUERIES;
            for (long q = 0; q < count; q++) {
                const long r = (p + q) / each % rows, h = g * each + (p + q) % each;
                turn(qkv + r * stride + h * size, cosine + r * size, sine + r * size, queries + q * size, size);
                looks[q].query = queries + q * size;
                looks[q].seen = seen + (r * heads + h) * size;
                looks[q].length = length + r + 1;
            }
            look_sized(looks, count, keys + g * capacity * size, values + g * capacity * size, size, scale);
        }
    }
}

/* -- behind the last product -------------------------------------------------------------------------------------- */

/* The place of the largest number of each row (the first of equals), and how far it is ahead of the next; not a number
 * if the row holds one that is not. */
void lead(const float *x, long rows, long count, int64_t *best, float *ahead) {
    for (long r = 0; r < rows; r++, x += count) {
        floats first = (floats){0} - __builtin_inff(), second = first;
        ints place = {0}, strange = {0};
        const long whole = count / LANES * LANES;
        for (long i = 0; i < whole; i += LANES) {
            const floats value = load(x + i);
            const ints more = value > first;
            strange |= value != value;
            const floats less = (floats)(((ints)first & more) | ((ints)value & ~more));
            const ints higher = less > second;
            second = (floats)(((ints)less & higher) | ((ints)second & ~higher));
            first = (floats)(((ints)value & more) | ((ints)first & ~more));
            place = ((int32_t)i & more) | (place & ~more);
        }
        float top = -__builtin_inff(), next = top;
        int64_t at = 0;
        int odd = 0;
        for (int l = 0; l < LANES; l++) {
            const int64_t here = place[l] + l;
            odd |= strange[l];
            if (first[l] > top || (first[l] == top && here < at)) {
                next = top > next ? top : next;
                top = first[l];
                at = here;
            } else {
                next = first[l] > next ? first[l] : next;
            }
            next = second[l] > next ? second[l] : next;
        }
        for (long i = whole; i < count; i++) {
            odd |= x[i] != x[i];
            if (x[i] > top) {
                next = top;
                top = x[i];
                at = i;
            } else {
                next = x[i] > next ? x[i] : next;
            }
        }
        best[r] = at;
        ahead[r] = odd ? __builtin_nanf("") : top - next;
    }
}

/* The softmax's share of each row's number at `best`: 1 / sum(e^(x - x[best])). */
void share(const float *x, long rows, long count, const int64_t *best, float *shares) {
    for (long r = 0; r < rows; r++, x += count) {
        const float top = x[best[r]];
        const long whole = count / LANES * LANES;
        floats total = {0};
        for (long i = 0; i < whole; i += LANES) total += exponential(load(x + i) - top);
        float rest[LANES];
        for (long l = 0; l < LANES; l++) rest[l] = whole + l < count ? x[whole + l] : -__builtin_inff();
        total += exponential(load(rest) - top);
        shares[r] = 1.0f / sum(total);
    }
}
