/* What a directory may say: geometry of objects, placement of segments, uniqueness; and the layout of banks and row tables. */
#include "format/container_internal.h"

#include <stdlib.h>
#include <string.h>

bool nf_directory_text_valid(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        unsigned char c = s[i];
        size_t more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 9;
        if (more == 9 || more >= n - i) return false;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xC0) != 0x80) return false;
        if ((c == 0xE0 && s[i + 1] < 0xA0) || (c == 0xED && s[i + 1] > 0x9F) || (c == 0xF0 && s[i + 1] < 0x90) ||
            (c == 0xF4 && s[i + 1] > 0x8F))
            return false;
        i += more + 1;
    }
    return true;
}

/* ---- layouts -------------------------------------------------------------------------------------------------------------- */

static bool add(uint64_t *a, uint64_t b) { return !__builtin_add_overflow(*a, b, a); }

static bool align_up(uint64_t *a, uint64_t to) {
    if (*a > UINT64_MAX - (to - 1)) return false;
    *a = (*a + to - 1) / to * to;
    return true;
}

nf_status nf_bank_layout(nf_object *bank, nf_error *err) {
    nf_bank_matrix *gate = &bank->matrix[0], *up = &bank->matrix[1], *down = &bank->matrix[2];
    if (gate->rows != up->rows || gate->cols != up->cols || gate->format.type != up->format.type ||
        gate->format.codebook != up->format.codebook || down->rows != gate->cols || down->cols != gate->rows)
        return nf_fail(err, NF_ERR_ARGUMENT, "bank '%s': gate and up must have one shape and type, down the transposed shape", bank->name);
    uint64_t pair = nf_matrix_tile_bytes(gate->format.type, gate->rows, gate->cols);
    uint64_t last = nf_matrix_tile_bytes(down->format.type, down->rows, down->cols);
    uint64_t tile = nf_matrix_tile_bytes(gate->format.type, NF_TILE_ROWS, gate->cols), end = 0;
    if (!pair || !last || !tile || !bank->n_experts)
        return nf_fail(err, NF_ERR_LIMIT, "bank '%s': impossible type, shape or number of experts", bank->name);
    gate->offset = 0;
    up->offset = tile;
    gate->tile_stride = up->tile_stride = 2 * tile;
    bool ok = add(&end, pair) && add(&end, pair);
    down->offset = end;
    down->tile_stride = nf_matrix_tile_bytes(down->format.type, NF_TILE_ROWS, down->cols);
    ok = ok && add(&end, last);
    for (int m = 0; m < 3 && ok; m++) {
        nf_bank_matrix *b = &bank->matrix[m];
        uint64_t scales = nf_matrix_scale_bytes(b->format.type, b->rows, b->cols);
        b->scale_offset = 0;
        if (!scales) continue;
        ok = align_up(&end, 64);
        b->scale_offset = end;
        ok = ok && add(&end, scales);
    }
    ok = ok && align_up(&end, NF_BLOCK);
    bank->expert_stride = end;
    if (!ok || __builtin_mul_overflow(end, bank->n_experts, &bank->bytes) || bank->bytes > (1ull << 56))
        return nf_fail(err, NF_ERR_LIMIT, "bank '%s' is too large", bank->name);
    bank->raw_bytes = bank->bytes;
    bank->format = gate->format;
    bank->n_dims = 3;
    bank->shape[0] = bank->n_experts;
    bank->shape[1] = gate->rows;
    bank->shape[2] = gate->cols;
    return NF_OK;
}

/* Bytes of a row table: rows of `stride`, as many in each 4096 bytes as fit whole; longer rows lie one behind the other. */
static uint64_t row_table_bytes(const nf_object *o) {
    uint64_t bytes;
    if (o->row_stride >= NF_BLOCK) return __builtin_mul_overflow(o->shape[0], o->row_stride, &bytes) ? 0 : bytes;
    uint64_t per_block = NF_BLOCK / o->row_stride, blocks = o->shape[0] / per_block + (o->shape[0] % per_block != 0);
    return __builtin_mul_overflow(blocks, (uint64_t)NF_BLOCK, &bytes) ? 0 : bytes;
}

uint64_t nf_row_table_offset(const nf_object *table, uint64_t row) {
    if (table->row_stride >= NF_BLOCK) return row * table->row_stride;
    uint64_t per_block = NF_BLOCK / table->row_stride;
    return row / per_block * NF_BLOCK + row % per_block * table->row_stride;
}

