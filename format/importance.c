/* Importance statistics; see importance.h. File format: docs/quantisation.md. */
#include "format/importance.h"

#include "base/buf.h"
#include "base/io.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC "NFIMPORT"
#define VERSION 1u
#define MAX_FILE_BYTES ((size_t)4 << 30)
#define MAX_COLS (1u << 20)
#define MAX_EXPERTS (1u << 16)
#define MAX_ENTRIES (1u << 14) /* names are compared one by one; models have a few thousand matrices */

nf_status nf_importance_add(nf_importance *set, const char *name, uint64_t experts, uint64_t cols,
                            nf_error *err) {
    nf_importance_entry entry = {.experts = (uint32_t)experts, .cols = (uint32_t)cols};
    const size_t length = strlen(name);
    if (!length || length >= sizeof entry.name)
        return nf_fail(err, NF_ERR_FORMAT, "the name of a matrix has 1 to %zu bytes, not %zu",
                       sizeof entry.name - 1, length);
    if (nf_importance_find(set, name)) return nf_fail(err, NF_ERR_FORMAT, "'%s' is listed twice", name);
    if (!experts || experts > MAX_EXPERTS || !cols || cols > MAX_COLS)
        return nf_fail(err, NF_ERR_LIMIT, "'%s': %llu experts of %llu columns are not supported", name,
                       (unsigned long long)experts, (unsigned long long)cols);
    memcpy(entry.name, name, length);
    nf_status status = nf_grow((void **)&set->entries, &set->cap, set->n + 1, sizeof *set->entries, err);
    if (status) return status;
    entry.counts = nf_calloc((size_t)experts, sizeof *entry.counts, "importance counts", err);
    entry.sums = nf_calloc((size_t)experts * (size_t)cols, sizeof *entry.sums, "importance sums", err);
    entry.mean = nf_calloc((size_t)cols, sizeof *entry.mean, "importance means", err);
    if (!entry.counts || !entry.sums || !entry.mean) {
        free(entry.counts);
        free(entry.sums);
        free(entry.mean);
        return NF_ERR_MEMORY;
    }
    set->entries[set->n++] = entry;
    return NF_OK;
}

const nf_importance_entry *nf_importance_find(const nf_importance *set, const char *name) {
    for (size_t i = 0; i < set->n; i++)
        if (!strcmp(set->entries[i].name, name)) return &set->entries[i];
    return NULL;
}

void nf_importance_free(nf_importance *set) {
    for (size_t i = 0; i < set->n; i++) {
        free(set->entries[i].counts);
        free(set->entries[i].sums);
        free(set->entries[i].mean);
    }
    free(set->entries);
    *set = (nf_importance){0};
}

/* ---- writing ---- */

static nf_status put_entry(const nf_importance_entry *e, nf_buf *out, nf_error *err) {
    const size_t values = (size_t)e->experts * e->cols;
    nf_status status = nf_buf_append(out, e->name, sizeof e->name, err);
    if (!status) status = nf_buf_u32(out, e->experts, err);
    if (!status) status = nf_buf_u32(out, e->cols, err);
    for (size_t i = 0; i < e->experts && !status; i++) status = nf_buf_u64(out, e->counts[i], err);
    for (size_t i = 0; i < values && !status; i++) {
        uint32_t bits;
        memcpy(&bits, &e->sums[i], sizeof bits);
        status = nf_buf_u32(out, bits, err);
    }
    return status;
}

nf_status nf_importance_write(const nf_importance *set, const char *path, nf_error *err) {
    nf_buf out = {0};
    nf_status status = nf_buf_append(&out, MAGIC, 8, err);
    if (!status) status = nf_buf_u32(&out, VERSION, err);
    if (!status) status = nf_buf_u32(&out, (uint32_t)set->n, err);
    for (size_t i = 0; i < set->n && !status; i++) status = put_entry(&set->entries[i], &out, err);
    if (!status) status = nf_buf_u64(&out, XXH3_64bits(out.data, out.len), err);
    if (!status) status = nf_write_file_atomic(path, out.data, out.len, err);
    nf_buf_free(&out);
    return status;
}

/* ---- reading ---- */

typedef struct reader {
    const unsigned char *at;
    size_t left;
} reader;

static uint64_t take(reader *r, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)r->at[i] << 8 * i;
    r->at += bytes;
    r->left -= (size_t)bytes;
    return value;
}

