/*
 * Matrix tiles against docs/arithmetic.md: an independent scalar evaluation of contract A from the bytes of a
 * block, and every level byte for byte equal to it for all formats, numbers of rows and tiles, and odd
 * shapes. Codes are random bytes, so that every value that a block can hold occurs.
 */
#include "tests/support/amx_emulated.h"
#include "tests/support/support.h"

#include "cpu/kernels.h"
#include "format/numeric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const nf_format formats[] = {
    {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_F16},
    {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_F16},
    {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_F16},
    {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E8M0},
    {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E8M0},
    {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E8M0},
    {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E4M3},
    {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E4M3},
    {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3},
    {.type = NF_TYPE_Z4},
    {.type = NF_TYPE_A4},
    {.type = NF_TYPE_S5},
    {.type = NF_TYPE_S6},
    {.type = NF_TYPE_I8},
    {.type = NF_TYPE_F32},
    {.type = NF_TYPE_F16},
    {.type = NF_TYPE_BF16},
    {.type = NF_TYPE_F8},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

static const char *const levels[] = {"portable", "avx2", "avx512", "amx", "emulated amx"};
#define N_LEVELS (sizeof levels / sizeof *levels)

static const nf_kernels *level(size_t i) {
    return strcmp(levels[i], "emulated amx") ? nf_kernels_by_name(levels[i]) : emulated_amx();
}

typedef struct fixture {
    nf_weights w;
    nf_rows rows;
    size_t m;
    uint8_t *tiles;
    float *table;
} fixture;

static uint16_t random_f16(uint64_t *seed) {
    return nf_f32_to_f16(next_float(seed) * 0.02f);
}

/* Scales, offsets and floats are made sane, codes stay noise. */
static void make_block(nf_format format, uint8_t *block, uint64_t *seed) {
    const nf_layout l = nf_layout_get(format);
    for (size_t i = 0; i < l.block; i++) block[i] = (uint8_t)(next_random(seed) >> 32);
    for (size_t i = 0; i < l.scales; i++) {
        const uint16_t h = random_f16(seed);
        if (format.scale == NF_SCALE_F16 && i % 2 == 0) memcpy(block + i, &h, 2);
        if (format.scale == NF_SCALE_E8M0) block[i] = i % 5 ? (uint8_t)(118 + block[i] % 8) : block[i] % 3;
        if (format.scale == NF_SCALE_E4M3 && (block[i] & 0x7f) == 0x7f) block[i] = 1;
    }
    for (size_t r = 0; r < 8 && format.type == NF_TYPE_A4; r++) {
        const uint16_t h = random_f16(seed);
        memcpy(block + l.scales + 2 * r, &h, 2);
    }
    for (size_t i = 0; i < 256 && !nf_type_get(format.type)->integer_dot; i++) {
        const float v = next_float(seed);
        const uint16_t h = format.type == NF_TYPE_F16 ? nf_f32_to_f16(v) : nf_f32_to_bf16(v);
        if (format.type == NF_TYPE_F32) memcpy(block + 4 * i, &v, 4);
        if (format.type == NF_TYPE_F16 || format.type == NF_TYPE_BF16) memcpy(block + 2 * i, &h, 2);
        if (format.type == NF_TYPE_F8 && (block[i] & 0x7f) == 0x7f) block[i] = 1;
    }
}

static fixture make(nf_format format, size_t n_rows, size_t n_cols, size_t m, uint64_t seed) {
    fixture f = {.m = m, .rows = {.k = n_cols, .kp = (n_cols + 31) / 32 * 32}};
    const size_t kp = f.rows.kp, block = nf_layout_get(format).block, n_tiles = (n_rows + 7) / 8;
    /* Exactly as long as it must be: kernels may prefetch behind the end, never read. */
    f.tiles = aligned_alloc(64, (n_tiles * kp / 32 * block + 63) / 64 * 64);
    assert_non_null(f.tiles);
    for (size_t b = 0; b < n_tiles * kp / 32; b++) make_block(format, f.tiles + b * block, &seed);
    const size_t entries = nf_matrix_table_bytes(format, n_rows, n_cols) / 4;
    f.table = calloc(entries + 1, sizeof *f.table);
    for (size_t i = 0; i < entries; i++) f.table[i] = 0.5f + fabsf(next_float(&seed));
    f.w = (nf_weights){.format = format,
                       .rows = n_rows,
                       .cols = n_cols,
                       .tiles = f.tiles,
                       .tile_stride = kp / 32 * block,
                       .table = f.table};
    f.rows.x = calloc(m * kp, sizeof(float));
    f.rows.q = calloc(m * kp, 1);
    f.rows.scale = calloc(m * kp / 32, sizeof(float));
    f.rows.sum = calloc(m * kp / 32, sizeof(int32_t));
    for (size_t j = 0; j < m; j++) {
        for (size_t i = 0; i < n_cols; i++)
            f.rows.x[j * kp + i] = next_float(&seed) * (j % 3 == 2 && i < 32 ? 1e-36f : 3.0f);
        /* Largest inputs of both signs, so that sums of products come as large as they can. */
        for (size_t i = 0; i < n_cols && j % 4 == 3; i++) f.rows.x[j * kp + i] = i % 7 ? 1.0f : -1.0f;
        assert_true(nf_kernels_by_name("portable")
                        ->quantise_row(f.rows.x + j * kp, kp, f.rows.q + j * kp, f.rows.scale + j * kp / 32,
                                       f.rows.sum + j * kp / 32));
    }
    return f;
}

