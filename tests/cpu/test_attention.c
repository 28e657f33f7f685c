/* Attention over the KV cache, for every type of it: what is stored against an independent reading of
 * docs/arithmetic.md, the portable kernel near a definition in double over what is stored, every level byte
 * for byte equal to the portable one. */
#include "tests/support/support.h"

#include "cpu/kernels.h"
#include "format/numeric.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const levels[] = {"portable", "avx2", "avx512"};
enum { ALL = 2 * NF_ATTENTION_BLOCK };

/* ---- storing ---- */

/* What the cache gives back for x[i] of a position [dim]: the definition of the page, written anew. */
static float stored(nf_kv_type type, const float *x, size_t dim, size_t i, float *scale) {
    const size_t from = type == NF_KV_Q8 ? i / 32 * 32 : 0, group = type == NF_KV_Q8 ? 32 : dim,
                 to = dim - from < group ? dim : from + group;
    float absmax = 0;
    *scale = 1;
    if (type == NF_KV_F32) return x[i];
    if (type == NF_KV_BF16) return nf_bf16_to_f32(nf_f32_to_bf16(x[i]));
    for (size_t c = from; c < to; c++) absmax = fmaxf(absmax, fabsf(x[c]));
    *scale = absmax < 0x1p-100f ? 0 : type == NF_KV_Q8 ? absmax / 127 : absmax / 1.75f;
    if (*scale == 0) return 0;
    if (type == NF_KV_Q8) return nearbyintf(x[i] * (127 / absmax));
    return nf_e4m3_to_f32(nf_f32_to_e4m3(x[i] * (448 / absmax))) / 256;
}

static float read_element(nf_kv_type type, const uint8_t *at, size_t i) {
    float x;
    uint16_t h;
    memcpy(&x, at + (type == NF_KV_F32 ? 4 * i : 0), 4);
    memcpy(&h, at + (type == NF_KV_BF16 ? 2 * i : 0), 2);
    return type == NF_KV_F32    ? x
           : type == NF_KV_BF16 ? nf_bf16_to_f32(h)
           : type == NF_KV_FP8  ? nf_e4m3_to_f32(at[i]) / 256
                                : (float)(int8_t)at[i];
}

static void expect_float(float got, float want) {
    assert_memory_equal(&got, &want, sizeof got);
}

static void test_what_is_stored(void **state) {
    (void)state;
    static const size_t dims[] = {1, 8, 20, 32, 64, 80, 96, 128, 256}, slots[] = {0, 1, 15, 16, 17, 100, 255};
    uint64_t seed = 5;
    for (size_t c = 0; c < 9 * NF_KV_N_TYPES; c++) {
        const size_t dim = dims[c / NF_KV_N_TYPES];
        const nf_kv_type type = (nf_kv_type)(c % NF_KV_N_TYPES);
        const nf_kv_layout l = nf_kv_layout_get(type, dim);
        const size_t element = type == NF_KV_F32    ? 4
                               : type == NF_KV_BF16 ? 2
                                                    : 1,
                     scales = type == NF_KV_FP8  ? 1
                              : type == NF_KV_Q8 ? (dim + 31) / 32
                                                 : 0;
        assert_int_equal(l.bytes, 256 * (element * (dim + (dim + 15) / 16 * 16) + 8 * scales));
        uint8_t *kv = aligned_alloc(64, l.bytes);
        memset(kv, 0, l.bytes);
        for (size_t s = 0; s < 7; s++) {
            const size_t slot = slots[s];
            float k[256], v[256], scale;
            for (size_t i = 0; i < dim; i++) {
                const int e = (int)(next_random(&seed) % (s % 2 ? 6 : 60));
                k[i] = ldexpf(next_float(&seed), e - 30), v[i] = ldexpf(next_float(&seed), 3 - e);
            }
            if (s == 2) memset(k, 0, sizeof k), v[0] = -0.0f;
            if (s == 4) k[dim - 1] = 0x1p-120f;
            assert_true(nf_kv_store(&l, kv, slot, k, v));
            for (size_t i = 0; i < dim; i++) {
                const size_t g = type == NF_KV_Q8 ? i / 32 : 0;
                float got;
                expect_float(0 + read_element(type, kv, (slot / 16 * dim + i) * 16 + slot % 16),
                             0 + stored(type, k, dim, i, &scale));
                if (scales) {
                    memcpy(&got, kv + l.k_scales + 4 * ((slot / 16 * scales + g) * 16 + slot % 16), 4);
                    expect_float(got, scale);
                }
                expect_float(0 + read_element(type, kv + l.v, (i / 16 * 256 + slot) * 16 + i % 16),
                             0 + stored(type, v, dim, i, &scale));
                if (scales) {
                    memcpy(&got, kv + l.v_scales + 4 * (g * 256 + slot), 4);
                    expect_float(got, scale);
                }
            }
        }
        free(kv);
    }
}