/* Once for an entry: its experts ask for it one by one. */
static void set_mean(nf_importance_entry *e) {
    double rows = 0;
    for (size_t i = 0; i < e->experts; i++) rows += (double)e->counts[i];
    for (size_t c = 0; c < e->cols; c++) {
        double all = 0;
        for (size_t i = 0; i < e->experts; i++) all += (double)e->sums[i * e->cols + c];
        e->mean[c] = rows > 0 ? all / rows : 0.0;
    }
}

static nf_status take_entry(reader *r, nf_importance *out, nf_error *err) {
    char name[sizeof out->entries->name];
    if (r->left < sizeof name + 8) return nf_fail(err, NF_ERR_FORMAT, "the list of matrices is cut off");
    memcpy(name, r->at, sizeof name);
    r->at += sizeof name;
    r->left -= sizeof name;
    if (name[sizeof name - 1]) return nf_fail(err, NF_ERR_FORMAT, "a name has no end");
    for (const char *c = name; *c; c++) /* names are shown in messages */
        if (*c < 0x21 || *c > 0x7e) return nf_fail(err, NF_ERR_FORMAT, "a name is not plain text");
    const uint64_t experts = take(r, 4), cols = take(r, 4);
    /* Both are below 2^32: no overflow. Memory follows only when the bytes are there. */
    if (r->left / 8 < experts || (r->left - 8 * experts) / 4 < experts * cols)
        return nf_fail(err, NF_ERR_FORMAT, "'%s' is cut off", name);
    nf_status status = nf_importance_add(out, name, experts, cols, err);
    if (status) return status;
    nf_importance_entry *e = &out->entries[out->n - 1];
    for (size_t i = 0; i < experts; i++) e->counts[i] = take(r, 8);
    for (size_t i = 0; i < experts * cols; i++) {
        const uint32_t bits = (uint32_t)take(r, 4);
        memcpy(&e->sums[i], &bits, sizeof bits);
        if (!isfinite(e->sums[i]) || e->sums[i] < 0.0f)
            return nf_fail(err, NF_ERR_FORMAT, "'%s': the sum of column %zu is not a number from 0 on", name,
                           i % cols);
    }
    set_mean(e);
    return NF_OK;
}

static nf_status parse(const nf_buf *file, nf_importance *out, nf_error *err) {
    reader r = {(const unsigned char *)file->data, file->len};
    if (r.left < 24 || memcmp(r.at, MAGIC, 8) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "not a file of importance statistics");
    r.at += 8;
    r.left -= 8;
    const uint64_t version = take(&r, 4), n = take(&r, 4);
    if (version != VERSION)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "version %llu of the format; this program reads version %u",
                       (unsigned long long)version, VERSION);
    reader end = {(const unsigned char *)file->data + file->len - 8, 8};
    if (take(&end, 8) != XXH3_64bits(file->data, file->len - 8))
        return nf_fail(err, NF_ERR_FORMAT, "the checksum is wrong: the file is damaged");
    r.left -= 8;
    if (n > MAX_ENTRIES) return nf_fail(err, NF_ERR_LIMIT, "too many matrices");
    for (uint64_t i = 0; i < n; i++) {
        nf_status status = take_entry(&r, out, err);
        if (status) return status;
    }
    return r.left ? nf_fail(err, NF_ERR_FORMAT, "%zu bytes follow the last matrix", r.left) : NF_OK;
}

nf_status nf_importance_read(const char *path, nf_importance *out, nf_error *err) {
    nf_buf file = {0};
    *out = (nf_importance){0};
    nf_status status = nf_read_file(path, MAX_FILE_BYTES, &file, err);
    if (!status && (status = parse(&file, out, err))) {
        nf_context(err, "%s", path);
        nf_importance_free(out);
    }
    nf_buf_free(&file);
    return status;
}

/* ---- weights ---- */

void nf_importance_weights(const nf_importance_entry *entry, size_t expert, float *out) {
    const size_t cols = entry->cols;
    const double seen = (double)entry->counts[expert];
    double total = 0;
    for (size_t c = 0; c < cols; c++) {
        const double own = (double)entry->sums[expert * cols + c], mean = entry->mean[c];
        const double blend = (own + NF_IMPORTANCE_PRIOR * mean) / (seen + NF_IMPORTANCE_PRIOR);
        out[c] = (float)blend;
        total += (double)out[c];
    }
    const double scale = total / (double)cols;
    for (size_t c = 0; c < cols; c++) {
        const double w = scale > 0 && isfinite(scale) ? (double)out[c] / scale : 1.0;
        out[c] = (float)(w > NF_IMPORTANCE_FLOOR ? w : NF_IMPORTANCE_FLOOR);
    }
}
