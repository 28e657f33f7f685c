/* See peak.h. */
#ifdef __AVX512F__
#define NF_VEC8_AVX2
#define NF_VEC16_AVX512
#define NF_PEAK_FUNCTION nf_peak_avx512
#include "bench/peak.h"
#else
typedef int nf_no_avx512;
#endif
