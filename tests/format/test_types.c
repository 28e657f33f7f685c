/*
 * Storage types against docs/arithmetic.md (the worked blocks there are read from the page): layout, rounding
 * rules, errors. tests/python/test_types.py holds an independent reader and writer; scalar conversions are in
 * test_numeric.c.
 */
#include "tests/support/support.h"

#include "base/io.h"
#include "format/numeric.h"
#include "format/types.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_geometry(void **state) {
    (void)state;
    static const nf_format c4 = {.type = NF_TYPE_C4, .codebook = NF_CODEBOOK_LINEAR},
                           f8 = {.type = NF_TYPE_F8}, nvfp4 = {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3};
    assert_int_equal(nf_matrix_tile_bytes(c4, 9, 33), 2 * 2 * 144);
    assert_int_equal(nf_matrix_bytes(f8, 129, 129), 17 * 5 * 256 + 0 + 2 * 2 * 4);
    assert_int_equal(nf_matrix_table_offset(f8, 8, 8), 256);
    assert_int_equal(nf_matrix_bytes(nvfp4, 8, 32), 192 + 4);
    assert_int_equal(nf_matrix_tile_bytes((nf_format){.type = NF_TYPE_F32}, UINT64_MAX, UINT64_MAX), 0);
    assert_int_equal(nf_matrix_bytes((nf_format){.type = (nf_type)99}, 8, 8), 0);
    static const struct {
        nf_format format;
        uint32_t block;
    } blocks[] = {{{NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E8M0}, 136},
                  {{NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E4M3}, 144},
                  {{.type = NF_TYPE_Z4}, 152},
                  {{.type = NF_TYPE_A4}, 160},
                  {{.type = NF_TYPE_S5}, 176},
                  {{.type = NF_TYPE_S6}, 208},
                  {{.type = NF_TYPE_I8}, 272},
                  {{.type = NF_TYPE_F8}, 256},
                  {{.type = NF_TYPE_BF16}, 512},
                  {{.type = NF_TYPE_F32}, 1024}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        assert_int_equal(nf_layout_get(blocks[i].format).block, blocks[i].block);
    assert_null(nf_type_get((nf_type)99));
    nf_type t;
    assert_true(nf_type_by_name("bf16", &t) && t == NF_TYPE_BF16);
    assert_false(nf_type_by_name("q4", &t));
}

static const struct {
    const char *name;
    nf_format format;
} formats[] = {{"f32", {.type = NF_TYPE_F32}},
               {"f16", {.type = NF_TYPE_F16}},
               {"bf16", {.type = NF_TYPE_BF16}},
               {"f8", {.type = NF_TYPE_F8}},
               {"i8", {.type = NF_TYPE_I8}},
               {"c4 linear", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_F16}},
               {"c4 nl", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_F16}},
               {"s6", {.type = NF_TYPE_S6}},
               {"s5", {.type = NF_TYPE_S5}},
               {"z4", {.type = NF_TYPE_Z4}},
               {"a4", {.type = NF_TYPE_A4}},
               {"c4 e2m1", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_F16}},
               {"c4 e2m1 e8m0", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E8M0}},
               {"c4 e2m1 e4m3", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3}},
               {"c4 linear e8m0", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E8M0}},
               {"c4 linear e4m3", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E4M3}},
               {"c4 nl e8m0", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E8M0}},
               {"c4 nl e4m3", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E4M3}}};
enum { N_FORMATS = sizeof formats / sizeof *formats, N_ON_PAGE = 14 };

/* Byte of column c of row r among the codes of an integer type (its low nibble for c < 16, where there are
 * nibbles). */
static size_t code_at(nf_format format, size_t r, size_t c) {
    const size_t run = format.type == NF_TYPE_I8 ? c / 4 : c % 16 / 4;
    return nf_layout_get(format).scales + nf_layout_get(format).offsets + 32 * run + 4 * r + c % 4;
}

