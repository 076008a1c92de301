/* One layer of an int8 encoder of the BERT family, on processors with AVX2, VNNI, AMX or NEON.

   The weights are packed once. A run goes through groups of whole sequences: queries, keys and values of blocks of
   tokens; attention, a head of a sequence at a time; the rest of the layer for blocks of tokens, whose intermediates are
   a thread's own and stay in its cache. Blocks, heads and groups never meet in a sum, so a token's result depends on
   nothing but its sequence, to the last bit. */
#include "cpu.h"

#ifdef EDGE_COMPILED

#include "layer.h"
#include "processor.h"
#include "threads.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_ROWS 128 /* tokens of a block, at most */

/* The blocks of a group. Their number is a multiple of the threads and their sizes differ by ROWS at most, so that no
   thread waits long for another: blocks of one size would leave up to half of a small group to one thread. */
static struct blocks cut_blocks(long tokens, int threads) {
    long pairs = up_to(tokens, ROWS) / ROWS, most = MOST_ROWS / ROWS;
    long each = (pairs + most * threads - 1) / (most * threads); /* blocks of a thread */
    long number = (each < 2 ? 2 : each) * threads;
    if (number > pairs) number = pairs;
    return (struct blocks){number, pairs / number, pairs % number};
}

/* Upper bound on the tokens of a block in groups of at most `tokens` tokens. */
static long most_rows(long tokens, int threads) {
    long rows = up_to((tokens + 2 * threads - 1) / (2 * threads), ROWS);
    return rows > MOST_ROWS ? MOST_ROWS : rows;
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
        at += up_to(m->rows, 64) * up_to(m->columns, PANEL);
        m->offset = (int32_t *)at;
        at += beside_bytes(m);
    }
    return at - packed + 64;
}

/* Bytes of a layer's packed weights, on every level. */
EXPORT size_t edge_layer_packed(const struct shape *s) {
    struct matrix unused[MATRICES];
    return find_matrices(s, NULL, NULL, unused);
}

/* Bytes that a run needs for groups of at most `tokens` tokens, of sequences of at most `longest`. */
EXPORT size_t edge_layer_memory(const struct pool *pool, const struct shape *s, long tokens, long longest) {
    long shapes[MATRICES][2];
    struct head_memory memory;
    size_t own = block_bytes(s, pool->set, most_rows(tokens, pool->threads), NULL, NULL);
    size_t head = head_floats(longest, s->size, &memory, NULL) * 4;
    matrix_shapes(s, shapes);
    return 64 + (size_t)tokens * up_to(shapes[QKV][1], PANEL) * 4 + pool->threads * up_to(own > head ? own : head, 64);
}

EXPORT int edge_interface(void) { return INTERFACE; }

EXPORT int edge_level(void) { return processor_level(); }

EXPORT const char *edge_level_name(int level) { return level_name(level); }

EXPORT void edge_mean_rows(int level, const void *states, int half, const int32_t *lengths, long sequences, long hidden,
                           float *means) {
    instructions_of(level)->means(states, half, lengths, sequences, hidden, means);
}

EXPORT void edge_embed_rows(int level, const struct embedding *embedding, const int8_t *rows, const int32_t *ids,
                            const int32_t *lengths, const uint8_t *types, long sequences, void *states) {
    instructions_of(level)->embed(embedding, rows, ids, lengths, types, sequences, states);
}

EXPORT struct pool *edge_pool_open(int threads, int level) { return pool_open(threads, level, instructions_of(level)); }

EXPORT void edge_pool_close(struct pool *pool) { pool_close(pool); }

/* Packs a layer's weights for the processor's matrix instructions. packed: edge_layer_packed bytes. */
EXPORT void edge_layer_pack(struct pool *pool, const struct shape *shape, const struct weights *weights, char *packed) {
    struct layer l = {.shape = *shape, .weights = weights, .set = pool->set, .level = pool->level};
    long parts = 0;
    find_matrices(shape, weights, packed, l.matrix);
    for (int i = 0; i < MATRICES; i++) parts += up_to(l.matrix[i].columns, 64) / 64;
    spread(pool, pool->set->pack, &l, parts);
}

/* Advances `sequences` packed sequences.

   packed: what edge_layer_pack wrote for these weights.
   states, result: [sum of lengths, hidden], fp16 or fp32; they may be the same.
   group: tokens of a group, at most, but for a longer sequence; starts: room for `sequences` values.
   memory: what edge_layer_memory asks for. */
EXPORT void edge_layer_run(struct pool *pool, const struct shape *shape, const struct weights *weights, char *packed,
                           const void *states, void *result, const int32_t *lengths, long sequences, long group,
                           int64_t *starts, char *memory) {
    struct layer l = {.shape = *shape, .weights = weights, .set = pool->set, .level = pool->level};
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
        size_t own = block_bytes(shape, pool->set, block_rows(&l.blocks), NULL, NULL);
        size_t head = head_floats(longest, shape->size, &unused, NULL) * 4;
        l.own_bytes = up_to(own > head ? own : head, 64);
        l.qkv = (float *)memory, l.own = memory + l.tokens * l.stride * 4;
        l.states = states, l.result = result, l.lengths = lengths + first, l.starts = starts;
        l.sequences = last - first;
        spread(pool, pool->set->project, &l, l.blocks.number);
        spread(pool, pool->set->attend, &l, l.sequences * shape->heads);
        spread(pool, pool->set->finish, &l, l.blocks.number);
        states = (const char *)states + l.tokens * row, result = (char *)result + l.tokens * row;
    }
}

#else

int edge_level(void) { return 0; }

#endif
