/*
 * Storage types: what a stored matrix element is, how 8 rows x 32 columns of it are laid out, and the
 * reference (slow, exact) conversions. A type is data: kernels read these traits, they are not copied for
 * each type. The meaning of every byte is specified in docs/arithmetic.md.
 *
 * Geometry: 8 rows form a tile; a tile is ceil(K/32) blocks of 8 rows x 32 columns; a matrix is its tiles in
 * row order. N is padded to 8, K to 32. Padding bytes are zero.
 *
 * Inside a block the eight rows are interleaved, so that a vector holds the same columns of all of them and
 * needs no sum across its lanes: integer codes in runs of 8 rows x 4 columns, floats in columns of 8 rows.
 */
#ifndef NF_FORMAT_TYPES_H
#define NF_FORMAT_TYPES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NF_TILE_ROWS 8
#define NF_GROUP 32     /* columns of a group: one scale, one integer dot */
#define NF_F8_BLOCK 128 /* rows and columns that share one f32 scale in type f8 */

/* Numbers are part of the container format: never renumber. */
typedef enum nf_type {
    NF_TYPE_F32 = 0,
    NF_TYPE_F16 = 1,
    NF_TYPE_BF16 = 2,
    NF_TYPE_F8 = 3,  /* e4m3 with an f32 scale per 128x128 block */
    NF_TYPE_I8 = 4,  /* int8, f16 scale per group */
    NF_TYPE_C4 = 5,  /* 4-bit index into a codebook, scale per group */
    NF_TYPE_U8 = 6,  /* raw bytes (blobs) */
    NF_TYPE_Z4 = 7,  /* unsigned 4 bits minus a u8 zero point, f16 scale */
    NF_TYPE_A4 = 8,  /* unsigned 4 bits, f16 scale and f16 offset */
    NF_TYPE_S5 = 9,  /* 5 bits, two's complement, f16 scale */
    NF_TYPE_S6 = 10, /* 6 bits, two's complement, f16 scale */
    NF_TYPE_COUNT
} nf_type;

typedef enum nf_codebook {
    NF_CODEBOOK_NONE = 0,
    NF_CODEBOOK_LINEAR = 1, /* -8..7 */
    NF_CODEBOOK_NL = 2,     /* the 16 values of IQ4_NL */
    NF_CODEBOOK_E2M1 = 3,   /* twice the e2m1 values: the scale of step 3 is half the stored one */
    NF_CODEBOOK_COUNT
} nf_codebook;

/* How the scales of c4 are stored; all other types have f16 scales or none. */
typedef enum nf_scale {
    NF_SCALE_F16 = 0,
    NF_SCALE_E8M0 = 1, /* 2^(byte - 127), one for each group of 32 */
    NF_SCALE_E4M3 = 2, /* one for 16 columns, and one f32 for the whole matrix */
    NF_SCALE_COUNT
} nf_scale;

/* How a matrix is stored. */
typedef struct nf_format {
    nf_type type;
    nf_codebook codebook; /* NF_CODEBOOK_NONE unless type is NF_TYPE_C4 */
    nf_scale scale;       /* NF_SCALE_F16 unless type is NF_TYPE_C4 */
} nf_format;

typedef struct nf_type_traits {
    const char *name; /* "c4" */
    uint32_t bits;    /* bits of one element without scales */
    bool integer_dot; /* contract A integer types; the others are float types */
} nf_type_traits;

/* Parts of a block in the order in which they are stored, in bytes. */
typedef struct nf_layout {
    uint32_t scales;  /* f16: 16; e8m0: 8; e4m3: 16 (columns 0..15 of the 8 rows, then 16..31); floats: 0 */
    uint32_t offsets; /* z4: 8 u8 zero points; a4: 8 f16 offsets; else 0 */
    uint32_t codes;   /* 128 (nibbles), 256 (i8, f8), 512, 1024 */
    uint32_t planes;  /* s5: 32, s6: 64 bytes of high bits; else 0 */
    uint32_t block;   /* their sum */
} nf_layout;

