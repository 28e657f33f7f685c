/*
 * Attention of up to 8 query rows against a block of up to 256 keys (contract B): included by the file of
 * each instruction-set level (and by nothing else).
 *
 * Neither product sums across lanes: scores have a key in each lane (K is stored with 16 keys side by side),
 * the output has a column in each lane. K and V are read once for NF_ATTENTION_AT_ONCE rows whose sums stay
 * in registers: 4 n keys dim flops for 2 n keys dim element / rows bytes. Elements become f32 as they are
 * read.
 */
#ifndef NF_CPU_ATTENTION_KERNELS_H
#define NF_CPU_ATTENTION_KERNELS_H

#include "cpu/kernels.h"
#include "cpu/kv_load.h"

#ifndef NF_ATTENTION_AT_ONCE
#error "NF_ATTENTION_AT_ONCE: how many query rows the level takes at once (1, 4 or 8)"
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE bool is_scaled(nf_kv_type type) {
    return type == NF_KV_FP8 || type == NF_KV_Q8;
}

/* scores[r][key] of R rows (q: [dim][R]) and the 32 keys from `key` on. The products of a group of columns
 * are summed up and then scaled; the groups are summed up in the scores. */
static ALWAYS_INLINE void score_keys(nf_kv_type type, int R, const nf_kv_layout *l, const float *q,
                                     const uint8_t *kv, size_t key, float scale, float *scores) {
    const float *scales = (const float *)(const void *)(kv + l->k_scales) + key * l->n_scales;
    const size_t k0 = key * l->dim, k1 = k0 + 16 * l->dim;
    scores += key;
    for (size_t from = 0, to; from < l->dim; from = to, scales += 16) {
        to = l->dim - from < l->group ? l->dim : from + l->group;
        vec16 sum[8][2];
        for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = v16_set(0.0f);
        for (size_t i = from; i < to; i++) {
            const vec16 x0 = kv_load(type, kv, k0 + 16 * i), x1 = kv_load(type, kv, k1 + 16 * i);
            kv_ahead(type, kv, k0 + 16 * i, 32 * l->dim, i);
            kv_ahead(type, kv, k1 + 16 * i, 32 * l->dim, i);
            for (int r = 0; r < R; r++) {
                const vec16 x = v16_set(q[i * (size_t)R + (size_t)r]);
                sum[r][0] = v16_fma(x, x0, sum[r][0]);
                sum[r][1] = v16_fma(x, x1, sum[r][1]);
            }
        }
        for (int r = 0; r < R; r++)
            for (size_t c = 0; c < 2; c++) {
                float *out = scores + NF_ATTENTION_BLOCK * r + 16 * c;
                vec16 s = sum[r][c];
                if (is_scaled(type)) {
                    const vec16 by = v16_load(scales + 16 * l->n_scales * c);
                    s = from ? v16_fma(s, by, v16_load(out)) : v16_mul(s, by);
                }
                v16_store(out, to < l->dim ? s : v16_mul(s, v16_set(scale)));
            }
    }
}

/* p = exp(s - max s) in place over n keys, lanes behind them 0; false when a score is NaN or infinite. */
static bool softmax_row(float *s, size_t n, nf_attention_part *part) {
    const size_t whole = (n + 15) / 16 * 16;
    vec16 max = v16_set(-INFINITY), zero = v16_set(0.0f), sum = v16_set(0.0f);
    for (size_t j = n; j < whole; j++) s[j] = s[0];
    for (size_t j = 0; j < whole; j += 16) {
        const vec16 x = v16_load(s + j);
        max = v16_max(x, max);
        zero = v16_add(zero, v16_sub(x, x)); /* NaN for NaN and infinity */
    }
    part->max = v16_max_lane(max);
    const vec16 top = v16_set(part->max);
    for (size_t j = 0; j < whole; j += 16) v16_store(s + j, v16_exp(v16_sub(v16_load(s + j), top)));
    for (size_t j = n; j < whole; j++) s[j] = 0.0f;
    for (size_t j = 0; j < whole; j += 16) sum = v16_add(sum, v16_load(s + j));
    part->sum = v16_sum(sum);
    return v16_sum(zero) == 0.0f;
}

/* w[r][j] = p[r][j] times the scale of value j, over `most` keys. */
static ALWAYS_INLINE void weigh(int R, const float *p, const float *scales, size_t most, float *w) {
    for (int r = 0; r < R; r++)
        for (size_t j = NF_ATTENTION_BLOCK * (size_t)r; j < NF_ATTENTION_BLOCK * (size_t)r + most; j += 16)
            v16_store(w + j, v16_mul(v16_load(p + j), v16_load(scales + j % NF_ATTENTION_BLOCK)));
}

/* out[r][16 NV columns] = sum over keys of p[r][j] v[j], j increasing, for the columns from 16 `column` on.
 * All rows have the first `common` keys, row r has keys[r]. */
