/* A small container with every kind of object, for the container's tests. Header-only: each test program is one file. */
#ifndef NF_TESTS_CONTAINER_FIXTURE_H
#define NF_TESTS_CONTAINER_FIXTURE_H

#include "tests/support/support.h"

#include "format/container.h"

#include <stdlib.h>
#include <string.h>

#define N_EXPERTS 5

/* Deterministic bytes of an object. */
static void fill(uint8_t *out, size_t n, uint64_t seed) {
    seed = seed * 2 + 1;
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(next_random(&seed) >> 56);
}

static nf_object bank_object(const char *name) {
    nf_error err = {0};
    nf_object o = {.name = name, .component = "text", .kind = NF_OBJECT_BANK, .n_experts = N_EXPERTS};
    for (int m = 0; m < 3; m++) {
        o.matrix[m].format = (nf_format){NF_TYPE_C4, NF_CODEBOOK_LINEAR};
        o.matrix[m].rows = m == 2 ? 64 : 16;
        o.matrix[m].cols = m == 2 ? 16 : 64;
    }
    OK(nf_bank_layout(&o, &err));
    return o;
}

static nf_status add_tensor(nf_writer *w, const char *name, const char *component, uint64_t n, uint64_t seed, nf_error *err) {
    nf_object o = {.name = name, .component = component, .kind = NF_OBJECT_TENSOR, .format = {NF_TYPE_U8, NF_CODEBOOK_NONE}, .n_dims = 1, .shape = {n}, .bytes = n,
                   .metadata = "{\"note\":1}"};
    size_t handle;
    uint8_t *bytes = malloc(n);
    fill(bytes, n, seed);
    nf_status status = nf_writer_add(w, &o, &handle, err);
    if (!status) status = nf_writer_write(w, handle, 0, bytes, n / 2, err);
    if (!status) status = nf_writer_write(w, handle, n / 2, bytes + n / 2, n - n / 2, err);
    free(bytes);
    return status;
}

static nf_status add_bank(nf_writer *w, const char *name, uint64_t seed, nf_error *err) {
    nf_object o = bank_object(name);
    size_t handle;
    nf_status status = nf_writer_add(w, &o, &handle, err);
    uint8_t *bytes = malloc(o.expert_stride);
    for (uint64_t e = N_EXPERTS; e-- > 0 && !status;) { /* any order */
        fill(bytes, o.expert_stride, seed + e);
        status = nf_writer_write_expert(w, handle, e, bytes, err);
    }
    free(bytes);
    return status;
}

static nf_status add_rows(nf_writer *w, const char *name, uint64_t seed, nf_error *err) {
    nf_object o = {.name = name, .component = "text", .kind = NF_OBJECT_ROW_TABLE, .format = {NF_TYPE_I8, NF_CODEBOOK_NONE}, .n_dims = 2, .shape = {33, 100},
                   .row_stride = 192, .row_scale_bytes = 16};
    size_t handle;
    nf_status status = nf_row_table_layout(&o, err);
    if (!status) status = nf_writer_add(w, &o, &handle, err);
    uint8_t *bytes = calloc(1, o.bytes ? o.bytes : 1);
    for (uint64_t r = 0; r < 33; r++) fill(bytes + nf_row_table_offset(&o, r), 116, seed + r);
    if (!status) status = nf_writer_write(w, handle, 0, bytes, o.bytes, err);
    free(bytes);
    return status;
}

static const char text_blob[] = "a blob of text that compresses well, well, well, well, well, well, well, well, well, well, well";

/* Everything; abandons the writer on failure. */
static nf_status write_model(const char *path, uint64_t max_part, nf_error *err) {
    const nf_writer_options options = {.max_part_bytes = max_part};
    nf_writer *w;
    nf_status status = nf_writer_create(path, &options, &w, err);
    if (status) return status;
    status = nf_writer_meta(w, "model.name", "fixture", err);
    if (!status) status = add_tensor(w, "tensor.a", "text", 10001, 1, err);
    if (!status) status = add_bank(w, "bank.0", 100, err);
    if (!status) status = add_rows(w, "rows", 200, err);
    if (!status) status = add_tensor(w, "tensor.b", "text", 5000, 2, err);
    if (!status) status = nf_writer_add_blob(w, "blob", "tokenizer", text_blob, sizeof text_blob, err);
    if (status) {
        nf_writer_abort(w);
        return status;
    }
    return nf_writer_finish(w, err);
}

/* An add-on: replaces tensor.b, adds tensor.c and a bank. */
static nf_status write_addon(const char *path, uint64_t max_part, uint64_t seed, nf_error *err) {
    const nf_writer_options options = {.max_part_bytes = max_part};
    nf_writer *w;
    nf_status status = nf_writer_append(path, &options, &w, err);
    if (status) return status;
    status = nf_writer_meta(w, "addon", "yes", err);
    if (!status) status = add_tensor(w, "tensor.b", "text", 7000, seed, err);
    if (!status) status = add_tensor(w, "tensor.c", "mtp", 3000, seed + 1, err);
    if (!status) status = add_bank(w, "bank.1", seed + 2, err);
    if (status) {
        nf_writer_abort(w);
        return status;
    }
    return nf_writer_finish(w, err);
}

static void expect_bytes(nf_container *c, const char *name, uint64_t offset, uint64_t n, uint64_t seed) {
    nf_error err = {0};
    const nf_object *o = nf_container_find(c, name);
    const uint8_t *p;
    assert_non_null(o);
    OK(nf_container_map(c, o, &p, &err));
    uint8_t *want = malloc(n);
    fill(want, n, seed);
    assert_memory_equal(p + offset, want, n);
    free(want);
}

/* Checks the contents: of the model, or with addon_seed of the model with that add-on. */
static void expect_model(nf_container *c, uint64_t addon_seed) {
    nf_error err = {0};
    nf_object bank = bank_object("x");
    nf_buf blob = {0};
    assert_string_equal(nf_container_meta(c, "model.name"), "fixture");
    expect_bytes(c, "tensor.a", 0, 10001, 1);
    for (uint64_t e = 0; e < N_EXPERTS; e++) expect_bytes(c, "bank.0", e * bank.expert_stride, bank.expert_stride, 100 + e);
    for (uint64_t r = 0; r < 33; r++) expect_bytes(c, "rows", nf_row_table_offset(nf_container_find(c, "rows"), r), 116, 200 + r);
    OK(nf_container_read_blob(c, nf_container_find(c, "blob"), &blob, &err));
    assert_int_equal(blob.len, sizeof text_blob);
    assert_memory_equal(blob.data, text_blob, sizeof text_blob);
    nf_buf_free(&blob);
    if (!addon_seed) {
        expect_bytes(c, "tensor.b", 0, 5000, 2);
        assert_null(nf_container_find(c, "tensor.c"));
        assert_null(nf_container_meta(c, "addon"));
    } else {
        expect_bytes(c, "tensor.b", 0, 7000, addon_seed);
        expect_bytes(c, "tensor.c", 0, 3000, addon_seed + 1);
        for (uint64_t e = 0; e < N_EXPERTS; e++) expect_bytes(c, "bank.1", e * bank.expert_stride, bank.expert_stride, addon_seed + 2 + e);
    }
    for (size_t i = 0; i < nf_container_object_count(c); i++) OK(nf_container_check(c, nf_container_object(c, i), UINT64_MAX, &err));
}

#endif
