/* The layer for AVX-512 VNNI, and with AMX. Activations are stored unsigned, which their instructions want. */
#include "cpu.h"

#ifdef EDGE_X86

#include <immintrin.h>

#include "layer.h"

/* AMX is used only where the level says so. */
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c,amx-tile,amx-int8,amx-bf16")

#define EDGE_SET_AVX512
#include "vector.h"

#define FMA_ROWS 8
#define FMA_PARTS 2
#define ZERO 128 /* what an activation of zero is stored as */

typedef uint8_t activation; /* 1 ... 255 */

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* gcc does not know that tile loads read memory; this keeps what was stored before them before them. */
static inline void settled(void) { __asm__ volatile("" : : : "memory"); }

/* Eight tiles of 16 rows of 64 bytes. */
static void tiles_on(void) {
    struct tile_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = 16;
    /* gcc believes that the next instruction reads eight bytes of the 64, and would leave the others unwritten. */
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
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

static void begin(int level) {
    if (level == AMX) tiles_on();
}

static void end(int level) {
    if (level == AMX) _tile_release();
}

/* Where row `row` of packed activations with `inputs` inputs begins. */
static inline activation *packed_row(void *packed, long row, long inputs) {
    return (activation *)packed + row / 16 * (up_to(inputs, 64) / 64) * TILE + row % 16 * 64;
}

/* Sixteen quotients become inputs `at` ... of a row. */
static inline void store_activations(activation *row, long at, vec v) {
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(ZERO));
    _mm_store_si128((__m128i *)(row + at / 64 * TILE + at % 64), _mm512_cvtusepi32_epi8(whole));
}

/* Packs the columns 64 * part ... 64 * part + 63. Row r of a tile holds inputs 4 r ... 4 r + 3 of the first column, then of
   the second. */
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

static inline void multiply(const struct matrix *m, int level, const activation *a, long column, int32_t *sums) {
    long depth = up_to(m->rows, 64) / 64;
    const int8_t *b = m->packed + column / 16 * depth * TILE;
    if (level == AMX)
        multiply_amx(a, b, depth, sums);
    else
        multiply_vnni(a, b, depth, sums);
}

static inline vec sums_at(const int32_t *sums, const int32_t *offset) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_load_si512(sums), _mm512_load_si512(offset)));
}

/* 16 rows of 16 values become columns, rows of 32 values apart. */
static void put_transposed(float *to, const vec rows[16]) {
    __m512i r[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_castps_si512(rows[i]);
    transpose(r);
    for (int i = 0; i < 16; i++) _mm512_store_si512(to + i * 32, r[i]);
}

#include "split.h"
#include "tasks.h"

const struct instructions edge_avx512 = {
    sizeof(activation), 0, begin, end, pack_task, project_task, attend_task, finish_task, mean_rows, embed_rows,
};

END_TARGET

#endif
