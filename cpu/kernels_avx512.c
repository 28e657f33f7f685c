/*
 * AVX-512 + VNNI kernels. Integer tiles are int_tiles.h with vpdpbusd: one input row takes a tile at a time
 * on 256-bit vectors (bound by the memory), several rows take two tiles on 512-bit vectors
 * (kernels_wide_avx512.c: each broadcast of inputs then serves twice the weights). Rows are quantised by the
 * AVX2 level, float kernels run over eight lanes.
 */
#include "cpu/kernels_internal.h"

#ifdef __AVX512VNNI__

#define NF_VEC8_AVX2
#define NF_VEC16_AVX512
#define NF_ATTENTION_AT_ONCE 8
#define NF_TILES_VNNI
#define NF_TILES_AHEAD 6144
#include "cpu/attention_kernels.h"
#include "cpu/delta_kernels.h"
#include "cpu/float_kernels.h"
#include "cpu/float_tiles.h"
#include "cpu/int_tiles.h"

void nf_int_tile_avx512(const nf_weights *w, size_t first, const nf_rows *in, const uint32_t *index, size_t n,
                        float *out, size_t out_stride) {
    for (size_t j = 0; j < n; j += 4)
        int_tile_rows(w, first, in, index, j, n - j < 4 ? n - j : 4, out + j * out_stride, out_stride);
}

void nf_tiles_avx512(const nf_weights *w, size_t first, size_t count, const nf_rows *in,
                     const uint32_t *index, size_t n, float *out) {
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tiles(w, first, count, in, index, n, out);
        return;
    }
    const size_t stride = NF_TILE_ROWS * count;
    size_t t = 0;
    if (n > 1)
        for (; t + 2 <= count; t += 2)
            nf_int_tile_pair_avx512(w, first + t, in, index, n, out + NF_TILE_ROWS * t, stride);
    for (; t < count; t++) nf_int_tile_avx512(w, first + t, in, index, n, out + NF_TILE_ROWS * t, stride);
}

const nf_kernels nf_kernels_avx512 = {
    .name = "avx512",
    .quantise_row = nf_quantise_row_avx2,
    .tiles = nf_tiles_avx512,
    NF_FLOAT_KERNELS,
    NF_ATTENTION_KERNELS,
    .delta_rule = k_delta_rule,
};

/* AMX multiplies integers faster where there are many rows; the rest is the same. */
const nf_kernels nf_kernels_amx = {
    .name = "amx",
    .quantise_row = nf_quantise_row_avx2,
    .tiles = nf_tiles_amx,
    NF_FLOAT_KERNELS,
    NF_ATTENTION_KERNELS,
    .delta_rule = k_delta_rule,
};

#else
typedef int nf_no_avx512; /* an empty translation unit is not valid C */
#endif
