/*
 * Float kernels over vec8: included by one file for each instruction-set level (and by nothing else), after
 * vec8.h. The order of every sum is part of the contracts (docs/arithmetic.md).
 */
#ifndef NF_CPU_FLOAT_KERNELS_H
#define NF_CPU_FLOAT_KERNELS_H

#include "cpu/kernels.h"
#include "cpu/vec8.h"
#include "format/numeric.h"

#include <pthread.h>

static float k_sum_squares(const float *x, size_t n) {
    vec8 acc = v8_zero();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        vec8 a = v8_load(x + i);
        acc = v8_fma(a, a, acc);
    }
    if (i < n) {
        vec8 a = v8_load_n(x + i, n - i, 0.0f);
        acc = v8_fma(a, a, acc);
    }
    return v8_sum(acc);
}

static float k_dot(const float *a, const float *b, size_t n) {
    vec8 acc = v8_zero();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) acc = v8_fma(v8_load(a + i), v8_load(b + i), acc);
    if (i < n) acc = v8_fma(v8_load_n(a + i, n - i, 0.0f), v8_load_n(b + i, n - i, 0.0f), acc);
    return v8_sum(acc);
}

static float k_exp(float x) {
    float t[8];
    v8_store(t, v8_exp(v8_set(x)));
    return t[0];
}

/* Runs `body` for whole vectors and once more for the tail; a, b are input vectors, y is stored. */
#define NF_ELEMENTWISE(n, out, setup, expression)                                                            \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
        for (; i + 8 <= (n); i += 8) {                                                                       \
            const size_t left = 8;                                                                           \
            setup;                                                                                           \
            (void)left;                                                                                      \
            v8_store((out) + i, expression);                                                                 \
        }                                                                                                    \
        if (i < (n)) {                                                                                       \
            const size_t left = (n)-i;                                                                       \
            setup;                                                                                           \
            v8_store_n((out) + i, left, expression);                                                         \
        }                                                                                                    \
    } while (0)
#define NF_IN(p) (left == 8 ? v8_load((p) + i) : v8_load_n((p) + i, left, 0.0f))

static void k_scale_rows(const float *x, float s, const float *w, float *y, size_t n) {
    vec8 vs = v8_set(s);
    if (w)
        NF_ELEMENTWISE(n, y, vec8 a = v8_mul(NF_IN(x), vs); vec8 b = NF_IN(w), v8_mul(a, b));
    else
        NF_ELEMENTWISE(n, y, vec8 a = NF_IN(x), v8_mul(a, vs));
}

static void k_silu_mul(const float *gate, const float *up, float *y, size_t n) {
    NF_ELEMENTWISE(n, y, vec8 a = NF_IN(gate); vec8 b = NF_IN(up), v8_mul(v8_silu(a), b));
}

static void k_sigmoid_mul(const float *gate, float *y, size_t n) {
    NF_ELEMENTWISE(n, y, vec8 a = NF_IN(gate); vec8 b = NF_IN(y), v8_mul(b, v8_sigmoid(a)));
}

static void k_axpy(float a, const float *x, float *y, size_t n) {
    vec8 va = v8_set(a);
    NF_ELEMENTWISE(n, y, vec8 b = NF_IN(x); vec8 c = NF_IN(y), v8_fma(va, b, c));
}

static void k_add(const float *x, float *y, size_t n) {
    NF_ELEMENTWISE(n, y, vec8 a = NF_IN(y); vec8 b = NF_IN(x), v8_add(a, b));
}

