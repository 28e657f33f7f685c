/*
 * Storage types as a filter, for tests/python/test_types.py and for measuring:
 *   types_tool quantise FORMAT ROWS COLS IN OUT    f32 [ROWS, COLS] to a stored matrix (tiles, on 64 bytes f8
 * scales) types_tool dequantise FORMAT ROWS COLS IN OUT  the inverse types_tool measure CHECKPOINT [PART]
 * error and speed over the matrices whose name holds PART FORMAT: see the table below.
 */
#include "base/io.h"
#include "base/progress.h"
#include "format/safetensors.h"
#include "format/types.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    nf_format format;
} formats[] = {
    {"f32", {.type = NF_TYPE_F32}},
    {"f16", {.type = NF_TYPE_F16}},
    {"bf16", {.type = NF_TYPE_BF16}},
    {"f8", {.type = NF_TYPE_F8}},
    {"i8", {.type = NF_TYPE_I8}},
    {"z4", {.type = NF_TYPE_Z4}},
    {"a4", {.type = NF_TYPE_A4}},
    {"s5", {.type = NF_TYPE_S5}},
    {"s6", {.type = NF_TYPE_S6}},
    {"c4-linear", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_F16}},
    {"c4-linear-e8m0", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E8M0}},
    {"c4-linear-e4m3", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_E4M3}},
    {"c4-nl", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_F16}},
    {"c4-nl-e8m0", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E8M0}},
    {"c4-nl-e4m3", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_E4M3}},
    {"c4-e2m1", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_F16}},
    {"c4-e2m1-e8m0", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E8M0}},
    {"c4-e2m1-e4m3", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3}},
};
#define N_FORMATS (sizeof formats / sizeof *formats)
#define MAX_MATRIX_BYTES ((uint64_t)1 << 30)

typedef struct matrix {
    nf_format format;
    size_t rows, cols;
} matrix;

static size_t tile_bytes(const matrix *m) {
    return (size_t)nf_matrix_tile_bytes(m->format, NF_TILE_ROWS, m->cols);
}

/* The entry of the table that tile t begins with; NULL for types without a table. */
static float *table_of(const matrix *m, uint8_t *stored, size_t t) {
    if (!nf_format_has_table(m->format)) return NULL;
    float *table = (float *)(void *)(stored + nf_matrix_table_offset(m->format, m->rows, m->cols));
    return table + (nf_tile_table(m->format, table, m->cols, t) - table);
}

/* stored is zeroed, and aligned for floats. */
static nf_status quantise(const matrix *m, const float *w, uint8_t *stored, nf_error *err) {
    float *table = table_of(m, stored, 0), absmax = 0.0f;
    for (size_t i = 0; i < m->rows * m->cols; i++) absmax = fmaxf(absmax, fabsf(w[i]));
    if (m->format.type == NF_TYPE_F8)
        nf_f8_block_scales(w, m->cols, m->rows, m->cols, table);
    else if (table)
        table[0] = nf_c4_factor(m->format.codebook, absmax);
    for (size_t r = 0; r < m->rows; r += NF_TILE_ROWS) {
        const size_t n = m->rows - r < NF_TILE_ROWS ? m->rows - r : NF_TILE_ROWS, t = r / NF_TILE_ROWS;
        nf_status status = nf_quantise_tile(m->format, w + r * m->cols, m->cols, n, m->cols,
                                            table_of(m, stored, t), NULL, stored + t * tile_bytes(m), err);
        if (status) return nf_context(err, "tile %zu", t);
    }
    return NF_OK;
}

static void dequantise(const matrix *m, uint8_t *stored, float *w) {
    for (size_t r = 0; r < m->rows; r += NF_TILE_ROWS) {
        const size_t n = m->rows - r < NF_TILE_ROWS ? m->rows - r : NF_TILE_ROWS, t = r / NF_TILE_ROWS;
        nf_dequantise_tile(m->format, stored + t * tile_bytes(m), n, m->cols, table_of(m, stored, t),
                           w + r * m->cols, m->cols);
    }
}

