/* Products of unsigned activations and signed weights, both one byte, in tiles of 16 rows of 64 bytes.

   Activations are packed row tile by row tile: tile (i, k) holds rows 16 i ... and inputs 64 k ..., a row after the
   other. Weights are packed column tile by column tile: tile (j, k) holds columns 16 j ... and inputs 64 k ...; its row r
   holds inputs 4 r ... 4 r + 3 of the first column, then of the second, as the instructions for AMX and VNNI want it.
   Sums are exact integers, so the order of summation does not matter. */
#ifndef EDGE_MATRICES_H
#define EDGE_MATRICES_H

#define TILE 1024
#define PANEL 32 /* columns that are multiplied together */
#define ZERO 128 /* what an activation of zero is stored as */

static inline long up_to(long n, long step) { return (n + step - 1) / step * step; }

struct matrix {
    const int8_t *weight; /* [rows, columns] */
    const float *scale, *bias; /* [columns] */
    long rows, columns;
    int8_t *packed;
    int32_t *offset; /* [columns, padded]: ZERO times the column's sum, which the products are too large by */
};

static inline long packed_bytes(long rows, long columns) { return up_to(rows, 64) * up_to(columns, PANEL); }

/* Packs the columns 64 * part ... 64 * part + 63. */
static void pack_columns(const struct matrix *m, long part) {
    long first = part * 64, depth = up_to(m->rows, 64) / 64;
    long tiles = (up_to(m->columns, PANEL) - first) / 16;
    long columns = m->columns - first;
    __mmask64 mask = columns >= 64 ? ~0ull : (1ull << columns) - 1;
    __m512i sums[4], ones = _mm512_set1_epi8(1);
    if (tiles > 4) tiles = 4;
    for (int j = 0; j < 4; j++) sums[j] = _mm512_setzero_si512();
    for (long row = 0; row < depth * 64; row += 4) {
        __m512i r[4], t[4], u[4], v[4];
        for (int i = 0; i < 4; i++)
            r[i] = row + i < m->rows ? _mm512_maskz_loadu_epi8(mask, m->weight + (row + i) * m->columns + first)
                                     : _mm512_setzero_si512();
        t[0] = _mm512_unpacklo_epi8(r[0], r[1]), t[1] = _mm512_unpackhi_epi8(r[0], r[1]);
        t[2] = _mm512_unpacklo_epi8(r[2], r[3]), t[3] = _mm512_unpackhi_epi8(r[2], r[3]);
        u[0] = _mm512_unpacklo_epi16(t[0], t[2]), u[1] = _mm512_unpackhi_epi16(t[0], t[2]);
        u[2] = _mm512_unpacklo_epi16(t[1], t[3]), u[3] = _mm512_unpackhi_epi16(t[1], t[3]);
        /* Lane l of u[i] holds columns 16 l + 4 i ...; transposing lanes makes one row of each column tile. */
        t[0] = _mm512_shuffle_i32x4(u[0], u[1], 0x44), t[1] = _mm512_shuffle_i32x4(u[0], u[1], 0xee);
        t[2] = _mm512_shuffle_i32x4(u[2], u[3], 0x44), t[3] = _mm512_shuffle_i32x4(u[2], u[3], 0xee);
        v[0] = _mm512_shuffle_i32x4(t[0], t[2], 0x88), v[1] = _mm512_shuffle_i32x4(t[0], t[2], 0xdd);
        v[2] = _mm512_shuffle_i32x4(t[1], t[3], 0x88), v[3] = _mm512_shuffle_i32x4(t[1], t[3], 0xdd);
        for (int j = 0; j < tiles; j++) {
            int8_t *tile = m->packed + ((first / 16 + j) * depth + row / 64) * TILE;
            _mm512_store_si512(tile + row % 64 / 4 * 64, v[j]);
            sums[j] = _mm512_dpbusd_epi32(sums[j], ones, v[j]);
        }
    }
    for (int j = 0; j < tiles; j++)
        _mm512_store_si512(m->offset + first + 16 * j, _mm512_mullo_epi32(sums[j], _mm512_set1_epi32(ZERO)));
}

