/* Factors of fp32 products for AMX: every fp32 value is split into two bf16 values, x = high + low to 17 bits, and a
   product is three products of tiles: high high + high low + low high. What is left out is below 2^-17 of it. */
#ifndef EDGE_SPLIT_H
#define EDGE_SPLIT_H

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

/* 16 keys' values `at` ... at + 31, rows x and y of 16 each, as rows of a pair of tiles of a right factor. */
static void put_keys(float *pair, const __m512 x[16], const __m512 y[16]) {
    __m512i high[16], low[16], xh, xl, yh, yl;
    for (int i = 0; i < 16; i++) {
        split(x[i], &xh, &xl), split(y[i], &yh, &yl);
        high[i] = upper_halves(xh, yh), low[i] = upper_halves(xl, yl);
    }
    transpose(high), transpose(low);
    for (int i = 0; i < 16; i++) {
        _mm512_store_si512((char *)pair + i * 64, high[i]);
        _mm512_store_si512((char *)pair + TILE + i * 64, low[i]);
    }
}

/* 16 values of a token and of the next one, as row `row` of a pair of tiles of a right factor. */
static inline void put_values(float *pair, long row, __m512 x, __m512 y) {
    __m512i xh, xl, yh, yl;
    split(x, &xh, &xl), split(y, &yh, &yl);
    _mm512_store_si512((char *)pair + row * 64, _mm512_or_si512(_mm512_srli_epi32(xh, 16), yh));
    _mm512_store_si512((char *)pair + TILE + row * 64, _mm512_or_si512(_mm512_srli_epi32(xl, 16), yl));
}

#endif
