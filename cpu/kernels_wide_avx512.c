/* Integer tiles two at a time on 512-bit vectors: the AVX-512 level's form for more than one input row. */
#include "cpu/kernels_internal.h"

#ifdef __AVX512VNNI__

#define NF_VEC8_AVX2
#define NF_TILES_VNNI
#define NF_TILES_WIDE
#include "cpu/int_tiles.h"

void nf_int_tile_pair_avx512(const nf_weights *w, size_t first, const nf_rows *in, const uint32_t *index,
                             size_t n, float *out, size_t out_stride) {
    for (size_t j = 0; j < n; j += 4)
        int_tile_rows(w, first, in, index, j, n - j < 4 ? n - j : 4, out + j * out_stride, out_stride);
}

#else
typedef int nf_no_wide_avx512; /* an empty translation unit is not valid C */
#endif
