/*
 * Importance statistics: for each matrix (for a bank, each expert) the sum of squares of every input column
 * and the number of input rows that were summed. Recorded while a text is scored, read by the converter, which
 * weighs the errors of columns by them. The file is specified in docs/quantisation.md.
 */
#ifndef NF_FORMAT_IMPORTANCE_H
#define NF_FORMAT_IMPORTANCE_H

#include "base/buf.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define NF_IMPORTANCE_NAME_MAX 255

/* Statistics of one matrix, or of one input of all the experts of a bank. */
typedef struct nf_importance_matrix {
    const char *name;       /* the object's name; in a bank "/gate_up" or "/down" is appended to it */
    uint32_t experts;       /* 1 for a matrix outside banks */
    uint64_t cols;          /* columns of the matrix */
    const uint64_t *counts; /* [experts]: input rows */
    const float *sums;      /* [experts, cols]: sums of squares, finite, >= 0 */
} nf_importance_matrix;

typedef struct nf_importance {
    uint64_t tokens; /* that the model evaluated */
    size_t n;
    nf_importance_matrix *matrices; /* [n], sorted by name, names unique */
    nf_buf bytes;                   /* of the file: what the arrays point into */
    char *names;
} nf_importance;

/* Reads and checks a file (hostile until checked: sizes, order, checksum, every number). NF_ERR_FORMAT says
 * what is wrong with it. Free with nf_importance_free. */
nf_status nf_importance_load(const char *path, nf_importance *out, nf_error *err);
/* Accepts a zeroed one. */
void nf_importance_free(nf_importance *importance);
/* NULL when there is none of that name. */
const nf_importance_matrix *nf_importance_find(const nf_importance *importance, const char *name);

/* Writes a file atomically. The matrices are sorted by name (in place). NF_ERR_NUMERIC for a sum that is not
 * finite in f32. */
nf_status nf_importance_save(const char *path, uint64_t tokens, nf_importance_matrix *matrices, size_t n,
                             nf_error *err);

#endif
