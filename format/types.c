/*
 * Storage types: traits, geometry and the reference conversions of docs/arithmetic.md. Deterministic: every
 * sum has one order, and the compiler may not change it (-ffp-contract=off, no fast-math).
 */
#include "format/types.h"

#include "format/numeric.h"

#include <string.h>

static const nf_type_traits traits_of[NF_TYPE_COUNT] = {
    [NF_TYPE_F32] = {"f32", 32, 0, 128, 1024, false, false},
    [NF_TYPE_F16] = {"f16", 16, 0, 64, 512, false, false},
    [NF_TYPE_BF16] = {"bf16", 16, 0, 64, 512, false, false},
    [NF_TYPE_F8] = {"f8", 8, 0, 32, 256, false, true},
    [NF_TYPE_I8] = {"i8", 8, 16, 32, 272, true, false},
    [NF_TYPE_C4] = {"c4", 4, 16, 16, 144, true, false},
    [NF_TYPE_U8] = {"u8", 8, 0, 32, 256, false, false},
};

static const int8_t codebook_linear[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const int8_t codebook_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

const nf_type_traits *nf_type_get(nf_type type) {
    return (unsigned)type < NF_TYPE_COUNT ? &traits_of[type] : NULL;
}

bool nf_type_by_name(const char *name, nf_type *out) {
    for (int t = 0; t < NF_TYPE_COUNT; t++)
        if (!strcmp(traits_of[t].name, name)) {
            *out = (nf_type)t;
            return true;
        }
    return false;
}

const int8_t *nf_codebook_values(nf_codebook codebook) {
    return codebook == NF_CODEBOOK_LINEAR ? codebook_linear : codebook == NF_CODEBOOK_NL ? codebook_nl : NULL;
}

const char *nf_codebook_name(nf_codebook codebook) {
    return codebook == NF_CODEBOOK_LINEAR ? "linear" : codebook == NF_CODEBOOK_NL ? "nl" : "none";
}

/* ---- geometry ---- */

static uint64_t divide_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

uint64_t nf_matrix_tile_bytes(nf_type type, uint64_t rows, uint64_t cols) {
    const nf_type_traits *t = nf_type_get(type);
    uint64_t bytes;
    if (!t || __builtin_mul_overflow(divide_up(rows, NF_TILE_ROWS), divide_up(cols, NF_GROUP), &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)t->block_bytes, &bytes))
        return 0;
    return bytes;
}

uint64_t nf_matrix_scale_bytes(nf_type type, uint64_t rows, uint64_t cols) {
    const nf_type_traits *t = nf_type_get(type);
    uint64_t bytes;
    if (!t || !t->has_block_scales ||
        __builtin_mul_overflow(divide_up(rows, NF_F8_BLOCK), divide_up(cols, NF_F8_BLOCK), &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)sizeof(float), &bytes))
        return 0;
    return bytes;
}

uint64_t nf_matrix_scale_offset(nf_type type, uint64_t rows, uint64_t cols) {
    uint64_t tiles = nf_matrix_tile_bytes(type, rows, cols);
    return tiles > UINT64_MAX - 63 ? 0 : (tiles + 63) / 64 * 64;
}

uint64_t nf_matrix_bytes(nf_type type, uint64_t rows, uint64_t cols) {
    uint64_t tiles = nf_matrix_tile_bytes(type, rows, cols), scales = nf_matrix_scale_bytes(type, rows, cols),
             bytes;
    if (!tiles || !scales) return tiles;
    return __builtin_add_overflow(nf_matrix_scale_offset(type, rows, cols), scales, &bytes) ? 0 : bytes;
}

/* Four floats: gcc and clang turn this into the vector registers that every 64-bit target has. */
typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t mask4 __attribute__((vector_size(16)));

static inline vec4 select4(mask4 take_a, vec4 a, vec4 b) {
    return (vec4)((take_a & (mask4)a) | (~take_a & (mask4)b));
}

