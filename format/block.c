/*
 * Blocks of 8 rows x 32 columns: packing and unpacking, dequantisation. The layout is that of
 * docs/arithmetic.md; nothing here chooses a value.
 */
#include "format/block_internal.h"

#include "format/numeric.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "stored elements are little-endian and copied as they are");

/* Byte of (row, column mod 4) in the run of 32 bytes that holds columns 4 run .. 4 run + 3 of the eight rows.
 */
static size_t in_run(size_t run, size_t row, size_t column) {
    return 32 * run + 4 * row + column % 4;
}

static void put_nibbles(const uint8_t *code, size_t row, uint8_t *codes) {
    for (size_t c = 0; c < NF_GROUP / 2; c++)
        codes[in_run(c / 4, row, c)] = (uint8_t)((code[c] & 15) | code[c + 16] << 4);
}

static void get_nibbles(const uint8_t *codes, size_t row, uint8_t *code) {
    for (size_t c = 0; c < NF_GROUP / 2; c++) {
        const uint8_t byte = codes[in_run(c / 4, row, c)];
        code[c] = byte & 15;
        code[c + 16] = byte >> 4;
    }
}

/* Byte and bit of the high bits of a column: one bit each (s5) or two (s6). */
static size_t plane_byte(size_t bits, size_t row, size_t column) {
    return (bits == 2 && column >= 16 ? 32 : 0) + 4 * row + column % 4;
}
static size_t plane_bit(size_t bits, size_t column) {
    return bits == 2 ? 2 * (column % 16 / 4) : column / 4;
}

static void put_planes(const uint8_t *code, size_t bits, size_t row, uint8_t *planes) {
    for (size_t c = 0; c < NF_GROUP; c++) {
        const unsigned high = code[c] >> 4 & ((1u << bits) - 1);
        uint8_t *byte = &planes[plane_byte(bits, row, c)];
        *byte = (uint8_t)(*byte | high << plane_bit(bits, c));
    }
}

static void get_planes(const uint8_t *planes, size_t bits, size_t row, uint8_t *code) {
    for (size_t c = 0; c < NF_GROUP; c++) {
        const unsigned byte = planes[plane_byte(bits, row, c)];
        const unsigned high = (byte >> plane_bit(bits, c)) & ((1u << bits) - 1);
        code[c] = (uint8_t)(code[c] | high << 4);
    }
}

void nf_block_put(nf_format format, const nf_coded_group *g, size_t row, uint8_t *block) {
    const nf_layout l = nf_layout_get(format);
    uint8_t *offsets = block + l.scales, *codes = offsets + l.offsets;
    if (format.scale == NF_SCALE_F16) {
        memcpy(block + 2 * row, &g->scale[0], 2);
    } else {
        block[row] = (uint8_t)g->scale[0];
        if (format.scale == NF_SCALE_E4M3) block[NF_TILE_ROWS + row] = (uint8_t)g->scale[1];
    }
    if (format.type == NF_TYPE_Z4) offsets[row] = (uint8_t)g->offset;
    if (format.type == NF_TYPE_A4) memcpy(offsets + 2 * row, &g->offset, 2);
    if (format.type == NF_TYPE_I8) {
        for (size_t c = 0; c < NF_GROUP; c++) codes[in_run(c / 4, row, c)] = g->code[c];
        return;
    }
    put_nibbles(g->code, row, codes);
    if (l.planes) put_planes(g->code, l.planes / 32, row, codes + l.codes);
}

void nf_block_get(nf_format format, const uint8_t *block, size_t row, nf_coded_group *g) {
    const nf_layout l = nf_layout_get(format);
    const uint8_t *offsets = block + l.scales, *codes = offsets + l.offsets;
    *g = (nf_coded_group){0};
    if (format.scale == NF_SCALE_F16) {
        memcpy(&g->scale[0], block + 2 * row, 2);
    } else {
        g->scale[0] = block[row];
        if (format.scale == NF_SCALE_E4M3) g->scale[1] = block[NF_TILE_ROWS + row];
    }
    if (format.type == NF_TYPE_Z4) g->offset = offsets[row];
    if (format.type == NF_TYPE_A4) memcpy(&g->offset, offsets + 2 * row, 2);
    if (format.type == NF_TYPE_I8) {
        for (size_t c = 0; c < NF_GROUP; c++) g->code[c] = codes[in_run(c / 4, row, c)];
        return;
    }
    get_nibbles(codes, row, g->code);
    if (l.planes) get_planes(codes + l.codes, l.planes / 32, row, g->code);
}

