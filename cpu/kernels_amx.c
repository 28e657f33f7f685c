/*
 * AMX-int8 kernels: for 8 input rows and more, one TDPBSUD multiplies a group of 32 columns of two tiles (16
 * outputs) with 16 input rows. Everything else is the AVX-512 level's.
 *
 * The contract wants each group's integer on its own: the 16 x 16 products of a group leave the tile
 * register, lose the bias, become floats and are added to their lanes. To keep those sums in registers the
 * lanes are visited in the order in which the tree adds them (0, 16, 8, 24, 4, ...): lane l takes groups l, l
 * + 32, ... and half-finished sums of the tree wait on a stack of five.
 */
#include "cpu/kernels_internal.h"

/* Tests compile this file with the tile instructions emulated. */
#if (defined(__AMX_INT8__) || defined(NF_AMX_EMULATED)) && defined(__AVX512VNNI__)

#define NF_VEC8_AVX2
#define NF_TILES_VNNI
#define NF_TILES_WIDE
#include "cpu/int_codes.h"

enum {
    ROWS = 16,          /* input rows of one product */
    FEWEST_ROWS = 8,    /* fewer are left to AVX-512 */
    MOST_COLUMNS = 8192 /* of rows that have to be gathered: their copy is on the stack */
};

/* Tile registers: products; 16 rows of 32 inputs, 8 runs of 4 columns of 16 outputs; the same for half a
 * group. Numbers, because the instructions hold them. */
#define C0 0
#define C1 1
#define A32 2
#define B32 3
#define A16 4
#define B16 5

static void configure(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .bytes = {[C0] = 64, [C1] = 64, [A32] = 32, [B32] = 64, [A16] = 16, [B16] = 64},
                .rows = {[C0] = 16, [C1] = 16, [A32] = 16, [B32] = 8, [A16] = 16, [B16] = 4}};
    _tile_loadconfig(&config);
}

/* The compiler does not know that tile loads and stores touch memory. */
static inline void memory_fence(void) {
    __asm__ volatile("" ::: "memory");
}

/* 16 input rows: rows of q `stride` apart, of scale and sum `groups` apart. */
typedef struct amx_rows {
    const int8_t *q;
    size_t stride;
    const float *scale;
    const int32_t *sum;
} amx_rows;

/* Group g of 16 rows and 16 outputs: acc[r] of row r. */
NF_TILE_CALL void amx_group(tile_kind kind, nf_scale scales, const tile_place *place, tile_int table,
                            const amx_rows *x, size_t g, tile_float *acc) {
    _Alignas(64) int32_t c[2][ROWS][16];
    _Alignas(64) uint8_t b[8][64];
    const bool two_scales = scales == NF_SCALE_E4M3;
    const tile_layout l = layout_of(kind, scales);
    const uint8_t *block = place->block + g * l.block;
    const int32_t bias = bias_of(kind);
    tile_float sw[2];
    load_scales(kind, scales, block, place->second, sw);
    const tile_codes codes = unpack(kind, block + l.codes, place->second, table);
    for (int j = 0; j < 8; j++) _mm512_store_si512(b[j], codes.u[j]);
    memory_fence();
    const int8_t *q = x->q + g * NF_GROUP;
    if (two_scales) {
        _tile_zero(C0);
        _tile_loadd(A16, q, x->stride);
        _tile_loadd(B16, b, 64);
        _tile_dpbsud(C0, A16, B16);
        _tile_stored(C0, c[0], 64);
        _tile_zero(C1);
        _tile_loadd(A16, q + 16, x->stride);
        _tile_loadd(B16, b[4], 64);
        _tile_dpbsud(C1, A16, B16);
        _tile_stored(C1, c[1], 64);
    } else {
        _tile_zero(C0);
        _tile_loadd(A32, q, x->stride);
        _tile_loadd(B32, b, 64);
        _tile_dpbsud(C0, A32, B32);
        _tile_stored(C0, c[0], 64);
    }
    memory_fence();
    const tile_int zero_points = kind == TILE_Z4 ? load_u8(block + l.offsets, place->second) : table;
    const tile_float offsets = kind == TILE_A4 ? load_f16(block + l.offsets, place->second) : sw[1];
    const float *scale = x->scale + g;
    const int32_t *sums = x->sum + g;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++, scale += place->groups, sums += place->groups) {
        const int32_t sum = *sums;
        const tile_float sx = _mm512_set1_ps(*scale);
        tile_int d = _mm512_load_si512(c[0][r]);
        if (two_scales) {
            const int32_t low = low_half_sum(q + (size_t)r * x->stride);
            acc[r] = add_product(sw[0], sx, minus(d, bias * low), acc[r]);
            acc[r] = add_product(sw[1], sx, minus(_mm512_load_si512(c[1][r]), bias * (sum - low)), acc[r]);
            continue;
        }
        if (bias) d = minus(d, bias * sum);
        if (kind == TILE_Z4) d = _mm512_sub_epi32(d, _mm512_mullo_epi32(zero_points, _mm512_set1_epi32(sum)));
        acc[r] = add_product(sw[0], sx, d, acc[r]);
        if (kind == TILE_A4) acc[r] = _mm512_fmadd_ps(offsets, _mm512_set1_ps(*scale * (float)sum), acc[r]);
    }
}

