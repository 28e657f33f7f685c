/*
 * Importance statistics of a model's matrices (docs/quantisation.md): for each input column the sum of
 * squares of the values that reached it, and how many rows were summed; of an expert bank for each expert.
 * Knows nothing of models: an entry is a name, [experts, cols] sums and [experts] counts.
 */
#ifndef NF_FORMAT_IMPORTANCE_H
#define NF_FORMAT_IMPORTANCE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nf_importance_entry {
    char name[96];    /* "layers.0.self_attn.q_proj", "layers.0.mlp.experts.gate_up_proj" */
    uint32_t experts; /* 1 for a dense matrix */
    uint32_t cols;
    uint64_t *counts; /* [experts] input rows */
    float *sums;      /* [experts, cols], finite, >= 0 */
    double *mean;     /* [cols] mean square over all experts; set by nf_importance_read */
} nf_importance_entry;

/* Zero-initialise; free with nf_importance_free. */
typedef struct nf_importance {
    nf_importance_entry *entries;
    size_t n, cap;
} nf_importance;

/* Adds an entry of zeros. NF_ERR_FORMAT when the name is there already or has no place (empty, too long),
 * NF_ERR_LIMIT for sizes that no model has, NF_ERR_MEMORY. */
nf_status nf_importance_add(nf_importance *set, const char *name, uint64_t experts, uint64_t cols,
                            nf_error *err);
/* NULL when there is none. */
const nf_importance_entry *nf_importance_find(const nf_importance *set, const char *name);

/* Writes the file; what was there before stays until the new one is whole. */
nf_status nf_importance_write(const nf_importance *set, const char *path, nf_error *err);
/* Reads a file that may be damaged or hostile: every size, name and value is checked, and the checksum. */
nf_status nf_importance_read(const char *path, nf_importance *out, nf_error *err);
void nf_importance_free(nf_importance *set);

/* Weights [cols] of the squared errors of an expert's columns (of a dense matrix: expert 0), from an entry
 * that was read: the mean square of each column, blended with the mean over all experts as if that had been
 * seen NF_IMPORTANCE_PRIOR times, scaled to a mean of 1, at least NF_IMPORTANCE_FLOOR. All 1 when nothing was
 * seen. */
#define NF_IMPORTANCE_PRIOR 64.0
#define NF_IMPORTANCE_FLOOR 1e-3
void nf_importance_weights(const nf_importance_entry *entry, size_t expert, float *out);

#endif
