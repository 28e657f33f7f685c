/* The kernel tables of the instruction-set levels; only dispatch.c and the levels include this. */
#ifndef NF_CPU_KERNELS_INTERNAL_H
#define NF_CPU_KERNELS_INTERNAL_H

#include "cpu/kernels.h"

extern const nf_kernels nf_kernels_portable;
#if defined(__x86_64__)
extern const nf_kernels nf_kernels_avx2;
#endif

#endif
