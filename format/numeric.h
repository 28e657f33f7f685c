/* Scalar conversions between f32 and the small float formats: exact, round-half-even, no library, no
 * hardware. */
#ifndef NF_FORMAT_NUMERIC_H
#define NF_FORMAT_NUMERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float nf_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t nf_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float nf_bf16_to_f32(uint16_t h) {
    return nf_f32_from_bits((uint32_t)h << 16);
}

/* Round half to even; NaN stays NaN. */
static inline uint16_t nf_f32_to_bf16(float f) {
    uint32_t bits = nf_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float nf_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return nf_f32_from_bits(sign | 0x7f800000u | (m << 13));
    if (e) return nf_f32_from_bits(sign | ((e + 112u) << 23) | (m << 13));
    /* Zero and subnormals: m * 2^-24 is exact in f32. */
    float v = (float)m * 0x1p-24f;
    return nf_f32_from_bits(nf_f32_bits(v) | sign);
}

/* Round half to even; overflow gives infinity, subnormals are kept. */
static inline uint16_t nf_f32_to_f16(float f) {
    uint32_t bits = nf_f32_bits(f), sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520 rounds to infinity */
    if (a < 0x38800000u) {                                   /* below 2^-14: subnormal, steps of 2^-24 */
        /* Adding 2^-1 (ulp 2^-24) rounds to the subnormal grid half to even; a < 2^-14 keeps this exact. */
        float r = nf_f32_from_bits(a) + 0.5f;
        return (uint16_t)(sign | (nf_f32_bits(r) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

/* e4m3 (OCP FP8 E4M3FN: no infinity, 0x7f and 0xff are NaN, largest 448). */
static inline float nf_e4m3_to_f32(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, e = (b >> 3) & 15u, m = b & 7u;
    if (e == 15 && m == 7) return nf_f32_from_bits(sign | 0x7fc00000u);
    if (e) return nf_f32_from_bits(sign | ((e + 120u) << 23) | (m << 20));
    float v = (float)m * 0x1p-9f;
    return nf_f32_from_bits(nf_f32_bits(v) | sign);
}

/* Round half to even, saturating at +-448; NaN gives 0x7f. */
static inline uint8_t nf_f32_to_e4m3(float f) {
    uint32_t bits = nf_f32_bits(f), sign = (bits >> 24) & 0x80u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= 0x43e80000u) return (uint8_t)(sign | 0x7eu); /* >= 464 would round past 448 */
    if (a < 0x3c800000u) {                                /* below 2^-6: steps of 2^-9 */
        float r = nf_f32_from_bits(a) + 0x1p14f;          /* ulp of 2^14 is 2^-9 */
        return (uint8_t)(sign | (nf_f32_bits(r) - 0x46800000u));
    }
    uint32_t r = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
    return (uint8_t)(sign | (r > 0x7eu ? 0x7eu : r));
}

#endif