static nf_status parse_size(const char *text, const char *what, size_t *out, nf_error *err) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || !value || value > MAX_MATRIX_BYTES)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s is not a usable number of %s", text, what);
    *out = value;
    return NF_OK;
}

static nf_status parse_matrix(char **argv, matrix *m, nf_error *err) {
    size_t k = 0;
    while (k < N_FORMATS && strcmp(formats[k].name, argv[2]) != 0) k++;
    if (k == N_FORMATS) return nf_fail(err, NF_ERR_ARGUMENT, "unknown format %s", argv[2]);
    m->format = formats[k].format;
    nf_status status = parse_size(argv[3], "rows", &m->rows, err);
    if (!status) status = parse_size(argv[4], "columns", &m->cols, err);
    if (status) return status;
    if (m->rows > MAX_MATRIX_BYTES / sizeof(float) / m->cols)
        return nf_fail(err, NF_ERR_LIMIT, "%zu x %zu is too large for this tool", m->rows, m->cols);
    return NF_OK;
}

static nf_status convert(char **argv, nf_error *err) {
    const bool forward = !strcmp(argv[1], "quantise");
    matrix m = {0};
    nf_status status = parse_matrix(argv, &m, err);
    if (status) return status;
    const size_t plain = m.rows * m.cols * sizeof(float);
    const size_t stored = (size_t)nf_matrix_bytes(m.format, m.rows, m.cols);
    const size_t in_bytes = forward ? plain : stored, out_bytes = forward ? stored : plain;
    nf_buf in = {0};
    void *out = nf_calloc_aligned(64, out_bytes, 1, "the output", err);
    status = out ? nf_read_file(argv[5], in_bytes, &in, err) : NF_ERR_MEMORY;
    if (!status && in.len != in_bytes)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: %zu bytes, expected %zu", argv[5], in.len, in_bytes);
    if (!status && forward) status = quantise(&m, (const float *)(void *)in.data, out, err);
    if (!status && !forward) dequantise(&m, (uint8_t *)in.data, out);
    if (!status) status = nf_write_file_atomic(argv[6], out, out_bytes, err);
    nf_buf_free(&in);
    free(out);
    return status;
}

/* ---- measure ---- */

typedef struct sample {
    float *w, *back;
    size_t rows, cols;
} sample;

typedef struct totals {
    double error, length;        /* squared */
    double quantise, dequantise; /* seconds, the best of three passes over each matrix */
} totals;

static nf_status measure_sample(nf_format format, const sample *s, totals *sum, nf_error *err) {
    const matrix m = {format, s->rows, s->cols};
    uint8_t *stored =
        nf_calloc_aligned(64, (size_t)nf_matrix_bytes(format, m.rows, m.cols), 1, "a matrix", err);
    if (!stored) return NF_ERR_MEMORY;
    double best[2] = {INFINITY, INFINITY};
    nf_status status = NF_OK;
    for (int pass = 0; pass < 3 && !status; pass++) {
        const double start = nf_now();
        status = quantise(&m, s->w, stored, err);
        const double middle = nf_now();
        if (!status) dequantise(&m, stored, s->back);
        best[0] = fmin(best[0], middle - start);
        best[1] = fmin(best[1], nf_now() - middle);
    }
    free(stored);
    if (status) return status;
    for (size_t k = 0; k < m.rows * m.cols; k++) {
        const double e = (double)s->w[k] - (double)s->back[k];
        sum->error += e * e;
        sum->length += (double)s->w[k] * (double)s->w[k];
    }
    sum->quantise += best[0];
    sum->dequantise += best[1];
    return NF_OK;
}

