/* The kernel tables of the instruction-set levels; only dispatch.c and the levels include this. */
#ifndef NF_CPU_KERNELS_INTERNAL_H
#define NF_CPU_KERNELS_INTERNAL_H

#include "cpu/kernels.h"

extern const nf_kernels nf_kernels_portable;
#if defined(__x86_64__)
extern const nf_kernels nf_kernels_avx2;
extern const nf_kernels nf_kernels_avx512;

/* nf_kernels.quantise_row of both. */
bool nf_quantise_row_avx2(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum);

extern const nf_kernels nf_kernels_amx; /* in kernels_avx512.c: only `tiles` differs */

/* nf_kernels.tiles */
void nf_tiles_avx512(const nf_weights *w, size_t first, size_t count, const nf_rows *in,
                     const uint32_t *index, size_t n, float *out);
void nf_tiles_amx(const nf_weights *w, size_t first, size_t count, const nf_rows *in, const uint32_t *index,
                  size_t n, float *out);

/* Tile `first`, or tiles `first` and `first + 1`, of an integer-dot type for n rows: 8 or 16 outputs at out +
 * j
 * * out_stride. */
void nf_int_tile_avx512(const nf_weights *w, size_t first, const nf_rows *in, const uint32_t *index, size_t n,
                        float *out, size_t out_stride);
void nf_int_tile_pair_avx512(const nf_weights *w, size_t first, const nf_rows *in, const uint32_t *index,
                             size_t n, float *out, size_t out_stride);
#endif

#endif
