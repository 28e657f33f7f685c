/*
 * Kernels against docs/arithmetic.md: an independent scalar evaluation of contract A, and every level byte
 * for byte equal to the portable one for all types, batch sizes and odd shapes.
 */
#include "tests/support/support.h"

#include "cpu/kernels.h"
#include "format/numeric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const nf_format formats[] = {
    {NF_TYPE_C4, NF_CODEBOOK_LINEAR}, {NF_TYPE_C4, NF_CODEBOOK_NL},    {NF_TYPE_I8, NF_CODEBOOK_NONE},
    {NF_TYPE_F32, NF_CODEBOOK_NONE},  {NF_TYPE_F16, NF_CODEBOOK_NONE}, {NF_TYPE_BF16, NF_CODEBOOK_NONE},
    {NF_TYPE_F8, NF_CODEBOOK_NONE},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

static const char *const levels[] = {"portable", "avx2", "avx512"};
enum { N_LEVELS = 3 };

typedef struct fixture {
    nf_weights w;
    nf_rows rows;
    size_t m;
    uint8_t *tiles;
    float *scales;
} fixture;

static fixture make(nf_format format, size_t n_rows, size_t n_cols, size_t m, uint64_t seed) {
    nf_error err = {0};
    fixture f = {.m = m, .rows = {.k = n_cols, .kp = (n_cols + 31) / 32 * 32}};
    size_t kp = f.rows.kp, tile_bytes = nf_matrix_tile_bytes(format.type, 8, n_cols),
           n_tiles = (n_rows + 7) / 8;
    float *w = calloc(n_rows * n_cols, sizeof *w);
    for (size_t i = 0; i < n_rows * n_cols; i++) w[i] = next_float(&seed) * (i % 97 == 0 ? 4.0f : 0.3f);
    f.tiles = calloc(n_tiles + 1,
                     tile_bytes); /* a tile of slack: kernels may prefetch, never read, behind the end */
    if (format.type == NF_TYPE_F8) {
        f.scales = calloc((n_rows + 127) / 128 * ((n_cols + 127) / 128), sizeof *f.scales);
        nf_f8_block_scales(w, n_cols, n_rows, n_cols, f.scales);
    }
    for (size_t t = 0; t < n_tiles; t++)
        OK(nf_quantise_tile(format, w + t * 8 * n_cols, n_cols, n_rows - t * 8 < 8 ? n_rows - t * 8 : 8,
                            n_cols, f.scales ? f.scales + t * 8 / 128 * ((n_cols + 127) / 128) : NULL,
                            f.tiles + t * tile_bytes, &err));
    free(w);
    f.w = (nf_weights){.format = format,
                       .rows = n_rows,
                       .cols = n_cols,
                       .tiles = f.tiles,
                       .tile_stride = tile_bytes,
                       .block_scales = f.scales};
    f.rows.x = calloc(m * kp, sizeof(float));
    f.rows.q = calloc(m * kp, 1);
    f.rows.scale = calloc(m * kp / 32, sizeof(float));
    f.rows.sum = calloc(m * kp / 32, sizeof(int32_t));
    for (size_t j = 0; j < m; j++) {
        for (size_t i = 0; i < n_cols; i++)
            f.rows.x[j * kp + i] = next_float(&seed) * (j % 3 == 2 && i < 32 ? 1e-36f : 3.0f);
        assert_true(nf_kernels_by_name("portable")
                        ->quantise_row(f.rows.x + j * kp, kp, f.rows.q + j * kp, f.rows.scale + j * kp / 32,
                                       f.rows.sum + j * kp / 32));
    }
    return f;
}

static void drop(fixture *f) {
    free(f->tiles), free(f->scales), free(f->rows.x), free(f->rows.q), free(f->rows.scale), free(f->rows.sum);
}

