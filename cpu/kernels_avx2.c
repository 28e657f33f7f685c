/*
 * AVX2 + FMA kernels: rows are quantised here, integer tiles come from int_tiles.h (vpmaddubsw), float
 * kernels and tiles from float_kernels.h and float_tiles.h over __m256.
 */
#include "cpu/kernels_internal.h"

#ifdef __AVX2__

#define NF_VEC8_AVX2
#define NF_ATTENTION_AT_ONCE 4
#define NF_TILES_AHEAD 6144
#include "cpu/attention_kernels.h"
#include "cpu/delta_kernels.h"
#include "cpu/float_kernels.h"
#include "cpu/float_tiles.h"
#include "cpu/int_tiles.h"

#include <string.h>

bool nf_quantise_row_avx2(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 bad = _mm256_setzero_ps();
    const size_t groups = kp / NF_GROUP;
    for (size_t g = 0; g < groups; g++, x += NF_GROUP, q += NF_GROUP) {
        __m256 v[4], m = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            __m256 a = _mm256_and_ps(v[i], magnitude);
            /* Not less than infinity: infinity or NaN. */
            bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, infinity, _CMP_NLT_UQ));
            m = _mm256_max_ps(a, m);
        }
        float absmax = v8_max_lane(m);
        if (absmax < 0x1p-100f) {
            _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
            scale[g] = 0.0f;
            sum[g] = 0;
            continue;
        }
        __m256 inverse = _mm256_set1_ps(127.0f / absmax);
        __m256i n[4];
        for (int i = 0; i < 4; i++) n[i] = _mm256_cvtps_epi32(v8_round(_mm256_mul_ps(v[i], inverse)));
        __m256i s = _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
        __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xB1));
        sum[g] = _mm_cvtsi128_si32(h);
        scale[g] = absmax / 127.0f;
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(packed, order));
    }
    if (!_mm256_movemask_ps(bad)) return true;
    memset(q - kp, 0, kp);
    memset(sum, 0, groups * sizeof *sum);
    return false;
}

static void tiles(const nf_weights *w, size_t first, size_t count, const nf_rows *in, const uint32_t *index,
                  size_t n, float *out) {
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tiles(w, first, count, in, index, n, out);
        return;
    }
    const size_t stride = NF_TILE_ROWS * count;
    for (size_t t = 0; t < count; t++)
        for (size_t j = 0; j < n; j += 4)
            int_tile_rows(w, first + t, in, index, j, n - j < 4 ? n - j : 4,
                          out + j * stride + NF_TILE_ROWS * t, stride);
}

const nf_kernels nf_kernels_avx2 = {
    .name = "avx2",
    .quantise_row = nf_quantise_row_avx2,
    .tiles = tiles,
    NF_FLOAT_KERNELS,
    NF_ATTENTION_KERNELS,
    .delta_rule = k_delta_rule,
};

#else
typedef int nf_no_avx2; /* an empty translation unit is not valid C */
#endif
