/*
 * Eight f32 lanes. All float kernels (cpu/float_kernels.h) are written once against these functions and
 * compiled for each instruction-set level, so the order of every operation is the same at every level by
 * construction. Every operation is a correctly rounded IEEE operation on each lane; fma is fused.
 *
 * NF_VEC8_AVX2 selects the AVX2+FMA form; without it, plain C.
 */
#ifndef NF_CPU_VEC8_H
#define NF_CPU_VEC8_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef NF_VEC8_AVX2
#include <immintrin.h>

typedef __m256 vec8;

static inline vec8 v8_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void v8_store(float *p, vec8 a) {
    _mm256_storeu_ps(p, a);
}
static inline vec8 v8_set(float a) {
    return _mm256_set1_ps(a);
}
static inline vec8 v8_zero(void) {
    return _mm256_setzero_ps();
}
static inline vec8 v8_add(vec8 a, vec8 b) {
    return _mm256_add_ps(a, b);
}
static inline vec8 v8_sub(vec8 a, vec8 b) {
    return _mm256_sub_ps(a, b);
}
static inline vec8 v8_mul(vec8 a, vec8 b) {
    return _mm256_mul_ps(a, b);
}
static inline vec8 v8_div(vec8 a, vec8 b) {
    return _mm256_div_ps(a, b);
}
static inline vec8 v8_fma(vec8 a, vec8 b, vec8 c) {
    return _mm256_fmadd_ps(a, b, c);
}
/* a > b ? a : b, b when unordered. */
static inline vec8 v8_max(vec8 a, vec8 b) {
    return _mm256_max_ps(a, b);
}
static inline vec8 v8_min(vec8 a, vec8 b) {
    return _mm256_min_ps(a, b);
}
static inline vec8 v8_round(vec8 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in -126..127. */
static inline vec8 v8_exp2_int(vec8 n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
/* In-place transpose of an 8x8 block: row i lane j <-> row j lane i. */
static inline void v8_transpose(vec8 r[8]) {
    vec8 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#else

typedef struct vec8 {
    float v[8];
} vec8;

#define NF_V8_EACH(expression)                                                                               \
    vec8 r_;                                                                                                 \
    for (int i = 0; i < 8; i++) r_.v[i] = (expression);                                                      \
    return r_

static inline vec8 v8_load(const float *p) {
    NF_V8_EACH(p[i]);
}
static inline void v8_store(float *p, vec8 a) {
    memcpy(p, a.v, sizeof a.v);
}
static inline vec8 v8_set(float a) {
    NF_V8_EACH(a);
}
static inline vec8 v8_zero(void) {
    NF_V8_EACH(0.0f);
}
static inline vec8 v8_add(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] + b.v[i]);
}
static inline vec8 v8_sub(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] - b.v[i]);
}
static inline vec8 v8_mul(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] * b.v[i]);
}
static inline vec8 v8_div(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] / b.v[i]);
}
static inline vec8 v8_fma(vec8 a, vec8 b, vec8 c) {
    NF_V8_EACH(fmaf(a.v[i], b.v[i], c.v[i]));
}
static inline vec8 v8_max(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
static inline vec8 v8_min(vec8 a, vec8 b) {
    NF_V8_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}
static inline vec8 v8_round(vec8 a) {
    NF_V8_EACH(rintf(a.v[i]));
}
static inline vec8 v8_exp2_int(vec8 n) {
    vec8 r;
    for (int i = 0; i < 8; i++) {
        /* NaN and infinities never get here: the callers clamp. */
        uint32_t bits = (uint32_t)((int32_t)n.v[i] + 127) << 23;
        memcpy(&r.v[i], &bits, sizeof bits);
    }
    return r;
}
static inline void v8_transpose(vec8 r[8]) {
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) {
            float t = r[i].v[j];
            r[i].v[j] = r[j].v[i];
            r[j].v[i] = t;
        }
}
#undef NF_V8_EACH

#endif

/* Loads n (0..8) floats, the other lanes are `fill`. */
static inline vec8 v8_load_n(const float *p, size_t n, float fill) {
    float t[8];
    for (size_t i = 0; i < 8; i++) t[i] = i < n ? p[i] : fill;
    return v8_load(t);
}

static inline void v8_store_n(float *p, size_t n, vec8 a) {
    float t[8];
    v8_store(t, a);
    for (size_t i = 0; i < n && i < 8; i++) p[i] = t[i];
}

/* Adds the lanes by the tree 4, 2, 1. */
static inline float v8_sum(vec8 a) {
    float t[8];
    v8_store(t, a);
    for (int s = 4; s; s /= 2)
        for (int i = 0; i < s; i++) t[i] += t[i + s];
    return t[0];
}

static inline float v8_max_lane(vec8 a) {
    float t[8];
    v8_store(t, a);
    for (int s = 4; s; s /= 2)
        for (int i = 0; i < s; i++) t[i] = t[i] > t[i + s] ? t[i] : t[i + s];
    return t[0];
}

/*
 * e^x, relative error below 2^-22: n = round(x log2 e), r = x - n ln 2 in two parts (Cody-Waite), a
 * polynomial of degree 7 in r (the Taylor coefficients; |r| <= 0.3466 makes the next term 5e-9 relative),
 * times 2^n. x is clamped to
 * [-87, 88]: the result is always a normal number; a NaN becomes exp(-87) (min/max drop it), the callers
 * check their inputs for NaN.
 */
#define NF_VEC_EXP(vec, v)                                                                                   \
    static inline vec v##_exp(vec x) {                                                                       \
        x = v##_min(v##_max(x, v##_set(-87.0f)), v##_set(88.0f));                                            \
        vec n = v##_round(v##_mul(x, v##_set(1.44269504f)));                                                 \
        vec r = v##_fma(n, v##_set(-0.693359375f), x);                                                       \
        r = v##_fma(n, v##_set(2.12194440e-4f), r);                                                          \
        vec p = v##_set(1.98412698e-4f);                                                                     \
        p = v##_fma(p, r, v##_set(1.38888889e-3f));                                                          \
        p = v##_fma(p, r, v##_set(8.33333333e-3f));                                                          \
        p = v##_fma(p, r, v##_set(4.16666667e-2f));                                                          \
        p = v##_fma(p, r, v##_set(1.66666667e-1f));                                                          \
        p = v##_fma(p, r, v##_set(0.5f));                                                                    \
        p = v##_fma(p, r, v##_set(1.0f));                                                                    \
        p = v##_fma(p, r, v##_set(1.0f));                                                                    \
        return v##_mul(p, v##_exp2_int(n));                                                                  \
    }
NF_VEC_EXP(vec8, v8)

/* 1 / (1 + e^-x) */
static inline vec8 v8_sigmoid(vec8 x) {
    vec8 one = v8_set(1.0f);
    return v8_div(one, v8_add(one, v8_exp(v8_sub(v8_zero(), x))));
}

/* x / (1 + e^-x) */
static inline vec8 v8_silu(vec8 x) {
    return v8_div(x, v8_add(v8_set(1.0f), v8_exp(v8_sub(v8_zero(), x))));
}

#endif
