/* What decisions take: a small network, and means of rows. The models' forwards have just taken the caches, so what counts
 * is to touch little code and little memory.
 *
 * A tape is a network as operations on one block of memory, one after another (see runtime/control/tape).
 * Every step is one record. All tensors are floats in the block, seen through up to four dimensions; offsets and strides
 * count floats. What a step writes is contiguous. Truth is 1 and 0, whole numbers are floats too. Tables of places are
 * 32-bit integers in the same block.
 */
#include <math.h>
#include <stdint.h>

enum { DIMENSIONS = 4 };

typedef struct {
    int32_t at, strides[DIMENSIONS];
} tensor;

typedef struct {
    int32_t kind, shape[DIMENSIONS], to;
    tensor a, b, c;
} step;

/* As in runtime/control/tape/block.py. */
enum {
    COPY, EXP, LOG, SIGMOID, TANH, RELU, ADD, SUB, MUL, DIV, GREATER, CLIP, WHERE, /* element by element */
    TRUTHS, TAKE, PICK, LARGEST, LARGEST_AT, MEAN, PRODUCT, SPARSE, WHOLE
};

/* The rational approximation that Eigen and onnxruntime use; unlike the C library's it works on many numbers at once. */
static inline float tangent(float x) {
    x = x < -7.90531110763549805f ? -7.90531110763549805f : x > 7.90531110763549805f ? 7.90531110763549805f : x;
    const float q = x * x;
    const float p = x * (4.89352455891786e-03f + q * (6.37261928875436e-04f + q * (1.48572235717979e-05f
                    + q * (5.12229709037114e-08f + q * (-8.60467152213735e-11f + q * (2.00018790482477e-13f
                    + q * -2.76076847742355e-16f))))));
    return p / (4.89352518554385e-03f + q * (2.26843463243900e-03f + q * (1.18534705686654e-04f
                    + q * 1.19825839466702e-06f)));
}

#define EACH(value) \
    for (int32_t i = 0; i < s->shape[0]; i++) \
        for (int32_t j = 0; j < s->shape[1]; j++) \
            for (int32_t k = 0; k < s->shape[2]; k++) \
                for (int32_t l = 0; l < s->shape[3]; l++) { \
                    const float x = a[AT(s->a)], y = b[AT(s->b)], z = c[AT(s->c)]; \
                    (void)y, (void)z; \
                    *out++ = (value); \
                } \
    break
#define AT(of) (i * (of).strides[0] + j * (of).strides[1] + k * (of).strides[2] + l * (of).strides[3])

/* Largest value over the last two dimensions, or (first of the best) where it is. */
static void largest(const step *s, const float *a, float *out, int where) {
    for (int32_t i = 0; i < s->shape[0]; i++)
        for (int32_t j = 0; j < s->shape[1]; j++) {
            float best = a[i * s->a.strides[0] + j * s->a.strides[1]];
            int32_t place = 0;
            for (int32_t k = 0; k < s->shape[2]; k++)
                for (int32_t l = 0; l < s->shape[3]; l++)
                    if (a[AT(s->a)] > best) best = a[AT(s->a)], place = k * s->shape[3] + l;
            *out++ = where ? (float)place : best;
        }
}

/* Mean over the last two dimensions. */
static void mean(const step *s, const float *a, float *out) {
    for (int32_t i = 0; i < s->shape[0]; i++)
        for (int32_t j = 0; j < s->shape[1]; j++) {
            float sum = 0.0f;
            for (int32_t k = 0; k < s->shape[2]; k++)
                for (int32_t l = 0; l < s->shape[3]; l++) sum += a[AT(s->a)];
            *out++ = sum / (float)(s->shape[2] * s->shape[3]);
        }
}

/* Rows times matrices: two dimensions of rows, then terms, then columns, which lie side by side in b and c. A term that
 * is 0 costs nothing, and its row of the matrix is not read. */