static inline vec4 load4(const float *x) {
    vec4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Round half to even for |x| < 2^22, without a library call: the addition drops the fraction in the current
 * (default) rounding mode. */
static inline vec4 round_even(vec4 x) {
    return (x + 12582912.0f) - 12582912.0f;
}

/* The whole number in low..high nearest to x. */
static inline vec4 nearest(vec4 x, float low, float high) {
    const vec4 l = {low, low, low, low}, h = {high, high, high, high};
    x = select4(x < l, l, x);
    return round_even(select4(x > h, h, x));
}

/* ---- quantisation ---- */

/* One group: 32 codes (int8 values or codebook indices) and an f16 scale. */
typedef struct group_code {
    uint16_t scale;
    uint8_t code[NF_GROUP];
} group_code;

static float tree8(float lane[8]) {
    for (int s = 4; s; s /= 2)
        for (int i = 0; i < s; i++) lane[i] += lane[i + s];
    return lane[0];
}

static float reciprocal(float scale) {
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

/* Squared error of a group with a scale, in eight sums (i mod 8) and the tree 4, 2, 1: the order is fixed. */
static float error_linear(const float *x, float scale) {
    const float inverse = reciprocal(scale);
    vec4 sum[2] = {{0}};
    for (int i = 0; i < NF_GROUP; i += 4) {
        vec4 v = load4(x + i), e = v - nearest(v * inverse, -8.0f, 7.0f) * scale;
        sum[i / 4 % 2] += e * e;
    }
    float lane[8];
    memcpy(lane, sum, sizeof lane);
    return tree8(lane);
}

/* Codes of a group: nearest(x / scale) + offset. */
static void encode_whole(const float *x, float inverse, float low, float high, float offset, uint8_t *code) {
    for (int i = 0; i < NF_GROUP; i += 4) {
        mask4 q = __builtin_convertvector(nearest(load4(x + i) * inverse, low, high) + offset, mask4);
        for (int k = 0; k < 4; k++) code[i + k] = (uint8_t)q[k];
    }
}

/* Index of the value nearest to v (in units of the scale): the number of midpoints below it. */
static inline int nearest_nl(float v) {
    int index = 0;
    for (int c = 0; c < 15; c++) index += v * 2.0f > (float)(codebook_nl[c] + codebook_nl[c + 1]);
    return index;
}

static float error_nl(const float *x, float scale) {
    float inverse = reciprocal(scale), lane[8] = {0};
    for (int i = 0; i < NF_GROUP; i++) {
        float e = x[i] - (float)codebook_nl[nearest_nl(x[i] * inverse)] * scale;
        lane[i % 8] += e * e;
    }
    return tree8(lane);
}

/* Of the scales extreme / divisor[i], rounded to f16, the one of least squared error; the first among equals.
 */
static uint16_t search_scale(const float *x, float extreme, const float *divisor, int n,
                             float (*error)(const float *x, float scale)) {
    float best_error = INFINITY;
    uint16_t best = 0;
    for (int i = 0; i < n; i++) {
        uint16_t scale = nf_f32_to_f16(extreme / divisor[i]);
        float e = error(x, nf_f16_to_f32(scale));
        if (e < best_error) {
            best_error = e;
            best = scale;
        }
    }
    return best;
}

/* Largest magnitude of a group, as bits: at least 0x7f800000 when a value is not finite. */
static int32_t magnitude_bits(const float *x) {
    mask4 m = {0};
    for (int i = 0; i < NF_GROUP; i += 4) {
        mask4 bits = (mask4)load4(x + i) & 0x7fffffff;
        m = ((bits > m) & bits) | (~(bits > m) & m);
    }
    int32_t most = 0;
    for (int k = 0; k < 4; k++) most = m[k] > most ? m[k] : most;
    return most;
}

static nf_status encode_group(nf_format format, const float *x, int32_t magnitude, group_code *out,
                              nf_error *err) {
    static const float linear[] = {-8.0f, 8.0f, -7.5f, 7.5f, -8.4f, 7.0f};
    static const float nl[] = {-127.0f, 113.0f, -113.0f, 127.0f, -119.0f, -134.0f};
    *out = (group_code){0};
    if (!magnitude) return NF_OK; /* zero is stored as zero bytes */
    float extreme = nf_f32_from_bits((uint32_t)magnitude);
    if (format.type == NF_TYPE_I8) {
        out->scale = nf_f32_to_f16(extreme / 127.0f);
    } else {
        int at = 0; /* the first value of that magnitude gives the sign */
        while (fabsf(x[at]) != extreme) at++;
        out->scale = format.codebook == NF_CODEBOOK_LINEAR ? search_scale(x, x[at], linear, 6, error_linear)
                                                           : search_scale(x, x[at], nl, 6, error_nl);
    }
    const float inverse = reciprocal(nf_f16_to_f32(out->scale));
    /* No candidate fitted: all were infinite. */
    if (!(out->scale & 0x7fffu) && extreme > 1.0f) out->scale = 0x7c00u;
    if (!(out->scale & 0x7fffu))
        out->scale = 0; /* so small that its f16 scale is 0: zero too */
    else if (format.type == NF_TYPE_I8)
        encode_whole(x, inverse, -127.0f, 127.0f, 0.0f, out->code);
    else if (format.codebook == NF_CODEBOOK_LINEAR)
        encode_whole(x, inverse, -8.0f, 7.0f, 8.0f, out->code);
    else
        for (int i = 0; i < NF_GROUP; i++) out->code[i] = (uint8_t)nearest_nl(x[i] * inverse);
    if ((out->scale & 0x7c00u) == 0x7c00u)
        return nf_fail(err, NF_ERR_NUMERIC, "a value of %g is too large for an f16 scale", (double)extreme);
    return NF_OK;
}

static void put_group(nf_format format, const group_code *code, size_t r, uint8_t *block) {
    memcpy(block + 2 * r, &code->scale, 2);
    uint8_t *row = block + 16 + r * traits_of[format.type].row_bytes;
    if (format.type == NF_TYPE_I8) {
        memcpy(row, code->code, NF_GROUP);
        return;
    }
    for (int i = 0; i < 16; i++) row[i] = (uint8_t)(code->code[i] | code->code[16 + i] << 4);
}

static void put_floats(nf_type type, const float *x, float scale, uint8_t *row) {
    for (size_t i = 0; i < NF_GROUP; i++) {
        uint16_t h;
        switch (type) {
        case NF_TYPE_F32:
            memcpy(row + 4 * i, &x[i], 4);
            break;
        case NF_TYPE_F16:
            h = nf_f32_to_f16(x[i]), memcpy(row + 2 * i, &h, 2);
            break;
        case NF_TYPE_BF16:
            h = nf_f32_to_bf16(x[i]), memcpy(row + 2 * i, &h, 2);
            break;
        default:
            row[i] = nf_f32_to_e4m3(x[i] / scale);
            break;
        }
    }
}

static nf_status not_finite(const float *x, size_t row, size_t col, nf_error *err) {
    size_t i = 0;
    while (isfinite(x[i])) i++;
    return nf_fail(err, NF_ERR_NUMERIC, "the value at row %zu, column %zu is not a finite number", row,
                   col + i);
}

nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *block_scales, uint8_t *out, nf_error *err) {
    const nf_type_traits *t = nf_type_get(format.type);
    if (!t || format.type == NF_TYPE_U8 ||
        (format.type == NF_TYPE_C4) != (format.codebook != NF_CODEBOOK_NONE))
        return nf_fail(err, NF_ERR_ARGUMENT, "a matrix cannot be stored in type %d with codebook %d",
                       (int)format.type, (int)format.codebook);
    memset(out, 0, (size_t)nf_matrix_tile_bytes(format.type, NF_TILE_ROWS, cols));
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < cols; c += NF_GROUP) {
            const float *x = rows + r * stride + c;
            float padded[NF_GROUP] = {0};
            size_t n = cols - c < NF_GROUP ? cols - c : NF_GROUP;
            nf_status status;
            memcpy(padded, x, n * sizeof *x);
            const int32_t magnitude = magnitude_bits(padded);
            if (magnitude >= 0x7f800000) return not_finite(padded, r, c, err);
            uint8_t *block = out + c / NF_GROUP * t->block_bytes;
            if (!t->integer_dot) {
                put_floats(format.type, padded, block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f,
                           block + r * t->row_bytes);
                continue;
            }
            group_code code;
            if ((status = encode_group(format, padded, magnitude, &code, err)))
                return nf_context(err, "row %zu, column %zu", r, c);
            put_group(format, &code, r, block);
        }
    }
    return NF_OK;
}