static void worked_block(nf_format format, uint8_t out[1024]) {
    nf_error err = {0};
    float w[8 * 32], scale = 1.0f / 32;
    if (format.type == NF_TYPE_C4) scale = nf_c4_factor(format.codebook, 7.75f);
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 32; c++) w[r * 32 + c] = ((float)c - 15.5f) * (float)(r + 1) / 16.0f;
    OK(nf_quantise_tile(format, w, 32, 8, 32, &scale, NULL, out, &err));
}

/* With NF_PRINT_BLOCKS set, prints the lines for the page instead. */
static void test_the_documents_blocks(void **state) {
    (void)state;
    nf_error err = {0};
    nf_buf doc = {0};
    OK(nf_read_file("docs/arithmetic.md", 1 << 20, &doc, &err));
    for (size_t k = 0; k < N_ON_PAGE; k++) {
        uint8_t block[1024];
        worked_block(formats[k].format, block);
        size_t bytes = nf_layout_get(formats[k].format).block;
        const size_t row = 64; /* shown of wide types: the first and the last of their bytes */
        if (getenv("NF_PRINT_BLOCKS")) {
            printf("```block %s\n", formats[k].name);
            for (size_t at = 0; at < bytes; at += 16) {
                if (bytes > 300 && at >= row && at < bytes - row) continue;
                printf("%04zx:", at);
                for (size_t i = at; i < bytes && i < at + 16; i++) printf(" %02x", block[i]);
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
    for (size_t k = 0; k < N_FORMATS; k++)
        for (size_t cols = 1; cols < 200; cols += 13) {
            float w[8 * 200], back[8 * 200], one[200], scales[2] = {0.25f, 0.25f};
            const nf_format format = formats[k].format;
            if (format.type == NF_TYPE_C4) scales[0] = nf_c4_factor(format.codebook, 2.0f);
            uint8_t tile[8 * 1024];
            size_t n_rows = 1 + cols % 8;
            for (size_t i = 0; i < n_rows * cols; i++) w[i] = next_float(&seed) * 2;
            memset(w, 0, (cols < 32 ? cols : 32) * sizeof *w); /* a group of zeros */
            OK(nf_quantise_tile(formats[k].format, w, cols, n_rows, cols, scales, NULL, tile, &err));
            nf_dequantise_tile(formats[k].format, tile, n_rows, cols, scales, back, cols);
            for (size_t r = 0; r < n_rows; r++) {
                nf_dequantise_row(formats[k].format, tile, r, cols, scales, one);
                assert_memory_equal(one, back + r * cols, cols * sizeof *one);
            }
            static const float allowed[] = {0,     0.001f, 0.008f, 0.13f, 0.0095f, 0.32f, 0.32f, 0.07f, 0.15f,
                                            0.30f, 0.30f,  0.4f,   0.55f, 0.45f,   0.5f,  0.4f,  0.6f,  0.4f};
            for (size_t i = 0; i < n_rows * cols; i++)
                if (!(fabsf(w[i] - back[i]) <= allowed[k]))
                    fail_msg("%s: %g came back as %g", formats[k].name, (double)w[i], (double)back[i]);
            for (size_t i = 0; i < cols && i < 32; i++) assert_true(fabsf(back[i]) < 1e-38f);
            /* Rows that are not there are zero bytes. */
            const nf_layout l = nf_layout_get(format);
            const size_t element = nf_type_get(format.type)->bits / 8;
            for (size_t r = n_rows; r < 8; r++)
                for (size_t c = 0; c < 32; c++) {
                    if (nf_type_get(format.type)->integer_dot)
                        assert_int_equal(tile[code_at(format, r, c)], 0);
                    else
                        for (size_t i = 0; i < element; i++)
                            assert_int_equal(tile[(8 * c + r) * element + i], 0);
                }
            for (size_t r = n_rows; r < 8 && l.scales && format.scale == NF_SCALE_F16; r++)
                assert_int_equal(tile[2 * r] | tile[2 * r + 1], 0);
        }
}

static void test_bad_values_are_named(void **state) {
    (void)state;
    nf_error err = {0};
    float w[64] = {0};
    uint8_t tile[2048];
    w[40] = NAN;
    assert_int_equal(nf_quantise_tile(formats[5].format, w, 64, 1, 64, NULL, NULL, tile, &err),
                     NF_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "column 40"));
    w[40] = -INFINITY;
    assert_int_equal(nf_quantise_tile(formats[0].format, w, 64, 1, 64, NULL, NULL, tile, &err),
                     NF_ERR_NUMERIC);
    w[40] = 1e8f;
    assert_int_equal(nf_quantise_tile(formats[4].format, w, 64, 1, 64, NULL, NULL, tile, &err),
                     NF_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "f16 scale"));
    w[40] = 1e-9f; /* a scale that f16 cannot hold: zero, not garbage */
    OK(nf_quantise_tile(formats[5].format, w, 64, 1, 64, NULL, NULL, tile, &err));
    for (size_t i = 0; i < 288; i++) assert_int_equal(tile[i], 0);
    assert_int_equal(nf_quantise_tile((nf_format){.type = NF_TYPE_C4}, w, 64, 1, 64, NULL, NULL, tile, &err),
                     NF_ERR_ARGUMENT);
}

/* Each kind of value that a type cannot hold is refused and named: nothing becomes infinite in silence. */
static void test_what_does_not_fit(void **state) {
    (void)state;
    static const struct {
        int format;
        float value;
        float scale; /* of the f8 block */
        nf_status status;
        const char *what;
    } cases[] = {
        {1, 65519.0f, 0, NF_OK, ""},
        {1, 65520.0f, 0, NF_ERR_NUMERIC, "too large for f16"}, /* was: stored as infinity */
        {1, -1e30f, 0, NF_ERR_NUMERIC, "too large for f16"},
        {2, 3.3e38f, 0, NF_OK, ""},
        {2, 0x1.fffffep127f, 0, NF_ERR_NUMERIC, "too large for bf16"},
        {0, 0x1.fffffep127f, 0, NF_OK, ""},
        {3, 463.0f, 1, NF_OK, ""},
        {3, 464.0f, 1, NF_ERR_NUMERIC, "too large for f8"},
        {3, 1.0f, 0, NF_ERR_NUMERIC, "scale"},
        {3, 1.0f, NAN, NF_ERR_NUMERIC, "scale"},
        {3, 1.0f, INFINITY, NF_ERR_NUMERIC, "scale"},
        {3, 1e30f, 0x1p-126f, NF_ERR_NUMERIC, "too large for f8"},
        {4, 65519.0f * 127, 0, NF_OK, ""},
        {4, 65521.0f * 127, 0, NF_ERR_NUMERIC, "f16 scale"},
        {5, 500000.0f, 0, NF_OK, ""},
        {5, 1e30f, 0, NF_ERR_NUMERIC,
         "f16 scale"}, /* was: bytes of the stack, all candidates being infinite */
        {5, -0x1.fffffep127f, 0, NF_ERR_NUMERIC, "f16 scale"},
        {6, 8e6f, 0, NF_OK, ""},
        {6, -1e30f, 0, NF_ERR_NUMERIC, "f16 scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nf_error err = {0};
        float w[2 * 64] = {0}, back[2 * 64];
        uint8_t tile[2048];
        w[64 + 40] = cases[i].value;
        nf_status status = nf_quantise_tile(formats[cases[i].format].format, w, 64, 2, 64,
                                            cases[i].format == 3 ? &cases[i].scale : NULL, NULL, tile, &err);
        if (status != cases[i].status || (status && !strstr(err.message, cases[i].what)))
            fail_msg("case %zu: %s '%s'", i, nf_status_name(status), err.message);
        if (status && strcmp(cases[i].what, "scale") != 0)
            assert_non_null(strstr(err.message, "row 1, column 40"));
        if (status) continue;
        nf_dequantise_tile(formats[cases[i].format].format, tile, 2, 64, &cases[i].scale, back, 64);
        assert_true(fabsf(back[64 + 40] - cases[i].value) <= 0.04f * fabsf(cases[i].value));
    }
}

static void test_bad_arguments(void **state) {
    (void)state;
    static const nf_format bad[] = {{.type = NF_TYPE_C4},
                                    {.type = NF_TYPE_C4, .codebook = (nf_codebook)7},
                                    {NF_TYPE_C4, NF_CODEBOOK_NL, (nf_scale)3},
                                    {.type = NF_TYPE_S5, .scale = NF_SCALE_E8M0},
                                    {.type = NF_TYPE_U8},
                                    {.type = (nf_type)99},
                                    {.type = (nf_type)-1},
                                    {.type = NF_TYPE_I8, .codebook = NF_CODEBOOK_NL}};
    nf_error err = {0};
    float w[9 * 32] = {0}, back[32];
    uint8_t tile[1024] = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(nf_quantise_tile(bad[i], w, 32, 1, 32, NULL, NULL, tile, &err), NF_ERR_ARGUMENT);
        nf_dequantise_row(bad[i], tile, 0, 32, NULL, back);
        for (int c = 0; c < 32; c++) assert_true(isnan(back[c]));
    }
    assert_int_equal(nf_quantise_tile(formats[0].format, w, 32, 9, 32, NULL, NULL, tile, &err),
                     NF_ERR_ARGUMENT);
    assert_int_equal(nf_quantise_tile(formats[3].format, w, 32, 1, 32, NULL, NULL, tile, &err),
                     NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "f8"));
    nf_dequantise_row(formats[3].format, tile, 0, 32, NULL, back);
    assert_true(isnan(back[0]));
}

