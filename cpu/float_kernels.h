/*
 * Float kernels over vec8: included by one file for each instruction-set level (and by nothing else), after
 * vec8.h. The order of every sum is part of the contracts (docs/arithmetic.md).
 */
#ifndef NF_CPU_FLOAT_KERNELS_H
#define NF_CPU_FLOAT_KERNELS_H

#include "cpu/kernels.h"
#include "cpu/vec8.h"

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

/* Their entries of a kernel table: the same at every level. */
#define NF_FLOAT_KERNELS                                                                                     \
    .sum_squares = k_sum_squares, .dot = k_dot, .exp = k_exp, .scale_rows = k_scale_rows,                    \
    .silu_mul = k_silu_mul, .sigmoid_mul = k_sigmoid_mul, .axpy = k_axpy, .add = k_add,                      \
    .softmax_parts = k_softmax_parts, .conv_silu = k_conv_silu

#endif
