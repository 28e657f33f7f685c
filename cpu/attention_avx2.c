/* The attention kernel over AVX2, 4 rows at a time. */
#ifdef __AVX2__

#define NF_VEC8_AVX2
#define NF_ATTENTION_AT_ONCE 4
#include "cpu/attention_kernels.h"

bool nf_attention_block_avx2(const nf_attention_rows *rows, const float *kv) {
    return attention_block(rows, kv);
}

#else
typedef int nf_no_attention_avx2; /* an empty translation unit is not valid C */
#endif
