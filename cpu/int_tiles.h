/*
 * Integer-dot tiles (contract A, steps 2 and 3): the one body of all x86 levels, included once by each. They
 * differ in the width of a vector (cpu/tile_vec.h: one tile or two) and in one function: how 32 products of a
 * row become an int32.
 *
 *   out[j][r] = tree(acc), acc[g mod 32] = fma(sw[r][g] sx[j][g], (float)dot(w[r][g], q[j][g]), acc[g mod
 * 32])
 *
 * Storage: tiles of 8 rows, blocks of 32 columns with rows interleaved by 4 columns (docs/arithmetic.md), so
 * that a vector of 32 bytes holds 4 columns of all 8 rows: unpacked once for n input rows, multiplied by the
 * 4 input bytes repeated 8 times, summed within 32-bit lanes; no sum crosses a lane. Weights become unsigned
 * by adding a bias; bias * sum(q) is taken off again, exactly. Bytes read: one block for n rows; the bound
 * for one row is the memory.
 *
 * NF_TILES_VNNI: vpdpbusd (4 products a lane, no saturation). Otherwise vpmaddubsw, whose int16 sums hold
 * 32767: as many are added before widening as the largest weight allows, and codes beyond 63 have the sign
 * moved to the input.
 */
#ifndef NF_CPU_INT_TILES_H
#define NF_CPU_INT_TILES_H

#include "cpu/int_codes.h"

/* Four input bytes for all rows. */
NF_TILE_CALL tile_int input_run(const int8_t *q, int j) {
    int32_t x;
    memcpy(&x, q + 4 * j, sizeof x);
    return NF_TILE_VEC(set1_epi32)(x);
}

/* Sums over runs first..first+count-1 (count 4 or 8) of the products with q [32], a row in each int32 lane.
 */
#ifdef NF_TILES_VNNI
NF_TILE_CALL tile_int dot_runs(tile_kind kind, const tile_codes *c, const int8_t *q, int first, int count) {
    (void)kind;
    tile_int even = NF_TILE_BITS(setzero)(),
             odd = even; /* two chains: each product waits for the one before */
    for (int j = first; j < first + count; j += 2) {
        even = NF_TILE_VEC(dpbusd_epi32)(even, c->u[j], input_run(q, j));
        odd = NF_TILE_VEC(dpbusd_epi32)(odd, c->u[j + 1], input_run(q, j + 1));
    }
    return NF_TILE_VEC(add_epi32)(even, odd);
}
#else
NF_TILE_CALL tile_int dot_runs(tile_kind kind, const tile_codes *c, const int8_t *q, int first, int count) {
    const tile_int ones = NF_TILE_VEC(set1_epi16)(1);
    /* Products added as int16: 2 x largest weight x 127 x step <= 32767. */
    const int step = kind == TILE_I8 || kind == TILE_NL     ? 1
                     : kind == TILE_S6                      ? 2
                     : kind == TILE_S5 || kind == TILE_E2M1 ? 4
                                                            : 8;
    tile_int sum = NF_TILE_BITS(setzero)();
    for (int j = first; j < first + count; j += step) {
        tile_int part = NF_TILE_BITS(setzero)();
        for (int i = j; i < j + step && i < first + count; i++) {
            tile_int x = input_run(q, i), p;
            if (kind == TILE_I8 || kind == TILE_NL)
                p = NF_TILE_VEC(maddubs_epi16)(NF_TILE_VEC(abs_epi8)(c->u[i]),
                                               NF_TILE_VEC(sign_epi8)(x, c->u[i]));
            else
                p = NF_TILE_VEC(maddubs_epi16)(c->u[i], x);
            part = i == j ? p : NF_TILE_VEC(add_epi16)(part, p);
        }
        sum = NF_TILE_VEC(add_epi32)(sum, NF_TILE_VEC(madd_epi16)(part, ones));
    }
    return sum;
}
#endif

typedef struct tile_rows {
    const int8_t *q[4];
    const float *scale[4];
    const int32_t *sum[4];
} tile_rows;

/* The lanes by the tree 16, 8, 4, 2, 1; see lane_tree. */
NF_TILE_CALL tile_float add_lanes(tile_float *acc, size_t n_used) {
    int top = 16;
    while (top && (size_t)top >= n_used) top /= 2;
    for (int s = top; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] = NF_TILE_VEC(add_ps)(acc[i], acc[i + s]);
    return top == 16 ? acc[0] : NF_TILE_VEC(add_ps)(acc[0], NF_TILE_VEC(setzero_ps)());
}

/* n (1..4) input rows against one tile; `kind`, `scales` and n are constants where this is inlined. Row j
 * goes to out + j * out_stride. */