/* Traits of a type; NULL for values outside the enum. */
const nf_type_traits *nf_type_get(nf_type type);
/* Finds a type by name ("c4", "i8", "bf16", ...). Returns false for unknown names. */
bool nf_type_by_name(const char *name, nf_type *out);
/* The 16 int8 values of a codebook; NULL for NF_CODEBOOK_NONE and unknown numbers. */
const int8_t *nf_codebook_values(nf_codebook codebook);
const char *nf_codebook_name(nf_codebook codebook);
const char *nf_scale_name(nf_scale scale);
/* "linear", "nl", "e2m1"; "f16", "e8m0", "e4m3". Return false for unknown names. */
bool nf_codebook_by_name(const char *name, nf_codebook *out);
bool nf_scale_by_name(const char *name, nf_scale *out);
/* A matrix can be stored so: a type with elements, a codebook and a scale kind exactly as the type has them.
 */
bool nf_format_valid(nf_format format);
/* "c4/linear", "c4/nl", "c4/e2m1/e8m0", "i8": for messages and listings. Static text. */
const char *nf_format_name(nf_format format);
/* A table of f32 follows the tiles (nf_matrix_table_bytes). */
bool nf_format_has_table(nf_format format);
/* The block of a format; all zero for one that is not valid. */
nf_layout nf_layout_get(nf_format format);

/* Bytes of the tiles of an N x K matrix (without the table behind them). 0 on overflow or bad format. */
uint64_t nf_matrix_tile_bytes(nf_format format, uint64_t rows, uint64_t cols);
/* Bytes of the f32 table behind the tiles: f8 block scales [ceil(N/128), ceil(K/128)], c4 with e4m3 scales
 * one f32 for the matrix, otherwise 0. */
uint64_t nf_matrix_table_bytes(nf_format format, uint64_t rows, uint64_t cols);
/* Whole matrix outside a bank: tiles, then (on a multiple of 64 bytes) the table. */
uint64_t nf_matrix_bytes(nf_format format, uint64_t rows, uint64_t cols);
/* Offset of the table inside nf_matrix_bytes. */
uint64_t nf_matrix_table_offset(nf_format format, uint64_t rows, uint64_t cols);

/* Quantises one tile: n_rows (1..8; the missing rows are zero padding) rows of `cols` floats, `stride` floats
 * apart, to `out` (ceil(cols/32) blocks). `table`: f8: the scales of this tile's row of 128-blocks,
 * [ceil(cols/128)] (element = e4m3(w / scale)); c4 with e4m3 scales: the matrix's one f32; NULL otherwise.
 * `importance` [cols] weighs the squared errors of the columns (finite, >= 0), NULL: all alike.
 * Values must be finite: NF_ERR_NUMERIC names row and column (relative to the tile) of the first that is not,
 * or that f16 (as a value or as its group's scale), bf16 or f8 cannot hold, or the entry of the table that is
 * 0 or not finite. The same bytes with every compiler. */
nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *table, const float *importance, uint8_t *out, nf_error *err);
/* Inverse: writes n_rows x cols floats, `stride` floats apart. A format that no matrix has, or one that needs
 * a table without it, gives NaN. */
void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols, const float *table,
                        float *rows, size_t stride);
/* One row (0..7) of a tile: `cols` floats to out. */
void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols, const float *table,
                       float *out);

/* f8: the scale table of an N x K f32 matrix (power-of-two scales, absmax maps to <= 448; a zero block has
 * scale 1). out [ceil(N/128), ceil(K/128)]. */
void nf_f8_block_scales(const float *w, size_t stride, size_t rows, size_t cols, float *out);
/* c4 with e4m3 scales: the f32 of a matrix whose largest magnitude is absmax: the group that holds it gets
 * the largest e4m3 scale, 448. 1 for a matrix of zeros. */
float nf_c4_factor(nf_codebook codebook, float absmax);
/* The entry of a matrix's table that tile t begins with; NULL for formats without a table. */
const float *nf_tile_table(nf_format format, const float *table, size_t cols, size_t t);

#endif
