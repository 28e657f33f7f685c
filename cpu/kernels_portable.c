/*
 * Portable kernels: plain C that follows docs/arithmetic.md line by line. The oracle of every faster level;
 * nothing here is clever. Float kernels come from float_kernels.h in their plain form.
 */
#include "cpu/kernels_internal.h"

#include "cpu/float_kernels.h"

static bool quantise_row(const float *x, size_t kp, int8_t *q, float *scale, int32_t *sum) {
    for (size_t g = 0; g < kp / NF_GROUP; g++, x += NF_GROUP, q += NF_GROUP) {
        float absmax = 0.0f;
        for (size_t i = 0; i < NF_GROUP; i++) {
            float a = fabsf(x[i]);
            if (!(a <= 0x1.fffffep127f)) return false;
            absmax = a > absmax ? a : absmax;
        }
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

/* Element i of row r in a block of an integer-dot type. */
static int32_t int_element(nf_format format, const int8_t *codebook, const uint8_t *payload, size_t r,
                           size_t i) {
    if (format.type == NF_TYPE_I8) return ((const int8_t *)payload)[r * NF_GROUP + i];
    uint8_t byte = payload[r * 16 + i % 16];
    return codebook[i < 16 ? byte & 15 : byte >> 4];
}

static void int_tile_row(const nf_weights *w, const uint8_t *block, const int8_t *codebook, size_t groups,
                         size_t r, const int8_t *q, const float *scale, float *out) {
    const nf_type_traits *traits = nf_type_get(w->format.type);
    float acc[32] = {0};
    for (size_t g = 0; g < groups; g++, block += traits->block_bytes) {
        int32_t dot = 0;
        for (size_t i = 0; i < NF_GROUP; i++)
            dot += int_element(w->format, codebook, block + traits->scale_bytes, r, i) * q[g * NF_GROUP + i];
        uint16_t half;
        memcpy(&half, block + 2 * r, sizeof half);
        float s = nf_f16_to_f32(half) * scale[g];
        acc[g % 32] = fmaf(s, (float)dot, acc[g % 32]);
    }
    for (int s = 16; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] += acc[i + s];
    *out = acc[0];
}

static void tile(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index, size_t n,
                 float *out) {
    if (!nf_type_get(w->format.type)->integer_dot) {
        k_float_tile(w, t, in, index, n, out);
        return;
    }
    const size_t groups = in->kp / NF_GROUP;
    const int8_t *codebook = nf_codebook_values(w->format.codebook);
    for (size_t j = 0; j < n; j++) {
        size_t row = index ? index[j] : j;
        for (size_t r = 0; r < NF_TILE_ROWS; r++)
            int_tile_row(w, w->tiles + t * w->tile_stride, codebook, groups, r, in->q + row * in->kp,
                         in->scale + row * groups, out + 8 * j + r);
    }
}

const nf_kernels nf_kernels_portable = {
    .name = "portable",
    .quantise_row = quantise_row,
    .tile = tile,
    NF_FLOAT_KERNELS,
};
