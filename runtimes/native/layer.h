/* What the layer's driver (layer.c) and the instruction sets (tasks.h) share: shapes, memory, and the table of a set. */
#ifndef EDGE_LAYER_H
#define EDGE_LAYER_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu.h"

#define TILE 1024 /* bytes of 16 columns of weights for 64 inputs */
#define PANEL 32  /* columns that are multiplied together */
#define ROWS 32   /* tokens of a block are a multiple of it, but for the last block: they fill two tiles */
#define QUERIES 16 /* rows of scores that a head computes together */

/* Values of the order in which AVX2 multiplies `rows` inputs by a panel (see avx2.c). */
#define ORDER(rows) (up_to(rows, 64) / 4 + 2)

static inline long up_to(long n, long step) { return (n + step - 1) / step * step; }

enum { QKV, OUT, UP, DOWN, MATRICES };

/* The number of the interface between this code and library.py: of its functions, their arguments and structs. */
#define INTERFACE 1

struct shape {
    int64_t hidden, heads, size, inner, half;
    double eps;
};

struct weights { /* the names of the packed layer's tensors */
    const int8_t *weight[MATRICES];
    const float *scale[MATRICES], *bias[MATRICES], *norm_weight[2], *norm_bias[2];
};

struct matrix {
    const int8_t *weight; /* [rows, columns] */
    const float *scale, *bias; /* [columns] */
    long rows, columns;
    int8_t *packed;
    union { /* beside the weights */
        int32_t *offset; /* [columns, padded]: what the products are too large by, where activations are stored unsigned */
        uint16_t *order; /* of AVX2's products: ORDER(rows) for each panel */
    };
};

/* Bytes of a matrix beside its packed weights. */
static inline size_t beside_bytes(const struct matrix *m) {
    size_t offsets = up_to(m->columns, 64) * 4, orders = up_to(m->columns, PANEL) / PANEL * ORDER(m->rows) * 2;
    return up_to(offsets > orders ? offsets : orders, 64);
}

struct embedding { /* the tensors that are added to a token's row, all fp32 */
    int64_t hidden, half;
    double eps;
    const float *scales;               /* of the table's rows, by token */
    const float *positions, *types;    /* [longest, hidden], [kinds, hidden] */
    const float *norm_weight, *norm_bias; /* [hidden] */
};

struct blocks { /* of a group's tokens */
    long number, pairs, larger; /* the first `larger` blocks have one pair of tiles more than `pairs` */
};

typedef void (*task_function)(void *context, long task, int thread);

struct instructions { /* what one set computes */
    int activation_bytes, head_bytes; /* of a quantized activation, and before the first one of a row */
    void (*begin)(int level), (*end)(int level); /* before and after a thread's tasks; NULL: nothing to do */
    task_function pack, project, attend, finish; /* their context is a layer */
    /* The mean of each sequence's rows: means [sequences, hidden]. */
    void (*means)(const void *states, int half, const int32_t *lengths, long sequences, long hidden, float *means);
    /* Layer 0's input of packed sequences: [tokens, hidden], fp16 or fp32.
       rows: [tokens, hidden] int8, the table's rows of the tokens; ids, types: [tokens]. */
    void (*embed)(const struct embedding *e, const int8_t *rows, const int32_t *ids, const int32_t *lengths,
                  const uint8_t *types, long sequences, void *states);
};

#ifdef EDGE_X86
extern const struct instructions edge_avx512, edge_avx_vnni_set, edge_avx2;
extern int edge_avx_vnni; /* whether the processor has AVX-VNNI's instruction; otherwise that set uses a model of it */
#else
extern const struct instructions edge_neon;
#endif

struct layer {
    struct shape shape;
    struct matrix matrix[MATRICES];
    const struct weights *weights;
    const struct instructions *set;
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

/* The tokens of a block; returns the first one. */
static inline long block_at(const struct blocks *blocks, long tokens, long task, long *count) {
    long first = (task * blocks->pairs + (task < blocks->larger ? task : blocks->larger)) * ROWS;
    *count = (blocks->pairs + (task < blocks->larger)) * ROWS;
    if (first + *count > tokens) *count = tokens - first;
    return first;
}

/* Tokens of the largest block. */
static inline long block_rows(const struct blocks *blocks) { return (blocks->pairs + (blocks->larger > 0)) * ROWS; }

/* A thread's memory for a block of tokens. */
struct block {
    void *packed;
    float *scales, *narrow, *normed, *wide;
};

static inline size_t block_bytes(const struct shape *s, const struct instructions *set, long rows, struct block *block,
                                 char *at) {
    long inner = up_to(s->inner, PANEL), width = up_to(s->hidden, PANEL);
    long deepest = up_to(s->inner > s->hidden ? s->inner : s->hidden, 64);
    if (up_to(s->heads * s->size, 64) > deepest) deepest = up_to(s->heads * s->size, 64);
    size_t parts[] = {rows * (deepest * set->activation_bytes + set->head_bytes), rows * 4, rows * width * 4, rows * width * 4, rows * inner * 4};
    size_t end[6] = {0};
    for (int i = 0; i < 5; i++) end[i + 1] = end[i] + parts[i];
    if (at) {
        block->packed = at;
        block->scales = (float *)(at + end[1]), block->narrow = (float *)(at + end[2]);
        block->normed = (float *)(at + end[3]), block->wide = (float *)(at + end[4]);
    }
    return end[5];
}

/* Where a thread keeps what it needs for a head: keys and values as right factors, rows of scores and of weights. */
struct head_memory {
    float *keys, *values, *queries, *scores, *weights, *context;
};

/* A right factor of fp32 products, in panels of 32 columns [rows, 32]; of split products in pairs of tiles. Both take
   four bytes a value. */
static inline size_t head_floats(long tokens, long size, struct head_memory *memory, float *at) {
    long keys = up_to(tokens, 32), width = up_to(size, 32);
    long parts[] = {keys * width, keys * width, QUERIES * width, QUERIES * (keys + 16), QUERIES * keys, QUERIES * 32};
    float **names[] = {&memory->keys, &memory->values, &memory->queries, &memory->scores, &memory->weights,
                       &memory->context};
    size_t total = 0;
    for (int i = 0; i < 6; i++) {
        if (at) *names[i] = at + total;
        total += parts[i];
    }
    return total;
}

#endif
