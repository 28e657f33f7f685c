/*
 * Storage types against docs/arithmetic.md (the worked blocks there are read from the page), conversions
 * against slow definitions, and the errors of quantisation.
 */
#include "tests/support/support.h"

#include "base/io.h"
#include "format/numeric.h"
#include "format/types.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nearest of `n` values (ascending), ties to the even index. */
static int nearest_index(const double *values, int n, double x) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        double a = fabs(values[i] - x), b = fabs(values[best] - x);
        if (a < b || (a == b && i % 2 == 0)) best = i;
    }
    return best;
}

static void test_small_floats_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = nf_f16_to_f32((uint16_t)h), b = nf_bf16_to_f32((uint16_t)h);
        int e = h >> 10 & 31, m = h & 1023;
        double want = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (h & 0x8000) want = -want;
        assert_true(isnan(want) ? isnan(f) : (double)f == want);
        if (!isnan(f)) assert_int_equal(nf_f32_to_f16(f), h);
        if (!isnan(b)) assert_int_equal(nf_f32_to_bf16(b), h);
    }
    assert_true(isnan(nf_f16_to_f32(nf_f32_to_f16(NAN))) && isnan(nf_bf16_to_f32(nf_f32_to_bf16(NAN))));
    for (int b = 0; b < 256; b++) {
        float f = nf_e4m3_to_f32((uint8_t)b);
        if ((b & 127) == 127)
            assert_true(isnan(f));
        else
            assert_int_equal(nf_f32_to_e4m3(f), b);
    }
}

static void test_rounding(void **state) {
    (void)state;
    uint64_t seed = 4;
    double e4m3[127];
    for (int i = 0; i < 127; i++) e4m3[i] = nf_e4m3_to_f32((uint8_t)i);
    for (int round = 0; round < 20000; round++) {
        float x = ldexpf(next_float(&seed), (int)(next_random(&seed) % 24) - 13);
        if (round < 126) x = (float)((e4m3[round] + e4m3[round + 1]) / 2); /* exactly between */
        int want = nearest_index(e4m3, 127, fabs((double)x));
        assert_int_equal(nf_f32_to_e4m3(x) & 127, want);
    }
    assert_int_equal(nf_f32_to_e4m3(1e9f), 0x7e);
    /* f16 and bf16: the neighbours of the result are not nearer, and ties go to even. */
    for (int round = 0; round < 300000; round++) {
        float x = ldexpf(next_float(&seed), (int)(next_random(&seed) % 44) - 27);
        if (round % 3 == 0) x = nf_f32_from_bits(nf_f32_bits(x) & 0xFFFFF000u); /* many exact ties */
        uint16_t h = nf_f32_to_f16(x), b = nf_f32_to_bf16(x);
        if (fabsf(x) >= 65520.0f) {
            assert_int_equal(h & 0x7fff, 0x7c00);
        } else {
            double d = fabs((double)nf_f16_to_f32(h) - x);
            for (int step = -1; step <= 1; step += 2) {
                uint16_t other = (uint16_t)(h + step);
                if ((h & 0x7fff) == 0 && step < 0) continue;
                double o = fabs((double)nf_f16_to_f32(other) - x);
                if (!isfinite(o)) continue;
                assert_true(d < o || (d == o && h % 2 == 0));
            }
        }
        double d = fabs((double)nf_bf16_to_f32(b) - x);
        for (int step = -1; step <= 1; step += 2) {
            double o = fabs((double)nf_bf16_to_f32((uint16_t)(b + step)) - x);
            assert_true(d < o || (d == o && b % 2 == 0) || (b & 0x7fff) == 0);
        }
    }
}

static void test_geometry(void **state) {
    (void)state;
    assert_int_equal(nf_matrix_tile_bytes(NF_TYPE_C4, 9, 33), 2 * 2 * 144);
    assert_int_equal(nf_matrix_bytes(NF_TYPE_F8, 129, 129), 17 * 5 * 256 + 0 + 2 * 2 * 4);
    assert_int_equal(nf_matrix_scale_offset(NF_TYPE_F8, 8, 8), 256);
    assert_int_equal(nf_matrix_tile_bytes(NF_TYPE_F32, UINT64_MAX, UINT64_MAX), 0);
    assert_int_equal(nf_matrix_bytes((nf_type)99, 8, 8), 0);
    assert_null(nf_type_get((nf_type)99));
    nf_type t;
    assert_true(nf_type_by_name("bf16", &t) && t == NF_TYPE_BF16);
    assert_false(nf_type_by_name("q4", &t));
}

static const struct {
    const char *name;
    nf_format format;
} formats[] = {{"f32", {NF_TYPE_F32, 0}},
               {"f16", {NF_TYPE_F16, 0}},
               {"bf16", {NF_TYPE_BF16, 0}},
               {"f8", {NF_TYPE_F8, 0}},
               {"i8", {NF_TYPE_I8, 0}},
               {"c4 linear", {NF_TYPE_C4, NF_CODEBOOK_LINEAR}},
               {"c4 nl", {NF_TYPE_C4, NF_CODEBOOK_NL}}};

static void worked_block(nf_format format, uint8_t out[1024]) {
    nf_error err = {0};
    float w[8 * 32], scale = 1.0f / 32;
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 32; c++) w[r * 32 + c] = ((float)c - 15.5f) * (float)(r + 1) / 16.0f;
    OK(nf_quantise_tile(format, w, 32, 8, 32, &scale, out, &err));
}

