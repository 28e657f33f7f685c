/*
 * AVX2 + FMA kernels. Integer-dot tiles are written here; float kernels come from float_kernels.h over
 * __m256.
 *
 * Integer tile, n = 1..4 input rows: for each block (8 rows x 32 columns) the weights are unpacked once; for
 * each input row, products of unsigned weights (or |weights| against inputs with the sign moved over) are
 * summed in pairs to int16 by vpmaddubsw (at most 2 x 128 x 127 < 2^15, or 4 x 15 x 127 for plain nibbles),
 * to int32 by vpmaddwd, and by three vphaddd to the 8 exact group sums; one fma adds them to lane g mod 32 of
 * the 8 rows. Bytes read: one block for n rows.
 */
#include "cpu/kernels_internal.h"

#ifdef __AVX2__

#define NF_VEC8_AVX2
#include "cpu/float_kernels.h"

bool nf_quantise_row_avx2(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 infinity = _mm256_set1_ps(INFINITY);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 bad = _mm256_setzero_ps();
    for (size_t g = 0; g < kp / NF_GROUP; g++, x += NF_GROUP, q += NF_GROUP) {
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
    return _mm256_movemask_ps(bad) == 0;
}

/* How the payload of a block becomes int8 operands. */
typedef enum unpack_kind { UNPACK_NIBBLES, UNPACK_CODEBOOK, UNPACK_I8 } unpack_kind;

/* Sums of pairs of products as int32: w signed int8 in any value, x in -127..127. */
static inline __m256i dot_signed(__m256i magnitude, __m256i w, __m256i x, __m256i ones) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w)), ones);
}

/* [8] group sums in natural row order; w: 4 vectors of two rows (low nibbles), hi: their high nibbles. */
static inline __m256i reduce_pairs(__m256i d0, __m256i d1, __m256i d2, __m256i d3) {
    const __m256i natural = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i d = _mm256_hadd_epi32(_mm256_hadd_epi32(d0, d1), _mm256_hadd_epi32(d2, d3));
    return _mm256_permutevar8x32_epi32(d, natural);
}

static inline void prefetch_block(const uint8_t *block, size_t bytes) {
    /* About 2 kB ahead: the hardware prefetcher stops at page ends, tiles are contiguous beyond them. */
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)(block + 2048 + i), _MM_HINT_T0);
}

static inline __attribute__((always_inline)) void int_tile(unpack_kind kind, const nf_weights *w, size_t t,
                                                           const nf_rows *in, const uint32_t *index,
                                                           const size_t n, float *out) {
    const size_t groups = in->kp / NF_GROUP, block_bytes = kind == UNPACK_I8 ? 16 + 8 * 32 : 16 + 8 * 16;
    const uint8_t *block = w->tiles + t * w->tile_stride;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i lut = _mm256_setzero_si256();
    if (kind == UNPACK_CODEBOOK)
        lut = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)nf_codebook_values(w->format.codebook)));
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
        prefetch_block(block, block_bytes);
        const __m256i *payload = (const __m256i *)(block + 16);
        vec8 sw = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)block));
        __m256i lo[8], hi[4], lo_abs[8], hi_abs[4];
        if (kind == UNPACK_I8) {
            for (int i = 0; i < 8; i++) {
                lo[i] = _mm256_loadu_si256(payload + i);
                lo_abs[i] = _mm256_abs_epi8(lo[i]);
            }
        } else {
            for (int i = 0; i < 4; i++) {
                __m256i raw = _mm256_loadu_si256(payload + i);
                lo[i] = _mm256_and_si256(raw, low);
                hi[i] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low);
                if (kind == UNPACK_CODEBOOK) {
                    lo[i] = _mm256_shuffle_epi8(lut, lo[i]);
                    hi[i] = _mm256_shuffle_epi8(lut, hi[i]);
                    lo_abs[i] = _mm256_abs_epi8(lo[i]);
                    hi_abs[i] = _mm256_abs_epi8(hi[i]);
                }
            }
        }
        for (size_t j = 0; j < n; j++) {
            const int8_t *x = q[j] + g * NF_GROUP;
            __m256i d;
            if (kind == UNPACK_I8) {
                __m256i xv = _mm256_loadu_si256((const __m256i *)x), p[8];
                for (int i = 0; i < 8; i++) p[i] = dot_signed(lo_abs[i], lo[i], xv, ones);
                __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
                __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
                d = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                     _mm256_permute2x128_si256(a, b, 0x31));
            } else {
                __m256i xl = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)x));
                __m256i xh = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(x + 16)));
                __m256i p[4];
                for (int i = 0; i < 4; i++) {
                    if (kind == UNPACK_CODEBOOK)
                        p[i] = _mm256_add_epi32(dot_signed(lo_abs[i], lo[i], xl, ones),
                                                dot_signed(hi_abs[i], hi[i], xh, ones));
                    else
                        p[i] = _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(lo[i], xl),
                                                                  _mm256_maddubs_epi16(hi[i], xh)),
                                                 ones);
                }
                d = reduce_pairs(p[0], p[1], p[2], p[3]);
                /* The nibbles were taken as 0..15 instead of -8..7. */
                if (kind == UNPACK_NIBBLES) d = _mm256_sub_epi32(d, _mm256_set1_epi32(8 * sum[j][g]));
            }
            vec8 s = v8_mul(sw, v8_set(scale[j][g]));
            acc[j][g % 32] = v8_fma(s, _mm256_cvtepi32_ps(d), acc[j][g % 32]);
        }
    }
    for (size_t j = 0; j < n; j++) v8_store(out + 8 * j, lane_tree(acc[j], groups));
}