/* Contract A written out once more, from the dequantised meaning of the bytes. */
static float oracle(const fixture *f, size_t row, size_t j) {
    const nf_type_traits *t = nf_type_get(f->w.format.type);
    const size_t kp = f->rows.kp, groups = kp / 32;
    const uint8_t *tile = f->tiles + row / 8 * f->w.tile_stride;
    float acc[32] = {0};
    for (size_t g = 0; g < groups; g++) {
        const uint8_t *block = tile + g * t->block_bytes,
                      *payload = block + t->scale_bytes + row % 8 * t->row_bytes;
        const float *x = f->rows.x + j * kp + g * 32;
        if (t->integer_dot) {
            uint16_t half;
            memcpy(&half, block + 2 * (row % 8), 2);
            float absmax = 0;
            for (int i = 0; i < 32; i++) absmax = fmaxf(absmax, fabsf(x[i]));
            float sx = absmax < 0x1p-100f ? 0 : absmax / 127.0f, inverse = 127.0f / absmax;
            long dot = 0;
            for (int i = 0; i < 32; i++) {
                long q = absmax < 0x1p-100f ? 0 : lrintf(x[i] * inverse);
                long w = f->w.format.type == NF_TYPE_I8
                             ? (int8_t)payload[i]
                             : nf_codebook_values(
                                   f->w.format.codebook)[i < 16 ? payload[i] & 15 : payload[i - 16] >> 4];
                dot += w * q;
            }
            float s = nf_f16_to_f32(half) * sx;
            acc[g % 32] = fmaf(s, (float)dot, acc[g % 32]);
            continue;
        }
        float p = 0;
        for (int i = 0; i < 32; i++) {
            uint16_t h;
            float w;
            if (f->w.format.type == NF_TYPE_F32)
                memcpy(&w, payload + 4 * i, 4);
            else if (f->w.format.type == NF_TYPE_F8)
                w = nf_e4m3_to_f32(payload[i]);
            else
                memcpy(&h, payload + 2 * i, 2),
                    w = f->w.format.type == NF_TYPE_F16 ? nf_f16_to_f32(h) : nf_bf16_to_f32(h);
            p = fmaf(w, x[i], p);
        }
        if (f->w.format.type == NF_TYPE_F8)
            acc[g % 32] =
                fmaf(f->scales[row / 128 * ((f->w.cols + 127) / 128) + g * 32 / 128], p, acc[g % 32]);
        else
            acc[g % 32] += p;
    }
    for (int s = 16; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] += acc[i + s];
    return acc[0];
}

static void test_tiles_follow_the_contract(void **state) {
    (void)state;
    static const size_t cols[] = {1, 31, 32, 40, 64, 256, 264, 512, 1000, 1024, 1056, 2080};

    for (size_t k = 0; k < N_FORMATS; k++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
            fixture f = make(formats[k], c % 2 ? 13 : 136, cols[c], 5, k * 100 + c + 1);
            for (int l = 0; l < N_LEVELS; l++) {
                const nf_kernels *kernels = nf_kernels_by_name(levels[l]);
                if (!kernels) continue;
                for (size_t t = 0; t * 8 < f.w.rows; t += 3) {
                    float out[5 * 8];
                    kernels->tile(&f.w, t, &f.rows, NULL, 5, out);
                    for (size_t j = 0; j < 5; j++)
                        for (size_t r = 0; r < 8 && t * 8 + r < f.w.rows; r++) {
                            float want = oracle(&f, t * 8 + r, j);
                            if (memcmp(&want, &out[8 * j + r], 4))
                                fail_msg("%s, format %zu, %zu columns, tile %zu, row %zu, input %zu: %a, "
                                         "expected %a",
                                         levels[l], k, cols[c], t, r, j, (double)out[8 * j + r],
                                         (double)want);
                        }
                }
            }
            drop(&f);
        }
}

