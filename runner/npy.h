/* Writer of .npy files (version 1.0, f32, two dimensions) that takes the rows as they come. */
#ifndef NF_RUNNER_NPY_H
#define NF_RUNNER_NPY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct nf_npy {
    char *path, *temp; /* temp is NULL when the path is written directly (a device or a pipe) */
    int fd;            /* valid while path is not NULL */
    uint64_t rows, cols, written;
} nf_npy;

/* Opens the output, so that an unwritable path is an error before the long work. A regular file is written
 * under a temporary name beside `path` and appears there when it is whole. */
nf_status nf_npy_open(nf_npy *npy, const char *path, nf_error *err);
/* Writes the header of an array [rows, cols]. Once, before the first row. */
nf_status nf_npy_begin(nf_npy *npy, uint64_t rows, uint64_t cols, nf_error *err);
/* Appends n rows of cols values. */
nf_status nf_npy_append(nf_npy *npy, const float *values, uint64_t n, nf_error *err);
/* Publishes the file; an error when rows are missing. Frees everything in any case. */
nf_status nf_npy_finish(nf_npy *npy, nf_error *err);
/* Removes what was written and frees everything. Accepts a zeroed or finished writer. */
void nf_npy_abort(nf_npy *npy);

#endif
