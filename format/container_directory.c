/*
 * The directory: encoding and decoding (docs/container.md, "Directory"). It is a list of items (key, length,
 * payload), some of which are lists of items themselves. Decoding trusts nothing: each length is checked
 * against the bytes that are left, and each count against its limit, before anything is allocated. Meaning is
 * checked in container_check.c.
 */
#include "format/container_internal.h"

#include <stdlib.h>
#include <string.h>

#define REQUIRED 0x80000000u /* a reader that does not know such a key must refuse the directory */

enum directory_key { KEY_SET = 1, KEY_PART, KEY_COMPONENT, KEY_OBJECT, KEY_META, KEY_RETIRED };
enum component_key { COMPONENT_NAME = 1 };
enum object_key {
    OBJECT_NAME = 1,
    OBJECT_COMPONENT,
    OBJECT_TYPE,
    OBJECT_SHAPE,
    OBJECT_BYTES,
    OBJECT_SEGMENTS,
    OBJECT_HASH,
    OBJECT_CHECKS,
    OBJECT_BANK,
    OBJECT_ROWS,
    OBJECT_METADATA
};
enum meta_key { META_KEY = 1, META_VALUE };

#define FLAG_TILED 1u
#define FLAG_COMPRESSED 2u
#define SET_BYTES 24
#define PART_BYTES 24
#define SEGMENT_BYTES 24
#define MATRIX_BYTES 48
#define BANK_BYTES (16 + 3 * MATRIX_BYTES)

/* ---- encoding ---- */

/* Appends; remembers the first failure, so that callers check once. */
typedef struct encoder {
    nf_buf *out;
    nf_error *err;
    nf_status status;
} encoder;

static void e_bytes(encoder *e, const void *bytes, size_t n) {
    if (!e->status) e->status = nf_buf_append(e->out, bytes, n, e->err);
}

static void e_u32(encoder *e, uint64_t value) {
    if (!e->status) e->status = nf_buf_u32(e->out, (uint32_t)value, e->err);
}

static void e_u64(encoder *e, uint64_t value) {
    if (!e->status) e->status = nf_buf_u64(e->out, value, e->err);
}

static void e_u8(encoder *e, unsigned value) {
    if (!e->status) e->status = nf_buf_byte(e->out, (unsigned char)value, e->err);
}

/* Starts an item; e_end fills its length in. */
static size_t e_begin(encoder *e, uint32_t key) {
    e_u32(e, key);
    e_u32(e, 0);
    return e->out->len;
}

static void e_end(encoder *e, size_t start) {
    if (e->status) return;
    size_t n = e->out->len - start;
    for (size_t i = 0; i < 4; i++) e->out->data[start - 4 + i] = (char)(n >> (8 * i));
}

static void e_item(encoder *e, uint32_t key, const void *bytes, size_t n) {
    size_t item = e_begin(e, key);
    e_bytes(e, bytes, n);
    e_end(e, item);
}

static void e_text(encoder *e, uint32_t key, const char *text) {
    e_item(e, key, text, strlen(text));
}

static void e_segment(encoder *e, const nf_segment *s) {
    e_u32(e, s->part);
    e_u32(e, 0);
    e_u64(e, s->offset);
    e_u64(e, s->length);
}

static void encode_bank(encoder *e, const nf_object *o) {
    size_t item = e_begin(e, OBJECT_BANK);
    e_u64(e, o->n_experts);
    e_u64(e, o->expert_stride);
    for (int m = 0; m < 3; m++) {
        const nf_bank_matrix *b = &o->matrix[m];
        e_u8(e, b->format.type);
        e_u8(e, b->format.codebook);
        e_u8(e, b->format.scale);
        e_bytes(e, "\0\0\0\0", 5);
        e_u64(e, b->rows);
        e_u64(e, b->cols);
        e_u64(e, b->offset);
        e_u64(e, b->tile_stride);
        e_u64(e, b->scale_offset);
    }
    e_end(e, item);
}

static void encode_checks(encoder *e, const nf_entry *entry) {
    size_t item = e_begin(e, OBJECT_CHECKS);
    e_u32(e, entry->checks_object);
    e_u32(e, 0);
    e_u64(e, entry->checks_first);
    e_u64(e, entry->checks_count);
    e_end(e, item);
}