/* An element never depends on how many rows are computed with it, nor on the order of an index. */
static void test_batches_do_not_matter(void **state) {
    (void)state;
    for (size_t k = 0; k < N_FORMATS; k++) {
        fixture f = make(formats[k], 24, 328, 64, 900 + k);
        float alone[64][8], out[64 * 8];
        for (int l = 0; l < N_LEVELS; l++) {
            const nf_kernels *kernels = nf_kernels_by_name(levels[l]);
            if (!kernels) continue;
            for (uint32_t j = 0; j < 64; j++) kernels->tile(&f.w, 1, &f.rows, &j, 1, alone[j]);
            for (size_t n = 1; n <= 64; n++) {
                kernels->tile(&f.w, 1, &f.rows, NULL, n, out);
                assert_memory_equal(out, alone, n * 32);
                uint32_t index[64];
                for (size_t j = 0; j < n; j++) index[j] = (uint32_t)((j * 37 + n) % 64);
                kernels->tile(&f.w, 1, &f.rows, index, n, out);
                for (size_t j = 0; j < n; j++) assert_memory_equal(out + 8 * j, alone[index[j]], 32);
            }
        }
        drop(&f);
    }
}

static void test_negative_128(void **state) {
    (void)state; /* a container may hold -128 (Q8_0 sources do): its absolute value does not fit int8 */
    fixture f = make((nf_format){NF_TYPE_I8, NF_CODEBOOK_NONE}, 8, 64, 2, 5);
    for (size_t b = 0; b < 2; b++) memset(f.tiles + b * 272 + 16, 0x80, 256);
    for (size_t i = 0; i < 2 * 64; i++) f.rows.x[i] = i % 2 ? 1.0f : -1.0f, f.rows.q[i] = i % 2 ? 127 : -127;
    f.rows.x[1] = f.rows.x[3] = 0, f.rows.q[1] = f.rows.q[3] = 0;
    for (size_t j = 0; j < 2; j++)
        for (size_t g = 0; g < 2; g++) {
            f.rows.scale[j * 2 + g] = 1.0f / 127.0f;
            int32_t s = 0;
            for (int i = 0; i < 32; i++) s += f.rows.q[j * 64 + g * 32 + (size_t)i];
            f.rows.sum[j * 2 + g] = s;
        }
    for (int l = 0; l < N_LEVELS; l++) {
        const nf_kernels *kernels = nf_kernels_by_name(levels[l]);
        float out[16];
        if (!kernels) continue;
        kernels->tile(&f.w, 0, &f.rows, NULL, 2, out);
        for (size_t j = 0; j < 2; j++)
            for (size_t r = 0; r < 8; r++) assert_float_equal(out[8 * j + r], oracle(&f, r, j), 0);
    }
    drop(&f);
}

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
            if (b) assert_false(b->quantise_row(x, 96, qb, sb, tb));
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

static void test_attention_block(void **state) {
    (void)state;
    const nf_kernels *a = nf_kernels_by_name("portable"), *b = nf_kernels_by_name("avx2");
    uint64_t seed = 11;
    static const size_t dims[] = {8, 16, 20, 64, 80, 96, 256};
    for (size_t k = 0; k < 7; k++)
        for (size_t n = 1; n <= 256; n = n * 3 + 1) {
            size_t dim = dims[k];
            float *q = calloc(dim, 4), *key = calloc(n * dim, 4), *v = calloc(n * dim, 4),
                  *oa = calloc(dim, 4), *ob = calloc(dim, 4), scores[256];
            for (size_t i = 0; i < dim; i++) q[i] = next_float(&seed);
            for (size_t i = 0; i < n * dim; i++) key[i] = next_float(&seed) * 3, v[i] = next_float(&seed);
            nf_attention_part pa = a->attention_block(q, key, v, dim, n, dim, 0.25f, oa, scores);
            double max = -INFINITY, sum = 0, *want = calloc(dim, sizeof *want);
            for (size_t j = 0; j < n; j++) {
                double s = 0;
                for (size_t i = 0; i < dim; i++) s += (double)q[i] * key[j * dim + i] * 0.25;
                max = fmax(max, s);
            }
            for (size_t j = 0; j < n; j++) {
                double s = 0;
                for (size_t i = 0; i < dim; i++) s += (double)q[i] * key[j * dim + i] * 0.25;
                sum += exp(s - max);
                for (size_t i = 0; i < dim; i++) want[i] += exp(s - max) * v[j * dim + i];
            }
            assert_float_equal(pa.max, (float)max, 1e-4f);
            assert_float_equal(pa.sum, (float)sum, 1e-3f);
            for (size_t i = 0; i < dim; i++) assert_float_equal(oa[i], (float)want[i], 1e-3f);
            if (b) {
                nf_attention_part pb = b->attention_block(q, key, v, dim, n, dim, 0.25f, ob, scores);
                assert_memory_equal(&pa, &pb, sizeof pa);
                assert_memory_equal(oa, ob, dim * 4);
            }
            free(q), free(key), free(v), free(oa), free(ob), free(want);
        }
}

