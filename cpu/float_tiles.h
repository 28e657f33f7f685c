/*
 * Float matrices in tile layout (contract A, step 4), written once over vec8 and compiled for every level:
 *
 *   p = fma(w_i, x_i, p) from +0 for i = 0..31 of a group; acc[g mod 32] += p (f8: fma(scale, p, acc)); tree
 *
 * Storage: blocks of 32 columns x 8 rows, column after column, so that one load is one column of all rows.
 * Bytes read: one block for n rows; the chain of 32 fmas is hidden by the blocks around it.
 */
#ifndef NF_CPU_FLOAT_TILES_H
#define NF_CPU_FLOAT_TILES_H

#include "cpu/kernels.h"
#include "cpu/lanes.h"
#include "format/numeric.h"

/* Column i of a block, widened. */
static inline __attribute__((always_inline)) vec8 load_column(nf_type type, const uint8_t *block, size_t i) {
    if (type == NF_TYPE_F32) {
        return v8_load((const float *)(const void *)(block + 32 * i)); /* blocks are aligned to 16 bytes */
    }
#ifdef NF_VEC8_AVX2
    const __m128i *at = (const __m128i *)(const void *)(block + (type == NF_TYPE_F8 ? 8 : 16) * i);
    if (type == NF_TYPE_F16) return _mm256_cvtph_ps(_mm_loadu_si128(at));
    if (type == NF_TYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
    /* e4m3 by way of f16, whose exponent bias is 8 larger; NaN codes give NaN. */
    __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64(at)), magnitude = _mm_and_si128(b, _mm_set1_epi16(0x7f));
    __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    __m128i half = _mm_or_si128(_mm_slli_epi16(magnitude, 7), _mm_slli_epi16(_mm_sub_epi16(b, magnitude), 8));
    return v8_mul(_mm256_cvtph_ps(_mm_or_si128(half, nan)), v8_set(256.0f));
#else
    float t[8];
    if (type == NF_TYPE_F8) {
        for (size_t r = 0; r < 8; r++) t[r] = nf_e4m3_to_f32(block[8 * i + r]);
        return v8_load(t);
    }
    for (size_t r = 0; r < 8; r++) {
        uint16_t h;
        memcpy(&h, block + 2 * (8 * i + r), sizeof h);
        t[r] = type == NF_TYPE_F16 ? nf_f16_to_f32(h) : nf_bf16_to_f32(h);
    }
    return v8_load(t);
#endif
}

/* n (1..4) rows x[j] against one tile; type and n are constants where this is inlined. */
static inline __attribute__((always_inline)) void float_tile(nf_type type, size_t n, const nf_weights *w,
                                                             size_t tile, size_t groups,
                                                             const float *const *x, float *out,
                                                             size_t stride) {
    const size_t element = type == NF_TYPE_F32 ? 4 : type == NF_TYPE_F8 ? 1 : 2;
    const uint8_t *block = w->tiles + tile * w->tile_stride;
    const float *scales = NULL;
    if (type == NF_TYPE_F8)
        scales = w->table + tile * NF_TILE_ROWS / NF_F8_BLOCK * ((w->cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK);
    vec8 acc[4][NF_LANES];
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < lanes_in_use(groups); i++) acc[j][i] = v8_zero();
    /* One row alone takes four groups at once: their chains of fmas do not wait for each other. */
    const size_t block_bytes = NF_GROUP * NF_TILE_ROWS * element, together = n == 1 ? 4 : 1;
    for (size_t g = 0; g < groups;) {
        const size_t m = groups - g < together ? 1 : together;
        vec8 p[4] = {v8_zero(), v8_zero(), v8_zero(), v8_zero()};
        for (size_t i = 0; i < NF_GROUP; i++)
            for (size_t b = 0; b < m; b++) {
                const vec8 column = load_column(type, block + b * block_bytes, i);
                for (size_t j = 0; j < n; j++)
                    p[n == 1 ? b : j] =
                        v8_fma(column, v8_set(x[j][(g + b) * NF_GROUP + i]), p[n == 1 ? b : j]);
            }
        for (size_t b = 0; b < m; b++, g++, block += block_bytes)
            for (size_t j = 0; j < n; j++) {
                const vec8 part = p[n == 1 ? b : j];
                vec8 *lane = &acc[j][g % NF_LANES];
                *lane = type == NF_TYPE_F8 ? v8_fma(v8_set(scales[g * NF_GROUP / NF_F8_BLOCK]), part, *lane)
                                           : v8_add(*lane, part);
            }
    }
    for (size_t j = 0; j < n; j++) v8_store(out + j * stride, lane_tree(acc[j], groups));
}

typedef void (*float_tile_fn)(const nf_weights *w, size_t tile, size_t groups, const float *const *x,
                              float *out, size_t stride);

#define NF_FLOAT_TILE(name, type, n)                                                                         \
    static void name##_##n(const nf_weights *w, size_t tile, size_t groups, const float *const *x, float *o, \
                           size_t stride) {                                                                  \
        float_tile(type, n, w, tile, groups, x, o, stride);                                                  \
    }
#define NF_FLOAT_TILES(name, type)                                                                           \
    NF_FLOAT_TILE(name, type, 1)                                                                             \
    NF_FLOAT_TILE(name, type, 2)                                                                             \
    NF_FLOAT_TILE(name, type, 3)                                                                             \
    NF_FLOAT_TILE(name, type, 4)
NF_FLOAT_TILES(f32, NF_TYPE_F32)
NF_FLOAT_TILES(f16, NF_TYPE_F16)
NF_FLOAT_TILES(bf16, NF_TYPE_BF16)
NF_FLOAT_TILES(f8, NF_TYPE_F8)
#undef NF_FLOAT_TILES
#undef NF_FLOAT_TILE

/* nf_kernels.tiles for float types: rows in fours. */
static void k_float_tiles(const nf_weights *w, size_t first, size_t count, const nf_rows *in,
                          const uint32_t *index, size_t n, float *out) {
    static const float_tile_fn forms[][4] = {
        [NF_TYPE_F32] = {f32_1, f32_2, f32_3, f32_4},
        [NF_TYPE_F16] = {f16_1, f16_2, f16_3, f16_4},
        [NF_TYPE_BF16] = {bf16_1, bf16_2, bf16_3, bf16_4},
        [NF_TYPE_F8] = {f8_1, f8_2, f8_3, f8_4},
    };
    const size_t groups = in->kp / NF_GROUP, stride = NF_TILE_ROWS * count;
    for (size_t t = 0; t < count; t++)
        for (size_t j = 0; j < n; j += 4) {
            const size_t m = n - j < 4 ? n - j : 4;
            const float *x[4];
            for (size_t i = 0; i < m; i++) x[i] = in->x + (index ? index[j + i] : j + i) * in->kp;
            forms[w->format.type][m - 1](w, first + t, groups, x, out + j * stride + NF_TILE_ROWS * t,
                                         stride);
        }
}

#endif
