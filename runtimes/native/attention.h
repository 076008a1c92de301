/* Attention of one head within one sequence, 16 queries at a time, in fp32.

   Where the processor has AMX, every fp32 factor is split into two bf16 values, x = high + low to 17 bits, and a product
   is three products of tiles: high high + high low + low high. What is left out is below 2^-17 of it. Elsewhere the
   products are fp32 multiply-adds. Keys are padded to a multiple of 32 with zeros; the softmax gives those no weight. */
#ifndef EDGE_ATTENTION_H
#define EDGE_ATTENTION_H

#define QUERIES 16

struct head {
    float *q, *k, *v; /* [tokens, size], rows `stride` apart; q's rows are replaced by the result */
    long tokens, size, stride;
};

/* Where a thread keeps what it needs for a head: keys and values as right factors, rows of scores and of weights. */
struct head_memory {
    float *keys, *values, *queries, *scores, *weights, *context;
};

/* A right factor of fp32 products, in panels of 32 columns [rows, 32]; of split products in pairs of tiles. Both take
   four bytes a value. */
static size_t head_floats(long tokens, long size, struct head_memory *memory, float *at) {
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

static inline __m512i rounded(__m512 x) { /* to bf16, in the upper half of each value */
    return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)),
                            _mm512_set1_epi32((int)0xffff0000));
}

static inline void split(__m512 x, __m512i *high, __m512i *low) {
    *high = rounded(x);
    *low = rounded(_mm512_sub_ps(x, _mm512_castsi512_ps(*high)));
}

/* The upper halves of 32 values, in order. */
static inline __m512i upper_halves(__m512i first, __m512i second) {
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(first, odd, second);
}

/* Puts 32 values into row `row` of a pair of tiles of a left factor. */
static inline void put_left(float *pair, long row, __m512 x, __m512 y) {
    __m512i xh, xl, yh, yl;
    split(x, &xh, &xl), split(y, &yh, &yl);
    _mm512_store_si512((char *)pair + row * 64, upper_halves(xh, yh));
    _mm512_store_si512((char *)pair + TILE + row * 64, upper_halves(xl, yl));
}

static void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            r[4 * i + 2 * j] = _mm512_unpacklo_epi64(t[4 * i + j], t[4 * i + 2 + j]);
            r[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(t[4 * i + j], t[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) { /* lane l of r[4 g + i] holds column 4 l + i of the rows 4 g ... */
        __m512i a = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88), b = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        __m512i c = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd), d = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
        t[i] = _mm512_shuffle_i32x4(a, b, 0x88), t[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88), t[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    memcpy(r, t, sizeof t);
}

static inline __m512 head_values(const float *rows, const struct head *h, long token, long at) {
    if (token >= h->tokens || at >= h->size) return _mm512_setzero_ps();
    return _mm512_maskz_loadu_ps(mask_of(h->size - at), rows + token * h->stride + at);
}

/* 16 rows of sums [rows, 32] at c: a (steps pairs of tiles) times b and b2 (as many each). */
static void multiply_split(const float *a, const float *b, const float *b2, long steps, float *c, long stride) {
    settled();
    _tile_zero(0);
    _tile_zero(1);
    for (long k = 0; k < steps; k++, a += 2 * TILE / 4, b += 2 * TILE / 4, b2 += 2 * TILE / 4) {
        _tile_loadd(2, a, 64);
        _tile_loadd(4, b, 64);
        _tile_loadd(6, b2, 64);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 2, 6);
        _tile_loadd(5, b + TILE / 4, 64);
        _tile_loadd(7, b2 + TILE / 4, 64);
        _tile_dpbf16ps(0, 2, 5);
        _tile_dpbf16ps(1, 2, 7);
        _tile_loadd(3, a + TILE / 4, 64);
        _tile_dpbf16ps(0, 3, 4);
        _tile_dpbf16ps(1, 3, 6);
    }
    _tile_stored(0, c, stride * 4);
    _tile_stored(1, c + 16, stride * 4);
}

/* The same in fp32: a [16, steps], rows `left` apart, times a panel b [steps, 32]. */
static void multiply_fp32(const float *a, long left, const float *b, long steps, float *c, long stride) {
    for (int row = 0; row < QUERIES; row += 8) {
        __m512 s[8][2];
        for (int i = 0; i < 8; i++) s[i][0] = s[i][1] = _mm512_setzero_ps();
        for (long k = 0; k < steps; k++) {
            __m512 b0 = _mm512_load_ps(b + k * 32), b1 = _mm512_load_ps(b + k * 32 + 16);
            for (int i = 0; i < 8; i++) {
                __m512 x = _mm512_set1_ps(a[(row + i) * left + k]);
                s[i][0] = _mm512_fmadd_ps(x, b0, s[i][0]), s[i][1] = _mm512_fmadd_ps(x, b1, s[i][1]);
            }
        }
        for (int i = 0; i < 8; i++) {
            _mm512_store_ps(c + (row + i) * stride, s[i][0]);
            _mm512_store_ps(c + (row + i) * stride + 16, s[i][1]);
        }
    }
}