static void test_names(void **state) {
    (void)state;
    nf_kv_type type;
    for (int t = 0; t < NF_KV_N_TYPES; t++) {
        assert_true(nf_kv_type_by_name(nf_kv_type_name((nf_kv_type)t), &type));
        assert_int_equal(type, t);
        assert_non_null(strstr(NF_KV_TYPE_NAMES, nf_kv_type_name((nf_kv_type)t)));
    }
    assert_false(nf_kv_type_by_name("", &type));
    assert_false(nf_kv_type_by_name("F32", &type));
    assert_false(nf_kv_type_by_name("q8_0", &type));
}

/* ---- kernels ---- */

/* Two blocks of keys, of which row r sees all of the first and keys[r] of the second. */
static void attend(const nf_kernels *kernels, size_t n, const nf_kv_layout *l, const float *q,
                   const uint8_t *kv, const size_t *keys, float *acc, nf_attention_part *parts) {
    const size_t dim = l->dim;
    float *scratch = calloc(nf_attention_scratch(dim), sizeof *scratch);
    nf_attention_rows rows = {.n = n, .layout = l, .first = true, .scale = 0.25f, .scratch = scratch};
    for (size_t r = 0; r < n; r++) {
        rows.q[r] = q + r * dim;
        rows.acc[r] = acc + r * dim;
        rows.part[r] = parts + r;
        rows.keys[r] = NF_ATTENTION_BLOCK;
    }
    assert_true(kernels->attention_block(&rows, kv));
    rows.first = false;
    memcpy(rows.keys, keys, n * sizeof *keys);
    assert_true(kernels->attention_block(&rows, kv + l->bytes));
    free(scratch);
}

/* Contract B line by line over codes (or values) k, v [., dim] and their scales: the same bytes. */
typedef struct cache {
    nf_kv_type type;
    size_t dim;
    float *k, *v, *k_scale, *v_scale; /* [ALL, dim]; a scale for each element */
} cache;

