/*
 * Storage types: traits, geometry and the reference conversions of docs/arithmetic.md. Deterministic: every
 * sum has one order and no operation may be contracted or reassociated (-ffp-contract=off, no fast-math), so
 * the bytes are the same with every compiler and at every level of optimisation. Knows nothing of files or
 * models.
 */
#include "format/types.h"

#include "format/numeric.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "stored elements are little-endian and copied as they are");

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
    for (int t = 0; t < NF_TYPE_COUNT; t++) {
        if (strcmp(traits_of[t].name, name) != 0) continue;
        *out = (nf_type)t;
        return true;
    }
    return false;
}

const int8_t *nf_codebook_values(nf_codebook codebook) {
    switch (codebook) {
    case NF_CODEBOOK_LINEAR:
        return codebook_linear;
    case NF_CODEBOOK_NL:
        return codebook_nl;
    default:
        return NULL;
    }
}

const char *nf_codebook_name(nf_codebook codebook) {
    switch (codebook) {
    case NF_CODEBOOK_LINEAR:
        return "linear";
    case NF_CODEBOOK_NL:
        return "nl";
    default:
        return "none";
    }
}

/* A matrix can be stored so: a type with elements, and a codebook exactly when the type is c4. */
static bool is_matrix_format(nf_format format) {
    if (!nf_type_get(format.type) || format.type == NF_TYPE_U8) return false;
    return format.type == NF_TYPE_C4 ? nf_codebook_values(format.codebook) != NULL
                                     : format.codebook == NF_CODEBOOK_NONE;
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
    uint64_t tiles = nf_matrix_tile_bytes(type, rows, cols), scales = nf_matrix_scale_bytes(type, rows, cols);
    if (!tiles || !scales) return tiles;
    uint64_t at = nf_matrix_scale_offset(type, rows, cols), bytes;
    return !at || __builtin_add_overflow(at, scales, &bytes) ? 0 : bytes;
}

/* ---- groups of 32 values ---- */

/* Four floats: gcc and clang turn this into the vector registers that every 64-bit target has. */
typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

#define VECS (NF_GROUP / 4)

/* 32 columns of one row; columns beyond the matrix are zero. */
typedef struct group {
    vec4 v[VECS];
    int32_t n; /* columns of the matrix */
} group;

/* bits of the four columns from 4 i on, zero for padding: `nl` has no value zero, so padding must neither
 * count in the choice of a scale nor leave a code. */
static inline int4 without_padding(const group *x, int i, int4 bits) {
    if (x->n == NF_GROUP) return bits;
    const int4 column = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
    return bits & (column < x->n);
}

static inline vec4 splat(float x) {
    return (vec4){x, x, x, x};
}

static inline vec4 clamp(vec4 x, float low, float high) {
    const vec4 l = splat(low), h = splat(high);
    int4 below = x<l, above = x> h;
    return (vec4)((below & (int4)l) | (above & (int4)h) | (~(below | above) & (int4)x));
}

/* Round half to even for |x| < 2^22 without a library call: the sum has no room for a fraction. */
static inline vec4 round_even(vec4 x) {
    return (x + splat(0x1.8p23f)) - splat(0x1.8p23f);
}

