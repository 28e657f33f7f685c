/* See peak.h. */
#ifdef __AVX2__
#define NF_VEC8_AVX2
#define NF_PEAK_FUNCTION nf_peak_avx2
#include "bench/peak.h"
#else
typedef int nf_no_avx2;
#endif