static void encode_object(encoder *e, const nf_entry *entry) {
    const nf_object *o = &entry->pub;
    size_t object = e_begin(e, KEY_OBJECT);
    e_text(e, OBJECT_NAME, o->name);
    size_t item = e_begin(e, OBJECT_COMPONENT);
    e_u32(e, entry->component);
    e_end(e, item);
    item = e_begin(e, OBJECT_TYPE);
    e_u8(e, o->kind);
    e_u8(e, o->format.type);
    e_u8(e, o->format.codebook);
    e_u8(e, o->format.scale);
    e_u8(e, (o->tiled ? FLAG_TILED : 0) | (o->compressed ? FLAG_COMPRESSED : 0));
    e_end(e, item);
    item = e_begin(e, OBJECT_SHAPE);
    for (uint32_t i = 0; i < o->n_dims; i++) e_u64(e, o->shape[i]);
    e_end(e, item);
    item = e_begin(e, OBJECT_BYTES);
    e_u64(e, o->bytes);
    e_u64(e, o->raw_bytes);
    e_end(e, item);
    item = e_begin(e, OBJECT_SEGMENTS);
    for (size_t i = 0; i < o->n_segments; i++) e_segment(e, &entry->segments[i]);
    e_end(e, item);
    if (o->kind == NF_OBJECT_BLOB) e_item(e, OBJECT_HASH, &entry->hash, sizeof entry->hash);
    if (entry->checks_object != NF_NO_CHECKS) encode_checks(e, entry);
    if (o->kind == NF_OBJECT_BANK) encode_bank(e, o);
    if (o->kind == NF_OBJECT_ROW_TABLE) {
        item = e_begin(e, OBJECT_ROWS);
        e_u64(e, o->row_stride);
        e_u64(e, o->row_scale_bytes);
        e_end(e, item);
    }
    if (o->metadata) e_text(e, OBJECT_METADATA, o->metadata);
    e_end(e, object);
}

nf_status nf_directory_encode(const nf_directory *d, nf_buf *out, nf_error *err) {
    encoder e = {.out = out, .err = err};
    size_t item = e_begin(&e, KEY_SET);
    e_bytes(&e, d->uuid.bytes, 16);
    e_u64(&e, d->generation);
    e_end(&e, item);
    for (size_t i = 0; i < d->n_parts; i++) {
        item = e_begin(&e, KEY_PART);
        e_bytes(&e, d->parts[i].id.bytes, 16);
        e_u64(&e, d->parts[i].length);
        e_end(&e, item);
    }
    for (size_t i = 0; i < d->n_components; i++) {
        item = e_begin(&e, KEY_COMPONENT);
        e_text(&e, COMPONENT_NAME, d->components[i]);
        e_end(&e, item);
    }
    for (size_t i = 0; i < d->n_objects; i++) encode_object(&e, &d->objects[i]);
    for (size_t i = 0; i < d->n_meta; i++) {
        item = e_begin(&e, KEY_META);
        e_text(&e, META_KEY, d->meta[i].key);
        e_text(&e, META_VALUE, d->meta[i].value);
        e_end(&e, item);
    }
    for (size_t i = 0; i < d->n_retired; i++) {
        item = e_begin(&e, KEY_RETIRED);
        e_segment(&e, &d->retired[i]);
        e_end(&e, item);
    }
    if (!e.status && out->len > NF_MAX_DIRECTORY_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "the directory would have %zu bytes, the limit is %u", out->len,
                       NF_MAX_DIRECTORY_BYTES);
    return e.status;
}

/* ---- decoding ---- */

/* What is left of a list of items, or of a payload. */
typedef struct span {
    const uint8_t *at, *end;
} span;

typedef struct item {
    uint32_t key;
    span payload;
} item;

static size_t left(const span *s) {
    return (size_t)(s->end - s->at);
}

static uint64_t take(span *s, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)s->at[i] << (8 * i);
    s->at += n;
    return value;
}

/* Takes the next item; the list must not be empty. */
static nf_status next_item(span *list, item *out, nf_error *err) {
    if (left(list) < 8) return nf_fail(err, NF_ERR_FORMAT, "cut short inside an item's head");
    out->key = (uint32_t)take(list, 4);
    size_t n = (size_t)take(list, 4);
    if (n > left(list)) return nf_fail(err, NF_ERR_FORMAT, "item %u of %zu bytes is cut short", out->key, n);
    out->payload = (span){list->at, list->at + n};
    list->at += n;
    return NF_OK;
}

static nf_status unknown_item(const item *it, nf_error *err) {
    if (!(it->key & REQUIRED)) return NF_OK;
    return nf_fail(err, NF_ERR_UNSUPPORTED,
                   "item %u must be understood and is unknown: a newer NInfer is needed",
                   it->key & ~REQUIRED);
}

