/* One row of one block: stored codes and scales, and the bytes they become. Shared by block.c and quantise.c.
 */
#ifndef NF_FORMAT_BLOCK_INTERNAL_H
#define NF_FORMAT_BLOCK_INTERNAL_H

#include "format/types.h"

/* 32 columns of one row in an integer-dot type, as stored. */
typedef struct nf_coded_group {
    uint8_t
        code[NF_GROUP]; /* index (c4), unsigned (z4, a4), two's complement in 5, 6 or 8 bits (s5, s6, i8) */
    uint16_t scale[2];  /* f16 bits, e8m0 or e4m3 byte; the second one only with e4m3 */
    uint16_t offset;    /* z4: zero point; a4: f16 bits; else 0 */
} nf_coded_group;

/* Writes a group into row (0..7) of a block whose bytes of that row are zero. */
void nf_block_put(nf_format format, const nf_coded_group *g, size_t row, uint8_t *block);
/* Reads it back. */
void nf_block_get(nf_format format, const uint8_t *block, size_t row, nf_coded_group *g);

/* The scale that enters a product: widened, halved with codebook e2m1. */
float nf_coded_scale(nf_format format, uint16_t bits);
/* Float types: where element (row, column) of a block begins, in elements. */
static inline size_t nf_float_at(size_t row, size_t column) {
    return column * NF_TILE_ROWS + row;
}

#endif
