/* The two ends of a pass over packed sequences: layer 0's input, and the mean over each sequence's tokens.

   Sums have the order of numpy's, and products and sums are never fused, so that the results are numpy's to the last
   bit (numpy sums the means of a single column in another order). */
#ifndef EDGE_SEQUENCES_H
#define EDGE_SEQUENCES_H

#include <math.h>
#include <stddef.h>

#define WIDEST 4096 /* values of a row, at most */

struct embedding { /* the tensors that are added to a token's row, all fp32 */
    int64_t hidden, half;
    double eps;
    const float *scales;               /* of the table's rows, by token */
    const float *positions, *types;    /* [longest, hidden], [kinds, hidden] */
    const float *norm_weight, *norm_bias; /* [hidden] */
};

/* A product that the compiler does not fuse with a sum. */
static inline __m512 product(__m512 a, __m512 b) {
    return _mm512_mul_round_ps(a, b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* The sum of up to 128 values, in numpy's order: eight sums, added in pairs. */
static float block_sum(const float *x, long n) {
    if (n < 8) {
        float sum = -0.0f;
        for (long i = 0; i < n; i++) sum += x[i];
        return sum;
    }
    __m256 eight = _mm256_loadu_ps(x);
    long i = 8;
    for (; i + 8 <= n; i += 8) eight = _mm256_add_ps(eight, _mm256_loadu_ps(x + i));
    float r[8];
    _mm256_storeu_ps(r, eight);
    float sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) sum += x[i];
    return sum;
}

/* numpy's pairwise sum. */
static float pairwise_sum(const float *x, long n) {
    if (n <= 128) return block_sum(x, n);
    long half = n / 2;
    half -= half % 8;
    return pairwise_sum(x, half) + pairwise_sum(x + half, n - half);
}

/* x [n] becomes its layer norm. squares: room for n values. */
static void norm_row(float *x, float *squares, long n, const struct embedding *e) {
    __m512 mean = _mm512_set1_ps(pairwise_sum(x, n) / n);
    for (long i = 0; i < n; i += 16) {
        __mmask16 mask = mask_of(n - i);
        __m512 apart = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean);
        _mm512_mask_storeu_ps(x + i, mask, apart);
        _mm512_mask_storeu_ps(squares + i, mask, product(apart, apart));
    }
    __m512 factor = _mm512_set1_ps(1 / sqrtf(pairwise_sum(squares, n) / n + (float)e->eps));
    for (long i = 0; i < n; i += 16) {
        __mmask16 mask = mask_of(n - i);
        __m512 scaled = product(product(_mm512_maskz_loadu_ps(mask, x + i), factor),
                                _mm512_maskz_loadu_ps(mask, e->norm_weight + i));
        _mm512_mask_storeu_ps(x + i, mask, _mm512_add_ps(scaled, _mm512_maskz_loadu_ps(mask, e->norm_bias + i)));
    }
}

/* Layer 0's input of packed sequences: [tokens, hidden], fp16 or fp32.

   rows: [tokens, hidden] int8, the table's rows of the tokens; ids, types: [tokens]. */
static void embed_rows(const struct embedding *e, const int8_t *rows, const int32_t *ids, const int32_t *lengths,
                       const uint8_t *types, long sequences, void *states) {
    long n = e->hidden, token = 0, width = n * (e->half ? 2 : 4);
    float x[WIDEST] __attribute__((aligned(64))), squares[WIDEST] __attribute__((aligned(64)));
    for (long sequence = 0; sequence < sequences; sequence++)
        for (long place = 0; place < lengths[sequence]; place++, token++) {
            const float *position = e->positions + place * n, *type = e->types + types[token] * n;
            __m512 scale = _mm512_set1_ps(e->scales[ids[token]]);
            for (long i = 0; i < n; i += 16) {
                __mmask16 mask = mask_of(n - i);
                __m512i whole = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, rows + token * n + i));
                __m512 value = product(_mm512_cvtepi32_ps(whole), scale);
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, position + i));
                _mm512_store_ps(x + i, _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, type + i)));
            }
            norm_row(x, squares, n, e);
            store_states((char *)states + token * width, e->half, x, n);
        }
}

/* The mean of each sequence's rows: means [sequences, hidden]. */
static void mean_rows(const void *states, int half, const int32_t *lengths, long sequences, long hidden, float *means) {
    const char *row = states;
    for (long sequence = 0; sequence < sequences; sequence++, means += hidden) {
        memset(means, 0, hidden * 4);
        for (long place = 0; place < lengths[sequence]; place++, row += hidden * (half ? 2 : 4))
            for (long i = 0; i < hidden; i += 16) {
                __mmask16 mask = mask_of(hidden - i);
                __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, means + i), state_at(row, half, i, mask));
                _mm512_mask_storeu_ps(means + i, mask, sum);
            }
        __m512 count = _mm512_set1_ps((float)lengths[sequence]);
        for (long i = 0; i < hidden; i += 16) {
            __mmask16 mask = mask_of(hidden - i);
            _mm512_mask_storeu_ps(means + i, mask, _mm512_div_ps(_mm512_maskz_loadu_ps(mask, means + i), count));
        }
    }
}

#endif
