/*
 * Storage types: traits, codebooks, geometry. What the bytes mean is in docs/arithmetic.md; blocks are packed
 * in block.c and chosen in quantise.c.
 */
#include "format/types.h"

#include <string.h>

static const nf_type_traits traits_of[NF_TYPE_COUNT] = {
    [NF_TYPE_F32] = {"f32", 32, false},   [NF_TYPE_F16] = {"f16", 16, false},
    [NF_TYPE_BF16] = {"bf16", 16, false}, [NF_TYPE_F8] = {"f8", 8, false},
    [NF_TYPE_I8] = {"i8", 8, true},       [NF_TYPE_C4] = {"c4", 4, true},
    [NF_TYPE_U8] = {"u8", 8, false},      [NF_TYPE_Z4] = {"z4", 4, true},
    [NF_TYPE_A4] = {"a4", 4, true},       [NF_TYPE_S5] = {"s5", 5, true},
    [NF_TYPE_S6] = {"s6", 6, true},
};

static const int8_t codebooks[NF_CODEBOOK_COUNT][16] = {
    [NF_CODEBOOK_LINEAR] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    [NF_CODEBOOK_NL] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [NF_CODEBOOK_E2M1] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

static const char *const codebook_names[NF_CODEBOOK_COUNT] = {"none", "linear", "nl", "e2m1"};
static const char *const scale_names[NF_SCALE_COUNT] = {"f16", "e8m0", "e4m3"};

const nf_type_traits *nf_type_get(nf_type type) {
    return (unsigned)type < NF_TYPE_COUNT ? &traits_of[type] : NULL;
}

bool nf_type_by_name(const char *name, nf_type *out) {
    for (int t = 0; t < NF_TYPE_COUNT; t++) {
        if (strcmp(traits_of[t].name, name) != 0) continue;
        *out = (nf_type)t;
        return true;
    }
    return false;
}

const int8_t *nf_codebook_values(nf_codebook codebook) {
    return codebook > NF_CODEBOOK_NONE && codebook < NF_CODEBOOK_COUNT ? codebooks[codebook] : NULL;
}

const char *nf_codebook_name(nf_codebook codebook) {
    return (unsigned)codebook < NF_CODEBOOK_COUNT ? codebook_names[codebook] : "unknown";
}

bool nf_codebook_by_name(const char *name, nf_codebook *out) {
    for (int i = NF_CODEBOOK_LINEAR; i < NF_CODEBOOK_COUNT; i++) {
        if (strcmp(codebook_names[i], name) != 0) continue;
        *out = (nf_codebook)i;
        return true;
    }
    return false;
}

const char *nf_scale_name(nf_scale scale) {
    return (unsigned)scale < NF_SCALE_COUNT ? scale_names[scale] : "unknown";
}

bool nf_scale_by_name(const char *name, nf_scale *out) {
    for (int i = 0; i < NF_SCALE_COUNT; i++) {
        if (strcmp(scale_names[i], name) != 0) continue;
        *out = (nf_scale)i;
        return true;
    }
    return false;
}

bool nf_format_valid(nf_format format) {
    if (!nf_type_get(format.type) || format.type == NF_TYPE_U8) return false;
    if (format.type == NF_TYPE_C4)
        return nf_codebook_values(format.codebook) && (unsigned)format.scale < NF_SCALE_COUNT;
    return format.codebook == NF_CODEBOOK_NONE && format.scale == NF_SCALE_F16;
}

const char *nf_format_name(nf_format format) {
    static const char *const c4[NF_CODEBOOK_COUNT][NF_SCALE_COUNT] = {
        [NF_CODEBOOK_LINEAR] = {"c4/linear", "c4/linear/e8m0", "c4/linear/e4m3"},
        [NF_CODEBOOK_NL] = {"c4/nl", "c4/nl/e8m0", "c4/nl/e4m3"},
        [NF_CODEBOOK_E2M1] = {"c4/e2m1", "c4/e2m1/e8m0", "c4/e2m1/e4m3"},
    };
    if (format.type == NF_TYPE_U8) return traits_of[NF_TYPE_U8].name;
    if (!nf_format_valid(format)) return "unknown";
    return format.type == NF_TYPE_C4 ? c4[format.codebook][format.scale] : traits_of[format.type].name;
}

/* ---- geometry ---- */

nf_layout nf_layout_get(nf_format format) {
    nf_layout l = {0};
    if (!nf_format_valid(format)) return l;
    const nf_type_traits *t = &traits_of[format.type];
    if (t->integer_dot) l.scales = format.scale == NF_SCALE_E8M0 ? NF_TILE_ROWS : 2 * NF_TILE_ROWS;
    if (format.type == NF_TYPE_Z4) l.offsets = NF_TILE_ROWS;
    if (format.type == NF_TYPE_A4) l.offsets = 2 * NF_TILE_ROWS;
    const uint32_t bits = t->bits == 5 || t->bits == 6 ? 4 : t->bits;
    l.codes = NF_TILE_ROWS * NF_GROUP / 8 * bits;
    l.planes = NF_TILE_ROWS * NF_GROUP / 8 * (t->bits - bits);
    l.block = l.scales + l.offsets + l.codes + l.planes;
    return l;
}

static uint64_t divide_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

uint64_t nf_matrix_tile_bytes(nf_format format, uint64_t rows, uint64_t cols) {
    uint64_t bytes;
    if (__builtin_mul_overflow(divide_up(rows, NF_TILE_ROWS), divide_up(cols, NF_GROUP), &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)nf_layout_get(format).block, &bytes))
        return 0;
    return bytes;
}

bool nf_format_has_table(nf_format format) {
    return format.type == NF_TYPE_F8 || (format.type == NF_TYPE_C4 && format.scale == NF_SCALE_E4M3);
}

uint64_t nf_matrix_table_bytes(nf_format format, uint64_t rows, uint64_t cols) {
    uint64_t bytes;
    if (!nf_format_valid(format) || !nf_format_has_table(format)) return 0;
    if (format.type != NF_TYPE_F8) return sizeof(float);
    if (__builtin_mul_overflow(divide_up(rows, NF_F8_BLOCK), divide_up(cols, NF_F8_BLOCK), &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)sizeof(float), &bytes))
        return 0;
    return bytes;
}

uint64_t nf_matrix_table_offset(nf_format format, uint64_t rows, uint64_t cols) {
    uint64_t tiles = nf_matrix_tile_bytes(format, rows, cols);
    return tiles > UINT64_MAX - 63 ? 0 : (tiles + 63) / 64 * 64;
}

uint64_t nf_matrix_bytes(nf_format format, uint64_t rows, uint64_t cols) {
    uint64_t tiles = nf_matrix_tile_bytes(format, rows, cols),
             table = nf_matrix_table_bytes(format, rows, cols);
    if (!tiles || !table) return tiles;
    uint64_t at = nf_matrix_table_offset(format, rows, cols), bytes;
    return !at || __builtin_add_overflow(at, table, &bytes) ? 0 : bytes;
}

const float *nf_tile_table(nf_format format, const float *table, size_t cols, size_t t) {
    if (!table || format.type != NF_TYPE_F8) return table;
    return table + t * NF_TILE_ROWS / NF_F8_BLOCK * ((cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK);
}
