/*
 * CPU kernels: one table of functions for each instruction-set level, chosen once. Every level gives the same
 * bytes (docs/arithmetic.md); kernels_portable.c is the oracle. Kernels know matrices, rows and heads; they
 * know nothing of models, files or threads.
 */
#ifndef NF_CPU_KERNELS_H
#define NF_CPU_KERNELS_H

#include "base/status.h"
#include "cpu/kv.h"
#include "format/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix [rows, cols] in tile layout. Borrowed memory. */
typedef struct nf_weights {
    nf_format format;
    size_t rows, cols;
    const uint8_t *tiles;
    size_t
        tile_stride; /* bytes from one tile of 8 rows to the next (gate and up tiles alternate in a bank) */
    const float *table; /* f8: [ceil(rows/128), ceil(cols/128)] scales; c4 with e4m3 scales: one f32 */
} nf_weights;

/* Input rows of a matrix product. `kp` is k rounded up to 32; what lies between is zero. Integer-dot matrices
 * read q, scale and sum (contract A, step 1), float matrices read x. */
typedef struct nf_rows {
    size_t k, kp;
    float *x;     /* [m, kp] */
    int8_t *q;    /* [m, kp] */
    float *scale; /* [m, kp/32] */
    int32_t *sum; /* [m, kp/32]: sum of q over the group */
} nf_rows;

/* Rows `row` and on. */
static inline nf_rows nf_rows_from(const nf_rows *rows, size_t row) {
    const size_t groups = rows->kp / NF_GROUP;
    return (nf_rows){.k = rows->k,
                     .kp = rows->kp,
                     .x = rows->x + row * rows->kp,
                     .q = rows->q + row * rows->kp,
                     .scale = rows->scale + row * groups,
                     .sum = rows->sum + row * groups};
}

/* The softmax of one query row so far: the largest score, and the sum of exp(score - max). */
typedef struct nf_attention_part {
    float max, sum;
} nf_attention_part;

#define NF_ATTENTION_ROWS 8 /* query rows (heads of a group, tokens) that share a read of K and V */

/* Query rows of one KV head, see attention_block. */
typedef struct nf_attention_rows {
    size_t n; /* 1..NF_ATTENTION_ROWS */
    const nf_kv_layout *layout;
    const float *q[NF_ATTENTION_ROWS];
    float *acc[NF_ATTENTION_ROWS]; /* [dim] */
    nf_attention_part *part[NF_ATTENTION_ROWS];
    size_t keys[NF_ATTENTION_ROWS]; /* 1..256: keys of the block that the row sees */
    bool first;                     /* nothing in acc and part yet */
    float scale;
    float *scratch; /* [nf_attention_scratch(dim)] */
} nf_attention_rows;

/* Floats of scratch memory: scores, scaled weights, queries. */
static inline size_t nf_attention_scratch(size_t dim) {
    return NF_ATTENTION_ROWS * (2 * NF_ATTENTION_BLOCK + dim);
}

#define NF_DELTA_COLUMNS 32 /* columns of a state matrix that lie together */

/* A block of columns of a Gated DeltaNet state and what n_tokens do to it, see delta_rule. Pointers are at
 * the block's first column and the first token; token t is t strides (in floats) further. */
typedef struct nf_delta_block {
    float *s;           /* [dk, NF_DELTA_COLUMNS]; zeros from column n_cols on, and they stay */
    size_t dk, n_cols;  /* n_cols: 1..NF_DELTA_COLUMNS */
    size_t n_tokens;    /* at least 1 */
    const float *q, *k; /* [dk] */
    size_t qk_stride;
    const float *v; /* [n_cols] */
    size_t v_stride;
    const float *decay, *beta;
    size_t gate_stride;
    float *o; /* [n_cols] */
    size_t o_stride;
} nf_delta_block;

typedef struct nf_kernels {
    const char *name;

    /* Quantises one row x [kp] to q [kp], scale [kp/32], sum [kp/32]. Returns false when x holds a NaN or
     * infinity: q and sum are then 0, so that products with them stay in range, and scale is unspecified. */
    bool (*quantise_row)(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum);

    /* Tiles first .. first + count - 1 for n input rows: out [n, 8 count], out[8 count j + 8 t + i] =
     * w[8 (first + t) + i] . in[index ? index[j] : j]. A tile is read once for up to 4 rows. */
    void (*tiles)(const nf_weights *w, size_t first, size_t count, const nf_rows *in, const uint32_t *index,
                  size_t n, float *out);

    /* sum of x[i]^2 in 8 lanes (i mod 8), tree 4, 2, 1. */
    float (*sum_squares)(const float *x, size_t n);
    /* a . b in 8 lanes. */
    float (*dot)(const float *a, const float *b, size_t n);
    /* e^x by the contract's polynomial. */
    float (*exp)(float x);
    /* y = x * s * w. w may be NULL (then y = x * s). */
    void (*scale_rows)(const float *x, float s, const float *w, float *y, size_t n);
    /* y = silu(gate) * up */
    void (*silu_mul)(const float *gate, const float *up, float *y, size_t n);
    /* y = y * sigmoid(gate) */
    void (*sigmoid_mul)(const float *gate, float *y, size_t n);
    /* y = fma(a, x, y) */
    void (*axpy)(float a, const float *x, float *y, size_t n);
    /* y = y + x */
    void (*add)(const float *x, float *y, size_t n);
    /* p = exp(x - max x), returns the sum of p (8 lanes, tree); p may be x. */
    float (*softmax_parts)(const float *x, float *p, size_t n, float *max);
    /* Depthwise causal convolution of one token over n channels, then SiLU: y[c] = silu(sum over t of
     * w[t * w_stride + c] * rows[t][c]), t from 0 (oldest) to taps - 1. */
    void (*conv_silu)(const float *const *rows, const float *w, size_t w_stride, size_t taps, float *y,
                      size_t n);

    /* One block of keys of one KV head (nf_kv_store) against the rows; false when a score is NaN or infinite:
     * s_j = (q . k_j) * scale (fma, column after column; in scaled types group after group, each times its
     * scale); max = max s; p_j = exp(s_j - max); sum = sum p (16 lanes, tree); block = sum p_j v_j (fma, key
     * after key; in scaled types p_j is multiplied by the scale of v_j first). Each row's part and acc then
     * take it in as attention_join says. */
    bool (*attention_block)(const nf_attention_rows *rows, const void *kv);
    /* Takes the next block of keys, its part and `block` [dim], into a row's total and acc [dim]. With
     * `first` they are copied; otherwise M = max(total's max, part's max), a = exp(total's max - M), b =
     * exp(part's max - M), sum = fma(total's sum, a, part's sum * b), acc = fma(b, block, acc * a). */
    void (*attention_join)(bool first, const nf_attention_part *part, const float *block, size_t dim,
                           nf_attention_part *total, float *acc);

    /* Gated delta rule, token by token, for a block of columns of the state of one head:
     *   S *= decay_t; u = (v_t - S^T k_t) * beta_t; S += k_t u^T; o_t = S^T q_t */
    void (*delta_rule)(const nf_delta_block *block);
} nf_kernels;

/* The fastest level this processor has, or the one named by the environment variable NINFER_CPU (portable,
 * avx2, avx512, amx); NF_ERR_ARGUMENT when that names no level or one that the processor lacks. */
nf_status nf_kernels_get(const nf_kernels **out, nf_error *err);
/* A level by name; NULL when it does not exist or this processor lacks it. For tests. */
const nf_kernels *nf_kernels_by_name(const char *name);

#endif
