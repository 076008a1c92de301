/* The layer for AArch64: plain v8.0, dotprod and i8mm differ in their products only. */
#include "cpu.h"

#ifdef EDGE_ARM

#include <arm_neon.h>

#include "layer.h"
#include "vector.h"

#define FMA_ROWS 4
#define FMA_PARTS 4

#if defined(__clang__)
#define DOTPROD_CODE __attribute__((target("dotprod")))
#define I8MM_CODE __attribute__((target("i8mm")))
#else
#define DOTPROD_CODE __attribute__((target("arch=armv8.2-a+dotprod")))
#define I8MM_CODE __attribute__((target("arch=armv8.2-a+i8mm")))
#endif

typedef int8_t activation;

/* Where row `row` of packed activations with `inputs` inputs begins. Sixteen bytes hold eight inputs of a row, then those
   of the next row; then come the next pairs of rows, and then the next eight inputs. */
static inline activation *packed_row(void *packed, long row, long inputs) {
    return (activation *)packed + row / 16 * (up_to(inputs, 64) / 64) * TILE + row % 16 * 8;
}

/* Sixteen quotients become inputs `at` ... of a row. */
static inline void store_activations(activation *row, long at, vec v) {
    int16x8_t low = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.a)), vqmovn_s32(vcvtnq_s32_f32(v.b)));
    int16x8_t high = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.c)), vqmovn_s32(vcvtnq_s32_f32(v.d)));
    activation *to = row + at / 64 * TILE + at % 64 * 16;
    vst1_s8(to, vqmovn_s16(low)), vst1_s8(to + 128, vqmovn_s16(high));
}

/* Packs the columns 64 * part ... 64 * part + 63. Sixteen bytes hold eight inputs of a column, then those of the next
   column; then come the next pairs of columns, and then the next eight inputs. */
static void pack_columns(const struct matrix *m, long part) {
    long depth = up_to(m->rows, 64) / 64, end = up_to(m->columns, PANEL);
    for (long first = part * 64; first < end && first < part * 64 + 64; first += 16)
        for (long row = 0; row < depth * 64; row += 8) {
            int8x16_t r[8];
            int8_t fours[2][64]; /* four inputs of each column */
            for (int i = 0; i < 8; i++) {
                int8_t buffer[16] = {0};
                long left = row + i < m->rows ? m->columns - first : 0;
                if (left > 0) memcpy(buffer, m->weight + (row + i) * m->columns + first, left < 16 ? left : 16);
                r[i] = vld1q_s8(buffer);
            }
            for (int i = 0; i < 2; i++)
                vst4q_s8(fours[i], ((int8x16x4_t){{r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]}}));
            int8_t *to = m->packed + (first / 16 * depth + row / 64) * TILE + row % 64 * 16;
            for (int i = 0; i < 64; i += 16) {
                int32x4_t low = vreinterpretq_s32_s8(vld1q_s8(fours[0] + i));
                int32x4_t high = vreinterpretq_s32_s8(vld1q_s8(fours[1] + i));
                vst1q_s8(to + 2 * i, vreinterpretq_s8_s32(vzip1q_s32(low, high)));
                vst1q_s8(to + 2 * i + 16, vreinterpretq_s8_s32(vzip2q_s32(low, high)));
            }
        }
}

/* The products of `rows` rows and `columns` columns at `a` and `b`, for `depth` tiles: sums[row][column], rows of PANEL. */
typedef void (*product_function)(const activation *a, const int8_t *b, long depth, int32_t *sums);

/* Eight rows, eight columns. A register has the sums of two rows and two columns. */
I8MM_CODE static void multiply_i8mm(const activation *a, const int8_t *b, long depth, int32_t *sums) {
    int32x4_t s[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) s[i][j] = vdupq_n_s32(0);
    for (long k = 0; k < depth * TILE; k += 128) {
        int8x16_t x[4], w[4];
        for (int i = 0; i < 4; i++) x[i] = vld1q_s8(a + k + i * 16), w[i] = vld1q_s8(b + k + i * 16);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) s[i][j] = vmmlaq_s32(s[i][j], x[i], w[j]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j += 2) {
            int64x2_t left = vreinterpretq_s64_s32(s[i][j]), right = vreinterpretq_s64_s32(s[i][j + 1]);
            vst1q_s32(sums + 2 * i * PANEL + 2 * j, vreinterpretq_s32_s64(vzip1q_s64(left, right)));
            vst1q_s32(sums + (2 * i + 1) * PANEL + 2 * j, vreinterpretq_s32_s64(vzip2q_s64(left, right)));
        }
}