/* The delta rule against its definition in double, levels against each other, and a chunk against its tokens
 * one by one. */
static void test_delta_rule(void **state) {
    (void)state;
    const nf_kernels *a = nf_kernels_by_name("portable"), *b = nf_kernels_by_name("avx2");
    uint64_t seed = 21;
    enum { DK = 12, T = 9 };
    for (size_t n_cols = 1; n_cols <= 32; n_cols++) {
        const size_t stride = (n_cols + 7) / 8 * 8;
        float s[3][DK * 32] = {{0}}, q[T * DK], k[T * DK], v[T * 32], decay[T], beta[T], o[3][T * 32];
        double S[DK][32] = {{0}};
        for (int i = 0; i < T * DK; i++) q[i] = next_float(&seed), k[i] = next_float(&seed) * 0.3f;
        for (int i = 0; i < T * 32; i++) v[i] = next_float(&seed);
        for (int t = 0; t < T; t++) decay[t] = 0.9f + 0.1f * next_float(&seed), beta[t] = 0.5f;
        a->delta_rule(s[0], stride, DK, n_cols, T, q, k, DK, v, 32, decay, beta, 1, o[0], 32);
        for (int t = 0; t < T; t++)
            a->delta_rule(s[1], stride, DK, n_cols, 1, q + t * DK, k + t * DK, DK, v + t * 32, 32, decay + t,
                          beta + t, 1, o[1] + t * 32, 32);
        assert_memory_equal(s[0], s[1], sizeof s[0]);
        if (b) {
            b->delta_rule(s[2], stride, DK, n_cols, T, q, k, DK, v, 32, decay, beta, 1, o[2], 32);
            assert_memory_equal(s[0], s[2], sizeof s[0]);
        }
        for (int t = 0; t < T; t++) {
            for (size_t c = 0; c < n_cols; c++) {
                double u = 0, out = 0;
                for (int i = 0; i < DK; i++) S[i][c] *= decay[t], u += S[i][c] * k[t * DK + i];
                u = (v[t * 32 + (int)c] - u) * beta[t];
                for (int i = 0; i < DK; i++) S[i][c] += k[t * DK + i] * u, out += S[i][c] * q[t * DK + i];
                assert_float_equal(o[0][t * 32 + (int)c], (float)out, 1e-4f);
                assert_memory_equal(&o[0][t * 32 + (int)c], &o[1][t * 32 + (int)c], 4);
                if (b) assert_memory_equal(&o[0][t * 32 + (int)c], &o[2][t * 32 + (int)c], 4);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_follow_the_contract),
        cmocka_unit_test(test_batches_do_not_matter),
        cmocka_unit_test(test_negative_128),
        cmocka_unit_test(test_quantised_rows),
        cmocka_unit_test(test_float_kernels_agree),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_attention_block),
        cmocka_unit_test(test_delta_rule),
    };
    if (!nf_kernels_by_name("avx2"))
        printf("note: this processor has no AVX2: only the portable kernels are tested\n");
    else if (!nf_kernels_by_name("avx512"))
        printf("note: this processor has no AVX-512 VNNI: that level is not tested\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
