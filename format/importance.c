/* Files of importance statistics; see importance.h and docs/quantisation.md. Knows no models. */
#include "format/importance.h"

#include "base/io.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC "NFIMPORT"
#define VERSION 1
#define HEAD_BYTES 64
#define MAX_FILE_BYTES ((size_t)1 << 36)
#define MATRIX_HEAD_BYTES 16

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the arrays of an importance file are read where they are: this needs a little-endian machine"
#endif

static uint64_t up8(uint64_t n) {
    return (n + 7) / 8 * 8;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const nf_importance_matrix *)a)->name, ((const nf_importance_matrix *)b)->name);
}

/* ---- reading ---- */

typedef struct reader {
    const char *path;
    const uint8_t *bytes;
    uint64_t at, end;
} reader;

static uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The next n bytes; NULL beyond the end. n is padded to 8. */
static const uint8_t *take(reader *r, uint64_t n) {
    if (n > r->end - r->at || up8(n) > r->end - r->at) return NULL;
    const uint8_t *p = r->bytes + r->at;
    r->at += up8(n);
    return p;
}

static nf_status damaged(const reader *r, const char *what, nf_error *err) {
    return nf_fail(err, NF_ERR_FORMAT, "%s: not a good importance file: %s", r->path, what);
}

static nf_status check_head(reader *r, nf_importance *out, uint32_t *n, nf_error *err) {
    const uint8_t *h = take(r, HEAD_BYTES);
    if (!h || memcmp(h, MAGIC, 8) != 0) return damaged(r, "it does not begin with " MAGIC, err);
    if (get32(h + 8) != VERSION)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: importance file of version %u; this program reads %d",
                       r->path, get32(h + 8), VERSION);
    *n = get32(h + 12);
    out->tokens = get64(h + 16);
    if (get64(h + 24) != r->end) return damaged(r, "it is cut short, or longer than it says", err);
    if (get64(h + 32) != XXH3_64bits(h + HEAD_BYTES, (size_t)(r->end - HEAD_BYTES)))
        return damaged(r, "its checksum is wrong", err);
    for (int i = 40; i < HEAD_BYTES; i++)
        if (h[i]) return damaged(r, "the end of its head is not zero", err);
    if (*n > (r->end - HEAD_BYTES) / MATRIX_HEAD_BYTES)
        return damaged(r, "it cannot hold that many matrices", err);
    return NF_OK;
}

static nf_status read_matrix(reader *r, char **names, nf_importance_matrix *m, nf_error *err) {
    const uint8_t *h = take(r, MATRIX_HEAD_BYTES);
    if (!h) return damaged(r, "a matrix is cut short", err);
    const uint32_t length = get32(h);
    m->experts = get32(h + 4);
    m->cols = get64(h + 8);
    const uint8_t *name = length && length <= NF_IMPORTANCE_NAME_MAX ? take(r, length) : NULL;
    if (!name || memchr(name, 0, length)) return damaged(r, "a matrix has no proper name", err);
    memcpy(*names, name, length);
    (*names)[length] = '\0';
    m->name = *names;
    *names += length + 1;
    uint64_t n;
    const uint8_t *counts = take(r, (uint64_t)m->experts * 8);
    if (!m->experts || !m->cols || !counts || __builtin_mul_overflow(m->cols, m->experts, &n) ||
        n > (r->end - r->at) / sizeof(float))
        return nf_fail(err, NF_ERR_FORMAT, "%s: not a good importance file: '%s' does not fit in it", r->path,
                       m->name);
    const uint8_t *sums = take(r, n * sizeof(float));
    if (!sums) return damaged(r, "a matrix is cut short", err);
    m->counts = (const uint64_t *)(const void *)counts;
    m->sums = (const float *)(const void *)sums;
    for (uint64_t i = 0; i < n; i++)
        if (!(m->sums[i] >= 0.0f) || !isfinite(m->sums[i]))
            return nf_fail(err, NF_ERR_FORMAT, "%s: not a good importance file: a sum of '%s' is %g", r->path,
                           m->name, (double)m->sums[i]);
    return NF_OK;
}