static void drop(fixture *f) {
    free(f->tiles), free(f->table), free(f->rows.x), free(f->rows.q), free(f->rows.scale), free(f->rows.sum);
}

static float f16_at(const uint8_t *at) {
    uint16_t h;
    memcpy(&h, at, 2);
    return nf_f16_to_f32(h);
}

/* The integer in row r, column c of a block's codes, from the page's table of layouts. */
static int integer_at(nf_format format, const uint8_t *codes, int r, int c) {
    static const int e2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static const int nl[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    if (format.type == NF_TYPE_I8) return (int8_t)codes[c / 4 * 32 + r * 4 + c % 4];
    const int j = c / 4 % 4, b = 4 * r + c % 4, high = c >= 16;
    const int nibble = codes[32 * j + b] >> (high ? 4 : 0) & 15;
    if (format.type == NF_TYPE_C4)
        return format.codebook == NF_CODEBOOK_LINEAR ? nibble - 8
               : format.codebook == NF_CODEBOOK_NL   ? nl[nibble]
                                                     : e2m1[nibble];
    if (format.type == NF_TYPE_S5) {
        const int v = nibble + 16 * (codes[128 + b] >> (high ? 4 + j : j) & 1);
        return v < 16 ? v : v - 32;
    }
    if (format.type == NF_TYPE_S6) {
        const int v = nibble + 16 * (codes[128 + 32 * high + b] >> 2 * j & 3);
        return v < 32 ? v : v - 64;
    }
    return nibble;
}

static float integer_group(const fixture *f, const uint8_t *block, int r, const float *x, float lane) {
    const nf_format format = f->w.format;
    const nf_layout l = nf_layout_get(format);
    const uint8_t *offsets = block + l.scales, *codes = offsets + l.offsets;
    float absmax = 0;
    for (int i = 0; i < 32; i++) absmax = fmaxf(absmax, fabsf(x[i]));
    const float sx = absmax < 0x1p-100f ? 0 : absmax / 127.0f, inverse = 127.0f / absmax;
    long dot[2] = {0}, sum = 0;
    for (int i = 0; i < 32; i++) {
        const long q = absmax < 0x1p-100f ? 0 : lrintf(x[i] * inverse);
        dot[i / 16] += integer_at(format, codes, r, i) * q;
        sum += q;
    }
    const float half = format.codebook == NF_CODEBOOK_E2M1 ? 0.5f : 1.0f;
    if (format.scale == NF_SCALE_E4M3) {
        lane = fmaf(nf_e4m3_to_f32(block[r]) * half * sx, (float)dot[0], lane);
        return fmaf(nf_e4m3_to_f32(block[8 + r]) * half * sx, (float)dot[1], lane);
    }
    const float sw = format.scale == NF_SCALE_F16 ? f16_at(block + 2 * r) : ldexpf(1.0f, block[r] - 127);
    long whole = dot[0] + dot[1];
    if (format.type == NF_TYPE_Z4) whole -= offsets[r] * sum;
    lane = fmaf(sw * half * sx, (float)whole, lane);
    return format.type == NF_TYPE_A4 ? fmaf(f16_at(offsets + 2 * r), sx * (float)sum, lane) : lane;
}

static float float_group(const fixture *f, const uint8_t *block, size_t row, size_t g, const float *x,
                         float lane) {
    float p = 0;
    for (size_t i = 0; i < 32; i++) {
        const size_t at = 8 * i + row % 8;
        float w;
        uint16_t h;
        if (f->w.format.type == NF_TYPE_F32)
            memcpy(&w, block + 4 * at, 4);
        else if (f->w.format.type == NF_TYPE_F8)
            w = nf_e4m3_to_f32(block[at]);
        else
            memcpy(&h, block + 2 * at, 2),
                w = f->w.format.type == NF_TYPE_F16 ? nf_f16_to_f32(h) : nf_bf16_to_f32(h);
        p = fmaf(w, x[i], p);
    }
    if (f->w.format.type != NF_TYPE_F8) return lane + p;
    return fmaf(f->table[row / 128 * ((f->w.cols + 127) / 128) + g * 32 / 128], p, lane);
}

/* Contract A, steps 1 to 4, written out once more. */
static float oracle(const fixture *f, size_t row, size_t j) {
    const size_t groups = f->rows.kp / 32, block_bytes = nf_layout_get(f->w.format).block;
    const uint8_t *tile = f->tiles + row / 8 * f->w.tile_stride;
    float acc[32] = {0};
    for (size_t g = 0; g < groups; g++) {
        const uint8_t *block = tile + g * block_bytes;
        const float *x = f->rows.x + j * f->rows.kp + g * 32;
        acc[g % 32] = nf_type_get(f->w.format.type)->integer_dot
                          ? integer_group(f, block, (int)(row % 8), x, acc[g % 32])
                          : float_group(f, block, row, g, x, acc[g % 32]);
    }
    for (int s = 16; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] += acc[i + s];
    return f->w.format.scale == NF_SCALE_E4M3 ? acc[0] * f->table[0] : acc[0];
}

static void test_tiles_follow_the_contract(void **state) {
    (void)state;
    static const size_t cols[] = {1, 31, 32, 40, 64, 256, 264, 512, 1000, 1024, 1056, 2080};
    enum { M = 19, T = 3 };
    for (size_t k = 0; k < N_FORMATS; k++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
            fixture f = make(formats[k], c % 2 ? 13 : 136, cols[c], M, k * 100 + c + 1);
            const size_t n_tiles = (f.w.rows + 7) / 8;
            for (size_t t = 0; t < n_tiles; t += T) {
                const size_t count = n_tiles - t < T ? n_tiles - t : T;
                float want[M * 8 * T], out[M * 8 * T];
                for (size_t j = 0; j < M; j++)
                    for (size_t r = 0; r < 8 * count; r++) want[8 * count * j + r] = oracle(&f, 8 * t + r, j);
                for (size_t l = 0; l < N_LEVELS; l++) {
                    const nf_kernels *kernels = level(l);
                    if (!kernels) continue;
                    kernels->tiles(&f.w, t, count, &f.rows, NULL, M, out);
                    for (size_t i = 0; i < M * 8 * count; i++)
                        if (memcmp(&want[i], &out[i], 4))
                            fail_msg(
                                "%s, %s, %zu columns, tile %zu of %zu, row %zu, input %zu: %a, expected %a",
                                levels[l], nf_format_name(formats[k]), cols[c], t + i % (8 * count) / 8,
                                count, i % 8, i / (8 * count), (double)out[i], (double)want[i]);
                }
            }
            drop(&f);
        }
}

/* An element never depends on how many rows or tiles are computed with it, nor on the order of an index. */
static void check_batches(nf_format format, size_t cols, size_t step, uint64_t seed) {
    enum { M = 64, T = 5 };
    static float alone[M][8 * T], out[M * 8 * T];
    fixture f = make(format, 8 * T, cols, M, seed);
    for (size_t l = 0; l < N_LEVELS; l++) {
        const nf_kernels *kernels = level(l);
        if (!kernels) continue;
        for (uint32_t j = 0; j < M; j++)
            for (size_t t = 0; t < T; t++) kernels->tiles(&f.w, t, 1, &f.rows, &j, 1, alone[j] + 8 * t);
        for (size_t n = 1; n <= M; n += step) {
            const size_t first = n % 3, count = 1 + n % (T - first);
            uint32_t index[M];
            for (size_t j = 0; j < n; j++) index[j] = (uint32_t)((j * 37 + n) % M);
            kernels->tiles(&f.w, first, count, &f.rows, NULL, n, out);
            for (size_t j = 0; j < n; j++)
                assert_memory_equal(out + 8 * count * j, alone[j] + 8 * first, 32 * count);
            kernels->tiles(&f.w, first, count, &f.rows, index, n, out);
            for (size_t j = 0; j < n; j++)
                assert_memory_equal(out + 8 * count * j, alone[index[j]] + 8 * first, 32 * count);
        }
    }
    drop(&f);
}

static void test_batches_do_not_matter(void **state) {
    (void)state;
    for (size_t k = 0; k < N_FORMATS; k++) {
        check_batches(formats[k], 328, 1, 900 + k);
        /* More columns than any level copies to its stack. */
        check_batches(formats[k], 8224, 21, 950 + k);
    }
}

/* All codes at one end and all inputs at the other: no sum may overflow on the way. -128 of i8 has no
 * absolute value in int8 (Q8_0 sources hold it). */
static void test_extreme_codes(void **state) {
    (void)state;
    for (size_t k = 0; k < N_FORMATS; k++) {
        if (!nf_type_get(formats[k].type)->integer_dot) continue;
        fixture f = make(formats[k], 8, 64, 4, 5 + k);
        const nf_layout l = nf_layout_get(formats[k]);
        static const uint8_t fill[] = {0x80, 0x7f, 0xff, 0x00, 0x77, 0x88};
        for (size_t i = 0; i < 4 * 64; i++) f.rows.x[i] = (i / 64) % 2 ? -1.0f : 1.0f;
        for (size_t j = 0; j < 4; j++)
            assert_true(nf_kernels_by_name("portable")
                            ->quantise_row(f.rows.x + 64 * j, 64, f.rows.q + 64 * j, f.rows.scale + 2 * j,
                                           f.rows.sum + 2 * j));
        for (size_t i = 0; i < sizeof fill; i++) {
            for (size_t b = 0; b < 2; b++)
                memset(f.tiles + b * l.block + l.scales + l.offsets, fill[i], l.codes + l.planes);
            for (size_t v = 0; v < N_LEVELS; v++) {
                const nf_kernels *kernels = level(v);
                float out[32];
                if (!kernels) continue;
                kernels->tiles(&f.w, 0, 1, &f.rows, NULL, 4, out);
                for (size_t j = 0; j < 4; j++)
                    for (size_t r = 0; r < 8; r++)
                        if (out[8 * j + r] != oracle(&f, r, j))
                            fail_msg("%s, %s, codes %02x, row %zu, input %zu", levels[v],
                                     nf_format_name(formats[k]), fill[i], r, j);
            }
        }
        drop(&f);
    }
}

/* What quantising stores is what the kernels compute with: the dot product of the dequantised weights. */
static void test_tiles_agree_with_dequantisation(void **state) {
    (void)state;
    nf_error err = {0};
    uint64_t seed = 4;
    enum { K = 200 };
    for (size_t k = 0; k < N_FORMATS; k++) {
        float w[8 * K], back[8 * K], x[7 * 32] = {0}, scale[7], out[8], table[2] = {0};
        uint8_t *tile = calloc(7, 1024);
        int8_t q[7 * 32];
        int32_t sum[7];
        for (size_t i = 0; i < 8 * K; i++) w[i] = next_float(&seed);
        for (size_t i = 0; i < K; i++) x[i] = next_float(&seed);
        if (formats[k].type == NF_TYPE_F8) nf_f8_block_scales(w, K, 8, K, table);
        if (formats[k].type == NF_TYPE_C4) table[0] = nf_c4_factor(formats[k].codebook, 1.0f);
        OK(nf_quantise_tile(formats[k], w, K, 8, K, table, NULL, tile, &err));
        nf_dequantise_tile(formats[k], tile, 8, K, table, back, K);
        const nf_kernels *kernels = nf_kernels_by_name("portable");
        assert_true(kernels->quantise_row(x, 7 * 32, q, scale, sum));
        const nf_weights weights = {.format = formats[k],
                                    .rows = 8,
                                    .cols = K,
                                    .tiles = tile,
                                    .tile_stride = 7 * 1024,
                                    .table = table};
        const nf_rows in = {.k = K, .kp = 7 * 32, .x = x, .q = q, .scale = scale, .sum = sum};
        kernels->tiles(&weights, 0, 1, &in, NULL, 1, out);
        for (size_t r = 0; r < 8; r++) {
            double want = 0;
            for (size_t i = 0; i < K; i++)
                want +=
                    (double)back[r * K + i] *
                    (nf_type_get(formats[k].type)->integer_dot ? (double)scale[i / 32] * q[i] : (double)x[i]);
            if (fabs(out[r] - want) > 1e-4)
                fail_msg("%s, row %zu: %g, expected %g", nf_format_name(formats[k]), r, (double)out[r], want);
        }
        free(tile);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_follow_the_contract),
        cmocka_unit_test(test_batches_do_not_matter),
        cmocka_unit_test(test_extreme_codes),
        cmocka_unit_test(test_tiles_agree_with_dequantisation),
    };
    for (size_t l = 0; l < N_LEVELS; l++)
        printf("level %s: %s\n", levels[l], level(l) ? "tested" : "not on this processor");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
