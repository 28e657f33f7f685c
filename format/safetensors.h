/*
 * Reader of safetensors checkpoints: one file, or a folder with model.safetensors.index.json (or without it:
 * model.safetensors or every *.safetensors). Files are memory-mapped; headers are hostile input: lengths,
 * offsets, overlaps, gaps that hide bytes, dtypes, shapes, duplicate names and names of the index are all
 * checked before a tensor is handed out. Format: https://github.com/huggingface/safetensors (README,
 * "Format").
 */
#ifndef NF_FORMAT_SAFETENSORS_H
#define NF_FORMAT_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum nf_st_dtype {
    NF_ST_BOOL,
    NF_ST_U8,
    NF_ST_I8,
    NF_ST_I16,
    NF_ST_U16,
    NF_ST_F16,
    NF_ST_BF16,
    NF_ST_I32,
    NF_ST_U32,
    NF_ST_F32,
    NF_ST_F64,
    NF_ST_I64,
    NF_ST_U64,
    NF_ST_F8_E4M3,
    NF_ST_F8_E5M2,
    NF_ST_F8_E8M0,
    NF_ST_DTYPE_COUNT
} nf_st_dtype;

#define NF_ST_MAX_DIMS 8

/* One tensor. Pointers live as long as the nf_safetensors. */
typedef struct nf_st_tensor {
    const char *name;
    const char *file; /* path of its file, for messages */
    nf_st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[NF_ST_MAX_DIMS];
    const uint8_t *data; /* in the mapping; alignment is not guaranteed */
    uint64_t bytes;
} nf_st_tensor;

typedef struct nf_safetensors nf_safetensors;

/* Opens a folder or a single .safetensors file. With an index, every file it names must exist and every
 * weight it lists must be in the file it names; a tensor found in two files is an error. */
nf_status nf_safetensors_open(const char *path, nf_safetensors **out, nf_error *err);
/* Unmaps everything. Accepts NULL. */
void nf_safetensors_close(nf_safetensors *st);

/* Tensors sorted by name (byte order). */
size_t nf_safetensors_count(const nf_safetensors *st);
const nf_st_tensor *nf_safetensors_at(const nf_safetensors *st, size_t i);
/* NULL when there is none of that name. O(log n). */
const nf_st_tensor *nf_safetensors_find(const nf_safetensors *st, const char *name);
/* Total bytes of all tensors. */
uint64_t nf_safetensors_bytes(const nf_safetensors *st);

const char *nf_st_dtype_name(nf_st_dtype dtype); /* "BF16" */
size_t nf_st_dtype_size(nf_st_dtype dtype);

/* Converts `n` elements from element `first` to f32 (F64/F32/F16/BF16/F8_E4M3/F8_E5M2 and the integers;
 * F8_E8M0 gives 2^(s-127)). NF_ERR_UNSUPPORTED for BOOL. NaN bit patterns pass through as NaN. The range must
 * be inside. */
nf_status nf_st_to_f32(const nf_st_tensor *tensor, uint64_t first, uint64_t n, float *out, nf_error *err);

/* Tells the kernel that what was read so far is not needed again soon, so that resident memory does not grow
 * with the checkpoint. Pages that are read again come back from the page cache; safe to call from any thread
 * at any time. */
void nf_safetensors_release(const nf_safetensors *st);

#endif