#define NF_INT_TILE(name, kind, rows)                                                                        \
    static void name(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index, float *out) {  \
        int_tile(kind, w, t, in, index, rows, out);                                                          \
    }
NF_INT_TILE(nibbles_1, UNPACK_NIBBLES, 1)
NF_INT_TILE(nibbles_2, UNPACK_NIBBLES, 2)
NF_INT_TILE(nibbles_3, UNPACK_NIBBLES, 3)
NF_INT_TILE(nibbles_4, UNPACK_NIBBLES, 4)
NF_INT_TILE(codebook_1, UNPACK_CODEBOOK, 1)
NF_INT_TILE(codebook_2, UNPACK_CODEBOOK, 2)
NF_INT_TILE(codebook_3, UNPACK_CODEBOOK, 3)
NF_INT_TILE(codebook_4, UNPACK_CODEBOOK, 4)
NF_INT_TILE(i8_1, UNPACK_I8, 1)
NF_INT_TILE(i8_2, UNPACK_I8, 2)
NF_INT_TILE(i8_3, UNPACK_I8, 3)
NF_INT_TILE(i8_4, UNPACK_I8, 4)

typedef void (*int_tile_fn)(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index,
                            float *out);

static void tile(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index, size_t n,
                 float *out) {
    static const int_tile_fn table[3][4] = {
        [UNPACK_NIBBLES] = {nibbles_1, nibbles_2, nibbles_3, nibbles_4},
        [UNPACK_CODEBOOK] = {codebook_1, codebook_2, codebook_3, codebook_4},
        [UNPACK_I8] = {i8_1, i8_2, i8_3, i8_4},
    };
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tile(w, t, in, index, n, out);
        return;
    }
    unpack_kind kind = w->format.type == NF_TYPE_I8               ? UNPACK_I8
                       : w->format.codebook == NF_CODEBOOK_LINEAR ? UNPACK_NIBBLES
                                                                  : UNPACK_CODEBOOK;
    const size_t groups = in->kp / NF_GROUP;
    for (size_t j = 0; j < n; j += 4) {
        nf_rows part = *in;
        if (!index) {
            part.q += j * in->kp;
            part.scale += j * groups;
            part.sum += j * groups;
        }
        size_t m = n - j < 4 ? n - j : 4;
        table[kind][m - 1](w, t, &part, index ? index + j : NULL, out + 8 * j);
    }
}

const nf_kernels nf_kernels_avx2 = {
    .name = "avx2",
    .quantise_row = nf_quantise_row_avx2,
    .tile = tile,
    NF_FLOAT_KERNELS,
};

#else
typedef int nf_no_avx2; /* an empty translation unit is not valid C */
#endif