static void expect_contract(const cache *c, const size_t *blocks, const float *q,
                            const nf_attention_part *part, const float *acc) {
    const nf_kernels *portable = nf_kernels_by_name("portable");
    const bool scaled = c->type == NF_KV_FP8 || c->type == NF_KV_Q8;
    const size_t group = c->type == NF_KV_Q8 ? 32 : c->dim;
    float M = 0, S = 0, out[256] = {0};
    for (size_t b = 0; b < 2; b++) {
        float s[NF_ATTENTION_BLOCK], max = -INFINITY, lanes[16] = {0};
        for (size_t j = 0; j < blocks[b]; j++) {
            const size_t at = (b * NF_ATTENTION_BLOCK + j) * c->dim;
            float total = 0;
            for (size_t from = 0; from < c->dim; from += group) {
                float d = 0;
                for (size_t i = from; i < from + group && i < c->dim; i++) d = fmaf(q[i], c->k[at + i], d);
                const float by = c->k_scale[at + from];
                total = !scaled ? d : from ? fmaf(d, by, total) : d * by;
            }
            s[j] = total * 0.25f;
            max = fmaxf(max, s[j]);
        }
        for (size_t j = 0; j < blocks[b]; j++) lanes[j % 16] += s[j] = portable->exp(s[j] - max);
        for (int step = 8; step; step /= 2)
            for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
        const float top = b && M > max ? M : max, old = portable->exp(M - top),
                    fresh = portable->exp(max - top);
        S = b ? fmaf(S, old, lanes[0] * fresh) : lanes[0];
        M = top;
        for (size_t i = 0; i < c->dim; i++) {
            float sum = 0;
            for (size_t j = 0; j < blocks[b]; j++) {
                const size_t at = (b * NF_ATTENTION_BLOCK + j) * c->dim + i;
                sum = fmaf(scaled ? s[j] * c->v_scale[at] : s[j], c->v[at], sum);
            }
            out[i] = b ? fmaf(fresh, sum, out[i] * old) : sum;
        }
    }
    expect_float(part->max, M);
    expect_float(part->sum, S);
    assert_memory_equal(acc, out, c->dim * sizeof *acc);
}

/* The definition in double over the stored values k, v [., dim]. */
static void expect_definition(size_t dim, size_t n_keys, const float *q, const float *k, const float *v,
                              const nf_attention_part *part, const float *acc) {
    double s[ALL], max = -INFINITY, sum = 0;
    for (size_t j = 0; j < n_keys; j++) {
        s[j] = 0;
        for (size_t i = 0; i < dim; i++) s[j] += (double)q[i] * k[j * dim + i] * 0.25;
        max = fmax(max, s[j]);
    }
    for (size_t j = 0; j < n_keys; j++) sum += s[j] = exp(s[j] - max);
    assert_float_equal(part->max, (float)max, 1e-4f);
    assert_float_equal(part->sum / sum, 1.0, 1e-4f);
    for (size_t i = 0; i < dim; i++) {
        double want = 0;
        for (size_t j = 0; j < n_keys; j++) want += s[j] * v[j * dim + i];
        assert_float_equal(acc[i] / sum, want / sum, 1e-4f);
    }
}

static void check_blocks(nf_kv_type type, size_t dim, size_t n, size_t keys_of_second, uint64_t *seed) {
    const nf_kv_layout l = nf_kv_layout_get(type, dim);
    const nf_kernels *portable = nf_kernels_by_name("portable");
    float *q = calloc(8 * dim, 4), *k = calloc(ALL * dim, 4), *v = calloc(ALL * dim, 4), *acc[3];
    cache codes = {
        type, dim, calloc(ALL * dim, 4), calloc(ALL * dim, 4), calloc(ALL * dim, 4), calloc(ALL * dim, 4)};
    uint8_t *kv = aligned_alloc(64, 2 * l.bytes);
    nf_attention_part parts[3][8] = {0};
    size_t keys[8];
    memset(kv, 0, 2 * l.bytes);
    for (int i = 0; i < 3; i++) acc[i] = calloc(8 * dim, 4);
    for (size_t i = 0; i < 8 * dim; i++) q[i] = next_float(seed);
    for (size_t j = 0; j < ALL; j++) {
        float x[256], y[256];
        for (size_t i = 0; i < dim; i++) x[i] = next_float(seed), y[i] = next_float(seed);
        assert_true(nf_kv_store(&l, kv + j / NF_ATTENTION_BLOCK * l.bytes, j % NF_ATTENTION_BLOCK, x, y));
        for (size_t i = 0; i < dim; i++) {
            const size_t at = j * dim + i;
            codes.k[at] = stored(type, x, dim, i, &codes.k_scale[at]);
            codes.v[at] = stored(type, y, dim, i, &codes.v_scale[at]);
            k[at] = codes.k[at] * codes.k_scale[at];
            v[at] = codes.v[at] * codes.v_scale[at];
            assert_float_equal(k[at], x[i], 0.04f);
        }
    }
    for (size_t r = 0; r < 8; r++) keys[r] = keys_of_second + r / 2;
    attend(portable, n, &l, q, kv, keys, acc[0], parts[0]);
    for (size_t r = 0; r < n; r++) {
        const size_t blocks[] = {NF_ATTENTION_BLOCK, keys[r]};
        expect_contract(&codes, blocks, q + r * dim, &parts[0][r], acc[0] + r * dim);
        expect_definition(dim, NF_ATTENTION_BLOCK + keys[r], q + r * dim, k, v, &parts[0][r],
                          acc[0] + r * dim);
    }
    for (int level = 0; level < 3; level++) {
        const nf_kernels *kernels = nf_kernels_by_name(levels[level]);
        if (!kernels) continue;
        attend(kernels, n, &l, q, kv, keys, acc[1], parts[1]);
        assert_memory_equal(parts[0], parts[1], n * sizeof parts[0][0]);
        assert_memory_equal(acc[0], acc[1], n * dim * 4);
        for (size_t r = 0; r < n; r++) { /* and each row alone */
            attend(kernels, 1, &l, q + r * dim, kv, keys + r, acc[2], parts[2]);
            assert_memory_equal(acc[2], acc[0] + r * dim, dim * 4);
        }
    }
    for (int i = 0; i < 3; i++) free(acc[i]);
    free(codes.k), free(codes.v), free(codes.k_scale), free(codes.v_scale);
    free(q), free(k), free(v), free(kv);
}

