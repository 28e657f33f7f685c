/*
 * Storage types: traits, geometry and the reference conversions of docs/arithmetic.md. Deterministic: every sum has one
 * order, and the compiler may not change it (-ffp-contract=off, no fast-math).
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
static const int8_t codebook_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

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

/* ---- geometry ----------------------------------------------------------------------------------------------------------- */

static uint64_t divide_up(uint64_t n, uint64_t by) { return n / by + (n % by != 0); }

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
    uint64_t tiles = nf_matrix_tile_bytes(type, rows, cols), scales = nf_matrix_scale_bytes(type, rows, cols), bytes;
    if (!tiles || !scales) return tiles;
    return __builtin_add_overflow(nf_matrix_scale_offset(type, rows, cols), scales, &bytes) ? 0 : bytes;
}

/* ---- quantisation ------------------------------------------------------------------------------------------------------- */

/* One group: codes q[32] (int8 values or codebook indices) and an f16 scale. */
typedef struct group_code {
    uint16_t scale;
    uint8_t code[NF_GROUP];
} group_code;

/* Squared error of a group with a scale, and its codes. */
typedef float (*encode_fn)(const float *x, float scale, uint8_t *code);

static float encode_i8(const float *x, float scale, uint8_t *code) {
    float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < NF_GROUP; i++) {
        float q = rintf(x[i] * inverse);
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        code[i] = (uint8_t)(int8_t)q;
    }
    return 0.0f;
}

static float encode_linear(const float *x, float scale, uint8_t *code) {
    float inverse = scale != 0.0f ? 1.0f / scale : 0.0f, lane[8] = {0};
    for (int i = 0; i < NF_GROUP; i++) {
        float q = rintf(x[i] * inverse);
        q = q > 7.0f ? 7.0f : q < -8.0f ? -8.0f : q;
        float e = x[i] - q * scale;
        lane[i % 8] += e * e;
        code[i] = (uint8_t)(int8_t)(q + 8.0f);
    }
    for (int s = 4; s; s /= 2)
        for (int i = 0; i < s; i++) lane[i] += lane[i + s];
    return lane[0];
}

static float encode_nl(const float *x, float scale, uint8_t *code) {
    float inverse = scale != 0.0f ? 1.0f / scale : 0.0f, sum = 0.0f;
    for (int i = 0; i < NF_GROUP; i++) {
        float v = x[i] * inverse;
        /* Number of midpoints below v: a comparison for each of the 15 gaps, which compilers turn into vector code. */
        int index = 0;
        for (int c = 0; c < 15; c++) index += v * 2.0f > (float)(codebook_nl[c] + codebook_nl[c + 1]);
        float e = x[i] - (float)codebook_nl[index] * scale;
        sum += e * e;
        code[i] = (uint8_t)index;
    }
    return sum;
}

/* Tries the scales extreme / divisor[i]; keeps the one of least squared error, the first among equals. */
static void search_scale(const float *x, float extreme, const float *divisor, int n, encode_fn encode, group_code *best) {
    float best_error = INFINITY;
    group_code trial;
    for (int i = 0; i < n; i++) {
        trial.scale = nf_f32_to_f16(extreme / divisor[i]);
        float error = encode(x, nf_f16_to_f32(trial.scale), trial.code);
        if (error < best_error) {
            best_error = error;
            *best = trial;
        }
    }
}

static nf_status encode_group(nf_format format, const float *x, group_code *out, nf_error *err) {
    static const float linear[] = {-8.0f, 8.0f, -7.5f, 7.5f, -8.4f, 7.0f};
    static const float nl[] = {-127.0f, 113.0f, -113.0f, 127.0f, -119.0f, -134.0f};
    float extreme = 0.0f;
    for (int i = 0; i < NF_GROUP; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (extreme == 0.0f) {
        out->scale = 0;
        memset(out->code, format.type == NF_TYPE_C4 ? (format.codebook == NF_CODEBOOK_LINEAR ? 8 : 0) : 0, NF_GROUP);
        return NF_OK;
    }
    if (format.type == NF_TYPE_I8) {
        out->scale = nf_f32_to_f16(fabsf(extreme) / 127.0f);
        encode_i8(x, nf_f16_to_f32(out->scale), out->code);
    } else if (format.codebook == NF_CODEBOOK_LINEAR) {
        search_scale(x, extreme, linear, 6, encode_linear, out);
    } else {
        search_scale(x, extreme, nl, 6, encode_nl, out);
    }
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
        case NF_TYPE_F32: memcpy(row + 4 * i, &x[i], 4); break;
        case NF_TYPE_F16: h = nf_f32_to_f16(x[i]), memcpy(row + 2 * i, &h, 2); break;
        case NF_TYPE_BF16: h = nf_f32_to_bf16(x[i]), memcpy(row + 2 * i, &h, 2); break;
        default: row[i] = nf_f32_to_e4m3(x[i] / scale); break;
        }
    }
}

