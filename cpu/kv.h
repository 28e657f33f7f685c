/*
 * The KV cache of one KV head over a block of positions: its element types, where each element lies, and how
 * a new position is put there. The attention kernels (cpu/attention_kernels.h) read it. A type is data: one
 * row of traits here and one load in cpu/kv_load.h; docs/arithmetic.md, "The KV cache", is the definition.
 */
#ifndef NF_CPU_KV_H
#define NF_CPU_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Attention walks the keys in blocks at absolute multiples of this many positions (contract B). */
#define NF_ATTENTION_BLOCK 256

typedef enum nf_kv_type {
    NF_KV_F32,
    NF_KV_BF16,
    NF_KV_FP8, /* e4m3, one f32 scale for a position */
    NF_KV_Q8,  /* int8, one f32 scale for 32 columns of a position */
    NF_KV_N_TYPES
} nf_kv_type;

/* The names of the types, for messages and --help. */
#define NF_KV_TYPE_NAMES "f32, bf16, fp8 or q8"

/* K and V of one KV head over NF_ATTENTION_BLOCK positions; offsets are bytes from the block's begin,
 * multiples of 64. Elements: K as [256/16][dim][16 keys], V as [ceil(dim/16)][256][16 columns], padded with
 * zeros. Scales, f32: of K as [256/16][n_scales][16 keys], of V as [n_scales][256]. */
typedef struct nf_kv_layout {
    nf_kv_type type;
    size_t dim;
    size_t group;    /* columns whose products are added up before they are scaled: dim, or 32 (q8) */
    size_t n_scales; /* of a position, in K and again in V; 0: the type has none */
    size_t v, k_scales, v_scales; /* K begins at 0 */
    size_t bytes;                 /* of the whole */
} nf_kv_layout;

/* For dim >= 1. */
nf_kv_layout nf_kv_layout_get(nf_kv_type type, size_t dim);

/* Finds a type by name. Returns false for unknown names. */
bool nf_kv_type_by_name(const char *name, nf_kv_type *out);
const char *nf_kv_type_name(nf_kv_type type);

/* Puts k and v [dim] of position `slot` of the block in their place. False when a value is NaN or infinite,
 * or rounds to infinity (bf16): the position's contents are then unspecified. */
bool nf_kv_store(const nf_kv_layout *layout, void *block, size_t slot, const float *k, const float *v);

#endif