static nf_status expect_bytes(const item *it, size_t n, nf_error *err) {
    if (left(&it->payload) == n) return NF_OK;
    return nf_fail(err, NF_ERR_FORMAT, "item %u has %zu bytes, %zu are expected", it->key, left(&it->payload),
                   n);
}

/* A key may appear once in a list. */
static nf_status once(uint32_t *seen, uint32_t key, nf_error *err) {
    if (key >= 32 || !(*seen & 1u << key)) {
        if (key < 32) *seen |= 1u << key;
        return NF_OK;
    }
    return nf_fail(err, NF_ERR_FORMAT, "item %u appears twice", key);
}

static nf_status decode_text(const item *it, size_t limit, const char *what, char **out, nf_error *err) {
    const char *text = (const char *)it->payload.at;
    size_t n = left(&it->payload);
    if (n > limit)
        return nf_fail(err, NF_ERR_FORMAT, "%s of %zu bytes is longer than the limit of %zu", what, n, limit);
    if (memchr(text, 0, n) || !nf_directory_text_valid(text, n))
        return nf_fail(err, NF_ERR_FORMAT, "%s is not UTF-8 text", what);
    *out = nf_strndup(text, n, err);
    return *out ? NF_OK : NF_ERR_MEMORY;
}

static nf_segment take_segment(span *s) {
    nf_segment out = {.part = (uint32_t)take(s, 4)};
    take(s, 4);
    out.offset = take(s, 8);
    out.length = take(s, 8);
    return out;
}

static nf_status decode_segments(item *it, nf_entry *e, nf_error *err) {
    size_t bytes = left(&it->payload), n = bytes / SEGMENT_BYTES;
    if (bytes % SEGMENT_BYTES || n > NF_MAX_PARTS)
        return nf_fail(err, NF_ERR_FORMAT, "impossible list of segments (%zu bytes)", bytes);
    if (!n) return NF_OK;
    e->segments = nf_calloc(n, sizeof *e->segments, "segments", err);
    if (!e->segments) return NF_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) e->segments[i] = take_segment(&it->payload);
    e->pub.segments = e->segments;
    e->pub.n_segments = n;
    return NF_OK;
}

static nf_status decode_shape(item *it, nf_object *o, nf_error *err) {
    size_t bytes = left(&it->payload);
    if (bytes % 8 || bytes / 8 > NF_MAX_DIMS)
        return nf_fail(err, NF_ERR_FORMAT, "impossible shape (%zu bytes)", bytes);
    o->n_dims = (uint32_t)(bytes / 8);
    for (uint32_t i = 0; i < o->n_dims; i++) o->shape[i] = take(&it->payload, 8);
    return NF_OK;
}

static nf_status decode_type(item *it, nf_object *o, nf_error *err) {
    nf_status status = expect_bytes(it, 5, err);
    if (status) return status;
    unsigned kind = (unsigned)take(&it->payload, 1), type = (unsigned)take(&it->payload, 1);
    unsigned codebook = (unsigned)take(&it->payload, 1), scale = (unsigned)take(&it->payload, 1);
    unsigned flags = (unsigned)take(&it->payload, 1);
    if (kind > NF_OBJECT_BLOB || type >= NF_TYPE_COUNT || codebook >= NF_CODEBOOK_COUNT ||
        scale >= NF_SCALE_COUNT || (flags & ~(FLAG_TILED | FLAG_COMPRESSED)))
        return nf_fail(err, NF_ERR_UNSUPPORTED,
                       "kind %u, type %u, codebook %u, scale kind %u or flags %u are unknown: the file is "
                       "damaged or needs "
                       "a newer NInfer",
                       kind, type, codebook, scale, flags);
    o->kind = (nf_object_kind)kind;
    o->format = (nf_format){(nf_type)type, (nf_codebook)codebook, (nf_scale)scale};
    o->tiled = (flags & FLAG_TILED) != 0;
    o->compressed = (flags & FLAG_COMPRESSED) != 0;
    return NF_OK;
}

