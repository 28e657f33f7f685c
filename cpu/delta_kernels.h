/*
 * The gated delta rule of all levels, written with vec16.h; see nf_delta_block in kernels.h and
 * docs/arithmetic.md, contract B. The including file has chosen the form of vec16.
 *
 * Columns of the state are independent. NF_DELTA_VECTORS vectors of 16 columns are walked at once over all
 * rows. A token needs S^T k before it may update S, thus two passes over S; the update of token t and the
 * first pass of token t + 1 are one walk, so that S is loaded and stored once for a token. Bytes moved for a
 * token: 2 x 4 x dk x columns, within the first-level cache (16 KiB at dk 128).
 */
#ifndef NF_CPU_DELTA_KERNELS_H
#define NF_CPU_DELTA_KERNELS_H

#include "cpu/kernels.h"
#include "cpu/vec16.h"

#include <string.h>

#ifdef NF_VEC16_AVX512
#define NF_DELTA_VECTORS 2
#else
#define NF_DELTA_VECTORS 1 /* two would not fit 16 registers */
#endif

/* One walk over the rows of S at `column`: with `update` S_i += k_i u and out = sum S_i q_i, then with `next`
 * S_i *= decay and sums = sum S_i next_k_i. */
static inline void delta_walk(const nf_delta_block *b, size_t column, bool update, bool next, const float *k,
                              const float *q, const float *next_k, float decay, const vec16 *u, vec16 *out,
                              vec16 *sums) {
    const vec16 g = v16_set(decay);
    vec16 o[NF_DELTA_VECTORS], n[NF_DELTA_VECTORS];
    for (int c = 0; c < NF_DELTA_VECTORS; c++) o[c] = n[c] = v16_set(0.0f);
    for (size_t i = 0; i < b->dk; i++) {
        for (int c = 0; c < NF_DELTA_VECTORS; c++) {
            float *at = b->s + NF_DELTA_COLUMNS * i + column + 16 * (size_t)c;
            vec16 row = v16_load(at);
            if (update) {
                row = v16_fma(v16_set(k[i]), u[c], row);
                o[c] = v16_fma(row, v16_set(q[i]), o[c]);
            }
            if (next) {
                row = v16_mul(row, g);
                n[c] = v16_fma(row, v16_set(next_k[i]), n[c]);
            }
            v16_store(at, row);
        }
    }
    for (int c = 0; c < NF_DELTA_VECTORS; c++) {
        out[c] = o[c];
        sums[c] = n[c];
    }
}

static void delta_columns(const nf_delta_block *b, size_t column) {
    enum { WIDTH = 16 * NF_DELTA_VECTORS };
    const size_t live = b->n_cols - column < WIDTH ? b->n_cols - column : WIDTH;
    float value[WIDTH] = {0}, result[WIDTH];
    vec16 u[NF_DELTA_VECTORS], sums[NF_DELTA_VECTORS], out[NF_DELTA_VECTORS];
    delta_walk(b, column, false, true, NULL, NULL, b->k, b->decay[0], NULL, out, sums);
    for (size_t t = 0; t < b->n_tokens; t++) {
        const float *k = b->k + t * b->qk_stride, *q = b->q + t * b->qk_stride;
        const vec16 beta = v16_set(b->beta[t * b->gate_stride]);
        memcpy(value, b->v + t * b->v_stride + column, live * sizeof *value);
        for (int c = 0; c < NF_DELTA_VECTORS; c++)
            u[c] = v16_mul(v16_sub(v16_load(value + 16 * c), sums[c]), beta);
        if (t + 1 < b->n_tokens)
            delta_walk(b, column, true, true, k, q, k + b->qk_stride, b->decay[(t + 1) * b->gate_stride], u,
                       out, sums);
        else
            delta_walk(b, column, true, false, k, q, NULL, 0.0f, u, out, sums);
        for (int c = 0; c < NF_DELTA_VECTORS; c++) v16_store(result + 16 * c, out[c]);
        memcpy(b->o + t * b->o_stride + column, result, live * sizeof *result);
    }
}

static void k_delta_rule(const nf_delta_block *block) {
    for (size_t column = 0; column < block->n_cols; column += 16 * NF_DELTA_VECTORS)
        delta_columns(block, column);
}

#endif
