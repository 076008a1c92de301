/* One layer of an int8 encoder of the BERT family, on processors with AVX-512 VNNI or AMX.

   The weights are packed once. A run goes through groups of whole sequences: queries, keys and values of blocks of
   tokens; attention, a head of a sequence at a time; the rest of the layer for blocks of tokens, whose intermediates are
   a thread's own and stay in its cache. Blocks, heads and groups never meet in a sum, so a token's result depends on
   nothing but its sequence, to the last bit. */
#if defined(__x86_64__) && defined(__linux__)

#include <math.h>
#include <stddef.h>

#include "cpu.h"
#include "threads.h"

#include "matrices.h"
#include "rows.h"

#include "attention.h"
#include "sequences.h"

#define EXPORT __attribute__((visibility("default")))
#define ROWS 32 /* tokens of a block are a multiple of it, but for the last block: they fill two tiles */
#define MOST_ROWS 128 /* tokens of a block, at most */

enum { QKV, OUT, UP, DOWN, MATRICES };

struct shape {
    int64_t hidden, heads, size, inner, half;
    double eps;
};

struct weights { /* the names of the packed layer's tensors */
    const int8_t *weight[MATRICES];
    const float *scale[MATRICES], *bias[MATRICES], *norm_weight[2], *norm_bias[2];
};

struct blocks { /* of a group's tokens */
    long number, pairs, larger; /* the first `larger` blocks have one pair of tiles more than `pairs` */
};

struct layer {
    struct shape shape;
    struct matrix matrix[MATRICES];
    const struct weights *weights;
    int level;
    struct blocks blocks;
    float *qkv;           /* [tokens of a group, stride] */
    long stride;          /* of a row of it */
    char *own;            /* of the threads, `own_bytes` each */
    size_t own_bytes;
    const char *states;   /* of the group */
    char *result;
    const int32_t *lengths;
    const int64_t *starts; /* of the sequences, in tokens of the group */
    long sequences, tokens;
};

/* The blocks of a group. Their number is a multiple of the threads and their sizes differ by ROWS at most, so that no
   thread waits long for another: blocks of one size would leave up to half of a small group to one thread. */
static struct blocks cut_blocks(long tokens, int threads) {
    long pairs = up_to(tokens, ROWS) / ROWS, most = MOST_ROWS / ROWS;
    long each = (pairs + most * threads - 1) / (most * threads); /* blocks of a thread */
    long number = (each < 2 ? 2 : each) * threads;
    if (number > pairs) number = pairs;
    return (struct blocks){number, pairs / number, pairs % number};
}

/* The tokens of a block; returns the first one. */
static long block_at(const struct blocks *blocks, long tokens, long task, long *count) {
    long first = (task * blocks->pairs + (task < blocks->larger ? task : blocks->larger)) * ROWS;
    *count = (blocks->pairs + (task < blocks->larger)) * ROWS;
    if (first + *count > tokens) *count = tokens - first;
    return first;
}

/* Tokens of the largest block. */
static long block_rows(const struct blocks *blocks) { return (blocks->pairs + (blocks->larger > 0)) * ROWS; }