static nf_status decode_bank(item *it, nf_object *o, nf_error *err) {
    nf_status status = expect_bytes(it, BANK_BYTES, err);
    if (status) return status;
    o->n_experts = take(&it->payload, 8);
    o->expert_stride = take(&it->payload, 8);
    for (int m = 0; m < 3; m++) {
        nf_bank_matrix *b = &o->matrix[m];
        unsigned type = (unsigned)take(&it->payload, 1), codebook = (unsigned)take(&it->payload, 1);
        unsigned scale = (unsigned)take(&it->payload, 1);
        if (type >= NF_TYPE_COUNT || codebook >= NF_CODEBOOK_COUNT || scale >= NF_SCALE_COUNT)
            return nf_fail(
                err, NF_ERR_UNSUPPORTED,
                "matrix %d has unknown type %u, codebook %u or scale kind %u: a newer NInfer is needed", m,
                type, codebook, scale);
        b->format = (nf_format){(nf_type)type, (nf_codebook)codebook, (nf_scale)scale};
        take(&it->payload, 5);
        b->rows = take(&it->payload, 8);
        b->cols = take(&it->payload, 8);
        b->offset = take(&it->payload, 8);
        b->tile_stride = take(&it->payload, 8);
        b->scale_offset = take(&it->payload, 8);
    }
    return NF_OK;
}

/* The numbers of an object: items of fixed size. */
static nf_status decode_numbers(item *it, nf_entry *e, nf_error *err) {
    static const uint8_t size_of[] = {[OBJECT_COMPONENT] = 4,
                                      [OBJECT_BYTES] = 16,
                                      [OBJECT_HASH] = 16,
                                      [OBJECT_CHECKS] = 24,
                                      [OBJECT_ROWS] = 16};
    nf_status status = expect_bytes(it, size_of[it->key], err);
    if (status) return status;
    span *p = &it->payload;
    switch (it->key) {
    case OBJECT_COMPONENT:
        e->component = (uint32_t)take(p, 4);
        break;
    case OBJECT_BYTES:
        e->pub.bytes = take(p, 8);
        e->pub.raw_bytes = take(p, 8);
        break;
    case OBJECT_HASH:
        memcpy(&e->hash, p->at, 16);
        break;
    case OBJECT_CHECKS:
        e->checks_object = (uint32_t)take(p, 4);
        take(p, 4);
        e->checks_first = take(p, 8);
        e->checks_count = take(p, 8);
        break;
    default:
        e->pub.row_stride = take(p, 8);
        e->pub.row_scale_bytes = take(p, 8);
        break;
    }
    return NF_OK;
}

static nf_status decode_object_item(item *it, nf_entry *e, nf_error *err) {
    switch (it->key) {
    case OBJECT_NAME:
        return decode_text(it, NF_MAX_NAME, "an object name", (char **)&e->pub.name, err);
    case OBJECT_METADATA:
        return decode_text(it, NF_MAX_TEXT_BYTES, "object metadata", (char **)&e->pub.metadata, err);
    case OBJECT_TYPE:
        return decode_type(it, &e->pub, err);
    case OBJECT_SHAPE:
        return decode_shape(it, &e->pub, err);
    case OBJECT_SEGMENTS:
        return decode_segments(it, e, err);
    case OBJECT_BANK:
        return decode_bank(it, &e->pub, err);
    case OBJECT_COMPONENT:
    case OBJECT_BYTES:
    case OBJECT_HASH:
    case OBJECT_CHECKS:
    case OBJECT_ROWS:
        return decode_numbers(it, e, err);
    default:
        return unknown_item(it, err);
    }
}

/* The item that only objects of this kind have. */
static uint32_t special_item(nf_object_kind kind) {
    switch (kind) {
    case NF_OBJECT_BLOB:
        return 1u << OBJECT_HASH;
    case NF_OBJECT_BANK:
        return 1u << OBJECT_BANK;
    case NF_OBJECT_ROW_TABLE:
        return 1u << OBJECT_ROWS;
    case NF_OBJECT_TENSOR:
        break;
    }
    return 0;
}

static nf_status decode_object(span list, nf_entry *e, nf_error *err) {
    uint32_t seen = 0;
    e->checks_object = NF_NO_CHECKS;
    while (left(&list)) {
        item it;
        nf_status status = next_item(&list, &it, err);
        if (!status) status = once(&seen, it.key, err);
        if (!status) status = decode_object_item(&it, e, err);
        if (status) return e->pub.name ? nf_context(err, "object '%s'", e->pub.name) : status;
    }
    const uint32_t always =
        1u << OBJECT_NAME | 1u << OBJECT_COMPONENT | 1u << OBJECT_TYPE | 1u << OBJECT_BYTES;
    const uint32_t special = 1u << OBJECT_HASH | 1u << OBJECT_BANK | 1u << OBJECT_ROWS;
    if ((seen & always) != always || (seen & special) != special_item(e->pub.kind))
        return nf_fail(err, NF_ERR_FORMAT, "object '%s' lacks an item, or has one that is not for its kind",
                       e->pub.name ? e->pub.name : "?");
    if ((seen & 1u << OBJECT_CHECKS) && e->checks_object == NF_NO_CHECKS)
        return nf_fail(err, NF_ERR_FORMAT, "object '%s' has an impossible checksum table", e->pub.name);
    return NF_OK;
}

