/*
 * AVX-512 + VNNI kernels. Integer-dot tiles are written here; rows are quantised by the AVX2 level and float
 * kernels come from float_kernels.h over eight lanes, as at every level.
 *
 * Integer tile: vpdpbusd multiplies unsigned by signed bytes and adds four products to an int32 without
 * saturation, so every type is brought to unsigned weights u = w + bias (nibbles as they are: bias 8;
 * codebook values and int8 moved by 128), and dot = sum u q - bias * sum q, with sum q known for each group.
 * Exact, hence the same bytes as every other level.
 */
#include "cpu/kernels_internal.h"

#ifdef __AVX512VNNI__

#define NF_VEC8_AVX2
#include "cpu/float_kernels.h"

typedef enum unpack_kind { UNPACK_NIBBLES, UNPACK_CODEBOOK, UNPACK_I8 } unpack_kind;

/* [8] sums in row order of d0: rows 0..3, d1: rows 4..7, four int32 a row. */
static inline __m256i reduce_rows(__m512i d0, __m512i d1) {
    const __m256i natural = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_hadd_epi32(_mm512_castsi512_si256(d0), _mm512_extracti64x4_epi64(d0, 1));
    __m256i high = _mm256_hadd_epi32(_mm512_castsi512_si256(d1), _mm512_extracti64x4_epi64(d1, 1));
    return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(low, high), natural);
}

/* Adds the two 256-bit halves' neighbours: d holds rows 2i (low half) and 2i+1 (high half), eight int32 a
 * row; gives four int32 a row in the order that reduce_rows expects, for two such vectors (rows 4i..4i+3). */
static inline __m512i fold_rows(__m512i a, __m512i b) {
    /* 128-bit lanes of a: r0 r0' r1 r1', of b: r2 r2' r3 r3' */
    __m512i first = _mm512_shuffle_i64x2(a, b, 0x88), second = _mm512_shuffle_i64x2(a, b, 0xDD);
    return _mm512_add_epi32(first, second);
}

static inline __attribute__((always_inline)) void int_tile(unpack_kind kind, const nf_weights *w, size_t t,
                                                           const nf_rows *in, const uint32_t *index,
                                                           const size_t n, float *out) {
    const size_t groups = in->kp / NF_GROUP, block_bytes = kind == UNPACK_I8 ? 16 + 8 * 32 : 16 + 8 * 16;
    const int bias_bits = kind == UNPACK_NIBBLES ? 3 : 7; /* bias 8 or 128 */
    const uint8_t *block = w->tiles + t * w->tile_stride;
    const __m512i low = _mm512_set1_epi8(15), top = _mm512_set1_epi8((char)0x80);
    __m512i lut = _mm512_setzero_si512();
    if (kind == UNPACK_CODEBOOK)
        lut = _mm512_xor_si512(
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)nf_codebook_values(w->format.codebook))),
            top);
    vec8 acc[4][32];
    const int8_t *q[4];
    const float *scale[4];
    const int32_t *sum[4];
    for (size_t j = 0; j < n; j++) {
        size_t row = index ? index[j] : j;
        q[j] = in->q + row * in->kp;
        scale[j] = in->scale + row * groups;
        sum[j] = in->sum + row * groups;
        for (size_t i = 0; i < lanes_in_use(groups); i++) acc[j][i] = v8_zero();
    }
    for (size_t g = 0; g < groups; g++, block += block_bytes) {
        /* About 2 kB ahead: the hardware prefetcher stops at page ends, tiles are contiguous beyond them. */
        for (size_t i = 0; i < block_bytes; i += 64)
            _mm_prefetch((const char *)(block + 2048 + i), _MM_HINT_T0);
        vec8 sw = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)block));
        __m512i u[4];
        if (kind == UNPACK_I8) {
            for (int i = 0; i < 4; i++) u[i] = _mm512_xor_si512(_mm512_loadu_si512(block + 16 + 64 * i), top);
        } else {
            for (int i = 0; i < 2; i++) {
                __m512i raw = _mm512_loadu_si512(block + 16 + 64 * i);
                u[i] = _mm512_and_si512(raw, low);
                u[2 + i] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), low);
            }
            if (kind == UNPACK_CODEBOOK)
                for (int i = 0; i < 4; i++) u[i] = _mm512_shuffle_epi8(lut, u[i]);
        }
        for (size_t j = 0; j < n; j++) {
            const int8_t *x = q[j] + g * NF_GROUP;
            const __m512i zero = _mm512_setzero_si512();
            __m512i d0, d1;
            if (kind == UNPACK_I8) {
                __m512i xv = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)x)), d[4];
                for (int i = 0; i < 4; i++) d[i] = _mm512_dpbusd_epi32(zero, u[i], xv);
                d0 = fold_rows(d[0], d[1]);
                d1 = fold_rows(d[2], d[3]);
            } else {
                __m512i xl = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)x));
                __m512i xh = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(x + 16)));
                d0 = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, u[0], xl), u[2], xh);
                d1 = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, u[1], xl), u[3], xh);
            }
            __m256i correction = _mm256_slli_epi32(_mm256_set1_epi32(sum[j][g]), bias_bits);
            __m256i dot = _mm256_sub_epi32(reduce_rows(d0, d1), correction);
            vec8 s = v8_mul(sw, v8_set(scale[j][g]));
            acc[j][g % 32] = v8_fma(s, _mm256_cvtepi32_ps(dot), acc[j][g % 32]);
        }
    }
    for (size_t j = 0; j < n; j++) v8_store(out + 8 * j, lane_tree(acc[j], groups));
}

/* One compiled form for each type and number of rows. */
#define NF_INT_TILES(kind)                                                                                   \
    switch (m) {                                                                                             \
    case 1:                                                                                                  \
        int_tile(kind, w, t, &part, at, 1, to);                                                              \
        break;                                                                                               \
    case 2:                                                                                                  \
        int_tile(kind, w, t, &part, at, 2, to);                                                              \
        break;                                                                                               \
    case 3:                                                                                                  \
        int_tile(kind, w, t, &part, at, 3, to);                                                              \
        break;                                                                                               \
    default:                                                                                                 \
        int_tile(kind, w, t, &part, at, 4, to);                                                              \
        break;                                                                                               \
    }

static void tile(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index, size_t n,
                 float *out) {
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tile(w, t, in, index, n, out);
        return;
    }
    const size_t groups = in->kp / NF_GROUP;
    for (size_t j = 0; j < n; j += 4) {
        const size_t m = n - j < 4 ? n - j : 4;
        const uint32_t *at = index ? index + j : NULL;
        float *to = out + 8 * j;
        nf_rows part = *in;
        if (!index) {
            part.q += j * in->kp;
            part.scale += j * groups;
            part.sum += j * groups;
        }
        if (w->format.type == NF_TYPE_I8) {
            NF_INT_TILES(UNPACK_I8)
        } else if (w->format.codebook == NF_CODEBOOK_LINEAR) {
            NF_INT_TILES(UNPACK_NIBBLES)
        } else {
            NF_INT_TILES(UNPACK_CODEBOOK)
        }
    }
}

const nf_kernels nf_kernels_avx512 = {
    .name = "avx512",
    .quantise_row = nf_quantise_row_avx2,
    .tile = tile,
    NF_FLOAT_KERNELS,
};

#else
typedef int nf_no_avx512; /* an empty translation unit is not valid C */
#endif
