/*
 * One sample of each figure of `ninfer-bench machine`. Every measurement runs on threads of its own, each
 * pinned to a processor, for about the same short time whatever the speed; it knows nothing of reports.
 */
#ifndef NF_BENCH_MACHINE_MEASURE_H
#define NF_BENCH_MACHINE_MEASURE_H

#include "cpu/kernels.h"
#include "cpu/memory.h"

/* Processors to run on: thread i is pinned to cpus[i]. */
typedef struct nf_cores {
    const int *cpus; /* [n], n >= 1 */
    int n;
} nf_cores;

/* GB/s read. The memory holds at least 256 KiB for each core. */
nf_status nf_measure_read(nf_cores cores, const nf_memory *memory, double *gb_s, nf_error *err);
/* GB/s copied by memcpy between memories of one size. */
nf_status nf_measure_copy(nf_cores cores, const nf_memory *from, nf_memory *to, double *gb_s, nf_error *err);

/* Fills the memory with one cycle through all its cache lines in random order. */
nf_status nf_make_chase(nf_memory *memory, nf_error *err);
/* Nanoseconds of a step along the cycle, on one core. */
nf_status nf_measure_chase(int cpu, const nf_memory *memory, double *ns, nf_error *err);

/* A product that stays in the second-level cache: 64 input rows of 1024 columns, 256 KiB of weights. */
typedef struct nf_dot_work {
    const nf_kernels *kernels;
    nf_weights w;
    nf_rows in;
} nf_dot_work;

/* `type` is NF_TYPE_F32 or NF_TYPE_I8. Release with nf_dot_free (accepts zeroed memory). */
nf_status nf_dot_new(const nf_kernels *kernels, nf_type type, nf_dot_work *out, nf_error *err);
void nf_dot_free(nf_dot_work *work);
/* 1e9 multiply-adds a second, every core with the whole product for itself. */
nf_status nf_measure_dot(nf_cores cores, const nf_dot_work *work, double *gmac_s, nf_error *err);

/* A file that is read past the page cache, in turn from front to end. */
typedef struct nf_disk {
    int fd; /* -1: none */
    uint64_t bytes, at;
    const char *path; /* as given */
} nf_disk;

/* Opens a file, or writes one of n_bytes into a folder (without a name: it is gone with the process). Release
 * with nf_disk_close (accepts .fd = -1). NF_ERR_UNSUPPORTED where the file system cannot read past the page
 * cache, NF_ERR_ARGUMENT for a file below 16 MiB. */
nf_status nf_disk_open(const char *path, uint64_t n_bytes, nf_disk *out, nf_error *err);
void nf_disk_close(nf_disk *disk);
/* GB/s of the next n_bytes of the file (all of it when shorter), requests of 4 MiB from four threads. */
nf_status nf_measure_disk(nf_disk *disk, uint64_t n_bytes, double *gb_s, nf_error *err);

#endif