/* A list of up to two texts with keys 1 and 2, all of which must be there. */
static nf_status decode_texts(span list, int n, const size_t *limit, const char *what, char **out[],
                              nf_error *err) {
    uint32_t seen = 0;
    while (left(&list)) {
        item it;
        nf_status status = next_item(&list, &it, err);
        if (!status) status = once(&seen, it.key, err);
        if (!status)
            status = it.key >= 1 && it.key <= (uint32_t)n
                         ? decode_text(&it, limit[it.key - 1], what, out[it.key - 1], err)
                         : unknown_item(&it, err);
        if (status) return status;
    }
    for (int i = 0; i < n; i++)
        if (!*out[i]) return nf_fail(err, NF_ERR_FORMAT, "%s lacks item %d", what, i + 1);
    return NF_OK;
}

/* Makes room for one more element of a list with a limit. */
static nf_status room(void **items, size_t *cap, size_t n, size_t limit, size_t size, const char *what,
                      nf_error *err) {
    if (n >= limit) return nf_fail(err, NF_ERR_FORMAT, "more than %zu %s", limit, what);
    return nf_grow(items, cap, n + 1, size, err);
}

static nf_status decode_part(item *it, nf_directory *d, nf_error *err) {
    nf_status status = expect_bytes(it, PART_BYTES, err);
    if (!status)
        status =
            room((void **)&d->parts, &d->parts_cap, d->n_parts, NF_MAX_PARTS, sizeof *d->parts, "parts", err);
    if (status) return status;
    nf_part_entry *p = &d->parts[d->n_parts++];
    memcpy(p->id.bytes, it->payload.at, 16);
    it->payload.at += 16;
    p->length = take(&it->payload, 8);
    return NF_OK;
}

static nf_status decode_component(item *it, nf_directory *d, nf_error *err) {
    nf_status status = room((void **)&d->components, &d->components_cap, d->n_components, NF_MAX_COMPONENTS,
                            sizeof *d->components, "components", err);
    if (status) return status;
    char **name = &d->components[d->n_components++];
    *name = NULL;
    return decode_texts(it->payload, 1, (const size_t[]){NF_MAX_NAME}, "a component", (char **[]){name}, err);
}

static nf_status decode_meta(item *it, nf_directory *d, nf_error *err) {
    nf_status status =
        room((void **)&d->meta, &d->meta_cap, d->n_meta, NF_MAX_META, sizeof *d->meta, "metadata keys", err);
    if (status) return status;
    nf_meta_entry *m = &d->meta[d->n_meta++];
    *m = (nf_meta_entry){0};
    return decode_texts(it->payload, 2, (const size_t[]){NF_MAX_NAME, NF_MAX_TEXT_BYTES}, "metadata",
                        (char **[]){&m->key, &m->value}, err);
}

static nf_status decode_directory_item(item *it, nf_directory *d, nf_error *err) {
    nf_status status;
    switch (it->key) {
    case KEY_SET:
        if ((status = expect_bytes(it, SET_BYTES, err))) return status;
        memcpy(d->uuid.bytes, it->payload.at, 16);
        it->payload.at += 16;
        d->generation = take(&it->payload, 8);
        return NF_OK;
    case KEY_PART:
        return decode_part(it, d, err);
    case KEY_COMPONENT:
        return decode_component(it, d, err);
    case KEY_OBJECT:
        status = room((void **)&d->objects, &d->objects_cap, d->n_objects, NF_MAX_OBJECTS, sizeof *d->objects,
                      "objects", err);
        if (status) return status;
        /* Counted before it is decoded: nf_directory_free then frees what a bad record left. */
        d->objects[d->n_objects] = (nf_entry){0};
        return decode_object(it->payload, &d->objects[d->n_objects++], err);
    case KEY_META:
        return decode_meta(it, d, err);
    case KEY_RETIRED:
        status = expect_bytes(it, SEGMENT_BYTES, err);
        if (!status)
            status = room((void **)&d->retired, &d->retired_cap, d->n_retired, NF_MAX_OBJECTS,
                          sizeof *d->retired, "retired segments", err);
        if (!status) d->retired[d->n_retired++] = take_segment(&it->payload);
        return status;
    default:
        return unknown_item(it, err);
    }
}