nf_status nf_row_table_layout(nf_object *table, nf_error *err) {
    if (table->n_dims != 2 || !table->shape[0] || !table->row_stride || table->row_stride % 64 || table->row_scale_bytes >= table->row_stride)
        return nf_fail(err, NF_ERR_ARGUMENT, "row table '%s': needs two dimensions and a row stride that is a multiple of 64", table->name);
    table->bytes = table->raw_bytes = row_table_bytes(table);
    if (!table->bytes) return nf_fail(err, NF_ERR_LIMIT, "row table '%s' is too large", table->name);
    return NF_OK;
}

uint64_t nf_checks_needed(const nf_object *o) {
    if (o->kind == NF_OBJECT_BLOB) return 0; /* the directory holds a blob's checksum */
    if (o->kind == NF_OBJECT_BANK) return o->n_experts;
    uint64_t n = 0;
    for (size_t i = 0; i < o->n_segments; i++) n += o->segments[i].length / NF_CHUNK_BYTES + (o->segments[i].length % NF_CHUNK_BYTES != 0);
    return n;
}

void nf_locate(const nf_object *o, uint64_t offset, uint32_t *part, uint64_t *at, uint64_t *left) {
    size_t i = 0;
    while (i + 1 < o->n_segments && offset >= o->segments[i].length) offset -= o->segments[i++].length;
    *part = o->segments[i].part;
    *at = o->segments[i].offset + offset;
    *left = o->segments[i].length - offset;
}

/* ---- checks --------------------------------------------------------------------------------------------------------------- */

static bool plain_bytes(const nf_object *o, uint64_t *bytes) {
    *bytes = nf_type_get(o->format.type)->bits / 8;
    for (uint32_t i = 0; i < o->n_dims; i++)
        if (__builtin_mul_overflow(*bytes, o->shape[i], bytes)) return false;
    return true;
}

static bool tensor_ok(const nf_object *o) {
    uint64_t bytes;
    if (o->compressed || o->bytes != o->raw_bytes) return false;
    if (o->tiled) return o->n_dims == 2 && o->format.type != NF_TYPE_U8 && o->bytes == nf_matrix_bytes(o->format.type, o->shape[0], o->shape[1]);
    bool plain = o->format.type == NF_TYPE_F32 || o->format.type == NF_TYPE_F16 || o->format.type == NF_TYPE_BF16 || o->format.type == NF_TYPE_U8;
    return plain && plain_bytes(o, &bytes) && o->bytes == bytes;
}

static bool bank_ok(const nf_object *o) {
    nf_object copy = *o;
    for (int m = 0; m < 3; m++) {
        const nf_type_traits *t = nf_type_get(o->matrix[m].format.type);
        if (!t || o->matrix[m].format.type == NF_TYPE_U8) return false;
        if ((o->matrix[m].format.type == NF_TYPE_C4) != (nf_codebook_values(o->matrix[m].format.codebook) != NULL)) return false;
    }
    if (nf_bank_layout(&copy, NULL) || o->compressed || o->n_dims != 3) return false;
    return copy.bytes == o->bytes && copy.raw_bytes == o->raw_bytes && copy.expert_stride == o->expert_stride &&
           !memcmp(copy.shape, o->shape, sizeof copy.shape[0] * 3) && !memcmp(copy.matrix, o->matrix, sizeof copy.matrix);
}

static bool object_ok(const nf_object *o) {
    const nf_type_traits *t = nf_type_get(o->format.type);
    if (!t || o->bytes > (1ull << 56) || o->raw_bytes > (1ull << 56)) return false;
    if ((o->format.type == NF_TYPE_C4) != (nf_codebook_values(o->format.codebook) != NULL)) return false;
    switch (o->kind) {
    case NF_OBJECT_TENSOR: return tensor_ok(o);
    case NF_OBJECT_BANK: return bank_ok(o);
    case NF_OBJECT_ROW_TABLE: {
        nf_object copy = *o;
        return !nf_row_table_layout(&copy, NULL) && copy.bytes == o->bytes && o->bytes == o->raw_bytes && !o->compressed;
    }
    case NF_OBJECT_BLOB: return o->raw_bytes <= NF_MAX_BLOB_BYTES && o->bytes <= NF_MAX_BLOB_BYTES && (o->compressed || o->bytes == o->raw_bytes);
    }
    return false;
}

