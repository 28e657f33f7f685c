/*
 * Sixteen f32 lanes, for the kernels whose sums have that many (attention): one 512-bit vector with
 * NF_VEC16_AVX512, otherwise two vec8. The same rules as vec8.h: every operation is a correctly rounded IEEE
 * operation on each lane, so each form gives the same bytes.
 */
#ifndef NF_CPU_VEC16_H
#define NF_CPU_VEC16_H

#include "cpu/vec8.h"

#ifdef NF_VEC16_AVX512

typedef __m512 vec16;

static inline vec16 v16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v16_store(float *p, vec16 a) {
    _mm512_storeu_ps(p, a);
}
static inline vec16 v16_set(float a) {
    return _mm512_set1_ps(a);
}
static inline vec16 v16_add(vec16 a, vec16 b) {
    return _mm512_add_ps(a, b);
}
static inline vec16 v16_sub(vec16 a, vec16 b) {
    return _mm512_sub_ps(a, b);
}
static inline vec16 v16_mul(vec16 a, vec16 b) {
    return _mm512_mul_ps(a, b);
}
static inline vec16 v16_fma(vec16 a, vec16 b, vec16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vec16 v16_max(vec16 a, vec16 b) {
    return _mm512_max_ps(a, b);
}
static inline vec16 v16_min(vec16 a, vec16 b) {
    return _mm512_min_ps(a, b);
}
static inline vec16 v16_round(vec16 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in -126..127. */
static inline vec16 v16_exp2_int(vec16 n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}
NF_VEC_EXP(vec16, v16)

#else

typedef struct vec16 {
    vec8 lo, hi;
} vec16;

static inline vec16 v16_load(const float *p) {
    return (vec16){v8_load(p), v8_load(p + 8)};
}
static inline void v16_store(float *p, vec16 a) {
    v8_store(p, a.lo);
    v8_store(p + 8, a.hi);
}
static inline vec16 v16_set(float a) {
    return (vec16){v8_set(a), v8_set(a)};
}
static inline vec16 v16_add(vec16 a, vec16 b) {
    return (vec16){v8_add(a.lo, b.lo), v8_add(a.hi, b.hi)};
}
static inline vec16 v16_sub(vec16 a, vec16 b) {
    return (vec16){v8_sub(a.lo, b.lo), v8_sub(a.hi, b.hi)};
}
static inline vec16 v16_mul(vec16 a, vec16 b) {
    return (vec16){v8_mul(a.lo, b.lo), v8_mul(a.hi, b.hi)};
}
static inline vec16 v16_fma(vec16 a, vec16 b, vec16 c) {
    return (vec16){v8_fma(a.lo, b.lo, c.lo), v8_fma(a.hi, b.hi, c.hi)};
}
static inline vec16 v16_max(vec16 a, vec16 b) {
    return (vec16){v8_max(a.lo, b.lo), v8_max(a.hi, b.hi)};
}
static inline vec16 v16_exp(vec16 x) {
    return (vec16){v8_exp(x.lo), v8_exp(x.hi)};
}

#endif

/* Adds the lanes by the tree 8, 4, 2, 1. */
static inline float v16_sum(vec16 a) {
#ifdef NF_VEC16_AVX512
    return v8_sum(_mm256_add_ps(_mm512_castps512_ps256(a),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1))));
#elif defined(NF_VEC8_AVX2)
    __m256 e = v8_add(a.lo, a.hi);
    __m128 f = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    f = _mm_add_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_add_ss(f, _mm_movehdup_ps(f)));
#else
    return v8_sum(v8_add(a.lo, a.hi));
#endif
}

static inline float v16_max_lane(vec16 a) {
    float t[16];
    v16_store(t, a);
    for (int s = 8; s; s /= 2)
        for (int i = 0; i < s; i++) t[i] = t[i] > t[i + s] ? t[i] : t[i + s];
    return t[0];
}

#endif