static nf_status decode_all(span list, nf_directory *d, nf_error *err) {
    uint32_t seen = 0;
    while (left(&list)) {
        item it;
        nf_status status = next_item(&list, &it, err);
        if (!status && it.key == KEY_SET) status = once(&seen, it.key, err);
        if (!status) status = decode_directory_item(&it, d, err);
        if (status) return status;
    }
    if (!seen || !d->n_parts) return nf_fail(err, NF_ERR_FORMAT, "the set or its parts are missing");
    for (size_t i = 0; i < d->n_objects; i++) {
        nf_entry *e = &d->objects[i];
        if (e->component >= d->n_components)
            return nf_fail(err, NF_ERR_FORMAT, "object '%s' names component %u of %zu", e->pub.name,
                           e->component, d->n_components);
        e->pub.component = d->components[e->component];
    }
    return NF_OK;
}

nf_status nf_directory_decode(const uint8_t *bytes, size_t n, const char *path, nf_directory *out,
                              nf_error *err) {
    nf_error local;
    if (!err) err = &local;
    *out = (nf_directory){0};
    nf_status status = decode_all((span){bytes, bytes + n}, out, err);
    if (status) status = nf_context(err, "%s: directory", path);
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
    for (size_t i = 0; i < d->n_objects; i++) nf_entry_free(&d->objects[i]);
    for (size_t i = 0; i < d->n_components; i++) free(d->components[i]);
    for (size_t i = 0; i < d->n_meta; i++) {
        free(d->meta[i].key);
        free(d->meta[i].value);
    }
    free(d->parts);
    free(d->components);
    free(d->objects);
    free(d->meta);
    free(d->retired);
    *d = (nf_directory){0};
}

/* ---- changes ---- */

nf_status nf_directory_component(nf_directory *d, const char *name, uint32_t *out, nf_error *err) {
    size_t length = name ? strlen(name) : 0;
    if (!length || length > NF_MAX_NAME || !nf_directory_text_valid(name, length))
        return nf_fail(err, NF_ERR_ARGUMENT, "a component name is empty, too long or not UTF-8");
    for (size_t i = 0; i < d->n_components; i++)
        if (!strcmp(d->components[i], name)) {
            *out = (uint32_t)i;
            return NF_OK;
        }
    if (d->n_components >= NF_MAX_COMPONENTS)
        return nf_fail(err, NF_ERR_LIMIT, "more than %d components", NF_MAX_COMPONENTS);
    nf_status status =
        nf_grow((void **)&d->components, &d->components_cap, d->n_components + 1, sizeof *d->components, err);
    if (status) return status;
    char *copy = nf_strdup(name, err);
    if (!copy) return NF_ERR_MEMORY;
    *out = (uint32_t)d->n_components;
    d->components[d->n_components++] = copy;
    return NF_OK;
}

nf_status nf_directory_set_meta(nf_directory *d, const char *key, const char *value, nf_error *err) {
    size_t key_bytes = strlen(key), value_bytes = strlen(value);
    if (!key_bytes || key_bytes > NF_MAX_NAME || value_bytes > NF_MAX_TEXT_BYTES ||
        !nf_directory_text_valid(key, key_bytes) || !nf_directory_text_valid(value, value_bytes))
        return nf_fail(err, NF_ERR_ARGUMENT, "metadata '%.100s' is empty, not UTF-8, or longer than %u bytes",
                       key, NF_MAX_TEXT_BYTES);
    char *copy = nf_strdup(value, err);
    if (!copy) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_meta; i++)
        if (!strcmp(d->meta[i].key, key)) {
            free(d->meta[i].value);
            d->meta[i].value = copy;
            return NF_OK;
        }
    nf_status status = d->n_meta < NF_MAX_META
                           ? nf_grow((void **)&d->meta, &d->meta_cap, d->n_meta + 1, sizeof *d->meta, err)
                           : nf_fail(err, NF_ERR_LIMIT, "more than %d metadata keys", NF_MAX_META);
    char *name = status ? NULL : nf_strdup(key, err);
    if (!name) {
        free(copy);
        return status ? status : NF_ERR_MEMORY;
    }
    d->meta[d->n_meta++] = (nf_meta_entry){name, copy};
    return NF_OK;
}
