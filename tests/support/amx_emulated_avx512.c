/*
 * The AMX level's tiles (cpu/kernels_amx.c) on any processor with AVX-512: the tile instructions are C
 * functions here, written from Intel's instruction set reference (LDTILECFG, TILEZERO, TILELOADD, TDPBSUD,
 * TILESTORED), that also check that every register is used as it was configured.
 */
#include "tests/support/amx_emulated.h"

#include "cpu/kernels_internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef __AVX512VNNI__

#include <immintrin.h>

static _Thread_local struct {
    bool configured;
    uint16_t bytes[8];
    uint8_t rows[8];
    uint8_t data[8][16][64];
} amx;

static void check(bool ok) {
    if (!ok) abort();
}

static void emulated_loadconfig(const void *config) {
    const uint8_t *c = config;
    check(c[0] == 1 && c[1] == 0);
    for (int t = 0; t < 8; t++) {
        memcpy(&amx.bytes[t], c + 16 + 2 * t, 2);
        amx.rows[t] = c[48 + t];
        check(amx.bytes[t] <= 64 && amx.rows[t] <= 16 && !amx.bytes[t] == !amx.rows[t]);
    }
    memset(amx.data, 0, sizeof amx.data);
    amx.configured = true;
}

static void emulated_release(void) {
    amx.configured = false;
}

static void emulated_zero(int t) {
    check(amx.configured && amx.rows[t]);
    memset(amx.data[t], 0, sizeof amx.data[t]);
}

static void emulated_load(int t, const void *base, size_t stride) {
    check(amx.configured && amx.rows[t]);
    memset(amx.data[t], 0, sizeof amx.data[t]);
    for (size_t r = 0; r < amx.rows[t]; r++)
        memcpy(amx.data[t][r], (const uint8_t *)base + r * stride, amx.bytes[t]);
}

static void emulated_store(int t, void *base, size_t stride) {
    check(amx.configured && amx.rows[t]);
    for (size_t r = 0; r < amx.rows[t]; r++)
        memcpy((uint8_t *)base + r * stride, amx.data[t][r], amx.bytes[t]);
}

/* c [M, N] += a [M, 4 K] signed . b [K, N, 4] unsigned */
static void emulated_dpbsud(int c, int a, int b) {
    check(amx.configured && amx.rows[c] == amx.rows[a] && amx.bytes[a] == 4 * amx.rows[b] &&
          amx.bytes[c] == amx.bytes[b]);
    for (size_t m = 0; m < amx.rows[c]; m++)
        for (size_t n = 0; n < amx.bytes[c] / 4u; n++) {
            int32_t sum;
            memcpy(&sum, &amx.data[c][m][4 * n], 4);
            for (size_t k = 0; k < amx.rows[b]; k++)
                for (size_t i = 0; i < 4; i++)
                    sum += (int8_t)amx.data[a][m][4 * k + i] * amx.data[b][k][4 * n + i];
            memcpy(&amx.data[c][m][4 * n], &sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbsud emulated_dpbsud

static void emulated_tiles(const nf_weights *w, size_t first, size_t count, const nf_rows *in,
                           const uint32_t *index, size_t n, float *out);

#define NF_AMX_EMULATED
#define nf_tiles_amx emulated_tiles
#include "cpu/kernels_amx.c"
#undef nf_tiles_amx

const nf_kernels *emulated_amx(void) {
    static nf_kernels table;
    if (!nf_kernels_by_name("avx512")) return NULL;
    table = nf_kernels_avx512;
    table.name = "emulated amx";
    table.tiles = emulated_tiles;
    return &table;
}

#else
const nf_kernels *emulated_amx(void) {
    return NULL;
}
#endif