/* Two tiles for 16 rows; rows n.. of them are not stored. */
NF_TILE_CALL void amx_pair(tile_kind kind, nf_scale scales, const tile_place *place, const amx_rows *x,
                           size_t n, float *out, size_t out_stride) {
    const tile_int table = load_table(kind);
    tile_float waiting[5][ROWS]; /* sums of subtrees of 1, 2, 4, 8, 16 lanes */
    tile_float acc[ROWS];
    for (unsigned i = 0; i < NF_LANES; i++) {
        /* The bits of i from the other end: the order of the tree. */
        const unsigned lane = (i & 1) << 4 | (i & 2) << 2 | (i & 4) | (i & 8) >> 2 | (i & 16) >> 4;
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) acc[r] = _mm512_setzero_ps();
        for (size_t g = lane; g < place->groups; g += NF_LANES)
            amx_group(kind, scales, place, table, x, g, acc);
        int depth = 0;
        for (; i >> depth & 1; depth++)
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) acc[r] = _mm512_add_ps(waiting[depth][r], acc[r]);
        if (depth < 5)
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) waiting[depth][r] = acc[r];
    }
    const tile_float factor = _mm512_set1_ps(place->factor);
    for (size_t r = 0; r < n; r++)
        _mm512_storeu_ps(out + r * out_stride,
                         scales == NF_SCALE_E4M3 ? _mm512_mul_ps(acc[r], factor) : acc[r]);
}

typedef void (*amx_fn)(const tile_place *place, const amx_rows *x, size_t n, float *out, size_t out_stride);

#define NF_AMX(name, kind, scales)                                                                           \
    static void amx_##name(const tile_place *p, const amx_rows *x, size_t n, float *out, size_t stride) {    \
        amx_pair(kind, scales, p, x, n, out, stride);                                                        \
    }
NF_INT_FORMS(NF_AMX)
#undef NF_AMX
#define NF_AMX(name, kind, scales) amx_##name,
static const amx_fn forms[N_FORMS] = {NF_INT_FORMS(NF_AMX)};
#undef NF_AMX

/* `pairs` pairs of tiles for n (8..16) rows x. */
static void amx_pairs(const nf_weights *w, size_t first, size_t pairs, const amx_rows *x, size_t groups,
                      size_t n, float *out, size_t out_stride) {
    const amx_fn form = forms[int_form(w->format)];
    for (size_t t = 0; t < pairs; t++) {
        const tile_place place = {.block = w->tiles + (first + 2 * t) * w->tile_stride,
                                  .second = w->tile_stride,
                                  .groups = groups,
                                  .factor = w->format.scale == NF_SCALE_E4M3 ? w->table[0] : 1.0f};
        form(&place, x, n, out + 2 * NF_TILE_ROWS * t, out_stride);
    }
}

/* Rows that do not follow one another, or fewer than 16: copied first, zeros behind them. */
static __attribute__((noinline)) void gathered_pairs(const nf_weights *w, size_t first, size_t pairs,
                                                     const nf_rows *in, const uint32_t *index, size_t j,
                                                     size_t n, float *out, size_t out_stride) {
    _Alignas(64) int8_t q[ROWS * MOST_COLUMNS];
    _Alignas(64) float scale[ROWS * MOST_COLUMNS / NF_GROUP];
    _Alignas(64) int32_t sum[ROWS * MOST_COLUMNS / NF_GROUP];
    const size_t kp = in->kp, groups = kp / NF_GROUP;
    for (size_t r = 0; r < n; r++) {
        const size_t row = index ? index[j + r] : j + r;
        memcpy(q + r * kp, in->q + row * kp, kp);
        memcpy(scale + r * groups, in->scale + row * groups, groups * sizeof *scale);
        memcpy(sum + r * groups, in->sum + row * groups, groups * sizeof *sum);
    }
    memset(q + n * kp, 0, (ROWS - n) * kp);
    memset(scale + n * groups, 0, (ROWS - n) * groups * sizeof *scale);
    memset(sum + n * groups, 0, (ROWS - n) * groups * sizeof *sum);
    amx_pairs(w, first, pairs, &(amx_rows){q, kp, scale, sum}, groups, n, out, out_stride);
}

void nf_tiles_amx(const nf_weights *w, size_t first, size_t count, const nf_rows *in, const uint32_t *index,
                  size_t n, float *out) {
    const size_t groups = in->kp / NF_GROUP, pairs = count / 2, stride = NF_TILE_ROWS * count;
    const bool can_gather = in->kp <= MOST_COLUMNS, integers = nf_type_get(w->format.type)->integer_dot;
    const size_t least = can_gather ? FEWEST_ROWS : ROWS;
    if (!integers || !pairs || n < least || (index && !can_gather)) {
        nf_tiles_avx512(w, first, count, in, index, n, out);
        return;
    }
    configure();
    size_t j = 0;
    while (n - j >= least) {
        const size_t rows = n - j < ROWS ? n - j : ROWS;
        if (rows < ROWS || index) {
            gathered_pairs(w, first, pairs, in, index, j, rows, out + j * stride, stride);
        } else {
            const amx_rows x = {in->q + j * in->kp, in->kp, in->scale + j * groups, in->sum + j * groups};
            amx_pairs(w, first, pairs, &x, groups, rows, out + j * stride, stride);
        }
        j += rows;
    }
    _tile_release();
    /* The rows that are left over, then the tile. */
    if (j < n) {
        const nf_rows left = nf_rows_from(in, index ? 0 : j);
        for (size_t t = 0; t < pairs; t++)
            nf_int_tile_pair_avx512(w, first + 2 * t, &left, index ? index + j : NULL, n - j,
                                    out + j * stride + 2 * NF_TILE_ROWS * t, stride);
    }
    if (count % 2)
        nf_int_tile_avx512(w, first + count - 1, in, index, n, out + NF_TILE_ROWS * (count - 1), stride);
}

#else
typedef int nf_no_amx; /* an empty translation unit is not valid C */
#endif