static void test_blocks(void **state) {
    (void)state;
    static const size_t dims[] = {8, 20, 64, 80, 96, 128, 256}, ns[] = {1, 15, 16, 17, 100, 249};
    uint64_t seed = 11;
    for (int type = 0; type < NF_KV_N_TYPES; type++)
        for (size_t c = 0; c < 7 * 6; c++)
            check_blocks((nf_kv_type)type, dims[c % 7], 1 + c % NF_ATTENTION_ROWS, ns[c / 7], &seed);
}

/* Infinite keys are refused when they are stored, scores that overflow when they are computed. */
static void test_infinity_is_noted(void **state) {
    (void)state;
    enum { DIM = 48 };
    for (int type = 0; type < NF_KV_N_TYPES; type++) {
        const nf_kv_layout l = nf_kv_layout_get((nf_kv_type)type, DIM);
        float k[DIM], v[DIM], acc[DIM];
        float *scratch = calloc(nf_attention_scratch(DIM), sizeof *scratch);
        uint8_t *kv = aligned_alloc(64, l.bytes);
        nf_attention_part part;
        memset(kv, 0, l.bytes);
        for (int i = 0; i < DIM; i++) k[i] = 3e38f, v[i] = 1.0f;
        assert_true(nf_kv_store(&l, kv, 0, v, v));
        assert_true(nf_kv_store(&l, kv, 1, k, v));
        for (int level = 0; level < 3; level++) {
            const nf_kernels *kernels = nf_kernels_by_name(levels[level]);
            if (!kernels) continue;
            nf_attention_rows rows = {.n = 1, .layout = &l, .first = true, .scale = 1, .scratch = scratch};
            rows.q[0] = v, rows.acc[0] = acc, rows.part[0] = &part;
            rows.keys[0] = 1;
            assert_true(kernels->attention_block(&rows, kv));
            rows.keys[0] = 2;
            assert_false(kernels->attention_block(&rows, kv));
        }
        static const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f};
        for (int b = 0; b < 4; b++)
            for (int at = 0; at < DIM; at += 40) {
                const bool kept = b == 3 && type != NF_KV_BF16; /* rounds to infinity */
                float x[DIM];
                for (int i = 0; i < DIM; i++) x[i] = 1.0f;
                x[at] = bad[b];
                assert_int_equal(nf_kv_store(&l, kv, 2, x, v), kept);
                assert_int_equal(nf_kv_store(&l, kv, 2, v, x), kept);
            }
        free(scratch);
        free(kv);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_stored),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_infinity_is_noted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
