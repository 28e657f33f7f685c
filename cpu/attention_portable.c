/* The attention kernel in plain C, a row at a time. */
#define NF_ATTENTION_AT_ONCE 1
#include "cpu/attention_kernels.h"

bool nf_attention_block_portable(const nf_attention_rows *rows, const float *kv) {
    return attention_block(rows, kv);
}