static bool segments_ok(const nf_directory *d, const nf_object *o) {
    uint64_t sum = 0, unit = o->kind == NF_OBJECT_BANK ? o->expert_stride : NF_BLOCK;
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        if (s->part >= d->n_parts || s->offset < (s->part ? NF_PARTN_DATA : NF_PART0_DATA) || s->offset % NF_BLOCK || !s->length) return false;
        if (s->offset > d->parts[s->part].length || s->length > d->parts[s->part].length - s->offset) return false;
        if (i + 1 < o->n_segments && s->length % unit) return false;
        if (i && s->part <= o->segments[i - 1].part) return false;
        sum += s->length; /* each is below a part's length, 65535 of them: no overflow for lengths below 2^47 */
    }
    if (o->n_segments && o->kind == NF_OBJECT_BANK && o->segments[0].offset % NF_BANK_ALIGN) return false;
    return sum == o->bytes;
}

typedef struct placed {
    const nf_segment *segment;
    const nf_object *object;
} placed;

static int compare_placed(const void *a, const void *b) {
    const nf_segment *x = ((const placed *)a)->segment, *y = ((const placed *)b)->segment;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static nf_status check_overlaps(const nf_directory *d, const char *path, nf_error *err) {
    size_t n = 0, at = 0;
    for (size_t i = 0; i < d->n_objects; i++) n += d->objects[i].pub.n_segments;
    placed *all = nf_alloc(n, sizeof *all, "segments", err);
    if (!all) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_objects; i++)
        for (size_t s = 0; s < d->objects[i].pub.n_segments; s++) all[at++] = (placed){&d->objects[i].pub.segments[s], &d->objects[i].pub};
    if (n) qsort(all, n, sizeof *all, compare_placed);
    nf_status status = NF_OK;
    for (size_t i = 1; i < n && !status; i++) {
        const nf_segment *x = all[i - 1].segment, *y = all[i].segment;
        if (x->part == y->part && y->offset - x->offset < x->length)
            status = nf_fail(err, NF_ERR_FORMAT, "%s: objects '%s' and '%s' overlap", path, all[i - 1].object->name, all[i].object->name);
    }
    free(all);
    return status;
}

static int compare_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static nf_status check_unique(const nf_directory *d, const char *path, nf_error *err) {
    const char **names = nf_alloc(d->n_objects, sizeof *names, "object names", err);
    if (!names) return NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_objects; i++) names[i] = d->objects[i].pub.name;
    if (d->n_objects) qsort(names, d->n_objects, sizeof *names, compare_text);
    nf_status status = NF_OK;
    for (size_t i = 0; i < d->n_objects && !status; i++)
        if (!*names[i] || (i && !strcmp(names[i], names[i - 1])))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: object name '%s' is empty or used twice", path, names[i]);
    free(names);
    return status;
}

static bool checks_ok(const nf_directory *d, const nf_entry *e) {
    uint64_t needed = nf_checks_needed(&e->pub), end;
    if (e->pub.kind == NF_OBJECT_BLOB) return e->checks_object == NF_NO_CHECKS && e->checks_count == 0;
    if (e->checks_count != needed || e->checks_object >= d->n_objects) return false;
    const nf_object *table = &d->objects[e->checks_object].pub;
    return table->kind == NF_OBJECT_BLOB && !__builtin_add_overflow(e->checks_first, needed, &end) && end <= table->raw_bytes / 16;
}

nf_status nf_directory_check(const nf_directory *d, const char *path, nf_error *err) {
    for (size_t i = 0; i < d->n_parts; i++)
        if (d->parts[i].length < (i ? NF_PARTN_DATA : NF_PART0_DATA) || d->parts[i].length > (1ull << 46))
            return nf_fail(err, NF_ERR_FORMAT, "%s: the length of part %zu is impossible", path, i);
    for (size_t i = 0; i < d->n_objects; i++) {
        const nf_entry *e = &d->objects[i];
        const char *what = !object_ok(&e->pub)       ? "type, shape and bytes do not agree"
                           : !segments_ok(d, &e->pub) ? "segments are misplaced"
                           : !checks_ok(d, e)         ? "checksum table is missing or too short"
                                                      : NULL;
        if (what) return nf_fail(err, NF_ERR_FORMAT, "%s: object '%s': %s", path, e->pub.name, what);
    }
    nf_status status = check_unique(d, path, err);
    return status ? status : check_overlaps(d, path, err);
}