/* i8: d = f16(absmax / 127), q = w / d rounded half to even. */
static void test_i8_rounding(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 3;
    for (int round = 0; round < 2000; round++) {
        float w[32], absmax = 0;
        uint8_t tile[272];
        const float size = ldexpf(1.0f, (int)(next_random(&seed) % 46) - 30);
        for (int c = 0; c < 32; c++) w[c] = next_float(&seed) * size;
        if (round % 2) /* many exact ties */
            for (int c = 0; c < 32; c++) w[c] = rintf(w[c] / size * 254) / 2 * size, w[0] = 127 * size;
        for (int c = 0; c < 32; c++) absmax = fmaxf(absmax, fabsf(w[c]));
        OK(nf_quantise_tile(formats[4].format, w, 32, 1, 32, NULL, NULL, tile, &err));
        const uint16_t h = nf_f32_to_f16(absmax / 127);
        assert_int_equal(tile[0] | tile[1] << 8, h);
        for (int c = 0; c < 32; c++) {
            float q = h ? rintf(w[c] / nf_f16_to_f32(h)) : 0;
            assert_int_equal((int8_t)tile[code_at(formats[4].format, 0, (size_t)c)],
                             (int)fmaxf(-127, fminf(127, q)));
        }
    }
}

/* Squared error of a group for codes chosen by trying all 16. */
static double best_error(const float *w, const int8_t *values, float scale) {
    double sum = 0;
    for (int c = 0; c < 32; c++) {
        double best = INFINITY;
        for (int v = 0; v < 16; v++) best = fmin(best, fabs((double)w[c] - (double)scale * values[v]));
        sum += best * best;
    }
    return sum;
}