static ALWAYS_INLINE void sum_values(nf_kv_type type, int R, int NV, const float *p, const uint8_t *v,
                                     size_t column, size_t common, const size_t *keys, float *out) {
    const size_t at = 16 * NF_ATTENTION_BLOCK * column;
    vec16 sum[8][2];
    size_t most = common;
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < NV; c++) sum[r][c] = v16_set(0.0f);
        if (keys[r] > most) most = keys[r];
    }
    for (size_t j = 0; j < common; j++) {
        vec16 x[2];
        for (int c = 0; c < NV; c++) {
            const size_t i = at + 16 * (NF_ATTENTION_BLOCK * (size_t)c + j);
            x[c] = kv_load(type, v, i);
            kv_ahead(type, v, i, 32 * NF_ATTENTION_BLOCK, j);
        }
        for (int r = 0; r < R; r++) {
            const vec16 w = v16_set(p[NF_ATTENTION_BLOCK * (size_t)r + j]);
            for (int c = 0; c < NV; c++) sum[r][c] = v16_fma(w, x[c], sum[r][c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < NV; c++) v16_store(out + 32 * r + 16 * c, sum[r][c]);
    /* Keys that only the later tokens see. */
    for (int r = 0; r < R && most > common; r++)
        for (int c = 0; c < NV; c++) {
            vec16 more = v16_load(out + 32 * r + 16 * c);
            for (size_t j = common; j < keys[r]; j++)
                more = v16_fma(v16_set(p[NF_ATTENTION_BLOCK * (size_t)r + j]),
                               kv_load(type, v, at + 16 * (NF_ATTENTION_BLOCK * (size_t)c + j)), more);
            v16_store(out + 32 * r + 16 * c, more);
        }
}

/* How the block's part joins the total of a row: acc = fma(fresh, block, acc * old). */
typedef struct join {
    float old, fresh;
} join;

static join join_part(bool first, const nf_attention_part *part, nf_attention_part *total) {
    if (first) {
        *total = *part;
        return (join){0, 0};
    }
    const float max = part->max > total->max ? part->max : total->max;
    float t[16];
    join j;
    v16_store(t, v16_exp(v16_set(total->max - max)));
    j.old = t[0];
    v16_store(t, v16_exp(v16_set(part->max - max)));
    j.fresh = t[0];
    total->sum = fmaf(total->sum, j.old, part->sum * j.fresh);
    total->max = max;
    return j;
}

static void join_columns(bool first, join j, const float *block, float *acc, size_t n) {
    if (first)
        memcpy(acc, block, n * sizeof *acc);
    else
        for (size_t i = 0; i < n; i++) acc[i] = fmaf(j.fresh, block[i], acc[i] * j.old);
}

static void k_attention_join(bool first, const nf_attention_part *part, const float *block, size_t dim,
                             nf_attention_part *total, float *acc) {
    join_columns(first, join_part(first, part, total), block, acc, dim);
}

static ALWAYS_INLINE bool block_rows(nf_kv_type type, int R, const nf_attention_rows *rows, size_t at,
                                     const uint8_t *kv) {
    const nf_kv_layout *l = rows->layout;
    const size_t dim = l->dim, *keys = rows->keys + at;
    const float *v_scales = (const float *)(const void *)(kv + l->v_scales);
    float *scores = rows->scratch, *weights = scores, *q = scores + 16 * NF_ATTENTION_BLOCK, out[8 * 32];
    size_t common = keys[0], most = keys[0];
    join joins[8];
    bool finite = true;
    for (int r = 0; r < R; r++) {
        common = keys[r] < common ? keys[r] : common;
        most = keys[r] > most ? keys[r] : most;
        for (size_t i = 0; i < dim; i++) q[i * (size_t)R + (size_t)r] = rows->q[at + (size_t)r][i];
    }
    for (size_t j = 0; j < most; j += 32) score_keys(type, R, l, q, kv, j, rows->scale, scores);
    for (int r = 0; r < R; r++) {
        nf_attention_part part;
        finite &= softmax_row(scores + NF_ATTENTION_BLOCK * r, keys[r], &part);
        joins[r] = join_part(rows->first, &part, rows->part[at + (size_t)r]);
    }
    for (size_t c = 0; c < dim; c += 32) {
        const size_t n = dim - c < 32 ? dim - c : 32;
        if (is_scaled(type) && (type == NF_KV_Q8 || !c)) {
            weights = scores + 8 * NF_ATTENTION_BLOCK;
            weigh(R, scores, v_scales + c / l->group * NF_ATTENTION_BLOCK, most, weights);
        }
        if (n > 16)
            sum_values(type, R, 2, weights, kv + l->v, c / 16, common, keys, out);
        else
            sum_values(type, R, 1, weights, kv + l->v, c / 16, common, keys, out);
        for (int r = 0; r < R; r++)
            join_columns(rows->first, joins[r], out + 32 * r, rows->acc[at + (size_t)r] + c, n);
    }
    return finite;
}

static ALWAYS_INLINE bool block_of_type(nf_kv_type type, const nf_attention_rows *rows, const uint8_t *kv) {
    bool finite = true;
    size_t r = 0;
#if NF_ATTENTION_AT_ONCE >= 8
    for (; r + 8 <= rows->n; r += 8) finite &= block_rows(type, 8, rows, r, kv);
#endif
#if NF_ATTENTION_AT_ONCE >= 4
    for (; r + 4 <= rows->n; r += 4) finite &= block_rows(type, 4, rows, r, kv);
    for (; r + 2 <= rows->n; r += 2) finite &= block_rows(type, 2, rows, r, kv);
#endif
    for (; r < rows->n; r++) finite &= block_rows(type, 1, rows, r, kv);
    return finite;
}

static bool k_attention_block(const nf_attention_rows *rows, const void *kv) {
    switch (rows->layout->type) {
    case NF_KV_F32:
        return block_of_type(NF_KV_F32, rows, kv);
    case NF_KV_BF16:
        return block_of_type(NF_KV_BF16, rows, kv);
    case NF_KV_FP8:
        return block_of_type(NF_KV_FP8, rows, kv);
    default:
        return block_of_type(NF_KV_Q8, rows, kv);
    }
}

/* The members of nf_kernels that this file provides. */
#define NF_ATTENTION_KERNELS .attention_block = k_attention_block, .attention_join = k_attention_join

#endif
