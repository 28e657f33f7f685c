/* Rows, norms and the delta rule: every level byte for byte equal to the portable one, that one near a
 * definition in double. Matrix tiles are in test_tiles.c, attention in test_attention.c. */
#include "tests/support/support.h"

#include "cpu/kernels.h"
#include "format/numeric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_quantised_rows(void **state) {
    (void)state;
    uint64_t seed = 77;
    const nf_kernels *a = nf_kernels_by_name("portable"), *b = nf_kernels_by_name("avx2");
    for (int round = 0; round < 3000; round++) {
        float x[96];
        int8_t qa[96], qb[96];
        float sa[3], sb[3];
        int32_t ta[3], tb[3];
        for (int i = 0; i < 96; i++)
            x[i] = ldexpf(next_float(&seed),
                          (int)(next_random(&seed) % (round % 2 ? 8 : 260)) - (round % 2 ? 4 : 140));
        if (round % 5 == 0) memset(x + 32, 0, 32 * sizeof *x);
        if (round % 7 == 0) x[40] = -0.0f;
        bool finite = true;
        if (round % 11 == 0) x[next_random(&seed) % 96] = round % 2 ? NAN : -INFINITY, finite = false;
        assert_int_equal(a->quantise_row(x, 96, qa, sa, ta), finite);
        if (!finite) {
            static const int8_t zero_q[96];
            static const int32_t zero_sum[3];
            assert_memory_equal(qa, zero_q, sizeof zero_q);
            assert_memory_equal(ta, zero_sum, sizeof zero_sum);
            if (!b) continue;
            assert_false(b->quantise_row(x, 96, qb, sb, tb));
            assert_memory_equal(qb, zero_q, sizeof zero_q);
            assert_memory_equal(tb, zero_sum, sizeof zero_sum);
            continue;
        }
        for (int i = 0; i < 96; i++) assert_true(qa[i] >= -127);
        if (!b) continue;
        assert_true(b->quantise_row(x, 96, qb, sb, tb));
        assert_memory_equal(qa, qb, 96);
        assert_memory_equal(sa, sb, sizeof sa);
        assert_memory_equal(ta, tb, sizeof ta);
    }
}

/* Every float kernel: AVX2 byte for byte equal to portable, odd lengths included. */
static void test_float_kernels_agree(void **state) {
    (void)state;
    const nf_kernels *a = nf_kernels_by_name("portable"), *b = nf_kernels_by_name("avx2");
    if (!b) skip();
    uint64_t seed = 3;
    for (size_t n = 1; n <= 300; n += n < 40 ? 1 : 23) {
        float x[300], y[300], z[300], ya[300], yb[300], max[2];
        for (size_t i = 0; i < n; i++)
            x[i] = next_float(&seed) * 20, y[i] = next_float(&seed), z[i] = next_float(&seed);
        float s[2] = {a->sum_squares(x, n), b->sum_squares(x, n)}, d[2] = {a->dot(x, y, n), b->dot(x, y, n)};
        assert_memory_equal(&s[0], &s[1], 4);
        assert_memory_equal(&d[0], &d[1], 4);
#define BOTH(call_a, call_b)                                                                                 \
    (memcpy(ya, z, sizeof ya), memcpy(yb, z, sizeof yb), call_a, call_b, memcmp(ya, yb, n * sizeof *ya))
        assert_int_equal(BOTH(a->scale_rows(x, 0.37f, y, ya, n), b->scale_rows(x, 0.37f, y, yb, n)), 0);
        assert_int_equal(BOTH(a->scale_rows(x, 0.37f, NULL, ya, n), b->scale_rows(x, 0.37f, NULL, yb, n)), 0);
        assert_int_equal(BOTH(a->silu_mul(x, y, ya, n), b->silu_mul(x, y, yb, n)), 0);
        assert_int_equal(BOTH(a->sigmoid_mul(x, ya, n), b->sigmoid_mul(x, yb, n)), 0);
        assert_int_equal(BOTH(a->axpy(1.7f, x, ya, n), b->axpy(1.7f, x, yb, n)), 0);
        assert_int_equal(BOTH(a->add(x, ya, n), b->add(x, yb, n)), 0);
        float p[2];
        assert_int_equal(
            BOTH(p[0] = a->softmax_parts(x, ya, n, &max[0]), p[1] = b->softmax_parts(x, yb, n, &max[1])), 0);
        assert_memory_equal(&p[0], &p[1], 4);
        assert_memory_equal(&max[0], &max[1], 4);
        const float *rows[4] = {x, y, z, x};
        float taps[4 * 300];
        for (size_t i = 0; i < 4 * n; i++) taps[i] = next_float(&seed);
        assert_int_equal(BOTH(a->conv_silu(rows, taps, n, 4, ya, n), b->conv_silu(rows, taps, n, 4, yb, n)),
                         0);
    }
}

