/* Where things lie inside an object: expert blobs, rows of row tables, chunks of checksums, bytes in
 * segments. */
#include "format/container_internal.h"

#include <string.h>

#define MAX_OBJECT_BYTES (1ull << 56)

static bool add(uint64_t *a, uint64_t b) {
    return !__builtin_add_overflow(*a, b, a);
}

static bool align_up(uint64_t *a, uint64_t to) {
    if (*a > UINT64_MAX - (to - 1)) return false;
    *a = (*a + to - 1) / to * to;
    return true;
}

static bool same_form(const nf_bank_matrix *a, const nf_bank_matrix *b) {
    return a->rows == b->rows && a->cols == b->cols && a->format.type == b->format.type &&
           a->format.codebook == b->format.codebook && a->format.scale == b->format.scale;
}

/* Appends the f32 tables of the three matrices at *end, each on a multiple of 64. */
static bool place_scales(nf_object *bank, uint64_t *end) {
    for (int m = 0; m < 3; m++) {
        nf_bank_matrix *b = &bank->matrix[m];
        uint64_t scales = nf_matrix_table_bytes(b->format, b->rows, b->cols);
        b->scale_offset = 0;
        if (!scales) continue;
        if (!align_up(end, 64)) return false;
        b->scale_offset = *end;
        if (!add(end, scales)) return false;
    }
    return true;
}

nf_status nf_bank_layout(nf_object *bank, nf_error *err) {
    nf_bank_matrix *gate = &bank->matrix[0], *up = &bank->matrix[1], *down = &bank->matrix[2];
    if (!same_form(gate, up) || down->rows != gate->cols || down->cols != gate->rows)
        return nf_fail(err, NF_ERR_ARGUMENT,
                       "bank '%s': gate and up must have one shape and type, down the transposed shape",
                       bank->name);
    uint64_t pair = nf_matrix_tile_bytes(gate->format, gate->rows, gate->cols);
    uint64_t last = nf_matrix_tile_bytes(down->format, down->rows, down->cols);
    uint64_t tile = nf_matrix_tile_bytes(gate->format, NF_TILE_ROWS, gate->cols), end = 0;
    if (!pair || !last || !tile || !bank->n_experts || tile > MAX_OBJECT_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "bank '%s': impossible type, shape or number of experts",
                       bank->name);
    gate->offset = 0;
    up->offset = tile;
    gate->tile_stride = up->tile_stride = 2 * tile;
    bool ok = add(&end, pair) && add(&end, pair);
    down->offset = end;
    down->tile_stride = nf_matrix_tile_bytes(down->format, NF_TILE_ROWS, down->cols);
    ok = ok && add(&end, last) && place_scales(bank, &end) && align_up(&end, NF_BLOCK);
    bank->expert_stride = end;
    if (!ok || __builtin_mul_overflow(end, bank->n_experts, &bank->bytes) || bank->bytes > MAX_OBJECT_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "bank '%s' is too large", bank->name);
    bank->raw_bytes = bank->bytes;
    bank->format = gate->format;
    bank->n_dims = 3;
    bank->shape[0] = bank->n_experts;
    bank->shape[1] = gate->rows;
    bank->shape[2] = gate->cols;
    return NF_OK;
}

/* ---- row tables ---- */

/* Rows of `stride`, as many in each 4096 bytes as fit whole; longer rows lie one behind the other. 0 on
 * overflow. */
static uint64_t row_table_bytes(const nf_object *o) {
    uint64_t bytes;
    if (o->row_stride >= NF_BLOCK)
        return __builtin_mul_overflow(o->shape[0], o->row_stride, &bytes) ? 0 : bytes;
    uint64_t per_block = NF_BLOCK / o->row_stride,
             blocks = o->shape[0] / per_block + (o->shape[0] % per_block != 0);
    return __builtin_mul_overflow(blocks, (uint64_t)NF_BLOCK, &bytes) ? 0 : bytes;
}

uint64_t nf_row_table_offset(const nf_object *table, uint64_t row) {
    if (table->row_stride >= NF_BLOCK) return row * table->row_stride;
    uint64_t per_block = NF_BLOCK / table->row_stride;
    return row / per_block * NF_BLOCK + row % per_block * table->row_stride;
}

