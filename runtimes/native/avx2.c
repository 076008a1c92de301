/* The layer for AVX2, whose byte products take an unsigned and a signed factor, and add pairs of products to 16 bits.

   An activation a is stored as |a| and as a mask m, all ones where a < 0. w ^ m is -w - 1 there, so the sum of
   |a| (w ^ m) is that of a w, less |a| where a < 0, which a row keeps in its head. A pair of products never exceeds 16
   bits. Two pairs do not where their weights are small enough, and are added before they are widened: four inputs of a
   panel (a quad) are coupled with four others for that. */
#include "cpu.h"

#ifdef EDGE_X86

#include <immintrin.h>

#include "layer.h"

BEGIN_TARGET("avx2,fma,f16c")

#define EDGE_SET_AVX2
#include "vector.h"

#include "columns.h"

#define FMA_ROWS 4
#define FMA_PARTS 2
#define HEAD 32  /* bytes of a row's head: two sums of 64 bits, and space to the next vector */
#define TRIES 16 /* quads that are tried as another's partner */

typedef int16_t activation; /* |a| and m; four of the first, then four of the second */

/* Where row `row` of packed activations with `inputs` inputs begins. */
static inline activation *packed_row(void *packed, long row, long inputs) {
    return (activation *)((char *)packed + row * (up_to(inputs, 64) * sizeof(activation) + HEAD));
}

/* Sixteen quotients become inputs `at` ... of a row. */
static inline void store_activations(activation *row, long at, vec v) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    __m128i sizes = _mm_abs_epi8(bytes), masks = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    __m128i *head = (__m128i *)row, *to = (__m128i *)(row + HEAD / sizeof(activation) + at);
    __m128i below = _mm_sad_epu8(_mm_and_si128(sizes, masks), _mm_setzero_si128());
    _mm_storeu_si128(head, at ? _mm_add_epi64(_mm_loadu_si128(head), below) : below);
    _mm_storeu_si128(to, _mm_unpacklo_epi32(sizes, masks));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(sizes, masks));
}

/* Whether two quads of a panel, whose tiles are `apart`, can be added: 127 (|w| + 1), summed over the four inputs of each
   sum of 16 bits, is below 2^15 if the sum of |w| is at most 254. */
static inline int fit(const int8_t *first, const int8_t *second, long apart) {
    const __m256i ones = _mm256_set1_epi8(1), full = _mm256_set1_epi8(-1);
    int over = 0;
    for (long at = 0; at < 2 * apart; at += apart) {
        __m256i pairs[2];
        for (int i = 0; i < 2; i++) {
            const __m256i *w = (const __m256i *)((i ? second : first) + at);
            pairs[i] = _mm256_packus_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w[0]), ones),
                                           _mm256_maddubs_epi16(_mm256_abs_epi8(w[1]), ones));
        }
        over |= _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_adds_epu8(pairs[0], pairs[1]), full));
    }
    return !over;
}

/* The order of a panel's quads: how many are coupled; these, two by two; those that found no partner. */
static void couple(const int8_t *weights, long quads, long apart, uint16_t *order) {
    uint16_t *list = order + 1;
    long at = 0, end = quads; /* list[at] ... list[end - 1] are still to be coupled */
    for (long i = 0; i < quads; i++) list[i] = (uint16_t)i;
    while (at + 1 < end) {
        long other = at + 1, last = end < at + TRIES ? end : at + TRIES;
        while (other < last && !fit(weights + list[at] * 64L, weights + list[other] * 64L, apart)) other++;
        int found = other < last;
        uint16_t *from = list + at + found, *to = list + (found ? other : end - 1), value = *from;
        *from = *to, *to = value;
        at += 2 * found, end -= !found;
    }
    order[0] = (uint16_t)at;
}

static void pack_columns(const struct matrix *m, long part) {
    long apart = up_to(m->rows, 64) / 64 * TILE, columns = up_to(m->columns, PANEL);
    pack_bytes(m, part);
    for (long column = part * 64; column < columns && column < part * 64 + 64; column += PANEL)
        couple(m->packed + column / 16 * apart, up_to(m->rows, 16) / 4, apart, m->order + column / PANEL * ORDER(m->rows));
}