static float k_softmax_parts(const float *x, float *p, size_t n, float *max) {
    vec8 m = v8_set(-INFINITY);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) m = v8_max(v8_load(x + i), m);
    if (i < n) m = v8_max(v8_load_n(x + i, n - i, -INFINITY), m);
    *max = v8_max_lane(m);
    vec8 vm = v8_set(*max), sum = v8_zero();
    for (i = 0; i + 8 <= n; i += 8) {
        vec8 e = v8_exp(v8_sub(v8_load(x + i), vm));
        v8_store(p + i, e);
        sum = v8_add(sum, e);
    }
    if (i < n) {
        vec8 e = v8_exp(v8_sub(v8_load_n(x + i, n - i, 0.0f), vm));
        v8_store_n(p + i, n - i, e);
        sum = v8_add(sum, v8_load_n(p + i, n - i, 0.0f));
    }
    return v8_sum(sum);
}

static void k_conv_silu(const float *const *rows, const float *w, size_t w_stride, size_t taps, float *y,
                        size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        const size_t left = n - i < 8 ? n - i : 8;
        vec8 acc = v8_zero();
        for (size_t t = 0; t < taps; t++) acc = v8_fma(NF_IN(w + t * w_stride), NF_IN(rows[t]), acc);
        v8_store_n(y + i, left, v8_silu(acc));
    }
}

/* Adds p[j] * v[j] over n keys to 8 * NV columns held in registers. */
#define NF_ATTENTION_COLUMNS(NV)                                                                             \
    for (; c + 8 * (NV) <= dim; c += 8 * (NV)) {                                                             \
        vec8 sum_v[NV];                                                                                      \
        for (int i = 0; i < (NV); i++) sum_v[i] = v8_zero();                                                 \
        for (size_t j = 0; j < n; j++) {                                                                     \
            vec8 p = v8_set(scores[j]);                                                                      \
            for (int i = 0; i < (NV); i++)                                                                   \
                sum_v[i] = v8_fma(p, v8_load(v + j * stride + c + 8 * (size_t)i), sum_v[i]);                 \
        }                                                                                                    \
        for (int i = 0; i < (NV); i++) v8_store(acc + c + 8 * (size_t)i, sum_v[i]);                          \
    }

static nf_attention_part k_attention_block(const float *q, const float *k, const float *v, size_t stride,
                                           size_t n, size_t dim, float scale, float *acc, float *scores) {
    nf_attention_part part;
    for (size_t j = 0; j < n; j++) scores[j] = k_dot(q, k + j * stride, dim) * scale;
    part.sum = k_softmax_parts(scores, scores, n, &part.max);
    size_t c = 0;
    NF_ATTENTION_COLUMNS(8)
    NF_ATTENTION_COLUMNS(1)
    for (; c < dim; c++) {
        float sum = 0.0f;
        for (size_t j = 0; j < n; j++) sum = fmaf(scores[j], v[j * stride + c], sum);
        acc[c] = sum;
    }
    return part;
}

/* NV vectors of 8 columns; the last one has `last` live columns. */
static inline void delta_columns(int nv, size_t last, float *s, size_t s_stride, size_t dk, size_t n_tokens,
                                 const float *q, const float *k, size_t qk_stride, const float *v,
                                 size_t v_stride, const float *decay, const float *beta, size_t gate_stride,
                                 float *o, size_t o_stride) {
    for (size_t t = 0; t < n_tokens; t++) {
        const float *kt = k + t * qk_stride, *qt = q + t * qk_stride;
        vec8 g = v8_set(decay[t * gate_stride]), b = v8_set(beta[t * gate_stride]), u[4], out[4];
        for (int c = 0; c < nv; c++) u[c] = v8_zero();
        for (size_t i = 0; i < dk; i++) {
            vec8 ki = v8_set(kt[i]);
            for (int c = 0; c < nv; c++) {
                float *at = s + i * s_stride + 8 * (size_t)c;
                vec8 row = v8_mul(v8_load(at), g);
                v8_store(at, row);
                u[c] = v8_fma(row, ki, u[c]);
            }
        }
        for (int c = 0; c < nv; c++) {
            const float *vt = v + t * v_stride + 8 * (size_t)c;
            vec8 value = c + 1 == nv && last < 8 ? v8_load_n(vt, last, 0.0f) : v8_load(vt);
            u[c] = v8_mul(v8_sub(value, u[c]), b);
            out[c] = v8_zero();
        }
        for (size_t i = 0; i < dk; i++) {
            vec8 ki = v8_set(kt[i]), qi = v8_set(qt[i]);
            for (int c = 0; c < nv; c++) {
                float *at = s + i * s_stride + 8 * (size_t)c;
                vec8 row = v8_fma(ki, u[c], v8_load(at));
                v8_store(at, row);
                out[c] = v8_fma(row, qi, out[c]);
            }
        }
        for (int c = 0; c < nv; c++)
            v8_store_n(o + t * o_stride + 8 * (size_t)c, c + 1 == nv ? last : 8, out[c]);
    }
}

