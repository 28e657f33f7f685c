/*
 * Portable kernels: plain C that follows docs/arithmetic.md line by line. The oracle of every faster level;
 * nothing here is clever. Float kernels come from float_kernels.h in their plain form.
 */
#include "cpu/kernels_internal.h"

#define NF_ATTENTION_AT_ONCE 1
#include "cpu/attention_kernels.h"
#include "cpu/delta_kernels.h"
#include "cpu/float_kernels.h"
#include "cpu/float_tiles.h"

static bool quantise_row(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum) {
    const size_t groups = kp / NF_GROUP;
    for (size_t i = 0; i < kp; i++)
        if (!isfinite(x[i])) {
            memset(q, 0, kp);
            memset(sum, 0, groups * sizeof *sum);
            return false;
        }
    for (size_t g = 0; g < groups; g++, x += NF_GROUP, q += NF_GROUP) {
        float absmax = 0.0f;
        for (size_t i = 0; i < NF_GROUP; i++) absmax = fabsf(x[i]) > absmax ? fabsf(x[i]) : absmax;
        int32_t total = 0;
        if (absmax < 0x1p-100f) {
            memset(q, 0, NF_GROUP);
            scale[g] = 0.0f;
        } else {
            float inverse = 127.0f / absmax;
            for (size_t i = 0; i < NF_GROUP; i++) {
                q[i] = (int8_t)rintf(x[i] * inverse);
                total += q[i];
            }
            scale[g] = absmax / 127.0f;
        }
        sum[g] = total;
    }
    return true;
}

/* ---- integer-dot tiles: the definition in plain loops ---- */

/* Column c of row r in the codes of a block: docs/arithmetic.md, "Tile layout". */
static int32_t int_element(nf_format format, const uint8_t *codes, size_t r, size_t c) {
    if (format.type == NF_TYPE_I8) return (int8_t)codes[32 * (c / 4) + 4 * r + c % 4];
    const size_t run = c % 16 / 4, at = 4 * r + c % 4;
    const int32_t nibble = c < 16 ? codes[32 * run + at] & 15 : codes[32 * run + at] >> 4;
    const uint8_t *planes = codes + 128;
    switch (format.type) {
    case NF_TYPE_C4:
        return nf_codebook_values(format.codebook)[nibble];
    case NF_TYPE_S5:
        return ((nibble | (planes[at] >> (c < 16 ? run : 4 + run) & 1) << 4) ^ 16) - 16;
    case NF_TYPE_S6:
        return ((nibble | (planes[(c < 16 ? 0 : 32) + at] >> 2 * run & 3) << 4) ^ 32) - 32;
    default: /* z4, a4 */
        return nibble;
    }
}

static float f16_at(const uint8_t *at) {
    uint16_t h;
    memcpy(&h, at, sizeof h);
    return nf_f16_to_f32(h);
}

/* The scale of row r that enters step 3; `half`: of columns 0..15 or 16..31, where there are two. */
static float scale_of(nf_format format, const uint8_t *block, size_t r, int half) {
    float scale;
    if (format.scale == NF_SCALE_F16)
        scale = f16_at(block + 2 * r);
    else if (format.scale == NF_SCALE_E8M0)
        scale = ldexpf(1.0f, block[r] - 127);
    else
        scale = nf_e4m3_to_f32(block[8 * half + (int)r]);
    return format.codebook == NF_CODEBOOK_E2M1 ? scale * 0.5f : scale;
}

/* Adds one group to its lane. */
static float add_group(nf_format format, const nf_layout *l, const uint8_t *block, size_t r, const int8_t *q,
                       float sx, float lane) {
    const uint8_t *offsets = block + l->scales, *codes = offsets + l->offsets;
    int32_t dot[2] = {0, 0}, sum = 0;
    for (size_t c = 0; c < NF_GROUP; c++) {
        dot[c / 16] += int_element(format, codes, r, c) * q[c];
        sum += q[c];
    }
    if (format.scale == NF_SCALE_E4M3) {
        lane = fmaf(scale_of(format, block, r, 0) * sx, (float)dot[0], lane);
        return fmaf(scale_of(format, block, r, 1) * sx, (float)dot[1], lane);
    }
    int32_t whole = dot[0] + dot[1];
    if (format.type == NF_TYPE_Z4) whole -= offsets[r] * sum;
    lane = fmaf(scale_of(format, block, r, 0) * sx, (float)whole, lane);
    return format.type == NF_TYPE_A4 ? fmaf(f16_at(offsets + 2 * r), sx * (float)sum, lane) : lane;
}

static float int_row(const nf_weights *w, const uint8_t *block, size_t groups, size_t r, const int8_t *q,
                     const float *scale) {
    const nf_layout l = nf_layout_get(w->format);
    float acc[32] = {0};
    for (size_t g = 0; g < groups; g++, block += l.block)
        acc[g % 32] = add_group(w->format, &l, block, r, q + g * NF_GROUP, scale[g], acc[g % 32]);
    for (int s = 16; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] += acc[i + s];
    return w->format.scale == NF_SCALE_E4M3 ? acc[0] * w->table[0] : acc[0];
}

static void tiles(const nf_weights *w, size_t first, size_t count, const nf_rows *in, const uint32_t *index,
                  size_t n, float *out) {
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tiles(w, first, count, in, index, n, out);
        return;
    }
    const size_t groups = in->kp / NF_GROUP;
    for (size_t j = 0; j < n; j++) {
        const size_t row = index ? index[j] : j;
        for (size_t i = 0; i < NF_TILE_ROWS * count; i++)
            *out++ = int_row(w, w->tiles + (first + i / NF_TILE_ROWS) * w->tile_stride, groups,
                             i % NF_TILE_ROWS, in->q + row * in->kp, in->scale + row * groups);
    }
}

const nf_kernels nf_kernels_portable = {
    .name = "portable",
    .quantise_row = quantise_row,
    .tiles = tiles,
    NF_FLOAT_KERNELS,
    NF_ATTENTION_KERNELS,
    .delta_rule = k_delta_rule,
};