/* ---- dequantisation ---- */

static float element(nf_format format, const uint8_t *block, size_t r, size_t i, float block_scale) {
    const nf_type_traits *t = &traits_of[format.type];
    const uint8_t *row = block + t->scale_bytes + r * t->row_bytes;
    uint16_t h;
    float f;
    switch (format.type) {
    case NF_TYPE_F32:
        memcpy(&f, row + 4 * i, 4);
        return f;
    case NF_TYPE_F16:
        memcpy(&h, row + 2 * i, 2);
        return nf_f16_to_f32(h);
    case NF_TYPE_BF16:
        memcpy(&h, row + 2 * i, 2);
        return nf_bf16_to_f32(h);
    case NF_TYPE_F8:
        return nf_e4m3_to_f32(row[i]) * block_scale;
    case NF_TYPE_I8:
        memcpy(&h, block + 2 * r, 2);
        return nf_f16_to_f32(h) * (float)(int8_t)row[i];
    case NF_TYPE_C4:
        memcpy(&h, block + 2 * r, 2);
        return nf_f16_to_f32(h) *
               (float)nf_codebook_values(format.codebook)[i < 16 ? row[i] & 15 : row[i - 16] >> 4];
    default:
        return (float)row[i];
    }
}

void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols,
                       const float *block_scales, float *out) {
    for (size_t c = 0; c < cols; c++)
        out[c] = element(format, tile + c / NF_GROUP * traits_of[format.type].block_bytes, row, c % NF_GROUP,
                         block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f);
}