/* c4: each code is the nearest for the stored scale, and the error is not above that of Q4_0 and IQ4_NL's
 * plain rule (the extreme becomes the first value) in any group, and clearly below it on average. */
static void test_c4_is_nearest_and_better(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 6;
    for (int k = 5; k < 7; k++) {
        const int8_t *values = nf_codebook_values(formats[k].format.codebook);
        double ours = 0, plain = 0;
        for (int round = 0; round < 3000; round++) {
            float w[32], back[32], extreme = 0;
            uint8_t tile[144];
            for (int c = 0; c < 32; c++)
                w[c] = (next_float(&seed) + next_float(&seed) + next_float(&seed)) * 0.01f;
            for (int c = 0; c < 32; c++)
                if (fabsf(w[c]) > fabsf(extreme)) extreme = w[c];
            OK(nf_quantise_tile(formats[k].format, w, 32, 1, 32, NULL, NULL, tile, &err));
            nf_dequantise_row(formats[k].format, tile, 0, 32, NULL, back);
            double error = 0;
            for (int c = 0; c < 32; c++) error += ((double)w[c] - back[c]) * ((double)w[c] - back[c]);
            const float scale = nf_f16_to_f32((uint16_t)(tile[0] | tile[1] << 8));
            assert_true(error <= best_error(w, values, scale) * (1 + 1e-6));
            const double reference = best_error(w, values, nf_f16_to_f32(nf_f32_to_f16(extreme / values[0])));
            assert_true(error <= reference * (1 + 1e-5));
            ours += error;
            plain += reference;
        }
        assert_true(ours < 0.92 * plain);
    }
}

