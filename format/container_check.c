/* What a directory may say: geometry of objects, placement of segments, uniqueness of names. */
#include "format/container_internal.h"

#include <stdlib.h>
#include <string.h>

bool nf_directory_text_valid(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        unsigned char c = s[i];
        size_t more = c < 0x80                 ? 0
                      : c >= 0xC2 && c < 0xE0  ? 1
                      : c >= 0xE0 && c < 0xF0  ? 2
                      : c >= 0xF0 && c <= 0xF4 ? 3
                                               : SIZE_MAX;
        if (more >= n - i) return false;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xC0) != 0x80) return false;
        /* Overlong forms, surrogates, and what lies above U+10FFFF. */
        if ((c == 0xE0 && s[i + 1] < 0xA0) || (c == 0xED && s[i + 1] > 0x9F) ||
            (c == 0xF0 && s[i + 1] < 0x90) || (c == 0xF4 && s[i + 1] > 0x8F))
            return false;
        i += more + 1;
    }
    return true;
}

/* ---- objects ---- */

static bool format_ok(nf_format f) {
    if (f.type == NF_TYPE_U8) return f.codebook == NF_CODEBOOK_NONE && f.scale == NF_SCALE_F16;
    return nf_format_valid(f);
}

static bool plain_bytes(const nf_object *o, uint64_t *bytes) {
    *bytes = nf_type_get(o->format.type)->bits / 8;
    for (uint32_t i = 0; i < o->n_dims; i++)
        if (__builtin_mul_overflow(*bytes, o->shape[i], bytes)) return false;
    return true;
}

static bool tensor_ok(const nf_object *o) {
    uint64_t bytes;
    if (o->compressed || o->bytes != o->raw_bytes) return false;
    if (o->tiled)
        return o->n_dims == 2 && o->format.type != NF_TYPE_U8 && o->bytes &&
               o->bytes == nf_matrix_bytes(o->format, o->shape[0], o->shape[1]);
    bool plain = o->format.type == NF_TYPE_F32 || o->format.type == NF_TYPE_F16 ||
                 o->format.type == NF_TYPE_BF16 || o->format.type == NF_TYPE_U8;
    return plain && plain_bytes(o, &bytes) && o->bytes == bytes;
}

static bool matrix_equal(const nf_bank_matrix *a, const nf_bank_matrix *b) {
    return a->offset == b->offset && a->tile_stride == b->tile_stride && a->scale_offset == b->scale_offset;
}

static bool bank_ok(const nf_object *o) {
    nf_object copy = *o;
    for (int m = 0; m < 3; m++)
        if (!format_ok(o->matrix[m].format) || o->matrix[m].format.type == NF_TYPE_U8) return false;
    if (o->compressed || o->n_dims != 3 || nf_bank_layout(&copy, NULL)) return false;
    for (int m = 0; m < 3; m++)
        if (!matrix_equal(&copy.matrix[m], &o->matrix[m])) return false;
    return copy.bytes == o->bytes && copy.raw_bytes == o->raw_bytes &&
           copy.expert_stride == o->expert_stride &&
           !memcmp(copy.shape, o->shape, sizeof copy.shape[0] * 3) && copy.format.type == o->format.type &&
           copy.format.codebook == o->format.codebook;
}

static bool row_table_ok(const nf_object *o) {
    nf_object copy = *o;
    return !o->compressed && !nf_row_table_layout(&copy, NULL) && copy.bytes == o->bytes &&
           o->bytes == o->raw_bytes;
}

static bool blob_ok(const nf_object *o) {
    return o->format.type == NF_TYPE_U8 && o->raw_bytes <= NF_MAX_BLOB_BYTES &&
           o->bytes <= NF_MAX_BLOB_BYTES && o->n_dims == 1 && o->shape[0] == o->raw_bytes &&
           (o->compressed ? o->bytes > 0 : o->bytes == o->raw_bytes);
}

static bool object_ok(const nf_object *o) {
    if (!format_ok(o->format) || o->bytes > (1ull << 56) || (o->tiled && o->kind != NF_OBJECT_TENSOR))
        return false;
    switch (o->kind) {
    case NF_OBJECT_TENSOR:
        return tensor_ok(o);
    case NF_OBJECT_BANK:
        return bank_ok(o);
    case NF_OBJECT_ROW_TABLE:
        return row_table_ok(o);
    case NF_OBJECT_BLOB:
        return blob_ok(o);
    }
    return false;
}

/* ---- segments ---- */

static bool segment_ok(const nf_directory *d, const nf_segment *s) {
    if (s->part >= d->n_parts || s->offset % NF_BLOCK || !s->length) return false;
    uint64_t first = s->part ? NF_PARTN_DATA : NF_PART0_DATA, length = d->parts[s->part].length;
    return s->offset >= first && s->offset <= length && s->length <= length - s->offset;
}

static bool segments_ok(const nf_directory *d, const nf_object *o) {
    /* Each length is below 2^46 and there are at most 4096: no overflow. */
    uint64_t sum = 0, unit = o->kind == NF_OBJECT_BANK ? o->expert_stride : NF_BLOCK;
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        if (!segment_ok(d, s) || (i && s->part <= o->segments[i - 1].part)) return false;
        bool last = i + 1 == o->n_segments;
        if ((!last || o->kind == NF_OBJECT_BANK) && s->length % unit) return false;
        sum += s->length;
    }
    if (o->n_segments && o->kind == NF_OBJECT_BANK && o->segments[0].offset % NF_BANK_ALIGN) return false;
    return sum == o->bytes;
}

