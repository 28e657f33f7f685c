/*
 * What was measured about this machine, by `ninfer-bench machine`, kept in a JSON file for whoever plans: the
 * loader checks every value, knows which machine the figures are of and says when they are stale. Format in
 * docs/machine.md.
 */
#ifndef NF_CPU_CALIBRATION_H
#define NF_CPU_CALIBRATION_H

#include "cpu/topology.h"

#include <jansson.h>

#define NF_CALIBRATION_DAYS 30 /* older figures are stale */

/* What the figures depend on. Processor numbers are of the whole machine, not of the affinity mask. */
typedef struct nf_machine {
    char processor[128]; /* "AMD EPYC 9654" */
    char kernel[128];    /* release, "6.1.0-18-amd64" */
    int cores, threads, nodes;
    uint64_t memory_bytes; /* 0: unknown */
} nf_machine;

/* Fills in this machine. */
void nf_machine_of(const nf_topology *topology, nf_machine *out);

typedef struct nf_spread {
    double min, median, max;
} nf_spread;

/* A rate of a number of threads, each on a core of its own. */
typedef struct nf_thread_rate {
    int threads;
    int node; /* system number of the NUMA node of threads and memory; -1: all nodes */
    nf_spread rate;
} nf_thread_rate;

typedef struct nf_rates {
    nf_thread_rate *items;
    size_t n, cap;
} nf_rates;

typedef struct nf_calibration {
    nf_machine machine;
    int64_t created;                             /* seconds since 1970 */
    char isa[16];                                /* kernels that were measured */
    nf_rates read;                               /* GB/s, rising number of threads; at least one */
    nf_rates node_read;                          /* GB/s, all cores of a node from its own memory */
    nf_rates f32_dot, i8_dot;                    /* 1e9 multiply-adds/s out of the second-level cache */
    nf_spread read_small_pages;                  /* GB/s, as the last of `read`, from small pages */
    nf_spread copy;                              /* GB/s copied (read and written once each), all cores */
    nf_spread latency_small_ns, latency_huge_ns; /* dependent reads all over latency_bytes of memory */
    uint64_t latency_bytes;
    double huge_fraction; /* of the memory meant to be on huge pages: what really was, 0..1 */
    bool has_disk;
    char *disk_path; /* what was read; NULL without disk */
    nf_spread disk;  /* GB/s past the page cache */
} nf_calibration;

/* Appends a rate. */
nf_status nf_rates_add(nf_rates *rates, nf_thread_rate rate, nf_error *err);
/* Accepts zeroed memory. */
void nf_calibration_free(nf_calibration *calibration);

/* The file's content as a new reference; NULL when memory is out or the path is not valid UTF-8. */
json_t *nf_calibration_json(const nf_calibration *calibration);
/* Appends the default path: $XDG_CACHE_HOME/ninfer/calibration.json (~/.cache). */
nf_status nf_calibration_path(nf_buf *out, nf_error *err);
/* Writes the file as a whole or not at all, making its folder. */
nf_status nf_calibration_save(const nf_calibration *calibration, const char *path, nf_error *err);
/* Reads and checks a file: NF_ERR_NOT_FOUND when there is none, NF_ERR_FORMAT naming the member that is
 * missing, of the wrong type or out of range, NF_ERR_UNSUPPORTED for a version of the future. Unknown members
 * are passed over. Release with nf_calibration_free. */
nf_status nf_calibration_load(const char *path, nf_calibration *out, nf_error *err);

/* Whether the figures are not to be trusted for `machine` at the time `now` (seconds since 1970); *why then
 * says so in words. A machine is another one when processor, cores, threads, nodes or kernel differ, or
 * memory by more than a sixteenth. */
bool nf_calibration_stale(const nf_calibration *calibration, const nf_machine *machine, int64_t now,
                          char *why, size_t why_bytes);

#endif
