/* The compiled layer as a program, so that any compiler and any processor can be tested without its Python.

   It reads cases from its input and writes their results, as bytes of this processor; test_processors.py sends them. */
#include <stdio.h>
#include <stdlib.h>

#include "layer.c"

#ifdef EDGE_ARM
#include "neon.c"
#define BEGIN_SET
#define END_SET
#else /* two sets have the same names: this one is tested from inside, and the other is compiled on its own */
#include "avx2.c"
#define BEGIN_SET BEGIN_TARGET("avx2,fma,f16c")
#define END_SET END_TARGET
#endif

static int64_t header[10];

/* The next bytes of the input, aligned. */
static void *take(size_t bytes) {
    void *at = aligned_alloc(64, up_to(bytes + 64, 64));
    if (!at || fread(at, 1, bytes, stdin) != bytes) exit(1);
    return at;
}

static void give(const void *from, size_t bytes) {
    if (fwrite(from, 1, bytes, stdout) != bytes) exit(1);
}

BEGIN_SET

/* Rows of whole numbers, the largest of which is 127, times a matrix: the sums as fp32. */
static void product_case(int level, long count, long inputs, long columns) {
    long width = up_to(columns, PANEL), depth = up_to(inputs, 64);
    struct matrix m = {.rows = inputs, .columns = columns};
    m.weight = take(inputs * columns), m.scale = take(columns * 4), m.bias = take(columns * 4);
    const struct instructions *set = instructions_of(level);
    size_t bytes = up_to(count, ROWS) * (depth * set->activation_bytes + set->head_bytes);
    float *x = take(count * inputs * 4), *y = calloc(up_to(count, ROWS) * width, 4), *scales = calloc(count, 4);
    void *packed = memset(aligned_alloc(64, bytes), 1, bytes); /* rows that are not there change nothing */
    m.packed = aligned_alloc(64, depth * width), m.offset = aligned_alloc(64, beside_bytes(&m));
    for (long part = 0; part < up_to(columns, 64) / 64; part++) pack_columns(&m, part);
    for (long row = 0; row < count; row++)
        scales[row] = quantize(x + row * inputs, inputs, packed_row(packed, row, inputs));
    linear(&m, level, packed, scales, count, y, width, NULL);
    for (long row = 0; row < count; row++) give(y + row * width, columns * 4);
}

END_SET

static void layer_case(int level, int threads, const struct shape *s, long sequences, long group) {
    long shapes[MATRICES][2], tokens = 0, longest = 0;
    struct weights w;
    int32_t *lengths = take(sequences * 4);
    int64_t *starts = calloc(sequences, 8);
    struct pool *pool = edge_pool_open(threads, level);
    for (long i = 0; i < sequences; i++) {
        tokens += lengths[i];
        if (lengths[i] > longest) longest = lengths[i];
    }
    matrix_shapes(s, shapes);
    for (int i = 0; i < MATRICES; i++) {
        w.weight[i] = take(shapes[i][0] * shapes[i][1]);
        w.scale[i] = take(shapes[i][1] * 4), w.bias[i] = take(shapes[i][1] * 4);
    }
    for (int i = 0; i < 2; i++) w.norm_weight[i] = take(s->hidden * 4), w.norm_bias[i] = take(s->hidden * 4);
    size_t bytes = tokens * s->hidden * (s->half ? 2 : 4);
    void *states = take(bytes);
    char *packed = malloc(edge_layer_packed(s));
    char *memory = malloc(edge_layer_memory(pool, s, group > longest ? group : longest, longest));
    edge_layer_pack(pool, s, &w, packed);
    edge_layer_run(pool, s, &w, packed, states, states, lengths, sequences, group, starts, memory);
    edge_pool_close(pool);
    give(states, bytes);
}

/* Layer 0's input, and then the means of its rows. */
static void ends_case(int level, const struct embedding *shape, long sequences, long longest, long vocabulary) {
    struct embedding e = *shape;
    long n = e.hidden, tokens = 0;
    int32_t *lengths = take(sequences * 4);
    for (long i = 0; i < sequences; i++) tokens += lengths[i];
    e.scales = take(vocabulary * 4), e.positions = take(longest * n * 4), e.types = take(2 * n * 4);
    e.norm_weight = take(n * 4), e.norm_bias = take(n * 4);
    int8_t *rows = take(tokens * n);
    int32_t *ids = take(tokens * 4);
    uint8_t *types = take(tokens);
    char *states = malloc(tokens * n * 4);
    float *means = malloc(sequences * n * 4);
    edge_embed_rows(level, &e, rows, ids, lengths, types, sequences, states);
    give(states, tokens * n * (e.half ? 2 : 4));
    edge_mean_rows(level, states, e.half, lengths, sequences, n, means);
    give(means, sequences * n * 4);
}

int main(void) {
    while (fread(header, sizeof header, 1, stdin) == 1) {
        double eps;
        if (fread(&eps, sizeof eps, 1, stdin) != 1) return 1;
        int level = (int)header[1], half = (int)header[3];
        struct shape shape = {header[4], header[5], header[6], header[7], half, eps};
        struct embedding embedding = {.hidden = header[4], .half = half, .eps = eps};
        int32_t best = edge_level();
        if (header[0] == 0) give(&best, 4);
        if (header[0] == 1) product_case(level, header[8], header[4], header[7]);
        if (header[0] == 2) layer_case(level, (int)header[2], &shape, header[8], header[9]);
        if (header[0] == 3) ends_case(level, &embedding, header[8], header[9], header[5]);
    }
    return 0;
}