/* Sum of 8 lanes by the tree 4, 2, 1. */
static inline float sum_lanes(vec4 low, vec4 high) {
    vec4 s = low + high;
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* The largest magnitude, as bits: 0x7f800000 or more when a value is not finite. */
static uint32_t magnitude_bits(const group *x) {
    int4 most = {0};
    for (int i = 0; i < VECS; i++) {
        int4 bits = (int4)x->v[i] & 0x7fffffff, more = bits > most;
        most = (more & bits) | (~more & most);
    }
    int32_t m = 0;
    for (int i = 0; i < 4; i++) m = most[i] > m ? most[i] : m;
    return (uint32_t)m;
}

/* First column that holds the magnitude. */
static size_t column_of(const group *x, uint32_t magnitude) {
    float values[NF_GROUP];
    memcpy(values, x->v, sizeof values);
    for (size_t i = 0; i < NF_GROUP; i++)
        if ((nf_f32_bits(values[i]) & 0x7fffffffu) == magnitude) return i;
    return 0;
}

/* ---- c4: the scale of least squared error among a few ---- */

/* Codes of `nl` by ceil(2 v), v = -127..113. The code is the number of midpoints between codebook values that
 * lie below v, and twice a midpoint is a whole number: the table is exact. */
#define NL_LOW (-127)
#define NL_HIGH 113
static const uint8_t nl_code[2 * (NL_HIGH - NL_LOW) + 1] = {
    [0 ... 23] = 0,     [24 ... 67] = 1,    [68 ... 106] = 2,   [107 ... 140] = 3,
    [141 ... 170] = 4,  [171 ... 197] = 5,  [198 ... 222] = 6,  [223 ... 245] = 7,
    [246 ... 268] = 8,  [269 ... 292] = 9,  [293 ... 317] = 10, [318 ... 345] = 11,
    [346 ... 376] = 12, [377 ... 412] = 13, [413 ... 456] = 14, [457 ... 480] = 15,
};

static inline int4 nearest_nl(vec4 v) {
    const vec4 twice = clamp(v, (float)NL_LOW, (float)NL_HIGH) * 2.0f;
    int4 up = __builtin_convertvector(twice, int4); /* towards zero; one more where that was down */
    up -= (twice > __builtin_convertvector(up, vec4)) + 2 * NL_LOW;
    return (int4){nl_code[up[0]], nl_code[up[1]], nl_code[up[2]], nl_code[up[3]]};
}

/* The codebook's values nearest to v (in units of the scale), and their codes. Between two, `linear` takes
 * the even value and `nl` the lower one. */
static inline vec4 nearest_value(nf_codebook codebook, vec4 v) {
    if (codebook == NF_CODEBOOK_LINEAR) return round_even(clamp(v, -8.0f, 7.0f));
    const int4 code = nearest_nl(v);
    return (vec4){codebook_nl[code[0]], codebook_nl[code[1]], codebook_nl[code[2]], codebook_nl[code[3]]};
}

static inline int4 nearest_code(nf_codebook codebook, vec4 v) {
    if (codebook == NF_CODEBOOK_NL) return nearest_nl(v);
    return __builtin_convertvector(round_even(clamp(v, -8.0f, 7.0f)), int4) + 8;
}

static inline float reciprocal(float scale) {
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

/* Sum of (x - q scale)^2 in 8 lanes (column mod 8). */
static inline float squared_error(nf_codebook codebook, const group *x, float scale) {
    const vec4 inverse = splat(reciprocal(scale)), s = splat(scale);
    vec4 sum[2] = {{0}};
    for (int i = 0; i < VECS; i++) {
        vec4 e = x->v[i] - nearest_value(codebook, x->v[i] * inverse) * s;
        e = (vec4)without_padding(x, i, (int4)e);
        sum[i % 2] += e * e;
    }
    return sum_lanes(sum[0], sum[1]);
}

/* The scale of least squared error for the codes q that `scale` gives: sum of x q / sum of q^2, each in 8
 * lanes. */
static inline float refit(nf_codebook codebook, const group *x, float scale) {
    const vec4 inverse = splat(reciprocal(scale));
    vec4 xq[2] = {{0}}, qq[2] = {{0}};
    for (int i = 0; i < VECS; i++) {
        vec4 q = (vec4)without_padding(x, i, (int4)nearest_value(codebook, x->v[i] * inverse));
        xq[i % 2] += x->v[i] * q;
        qq[i % 2] += q * q;
    }
    return sum_lanes(xq[0], xq[1]) / sum_lanes(qq[0], qq[1]);
}

typedef struct choice {
    uint16_t scale; /* f16 */
    float error;
} choice;

/* Takes f16(scale) when it is finite and its error smaller than the best so far. Returns true when it was
 * taken. */
static inline bool try_scale(nf_codebook codebook, const group *x, float scale, choice *best) {
    uint16_t h = nf_f32_to_f16(scale);
    if ((h & 0x7c00u) == 0x7c00u) return false;
    float error = squared_error(codebook, x, nf_f16_to_f32(h));
    if (!(error < best->error)) return false;
    *best = (choice){h, error};
    return true;
}

/* Candidates extreme / divisor in order, the first among equals, then least squares for the codes of the
 * best. Returns an infinite scale when f16 can hold none of them. The divisors were found by trial: few,
 * because the converter spends its time here. */
static inline uint16_t choose_scale(nf_codebook codebook, const group *x, float extreme) {
    static const float linear[] = {-8.0f, 7.2f, -8.8f};
    static const float nl[] = {-127.0f, 118.0f, -134.0f};
    const float *divisor = codebook == NF_CODEBOOK_LINEAR ? linear : nl;
    choice best = {0x7c00u, INFINITY};
    for (int i = 0; i < 3; i++) try_scale(codebook, x, extreme / divisor[i], &best);
    if (best.scale & 0x7fffu && best.scale != 0x7c00u)
        try_scale(codebook, x, refit(codebook, x, nf_f16_to_f32(best.scale)), &best);
    return best.scale;
}

static void put_c4(nf_codebook codebook, const group *x, float scale, uint8_t *row) {
    const vec4 inverse = splat(1.0f / scale);
    for (int i = 0; i < VECS / 2; i++) {
        const int j = i + VECS / 2;
        int4 low = without_padding(x, i, nearest_code(codebook, x->v[i] * inverse));
        int4 high = without_padding(x, j, nearest_code(codebook, x->v[j] * inverse));
        int4 byte = low | high << 4;
        for (int k = 0; k < 4; k++) row[4 * i + k] = (uint8_t)byte[k];
    }
}

static void put_i8(const group *x, float scale, uint8_t *row) {
    for (int i = 0; i < VECS; i++) {
        int4 q = __builtin_convertvector(round_even(clamp(x->v[i] / splat(scale), -127.0f, 127.0f)), int4);
        for (int k = 0; k < 4; k++) row[4 * i + k] = (uint8_t)q[k];
    }
}

/* One group of an integer-dot type into its block, whose bytes are zero. A group whose scale is zero in f16
 * stays zero bytes. Returns false when the scale does not fit f16. */
static bool put_integer_group(nf_format format, const group *x, uint32_t magnitude, size_t row,
                              uint8_t *block) {
    const nf_type_traits *t = &traits_of[format.type];
    if (!magnitude) return true;
    const float absmax = nf_f32_from_bits(magnitude);
    uint16_t scale;
    if (format.type == NF_TYPE_I8) {
        scale = nf_f32_to_f16(absmax / 127.0f);
    } else {
        size_t at = column_of(x, magnitude);
        float extreme = x->v[at / 4][at % 4];
        scale = format.codebook == NF_CODEBOOK_LINEAR ? choose_scale(NF_CODEBOOK_LINEAR, x, extreme)
                                                      : choose_scale(NF_CODEBOOK_NL, x, extreme);
    }
    if ((scale & 0x7c00u) == 0x7c00u) return false;
    if (!(scale & 0x7fffu)) return true;
    memcpy(block + 2 * row, &scale, sizeof scale);
    uint8_t *to = block + t->scale_bytes + row * t->row_bytes;
    if (format.type == NF_TYPE_I8)
        put_i8(x, nf_f16_to_f32(scale), to);
    else if (format.codebook == NF_CODEBOOK_LINEAR)
        put_c4(NF_CODEBOOK_LINEAR, x, nf_f16_to_f32(scale), to);
    else
        put_c4(NF_CODEBOOK_NL, x, nf_f16_to_f32(scale), to);
    return true;
}

/* ---- float types ---- */

/* One group of a float type. Returns NF_GROUP, or the column of the first value beyond the type's range. */
static size_t put_float_group(nf_type type, const group *x, float block_scale, uint8_t *row) {
    float values[NF_GROUP];
    memcpy(values, x->v, sizeof values);
    if (type == NF_TYPE_F32) memcpy(row, values, sizeof values);
    if (type == NF_TYPE_F32) return NF_GROUP;
    size_t bad = NF_GROUP;
    for (size_t i = NF_GROUP; i-- > 0;) {
        if (type == NF_TYPE_F8) {
            float v = values[i] / block_scale;
            if (!(fabsf(v) < 464.0f)) bad = i; /* from 464 on, 448 is no longer the nearest */
            row[i] = nf_f32_to_e4m3(v);
            continue;
        }
        uint16_t infinity = type == NF_TYPE_F16 ? 0x7c00u : 0x7f80u;
        uint16_t h = type == NF_TYPE_F16 ? nf_f32_to_f16(values[i]) : nf_f32_to_bf16(values[i]);
        if ((h & infinity) == infinity) bad = i;
        memcpy(row + 2 * i, &h, sizeof h);
    }
    return bad;
}

/* ---- tiles ---- */

/* The columns from `col` on, as one group. */
static group load_group(const float *row, size_t col, size_t cols) {
    group x = {.n = (int32_t)(cols - col < NF_GROUP ? cols - col : NF_GROUP)};
    memcpy(x.v, row + col, (size_t)x.n * sizeof *row);
    return x;
}

static nf_status fail_not_finite(const group *x, size_t row, size_t col, nf_error *err) {
    float values[NF_GROUP];
    memcpy(values, x->v, sizeof values);
    size_t i = 0;
    while (i + 1 < NF_GROUP && isfinite(values[i])) i++;
    return nf_fail(err, NF_ERR_NUMERIC, "the value at row %zu, column %zu is not a finite number", row,
                   col + i);
}

static nf_status fail_too_large(nf_format format, const group *x, size_t row, size_t col, size_t i,
                                nf_error *err) {
    const nf_type_traits *t = &traits_of[format.type];
    return nf_fail(err, NF_ERR_NUMERIC, "the value %g at row %zu, column %zu is too large for %s",
                   (double)x->v[i / 4][i % 4], row, col + i,
                   t->integer_dot ? "the f16 scale of its group" : t->name);
}

static nf_status check_arguments(nf_format format, size_t n_rows, size_t cols, const float *block_scales,
                                 nf_error *err) {
    if (!is_matrix_format(format))
        return nf_fail(err, NF_ERR_ARGUMENT, "a matrix cannot be stored in type %d with codebook %d",
                       (int)format.type, (int)format.codebook);
    if (n_rows > NF_TILE_ROWS)
        return nf_fail(err, NF_ERR_ARGUMENT, "a tile has %d rows, not %zu", NF_TILE_ROWS, n_rows);
    if (format.type != NF_TYPE_F8) return NF_OK;
    if (!block_scales) return nf_fail(err, NF_ERR_ARGUMENT, "type f8 needs the scales of its blocks");
    for (size_t b = 0; b < divide_up(cols, NF_F8_BLOCK); b++)
        if (!isfinite(block_scales[b]) || block_scales[b] == 0.0f)
            return nf_fail(err, NF_ERR_NUMERIC, "the scale %g of the block at column %zu cannot divide",
                           (double)block_scales[b], b * NF_F8_BLOCK);
    return NF_OK;
}

nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *block_scales, uint8_t *out, nf_error *err) {
    nf_status status = check_arguments(format, n_rows, cols, block_scales, err);
    if (status) return status;
    const nf_type_traits *t = &traits_of[format.type];
    memset(out, 0, (size_t)nf_matrix_tile_bytes(format.type, NF_TILE_ROWS, cols));
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < cols; c += NF_GROUP) {
            const group x = load_group(rows + r * stride, c, cols);
            const uint32_t magnitude = magnitude_bits(&x);
            if (magnitude >= 0x7f800000u) return fail_not_finite(&x, r, c, err);
            uint8_t *block = out + c / NF_GROUP * t->block_bytes;
            if (t->integer_dot) {
                if (!put_integer_group(format, &x, magnitude, r, block))
                    return fail_too_large(format, &x, r, c, column_of(&x, magnitude), err);
                continue;
            }
            float scale = t->has_block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f;
            size_t bad = put_float_group(format.type, &x, scale, block + r * t->row_bytes);
            if (bad < NF_GROUP) return fail_too_large(format, &x, r, c, bad, err);
        }
    }
    return NF_OK;
}

