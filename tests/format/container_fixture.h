/*
 * What the container tests share: a small model with every kind of object whose bytes follow from names and a
 * seed, a temporary folder, and a digest of all that a container says.
 */
#ifndef TESTS_FORMAT_CONTAINER_FIXTURE_H
#define TESTS_FORMAT_CONTAINER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/io.h"
#include "format/container_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FX_OBJECTS 12
#define FX_PATH 512

static inline void fx_ok(nf_status status, const nf_error *err) {
    if (status) fail_msg("unexpected error (%s): %s", nf_status_name(status), err->message);
}

/* File operations that do not wait for the disk: what is not about crashes of this machine needs no fsync. */
static int fx_no_fsync(int fd) {
    (void)fd;
    return 0;
}

static int fx_no_fsync_dir(const char *path) {
    (void)path;
    return 0;
}

static nf_file_ops fx_quick_ops;

static inline void fx_use_quick_ops(void) {
    fx_quick_ops = nf_posix_file_ops;
    fx_quick_ops.fsync = fx_no_fsync;
    fx_quick_ops.fsync_dir = fx_no_fsync_dir;
    nf_file_ops_in_use = &fx_quick_ops;
}

/* ---- folders and files ---- */

static inline char *fx_folder(void) {
    const char *base = getenv("TMPDIR");
    char *path = malloc(FX_PATH);
    assert_non_null(path);
    snprintf(path, FX_PATH, "%s/nf-container-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

/* Removes what the folder holds; returns how many files that were. */
static inline int fx_empty(const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char path[FX_PATH + 300];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(unlink(path), 0);
        n++;
    }
    closedir(dir);
    return n;
}

/* Number of files whose name contains `part` (all files for ""). */
static inline int fx_count(const char *folder, const char *part) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strstr(e->d_name, part);
    closedir(dir);
    return n;
}

static inline void fx_remove_folder(char *folder) {
    fx_empty(folder);
    assert_int_equal(rmdir(folder), 0);
    free(folder);
}