/* Keys as a right factor: inputs are the values of a head, columns the tokens. */
static void pack_keys(const struct head *h, int level, float *packed) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32);
    __m512i high[16], low[16], xh, xl, yh, yl;
    for (long token = 0; token < keys; token += 16)
        for (long at = 0; at < width; at += level == AMX ? 32 : 16) {
            for (int i = 0; i < 16; i++) {
                __m512 x = head_values(h->k, h, token + i, at);
                if (level == AMX) {
                    split(x, &xh, &xl), split(head_values(h->k, h, token + i, at + 16), &yh, &yl);
                    high[i] = upper_halves(xh, yh), low[i] = upper_halves(xl, yl);
                } else
                    high[i] = _mm512_castps_si512(x);
            }
            transpose(high);
            if (level == AMX) {
                float *pair = packed + (token / 16 * (width / 32) + at / 32) * 2 * TILE / 4;
                transpose(low);
                for (int i = 0; i < 16; i++) {
                    _mm512_store_si512((char *)pair + i * 64, high[i]);
                    _mm512_store_si512((char *)pair + TILE + i * 64, low[i]);
                }
            } else
                for (int i = 0; i < 16; i++)
                    _mm512_store_si512(packed + token / 32 * 32 * width + (at + i) * 32 + token % 32, high[i]);
        }
}

/* Values as a right factor: inputs are the tokens, columns the values of a head. */
static void pack_values(const struct head *h, int level, float *packed) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32);
    __m512i xh, xl, yh, yl;
    for (long at = 0; at < width; at += 16)
        for (long token = 0; token < keys; token += 2) {
            __m512 x = head_values(h->v, h, token, at), y = head_values(h->v, h, token + 1, at);
            if (level == AMX) {
                char *pair = (char *)packed + (at / 16 * (keys / 32) + token / 32) * 2 * TILE + token % 32 / 2 * 64;
                split(x, &xh, &xl), split(y, &yh, &yl);
                _mm512_store_si512(pair, _mm512_or_si512(_mm512_srli_epi32(xh, 16), yh));
                _mm512_store_si512(pair + TILE, _mm512_or_si512(_mm512_srli_epi32(xl, 16), yl));
            } else {
                float *panel = packed + at / 32 * 32 * keys + token * 32 + at % 32;
                _mm512_store_ps(panel, x), _mm512_store_ps(panel + 32, y);
            }
        }
}

/* Weights of the keys before division by their sum, which is returned. */
static float soften(const float *scores, long tokens, long keys, float factor, int level, float *weights, long row) {
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps(), both[2];
    for (long i = 0; i < tokens; i += 16) {
        __mmask16 mask = mask_of(tokens - i);
        most = _mm512_mask_max_ps(most, mask, most, _mm512_load_ps(scores + i));
    }
    /* 2^(factor * (score - highest)), factor being log2(e) / sqrt(size) */
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long i = 0; i < keys; i += 32) {
        for (int half = 0; half < 2; half++) {
            long at = i + 16 * half;
            __mmask16 mask = tokens > at ? mask_of(tokens - at) : 0;
            __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(scores + at), most), _mm512_set1_ps(factor));
            both[half] = _mm512_maskz_mov_ps(mask, power_of_two(x));
            sum = _mm512_add_ps(sum, both[half]);
        }
        if (level == AMX)
            put_left(weights + i / 32 * 2 * TILE / 4, row, both[0], both[1]);
        else {
            _mm512_store_ps(weights + row * keys + i, both[0]);
            _mm512_store_ps(weights + row * keys + i + 16, both[1]);
        }
    }
    return _mm512_reduce_add_ps(sum);
}

static void attend(const struct head *h, int level, const struct head_memory *m) {
    long keys = up_to(h->tokens, 32), width = up_to(h->size, 32), stride = keys + 16;
    float factor = 1.44269504f / sqrtf((float)h->size), sums[QUERIES];
    pack_keys(h, level, m->keys);
    pack_values(h, level, m->values);
    for (long first = 0; first < h->tokens; first += QUERIES) {
        long count = h->tokens - first < QUERIES ? h->tokens - first : QUERIES;
        for (long row = 0; row < QUERIES; row++)
            for (long at = 0; at < width; at += 32) {
                __m512 x = head_values(h->q, h, first + row, at), y = head_values(h->q, h, first + row, at + 16);
                if (level == AMX)
                    put_left(m->queries + at / 32 * 2 * TILE / 4, row, x, y);
                else
                    _mm512_store_ps(m->queries + row * width + at, x), _mm512_store_ps(m->queries + row * width + at + 16, y);
            }
        for (long key = 0; key < keys; key += 32) {
            const float *b = m->keys + key * width;
            if (level == AMX)
                multiply_split(m->queries, b, b + 16 * width, width / 32, m->scores + key, stride);
            else
                multiply_fp32(m->queries, width, b, width, m->scores + key, stride);
        }
        for (long row = 0; row < QUERIES; row++) /* rows without a query are zeros, and harmless */
            sums[row] = soften(m->scores + row * stride, h->tokens, keys, factor, level, m->weights, row);
        for (long at = 0; at < width; at += 32) {
            const float *b = m->values + at * keys;
            if (level == AMX)
                multiply_split(m->weights, b, b + 16 * keys, keys / 32, m->context, 32);
            else
                multiply_fp32(m->weights, keys, b, keys, m->context, 32);
            for (long row = 0; row < count; row++) {
                __m512 share = _mm512_set1_ps(1 / sums[row]);
                for (long i = at; i < at + 32 && i < h->size; i += 16)
                    _mm512_mask_storeu_ps(h->q + (first + row) * h->stride + i, mask_of(h->size - i),
                                          _mm512_mul_ps(_mm512_load_ps(m->context + row * 32 + i - at), share));
            }
        }
    }
}

#endif