static nf_status check_finite(const float *x, size_t n, size_t row, size_t col, nf_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return nf_fail(err, NF_ERR_NUMERIC, "the value at row %zu, column %zu is not a finite number", row, col + i);
    return NF_OK;
}

nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *block_scales, uint8_t *out, nf_error *err) {
    const nf_type_traits *t = nf_type_get(format.type);
    if (!t || format.type == NF_TYPE_U8 || (format.type == NF_TYPE_C4) != (format.codebook != NF_CODEBOOK_NONE))
        return nf_fail(err, NF_ERR_ARGUMENT, "a matrix cannot be stored in type %d with codebook %d", (int)format.type,
                       (int)format.codebook);
    memset(out, 0, (size_t)nf_matrix_tile_bytes(format.type, NF_TILE_ROWS, cols));
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < cols; c += NF_GROUP) {
            const float *x = rows + r * stride + c;
            float padded[NF_GROUP] = {0};
            size_t n = cols - c < NF_GROUP ? cols - c : NF_GROUP;
            nf_status status = check_finite(x, n, r, c, err);
            if (status) return status;
            memcpy(padded, x, n * sizeof *x);
            uint8_t *block = out + c / NF_GROUP * t->block_bytes;
            if (!t->integer_dot) {
                put_floats(format.type, padded, block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f, block + r * t->row_bytes);
                continue;
            }
            group_code code;
            if ((status = encode_group(format, padded, &code, err))) return nf_context(err, "row %zu, column %zu", r, c);
            if (code.scale == 0 && format.type == NF_TYPE_C4) memset(code.code, 0, NF_GROUP); /* zero is stored as zero bytes */
            put_group(format, &code, r, block);
        }
    }
    return NF_OK;
}

/* ---- dequantisation ----------------------------------------------------------------------------------------------------- */

static float element(nf_format format, const uint8_t *block, size_t r, size_t i, float block_scale) {
    const nf_type_traits *t = &traits_of[format.type];
    const uint8_t *row = block + t->scale_bytes + r * t->row_bytes;
    uint16_t h;
    float f;
    switch (format.type) {
    case NF_TYPE_F32: memcpy(&f, row + 4 * i, 4); return f;
    case NF_TYPE_F16: memcpy(&h, row + 2 * i, 2); return nf_f16_to_f32(h);
    case NF_TYPE_BF16: memcpy(&h, row + 2 * i, 2); return nf_bf16_to_f32(h);
    case NF_TYPE_F8: return nf_e4m3_to_f32(row[i]) * block_scale;
    case NF_TYPE_I8: memcpy(&h, block + 2 * r, 2); return nf_f16_to_f32(h) * (float)(int8_t)row[i];
    case NF_TYPE_C4:
        memcpy(&h, block + 2 * r, 2);
        return nf_f16_to_f32(h) * (float)nf_codebook_values(format.codebook)[i < 16 ? row[i] & 15 : row[i - 16] >> 4];
    default: return (float)row[i];
    }
}

void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols, const float *block_scales, float *out) {
    for (size_t c = 0; c < cols; c++)
        out[c] = element(format, tile + c / NF_GROUP * traits_of[format.type].block_bytes, row, c % NF_GROUP,
                         block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f);
}

void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols, const float *block_scales, float *rows,
                        size_t stride) {
    for (size_t r = 0; r < n_rows; r++) nf_dequantise_row(format, tile, r, cols, block_scales, rows + r * stride);
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