/* 32 rows times 32 columns: sums[32][32]. */
static void multiply_amx(const uint8_t *a, const int8_t *b, long depth, int32_t *sums) {
    settled();
    const uint8_t *a2 = a + depth * TILE;
    const int8_t *b2 = b + depth * TILE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < depth * TILE; k += TILE) {
        _tile_loadd(4, a + k, 64);
        _tile_loadd(6, b + k, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, b2 + k, 64);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(5, a2 + k, 64);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 528, 128);
}

/* The same with VNNI, eight rows at a time. */
static void multiply_vnni(const uint8_t *a, const int8_t *b, long depth, int32_t *sums) {
    for (int row = 0; row < 32; row += 8) {
        const uint8_t *rows = a + row / 16 * depth * TILE + row % 16 * 64;
        __m512i s[8][2];
        for (int i = 0; i < 8; i++) s[i][0] = s[i][1] = _mm512_setzero_si512();
        for (long k = 0; k < depth; k++)
            for (int r = 0; r < 16; r++) {
                __m512i w0 = _mm512_load_si512(b + k * TILE + r * 64);
                __m512i w1 = _mm512_load_si512(b + (depth + k) * TILE + r * 64);
                const uint8_t *four = rows + k * TILE + r * 4;
                for (int i = 0; i < 8; i++) {
                    int32_t values;
                    memcpy(&values, four + i * 64, 4);
                    __m512i x = _mm512_set1_epi32(values);
                    s[i][0] = _mm512_dpbusd_epi32(s[i][0], x, w0);
                    s[i][1] = _mm512_dpbusd_epi32(s[i][1], x, w1);
                }
            }
        for (int i = 0; i < 8; i++) {
            _mm512_store_si512(sums + (row + i) * 32, s[i][0]);
            _mm512_store_si512(sums + (row + i) * 32 + 16, s[i][1]);
        }
    }
}

typedef __m512 (*activation_function)(__m512);

/* rows [count, inputs] packed in `a`, with a scale each, times the matrix, plus its bias, through the activation:
   y[row * stride ...], written up to the padded number of columns. Rows of the last tile pair that `count` does not
   reach are computed from whatever `a` holds there, and not written. */
static inline __attribute__((always_inline)) void linear(const struct matrix *m, int level, const uint8_t *a,
                                                         const float *scales, long count, float *y, long stride,
                                                         activation_function activation) {
    long depth = up_to(m->rows, 64) / 64;
    int32_t sums[1024] __attribute__((aligned(64)));
    for (long column = 0; column < m->columns; column += PANEL) {
        const int8_t *b = m->packed + column / 16 * depth * TILE;
        __m512i offsets[2];
        __m512 factors[2], biases[2];
        for (int half = 0; half < 2; half++) {
            long at = column + 16 * half, left = m->columns - at;
            __mmask16 mask = left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
            offsets[half] = _mm512_load_si512(m->offset + at);
            factors[half] = _mm512_maskz_loadu_ps(mask, m->scale + at);
            biases[half] = _mm512_maskz_loadu_ps(mask, m->bias + at);
        }
        for (long first = 0; first < count; first += 32) {
            long rows = count - first < 32 ? count - first : 32;
            if (level == AMX)
                multiply_amx(a + first / 16 * depth * TILE, b, depth, sums);
            else
                multiply_vnni(a + first / 16 * depth * TILE, b, depth, sums);
            for (long row = 0; row < rows; row++) {
                __m512 scale = _mm512_set1_ps(scales[first + row]);
                for (int half = 0; half < 2; half++) {
                    __m512i sum = _mm512_load_si512(sums + row * 32 + 16 * half);
                    __m512 x = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offsets[half]));
                    x = _mm512_fmadd_ps(_mm512_mul_ps(x, factors[half]), scale, biases[half]);
                    if (activation) x = activation(x);
                    _mm512_store_ps(y + (first + row) * stride + column + 16 * half, x);
                }
            }
        }
    }
}

#endif
