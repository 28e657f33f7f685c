/*
 * Sixteen elements of the KV cache as f32, one form for each type and vector width. All conversions are
 * exact, so every form gives the same bytes. `type` is a constant where these are inlined.
 */
#ifndef NF_CPU_KV_LOAD_H
#define NF_CPU_KV_LOAD_H

#include "cpu/kv.h"
#include "cpu/vec16.h"
#include "format/numeric.h"

#define NF_KV_CALL static inline __attribute__((always_inline))

/* Asks for the line of element i + ahead, once for each line: step counts in sixteens of elements. */
NF_KV_CALL void kv_ahead(nf_kv_type type, const uint8_t *elements, size_t i, size_t ahead, size_t step) {
    const size_t bytes = type == NF_KV_F32 ? 4 : type == NF_KV_BF16 ? 2 : 1;
    if (step % (4 / bytes) == 0) __builtin_prefetch(elements + bytes * (i + ahead), 0, 2);
}

/* e4m3 / 256 by way of f16, whose exponent bias is 8 larger: the sign extended byte shifted by 7 has the sign
 * in bits 15 and 14. Codes of NaN are never stored. */
#ifdef NF_VEC16_AVX512
NF_KV_CALL vec16 kv_load(nf_kv_type type, const uint8_t *elements, size_t i) {
    if (type == NF_KV_F32) return v16_load((const float *)(const void *)elements + i);
    if (type == NF_KV_BF16) {
        const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(elements + 2 * i));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    }
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(elements + i));
    if (type == NF_KV_Q8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
    return _mm512_cvtph_ps(
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7), _mm256_set1_epi16((short)0xbfff)));
}
#else
#ifdef NF_VEC8_AVX2
NF_KV_CALL vec8 kv_load8(nf_kv_type type, const uint8_t *elements, size_t i) {
    if (type == NF_KV_F32) return v8_load((const float *)(const void *)elements + i);
    if (type == NF_KV_BF16) {
        const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(elements + 2 * i));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    const __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(elements + i));
    if (type == NF_KV_Q8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(b), 7), _mm_set1_epi16((short)0xbfff)));
}
#else
NF_KV_CALL float kv_element(nf_kv_type type, const uint8_t *elements, size_t i) {
    if (type == NF_KV_Q8) return (float)(int8_t)elements[i];
    if (type == NF_KV_FP8) return nf_e4m3_to_f32(elements[i]) * 0x1p-8f;
    uint16_t h;
    memcpy(&h, elements + 2 * i, sizeof h);
    return nf_bf16_to_f32(h);
}
NF_KV_CALL vec8 kv_load8(nf_kv_type type, const uint8_t *elements, size_t i) {
    if (type == NF_KV_F32) return v8_load((const float *)(const void *)elements + i);
    float t[8];
    for (size_t e = 0; e < 8; e++) t[e] = kv_element(type, elements, i + e);
    return v8_load(t);
}
#endif
NF_KV_CALL vec16 kv_load(nf_kv_type type, const uint8_t *elements, size_t i) {
    return (vec16){kv_load8(type, elements, i), kv_load8(type, elements, i + 8)};
}
#endif

#endif