/* ---- back to floats ---- */

static void get_float_group(nf_type type, const uint8_t *row, float block_scale, float *out) {
    for (size_t i = 0; i < NF_GROUP; i++) {
        uint16_t h;
        switch (type) {
        case NF_TYPE_F16:
            memcpy(&h, row + 2 * i, sizeof h);
            out[i] = nf_f16_to_f32(h);
            break;
        case NF_TYPE_BF16:
            memcpy(&h, row + 2 * i, sizeof h);
            out[i] = nf_bf16_to_f32(h);
            break;
        case NF_TYPE_F8:
            out[i] = nf_e4m3_to_f32(row[i]) * block_scale;
            break;
        default:
            memcpy(&out[i], row + 4 * i, sizeof out[i]);
            break;
        }
    }
}

static void get_integer_group(nf_format format, const uint8_t *block, size_t row, float *out) {
    const nf_type_traits *t = &traits_of[format.type];
    const uint8_t *codes = block + t->scale_bytes + row * t->row_bytes;
    uint16_t h;
    memcpy(&h, block + 2 * row, sizeof h);
    const float scale = nf_f16_to_f32(h);
    if (format.type == NF_TYPE_I8) {
        for (size_t i = 0; i < NF_GROUP; i++) out[i] = scale * (float)(int8_t)codes[i];
        return;
    }
    const int8_t *values = nf_codebook_values(format.codebook);
    for (size_t i = 0; i < NF_GROUP / 2; i++) {
        out[i] = scale * (float)values[codes[i] & 15];
        out[NF_GROUP / 2 + i] = scale * (float)values[codes[i] >> 4];
    }
}