/* Upper bound on the tokens of a block in groups of at most `tokens` tokens. */
static long most_rows(long tokens, int threads) {
    long rows = up_to((tokens + 2 * threads - 1) / (2 * threads), ROWS);
    return rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* A thread's memory for a block of tokens. */
struct block {
    uint8_t *packed;
    float *scales, *narrow, *normed, *wide;
};

static size_t block_bytes(const struct shape *s, long rows, struct block *block, char *at) {
    long inner = up_to(s->inner, PANEL), width = up_to(s->hidden, PANEL);
    long deepest = up_to(s->inner > s->hidden ? s->inner : s->hidden, 64);
    if (up_to(s->heads * s->size, 64) > deepest) deepest = up_to(s->heads * s->size, 64);
    size_t parts[] = {rows * deepest, rows * 4, rows * width * 4, rows * width * 4, rows * inner * 4}, end[6] = {0};
    for (int i = 0; i < 5; i++) end[i + 1] = end[i] + parts[i];
    if (at) {
        block->packed = (uint8_t *)at;
        block->scales = (float *)(at + end[1]), block->narrow = (float *)(at + end[2]);
        block->normed = (float *)(at + end[3]), block->wide = (float *)(at + end[4]);
    }
    return end[5];
}

static void matrix_shapes(const struct shape *s, long shapes[MATRICES][2]) {
    long inside = s->heads * s->size;
    long all[MATRICES][2] = {{s->hidden, 3 * inside}, {inside, s->hidden}, {s->hidden, s->inner}, {s->inner, s->hidden}};
    memcpy(shapes, all, sizeof all);
}

/* Finds the layer's matrices in the packed weights at `packed`. Returns the bytes of packed weights. */
static size_t find_matrices(const struct shape *s, const struct weights *weights, char *packed,
                            struct matrix matrix[MATRICES]) {
    long shapes[MATRICES][2];
    char *at = (char *)up_to((long)packed, 64);
    matrix_shapes(s, shapes);
    for (int i = 0; i < MATRICES; i++) {
        struct matrix *m = &matrix[i];
        if (weights) m->weight = weights->weight[i], m->scale = weights->scale[i], m->bias = weights->bias[i];
        m->rows = shapes[i][0], m->columns = shapes[i][1];
        m->packed = (int8_t *)at;
        at += packed_bytes(m->rows, m->columns);
        m->offset = (int32_t *)at;
        at += up_to(m->columns, 64) * 4;
    }
    return at - packed + 64;
}

/* Bytes of a layer's packed weights. */
EXPORT size_t edge_layer_packed(const struct shape *s) {
    struct matrix unused[MATRICES];
    return find_matrices(s, NULL, NULL, unused);
}

/* Bytes that a run needs for groups of at most `tokens` tokens, of sequences of at most `longest`. */
EXPORT size_t edge_layer_memory(const struct shape *s, int threads, long tokens, long longest) {
    long shapes[MATRICES][2];
    struct head_memory memory;
    size_t own = block_bytes(s, most_rows(tokens, threads), NULL, NULL), head = head_floats(longest, s->size, &memory, NULL) * 4;
    matrix_shapes(s, shapes);
    return 64 + (size_t)tokens * up_to(shapes[QKV][1], PANEL) * 4 + threads * up_to(own > head ? own : head, 64);
}

static void pack_task(void *context, long task, int thread) {
    struct layer *layer = context;
    (void)thread;
    for (int i = 0; i < MATRICES; i++) {
        long parts = up_to(layer->matrix[i].columns, 64) / 64;
        if (task < parts) {
            pack_columns(&layer->matrix[i], task);
            return;
        }
        task -= parts;
    }
}

static void project_task(void *context, long task, int thread) {
    struct layer *l = context;
    struct block b;
    long hidden = l->shape.hidden, width = l->shape.half ? 2 : 4, count;
    long first = block_at(&l->blocks, l->tokens, task, &count);
    block_bytes(&l->shape, block_rows(&l->blocks), &b, l->own + thread * l->own_bytes);
    for (long row = 0; row < count; row++) {
        for (long i = 0; i < hidden; i += 16)
            _mm512_store_ps(b.narrow + i, state_at(l->states + (first + row) * hidden * width, l->shape.half, i, mask_of(hidden - i)));
        b.scales[row] = quantize(b.narrow, hidden, packed_row(b.packed, row, hidden));
    }
    linear(&l->matrix[QKV], l->level, b.packed, b.scales, count, l->qkv + first * l->stride, l->stride, NULL);
}

static void attend_task(void *context, long task, int thread) {
    struct layer *l = context;
    long sequence = task / l->shape.heads, head = task % l->shape.heads, inside = l->shape.heads * l->shape.size;
    float *rows = l->qkv + l->starts[sequence] * l->stride + head * l->shape.size;
    struct head h = {rows, rows + inside, rows + 2 * inside, l->lengths[sequence], l->shape.size, l->stride};
    struct head_memory memory;
    head_floats(h.tokens, h.size, &memory, (float *)(l->own + thread * l->own_bytes));
    attend(&h, l->level, &memory);
}

static void finish_task(void *context, long task, int thread) {
    struct layer *l = context;
    const struct weights *w = l->weights;
    struct block b;
    long hidden = l->shape.hidden, inside = l->shape.heads * l->shape.size, inner = l->shape.inner;
    long count, first = block_at(&l->blocks, l->tokens, task, &count);
    long narrow = up_to(hidden, PANEL), wide = up_to(inner, PANEL), state = hidden * (l->shape.half ? 2 : 4);
    block_bytes(&l->shape, block_rows(&l->blocks), &b, l->own + thread * l->own_bytes);
    for (long row = 0; row < count; row++)
        b.scales[row] = quantize(l->qkv + (first + row) * l->stride, inside, packed_row(b.packed, row, inside));
    linear(&l->matrix[OUT], l->level, b.packed, b.scales, count, b.normed, narrow, NULL);
    for (long row = 0; row < count; row++) {
        float *x = b.normed + row * narrow;
        norm_of_sum(x, l->states + (first + row) * state, l->shape.half, hidden, w->norm_weight[0], w->norm_bias[0], l->shape.eps);
        b.scales[row] = quantize(x, hidden, packed_row(b.packed, row, hidden));
    }
    linear(&l->matrix[UP], l->level, b.packed, b.scales, count, b.wide, wide, gelu);
    for (long row = 0; row < count; row++)
        b.scales[row] = quantize(b.wide + row * wide, inner, packed_row(b.packed, row, inner));
    linear(&l->matrix[DOWN], l->level, b.packed, b.scales, count, b.narrow, narrow, NULL);
    for (long row = 0; row < count; row++) {
        float *x = b.narrow + row * narrow;
        norm_of_sum(x, b.normed + row * narrow, 0, hidden, w->norm_weight[1], w->norm_bias[1], l->shape.eps);
        store_states(l->result + (first + row) * state, l->shape.half, x, hidden);
    }
}

EXPORT int edge_level(void) { return processor_level(); }

EXPORT void edge_mean_rows(const void *states, int half, const int32_t *lengths, long sequences, long hidden,
                           float *means) {
    mean_rows(states, half, lengths, sequences, hidden, means);
}

EXPORT void edge_embed_rows(const struct embedding *embedding, const int8_t *rows, const int32_t *ids,
                            const int32_t *lengths, const uint8_t *types, long sequences, void *states) {
    embed_rows(embedding, rows, ids, lengths, types, sequences, states);
}

EXPORT struct pool *edge_pool_open(int threads, int level) { return pool_open(threads, level); }

EXPORT void edge_pool_close(struct pool *pool) { pool_close(pool); }

/* Packs a layer's weights for the processor's matrix instructions. packed: edge_layer_packed bytes. */
EXPORT void edge_layer_pack(struct pool *pool, const struct shape *shape, const struct weights *weights, char *packed) {
    struct layer l = {.shape = *shape, .weights = weights, .level = pool->level};
    long parts = 0;
    find_matrices(shape, weights, packed, l.matrix);
    for (int i = 0; i < MATRICES; i++) parts += up_to(l.matrix[i].columns, 64) / 64;
    spread(pool, pack_task, &l, parts);
}

/* Advances `sequences` packed sequences.

   packed: what edge_layer_pack wrote for these weights.
   states, result: [sum of lengths, hidden], fp16 or fp32; they may be the same.
   group: tokens of a group, at most, but for a longer sequence; starts: room for `sequences` values.
   memory: what edge_layer_memory asks for. */
EXPORT void edge_layer_run(struct pool *pool, const struct shape *shape, const struct weights *weights, char *packed,
                           const void *states, void *result, const int32_t *lengths, long sequences, long group,
                           int64_t *starts, char *memory) {
    struct layer l = {.shape = *shape, .weights = weights, .level = pool->level};
    long row = shape->hidden * (shape->half ? 2 : 4);
    struct head_memory unused;
    memory = (char *)up_to((long)memory, 64);
    find_matrices(shape, weights, packed, l.matrix);
    l.stride = up_to(l.matrix[QKV].columns, PANEL);
    for (long first = 0, last; first < sequences; first = last) {
        long longest = 0;
        l.tokens = 0;
        for (last = first; last < sequences && (last == first || l.tokens + lengths[last] <= group); last++) {
            starts[last - first] = l.tokens;
            l.tokens += lengths[last];
            if (lengths[last] > longest) longest = lengths[last];
        }
        l.blocks = cut_blocks(l.tokens, pool->threads);
        size_t own = block_bytes(shape, block_rows(&l.blocks), NULL, NULL);
        size_t head = head_floats(longest, shape->size, &unused, NULL) * 4;
        l.own_bytes = up_to(own > head ? own : head, 64);
        l.qkv = (float *)memory, l.own = memory + l.tokens * l.stride * 4;
        l.states = states, l.result = result, l.lengths = lengths + first, l.starts = starts;
        l.sequences = last - first;
        spread(pool, project_task, &l, l.blocks.number);
        spread(pool, attend_task, &l, l.sequences * shape->heads);
        spread(pool, finish_task, &l, l.blocks.number);
        states = (const char *)states + l.tokens * row, result = (char *)result + l.tokens * row;
    }
}

#else

int edge_level(void) { return 0; }

#endif