static inline const char *fx_path(const char *folder, const char *name) {
    static _Thread_local char path[4][FX_PATH + 64];
    static _Thread_local int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static inline uint64_t fx_size(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

static inline void fx_copy_file(const char *from, const char *to) {
    nf_buf bytes = {0};
    nf_error err = {0};
    fx_ok(nf_read_file(from, SIZE_MAX / 2, &bytes, &err), &err);
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    static const char zero[4096];
    for (size_t at = 0; at < bytes.len; at += 4096) { /* keeps holes: banks begin at 2 MiB */
        size_t n = bytes.len - at < 4096 ? bytes.len - at : 4096;
        if (memcmp(bytes.data + at, zero, n) != 0)
            assert_int_equal(pwrite(fd, bytes.data + at, n, (off_t)at), (ssize_t)n);
    }
    assert_int_equal(ftruncate(fd, (off_t)bytes.len), 0);
    close(fd);
    nf_buf_free(&bytes);
}

static inline void fx_copy_folder(const char *from, const char *to) {
    DIR *dir = opendir(from);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') fx_copy_file(fx_path(from, e->d_name), fx_path(to, e->d_name));
    closedir(dir);
}

/* Changes one byte of a file (by xor) at `offset`. */
static inline void fx_flip(const char *path, uint64_t offset, uint8_t with) {
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= with;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

/* ---- contents ---- */

static inline uint64_t fx_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The bytes of an object: a function of its name and the seed. Text-like names give compressible bytes. */
static inline uint8_t *fx_content(const char *name, uint64_t seed, uint64_t n) {
    uint64_t state = XXH3_64bits(name, strlen(name)) ^ (seed * 0x9E3779B97F4A7C15ull) ^ 1;
    uint8_t *bytes = malloc(n + 8);
    assert_non_null(bytes);
    bool text = strstr(name, "text") != NULL;
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t v = fx_random(&state);
        if (text) v = 0x2020202020202020ull + (v & 0x0303);
        memcpy(bytes + i, &v, 8);
    }
    return bytes;
}

static inline nf_object fx_matrix(const char *name, nf_type type, nf_codebook codebook, uint64_t rows,
                                  uint64_t cols) {
    nf_object o = {.name = name,
                   .component = "text",
                   .kind = NF_OBJECT_TENSOR,
                   .format = {.type = type, .codebook = codebook},
                   .tiled = true,
                   .n_dims = 2,
                   .shape = {rows, cols},
                   .bytes = nf_matrix_bytes((nf_format){.type = type, .codebook = codebook}, rows, cols)};
    return o;
}

static inline nf_object fx_bank(const char *name, nf_type type, nf_codebook codebook, uint64_t experts,
                                uint64_t inner, uint64_t width) {
    nf_object o = {.name = name, .component = "text", .kind = NF_OBJECT_BANK, .n_experts = experts};
    for (int m = 0; m < 3; m++)
        o.matrix[m] = (nf_bank_matrix){.format = {.type = type, .codebook = codebook},
                                       .rows = m < 2 ? inner : width,
                                       .cols = m < 2 ? width : inner};
    nf_error err = {0};
    fx_ok(nf_bank_layout(&o, &err), &err);
    return o;
}

static inline nf_object fx_rows(const char *name, nf_type type, uint64_t rows, uint64_t cols, uint64_t stride,
                                uint64_t scales) {
    nf_object o = {.name = name,
                   .component = "text",
                   .kind = NF_OBJECT_ROW_TABLE,
                   .format = {.type = type},
                   .n_dims = 2,
                   .shape = {rows, cols},
                   .row_stride = stride,
                   .row_scale_bytes = scales};
    nf_error err = {0};
    fx_ok(nf_row_table_layout(&o, &err), &err);
    return o;
}

/* Every kind and type. Blobs have bytes = their uncompressed length here. */
static inline void fx_objects(nf_object out[FX_OBJECTS]) {
    size_t n = 0;
    out[n++] = (nf_object){.name = "norm",
                           .component = "text",
                           .kind = NF_OBJECT_TENSOR,
                           .format = {.type = NF_TYPE_F32},
                           .n_dims = 3,
                           .shape = {3, 5, 7},
                           .bytes = 420,
                           .metadata = "{\"eps\":1e-6}"};
    out[n++] = (nf_object){.name = "nothing",
                           .component = "text",
                           .kind = NF_OBJECT_TENSOR,
                           .format = {.type = NF_TYPE_BF16},
                           .n_dims = 2,
                           .shape = {0, 5},
                           .bytes = 0};
    out[n++] = fx_matrix("wide.i8", NF_TYPE_I8, NF_CODEBOOK_NONE, 700, 900);
    out[n++] = fx_matrix("small.c4", NF_TYPE_C4, NF_CODEBOOK_NL, 20, 70);
    out[n++] = fx_matrix("blocks.f8", NF_TYPE_F8, NF_CODEBOOK_NONE, 130, 300);
    out[n++] = fx_bank("bank.c4", NF_TYPE_C4, NF_CODEBOOK_LINEAR, 40, 64, 160);
    out[n++] = fx_bank("bank.f8", NF_TYPE_F8, NF_CODEBOOK_NONE, 3, 24, 40);
    out[n++] = fx_rows("rows.i8", NF_TYPE_I8, 100, 96, 128, 6);
    out[n++] =
        (nf_object){.name = "some.text", .component = "tokenizer", .kind = NF_OBJECT_BLOB, .bytes = 30000};
    out[n++] = (nf_object){.name = "noise", .component = "tokenizer", .kind = NF_OBJECT_BLOB, .bytes = 5001};
    out[n++] = (nf_object){.name = "empty", .component = "tokenizer", .kind = NF_OBJECT_BLOB};
    out[n++] = fx_rows("rows.f32", NF_TYPE_F32, 5, 1100, 4416, 0);
    assert_int_equal(n, FX_OBJECTS);
}

static inline nf_status fx_write_object(nf_writer *w, const nf_object *o, uint64_t seed, nf_error *err) {
    uint8_t *bytes = fx_content(o->name, seed, o->bytes);
    size_t handle;
    nf_status status;
    if (o->kind == NF_OBJECT_BLOB) {
        status = nf_writer_add_blob(w, o->name, o->component, bytes, o->bytes, err);
    } else if (!(status = nf_writer_add(w, o, &handle, err))) {
        if (o->kind == NF_OBJECT_BANK)
            for (uint64_t e = o->n_experts; e-- > 0 && !status;)
                status = nf_writer_write_expert(w, handle, e, bytes + e * o->expert_stride, err);
        else
            for (uint64_t at = 0; at < o->bytes && !status;) {
                uint64_t n = o->bytes - at < 40001 ? o->bytes - at : 40001;
                status = nf_writer_write(w, handle, at, bytes + at, n, err);
                at += n;
            }
    }
    free(bytes);
    return status;
}

/* Writes objects and one metadata key; finishes or aborts. */
static inline nf_status fx_write_all(nf_writer *w, const nf_object *objects, size_t n, uint64_t seed,
                                     nf_error *err) {
    char value[40];
    snprintf(value, sizeof value, "seed %llu", (unsigned long long)seed);
    nf_status status = nf_writer_meta(w, "model.name", "Prüfmodell", err);
    if (!status) status = nf_writer_meta(w, "seed", value, err);
    for (size_t i = 0; i < n && !status; i++) status = fx_write_object(w, &objects[i], seed, err);
    if (!status) return nf_writer_finish(w, err);
    nf_writer_abort(w);
    return status;
}

static inline nf_status fx_create(const char *path, uint64_t part_bytes, const nf_object *objects, size_t n,
                                  uint64_t seed, nf_error *err) {
    nf_writer *w;
    nf_status status = nf_writer_create(path, &(nf_writer_options){part_bytes}, &w, err);
    return status ? status : fx_write_all(w, objects, n, seed, err);
}

static inline nf_status fx_append(const char *path, uint64_t part_bytes, const nf_object *objects, size_t n,
                                  uint64_t seed, nf_error *err) {
    nf_writer *w;
    nf_status status = nf_writer_append(path, &(nf_writer_options){part_bytes}, &w, err);
    return status ? status : fx_write_all(w, objects, n, seed, err);
}

/* Compares an object of an open container with what was written. */
static inline void fx_expect(nf_container *c, const nf_object *o, uint64_t seed) {
    nf_error err = {0};
    const nf_object *found = nf_container_find(c, o->name);
    if (!found) fail_msg("object '%s' is missing", o->name);
    uint8_t *bytes = fx_content(o->name, seed, o->bytes);
    assert_string_equal(found->component, o->component);
    assert_int_equal(found->kind, o->kind);
    if (o->kind == NF_OBJECT_BLOB) {
        nf_buf blob = {0};
        fx_ok(nf_container_read_blob(c, found, &blob, &err), &err);
        assert_int_equal(blob.len, o->bytes);
        assert_int_equal(found->raw_bytes, o->bytes);
        assert_memory_equal(blob.data, bytes, o->bytes);
        nf_buf_free(&blob);
    } else {
        assert_int_equal(found->bytes, o->bytes);
        assert_int_equal(found->n_dims, o->n_dims);
        assert_memory_equal(found->shape, o->shape, sizeof o->shape);
        assert_memory_equal(found->matrix, o->matrix, sizeof o->matrix);
        assert_int_equal(found->row_stride, o->row_stride);
        assert_int_equal(found->format.type, o->format.type);
        assert_int_equal(found->format.codebook, o->format.codebook);
        assert_int_equal(found->tiled, o->tiled);
        if (o->metadata)
            assert_string_equal(found->metadata, o->metadata);
        else
            assert_null(found->metadata);
        const uint8_t *mapped;
        if (o->bytes) {
            fx_ok(nf_container_map(c, found, &mapped, &err), &err);
            assert_memory_equal(mapped, bytes, o->bytes);
        }
    }
    fx_ok(nf_container_check(c, found, UINT64_MAX, &err), &err);
    free(bytes);
}

/* A checksum of everything that a container says: two models are the same when these are equal. Zero when it
 * does not open. */
static inline uint64_t fx_digest(const char *path, nf_error *err) {
    nf_container *c;
    if (nf_container_open(path, &c, err)) return 0;
    XXH3_state_t *state = XXH3_createState();
    assert_non_null(state);
    XXH3_64bits_reset(state);
    for (size_t i = 0; i < nf_container_meta_count(c); i++) {
        const char *key, *value;
        nf_container_meta_at(c, i, &key, &value);
        XXH3_64bits_update(state, key, strlen(key) + 1);
        XXH3_64bits_update(state, value, strlen(value) + 1);
    }
    for (size_t i = 0; i < nf_container_object_count(c); i++) {
        const nf_object *o = nf_container_object(c, i);
        const uint8_t *bytes;
        XXH3_64bits_update(state, o->name, strlen(o->name) + 1);
        if (!o->bytes) continue;
        fx_ok(nf_container_map(c, o, &bytes, err), err);
        XXH3_64bits_update(state, bytes, o->bytes);
    }
    uint64_t digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    nf_container_close(c);
    return digest ? digest : 1;
}

/* ---- verify ---- */

typedef struct fx_findings {
    int notes, warnings, errors;
    char first[NF_ERROR_MESSAGE_MAX];
    char all[16384];
} fx_findings;

static inline void fx_collect(void *user, nf_finding_level level, const char *message) {
    fx_findings *f = user;
    if (level == NF_FINDING_NOTE)
        f->notes++;
    else if (level == NF_FINDING_WARNING)
        f->warnings++;
    else if (!f->errors++)
        snprintf(f->first, sizeof f->first, "%s", message);
    size_t n = strlen(f->all);
    snprintf(f->all + n, sizeof f->all - n, "%s\n", message);
}

static inline fx_findings fx_verify(const char *path) {
    fx_findings f = {0};
    nf_error err = {0};
    nf_status status = nf_container_verify(path, 2, fx_collect, &f, NULL, NULL, &err);
    assert_int_equal(status != NF_OK, f.errors > 0);
    if (f.errors) assert_string_equal(err.message, f.first);
    return f;
}

#endif