void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols,
                        const float *block_scales, float *rows, size_t stride) {
    for (size_t r = 0; r < n_rows; r++)
        nf_dequantise_row(format, tile, r, cols, block_scales, rows + r * stride);
}

void nf_f8_block_scales(const float *w, size_t stride, size_t rows, size_t cols, float *out) {
    const size_t across = (cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK;
    for (size_t r0 = 0; r0 < rows; r0 += NF_F8_BLOCK)
        for (size_t c0 = 0; c0 < cols; c0 += NF_F8_BLOCK) {
            float absmax = 0.0f;
            for (size_t r = r0; r < rows && r < r0 + NF_F8_BLOCK; r++)
                for (size_t c = c0; c < cols && c < c0 + NF_F8_BLOCK; c++)
                    absmax = fabsf(w[r * stride + c]) > absmax ? fabsf(w[r * stride + c]) : absmax;
            float scale = 1.0f;
            if (absmax > 0.0f && isfinite(absmax)) {
                int e;
                frexpf(absmax / 448.0f, &e); /* absmax/448 = m 2^e, m in [0.5, 1) */
                scale = ldexpf(1.0f, e);
                if (absmax <= 448.0f * (scale / 2)) scale /= 2;
                if (scale < 0x1p-126f) scale = 0x1p-126f;
            }
            out[r0 / NF_F8_BLOCK * across + c0 / NF_F8_BLOCK] = scale;
        }
}
