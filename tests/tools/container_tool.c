/*
 * Makes containers with known contents for tests/python/test_container.py, which reads them with its own
 * reader. container_tool create PATH PART_BYTES SEED    every kind and type of object, bytes that follow from
 * name and seed container_tool append PATH PART_BYTES SEED    replaces "bank.c4", "words" and adds "extra"
 *   container_tool weights PATH                   quantised matrices of known values
 *   container_tool dequantise PATH OBJECT OUT     a tiled tensor or a bank as raw f32, by the reference code
 *   container_tool example PATH                   the example of docs/container.md
 *   container_tool open PATH...                   one line for each path: "ok", or "refused: " and why
 */
#include "base/io.h"
#include "format/container.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nf_error error;

static void check(nf_status status) {
    if (!status) return;
    fprintf(stderr, "container_tool: %s\n", error.message);
    exit(1);
}

static void *allocate(size_t n) {
    void *p = calloc(1, n + 8);
    if (p) return p;
    fprintf(stderr, "container_tool: out of memory\n");
    exit(1);
}

/* Byte i of an object: a hash of its name, the seed and i. Bytes of `words` compress. */
static uint8_t *content(const char *name, uint64_t seed, uint64_t n) {
    uint64_t key = 0xcbf29ce484222325ull;
    for (const char *p = name; *p; p++) key = (key ^ (uint8_t)*p) * 0x100000001b3ull;
    uint8_t *bytes = allocate(n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ull + key + seed * 0xD1B54A32D192ED03ull;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull;
        bytes[i] = strcmp(name, "words") ? (uint8_t)(h >> 56) : (uint8_t)('a' + (h >> 62));
    }
    return bytes;
}

static void write_bytes(nf_writer *w, const nf_object *o, const uint8_t *bytes) {
    size_t handle;
    check(nf_writer_add(w, o, &handle, &error));
    if (o->kind == NF_OBJECT_BANK) {
        for (uint64_t e = 0; e < o->n_experts; e++)
            check(nf_writer_write_expert(w, handle, e, bytes + e * o->expert_stride, &error));
        return;
    }
    for (uint64_t at = 0; at < o->bytes; at += 100000)
        check(nf_writer_write(w, handle, at, bytes + at, o->bytes - at < 100000 ? o->bytes - at : 100000,
                              &error));
}

static void write_object(nf_writer *w, const nf_object *o, uint64_t seed) {
    uint8_t *bytes = content(o->name, seed, o->bytes);
    write_bytes(w, o, bytes);
    free(bytes);
}

static void write_blob(nf_writer *w, const char *name, uint64_t n, uint64_t seed) {
    uint8_t *bytes = content(name, seed, n);
    check(nf_writer_add_blob(w, name, "tokenizer", bytes, n, &error));
    free(bytes);
}

static nf_object matrix(const char *name, nf_type type, nf_codebook codebook, uint64_t rows, uint64_t cols) {
    return (nf_object){.name = name,
                       .component = "text",
                       .format = {.type = type, .codebook = codebook},
                       .tiled = true,
                       .n_dims = 2,
                       .shape = {rows, cols},
                       .bytes = nf_matrix_bytes((nf_format){.type = type, .codebook = codebook}, rows, cols)};
}

static nf_object plain(const char *name, nf_type type, uint32_t n_dims, uint64_t a, uint64_t b,
                       uint64_t bytes) {
    return (nf_object){.name = name,
                       .component = "text",
                       .format = {.type = type},
                       .n_dims = n_dims,
                       .shape = {a, b},
                       .bytes = bytes};
}

static nf_object bank(const char *name, nf_format gate, nf_format down, uint64_t experts, uint64_t inner,
                      uint64_t width) {
    nf_object o = {.name = name, .component = "text", .kind = NF_OBJECT_BANK, .n_experts = experts};
    o.matrix[0] = o.matrix[1] = (nf_bank_matrix){.format = gate, .rows = inner, .cols = width};
    o.matrix[2] = (nf_bank_matrix){.format = down, .rows = width, .cols = inner};
    check(nf_bank_layout(&o, &error));
    return o;
}

static nf_object row_table(const char *name, nf_format format, uint64_t rows, uint64_t cols, uint64_t stride,
                           uint64_t scales) {
    nf_object o = {.name = name,
                   .component = "ngram",
                   .kind = NF_OBJECT_ROW_TABLE,
                   .format = format,
                   .n_dims = 2,
                   .shape = {rows, cols},
                   .row_stride = stride,
                   .row_scale_bytes = scales};
    check(nf_row_table_layout(&o, &error));
    return o;
}

static const nf_format f8 = {.type = NF_TYPE_F8}, i8 = {.type = NF_TYPE_I8};
static const nf_format linear = {.type = NF_TYPE_C4, .codebook = NF_CODEBOOK_LINEAR},
                       nl = {.type = NF_TYPE_C4, .codebook = NF_CODEBOOK_NL};