/* s_stride is a multiple of 8 and the columns beyond n_cols up to it are zero padding, so whole vectors of S
 * may be read and written. */
static void k_delta_rule(float *s, size_t s_stride, size_t dk, size_t n_cols, size_t n_tokens, const float *q,
                         const float *k, size_t qk_stride, const float *v, size_t v_stride,
                         const float *decay, const float *beta, size_t gate_stride, float *o,
                         size_t o_stride) {
    size_t last = n_cols % 8 ? n_cols % 8 : 8;
#define NF_DELTA(NV)                                                                                         \
    case NV:                                                                                                 \
        delta_columns(NV, last, s, s_stride, dk, n_tokens, q, k, qk_stride, v, v_stride, decay, beta,        \
                      gate_stride, o, o_stride);                                                             \
        break
    switch ((n_cols + 7) / 8) {
        NF_DELTA(1);
        NF_DELTA(2);
        NF_DELTA(3);
        NF_DELTA(4);
    }
#undef NF_DELTA
}

/* ---- float matrices in tile layout ---- */

/* Widens 8 elements of row r at column c of a block. */
static inline vec8 load_elements(nf_type type, const uint8_t *block, size_t r, size_t c, const float *e4m3) {
    size_t at = r * NF_GROUP + c;
    if (type == NF_TYPE_F32) {
        float t[8];
        memcpy(t, block + 4 * at, sizeof t);
        return v8_load(t);
    }
    float t[8];
    if (type == NF_TYPE_F8) {
        for (int i = 0; i < 8; i++) t[i] = e4m3[block[at + (size_t)i]];
        return v8_load(t);
    }
    uint16_t h[8];
    memcpy(h, block + 2 * at, sizeof h);
#ifdef NF_VEC8_AVX2
    __m128i raw = _mm_loadu_si128((const __m128i *)h);
    if (type == NF_TYPE_F16) return _mm256_cvtph_ps(raw);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
#else
    for (int i = 0; i < 8; i++) t[i] = type == NF_TYPE_F16 ? nf_f16_to_f32(h[i]) : nf_bf16_to_f32(h[i]);
    return v8_load(t);
#endif
}

/* Lanes that lane_tree reads when `groups` groups were added. */
static inline size_t lanes_in_use(size_t groups) {
    return groups <= 8 ? 8 : groups <= 16 ? 16 : 32;
}

/* Adds the 32 lanes of acc by the tree 16, 8, 4, 2, 1. Lanes from n_used on are +0, so levels that only add
 * them are replaced by one addition of +0 (which turns -0 into +0 as they would). */
static inline vec8 lane_tree(vec8 *acc, size_t n_used) {
    int top = 16;
    while (top && (size_t)top >= n_used) top /= 2;
    for (int s = top; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] = v8_add(acc[i], acc[i + s]);
    return top == 16 ? acc[0] : v8_add(acc[0], v8_zero());
}