float nf_coded_scale(nf_format format, uint16_t bits) {
    float scale;
    if (format.scale == NF_SCALE_F16)
        scale = nf_f16_to_f32(bits);
    else if (format.scale == NF_SCALE_E4M3)
        scale = nf_e4m3_to_f32((uint8_t)bits);
    else
        scale = nf_f32_from_bits(bits ? (uint32_t)bits << 23 : 0x00400000u);
    return format.codebook == NF_CODEBOOK_E2M1 ? scale * 0.5f : scale;
}

/* ---- back to floats ---- */

/* The integer that a code stands for; z4's zero point is taken off. */
static int32_t integer_of(nf_format format, const nf_coded_group *g, size_t c) {
    const uint8_t code = g->code[c];
    switch (format.type) {
    case NF_TYPE_C4:
        return nf_codebook_values(format.codebook)[code];
    case NF_TYPE_Z4:
        return code - (int32_t)g->offset;
    case NF_TYPE_S5:
        return (code ^ 16) - 16;
    case NF_TYPE_S6:
        return (code ^ 32) - 32;
    case NF_TYPE_I8:
        return (int8_t)code;
    default:
        return code;
    }
}

static void integer_group(nf_format format, const uint8_t *block, size_t row, const float *table,
                          float *out) {
    nf_coded_group g;
    nf_block_get(format, block, row, &g);
    const float scale[2] = {nf_coded_scale(format, g.scale[0]), nf_coded_scale(format, g.scale[1])};
    const bool two = format.scale == NF_SCALE_E4M3;
    const float offset = format.type == NF_TYPE_A4 ? nf_f16_to_f32(g.offset) : 0.0f;
    for (size_t c = 0; c < NF_GROUP; c++) {
        float v = scale[two && c >= 16] * (float)integer_of(format, &g, c);
        if (two) v *= table[0];
        if (format.type == NF_TYPE_A4) v += offset;
        out[c] = v;
    }
}

static void float_group(nf_type type, const uint8_t *block, size_t row, float block_scale, float *out) {
    for (size_t c = 0; c < NF_GROUP; c++) {
        const size_t at = nf_float_at(row, c);
        uint16_t h;
        switch (type) {
        case NF_TYPE_F16:
            memcpy(&h, block + 2 * at, sizeof h);
            out[c] = nf_f16_to_f32(h);
            break;
        case NF_TYPE_BF16:
            memcpy(&h, block + 2 * at, sizeof h);
            out[c] = nf_bf16_to_f32(h);
            break;
        case NF_TYPE_F8:
            out[c] = nf_e4m3_to_f32(block[at]) * block_scale;
            break;
        default:
            memcpy(&out[c], block + 4 * at, sizeof out[c]);
            break;
        }
    }
}

void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols, const float *table,
                       float *out) {
    const bool valid =
        nf_format_valid(format) && row < NF_TILE_ROWS && (!nf_format_has_table(format) || table);
    const size_t block_bytes = nf_layout_get(format).block;
    for (size_t c = 0; c < cols; c += NF_GROUP) {
        float values[NF_GROUP];
        const size_t n = cols - c < NF_GROUP ? cols - c : NF_GROUP;
        const uint8_t *block = tile + c / NF_GROUP * block_bytes;
        if (!valid) /* a bug of the caller: make it visible instead of reading somewhere else */
            for (size_t i = 0; i < n; i++) values[i] = NAN;
        else if (nf_type_get(format.type)->integer_dot)
            integer_group(format, block, row, table, values);
        else
            float_group(format.type, block, row, format.type == NF_TYPE_F8 ? table[c / NF_F8_BLOCK] : 1.0f,
                        values);
        memcpy(out + c, values, n * sizeof *out);
    }
}

void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols, const float *table,
                        float *rows, size_t stride) {
    for (size_t r = 0; r < n_rows; r++) nf_dequantise_row(format, tile, r, cols, table, rows + r * stride);
}
