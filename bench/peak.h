/*
 * The most f32 multiply-adds that a level's vectors do in a second: independent chains in registers, nothing
 * from memory. Each level's file (peak_avx2.c, peak_avx512.c) includes this after it has chosen its vec16;
 * others see the declarations only.
 */
#ifndef NF_BENCH_PEAK_H
#define NF_BENCH_PEAK_H

#include <stddef.h>

/* Chains of 16 lanes: enough for two units with a latency of four, few enough for the level's registers. */
#if defined(NF_VEC8_AVX2) && !defined(NF_VEC16_AVX512)
#define NF_PEAK_CHAINS 6
#else
#define NF_PEAK_CHAINS 12
#endif

/* Does `rounds` multiply-adds in each chain and returns how many flops that were. What is left in the
 * registers goes to *sink, so that the compiler leaves nothing out. */
double nf_peak_avx2(size_t rounds, float *sink);
double nf_peak_avx512(size_t rounds, float *sink);

#ifdef NF_PEAK_FUNCTION
#include "cpu/vec16.h"

double NF_PEAK_FUNCTION(size_t rounds, float *sink) {
    vec16 a[NF_PEAK_CHAINS], all = v16_set(0.0f);
    const vec16 x = v16_set(0.999f), y = v16_set(0.001f);
    for (int i = 0; i < NF_PEAK_CHAINS; i++) a[i] = v16_set((float)i);
    for (size_t r = 0; r < rounds; r++)
        for (int i = 0; i < NF_PEAK_CHAINS; i++) a[i] = v16_fma(a[i], x, y);
    for (int i = 0; i < NF_PEAK_CHAINS; i++) all = v16_add(all, a[i]);
    *sink = v16_sum(all);
    return 2.0 * 16 * NF_PEAK_CHAINS * (double)rounds;
}
#endif

#endif