/* Columns beyond the matrix leave zero codes and have no say in the scale. Was: `nl`, which has no zero,
 * counted them. */
static void test_padding_columns(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 12;
    for (int k = 4; k < 7; k++)
        for (size_t n = 1; n < 32; n++) {
            float w[32] = {0}, back[32];
            uint8_t tile[272];
            for (size_t c = 0; c < n; c++) w[c] = next_float(&seed);
            OK(nf_quantise_tile(formats[k].format, w, 32, 1, n, NULL, NULL, tile, &err));
            for (size_t c = n; c < 32; c++)
                assert_int_equal(tile[code_at(formats[k].format, 0, c)] >> (k == 4 || c < 16 ? 0 : 4) &
                                     (k == 4 ? 255 : 15),
                                 0);
            if (n > 1) continue;
            nf_dequantise_row(formats[k].format, tile, 0, 1, NULL, back);
            assert_true(fabsf(back[0] - w[0]) <= 0.001f * fabsf(w[0])); /* one value alone is nearly exact */
        }
}

/* What is already in the type comes back bit for bit: Q4_0 always holds its -8, Q8_0 its 127. */
static void test_exact_sources(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 9;
    for (int round = 0; round < 3000; round++) {
        const bool linear = round % 2;
        const int low = linear ? -8 : -127, high = linear ? 7 : 127;
        const nf_format format = formats[linear ? 5 : 4].format;
        const float d = nf_f16_to_f32((uint16_t)(0x0400 + next_random(&seed) % 0x6000)) *
                        (linear && round % 4 == 1 ? -1 : 1);
        float w[32], back[32];
        uint8_t tile[272];
        for (int c = 0; c < 32; c++)
            w[c] = (float)(low + (int)(next_random(&seed) % (uint64_t)(high - low + 1))) * d;
        w[next_random(&seed) % 32] = (float)low * d;
        OK(nf_quantise_tile(format, w, 32, 1, 32, NULL, NULL, tile, &err));
        nf_dequantise_row(format, tile, 0, 32, NULL, back);
        for (int c = 0; c < 32; c++) assert_true(back[c] == w[c]);
    }
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
    /* The limits: exactly 448 of a power of two, one step above, the largest and the smallest floats. */
    static const float at[][2] = {{448.0f, 1.0f},         {448.00003f, 2.0f}, {0x1.fffffep127f, 0x1p120f},
                                  {0x1p-149f, 0x1p-126f}, {7.0f, 0x1p-6f},    {0.0f, 1.0f}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        nf_f8_block_scales(at[i], 1, 1, 1, scales);
        if (scales[0] != at[i][1]) fail_msg("the scale of %a is %a", (double)at[i][0], (double)scales[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_geometry),          cmocka_unit_test(test_the_documents_blocks),
        cmocka_unit_test(test_quantise_and_back), cmocka_unit_test(test_bad_values_are_named),
        cmocka_unit_test(test_what_does_not_fit), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_i8_rounding),       cmocka_unit_test(test_c4_is_nearest_and_better),
        cmocka_unit_test(test_padding_columns),   cmocka_unit_test(test_exact_sources),
        cmocka_unit_test(test_f8_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
