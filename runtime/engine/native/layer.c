/* A whole layer of a decoder in one call: norm, attention, norm, gated MLP, each added to the states. */
#include "kernels.h"

#include <stdlib.h>

typedef struct {
    const uint8_t *codes;
    const void *scales;
    const float *bias; /* NULL = none */
    long width, outputs;
    int kind, integers;
} Linear;

typedef struct {
    Linear qkv, out, gate_up, down;
    const float *first_norm, *second_norm;
    float first_eps, second_eps;
    long heads, groups, size;
    float scale;
} Layer;

static int apply(const Linear *linear, const float *x, float *y, long rows, int threads) {
    int (*const product)(int, const float *, long, long, const uint8_t *, const void *, float *, long, int) =
        linear->integers ? multiply_integers : multiply;
    if (product(linear->kind, x, rows, linear->width, linear->codes, linear->scales, y, linear->outputs, threads)) return 1;
    if (linear->bias)
        for (long r = 0; r < rows; r++)
            for (long o = 0; o < linear->outputs; o++) y[r * linear->outputs + o] += linear->bias[o];
    return 0;
}

/* New states (rows, width) of `rows` tokens behind `length` cached ones; cosine to capacity as in `attend`. Returns 0, or 1
 * where there is no memory.
 */
int decode_layer(const Layer *layer, const float *states, float *result, const float *cosine, const float *sine,
                 float *keys, float *values, long rows, long length, long capacity, int threads) {
    const long width = layer->qkv.width, seen = layer->heads * layer->size, inner = layer->down.width;
    const long most = layer->qkv.outputs > 2 * inner ? layer->qkv.outputs : 2 * inner;
    const long next = seen > inner ? seen : inner;
    float *normed = malloc(rows * (2 * width + most + next) * sizeof(float));
    if (!normed) return 1;
    float *added = normed + rows * width, *wide = added + rows * width, *narrow = wide + rows * most;
    int failed = 0;
    normalise(states, layer->first_norm, normed, rows, width, layer->first_eps, threads);
    failed |= apply(&layer->qkv, normed, wide, rows, threads);
    attend(wide, cosine, sine, keys, values, narrow, rows, length, capacity, layer->heads, layer->groups, layer->size,
           layer->scale, threads);
    failed |= apply(&layer->out, narrow, added, rows, threads);
    for (long i = 0; i < rows * width; i++) added[i] += states[i];
    normalise(added, layer->second_norm, normed, rows, width, layer->second_eps, threads);
    failed |= apply(&layer->gate_up, normed, wide, rows, threads);
    gate(wide, narrow, rows, inner, threads);
    failed |= apply(&layer->down, narrow, result, rows, threads);
    for (long i = 0; i < rows * width; i++) result[i] += added[i];
    free(normed);
    return failed;
}

/* The same for `count` layers one behind the other, each with keys, values and capacity of its own. */
int decode_layers(const Layer *const *layers, long count, const float *states, float *result, const float *cosine,
                  const float *sine, float *const *keys, float *const *values, long rows, long length,
                  const long *capacities, int threads) {
    for (long i = 0; i < count; i++) /* a layer has read its states when it writes its result */
        if (decode_layer(layers[i], i ? result : states, result, cosine, sine, keys[i], values[i], rows, length,
                         capacities[i], threads))
            return 1;
    return 0;
}