/* Four rows, eight columns. A register has two sums of each of two columns. */
DOTPROD_CODE static void multiply_dotprod(const activation *a, const int8_t *b, long depth, int32_t *sums) {
    int32x4_t s[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) s[i][j] = vdupq_n_s32(0);
    for (long k = 0; k < depth * TILE; k += 128) {
        int8x16_t w[4];
        for (int j = 0; j < 4; j++) w[j] = vld1q_s8(b + k + j * 16);
        for (int i = 0; i < 4; i++) {
            int8x16_t x = vreinterpretq_s8_s64(vld1q_dup_s64((const int64_t *)(a + k + i * 8)));
            for (int j = 0; j < 4; j++) s[i][j] = vdotq_s32(s[i][j], x, w[j]);
        }
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j += 2) vst1q_s32(sums + i * PANEL + 2 * j, vpaddq_s32(s[i][j], s[i][j + 1]));
}

/* Four rows, four columns. A register has four sums of a column; two products of bytes fit into 16 bits. */
static void multiply_plain(const activation *a, const int8_t *b, long depth, int32_t *sums) {
    int32x4_t s[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) s[i][j] = vdupq_n_s32(0);
    for (long k = 0; k < depth * TILE; k += 256) {
        int8x16_t w[2][2];
        for (int j = 0; j < 2; j++) w[0][j] = vld1q_s8(b + k + j * 16), w[1][j] = vld1q_s8(b + k + 128 + j * 16);
        for (int i = 0; i < 4; i++) {
            int8x16_t x = vreinterpretq_s8_s64(vld1q_dup_s64((const int64_t *)(a + k + i * 8)));
            int8x16_t y = vreinterpretq_s8_s64(vld1q_dup_s64((const int64_t *)(a + k + 128 + i * 8)));
            for (int j = 0; j < 2; j++) {
                int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w[0][j])), high = vmull_high_s8(x, w[0][j]);
                low = vmlal_s8(low, vget_low_s8(y), vget_low_s8(w[1][j])), high = vmlal_high_s8(high, y, w[1][j]);
                s[i][2 * j] = vpadalq_s16(s[i][2 * j], low);
                s[i][2 * j + 1] = vpadalq_s16(s[i][2 * j + 1], high);
            }
        }
    }
    for (int i = 0; i < 4; i++)
        vst1q_s32(sums + i * PANEL, vpaddq_s32(vpaddq_s32(s[i][0], s[i][1]), vpaddq_s32(s[i][2], s[i][3])));
}

/* 32 rows times 32 columns: sums[32][32]. */
static void multiply(const struct matrix *m, int level, const activation *a, long column, int32_t *sums) {
    long depth = up_to(m->rows, 64) / 64;
    const int8_t *b = m->packed + column / 16 * depth * TILE;
    product_function product = level == I8MM ? multiply_i8mm : level == DOTPROD ? multiply_dotprod : multiply_plain;
    int rows = level == I8MM ? 8 : 4, columns = level == NEON ? 4 : 8;
    for (int first = 0; first < PANEL; first += columns)
        for (int row = 0; row < ROWS; row += rows)
            product(a + row / 16 * depth * TILE + row % 16 * 8, b + first / 16 * depth * TILE + first % 16 * 8, depth,
                    sums + row * PANEL + first);
}

static inline vec sums_at(const int32_t *sums, const int32_t *offset) {
    (void)offset; /* activations are signed */
    return (vec){vcvtq_f32_s32(vld1q_s32(sums)), vcvtq_f32_s32(vld1q_s32(sums + 4)), vcvtq_f32_s32(vld1q_s32(sums + 8)),
                 vcvtq_f32_s32(vld1q_s32(sums + 12))};
}

#include "tasks.h"

const struct instructions edge_neon = {
    sizeof(activation), 0, NULL, NULL, pack_task, project_task, attend_task, finish_task, mean_rows, embed_rows,
};

#endif