static void create(const char *path, uint64_t part_bytes, uint64_t seed) {
    nf_writer *w;
    check(nf_writer_create(path, &(nf_writer_options){part_bytes}, &w, &error));
    check(nf_writer_meta(w, "model.name", "modèle d'essai", &error));
    check(nf_writer_meta(w, "empty", "", &error));
    nf_object norm = plain("norm", NF_TYPE_F32, 1, 37, 0, 148);
    norm.metadata = "{\"eps\": 1e-6}";
    const nf_object objects[] = {
        norm,
        plain("scalar", NF_TYPE_F32, 0, 0, 0, 4),
        plain("nothing", NF_TYPE_BF16, 2, 0, 9, 0),
        plain("half", NF_TYPE_BF16, 2, 3, 5, 30),
        matrix("tiled.f32", NF_TYPE_F32, 0, 9, 33),
        matrix("tiled.f16", NF_TYPE_F16, 0, 17, 40),
        matrix("tiled.bf16", NF_TYPE_BF16, 0, 8, 32),
        matrix("tiled.f8", NF_TYPE_F8, 0, 300, 260),
        matrix("tiled.i8", NF_TYPE_I8, 0, 2500, 1200), /* 3.2 MB */
        matrix("tiled.linear", NF_TYPE_C4, NF_CODEBOOK_LINEAR, 21, 70),
        matrix("tiled.nl", NF_TYPE_C4, NF_CODEBOOK_NL, 1, 1),
        bank("bank.c4", linear, i8, 30, 64, 160),
        bank("bank.f8", f8, f8, 3, 24, 136),
        bank("bank.mixed", i8, nl, 2, 40, 72),
        row_table("rows.c4", nl, 50, 100, 128, 8),
        row_table("rows.i8", i8, 70, 96, 192, 64), /* scales padded to 64 bytes */
        row_table("rows.f8", f8, 7, 200, 256, 8),
        row_table("rows.f32", (nf_format){.type = NF_TYPE_F32}, 3, 1100, 4416, 0),
    };
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) write_object(w, &objects[i], seed);
    write_blob(w, "words", 50000, seed);
    write_blob(w, "noise", 5001, seed);
    write_blob(w, "empty", 0, seed);
    check(nf_writer_finish(w, &error));
}

static void append(const char *path, uint64_t part_bytes, uint64_t seed) {
    nf_writer *w;
    check(nf_writer_append(path, &(nf_writer_options){part_bytes}, &w, &error));
    check(nf_writer_meta(w, "model.name", "renamed", &error));
    nf_object replaced = bank("bank.c4", linear, i8, 30, 64, 160),
              extra = matrix("extra", NF_TYPE_I8, 0, 64, 64);
    extra.component = "mtp";
    write_object(w, &replaced, seed);
    write_object(w, &extra, seed);
    write_blob(w, "words", 40000, seed);
    check(nf_writer_finish(w, &error));
}

/* Known weights: multiples of 1/64 up to 50/64. */
static float weight(uint64_t r, uint64_t c) {
    return (float)((int)((r * 31 + c * 17) % 101) - 50) / 64.0f;
}

static void quantise(nf_format format, uint64_t rows, uint64_t cols, uint8_t *tiles, uint64_t stride,
                     uint8_t *scales) {
    float *w = allocate(rows * cols * sizeof *w),
          *table = allocate(nf_matrix_table_bytes(format, rows, cols) + 4);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) w[r * cols + c] = weight(r, c);
    if (format.type == NF_TYPE_F8)
        nf_f8_block_scales(w, cols, rows, cols, table);
    else
        table[0] = nf_c4_factor(format.codebook, 50.0f / 64.0f);
    for (uint64_t t = 0; t * 8 < rows; t++)
        check(nf_quantise_tile(format, w + t * 8 * cols, cols, rows - t * 8 < 8 ? rows - t * 8 : 8, cols,
                               nf_tile_table(format, table, cols, t), NULL, tiles + t * stride, &error));
    if (nf_format_has_table(format)) memcpy(scales, table, nf_matrix_table_bytes(format, rows, cols));
    free(w);
    free(table);
}