/* Multiplies a weight in block FP8 by its scales, the tensor `<name>_scale_inv` [rows/128, cols/128]. */
static nf_status apply_scales(const nf_safetensors *st, const char *weight, sample *s, nf_error *err) {
    nf_buf name = {0};
    nf_status status = nf_buf_printf(&name, err, "%s_scale_inv", weight);
    const nf_st_tensor *scale = status ? NULL : nf_safetensors_find(st, name.data);
    nf_buf_free(&name);
    const size_t across = (s->cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK;
    for (size_t r = 0; scale && r < s->rows && !status; r++)
        for (size_t b = 0; b < across && !status; b++) {
            float f = 0;
            status = nf_st_to_f32(scale, r / NF_F8_BLOCK * across + b, 1, &f, err);
            for (size_t c = b * NF_F8_BLOCK; c < s->cols && c < (b + 1) * NF_F8_BLOCK; c++)
                s->w[r * s->cols + c] *= f;
        }
    return status;
}

static nf_status load_sample(const nf_safetensors *st, const nf_st_tensor *t, sample *s, nf_error *err) {
    s->rows = (size_t)t->shape[0];
    s->cols = (size_t)t->shape[1];
    s->w = nf_alloc(s->rows * s->cols, sizeof *s->w, "a matrix", err);
    s->back = nf_alloc(s->rows * s->cols, sizeof *s->back, "a matrix", err);
    if (!s->w || !s->back) return NF_ERR_MEMORY;
    nf_status status = nf_st_to_f32(t, 0, s->rows * s->cols, s->w, err);
    return status ? status : apply_scales(st, t->name, s, err);
}

static nf_status measure_samples(const sample *s, size_t n, nf_error *err) {
    double elements = 0;
    for (size_t i = 0; i < n; i++) elements += (double)s[i].rows * (double)s[i].cols;
    printf("%zu matrices, %.2f M elements; rates in MB of f32 per second, one core\n", n, elements / 1e6);
    printf("%-10s %12s %12s %12s\n", "format", "rms error", "quantise", "dequantise");
    for (size_t k = 0; k < N_FORMATS; k++) {
        totals sum = {0};
        for (size_t i = 0; i < n; i++) {
            nf_status status = measure_sample(formats[k].format, &s[i], &sum, err);
            if (status) return nf_context(err, "%s", formats[k].name);
        }
        printf("%-10s %11.5f%% %12.0f %12.0f\n", formats[k].name, 100 * sqrt(sum.error / sum.length),
               elements * 4e-6 / sum.quantise, elements * 4e-6 / sum.dequantise);
    }
    return NF_OK;
}

static nf_status measure(const char *path, const char *part, nf_error *err) {
    nf_safetensors *st = NULL;
    nf_status status = nf_safetensors_open(path, &st, err);
    if (status) return status;
    sample *samples = nf_calloc(nf_safetensors_count(st), sizeof *samples, "samples", err);
    if (!samples) status = NF_ERR_MEMORY;
    size_t n = 0;
    for (size_t i = 0; i < nf_safetensors_count(st) && !status; i++) {
        const nf_st_tensor *t = nf_safetensors_at(st, i);
        if (t->n_dims != 2 || !t->bytes || !strstr(t->name, part) || strstr(t->name, "_scale_inv")) continue;
        status = load_sample(st, t, &samples[n++], err);
    }
    if (!status && !n)
        status = nf_fail(err, NF_ERR_NOT_FOUND, "%s: no matrix has '%s' in its name", path, part);
    if (!status) status = measure_samples(samples, n, err);
    for (size_t i = 0; i < n; i++) {
        free(samples[i].w);
        free(samples[i].back);
    }
    free(samples);
    nf_safetensors_close(st);
    return status;
}

int main(int argc, char **argv) {
    nf_error err = {0};
    nf_status status;
    if (argc == 7 && (!strcmp(argv[1], "quantise") || !strcmp(argv[1], "dequantise"))) {
        status = convert(argv, &err);
    } else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "measure")) {
        status = measure(argv[2], argc == 4 ? argv[3] : "", &err);
    } else {
        fprintf(
            stderr,
            "usage: %s quantise|dequantise FORMAT ROWS COLS IN OUT\n       %s measure CHECKPOINT [PART]\n",
            argv[0], argv[0]);
        return 2;
    }
    if (status) fprintf(stderr, "types_tool: %s\n", err.message);
    return status != NF_OK;
}
