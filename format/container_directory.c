/*
 * The directory: encoding and decoding (docs/container.md, "Directory"). Decoding trusts nothing: counts are bounded by the
 * bytes that are left before anything is allocated. Meaning is checked in container_check.c.
 */
#include "format/container_internal.h"

#include <stdlib.h>
#include <string.h>

#define DIRECTORY_VERSION 1
#define FLAG_TILED 1
#define FLAG_COMPRESSED 2

/* ---- encoding ------------------------------------------------------------------------------------------------------------- */

/* Appends; remembers the first failure, so that callers check once. */
typedef struct encoder {
    nf_buf *out;
    nf_error *err;
    nf_status status;
} encoder;

static void e_bytes(encoder *e, const void *bytes, size_t n) {
    if (!e->status) e->status = nf_buf_append(e->out, bytes, n, e->err);
}

static void e_int(encoder *e, uint64_t value, int n) {
    uint8_t bytes[8];
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    e_bytes(e, bytes, (size_t)n);
}

static void e_text(encoder *e, const char *text, int length_bytes) {
    size_t n = text ? strlen(text) : 0;
    e_int(e, n, length_bytes);
    e_bytes(e, text, n);
}

static void encode_object(encoder *e, const nf_entry *entry) {
    const nf_object *o = &entry->pub;
    size_t size_at = e->out->len;
    e_int(e, 0, 4); /* record size, set below */
    e_text(e, o->name, 2);
    e_int(e, entry->component, 2);
    e_int(e, o->kind, 1);
    e_int(e, o->format.type, 1);
    e_int(e, o->format.codebook, 1);
    e_int(e, (o->tiled ? FLAG_TILED : 0u) | (o->compressed ? FLAG_COMPRESSED : 0u), 1);
    e_int(e, o->n_dims, 2);
    e_int(e, o->n_segments, 2);
    for (uint32_t i = 0; i < o->n_dims; i++) e_int(e, o->shape[i], 8);
    e_int(e, o->bytes, 8);
    e_int(e, o->raw_bytes, 8);
    for (size_t i = 0; i < o->n_segments; i++) {
        e_int(e, entry->segments[i].part, 4);
        e_int(e, entry->segments[i].offset, 8);
        e_int(e, entry->segments[i].length, 8);
    }
    e_bytes(e, &entry->hash, 16);
    e_int(e, entry->checks_object, 4);
    e_int(e, entry->checks_first, 8);
    e_int(e, entry->checks_count, 8);
    e_int(e, o->n_experts, 8);
    e_int(e, o->expert_stride, 8);
    for (int m = 0; m < 3; m++) {
        const nf_bank_matrix *b = &o->matrix[m];
        e_int(e, b->format.type, 1);
        e_int(e, b->format.codebook, 1);
        e_int(e, b->rows, 8);
        e_int(e, b->cols, 8);
        e_int(e, b->offset, 8);
        e_int(e, b->tile_stride, 8);
        e_int(e, b->scale_offset, 8);
    }
    e_int(e, o->row_stride, 8);
    e_int(e, o->row_scale_bytes, 8);
    e_text(e, o->metadata, 4);
    if (e->status) return;
    size_t size = e->out->len - size_at - 4;
    for (int i = 0; i < 4; i++) e->out->data[size_at + (size_t)i] = (char)(size >> (8 * i));
}

