/*
 * Quantisation: which codes and scales a group of 32 values gets (docs/arithmetic.md, "Quantisation").
 * Deterministic: every sum has one order and no operation may be contracted or reassociated
 * (-ffp-contract=off, no fast-math), so the bytes are the same with every compiler and at every level of
 * optimisation. Knows nothing of files or models.
 */
#include "format/block_internal.h"

#include "format/numeric.h"

#include <string.h>

/* Four floats: gcc and clang turn this into the vector registers that every 64-bit target has. */
typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

#define VECS (NF_GROUP / 4)
#define INLINE static inline __attribute__((always_inline))

/* 32 columns of one row; columns beyond the matrix are zero and weigh nothing. */
typedef struct group {
    vec4 v[VECS];
    vec4 weight[VECS]; /* of squared errors */
    int32_t n;         /* columns of the matrix */
} group;

/* The values that a scaled weight can become. A constant wherever it is used, so that each grid is compiled
 * for itself. */
typedef enum grid { GRID_4, GRID_5, GRID_6, GRID_NL, GRID_E2M1, GRID_COUNT } grid;

INLINE vec4 splat(float x) {
    return (vec4){x, x, x, x};
}

INLINE vec4 clamp(vec4 x, float low, float high) {
    const vec4 l = splat(low), h = splat(high);
    int4 below = x<l, above = x> h;
    return (vec4)((below & (int4)l) | (above & (int4)h) | (~(below | above) & (int4)x));
}

/* Round half to even for |x| < 2^22 without a library call: the sum has no room for a fraction. */
INLINE vec4 round_even(vec4 x) {
    return (x + splat(0x1.8p23f)) - splat(0x1.8p23f);
}