NF_TILE_CALL void int_tile(tile_kind kind, nf_scale scales, size_t n, const tile_place *place,
                           const tile_rows *x, float *out, size_t out_stride) {
    const bool two_scales = scales == NF_SCALE_E4M3;
    const tile_layout l = layout_of(kind, scales);
    const size_t groups = place->groups, second = place->second;
    const uint8_t *block = place->block;
    const tile_int table = load_table(kind);
    const int32_t bias = bias_of(kind);
    tile_float acc[4][NF_LANES];
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < lanes_in_use(groups); i++) acc[j][i] = NF_TILE_VEC(setzero_ps)();
    for (size_t g = 0; g < groups; g++, block += l.block) {
        prefetch_ahead(block, l.block);
        const uint8_t *offsets = block + l.offsets;
        tile_float sw[2];
        load_scales(kind, scales, block, second, sw);
        const tile_codes codes = unpack(kind, block + l.codes, second, table);
        for (size_t j = 0; j < n; j++) {
            const int8_t *q = x->q[j] + g * NF_GROUP;
            const int32_t sum = x->sum[j][g];
            const tile_float sx = NF_TILE_VEC(set1_ps)(x->scale[j][g]);
            tile_float *lane = &acc[j][g % NF_LANES];
            if (two_scales) {
                const int32_t low = low_half_sum(q);
                tile_int d0 = minus(dot_runs(kind, &codes, q, 0, 4), bias * low);
                tile_int d1 = minus(dot_runs(kind, &codes, q, 4, 4), bias * (sum - low));
                *lane = add_product(sw[1], sx, d1, add_product(sw[0], sx, d0, *lane));
                continue;
            }
            tile_int dot = dot_runs(kind, &codes, q, 0, 8);
            if (bias) dot = minus(dot, bias * sum);
            if (kind == TILE_Z4)
                dot = NF_TILE_VEC(sub_epi32)(
                    dot, NF_TILE_VEC(mullo_epi32)(load_u8(offsets, second), NF_TILE_VEC(set1_epi32)(sum)));
            *lane = add_product(sw[0], sx, dot, *lane);
            if (kind == TILE_A4)
                *lane = NF_TILE_VEC(fmadd_ps)(load_f16(offsets, second),
                                              NF_TILE_VEC(set1_ps)(x->scale[j][g] * (float)sum), *lane);
        }
    }
    for (size_t j = 0; j < n; j++) {
        tile_float y = add_lanes(acc[j], groups);
        if (two_scales) y = NF_TILE_VEC(mul_ps)(y, NF_TILE_VEC(set1_ps)(place->factor));
        NF_TILE_VEC(storeu_ps)(out + j * out_stride, y);
    }
}

typedef void (*int_tile_fn)(const tile_place *place, const tile_rows *x, float *out, size_t out_stride);

/* One compiled form for each kind, scale and number of rows. */
#define NF_INT_TILE_ROWS(name, kind, scales, n)                                                              \
    static void name##_##n(const tile_place *p, const tile_rows *x, float *out, size_t stride) {             \
        int_tile(kind, scales, n, p, x, out, stride);                                                        \
    }
#define NF_INT_TILE(name, kind, scales)                                                                      \
    NF_INT_TILE_ROWS(name, kind, scales, 1)                                                                  \
    NF_INT_TILE_ROWS(name, kind, scales, 2)                                                                  \
    NF_INT_TILE_ROWS(name, kind, scales, 3)                                                                  \
    NF_INT_TILE_ROWS(name, kind, scales, 4)
NF_INT_FORMS(NF_INT_TILE)
#undef NF_INT_TILE
#undef NF_INT_TILE_ROWS

/* The forms for 1, 2, 3 and 4 rows. */
#define NF_INT_TILE(name, kind, scales) {name##_1, name##_2, name##_3, name##_4},
static const int_tile_fn int_tile_forms[N_FORMS][4] = {NF_INT_FORMS(NF_INT_TILE)};
#undef NF_INT_TILE

/* n (1..4) rows j of `in` (index[j] where there is an index) against the tile or pair of tiles at t. */
static void int_tile_rows(const nf_weights *w, size_t t, const nf_rows *in, const uint32_t *index, size_t j,
                          size_t n, float *out, size_t out_stride) {
    const size_t groups = in->kp / NF_GROUP;
    const tile_place place = {.block = w->tiles + t * w->tile_stride,
                              .second = w->tile_stride,
                              .groups = groups,
                              .factor = w->format.scale == NF_SCALE_E4M3 ? w->table[0] : 1.0f};
    tile_rows x;
    for (size_t i = 0; i < n; i++) {
        size_t row = index ? index[j + i] : j + i;
        x.q[i] = in->q + row * in->kp;
        x.scale[i] = in->scale + row * groups;
        x.sum[i] = in->sum + row * groups;
    }
    int_tile_forms[int_form(w->format)][n - 1](&place, &x, out, out_stride);
}

#endif
