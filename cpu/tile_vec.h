/*
 * The vectors that integer tiles are computed with (cpu/int_tiles.h): 256 bits for one tile of 8 rows, or,
 * with NF_TILES_WIDE, 512 bits for two tiles whose blocks lie `second` bytes apart. Every lane sees the same
 * operations in both widths.
 */
#ifndef NF_CPU_TILE_VEC_H
#define NF_CPU_TILE_VEC_H

#include <immintrin.h>
#include <stdint.h>

#define NF_TILE_CALL static inline __attribute__((always_inline))

#ifdef NF_TILES_WIDE

#define NF_TILE_VEC(name) _mm512_##name
#define NF_TILE_BITS(name) _mm512_##name##_si512
typedef __m512i tile_int;
typedef __m512 tile_float;

NF_TILE_CALL __m256i both_halves(const uint8_t *at, size_t second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at)),
                                   _mm_loadu_si128((const __m128i *)(const void *)(at + second)), 1);
}
/* 32 bytes of each tile. */
NF_TILE_CALL tile_int load_run(const uint8_t *at, size_t second) {
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a),
                              _mm256_loadu_si256((const __m256i *)(const void *)(at + second)), 1);
}
/* 16-bit lanes shifted by n, which is a constant after inlining. Compilers differ in the type of the
 * intrinsics' counts. */
NF_TILE_CALL tile_int shift_left(tile_int x, int n) {
    return (tile_int)((__v32hu)x << (unsigned short)n);
}
NF_TILE_CALL tile_int shift_right(tile_int x, int n) {
    return (tile_int)((__v32hu)x >> (unsigned short)n);
}
/* 16 bytes repeated in each 128 bits. */
NF_TILE_CALL tile_int load_repeated(const int8_t *at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* 8 bytes of each tile, as int16. */
NF_TILE_CALL __m256i load_bytes16(const uint8_t *at, size_t second) {
    return _mm256_cvtepu8_epi16(
        _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)at),
                           _mm_loadl_epi64((const __m128i *)(const void *)(at + second))));
}
#define NF_TILE_HALF(name) _mm256_##name
#define NF_TILE_HALF_BITS(name) _mm256_##name##_si256
typedef __m256i tile_half;
NF_TILE_CALL tile_float load_f16(const uint8_t *at, size_t second) {
    return _mm512_cvtph_ps(both_halves(at, second));
}
NF_TILE_CALL tile_int load_u8(const uint8_t *at, size_t second) {
    return _mm512_cvtepu16_epi32(load_bytes16(at, second));
}
NF_TILE_CALL tile_float as_float(tile_int x) {
    return _mm512_castsi512_ps(x);
}

#else

#define NF_TILE_VEC(name) _mm256_##name
#define NF_TILE_BITS(name) _mm256_##name##_si256
typedef __m256i tile_int;
typedef __m256 tile_float;

NF_TILE_CALL tile_int load_run(const uint8_t *at, size_t second) {
    (void)second;
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
NF_TILE_CALL tile_int shift_left(tile_int x, int n) {
    return (tile_int)((__v16hu)x << (unsigned short)n);
}
NF_TILE_CALL tile_int shift_right(tile_int x, int n) {
    return (tile_int)((__v16hu)x >> (unsigned short)n);
}
NF_TILE_CALL tile_int load_repeated(const int8_t *at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
}
NF_TILE_CALL __m128i load_bytes16(const uint8_t *at, size_t second) {
    (void)second;
    return _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
}
#define NF_TILE_HALF(name) _mm_##name
#define NF_TILE_HALF_BITS(name) _mm_##name##_si128
typedef __m128i tile_half;
NF_TILE_CALL tile_float load_f16(const uint8_t *at, size_t second) {
    (void)second;
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
NF_TILE_CALL tile_int load_u8(const uint8_t *at, size_t second) {
    return _mm256_cvtepu16_epi32(load_bytes16(at, second));
}
NF_TILE_CALL tile_float as_float(tile_int x) {
    return _mm256_castsi256_ps(x);
}

#endif

/* 2^(byte - 127) for each row; byte 0 is 2^-127. */
NF_TILE_CALL tile_float load_e8m0(const uint8_t *at, size_t second) {
    tile_int e = NF_TILE_VEC(slli_epi32)(load_u8(at, second), 23);
    return as_float(NF_TILE_VEC(max_epi32)(e, NF_TILE_VEC(set1_epi32)(0x00400000)));
}

/* e4m3 by way of f16, whose exponent bias is 8 larger. NaN codes give NaN. */
NF_TILE_CALL tile_float load_e4m3(const uint8_t *at, size_t second) {
    tile_half b = load_bytes16(at, second), largest = NF_TILE_HALF(set1_epi16)(0x7f);
    tile_half magnitude = NF_TILE_HALF_BITS(and)(b, largest);
    tile_half nan = NF_TILE_HALF(cmpeq_epi16)(magnitude, largest);
    tile_half sign = NF_TILE_HALF(slli_epi16)(NF_TILE_HALF(sub_epi16)(b, magnitude), 8);
    tile_half half = NF_TILE_HALF_BITS(or)(NF_TILE_HALF(slli_epi16)(magnitude, 7), sign);
    return NF_TILE_VEC(mul_ps)(NF_TILE_VEC(cvtph_ps)(NF_TILE_HALF_BITS(or)(half, nan)),
                               NF_TILE_VEC(set1_ps)(256.0f));
}

#endif