/* Sum of 8 lanes by the tree 4, 2, 1. */
INLINE float sum_lanes(const vec4 sum[2]) {
    vec4 s = sum[0] + sum[1];
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

/* ---- grids ---- */

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

INLINE int4 nearest_nl(vec4 v) {
    const vec4 twice = clamp(v, (float)NL_LOW, (float)NL_HIGH) * 2.0f;
    int4 up = __builtin_convertvector(twice, int4); /* towards zero; one more where that was down */
    up -= (twice > __builtin_convertvector(up, vec4)) + 2 * NL_LOW;
    return (int4){nl_code[up[0]], nl_code[up[1]], nl_code[up[2]], nl_code[up[3]]};
}

INLINE vec4 pick(int4 mask, vec4 yes, vec4 no) {
    return (vec4)((mask & (int4)yes) | (~mask & (int4)no));
}

/* Twice e2m1: steps of 1 to 4, of 2 to 8, of 4 to 12; halves to even in each. */
INLINE vec4 nearest_e2m1(vec4 v) {
    const vec4 x = clamp(v, -12.0f, 12.0f);
    const vec4 magnitude = (vec4)((int4)x & 0x7fffffff);
    const vec4 fine = round_even(x), middle = round_even(x * 0.5f) * 2.0f,
               coarse = round_even(x * 0.25f) * 4.0f;
    return pick(magnitude < splat(4.0f), fine, pick(magnitude < splat(8.0f), middle, coarse));
}

INLINE float lowest(grid g) {
    return g == GRID_4 ? -8.0f : g == GRID_5 ? -16.0f : -32.0f;
}

/* The grid's values nearest to v (in units of the scale). Between two, the even one; `nl` takes the lower
 * one. */
INLINE vec4 nearest_value(grid g, vec4 v) {
    if (g == GRID_E2M1) return nearest_e2m1(v);
    if (g != GRID_NL) return round_even(clamp(v, lowest(g), -1.0f - lowest(g)));
    const int8_t *values = nf_codebook_values(NF_CODEBOOK_NL);
    const int4 code = nearest_nl(v);
    return (vec4){values[code[0]], values[code[1]], values[code[2]], values[code[3]]};
}

/* The stored codes of those values. */
INLINE int4 nearest_code(grid g, vec4 v) {
    if (g == GRID_NL) return nearest_nl(v);
    int4 q = __builtin_convertvector(nearest_value(g, v), int4);
    if (g == GRID_4) return q + 8;
    if (g == GRID_5) return q & 31;
    if (g == GRID_6) return q & 63;
    const int4 negative = q < 0, m = (negative & -q) | (~negative & q);
    /* 0..4 are their own codes, 6, 8 and 12 are 5, 6 and 7. */
    return m + (m >= 6) + (m >= 8) + (m >= 12) * 3 + (negative & 8);
}

/* ---- one scale for some columns: vectors first .. first + count - 1 of the group ---- */

typedef struct span {
    int first, count;
} span;

INLINE float reciprocal(float scale) {
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

/* Weighted sum of (x - q scale)^2 in 8 lanes (column mod 8). */
INLINE float squared_error(grid g, const group *x, span at, float scale) {
    const vec4 inverse = splat(reciprocal(scale)), s = splat(scale);
    vec4 sum[2] = {{0}};
    for (int i = at.first; i < at.first + at.count; i++) {
        const vec4 e = x->v[i] - nearest_value(g, x->v[i] * inverse) * s;
        sum[i % 2] += x->weight[i] * (e * e);
    }
    return sum_lanes(sum);
}

/* The scale of least squared error for the values q that `scale` gives: sum of w x q / sum of w q^2. */
INLINE float refit(grid g, const group *x, span at, float scale) {
    const vec4 inverse = splat(reciprocal(scale));
    vec4 xq[2] = {{0}}, qq[2] = {{0}};
    for (int i = at.first; i < at.first + at.count; i++) {
        const vec4 q = nearest_value(g, x->v[i] * inverse), wq = x->weight[i] * q;
        xq[i % 2] += x->v[i] * wq;
        qq[i % 2] += q * wq;
    }
    return sum_lanes(xq) / sum_lanes(qq);
}

typedef struct choice {
    uint16_t scale; /* as stored */
    float error;
} choice;

/* Takes f16(scale) when it is finite and its error smaller than the best so far. `unit`: the scale of step 3
 * over the stored one. */
INLINE void try_f16(grid g, const group *x, span at, float scale, float unit, choice *best) {
    uint16_t h = nf_f32_to_f16(scale / unit);
    if ((h & 0x7c00u) == 0x7c00u) return;
    float error = squared_error(g, x, at, nf_f16_to_f32(h) * unit);
    if (error < best->error) *best = (choice){h, error};
}

/* Candidates extreme / divisor in order, the first among equals, then least squares for the values of the
 * best. Infinite when f16 can hold none of them. The divisors were found by trial: few, because the converter
 * spends its time here. */
INLINE uint16_t choose_f16(grid g, const group *x, float extreme) {
    static const float divisors[GRID_COUNT][3] = {[GRID_4] = {-8.0f, 7.2f, -8.8f},
                                                  [GRID_5] = {-16.0f, 15.2f, -16.8f},
                                                  [GRID_6] = {-32.0f, 31.2f, -32.8f},
                                                  [GRID_NL] = {-127.0f, 118.0f, -134.0f},
                                                  [GRID_E2M1] = {12.0f, 13.4f, 10.6f}};
    const span whole = {0, VECS};
    const float unit = g == GRID_E2M1 ? 0.5f : 1.0f;
    choice best = {0x7c00u, INFINITY};
    for (int i = 0; i < 3; i++) try_f16(g, x, whole, extreme / divisors[g][i], unit, &best);
    if (best.scale & 0x7fffu && best.scale != 0x7c00u)
        try_f16(g, x, whole, refit(g, x, whole, nf_f16_to_f32(best.scale) * unit), unit, &best);
    return best.scale;
}

INLINE void put_codes(grid g, const group *x, span at, float scale, uint8_t *code) {
    const vec4 inverse = splat(reciprocal(scale));
    for (int i = at.first; i < at.first + at.count; i++) {
        const int4 q = nearest_code(g, x->v[i] * inverse);
        for (int k = 0; k < 4; k++) code[4 * i + k] = (uint8_t)q[k];
    }
}

/* Codes of columns beyond the matrix are zero, whatever value they stand for. */
static void clear_padding(const group *x, uint8_t *code) {
    for (int32_t i = x->n; i < NF_GROUP; i++) code[i] = 0;
}

/* Returns false when f16 cannot hold the scale. A group whose scale is zero in f16 stays zero. */
INLINE bool code_f16(grid g, const group *x, uint32_t magnitude, nf_coded_group *out) {
    size_t at = column_of(x, magnitude);
    uint16_t scale = choose_f16(g, x, x->v[at / 4][at % 4]);
    if ((scale & 0x7c00u) == 0x7c00u) return false;
    if (!(scale & 0x7fffu)) return true;
    out->scale[0] = scale;
    put_codes(g, x, (span){0, VECS}, nf_f16_to_f32(scale) * (g == GRID_E2M1 ? 0.5f : 1.0f), out->code);
    return true;
}

/* ---- small scales: e8m0 for the group, e4m3 for each half ---- */

/* The largest magnitude that both signs of a grid reach. */
static float grid_top(grid g) {
    return g == GRID_NL ? 113.0f : g == GRID_E2M1 ? 12.0f : 7.0f;
}

static float span_absmax(const group *x, span at) {
    float absmax = 0.0f;
    for (int i = at.first; i < at.first + at.count; i++)
        for (int k = 0; k < 4; k++) {
            const float a = fabsf(x->v[i][k]);
            absmax = a > absmax ? a : absmax;
        }
    return absmax;
}

/* The power of two that takes absmax to the grid's top or less, and the one below it. */
INLINE void code_e8m0(nf_format format, grid g, const group *x, nf_coded_group *out) {
    const span whole = {0, VECS};
    const float unit = g == GRID_E2M1 ? 0.5f : 1.0f, need = span_absmax(x, whole) / (grid_top(g) * unit);
    int e;
    const float m = frexpf(need, &e); /* need = m 2^e, m in [0.5, 1) */
    choice best = {0, INFINITY};
    for (int try = 0; try < 2; try++) {
        int byte = (m > 0.5f ? e : e - 1) - try + 127;
        byte = byte < 0 ? 0 : byte > 254 ? 254 : byte;
        float error = squared_error(g, x, whole, nf_coded_scale(format, (uint16_t)byte));
        if (error < best.error) best = (choice){(uint16_t)byte, error};
    }
    out->scale[0] = best.scale;
    put_codes(g, x, whole, nf_coded_scale(format, best.scale), out->code);
}

/* For each half: the nearest e4m3 scale for its absmax, the one above and the one below. Zero halves have
 * scale zero. */
INLINE void code_e4m3(nf_format format, grid g, const group *x, float factor, nf_coded_group *out) {
    const float unit = g == GRID_E2M1 ? 0.5f : 1.0f;
    for (int half = 0; half < 2; half++) {
        const span at = {half * VECS / 2, VECS / 2};
        const float absmax = span_absmax(x, at);
        if (!(absmax > 0.0f)) continue;
        int byte = nf_f32_to_e4m3(fminf(absmax / (grid_top(g) * unit) / factor, 448.0f));
        choice best = {0, INFINITY};
        for (int b = byte - 1; b <= byte + 1; b++) {
            if (b < 1 || b > 0x7e) continue;
            float error = squared_error(g, x, at, nf_coded_scale(format, (uint16_t)b) * factor);
            if (error < best.error) best = (choice){(uint16_t)b, error};
        }
        out->scale[half] = best.scale;
        put_codes(g, x, at, nf_coded_scale(format, best.scale) * factor, out->code);
    }
}

/* ---- types with an offset ---- */

/* Codes 0..15 of (x - low) / step. */
INLINE vec4 nearest_step(vec4 x, vec4 low, vec4 inverse) {
    return round_even(clamp((x - low) * inverse, 0.0f, 15.0f));
}

INLINE float affine_error(const group *x, float low, float step) {
    const vec4 l = splat(low), s = splat(step), inverse = splat(reciprocal(step));
    vec4 sum[2] = {{0}};
    for (int i = 0; i < VECS; i++) {
        const vec4 e = x->v[i] - (l + nearest_step(x->v[i], l, inverse) * s);
        sum[i % 2] += x->weight[i] * (e * e);
    }
    return sum_lanes(sum);
}

typedef struct affine {
    uint16_t scale, offset;
    float low, step, error;
} affine;

/* Takes the rounded pair when it is finite and better. z4: the offset is a whole number of steps. */
INLINE void try_affine(nf_type type, const group *x, float low, float step, affine *best) {
    affine a = {.scale = nf_f32_to_f16(step)};
    if ((a.scale & 0x7c00u) == 0x7c00u) return;
    a.step = nf_f16_to_f32(a.scale);
    if (type == NF_TYPE_Z4) {
        float zero = a.step != 0.0f ? rintf(-low / a.step) : 0.0f;
        zero = zero < 0.0f ? 0.0f : zero > 255.0f ? 255.0f : zero;
        a.offset = (uint16_t)zero;
        a.low = -zero * a.step;
    } else {
        a.offset = nf_f32_to_f16(low);
        if ((a.offset & 0x7c00u) == 0x7c00u) return;
        a.low = nf_f16_to_f32(a.offset);
    }
    a.error = affine_error(x, a.low, a.step);
    if (a.error < best->error) *best = a;
}

/* Least squares of low + step q for the codes of `from`. Returns false when the codes are all alike. */
INLINE bool refit_affine(const group *x, const affine *from, float *low, float *step) {
    const vec4 l = splat(from->low), inverse = splat(reciprocal(from->step));
    vec4 w[2] = {{0}}, wq[2] = {{0}}, wqq[2] = {{0}}, wx[2] = {{0}}, wxq[2] = {{0}};
    for (int i = 0; i < VECS; i++) {
        const vec4 q = nearest_step(x->v[i], l, inverse), weight = x->weight[i], weighted = weight * q;
        w[i % 2] += weight;
        wq[i % 2] += weighted;
        wqq[i % 2] += weighted * q;
        wx[i % 2] += weight * x->v[i];
        wxq[i % 2] += weighted * x->v[i];
    }
    const float n = sum_lanes(w), q = sum_lanes(wq), qq = sum_lanes(wqq), v = sum_lanes(wx),
                vq = sum_lanes(wxq);
    const float determinant = n * qq - q * q;
    if (!(determinant > 0.0f)) return false;
    *step = (n * vq - q * v) / determinant;
    *low = (v - *step * q) / n;
    return *step > 0.0f;
}

/* The range cut at both ends by 0, 5 and 10 %, then least squares. */
INLINE bool code_affine(nf_type type, const group *x, nf_coded_group *out) {
    float low = INFINITY, high = -INFINITY;
    for (int32_t i = 0; i < x->n; i++) {
        const float v = x->v[i / 4][i % 4];
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    if (type == NF_TYPE_Z4) { /* zero is always among the values */
        low = low < 0.0f ? low : 0.0f;
        high = high > 0.0f ? high : 0.0f;
    }
    affine best = {.error = INFINITY};
    for (int i = 0; i < 3; i++) {
        /* z4's range holds zero, so both ends are cut towards zero; a4's are cut towards each other. */
        const float cut = 0.05f * (float)i, width = high - low;
        const float from = type == NF_TYPE_Z4 ? low - cut * low : low + cut * width;
        const float to = type == NF_TYPE_Z4 ? high - cut * high : high - cut * width;
        try_affine(type, x, from, (to - from) / 15.0f, &best);
    }
    if (!isfinite(best.error)) return false;
    float l, step;
    if (refit_affine(x, &best, &l, &step)) try_affine(type, x, l, step, &best);
    out->scale[0] = best.scale;
    out->offset = best.offset;
    const vec4 from = splat(best.low), inverse = splat(reciprocal(best.step));
    for (int i = 0; i < VECS; i++) {
        const int4 q = __builtin_convertvector(nearest_step(x->v[i], from, inverse), int4);
        for (int k = 0; k < 4; k++) out->code[4 * i + k] = (uint8_t)q[k];
    }
    return true;
}

/* ---- the types ---- */

static bool code_i8(const group *x, float absmax, nf_coded_group *out) {
    const uint16_t h = nf_f32_to_f16(absmax / 127.0f);
    if ((h & 0x7c00u) == 0x7c00u) return false;
    if (!(h & 0x7fffu)) return true;
    const vec4 scale = splat(nf_f16_to_f32(h));
    out->scale[0] = h;
    for (int i = 0; i < VECS; i++) {
        int4 q = __builtin_convertvector(round_even(clamp(x->v[i] / scale, -127.0f, 127.0f)), int4);
        for (int k = 0; k < 4; k++) out->code[4 * i + k] = (uint8_t)q[k];
    }
    return true;
}

INLINE bool code_c4(nf_format format, grid g, const group *x, uint32_t magnitude, float factor,
                    nf_coded_group *out) {
    if (format.scale == NF_SCALE_F16) return code_f16(g, x, magnitude, out);
    if (format.scale == NF_SCALE_E8M0)
        code_e8m0(format, g, x, out);
    else
        code_e4m3(format, g, x, factor, out);
    return true;
}

/* Codes and scales of a group whose values are finite and not all zero. Returns false when the type's scale
 * or offset cannot hold them. */
static bool choose(nf_format format, const group *x, uint32_t magnitude, float factor, nf_coded_group *out) {
    switch (format.type) {
    case NF_TYPE_I8:
        return code_i8(x, nf_f32_from_bits(magnitude), out);
    case NF_TYPE_S5:
        return code_f16(GRID_5, x, magnitude, out);
    case NF_TYPE_S6:
        return code_f16(GRID_6, x, magnitude, out);
    case NF_TYPE_Z4:
        return code_affine(NF_TYPE_Z4, x, out);
    case NF_TYPE_A4:
        return code_affine(NF_TYPE_A4, x, out);
    default:
        break;
    }
    switch (format.codebook) {
    case NF_CODEBOOK_NL:
        return code_c4(format, GRID_NL, x, magnitude, factor, out);
    case NF_CODEBOOK_E2M1:
        return code_c4(format, GRID_E2M1, x, magnitude, factor, out);
    default:
        return code_c4(format, GRID_4, x, magnitude, factor, out);
    }
}

/* ---- float types ---- */

/* One group of a float type. Returns NF_GROUP, or the column of the first value beyond the type's range. */
static size_t put_float_group(nf_type type, const group *x, size_t row, float block_scale, uint8_t *block) {
    float values[NF_GROUP];
    memcpy(values, x->v, sizeof values);
    size_t bad = NF_GROUP;
    for (size_t i = NF_GROUP; i-- > 0;) {
        const size_t at = nf_float_at(row, i);
        if (type == NF_TYPE_F32) {
            memcpy(block + 4 * at, &values[i], sizeof values[i]);
            continue;
        }
        if (type == NF_TYPE_F8) {
            float v = values[i] / block_scale;
            if (!(fabsf(v) < 464.0f)) bad = i; /* from 464 on, 448 is no longer the nearest */
            block[at] = nf_f32_to_e4m3(v);
            continue;
        }
        uint16_t infinity = type == NF_TYPE_F16 ? 0x7c00u : 0x7f80u;
        uint16_t h = type == NF_TYPE_F16 ? nf_f32_to_f16(values[i]) : nf_f32_to_bf16(values[i]);
        if ((h & infinity) == infinity) bad = i;
        memcpy(block + 2 * at, &h, sizeof h);
    }
    return bad;
}

/* ---- tiles ---- */

/* The columns from `col` on, as one group. */
static group load_group(const float *row, const float *importance, size_t col, size_t cols) {
    group x = {.n = (int32_t)(cols - col < NF_GROUP ? cols - col : NF_GROUP)};
    memcpy(x.v, row + col, (size_t)x.n * sizeof *row);
    float weight[NF_GROUP] = {0}, most = 0.0f;
    for (int32_t i = 0; i < x.n; i++) {
        weight[i] = importance ? importance[col + (size_t)i] : 1.0f;
        most = weight[i] > most ? weight[i] : most;
    }
    for (int32_t i = 0; i < x.n && !(most > 0.0f); i++)
        weight[i] = 1.0f; /* columns that never saw an input */
    memcpy(x.weight, weight, sizeof weight);
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
    const nf_type_traits *t = nf_type_get(format.type);
    return nf_fail(err, NF_ERR_NUMERIC, "the value %g at row %zu, column %zu is too large for %s",
                   (double)x->v[i / 4][i % 4], row, col + i,
                   t->integer_dot ? "the f16 scale of its group" : t->name);
}

static nf_status check_arguments(nf_format format, size_t n_rows, size_t cols, const float *table,
                                 nf_error *err) {
    if (!nf_format_valid(format))
        return nf_fail(err, NF_ERR_ARGUMENT,
                       "a matrix cannot be stored in type %d with codebook %d and scale kind %d",
                       (int)format.type, (int)format.codebook, (int)format.scale);
    if (n_rows > NF_TILE_ROWS)
        return nf_fail(err, NF_ERR_ARGUMENT, "a tile has %d rows, not %zu", NF_TILE_ROWS, n_rows);
    if (!nf_format_has_table(format)) return NF_OK;
    if (!table)
        return nf_fail(err, NF_ERR_ARGUMENT, "type %s needs the table of its scales", nf_format_name(format));
    const size_t entries = format.type == NF_TYPE_F8 ? (cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK : 1;
    for (size_t b = 0; b < entries; b++)
        if (!isfinite(table[b]) || table[b] == 0.0f)
            return nf_fail(err, NF_ERR_NUMERIC, "the scale %g of the block at column %zu cannot divide",
                           (double)table[b], b * NF_F8_BLOCK);
    return NF_OK;
}

nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *table, const float *importance, uint8_t *out, nf_error *err) {
    nf_status status = check_arguments(format, n_rows, cols, table, err);
    if (status) return status;
    const bool integer = nf_type_get(format.type)->integer_dot;
    const size_t block_bytes = nf_layout_get(format).block;
    memset(out, 0, (size_t)nf_matrix_tile_bytes(format, NF_TILE_ROWS, cols));
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < cols; c += NF_GROUP) {
            const group x = load_group(rows + r * stride, importance, c, cols);
            const uint32_t magnitude = magnitude_bits(&x);
            if (magnitude >= 0x7f800000u) return fail_not_finite(&x, r, c, err);
            uint8_t *block = out + c / NF_GROUP * block_bytes;
            if (integer) {
                nf_coded_group coded = {0};
                if (!magnitude && format.scale != NF_SCALE_E8M0) continue; /* a scale of zero */
                if (!magnitude)
                    memset(coded.code, format.codebook == NF_CODEBOOK_E2M1 ? 0 : 8, sizeof coded.code);
                else if (!choose(format, &x, magnitude, table ? table[0] : 1.0f, &coded))
                    return fail_too_large(format, &x, r, c, column_of(&x, magnitude), err);
                clear_padding(&x, coded.code);
                nf_block_put(format, &coded, r, block);
                continue;
            }
            size_t bad = put_float_group(format.type, &x, r,
                                         format.type == NF_TYPE_F8 ? table[c / NF_F8_BLOCK] : 1.0f, block);
            if (bad < NF_GROUP) return fail_too_large(format, &x, r, c, bad, err);
        }
    }
    return NF_OK;
}

/* ---- tables ---- */

/* The smallest power of two, at least 2^-126, that brings absmax to 448 or less; 1 for a block of zeros. */
static float f8_scale(float absmax) {
    if (!(absmax > 0.0f) || !isfinite(absmax)) return 1.0f; /* quantising reports what is not finite */
    int e;
    const float m = frexpf(absmax, &e); /* absmax = m 2^e, m in [0.5, 1); 448 = 0.875 * 2^9 */
    e -= m > 0.875f ? 8 : 9;
    return ldexpf(1.0f, e < -126 ? -126 : e);
}

void nf_f8_block_scales(const float *w, size_t stride, size_t rows, size_t cols, float *out) {
    const size_t across = (cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK;
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

float nf_c4_factor(nf_codebook codebook, float absmax) {
    const grid g = codebook == NF_CODEBOOK_NL ? GRID_NL : codebook == NF_CODEBOOK_E2M1 ? GRID_E2M1 : GRID_4;
    const float factor = absmax / (grid_top(g) * (g == GRID_E2M1 ? 0.5f : 1.0f)) / 448.0f;
    return factor >= 0x1p-126f && isfinite(factor) ? factor : 1.0f;
}
