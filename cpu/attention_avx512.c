/* The attention kernel over AVX-512, 8 rows at a time. */
#ifdef __AVX512VNNI__

#define NF_VEC8_AVX2
#define NF_VEC16_AVX512
#define NF_ATTENTION_AT_ONCE 8
#include "cpu/attention_kernels.h"

bool nf_attention_block_avx512(const nf_attention_rows *rows, const float *kv) {
    return attention_block(rows, kv);
}

#else
typedef int nf_no_attention_avx512; /* an empty translation unit is not valid C */
#endif
