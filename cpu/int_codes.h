/*
 * The integer-dot blocks as vectors: what a kind of codes is, how a block of it is laid out and unpacked,
 * what the bias of its unsigned form is. Shared by int_tiles.h and the AMX level, which multiply in different
 * ways.
 */
#ifndef NF_CPU_INT_CODES_H
#define NF_CPU_INT_CODES_H

#include "cpu/kernels.h"
#include "cpu/lanes.h"
#include "cpu/tile_vec.h"

typedef enum tile_kind {
    TILE_LINEAR, /* c4, -8..7 */
    TILE_NL,     /* c4, IQ4_NL */
    TILE_E2M1,   /* c4, twice e2m1 */
    TILE_Z4,
    TILE_A4,
    TILE_S5,
    TILE_S6,
    TILE_I8
} tile_kind;

/* 4 columns of 8 rows each: u[j] = columns 4j..4j+3. Unsigned (weight + bias) unless is_signed(kind). */
typedef struct tile_codes {
    tile_int u[8];
} tile_codes;

/* What is subtracted: the unsigned weight is the weight plus this. */
NF_TILE_CALL int32_t bias_of(tile_kind kind) {
    switch (kind) {
    case TILE_LINEAR:
        return 8;
    case TILE_E2M1:
        return 12;
    case TILE_S5:
        return 16;
    case TILE_S6:
        return 32;
#ifdef NF_TILES_VNNI
    case TILE_NL:
    case TILE_I8:
        return 128;
#endif
    default:
        return 0;
    }
}

NF_TILE_CALL tile_int load_table(tile_kind kind) {
    if (kind != TILE_NL && kind != TILE_E2M1) return NF_TILE_BITS(setzero)();
    const int8_t *values = nf_codebook_values(kind == TILE_NL ? NF_CODEBOOK_NL : NF_CODEBOOK_E2M1);
    tile_int table = load_repeated(values);
    return NF_TILE_VEC(add_epi8)(table, NF_TILE_VEC(set1_epi8)((char)bias_of(kind)));
}

NF_TILE_CALL tile_codes unpack(tile_kind kind, const uint8_t *codes, size_t second, tile_int table) {
    const tile_int low = NF_TILE_VEC(set1_epi8)(15);
    tile_codes c;
    if (kind == TILE_I8) {
        for (int j = 0; j < 8; j++) {
            c.u[j] = load_run(codes + 32 * j, second);
#ifdef NF_TILES_VNNI
            c.u[j] = NF_TILE_BITS(xor)(c.u[j], NF_TILE_VEC(set1_epi8)((char)0x80));
#endif
        }
        return c;
    }
    for (int j = 0; j < 4; j++) {
        tile_int raw = load_run(codes + 32 * j, second);
        c.u[j] = NF_TILE_BITS(and)(raw, low);
        c.u[4 + j] = NF_TILE_BITS(and)(NF_TILE_VEC(srli_epi16)(raw, 4), low);
    }
    if (kind == TILE_NL || kind == TILE_E2M1)
        for (int j = 0; j < 8; j++) c.u[j] = NF_TILE_VEC(shuffle_epi8)(table, c.u[j]);
    if (kind == TILE_S5) {
        /* Two's complement plus 16: the high bit turned over. */
        const tile_int bit = NF_TILE_VEC(set1_epi8)(16);
        tile_int plane = NF_TILE_BITS(xor)(load_run(codes + 128, second), NF_TILE_VEC(set1_epi8)((char)0xff));
        for (int j = 0; j < 4; j++) {
            c.u[j] = NF_TILE_BITS(or)(c.u[j], NF_TILE_BITS(and)(shift_left(plane, 4 - j), bit));
            c.u[4 + j] = NF_TILE_BITS(or)(c.u[4 + j], NF_TILE_BITS(and)(shift_right(plane, j), bit));
        }
    }
    if (kind == TILE_S6) {
        const tile_int bits = NF_TILE_VEC(set1_epi8)(48), top = NF_TILE_VEC(set1_epi8)((char)0xaa);
        for (int half = 0; half < 2; half++) {
            tile_int plane = NF_TILE_BITS(xor)(load_run(codes + 128 + 32 * half, second), top), moved[4];
            moved[0] = NF_TILE_VEC(slli_epi16)(plane, 4);
            moved[1] = NF_TILE_VEC(slli_epi16)(plane, 2);
            moved[2] = plane;
            moved[3] = NF_TILE_VEC(srli_epi16)(plane, 2);
            for (int j = 0; j < 4; j++)
                c.u[4 * half + j] = NF_TILE_BITS(or)(c.u[4 * half + j], NF_TILE_BITS(and)(moved[j], bits));
        }
    }
    return c;
}

/* Where a tile (two tiles when the vector is wide) lies, and how many blocks it has. */
typedef struct tile_place {
    const uint8_t *block;
    size_t second; /* bytes from the first tile to the second */
    size_t groups;
    float factor; /* of finished rows: c4 with e4m3 scales */
} tile_place;