void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols,
                       const float *block_scales, float *out) {
    const bool valid =
        is_matrix_format(format) && row < NF_TILE_ROWS && (format.type != NF_TYPE_F8 || block_scales);
    for (size_t c = 0; c < cols; c += NF_GROUP) {
        float values[NF_GROUP];
        const size_t n = cols - c < NF_GROUP ? cols - c : NF_GROUP;
        if (!valid) { /* a bug of the caller: make it visible instead of reading somewhere else */
            for (size_t i = 0; i < n; i++) out[c + i] = NAN;
            continue;
        }
        const nf_type_traits *t = &traits_of[format.type];
        const uint8_t *block = tile + c / NF_GROUP * t->block_bytes;
        float scale = t->has_block_scales ? block_scales[c / NF_F8_BLOCK] : 1.0f;
        if (t->integer_dot)
            get_integer_group(format, block, row, values);
        else
            get_float_group(format.type, block + row * t->row_bytes, scale, values);
        memcpy(out + c, values, n * sizeof *out);
    }
}

void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols,
                        const float *block_scales, float *rows, size_t stride) {
    for (size_t r = 0; r < n_rows; r++)
        nf_dequantise_row(format, tile, r, cols, block_scales, rows + r * stride);
}

/* ---- f8 block scales ---- */