static uint64_t groups_of(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

/* Rows are stored plainly, not in tiles: 32 columns of i8 are 32 bytes, of c4 (with f16 scales) 16. */
static bool row_format_ok(nf_format f) {
    if (f.type == NF_TYPE_U8) return f.codebook == NF_CODEBOOK_NONE && f.scale == NF_SCALE_F16;
    return nf_format_valid(f) && f.scale == NF_SCALE_F16 &&
           (!nf_type_get(f.type)->integer_dot || f.type == NF_TYPE_I8 || f.type == NF_TYPE_C4);
}

/* Bytes of a row's scales: f16 a group for integer types, f32 per 128 columns for f8. Columns are below 2^60.
 */
static uint64_t row_scales(nf_format f, uint64_t cols) {
    if (f.type == NF_TYPE_F8) return groups_of(cols, NF_F8_BLOCK) * sizeof(float);
    return nf_type_get(f.type)->integer_dot ? groups_of(cols, NF_GROUP) * 2 : 0;
}

/* Bytes of a row's elements. Integer types store whole groups of 32 columns. */
static uint64_t row_elements(nf_format f, uint64_t cols) {
    const uint32_t bits = nf_type_get(f.type)->bits;
    return nf_type_get(f.type)->integer_dot ? groups_of(cols, NF_GROUP) * NF_GROUP / 8 * bits
                                            : cols * (bits / 8);
}

static bool row_fits(const nf_object *o) {
    if (!row_format_ok(o->format) || o->shape[1] >= MAX_OBJECT_BYTES ||
        o->row_scale_bytes < row_scales(o->format, o->shape[1]))
        return false;
    return o->row_scale_bytes <= o->row_stride &&
           row_elements(o->format, o->shape[1]) <= o->row_stride - o->row_scale_bytes;
}

nf_status nf_row_table_layout(nf_object *table, nf_error *err) {
    if (table->n_dims != 2 || !table->shape[0] || !table->shape[1] || !table->row_stride ||
        table->row_stride % 64)
        return nf_fail(err, NF_ERR_ARGUMENT,
                       "row table '%s': needs two dimensions and a row stride that is a multiple of 64",
                       table->name);
    if (!row_fits(table))
        return nf_fail(err, NF_ERR_ARGUMENT,
                       "row table '%s': a row of %llu columns (f32, f16, bf16, f8, u8, i8 or c4 with f16 "
                       "scales) and its scales do not "
                       "fit %llu + %llu bytes",
                       table->name, (unsigned long long)table->shape[1],
                       (unsigned long long)table->row_scale_bytes,
                       (unsigned long long)(table->row_stride - table->row_scale_bytes));
    uint64_t bytes = row_table_bytes(table);
    if (!bytes || bytes > MAX_OBJECT_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "row table '%s' is too large", table->name);
    table->bytes = table->raw_bytes = bytes;
    return NF_OK;
}

/* ---- checksums and segments ---- */

uint64_t nf_checks_needed(const nf_object *o) {
    if (o->kind == NF_OBJECT_BLOB) return 0; /* the directory holds a blob's checksum */
    if (o->kind == NF_OBJECT_BANK) return o->n_experts;
    uint64_t n = 0;
    for (size_t i = 0; i < o->n_segments; i++)
        n += o->segments[i].length / NF_CHUNK_BYTES + (o->segments[i].length % NF_CHUNK_BYTES != 0);
    return n;
}

bool nf_next_range(const nf_object *o, nf_range_cursor *at, nf_check_range *out) {
    if (at->segment >= o->n_segments) return false;
    const nf_segment *s = &o->segments[at->segment];
    uint64_t unit = o->kind == NF_OBJECT_BANK ? o->expert_stride : NF_CHUNK_BYTES,
             left = s->length - at->done;
    uint64_t n = left < unit ? left : unit;
    *out = (nf_check_range){at->index++, s->part, s->offset + at->done, n};
    at->done += n;
    if (at->done == s->length) {
        at->segment++;
        at->done = 0;
    }
    return true;
}

nf_place nf_locate(const nf_object *o, uint64_t offset) {
    size_t i = 0;
    while (i + 1 < o->n_segments && offset >= o->segments[i].length) offset -= o->segments[i++].length;
    return (nf_place){o->segments[i].part, o->segments[i].offset + offset, o->segments[i].length - offset};
}
