/* What is computed on single rows of fp32 values: quantization, sums with norms, activations. */
#ifndef EDGE_ROWS_H
#define EDGE_ROWS_H

/* 2^x for x <= 0, to 2 units in the last place; 0 below -126. */
static inline vec power_of_two(vec x) {
    vec whole = vround(x);
    vec f = vsub(x, whole); /* -0.5 ... 0.5 */
    vec y = vset(1.5403530e-4f); /* ln(2)^n / n! */
    y = vfma(y, f, vset(1.3333558e-3f));
    y = vfma(y, f, vset(9.6181291e-3f));
    y = vfma(y, f, vset(5.5504109e-2f));
    y = vfma(y, f, vset(2.4022651e-1f));
    y = vfma(y, f, vset(6.9314718e-1f));
    y = vfma(y, f, vset(1));
    return vscale(y, whole);
}

/* x / 2 * (1 + erf(x / sqrt(2))), with erf by formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7. */
static inline vec gelu(vec x) {
    vec z = vmul(vabs(x), vset(0.70710678f));
    vec t = vreciprocal(vfma(z, vset(0.3275911f), vset(1)));
    vec p = vset(1.061405429f);
    p = vfma(p, t, vset(-1.453152027f));
    p = vfma(p, t, vset(1.421413741f));
    p = vfma(p, t, vset(-0.284496736f));
    p = vfma(p, t, vset(0.254829592f));
    p = vmul(p, t);
    vec power = power_of_two(vmul(vmul(z, z), vset(-1.44269504f)));
    /* 1 - erf(|z|) = p * power; x / 2 * (1 + erf) is max(x, 0) - |x| / 2 * (1 - erf(|z|)). */
    return vfnma(vmul(p, power), vmul(vabs(x), vset(0.5f)), vmax(x, vset(0)));
}

/* A row of the caller's hidden states, fp16 or fp32. */
static inline vec state_at(const void *row, int half, long at, long left) {
    return half ? vhalves((const uint16_t *)row + at, left) : vload_part((const float *)row + at, left);
}

/* Symmetric quantization of x [n] to -127 ... 127 into a row of packed activations; returns the scale. */
static float quantize(const float *x, long n, activation *packed) {
    vec most = vset(1e-30f);
    for (long i = 0; i < n; i += 16) most = vmax(most, vabs(vload_part(x + i, n - i)));
    float scale = vmost(most) / 127;
    /* x / scale by its reciprocal and one correction, which makes it the rounded quotient that ties are decided by. */
    vec divisor = vset(scale), factor = vset(1 / scale);
    for (long i = 0; i < n; i += 16) {
        vec value = vload_part(x + i, n - i);
        vec quotient = vmul(value, factor);
        store_activations(packed, i, vfma(vfnma(quotient, divisor, value), factor, quotient));
    }
    return scale;
}

/* x [n] becomes the layer norm of x + residual; x's row is padded. */
static void norm_of_sum(float *x, const void *residual, int half, long n, const float *weight, const float *bias,
                        float eps) {
    vec sum = vset(0), squares = vset(0);
    for (long i = 0; i < n; i += 16) {
        vec value = vkeep(n - i, vadd(vload(x + i), state_at(residual, half, i, n - i)));
        vstore(x + i, value);
        sum = vadd(sum, value);
    }
    vec mean = vset(vsum(sum) / n);
    for (long i = 0; i < n; i += 16) {
        vec apart = vkeep(n - i, vsub(vload(x + i), mean));
        squares = vfma(apart, apart, squares);
    }
    vec factor = vdiv(vset(1), vsqrt(vset(vsum(squares) / n + eps)));
    for (long i = 0; i < n; i += 16) {
        vec value = vmul(vsub(vload(x + i), mean), factor);
        vstore(x + i, vfma(value, vload_part(weight + i, n - i), vload_part(bias + i, n - i)));
    }
}

static void store_states(void *row, int half, const float *x, long n) {
    for (long i = 0; i < n; i += 16) {
        if (half)
            vstore_halves((uint16_t *)row + i, n - i, vload(x + i));
        else
            vstore_part((float *)row + i, n - i, vload(x + i));
    }
}

#endif
