/* The tasks of a layer, for the instruction set of the file that includes this one: that file has the set's vectors
   (vector.h), its packed weights and activations, and its products. */
#include "rows.h"

#include "attention.h"
#include "matrices.h"
#include "sequences.h"

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
    struct block b = {0};
    long hidden = l->shape.hidden, width = l->shape.half ? 2 : 4, count;
    long first = block_at(&l->blocks, l->tokens, task, &count);
    block_bytes(&l->shape, l->set, block_rows(&l->blocks), &b, l->own + thread * l->own_bytes);
    for (long row = 0; row < count; row++) {
        for (long i = 0; i < hidden; i += 16)
            vstore(b.narrow + i, state_at(l->states + (first + row) * hidden * width, l->shape.half, i, hidden - i));
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
    struct block b = {0};
    long hidden = l->shape.hidden, inside = l->shape.heads * l->shape.size, inner = l->shape.inner;
    long count, first = block_at(&l->blocks, l->tokens, task, &count);
    long narrow = up_to(hidden, PANEL), wide = up_to(inner, PANEL), state = hidden * (l->shape.half ? 2 : 4);
    block_bytes(&l->shape, l->set, block_rows(&l->blocks), &b, l->own + thread * l->own_bytes);
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

