/* Attention of one head within one sequence, 16 queries at a time, in fp32.

   Where the processor has AMX, products are those of split.h; elsewhere they are fp32 multiply-adds. Keys are padded to
   a multiple of 32 with zeros; the softmax gives those no weight. */
#ifndef EDGE_ATTENTION_H
#define EDGE_ATTENTION_H

struct head {
    float *q, *k, *v; /* [tokens, size], rows `stride` apart; q's rows are replaced by the result */
    long tokens, size, stride;
};

static inline vec head_values(const float *rows, const struct head *h, long token, long at) {
    if (token >= h->tokens || at >= h->size) return vset(0);
    return vload_part(rows + token * h->stride + at, h->size - at);
}

/* 16 rows of sums at c: a [16, steps], rows `left` apart, times a panel b [steps, 32]. Sums are registers, not vectors of
   several: gcc 12 keeps an array of those in memory. Within `attend` too few registers would be left for addresses. */
static __attribute__((noinline)) void multiply_fp32(const float *a, long left, const float *b, long steps, float *c, long stride) {
    for (int row = 0; row < QUERIES; row += FMA_ROWS)
        for (int at = 0; at < 32; at += PART * FMA_PARTS) {
            part s[FMA_ROWS][FMA_PARTS];
            for (int i = 0; i < FMA_ROWS; i++)
                for (int j = 0; j < FMA_PARTS; j++) s[i][j] = part_set(0);
            for (long k = 0; k < steps; k++) {
                part right[FMA_PARTS];
                for (int j = 0; j < FMA_PARTS; j++) right[j] = part_load(b + k * 32 + at + PART * j);
                for (int i = 0; i < FMA_ROWS; i++) {
                    part x = part_set(a[(row + i) * left + k]);
                    for (int j = 0; j < FMA_PARTS; j++) s[i][j] = part_fma(x, right[j], s[i][j]);
                }
            }
            for (int i = 0; i < FMA_ROWS; i++)
                for (int j = 0; j < FMA_PARTS; j++) part_store(c + (row + i) * stride + at + PART * j, s[i][j]);
        }
}

/* Keys as a right factor: inputs are the values of a head, columns the tokens. */
static void pack_keys(const struct head *h, int level, float *packed) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32);
    for (long token = 0; token < keys; token += 16)
        for (long at = 0; at < width; at += 32) {
            vec x[16], y[16];
            for (int i = 0; i < 16; i++) {
                x[i] = head_values(h->k, h, token + i, at);
                y[i] = head_values(h->k, h, token + i, at + 16);
            }
#ifdef EDGE_SPLIT_H
            if (level == AMX) {
                put_keys(packed + (token / 16 * (width / 32) + at / 32) * 2 * TILE / 4, x, y);
                continue;
            }
#endif
            float *panel = packed + token / 32 * 32 * width + at * 32 + token % 32;
            put_transposed(panel, x), put_transposed(panel + 16 * 32, y);
        }
}

/* Values as a right factor: inputs are the tokens, columns the values of a head. */
static void pack_values(const struct head *h, int level, float *packed) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32);
    for (long at = 0; at < width; at += 16)
        for (long token = 0; token < keys; token += 2) {
            vec x = head_values(h->v, h, token, at), y = head_values(h->v, h, token + 1, at);
#ifdef EDGE_SPLIT_H
            if (level == AMX) {
                put_values(packed + (at / 16 * (keys / 32) + token / 32) * 2 * TILE / 4, token % 32 / 2, x, y);
                continue;
            }
#endif
            float *panel = packed + at / 32 * 32 * keys + token * 32 + at % 32;
            vstore(panel, x), vstore(panel + 32, y);
        }
}

/* Values `at` ... at + 31 of row `row` of a left factor with `steps` values a row. */
static inline void put_row(float *left, int level, long row, long steps, long at, vec x, vec y) {
#ifdef EDGE_SPLIT_H
    if (level == AMX) {
        put_left(left + at / 32 * 2 * TILE / 4, row, x, y);
        return;
    }
#endif
    vstore(left + row * steps + at, x), vstore(left + row * steps + at + 16, y);
}

/* The columns 32 * panel ... of a left factor [16, steps] times a right factor, at c. */
static void multiply_panel(const float *left, int level, const float *right, long panel, long steps, float *c,
                           long stride) {
    const float *b = right + panel * 32 * steps;
#ifdef EDGE_SPLIT_H
    if (level == AMX) {
        multiply_split(left, b, b + 16 * steps, steps / 32, c, stride);
        return;
    }
#endif
    multiply_fp32(left, steps, b, steps, c, stride);
}

/* Weights of the keys before division by their sum, which is returned. */
static float soften(const float *scores, long tokens, long keys, float factor, int level, float *weights, long row) {
    vec most = vset(-INFINITY), sum = vset(0), both[2];
    for (long i = 0; i < tokens; i += 16) most = vmax_part(most, tokens - i, vload(scores + i));
    /* 2^(factor * (score - highest)), factor being log2(e) / sqrt(size) */
    most = vset(vmost(most));
    for (long i = 0; i < keys; i += 32) {
        for (int half = 0; half < 2; half++) {
            long at = i + 16 * half;
            vec x = vmul(vsub(vload(scores + at), most), vset(factor));
            both[half] = vkeep(tokens - at, power_of_two(x));
            sum = vadd(sum, both[half]);
        }
        put_row(weights, level, row, keys, i, both[0], both[1]);
    }
    return vsum(sum);
}

static void attend(const struct head *h, int level, const struct head_memory *m) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32), stride = keys + 16;
    float factor = 1.44269504f / sqrtf((float)h->size), sums[QUERIES];
    pack_keys(h, level, m->keys);
    pack_values(h, level, m->values);
    for (long first = 0; first < h->tokens; first += QUERIES) {
        long count = h->tokens - first < QUERIES ? h->tokens - first : QUERIES;
        for (long row = 0; row < QUERIES; row++)
            for (long at = 0; at < width; at += 32)
                put_row(m->queries, level, row, width, at, head_values(h->q, h, first + row, at),
                        head_values(h->q, h, first + row, at + 16));
        for (long key = 0; key < keys; key += 32)
            multiply_panel(m->queries, level, m->keys, key / 32, width, m->scores + key, stride);
        for (long row = 0; row < QUERIES; row++) /* rows without a query are zeros, and harmless */
            sums[row] = soften(m->scores + row * stride, h->tokens, keys, factor, level, m->weights, row);
        for (long at = 0; at < width; at += 32) {
            multiply_panel(m->weights, level, m->values, at / 32, keys, m->context, 32);
            for (long row = 0; row < count; row++) {
                vec share = vset(1 / sums[row]);
                for (long i = at; i < at + 32 && i < h->size; i += 16)
                    vstore_part(h->q + (first + row) * h->stride + i, h->size - i,
                                vmul(vload(m->context + row * 32 + i - at), share));
            }
        }
    }
}

#endif
