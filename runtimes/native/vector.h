/* Sixteen fp32 values as one: a register of AVX-512, two of AVX2, or four of NEON.

   Every operation rounds once and works value by value, and sums across values are trees of one shape, so the sets
   compute the same bits. Two exceptions: the reciprocal inside `gelu`, and powers below 2^-126. Buffers of ours have
   rows padded to whole vectors; arrays of the caller have not: their last values are read and written by count. */
#ifndef EDGE_VECTOR_H
#define EDGE_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(EDGE_SET_AVX512)
#define X86(name) _mm512_##name
#define EACH(f, x) f(x)
#define PAIRS(f, x, y) f(x, y)
#define TRIPLES(f, x, y, z) f(x, y, z)
#define PART 16 /* values of a register */
typedef __m512 part;
typedef part vec;

static inline __mmask16 mask_of(long left) { return left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0; }

static inline vec vload(const float *x) { return _mm512_loadu_ps(x); }
static inline vec vload_part(const float *x, long left) { return _mm512_maskz_loadu_ps(mask_of(left), x); }
static inline void vstore(float *x, vec v) { _mm512_storeu_ps(x, v); }
static inline void vstore_part(float *x, long left, vec v) { _mm512_mask_storeu_ps(x, mask_of(left), v); }
static inline vec vset(float x) { return _mm512_set1_ps(x); }
static inline vec vkeep(long left, vec v) { return _mm512_maskz_mov_ps(mask_of(left), v); }
static inline vec vmax_part(vec x, long left, vec y) { return _mm512_mask_max_ps(x, mask_of(left), x, y); }
static inline vec vabs(vec v) { return _mm512_abs_ps(v); }
static inline vec vround(vec v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vec vscale(vec v, vec power) { return _mm512_scalef_ps(v, power); }
static inline float vsum(vec v) { return _mm512_reduce_add_ps(v); }
static inline float vmost(vec v) { return _mm512_reduce_max_ps(v); }
static inline vec vbytes(const int8_t *x, long left) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask_of(left), x)));
}
static inline vec vhalves(const uint16_t *x, long left) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_of(left), x));
}
static inline void vstore_halves(uint16_t *x, long left, vec v) {
    _mm256_mask_storeu_epi16(x, mask_of(left), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

#else /* two or four registers */

#if defined(EDGE_SET_AVX2)
#define X86(name) _mm256_##name
#define EACH(f, x) ((vec){f((x).a), f((x).b)})
#define PAIRS(f, x, y) ((vec){f((x).a, (y).a), f((x).b, (y).b)})
#define TRIPLES(f, x, y, z) ((vec){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b)})
#define PART 8
typedef __m256 part;
typedef struct { part a, b; } vec;

static inline vec vload(const float *x) { return (vec){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
static inline void vstore(float *x, vec v) { _mm256_storeu_ps(x, v.a), _mm256_storeu_ps(x + 8, v.b); }
static inline vec vset(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline __m256 abs_part(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
#define and_part _mm256_and_ps
static inline __m256 round_part(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline __m256 scale_part(__m256 x, __m256 power) { /* power is a whole number of at most 0 */
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
    __m256 enough = _mm256_cmp_ps(power, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    return _mm256_mul_ps(x, _mm256_and_ps(_mm256_castsi256_ps(bits), enough));
}
static inline float reduced(vec v, __m128 (*f)(__m128, __m128), __m256 (*wide)(__m256, __m256)) {
    __m256 eight = wide(v.a, v.b);
    __m128 four = f(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = f(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(f(two, _mm_movehdup_ps(two)));
}
static inline float vsum(vec v) { return reduced(v, _mm_add_ps, _mm256_add_ps); }
static inline float vmost(vec v) { return reduced(v, _mm_max_ps, _mm256_max_ps); }
static inline vec bytes(const int8_t *x) {
    __m128i sixteen = _mm_loadu_si128((const __m128i *)x);
    return (vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sixteen)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sixteen, 8)))};
}
static inline vec halves(const uint16_t *x) {
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + 8)))};
}
static inline void store_halves(uint16_t *x, vec v) {
    _mm_storeu_si128((__m128i *)x, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(x + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
#else
#define EACH(f, x) ((vec){f((x).a), f((x).b), f((x).c), f((x).d)})
#define PAIRS(f, x, y) ((vec){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define TRIPLES(f, x, y, z) \
    ((vec){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)})
#define PART 4
typedef float32x4_t part;
typedef struct { part a, b, c, d; } vec;

static inline vec vload(const float *x) {
    return (vec){vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)};
}
static inline void vstore(float *x, vec v) {
    vst1q_f32(x, v.a), vst1q_f32(x + 4, v.b), vst1q_f32(x + 8, v.c), vst1q_f32(x + 12, v.d);
}
static inline vec vset(float x) { return (vec){vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}; }
#define abs_part vabsq_f32
#define round_part vrndnq_f32
#define and_part(x, y) vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)))
static inline float32x4_t scale_part(float32x4_t x, float32x4_t power) { /* power is a whole number of at most 0 */
    int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(power), vdupq_n_s32(127)), 23);
    uint32x4_t enough = vcgeq_f32(power, vdupq_n_f32(-126));
    return vmulq_f32(x, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(bits), enough)));
}
static inline float vsum(vec v) {
    float32x4_t four = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline float vmost(vec v) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.a, v.c), vmaxq_f32(v.b, v.d))); }