static nf_status read_all(reader *r, nf_importance *out, nf_error *err) {
    uint32_t n;
    nf_status status = check_head(r, out, &n, err);
    if (status) return status;
    out->matrices = nf_calloc(n, sizeof *out->matrices, "importance statistics", err);
    out->names = nf_alloc(n, NF_IMPORTANCE_NAME_MAX + 1, "names of importance statistics", err);
    if (!out->matrices || !out->names) return NF_ERR_MEMORY;
    char *names = out->names;
    for (; out->n < n; out->n++) {
        status = read_matrix(r, &names, &out->matrices[out->n], err);
        if (status) return status;
        if (out->n && compare_names(&out->matrices[out->n - 1], &out->matrices[out->n]) >= 0)
            return damaged(r, "its matrices are not in the order of their names", err);
    }
    return r->at == r->end ? NF_OK : damaged(r, "something follows the last matrix", err);
}

nf_status nf_importance_load(const char *path, nf_importance *out, nf_error *err) {
    *out = (nf_importance){0};
    nf_status status = nf_read_file(path, MAX_FILE_BYTES, &out->bytes, err);
    reader r = {path, (const uint8_t *)out->bytes.data, 0, out->bytes.len};
    if (!status) status = read_all(&r, out, err);
    if (status) nf_importance_free(out);
    return status;
}

void nf_importance_free(nf_importance *importance) {
    free(importance->matrices);
    free(importance->names);
    nf_buf_free(&importance->bytes);
    *importance = (nf_importance){0};
}

const nf_importance_matrix *nf_importance_find(const nf_importance *importance, const char *name) {
    const nf_importance_matrix key = {.name = name};
    if (!importance->n) return NULL;
    return bsearch(&key, importance->matrices, importance->n, sizeof key, compare_names);
}

/* ---- writing ---- */

static nf_status pad8(nf_buf *buf, nf_error *err) {
    static const char zeros[8];
    return nf_buf_append(buf, zeros, up8(buf->len) - buf->len, err);
}

static nf_status put_matrix(nf_buf *buf, const nf_importance_matrix *m, nf_error *err) {
    const size_t length = strlen(m->name), n = (size_t)(m->experts * m->cols);
    if (!length || length > NF_IMPORTANCE_NAME_MAX)
        return nf_fail(err, NF_ERR_ARGUMENT, "a matrix name of %zu bytes; 1 to %d are allowed", length,
                       NF_IMPORTANCE_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        if (!(m->sums[i] >= 0.0f) || !isfinite(m->sums[i]))
            return nf_fail(err, NF_ERR_NUMERIC, "the sum of squares of '%s', column %zu, is %g", m->name,
                           i % (size_t)m->cols, (double)m->sums[i]);
    nf_status status = nf_buf_u32(buf, (uint32_t)length, err);
    if (!status) status = nf_buf_u32(buf, m->experts, err);
    if (!status) status = nf_buf_u64(buf, m->cols, err);
    if (!status) status = nf_buf_append(buf, m->name, length, err);
    if (!status) status = pad8(buf, err);
    if (!status) status = nf_buf_append(buf, m->counts, m->experts * sizeof *m->counts, err);
    if (!status) status = nf_buf_append(buf, m->sums, n * sizeof *m->sums, err);
    return status ? status : pad8(buf, err);
}

nf_status nf_importance_save(const char *path, uint64_t tokens, nf_importance_matrix *matrices, size_t n,
                             nf_error *err) {
    if (n) qsort(matrices, n, sizeof *matrices, compare_names);
    nf_buf body = {0}, file = {0};
    nf_status status = NF_OK;
    for (size_t i = 0; i < n && !status; i++) status = put_matrix(&body, &matrices[i], err);
    if (!status) status = nf_buf_append(&file, MAGIC, 8, err);
    if (!status) status = nf_buf_u32(&file, VERSION, err);
    if (!status) status = nf_buf_u32(&file, (uint32_t)n, err);
    if (!status) status = nf_buf_u64(&file, tokens, err);
    if (!status) status = nf_buf_u64(&file, HEAD_BYTES + body.len, err);
    if (!status) status = nf_buf_u64(&file, XXH3_64bits(body.len ? body.data : "", body.len), err);
    while (!status && file.len < HEAD_BYTES) status = nf_buf_byte(&file, 0, err);
    if (!status) status = nf_buf_append(&file, body.data, body.len, err);
    nf_buf_free(&body);
    if (!status) status = nf_write_file_atomic(path, file.data, file.len, err);
    nf_buf_free(&file);
    return status;
}