/* The smallest power of two, at least 2^-126, that brings absmax to 448 or less; 1 for a block of zeros. */
static float f8_scale(float absmax) {
    if (!(absmax > 0.0f) || !isfinite(absmax)) return 1.0f; /* quantising reports what is not finite */
    int e;
    const float m = frexpf(absmax, &e); /* absmax = m 2^e, m in [0.5, 1); 448 = 0.875 * 2^9 */
    e -= m > 0.875f ? 8 : 9;
    return ldexpf(1.0f, e < -126 ? -126 : e);
}

void nf_f8_block_scales(const float *w, size_t stride, size_t rows, size_t cols, float *out) {
    const size_t across = (size_t)divide_up(cols, NF_F8_BLOCK);
    for (size_t r0 = 0; r0 < rows; r0 += NF_F8_BLOCK)
        for (size_t c0 = 0; c0 < cols; c0 += NF_F8_BLOCK) {
            const size_t r1 = rows - r0 < NF_F8_BLOCK ? rows : r0 + NF_F8_BLOCK;
            const size_t c1 = cols - c0 < NF_F8_BLOCK ? cols : c0 + NF_F8_BLOCK;
            float absmax = 0.0f;
            for (size_t r = r0; r < r1; r++)
                for (size_t c = c0; c < c1; c++) {
                    float a = fabsf(w[r * stride + c]);
                    absmax = a > absmax ? a : absmax;
                }
            out[r0 / NF_F8_BLOCK * across + c0 / NF_F8_BLOCK] = f8_scale(absmax);
        }
}