static void weights(const char *path) {
    static const struct {
        const char *name;
        nf_format format;
    } kinds[] = {{"f32", {.type = NF_TYPE_F32}},
                 {"f16", {.type = NF_TYPE_F16}},
                 {"bf16", {.type = NF_TYPE_BF16}},
                 {"f8", {.type = NF_TYPE_F8}},
                 {"i8", {.type = NF_TYPE_I8}},
                 {"z4", {.type = NF_TYPE_Z4}},
                 {"a4", {.type = NF_TYPE_A4}},
                 {"s5", {.type = NF_TYPE_S5}},
                 {"s6", {.type = NF_TYPE_S6}},
                 {"linear", {.type = NF_TYPE_C4, .codebook = NF_CODEBOOK_LINEAR}},
                 {"nl", {.type = NF_TYPE_C4, .codebook = NF_CODEBOOK_NL}},
                 {"e2m1", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_F16}},
                 {"mxfp4", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E8M0}},
                 {"nvfp4", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3}}};
    nf_writer *w;
    check(nf_writer_create(path, NULL, &w, &error));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char name[64];
        const nf_format f = kinds[k].format;
        snprintf(name, sizeof name, "weights.%s", kinds[k].name);
        nf_object o = matrix(name, f.type, f.codebook, 205, 300);
        o.format = f;
        o.bytes = nf_matrix_bytes(f, 205, 300);
        uint8_t *bytes = allocate(o.bytes);
        quantise(f, 205, 300, bytes, nf_matrix_tile_bytes(f, 8, 300),
                 bytes + nf_matrix_table_offset(f, 205, 300));
        write_bytes(w, &o, bytes);
        free(bytes);
        snprintf(name, sizeof name, "experts.%s", kinds[k].name);
        o = bank(name, f, f, 2, 136, 200);
        bytes = allocate(o.bytes);
        for (uint64_t e = 0; e < 2; e++)
            for (int m = 0; m < 3; m++) {
                const nf_bank_matrix *b = &o.matrix[m];
                uint8_t *blob = bytes + e * o.expert_stride;
                quantise(f, b->rows, b->cols, blob + b->offset, b->tile_stride, blob + b->scale_offset);
            }
        write_bytes(w, &o, bytes);
        free(bytes);
    }
    check(nf_writer_finish(w, &error));
}

static void dequantise_matrix(FILE *out, nf_format format, uint64_t rows, uint64_t cols, const uint8_t *tiles,
                              uint64_t stride, const uint8_t *scales) {
    const uint64_t table_bytes = nf_matrix_table_bytes(format, rows, cols);
    float *row = allocate(cols * sizeof *row), *table = allocate(table_bytes + 4);
    memcpy(table, scales, table_bytes);
    for (uint64_t r = 0; r < rows; r++) {
        nf_dequantise_row(format, tiles + r / 8 * stride, r % 8, cols,
                          nf_tile_table(format, table, cols, r / 8), row);
        if (fwrite(row, sizeof *row, cols, out) != cols) exit(1);
    }
    free(row);
    free(table);
}

static void dequantise(const char *path, const char *name, const char *to) {
    nf_container *c;
    const uint8_t *bytes;
    check(nf_container_open(path, &c, &error));
    const nf_object *o = nf_container_find(c, name);
    FILE *out = fopen(to, "wb");
    if (!o || !out) exit(1);
    check(nf_container_map(c, o, &bytes, &error));
    if (o->kind == NF_OBJECT_TENSOR)
        dequantise_matrix(out, o->format, o->shape[0], o->shape[1], bytes,
                          nf_matrix_tile_bytes(o->format, 8, o->shape[1]),
                          bytes + nf_matrix_table_offset(o->format, o->shape[0], o->shape[1]));
    for (uint64_t e = 0; o->kind == NF_OBJECT_BANK && e < o->n_experts; e++)
        for (int m = 0; m < 3; m++) {
            const nf_bank_matrix *b = &o->matrix[m];
            const uint8_t *blob = bytes + e * o->expert_stride;
            dequantise_matrix(out, b->format, b->rows, b->cols, blob + b->offset, b->tile_stride,
                              blob + b->scale_offset);
        }
    if (fclose(out)) exit(1);
    nf_container_close(c);
}

static void example(const char *path) {
    nf_writer *w;
    const float values[2] = {1.0f, 2.0f};
    nf_object t = plain("t", NF_TYPE_F32, 1, 2, 0, 8);
    check(nf_writer_create(path, NULL, &w, &error));
    write_bytes(w, &t, (const uint8_t *)values);
    check(nf_writer_finish(w, &error));
}

static void open_each(int n, char **paths) {
    for (int i = 0; i < n; i++) {
        nf_container *c;
        if (nf_container_open(paths[i], &c, &error)) {
            printf("refused: %s\n", error.message);
            continue;
        }
        printf("ok\n");
        nf_container_close(c);
    }
}

int main(int argc, char **argv) {
    const char *command = argc > 2 ? argv[1] : "";
    if (!strcmp(command, "create") && argc == 5)
        create(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    else if (!strcmp(command, "append") && argc == 5)
        append(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    else if (!strcmp(command, "weights") && argc == 3)
        weights(argv[2]);
    else if (!strcmp(command, "dequantise") && argc == 5)
        dequantise(argv[2], argv[3], argv[4]);
    else if (!strcmp(command, "open"))
        open_each(argc - 2, argv + 2);
    else if (!strcmp(command, "example") && argc == 3)
        example(argv[2]);
    else {
        fprintf(stderr, "usage: container_tool create|append|weights|dequantise|example|open PATH ...\n");
        return 2;
    }
    return 0;
}