static int compare_placed(const void *a, const void *b) {
    const nf_segment *x = &((const nf_placed *)a)->segment, *y = &((const nf_placed *)b)->segment;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

nf_status nf_directory_placed(const nf_directory *d, nf_placed **out, size_t *n, nf_error *err) {
    size_t count = d->n_retired, at = 0;
    for (size_t i = 0; i < d->n_objects; i++) count += d->objects[i].pub.n_segments;
    nf_placed *all = nf_alloc(count, sizeof *all, "segments", err);
    if (!all) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_objects; i++)
        for (size_t s = 0; s < d->objects[i].pub.n_segments; s++)
            all[at++] = (nf_placed){d->objects[i].segments[s], &d->objects[i].pub};
    for (size_t i = 0; i < d->n_retired; i++) all[at++] = (nf_placed){d->retired[i], NULL};
    if (count) qsort(all, count, sizeof *all, compare_placed);
    *out = all;
    *n = count;
    return NF_OK;
}

static const char *placed_name(const nf_placed *p) {
    return p->object ? p->object->name : "(a replaced object)";
}

static nf_status check_overlaps(const nf_directory *d, const char *path, nf_error *err) {
    nf_placed *all;
    size_t n;
    nf_status status = nf_directory_placed(d, &all, &n, err);
    if (status) return status;
    for (size_t i = 1; i < n && !status; i++) {
        const nf_segment *x = &all[i - 1].segment, *y = &all[i].segment;
        if (x->part == y->part && y->offset - x->offset < x->length)
            status = nf_fail(err, NF_ERR_FORMAT, "%s: objects '%s' and '%s' overlap", path,
                             placed_name(&all[i - 1]), placed_name(&all[i]));
    }
    free(all);
    return status;
}

/* ---- names ---- */

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the n names and looks for empty and equal ones. Frees names. */
static nf_status check_unique(const char **names, size_t n, const char *what, const char *path,
                              nf_error *err) {
    nf_status status = NF_OK;
    if (n) qsort(names, n, sizeof *names, compare_text);
    for (size_t i = 0; i < n && !status; i++)
        if (!*names[i] || (i && !strcmp(names[i], names[i - 1])))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: %s '%s' is empty or used twice", path, what, names[i]);
    free(names);
    return status;
}

static nf_status check_names(const nf_directory *d, const char *path, nf_error *err) {
    const char **names = nf_alloc(d->n_objects, sizeof *names, "object names", err);
    if (!names) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_objects; i++) names[i] = d->objects[i].pub.name;
    nf_status status = check_unique(names, d->n_objects, "object name", path, err);
    if (status) return status;
    if (!(names = nf_alloc(d->n_meta, sizeof *names, "metadata keys", err))) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_meta; i++) names[i] = d->meta[i].key;
    status = check_unique(names, d->n_meta, "metadata key", path, err);
    if (status) return status;
    if (!(names = nf_alloc(d->n_components, sizeof *names, "component names", err))) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_components; i++) names[i] = d->components[i];
    return check_unique(names, d->n_components, "component", path, err);
}

/* ---- everything ---- */

static bool checks_ok(const nf_directory *d, const nf_entry *e) {
    uint64_t needed = nf_checks_needed(&e->pub), end;
    if (!needed) return e->checks_object == NF_NO_CHECKS && !e->checks_count;
    if (e->checks_count != needed || e->checks_object >= d->n_objects) return false;
    const nf_object *table = &d->objects[e->checks_object].pub;
    return table->kind == NF_OBJECT_BLOB && !__builtin_add_overflow(e->checks_first, needed, &end) &&
           end <= table->raw_bytes / 16;
}

nf_status nf_directory_check(const nf_directory *d, const char *path, nf_error *err) {
    for (size_t i = 0; i < d->n_parts; i++)
        if (d->parts[i].length < (i ? NF_PARTN_DATA : NF_PART0_DATA) ||
            d->parts[i].length > NF_MAX_PART_LENGTH)
            return nf_fail(err, NF_ERR_FORMAT, "%s: the length of part %zu is impossible", path, i);
    for (size_t i = 0; i < d->n_objects; i++) {
        const nf_entry *e = &d->objects[i];
        const char *what = !object_ok(&e->pub)        ? "type, shape and bytes do not agree"
                           : !segments_ok(d, &e->pub) ? "segments are misplaced"
                           : !checks_ok(d, e)         ? "checksum table is missing or too short"
                                                      : NULL;
        if (what) return nf_fail(err, NF_ERR_FORMAT, "%s: object '%s': %s", path, e->pub.name, what);
    }
    for (size_t i = 0; i < d->n_retired; i++)
        if (!segment_ok(d, &d->retired[i]))
            return nf_fail(err, NF_ERR_FORMAT, "%s: retired segment %zu is misplaced", path, i);
    nf_status status = check_names(d, path, err);
    return status ? status : check_overlaps(d, path, err);
}
