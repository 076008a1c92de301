/* The layer for AVX2. Its byte products saturate, so both factors are widened to 16 bits: activations when they are
   stored, weights when they are read. */
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

typedef int16_t activation;

/* Where row `row` of packed activations with `inputs` inputs begins. */
static inline activation *packed_row(void *packed, long row, long inputs) {
    return (activation *)packed + row / 16 * (up_to(inputs, 64) / 64) * TILE + row % 16 * 64;
}

/* Sixteen quotients become inputs `at` ... of a row. */
static inline void store_activations(activation *row, long at, vec v) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));
    _mm256_storeu_si256((__m256i *)(row + at / 64 * TILE + at % 64), _mm256_permute4x64_epi64(words, 0xd8));
}

static void pack_columns(const struct matrix *m, long part) { pack_bytes(m, part); }

/* 32 rows times 32 columns: sums[32][32]. Four rows and eight columns at a time; a register has two sums of a column. */
static void multiply(int level, const activation *a, const int8_t *b, long depth, int32_t *sums) {
    (void)level;
    for (int column = 0; column < PANEL; column += 8)
        for (int row = 0; row < ROWS; row += 4) {
            const activation *rows = a + row / 16 * depth * TILE + row % 16 * 64;
            const int8_t *weights = b + column / 16 * depth * TILE + column % 16 * 4;
            __m256i s[4][2];
            for (int i = 0; i < 4; i++) s[i][0] = s[i][1] = _mm256_setzero_si256();
            for (long k = 0; k < depth; k++, rows += TILE, weights += TILE)
#pragma GCC unroll 4 /* without it gcc 12 keeps the loop's counter in memory */
                for (int r = 0; r < 16; r++) {
                    const __m128i *bytes = (const __m128i *)(weights + r * 64);
                    __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes));
                    __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1));
                    for (int i = 0; i < 4; i++) {
                        __m256d four = _mm256_broadcast_sd((const double *)(rows + i * 64 + r * 4));
                        __m256i x = _mm256_castpd_si256(four);
                        s[i][0] = _mm256_add_epi32(s[i][0], _mm256_madd_epi16(x, w0));
                        s[i][1] = _mm256_add_epi32(s[i][1], _mm256_madd_epi16(x, w1));
                    }
                }
            for (int i = 0; i < 4; i++) {
                __m256i eight = _mm256_permute4x64_epi64(_mm256_hadd_epi32(s[i][0], s[i][1]), 0xd8);
                _mm256_storeu_si256((__m256i *)(sums + (row + i) * PANEL + column), eight);
            }
        }
}

static inline vec sums_at(const int32_t *sums, const int32_t *offset) {
    (void)offset; /* activations are signed */
    const __m256i *at = (const __m256i *)sums;
    return (vec){_mm256_cvtepi32_ps(_mm256_loadu_si256(at)), _mm256_cvtepi32_ps(_mm256_loadu_si256(at + 1))};
}

#include "tasks.h"

const struct instructions edge_avx2 = {
    sizeof(activation), NULL, NULL, pack_task, project_task, attend_task, finish_task, mean_rows, embed_rows,
};

END_TARGET

#endif