/* Contract A step 4 for n (1..4) input rows; one block is widened and transposed once for all of them. */
static inline void float_tile(nf_type type, const nf_weights *w, size_t tile, const nf_rows *in,
                              const uint32_t *index, size_t n, float *out, const float *e4m3) {
    const size_t groups = in->kp / NF_GROUP, block_bytes = nf_type_get(type)->block_bytes;
    const uint8_t *block = w->tiles + tile * w->tile_stride;
    const float *scales = type == NF_TYPE_F8 ? w->block_scales + tile * NF_TILE_ROWS / NF_F8_BLOCK *
                                                                     ((w->cols + 127) / NF_F8_BLOCK)
                                             : NULL;
    vec8 acc[4][32];
    const float *x[4];
    for (size_t j = 0; j < n; j++) {
        x[j] = in->x + (index ? index[j] : j) * in->kp;
        for (size_t i = 0; i < lanes_in_use(groups); i++) acc[j][i] = v8_zero();
    }
    for (size_t g = 0; g < groups; g++, block += block_bytes) {
        vec8 p[4] = {v8_zero(), v8_zero(), v8_zero(), v8_zero()};
        for (size_t c = 0; c < NF_GROUP; c += 8) {
            vec8 col[8];
            for (size_t r = 0; r < 8; r++) col[r] = load_elements(type, block, r, c, e4m3);
            v8_transpose(col);
            for (size_t j = 0; j < n; j++)
                for (size_t i = 0; i < 8; i++)
                    p[j] = v8_fma(col[i], v8_set(x[j][g * NF_GROUP + c + i]), p[j]);
        }
        for (size_t j = 0; j < n; j++) {
            vec8 *a = &acc[j][g % 32];
            *a = type == NF_TYPE_F8 ? v8_fma(v8_set(scales[g * NF_GROUP / NF_F8_BLOCK]), p[j], *a)
                                    : v8_add(*a, p[j]);
        }
    }
    for (size_t j = 0; j < n; j++) v8_store(out + 8 * j, lane_tree(acc[j], groups));
}

static float e4m3_values[256];
static pthread_once_t e4m3_once = PTHREAD_ONCE_INIT;

static void fill_e4m3(void) {
    for (int i = 0; i < 256; i++) e4m3_values[i] = nf_e4m3_to_f32((uint8_t)i);
}

static const float *e4m3_table(void) {
    pthread_once(&e4m3_once, fill_e4m3);
    return e4m3_values;
}

static void k_float_tile(const nf_weights *w, size_t tile, const nf_rows *in, const uint32_t *index, size_t n,
                         float *out) {
    const float *e4m3 = w->format.type == NF_TYPE_F8 ? e4m3_table() : NULL;
    for (size_t j = 0; j < n; j += 4) {
        size_t m = n - j < 4 ? n - j : 4;
        nf_rows part = *in;
        if (!index) part.x += j * in->kp;
        const uint32_t *at = index ? index + j : NULL;
        switch (w->format.type) {
        case NF_TYPE_F32:
            float_tile(NF_TYPE_F32, w, tile, &part, at, m, out + 8 * j, e4m3);
            break;
        case NF_TYPE_F16:
            float_tile(NF_TYPE_F16, w, tile, &part, at, m, out + 8 * j, e4m3);
            break;
        case NF_TYPE_BF16:
            float_tile(NF_TYPE_BF16, w, tile, &part, at, m, out + 8 * j, e4m3);
            break;
        default:
            float_tile(NF_TYPE_F8, w, tile, &part, at, m, out + 8 * j, e4m3);
            break;
        }
    }
}

/* Their entries of a kernel table: the same at every level. */
#define NF_FLOAT_KERNELS                                                                                     \
    .sum_squares = k_sum_squares, .dot = k_dot, .exp = k_exp, .scale_rows = k_scale_rows,                    \
    .silu_mul = k_silu_mul, .sigmoid_mul = k_sigmoid_mul, .axpy = k_axpy, .add = k_add,                      \
    .softmax_parts = k_softmax_parts, .conv_silu = k_conv_silu, .attention_block = k_attention_block,        \
    .delta_rule = k_delta_rule

#endif