static inline vec bytes(const int8_t *x) {
    int8x16_t sixteen = vld1q_s8(x);
    int16x8_t low = vmovl_s8(vget_low_s8(sixteen)), high = vmovl_high_s8(sixteen);
    return (vec){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
static inline vec halves(const uint16_t *x) {
    float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(x)), high = vreinterpretq_f16_u16(vld1q_u16(x + 8));
    return (vec){vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
                 vcvt_high_f32_f16(high)};
}
static inline void store_halves(uint16_t *x, vec v) {
    vst1q_u16(x, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b)));
    vst1q_u16(x + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.c), v.d)));
}
#endif

static inline vec vabs(vec v) { return EACH(abs_part, v); }
static inline vec vround(vec v) { return EACH(round_part, v); }
static inline vec vscale(vec v, vec power) { return PAIRS(scale_part, v, power); }

/* By way of a buffer, because these sets have no masks: at the end of a row only. */
#define READ_PART(type, read, x, left)                                 \
    if (left >= 16) return read(x);                                    \
    type buffer[16] = {0};                                             \
    if (left > 0) memcpy(buffer, x, left * sizeof(type));              \
    return read(buffer);
#define WRITE_PART(type, write, x, left, v)                            \
    if (left >= 16) {                                                  \
        write(x, v);                                                   \
    } else if (left > 0) {                                             \
        type buffer[16];                                               \
        write(buffer, v);                                              \
        memcpy(x, buffer, left * sizeof(type));                        \
    }
static inline vec vload_part(const float *x, long left) { READ_PART(float, vload, x, left) }
static inline vec vbytes(const int8_t *x, long left) { READ_PART(int8_t, bytes, x, left) }
static inline vec vhalves(const uint16_t *x, long left) { READ_PART(uint16_t, halves, x, left) }
static inline void vstore_part(float *x, long left, vec v) { WRITE_PART(float, vstore, x, left, v) }
static inline void vstore_halves(uint16_t *x, long left, vec v) { WRITE_PART(uint16_t, store_halves, x, left, v) }
/* The mask of the first `left` of 16 values begins at 16 - left. A copy in parts would wait for memory. */
static const uint32_t FIRST[32] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
static inline vec vkeep(long left, vec v) { /* zeros from `left` on */
    if (left >= 16) return v;
    return PAIRS(and_part, v, vload((const float *)(FIRST + 16 - (left > 0 ? left : 0))));
}
#endif

#ifdef X86
#define part_load X86(loadu_ps)
#define part_store X86(storeu_ps)
#define part_set X86(set1_ps)
#define part_fma X86(fmadd_ps)
static inline vec vadd(vec x, vec y) { return PAIRS(X86(add_ps), x, y); }
static inline vec vsub(vec x, vec y) { return PAIRS(X86(sub_ps), x, y); }
static inline vec vmul(vec x, vec y) { return PAIRS(X86(mul_ps), x, y); }
static inline vec vdiv(vec x, vec y) { return PAIRS(X86(div_ps), x, y); }
static inline vec vmax(vec x, vec y) { return PAIRS(X86(max_ps), x, y); }
static inline vec vsqrt(vec x) { return EACH(X86(sqrt_ps), x); }
static inline vec vfma(vec x, vec y, vec z) { return TRIPLES(X86(fmadd_ps), x, y, z); } /* x y + z */
static inline vec vfnma(vec x, vec y, vec z) { return TRIPLES(X86(fnmadd_ps), x, y, z); } /* z - x y */
#else
#define part_load vld1q_f32
#define part_store vst1q_f32
#define part_set vdupq_n_f32
#define part_fma(x, y, z) vfmaq_f32(z, x, y)
static inline vec vadd(vec x, vec y) { return PAIRS(vaddq_f32, x, y); }
static inline vec vsub(vec x, vec y) { return PAIRS(vsubq_f32, x, y); }
static inline vec vmul(vec x, vec y) { return PAIRS(vmulq_f32, x, y); }
static inline vec vdiv(vec x, vec y) { return PAIRS(vdivq_f32, x, y); }
static inline vec vmax(vec x, vec y) { return PAIRS(vmaxq_f32, x, y); }
static inline vec vsqrt(vec x) { return EACH(vsqrtq_f32, x); }
static inline vec vfma(vec x, vec y, vec z) { return TRIPLES(vfmaq_f32, z, x, y); }
static inline vec vfnma(vec x, vec y, vec z) { return TRIPLES(vfmsq_f32, z, x, y); }
#endif

#ifndef EDGE_SET_AVX512
static const float HIDDEN[32] = {[16] = -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                 -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                 -INFINITY};
static inline vec vmax_part(vec x, long left, vec y) { /* of the first `left` values */
    return vmax(x, left >= 16 ? y : vadd(y, vload(HIDDEN + 16 - (left > 0 ? left : 0))));
}

/* 16 rows of 16 values become columns, rows of 32 values apart. */
static void put_transposed(float *to, const vec rows[16]) {
    float values[16][16];
    for (int i = 0; i < 16; i++) vstore(values[i], rows[i]);
    for (int j = 0; j < 16; j++)
        for (int i = 0; i < 16; i++) to[j * 32 + i] = values[i][j];
}
#endif

/* 1 / x, which the sets may round differently. */
static inline vec vreciprocal(vec x) {
#ifdef EDGE_SET_AVX512
    vec y = _mm512_rcp14_ps(x);
    return vmul(y, vfnma(x, y, vset(2))); /* one step of Newton's method */
#else
    return vdiv(vset(1), x);
#endif
}

#endif