/* Where the parts of a block lie; constants where kind and scales are. */
typedef struct tile_layout {
    size_t offsets, codes, block;
} tile_layout;

NF_TILE_CALL tile_layout layout_of(tile_kind kind, nf_scale scales) {
    tile_layout l = {.offsets = scales == NF_SCALE_E8M0 ? 8 : 16};
    l.codes = l.offsets + (kind == TILE_Z4 ? 8 : kind == TILE_A4 ? 16 : 0);
    l.block = l.codes + (kind == TILE_I8 ? 256 : kind == TILE_S5 ? 160 : kind == TILE_S6 ? 192 : 128);
    return l;
}

/* The scales of a block: sw[1] only of those that have two. */
NF_TILE_CALL void load_scales(tile_kind kind, nf_scale scales, const uint8_t *block, size_t second,
                              tile_float *sw) {
    const tile_float half = NF_TILE_VEC(set1_ps)(0.5f);
    sw[0] = sw[1] = NF_TILE_VEC(setzero_ps)();
    if (scales == NF_SCALE_F16) sw[0] = load_f16(block, second);
    if (scales == NF_SCALE_E8M0) sw[0] = load_e8m0(block, second);
    if (scales == NF_SCALE_E4M3) sw[0] = load_e4m3(block, second), sw[1] = load_e4m3(block + 8, second);
    if (kind == TILE_E2M1) sw[0] = NF_TILE_VEC(mul_ps)(sw[0], half);
    if (kind == TILE_E2M1 && scales == NF_SCALE_E4M3) sw[1] = NF_TILE_VEC(mul_ps)(sw[1], half);
}

/* Sum of the first 16 inputs of a group: for the types with two scales. */
NF_TILE_CALL int32_t low_half_sum(const int8_t *q) {
    /* Bytes moved to 0..255, added by vpsadbw, moved back. */
    __m128i x = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)q), _mm_set1_epi8((char)0x80));
    __m128i s = _mm_sad_epu8(x, _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

/* The blocks that the memory should bring next: hardware prefetchers stop at page ends, tiles go on beyond.
 */
NF_TILE_CALL void prefetch_ahead(const uint8_t *block, size_t bytes) {
#ifdef NF_TILES_AHEAD
    for (size_t i = 0; i + 32 < bytes; i += 64)
        _mm_prefetch((const char *)(block + NF_TILES_AHEAD + i), _MM_HINT_T0);
#else
    (void)block, (void)bytes;
#endif
}

NF_TILE_CALL tile_float add_product(tile_float scale, tile_float sx, tile_int dot, tile_float acc) {
    return NF_TILE_VEC(fmadd_ps)(NF_TILE_VEC(mul_ps)(scale, sx), NF_TILE_VEC(cvtepi32_ps)(dot), acc);
}

NF_TILE_CALL tile_int minus(tile_int dot, int32_t x) {
    return NF_TILE_VEC(sub_epi32)(dot, NF_TILE_VEC(set1_epi32)(x));
}

/* Every kind of codes with every kind of scales it may have: X(name, kind, scales). */
#define NF_INT_FORMS(X)                                                                                      \
    X(linear_f16, TILE_LINEAR, NF_SCALE_F16)                                                                 \
    X(linear_e8m0, TILE_LINEAR, NF_SCALE_E8M0)                                                               \
    X(linear_e4m3, TILE_LINEAR, NF_SCALE_E4M3)                                                               \
    X(nl_f16, TILE_NL, NF_SCALE_F16)                                                                         \
    X(nl_e8m0, TILE_NL, NF_SCALE_E8M0)                                                                       \
    X(nl_e4m3, TILE_NL, NF_SCALE_E4M3)                                                                       \
    X(e2m1_f16, TILE_E2M1, NF_SCALE_F16)                                                                     \
    X(e2m1_e8m0, TILE_E2M1, NF_SCALE_E8M0)                                                                   \
    X(e2m1_e4m3, TILE_E2M1, NF_SCALE_E4M3)                                                                   \
    X(z4, TILE_Z4, NF_SCALE_F16)                                                                             \
    X(a4, TILE_A4, NF_SCALE_F16)                                                                             \
    X(s5, TILE_S5, NF_SCALE_F16)                                                                             \
    X(s6, TILE_S6, NF_SCALE_F16)                                                                             \
    X(i8, TILE_I8, NF_SCALE_F16)

#define NF_FORM_NAME(name, kind, scales) FORM_##name,
enum { NF_INT_FORMS(NF_FORM_NAME) N_FORMS };
#undef NF_FORM_NAME

static inline int int_form(nf_format format) {
    switch (format.type) {
    case NF_TYPE_C4:
        return FORM_linear_f16 + ((int)format.codebook - NF_CODEBOOK_LINEAR) * NF_SCALE_COUNT +
               (int)format.scale;
    case NF_TYPE_Z4:
        return FORM_z4;
    case NF_TYPE_A4:
        return FORM_a4;
    case NF_TYPE_S5:
        return FORM_s5;
    case NF_TYPE_S6:
        return FORM_s6;
    default:
        return FORM_i8;
    }
}

#endif