nf_status nf_directory_encode(const nf_directory *d, nf_buf *out, nf_error *err) {
    encoder e = {.out = out, .err = err};
    e_int(&e, DIRECTORY_VERSION, 4);
    e_int(&e, 0, 4);
    e_int(&e, d->generation, 8);
    e_bytes(&e, d->uuid.bytes, 16);
    e_int(&e, d->n_parts, 4);
    e_int(&e, d->n_components, 4);
    e_int(&e, d->n_objects, 4);
    e_int(&e, d->n_meta, 4);
    for (size_t i = 0; i < d->n_parts; i++) {
        e_bytes(&e, d->parts[i].id.bytes, 16);
        e_int(&e, d->parts[i].length, 8);
    }
    for (size_t i = 0; i < d->n_components; i++) e_text(&e, d->components[i], 2);
    for (size_t i = 0; i < d->n_objects; i++) encode_object(&e, &d->objects[i]);
    for (size_t i = 0; i < d->n_meta; i++) {
        e_text(&e, d->meta[i].key, 2);
        e_text(&e, d->meta[i].value, 4);
    }
    if (!e.status && out->len > NF_MAX_DIRECTORY_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "the directory would have %zu bytes, the limit is %u", out->len, NF_MAX_DIRECTORY_BYTES);
    return e.status;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------- */

typedef struct decoder {
    const uint8_t *at, *end;
    bool cut; /* something reached behind the end */
    nf_error *err;
    nf_status status;
} decoder;

static const uint8_t *d_bytes(decoder *d, size_t n) {
    if (d->cut || (size_t)(d->end - d->at) < n) {
        d->cut = true;
        return NULL;
    }
    const uint8_t *p = d->at;
    d->at += n;
    return p;
}

static uint64_t d_int(decoder *d, int n) {
    const uint8_t *p = d_bytes(d, (size_t)n);
    uint64_t value = 0;
    for (int i = 0; p && i < n; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static void d_copy(decoder *d, void *out, size_t n) {
    const uint8_t *p = d_bytes(d, n);
    if (p) memcpy(out, p, n);
}

/* A string of at most `limit` bytes, valid UTF-8 without NUL; NULL (with status) otherwise. */
static char *d_text(decoder *d, int length_bytes, size_t limit, const char *what) {
    size_t n = (size_t)d_int(d, length_bytes);
    if (d->status || d->cut) return NULL;
    if (n > limit) {
        d->status = nf_fail(d->err, NF_ERR_FORMAT, "%s of %zu bytes is longer than the limit of %zu", what, n, limit);
        return NULL;
    }
    const char *p = (const char *)d_bytes(d, n);
    if (!p) return NULL;
    if (memchr(p, 0, n) || !nf_directory_text_valid(p, n)) {
        d->status = nf_fail(d->err, NF_ERR_FORMAT, "%s is not valid UTF-8 text", what);
        return NULL;
    }
    char *text = nf_strndup(p, n, d->err);
    if (!text) d->status = NF_ERR_MEMORY;
    return text;
}

static bool failed(const decoder *d) { return d->cut || d->status; }

/* Allocates n entries after checking that the bytes left can hold n records of at least min_bytes. */
static void *d_array(decoder *d, size_t n, size_t min_bytes, size_t size, const char *what) {
    if (failed(d)) return NULL;
    if (n > (size_t)(d->end - d->at) / min_bytes) {
        d->cut = true;
        return NULL;
    }
    void *p = nf_calloc(n, size, what, d->err);
    if (!p) d->status = NF_ERR_MEMORY;
    return p;
}

static void decode_bank(decoder *d, nf_object *o) {
    o->n_experts = d_int(d, 8);
    o->expert_stride = d_int(d, 8);
    for (int m = 0; m < 3; m++) {
        nf_bank_matrix *b = &o->matrix[m];
        b->format.type = (nf_type)d_int(d, 1);
        b->format.codebook = (nf_codebook)d_int(d, 1);
        b->rows = d_int(d, 8);
        b->cols = d_int(d, 8);
        b->offset = d_int(d, 8);
        b->tile_stride = d_int(d, 8);
        b->scale_offset = d_int(d, 8);
    }
}

/* The record's own bytes are decoded by themselves: what a newer minor version adds behind them is skipped. */
static void decode_object(decoder *outer, nf_directory *dir, nf_entry *e) {
    size_t size = (size_t)d_int(outer, 4);
    const uint8_t *record = d_bytes(outer, size);
    if (!record) return;
    decoder in = {.at = record, .end = record + size, .err = outer->err}, *d = &in;
    nf_object *o = &e->pub;
    o->name = d_text(d, 2, NF_MAX_NAME, "an object name");
    e->component = (uint32_t)d_int(d, 2);
    o->kind = (nf_object_kind)d_int(d, 1);
    o->format.type = (nf_type)d_int(d, 1);
    o->format.codebook = (nf_codebook)d_int(d, 1);
    uint64_t flags = d_int(d, 1);
    o->tiled = flags & FLAG_TILED;
    o->compressed = (flags & FLAG_COMPRESSED) != 0;
    o->n_dims = (uint32_t)d_int(d, 2);
    o->n_segments = (size_t)d_int(d, 2);
    if (!failed(d) && (o->n_dims > NF_MAX_DIMS || e->component >= dir->n_components))
        d->status = nf_fail(d->err, NF_ERR_FORMAT, "object '%s' has impossible dimensions or component", o->name);
    for (uint32_t i = 0; !failed(d) && i < o->n_dims; i++) o->shape[i] = d_int(d, 8);
    o->bytes = d_int(d, 8);
    o->raw_bytes = d_int(d, 8);
    e->segments = d_array(d, o->n_segments, 20, sizeof *e->segments, "segments");
    o->segments = e->segments;
    for (size_t i = 0; !failed(d) && i < o->n_segments; i++) {
        e->segments[i].part = (uint32_t)d_int(d, 4);
        e->segments[i].offset = d_int(d, 8);
        e->segments[i].length = d_int(d, 8);
    }
    d_copy(d, &e->hash, 16);
    e->checks_object = (uint32_t)d_int(d, 4);
    e->checks_first = d_int(d, 8);
    e->checks_count = d_int(d, 8);
    decode_bank(d, o);
    o->row_stride = d_int(d, 8);
    o->row_scale_bytes = d_int(d, 8);
    o->metadata = d_text(d, 4, NF_MAX_METADATA_BYTES, "object metadata");
    if (!failed(d)) o->component = dir->components[e->component];
    if (d->status) outer->status = d->status;
    outer->cut |= d->cut;
}

static void decode_all(decoder *d, nf_directory *out) {
    uint64_t version = d_int(d, 4);
    d_int(d, 4); /* flags: reserved */
    if (!failed(d) && version != DIRECTORY_VERSION) {
        d->status = nf_fail(d->err, NF_ERR_UNSUPPORTED, "directory version %llu is unknown to this program", (unsigned long long)version);
        return;
    }
    out->generation = d_int(d, 8);
    d_copy(d, out->uuid.bytes, 16);
    size_t n_parts = (size_t)d_int(d, 4), n_components = (size_t)d_int(d, 4), n_objects = (size_t)d_int(d, 4);
    size_t n_meta = (size_t)d_int(d, 4);
    if (n_parts < 1 || n_parts > NF_MAX_PARTS || n_components > 65535 || n_objects > NF_MAX_OBJECTS || n_meta > NF_MAX_OBJECTS) {
        if (!failed(d)) d->status = nf_fail(d->err, NF_ERR_FORMAT, "the directory's counts are outside the limits of the format");
        return;
    }
    if (!(out->parts = d_array(d, n_parts, 24, sizeof *out->parts, "parts"))) return;
    for (; !failed(d) && out->n_parts < n_parts; out->n_parts++) {
        d_copy(d, out->parts[out->n_parts].id.bytes, 16);
        out->parts[out->n_parts].length = d_int(d, 8);
    }
    if (!(out->components = d_array(d, n_components, 2, sizeof *out->components, "components"))) return;
    for (; !failed(d) && out->n_components < n_components; out->n_components++)
        out->components[out->n_components] = d_text(d, 2, NF_MAX_NAME, "a component name");
    if (!(out->objects = d_array(d, n_objects, 4, sizeof *out->objects, "objects"))) return;
    while (!failed(d) && out->n_objects < n_objects) {
        /* Counted before it is decoded: nf_directory_free then frees what a bad record left. */
        nf_entry *e = &out->objects[out->n_objects++];
        decode_object(d, out, e);
    }
    if (!(out->meta = d_array(d, n_meta, 6, sizeof *out->meta, "metadata"))) return;
    while (!failed(d) && out->n_meta < n_meta) {
        nf_meta_entry *m = &out->meta[out->n_meta++];
        m->key = d_text(d, 2, NF_MAX_NAME, "a metadata key");
        m->value = d_text(d, 4, NF_MAX_METADATA_BYTES, "a metadata value");
    }
}

nf_status nf_directory_decode(const uint8_t *bytes, size_t n, const char *path, nf_directory *out, nf_error *err) {
    *out = (nf_directory){0};
    decoder d = {.at = bytes, .end = bytes + n, .err = err};
    decode_all(&d, out);
    nf_status status = d.status;
    if (status) status = nf_context(err, "%s: directory", path);
    else if (d.cut) status = nf_fail(err, NF_ERR_FORMAT, "%s: the directory is cut short", path);
    out->parts_cap = out->n_parts;
    out->components_cap = out->n_components;
    out->objects_cap = out->n_objects;
    out->meta_cap = out->n_meta;
    if (!status) status = nf_directory_check(out, path, err);
    if (status) nf_directory_free(out);
    return status;
}

void nf_entry_free(nf_entry *e) {
    free((char *)e->pub.name);
    free((char *)e->pub.metadata);
    free(e->segments);
}

void nf_directory_free(nf_directory *d) {
    for (size_t i = 0; d->objects && i < d->n_objects; i++) nf_entry_free(&d->objects[i]);
    for (size_t i = 0; d->components && i < d->n_components; i++) free(d->components[i]);
    for (size_t i = 0; d->meta && i < d->n_meta; i++) {
        free(d->meta[i].key);
        free(d->meta[i].value);
    }
    free(d->parts);
    free(d->components);
    free(d->objects);
    free(d->meta);
    *d = (nf_directory){0};
}

/* ---- changes -------------------------------------------------------------------------------------------------------------- */

nf_status nf_directory_component(nf_directory *d, const char *name, uint32_t *out, nf_error *err) {
    for (size_t i = 0; i < d->n_components; i++)
        if (!strcmp(d->components[i], name)) {
            *out = (uint32_t)i;
            return NF_OK;
        }
    nf_status status = nf_grow((void **)&d->components, &d->components_cap, d->n_components + 1, sizeof *d->components, err);
    if (status) return status;
    char *copy = nf_strdup(name, err);
    if (!copy) return NF_ERR_MEMORY;
    *out = (uint32_t)d->n_components;
    d->components[d->n_components++] = copy;
    return NF_OK;
}

nf_status nf_directory_set_meta(nf_directory *d, const char *key, const char *value, nf_error *err) {
    if (strlen(key) > NF_MAX_NAME || !nf_directory_text_valid(key, strlen(key)) || strlen(value) > NF_MAX_METADATA_BYTES ||
        !nf_directory_text_valid(value, strlen(value)))
        return nf_fail(err, NF_ERR_ARGUMENT, "metadata '%.100s' is not valid UTF-8 or too long", key);
    char *copy = nf_strdup(value, err);
    if (!copy) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_meta; i++)
        if (!strcmp(d->meta[i].key, key)) {
            free(d->meta[i].value);
            d->meta[i].value = copy;
            return NF_OK;
        }
    nf_status status = nf_grow((void **)&d->meta, &d->meta_cap, d->n_meta + 1, sizeof *d->meta, err);
    char *name = status ? NULL : nf_strdup(key, err);
    if (!name) {
        free(copy);
        return NF_ERR_MEMORY;
    }
    d->meta[d->n_meta++] = (nf_meta_entry){name, copy};
    return NF_OK;
}