/* With NF_PRINT_BLOCKS set, prints the lines for the page instead. */
static void test_the_documents_blocks(void **state) {
    (void)state;
    nf_error err = {0};
    nf_buf doc = {0};
    OK(nf_read_file("docs/arithmetic.md", 1 << 20, &doc, &err));
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        uint8_t block[1024];
        worked_block(formats[k].format, block);
        size_t bytes = nf_type_get(formats[k].format.type)->block_bytes,
               row = nf_type_get(formats[k].format.type)->row_bytes;
        if (getenv("NF_PRINT_BLOCKS")) {
            printf("```block %s\n", formats[k].name);
            for (size_t at = 0; at < bytes; at += 16) {
                if (bytes > 300 && at >= row && at < bytes - row)
                    continue; /* wide types: the first and the last row */
                printf("%04zx:", at);
                for (size_t i = 0; i < 16; i++) printf(" %02x", block[at + i]);
                printf("\n");
            }
            printf("```\n\n");
            continue;
        }
        char head[64];
        snprintf(head, sizeof head, "```block %s\n", formats[k].name);
        const char *p = strstr(doc.data, head);
        if (!p) fail_msg("docs/arithmetic.md has no worked block for %s", formats[k].name);
        size_t compared = 0;
        for (p += strlen(head); *p != '`';) {
            char *end;
            size_t at = strtoul(p, &end, 16);
            assert_int_equal(*end, ':');
            for (p = end + 1; *p == ' '; p = end) {
                assert_true(at < bytes);
                assert_int_equal(strtoul(p, &end, 16), block[at]);
                at++, compared++;
            }
            assert_int_equal(*p, '\n');
            p++;
        }
        assert_true(compared == bytes || compared == 2 * row);
    }
    nf_buf_free(&doc);
}

static void test_quantise_and_back(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 8;
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++)
        for (size_t cols = 1; cols < 200; cols += 13) {
            float w[8 * 200], back[8 * 200], one[200], scales[2] = {0.25f, 0.25f};
            uint8_t tile[8 * 1024];
            size_t n_rows = 1 + cols % 8;
            for (size_t i = 0; i < n_rows * cols; i++) w[i] = next_float(&seed) * 2;
            memset(w, 0, (cols < 32 ? cols : 32) * sizeof *w); /* a group of zeros */
            OK(nf_quantise_tile(formats[k].format, w, cols, n_rows, cols, scales, tile, &err));
            nf_dequantise_tile(formats[k].format, tile, n_rows, cols, scales, back, cols);
            for (size_t r = 0; r < n_rows; r++) {
                nf_dequantise_row(formats[k].format, tile, r, cols, scales, one);
                assert_memory_equal(one, back + r * cols, cols * sizeof *one);
            }
            static const float allowed[] = {0, 0.001f, 0.008f, 0.13f, 0.0095f, 0.32f, 0.32f};
            for (size_t i = 0; i < n_rows * cols; i++) assert_true(fabsf(w[i] - back[i]) <= allowed[k]);
            for (size_t i = 0; i < cols && i < 32; i++) assert_true(back[i] == 0.0f);
            /* Rows that are not there are zero bytes. */
            size_t block = nf_type_get(formats[k].format.type)->block_bytes,
                   row = nf_type_get(formats[k].format.type)->row_bytes;
            for (size_t r = n_rows; r < 8; r++)
                for (size_t i = 0; i < row; i++) assert_int_equal(tile[block - (8 - r) * row + i], 0);
        }
}

static void test_bad_values_are_named(void **state) {
    (void)state;
    nf_error err = {0};
    float w[64] = {0};
    uint8_t tile[2048];
    w[40] = NAN;
    assert_int_equal(nf_quantise_tile(formats[5].format, w, 64, 1, 64, NULL, tile, &err), NF_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "column 40"));
    w[40] = -INFINITY;
    assert_int_equal(nf_quantise_tile(formats[0].format, w, 64, 1, 64, NULL, tile, &err), NF_ERR_NUMERIC);
    w[40] = 1e8f;
    assert_int_equal(nf_quantise_tile(formats[4].format, w, 64, 1, 64, NULL, tile, &err), NF_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "f16 scale"));
    w[40] = 1e-9f; /* a scale that f16 cannot hold: zero, not garbage */
    OK(nf_quantise_tile(formats[5].format, w, 64, 1, 64, NULL, tile, &err));
    for (size_t i = 0; i < 288; i++) assert_int_equal(tile[i], 0);
    assert_int_equal(
        nf_quantise_tile((nf_format){NF_TYPE_C4, NF_CODEBOOK_NONE}, w, 64, 1, 64, NULL, tile, &err),
        NF_ERR_ARGUMENT);
}

static void test_f8_scales(void **state) {
    (void)state;
    static float w[130 * 140];
    float scales[4];
    w[5 * 140 + 7] = 900.0f;
    w[129 * 140 + 139] = -0.001f;
    nf_f8_block_scales(w, 140, 130, 140, scales);
    assert_true(scales[0] == 4.0f && scales[1] == 1.0f && scales[2] == 1.0f);
    assert_true(0.001f / scales[3] <= 448.0f && 0.001f / scales[3] > 224.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_floats_round_trip),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_the_documents_blocks),
        cmocka_unit_test(test_quantise_and_back),
        cmocka_unit_test(test_bad_values_are_named),
        cmocka_unit_test(test_f8_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
