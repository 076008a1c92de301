/* The layer for AVX-VNNI, as most laptops since 2022 have it: vectors of AVX2, and products of bytes, which want unsigned
   activations. A processor with AVX2 alone runs a model of the instruction, so that this file is tested everywhere. */
#include "cpu.h"

#ifdef EDGE_X86

#include <immintrin.h>

#include "layer.h"

int edge_avx_vnni;

BEGIN_TARGET("avx2,fma,f16c")

#define EDGE_SET_AVX2
#include "vector.h"

#include "columns.h"

#define FMA_ROWS 4
#define FMA_PARTS 2
#define ZERO 128 /* what an activation of zero is stored as */

typedef uint8_t activation; /* 1 ... 255 */

/* Where row `row` of packed activations with `inputs` inputs begins. */
static inline activation *packed_row(void *packed, long row, long inputs) {
    return (activation *)packed + row / 16 * (up_to(inputs, 64) / 64) * TILE + row % 16 * 64;
}

/* Sixteen quotients become inputs `at` ... of a row. */
static inline void store_activations(activation *row, long at, vec v) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));
    words = _mm256_add_epi16(_mm256_permute4x64_epi64(words, 0xd8), _mm256_set1_epi16(ZERO));
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(row + at / 64 * TILE + at % 64), bytes);
}

/* What _mm256_dpbusd_avx_epi32 computes: to each sum, four unsigned bytes of x times four signed bytes of w are added. */
static inline __m256i dot_model(__m256i sums, __m256i x, __m256i w) {
    __m256i low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)),
                                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)));
    __m256i high = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1)),
                                     _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1)));
    return _mm256_add_epi32(sums, _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8));
}

/* Packs columns, and what their products are too large by. */
static void pack_columns(const struct matrix *m, long part) {
    long depth = up_to(m->rows, 64) / 64, end = up_to(m->columns, PANEL);
    pack_bytes(m, part);
    for (long first = part * 64; first < end && first < part * 64 + 64; first += 8) {
        const int8_t *weights = m->packed + first / 16 * depth * TILE + first % 16 * 4;
        __m256i sums = _mm256_setzero_si256();
        for (long row = 0; row < depth * 16; row++)
            sums = dot_model(sums, _mm256_set1_epi8((char)ZERO), _mm256_loadu_si256((const __m256i *)(weights + row * 64)));
        _mm256_storeu_si256((__m256i *)(m->offset + first), sums);
    }
}

/* 32 rows times 32 columns: sums[32][32]. Four rows and sixteen columns at a time. */
#define MULTIPLY(name, dot)                                                                                        \
    static void name(const activation *a, const int8_t *b, long depth, int32_t *sums) {                            \
        for (int column = 0; column < PANEL; column += 16)                                                         \
            for (int row = 0; row < ROWS; row += 4) {                                                              \
                const activation *rows = a + row / 16 * depth * TILE + row % 16 * 64;                              \
                const int8_t *weights = b + column / 16 * depth * TILE;                                            \
                __m256i s[4][2];                                                                                   \
                for (int i = 0; i < 4; i++) s[i][0] = s[i][1] = _mm256_setzero_si256();                            \
                for (long k = 0; k < depth; k++, rows += TILE, weights += TILE)                                    \
                    for (int r = 0; r < 16; r++) {                                                                 \
                        const __m256i *bytes = (const __m256i *)(weights + r * 64);                                \
                        __m256i w0 = _mm256_loadu_si256(bytes), w1 = _mm256_loadu_si256(bytes + 1);                \
                        for (int i = 0; i < 4; i++) {                                                              \
                            int32_t four;                                                                          \
                            memcpy(&four, rows + i * 64 + r * 4, 4);                                               \
                            __m256i x = _mm256_set1_epi32(four);                                                   \
                            s[i][0] = dot(s[i][0], x, w0);                                                         \
                            s[i][1] = dot(s[i][1], x, w1);                                                         \
                        }                                                                                          \
                    }                                                                                              \
                for (int i = 0; i < 4; i++) {                                                                      \
                    __m256i *to = (__m256i *)(sums + (row + i) * PANEL + column);                                  \
                    _mm256_storeu_si256(to, s[i][0]), _mm256_storeu_si256(to + 1, s[i][1]);                        \
                }                                                                                                  \
            }                                                                                                      \
    }

MULTIPLY(multiply_by_model, dot_model)

END_TARGET
BEGIN_TARGET("avx2,fma,f16c,avxvnni")

MULTIPLY(multiply_by_instruction, _mm256_dpbusd_avx_epi32)

END_TARGET
BEGIN_TARGET("avx2,fma,f16c")

static inline void multiply(const struct matrix *m, int level, const activation *a, long column, int32_t *sums) {
    long depth = up_to(m->rows, 64) / 64;
    const int8_t *b = m->packed + column / 16 * depth * TILE;
    (void)level;
    if (edge_avx_vnni)
        multiply_by_instruction(a, b, depth, sums);
    else
        multiply_by_model(a, b, depth, sums);
}

static inline vec sums_at(const int32_t *sums, const int32_t *offset) {
    const __m256i *at = (const __m256i *)sums, *of = (const __m256i *)offset;
    return (vec){_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(at), _mm256_loadu_si256(of))),
                 _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(at + 1), _mm256_loadu_si256(of + 1)))};
}

#include "tasks.h"

const struct instructions edge_avx_vnni_set = {
    sizeof(activation), 0, NULL, NULL, pack_task, project_task, attend_task, finish_task, mean_rows, embed_rows,
};

END_TARGET

#endif