static void test_exp(void **state) {
    (void)state;
    const nf_kernels *a = nf_kernels_by_name("portable"), *b = nf_kernels_by_name("avx2");
    double worst = 0;
    for (float x = -86.9f; x < 87.9f; x += 0.0137f) {
        double e = a->exp(x), want = exp((double)x);
        worst = fmax(worst, fabs(e - want) / want);
        if (b) {
            float f[2] = {a->exp(x), b->exp(x)};
            assert_memory_equal(&f[0], &f[1], 4);
        }
    }
    assert_true(worst < 0x1p-22);
    assert_float_equal(a->exp(0.0f), 1.0f, 0);
    assert_true(a->exp(-1e30f) > 0 && a->exp(1e30f) < INFINITY);
}

/* The delta rule against its definition in double, levels against each other, and a chunk against its tokens
 * one by one. */
static void test_delta_rule(void **state) {
    (void)state;
    static const char *const levels[] = {"portable", "portable", "avx2", "avx512"};
    uint64_t seed = 21;
    enum { DK = 12, T = 9, LEVELS = 4 };
    for (size_t n_cols = 1; n_cols <= NF_DELTA_COLUMNS; n_cols++) {
        float s[LEVELS][DK * NF_DELTA_COLUMNS] = {{0}}, q[T * DK], k[T * DK], v[T * 32], decay[T], beta[T],
                             o[LEVELS][T * 32] = {{0}};
        double S[DK][32] = {{0}};
        for (int i = 0; i < T * DK; i++) q[i] = next_float(&seed), k[i] = next_float(&seed) * 0.3f;
        for (int i = 0; i < T * 32; i++) v[i] = next_float(&seed);
        for (int t = 0; t < T; t++) decay[t] = 0.9f + 0.1f * next_float(&seed), beta[t] = 0.5f;
        for (int l = 0; l < LEVELS; l++) {
            const nf_kernels *kernels = nf_kernels_by_name(levels[l]);
            nf_delta_block all = {.s = s[l],
                                  .dk = DK,
                                  .n_cols = n_cols,
                                  .n_tokens = l ? T : 1, /* level 0: one by one */
                                  .q = q,
                                  .k = k,
                                  .qk_stride = DK,
                                  .v = v,
                                  .v_stride = 32,
                                  .decay = decay,
                                  .beta = beta,
                                  .gate_stride = 1,
                                  .o = o[l],
                                  .o_stride = 32};
            if (!kernels) continue;
            kernels->delta_rule(&all);
            for (int t = 1; t < T && !l; t++) {
                nf_delta_block one = all;
                one.q += t * DK, one.k += t * DK, one.v += t * 32, one.o += t * 32;
                one.decay += t, one.beta += t;
                kernels->delta_rule(&one);
            }
            assert_memory_equal(s[0], s[l], sizeof s[0]);
            assert_memory_equal(o[0], o[l], sizeof o[0]);
        }
        for (int t = 0; t < T; t++) {
            for (size_t c = 0; c < n_cols; c++) {
                double u = 0, out = 0;
                for (int i = 0; i < DK; i++) S[i][c] *= decay[t], u += S[i][c] * k[t * DK + i];
                u = (v[t * 32 + (int)c] - u) * beta[t];
                for (int i = 0; i < DK; i++) S[i][c] += k[t * DK + i] * u, out += S[i][c] * q[t * DK + i];
                assert_float_equal(o[0][t * 32 + (int)c], (float)out, 1e-4f);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantised_rows),
        cmocka_unit_test(test_float_kernels_agree),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_delta_rule),
    };
    if (!nf_kernels_by_name("avx2"))
        printf("note: this processor has no AVX2: only the portable kernels are tested\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
