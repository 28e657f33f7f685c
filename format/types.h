/*
 * Storage types: what a stored matrix element is, how 8 rows x 32 columns of it are laid out, and the
 * reference (slow, exact) conversions. A type is data: kernels read these traits, they are not copied for
 * each type. The meaning of every byte is specified in docs/arithmetic.md.
 *
 * Geometry: 8 rows form a tile; a tile is ceil(K/32) blocks of 8 rows x 32 columns; a matrix is its tiles in
 * row order. N is padded to 8, K to 32. Padding bytes are zero.
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
    NF_TYPE_F8 = 3, /* e4m3 with an f32 scale per 128x128 block */
    NF_TYPE_I8 = 4, /* int8, f16 scale per group */
    NF_TYPE_C4 = 5, /* 4-bit index into a codebook, scale per group */
    NF_TYPE_U8 = 6, /* raw bytes (blobs) */
    NF_TYPE_COUNT
} nf_type;

typedef enum nf_codebook {
    NF_CODEBOOK_NONE = 0,
    NF_CODEBOOK_LINEAR = 1, /* -8..7 */
    NF_CODEBOOK_NL = 2,     /* the 16 values of IQ4_NL */
    NF_CODEBOOK_COUNT
} nf_codebook;

/* How a matrix is stored. */
typedef struct nf_format {
    nf_type type;
    nf_codebook codebook; /* NF_CODEBOOK_NONE unless type is NF_TYPE_C4 */
} nf_format;

typedef struct nf_type_traits {
    const char *name;      /* "c4" */
    uint32_t bits;         /* bits of one element without scales */
    uint32_t scale_bytes;  /* bytes of scales in front of each block (16 for 8 f16 scales, else 0) */
    uint32_t row_bytes;    /* payload bytes of one row of a block (32 columns) */
    uint32_t block_bytes;  /* scale_bytes + 8 * row_bytes */
    bool integer_dot;      /* contract A integer types; the others are float types */
    bool has_block_scales; /* f8: a table of f32 [ceil(N/128), ceil(K/128)] follows the tiles */
} nf_type_traits;

/* Traits of a type; NULL for values outside the enum. */
const nf_type_traits *nf_type_get(nf_type type);
/* Finds a type by name ("c4", "i8", "bf16", ...). Returns false for unknown names. */
bool nf_type_by_name(const char *name, nf_type *out);
/* The 16 int8 values of a codebook; NULL for NF_CODEBOOK_NONE and unknown numbers. */
const int8_t *nf_codebook_values(nf_codebook codebook);
const char *nf_codebook_name(nf_codebook codebook);

/* Bytes of the tiles of an N x K matrix (without the f8 scale table). 0 on overflow or bad type. */
uint64_t nf_matrix_tile_bytes(nf_type type, uint64_t rows, uint64_t cols);
/* Bytes of the f8 block-scale table, 0 for other types. */
uint64_t nf_matrix_scale_bytes(nf_type type, uint64_t rows, uint64_t cols);
/* Whole matrix outside a bank: tiles, then (on a multiple of 64 bytes) the scale table. */
uint64_t nf_matrix_bytes(nf_type type, uint64_t rows, uint64_t cols);
/* Offset of the scale table inside nf_matrix_bytes. */
uint64_t nf_matrix_scale_offset(nf_type type, uint64_t rows, uint64_t cols);

/* Quantises one tile: n_rows (1..8; the missing rows are zero padding) rows of `cols` floats, `stride` floats
 * apart, to `out` (ceil(cols/32) * block_bytes bytes). For NF_TYPE_F8 the caller supplies the scales of this
 * tile's row of 128-blocks, `block_scales` [ceil(cols/128)] (element = e4m3(w / scale)); NULL otherwise.
 * Values must be finite: NF_ERR_NUMERIC names row and column (relative to the tile) of the first that is not,
 * or that f16 (as a value or as its group's scale), bf16 or f8 cannot hold, or the f8 scale that is 0 or not
 * finite. The same bytes with every compiler. */
nf_status nf_quantise_tile(nf_format format, const float *rows, size_t stride, size_t n_rows, size_t cols,
                           const float *block_scales, uint8_t *out, nf_error *err);
/* Inverse: writes n_rows x cols floats, `stride` floats apart. A format that no matrix has, or f8 without
 * scales, gives NaN. */
void nf_dequantise_tile(nf_format format, const uint8_t *tile, size_t n_rows, size_t cols,
                        const float *block_scales, float *rows, size_t stride);
/* One row (0..7) of a tile: `cols` floats to out. */
void nf_dequantise_row(nf_format format, const uint8_t *tile, size_t row, size_t cols,
                       const float *block_scales, float *out);
/* f8: computes the scale table of an N x K f32 matrix (power-of-two scales, absmax maps to <= 448; a zero
 * block has scale 1). out [ceil(N/128), ceil(K/128)]. */
void nf_f8_block_scales(const float *w, size_t stride, size_t rows, size_t cols, float *out);

#endif
