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
#endif

#endif
