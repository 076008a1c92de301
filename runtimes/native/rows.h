/* What is computed on single rows of fp32 values: conversion, quantization, sums with norms, activations. Buffers of
   ours have rows padded to whole vectors; arrays of the caller have not. */
#ifndef EDGE_ROWS_H
#define EDGE_ROWS_H

static inline __mmask16 mask_of(long left) { return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1); }

/* 2^x for x <= 0, to 2 units in the last place; 0 below -126. */
static inline __m512 power_of_two(__m512 x) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole); /* -0.5 ... 0.5 */
    __m512 y = _mm512_set1_ps(1.5403530e-4f); /* ln(2)^n / n! */
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3333558e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1));
    return _mm512_scalef_ps(y, whole);
}

/* x / 2 * (1 + erf(x / sqrt(2))), with erf by formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7. */
static inline __m512 gelu(__m512 x) {
    __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    __m512 d = _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), _mm512_set1_ps(1));
    __m512 t = _mm512_rcp14_ps(d);
    t = _mm512_mul_ps(t, _mm512_fnmadd_ps(d, t, _mm512_set1_ps(2))); /* one step of Newton's method */
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    p = _mm512_mul_ps(p, t);
    __m512 power = power_of_two(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-1.44269504f)));
    /* 1 - erf(|z|) = p * power; x / 2 * (1 + erf) is max(x, 0) - |x| / 2 * (1 - erf(|z|)). */
    __m512 rest = _mm512_mul_ps(_mm512_mul_ps(p, power), _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.5f)));
    return _mm512_sub_ps(_mm512_max_ps(x, _mm512_setzero_ps()), rest);
}

/* A row of the caller's hidden states, fp16 or fp32. */
static inline __m512 state_at(const void *row, int half, long at, __mmask16 mask) {
    if (half) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)row + at));
    return _mm512_maskz_loadu_ps(mask, (const float *)row + at);
}

/* Symmetric quantization of x [n] to 1 ... 255 around ZERO, into a row of a packed tile; returns the scale. */
static float quantize(const float *x, long n, uint8_t *packed) {
    __m512 most = _mm512_set1_ps(1e-30f);
    for (long i = 0; i < n; i += 16)
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(mask_of(n - i), x + i)));
    float scale = _mm512_reduce_max_ps(most) / 127;
    /* x / scale by its reciprocal and one correction, which makes it the rounded quotient that ties are decided by. */
    __m512 divisor = _mm512_set1_ps(scale), factor = _mm512_set1_ps(1 / scale);
    for (long i = 0; i < n; i += 16) {
        __m512 value = _mm512_maskz_loadu_ps(mask_of(n - i), x + i);
        __m512 quotient = _mm512_mul_ps(value, factor);
        quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, divisor, value), factor, quotient);
        __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(quotient), _mm512_set1_epi32(ZERO));
        _mm_store_si128((__m128i *)(packed + i / 64 * TILE + i % 64), _mm512_cvtusepi32_epi8(whole));
    }
    return scale;
}

/* Where row `row` of packed activations with `inputs` inputs begins. */
static inline uint8_t *packed_row(uint8_t *packed, long row, long inputs) {
    return packed + row / 16 * (up_to(inputs, 64) / 64) * TILE + row % 16 * 64;
}

/* x [n] becomes the layer norm of x + residual; x's row is padded. */
static void norm_of_sum(float *x, const void *residual, int half, long n, const float *weight, const float *bias,
                        float eps) {
    __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) {
        __mmask16 mask = mask_of(n - i);
        __m512 value = _mm512_maskz_add_ps(mask, _mm512_load_ps(x + i), state_at(residual, half, i, mask));
        _mm512_store_ps(x + i, value);
        sum = _mm512_add_ps(sum, value);
    }
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / n);
    for (long i = 0; i < n; i += 16) {
        __m512 apart = _mm512_maskz_sub_ps(mask_of(n - i), _mm512_load_ps(x + i), mean);
        squares = _mm512_fmadd_ps(apart, apart, squares);
    }
    __m512 deviation = _mm512_sqrt_ps(_mm512_set1_ps(_mm512_reduce_add_ps(squares) / n + eps));
    __m512 factor = _mm512_div_ps(_mm512_set1_ps(1), deviation);
    for (long i = 0; i < n; i += 16) {
        __mmask16 mask = mask_of(n - i);
        __m512 value = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x + i), mean), factor);
        value = _mm512_fmadd_ps(value, _mm512_maskz_loadu_ps(mask, weight + i), _mm512_maskz_loadu_ps(mask, bias + i));
        _mm512_store_ps(x + i, value);
    }
}

static void store_states(void *row, int half, const float *x, long n) {
    for (long i = 0; i < n; i += 16) {
        __mmask16 mask = mask_of(n - i);
        __m512 value = _mm512_load_ps(x + i);
        if (half)
            _mm256_mask_storeu_epi16((uint16_t *)row + i, mask, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
        else
            _mm512_mask_storeu_ps((float *)row + i, mask, value);
    }
}

#endif