/* Weights are read again after it. Otherwise the compiler would keep them, and the sums in memory. */
static inline void settled(void) { __asm__ volatile("" : : : "memory"); }

static inline __m256i four_bytes(const char *bytes) {
    int32_t four;
    memcpy(&four, bytes, 4);
    return _mm256_set1_epi32(four);
}

/* Products of four activations and a register of weights, two and two added. */
#define PRODUCTS(sizes, masks, w) _mm256_maddubs_epi16(sizes, _mm256_xor_si256(masks, w))

/* 32 rows times 32 columns: sums[32][32]. Two rows at a time. */
static void multiply(const struct matrix *m, int level, const activation *a, long column, int32_t *sums) {
    long apart = up_to(m->rows, 64) / 64 * TILE, quads = up_to(m->rows, 16) / 4;
    const int8_t *weights = m->packed + column / 16 * apart;
    const uint16_t *order = m->order + column / PANEL * ORDER(m->rows), coupled = *order++;
    const __m256i ones = _mm256_set1_epi16(1);
    (void)level;
    for (int row = 0; row < ROWS; row += 2, sums += 2 * PANEL) {
        const char *rows[2];
        __m256i s[2][4];
        for (int i = 0; i < 2; i++) {
            const activation *head = packed_row((void *)a, row + i, m->rows);
            int32_t below[4];
            memcpy(below, head, sizeof below);
            rows[i] = (const char *)head + HEAD;
            for (int j = 0; j < 4; j++) s[i][j] = _mm256_set1_epi32(below[0] + below[2]);
        }
        for (long at = 0; at < coupled; at += 2) {
            const __m256i *w = (const __m256i *)(weights + order[at] * 64L);
            const __m256i *v = (const __m256i *)(weights + order[at + 1] * 64L);
            for (int i = 0; i < 2; i++) {
                const char *first = rows[i] + order[at] * 8L, *second = rows[i] + order[at + 1] * 8L;
                __m256i x = four_bytes(first), n = four_bytes(first + 4);
                __m256i y = four_bytes(second), o = four_bytes(second + 4);
                for (int j = 0; j < 4; j++) {
                    long of = j / 2 * apart / 32 + j % 2;
                    __m256i words = _mm256_add_epi16(PRODUCTS(x, n, w[of]), PRODUCTS(y, o, v[of]));
                    s[i][j] = _mm256_add_epi32(s[i][j], _mm256_madd_epi16(words, ones));
                }
                settled();
            }
        }
        for (long at = coupled; at < quads; at++) {
            const __m256i *w = (const __m256i *)(weights + order[at] * 64L);
            for (int i = 0; i < 2; i++) {
                const char *bytes = rows[i] + order[at] * 8L;
                __m256i x = four_bytes(bytes), n = four_bytes(bytes + 4);
                for (int j = 0; j < 4; j++) {
                    __m256i words = PRODUCTS(x, n, w[j / 2 * apart / 32 + j % 2]);
                    s[i][j] = _mm256_add_epi32(s[i][j], _mm256_madd_epi16(words, ones));
                }
            }
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) _mm256_storeu_si256((__m256i *)(sums + i * PANEL) + j, s[i][j]);
    }
}

static inline vec sums_at(const int32_t *sums, const int32_t *offset) {
    (void)offset; /* activations are signed */
    const __m256i *at = (const __m256i *)sums;
    return (vec){_mm256_cvtepi32_ps(_mm256_loadu_si256(at)), _mm256_cvtepi32_ps(_mm256_loadu_si256(at + 1))};
}

#include "tasks.h"

const struct instructions edge_avx2 = {
    sizeof(activation), HEAD, NULL, NULL, pack_task, project_task, attend_task, finish_task, mean_rows, embed_rows,
};

END_TARGET

#endif