static void product(const step *s, const float *a, const float *b, const float *c, float *restrict out) {
    const int32_t terms = s->shape[2], columns = s->shape[3];
    for (int32_t i = 0; i < s->shape[0]; i++)
        for (int32_t j = 0; j < s->shape[1]; j++, out += columns) {
            const float *row = a + i * s->a.strides[0] + j * s->a.strides[1];
            const float *matrix = b + i * s->b.strides[0] + j * s->b.strides[1];
            for (int32_t l = 0; l < columns; l++) out[l] = 0.0f;
            for (int32_t k = 0; k < terms; k++) {
                const float x = row[k * s->a.strides[2]], *restrict weights = matrix + k * s->b.strides[2];
                if (x != 0.0f)
                    for (int32_t l = 0; l < columns; l++) out[l] += x * weights[l];
            }
            for (int32_t l = 0; l < columns; l++) out[l] += c[l * s->c.strides[3]];
        }
}

/* A row times a matrix of few weights: for every column where its weights begin in b, then their terms, then they. */
static void sparse(const step *s, const float *a, const float *b, const float *c, float *out) {
    const int32_t columns = s->shape[3], *begins = (const int32_t *)b, *terms = begins + columns + 1;
    const float *weights = (const float *)(terms + begins[columns]);
    for (int32_t l = 0; l < columns; l++) {
        float sum = 0.0f;
        for (int32_t k = begins[l]; k < begins[l + 1]; k++) sum += a[terms[k] * s->a.strides[2]] * weights[k];
        out[l] = sum + c[l * s->c.strides[3]];
    }
}

void run_tape(const step *steps, long count, float *block) {
    for (const step *s = steps; s < steps + count; s++) {
        const float *a = block + s->a.at, *b = block + s->b.at, *c = block + s->c.at;
        float *out = block + s->to;
        switch (s->kind) {
            case COPY: EACH(x);
            case EXP: EACH(expf(x));
            case LOG: EACH(logf(x));
            case SIGMOID: EACH(1.0f / (1.0f + expf(-x)));
            case TANH: EACH(tangent(x));
            case RELU: EACH(x > 0.0f ? x : 0.0f);
            case ADD: EACH(x + y);
            case SUB: EACH(x - y);
            case MUL: EACH(x * y);
            case DIV: EACH(x / y);
            case GREATER: EACH(x > y ? 1.0f : 0.0f);
            case CLIP: EACH(x < y ? y : x > z ? z : x);
            case WHERE: EACH(x != 0.0f ? y : z);
            case TRUTHS: /* bytes to floats */
                for (int32_t l = 0; l < s->shape[3]; l++) out[l] = ((const uint8_t *)a)[l] ? 1.0f : 0.0f;
                break;
            case TAKE: /* elements at the places of table b */
                for (int32_t l = 0; l < s->shape[3]; l++) out[l] = a[((const int32_t *)b)[l]];
                break;
            case PICK: /* the part that number b says, c.strides[0] floats for each */
                a += (int32_t)b[0] * s->c.strides[0];
                EACH(x);
            case LARGEST: largest(s, a, out, 0); break;
            case LARGEST_AT: largest(s, a, out, 1); break;
            case MEAN: mean(s, a, out); break;
            case PRODUCT: product(s, a, b, c, out); break;
            case SPARSE: sparse(s, a, b, c, out); break;
            case WHOLE: /* floats to 64-bit integers */
                for (int32_t l = 0; l < s->shape[3]; l++) ((int64_t *)out)[l] = (int64_t)a[l * s->a.strides[3]];
                break;
        }
    }
}

/* What a window of tokens predicts: bias + mean of the tokens' rows, within 0 and 1. Rows are added up in order, as numpy
 * does. Returns 0, or 1 if there is no such row, and then nothing is written. */
int predict(const float *table, long rows, long columns, const int64_t *tokens, long count, const float *bias,
            float *restrict out) {
    for (long i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= rows) return 1;
    for (long i = 0; i < count; i++) __builtin_prefetch(table + tokens[i] * columns);
    for (long l = 0; l < columns; l++) out[l] = table[tokens[0] * columns + l];
    for (long i = 1; i < count; i++)
        for (long l = 0; l < columns; l++) out[l] += table[tokens[i] * columns + l];
    for (long l = 0; l < columns; l++) {
        const float mean = bias[l] + out[l] / (float)count;
        out[l] = mean < 0.0f ? 0.0f : mean > 1.0f ? 1.0f : mean;
    }
    return 0;
}
