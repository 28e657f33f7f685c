/*
 * The machine as this process may use it: packages, NUMA nodes, cores with their hardware threads, caches,
 * memory, restricted by the affinity mask and the control groups. Says what is there; decides nothing but the
 * default number of threads.
 */
#ifndef NF_CPU_TOPOLOGY_H
#define NF_CPU_TOPOLOGY_H

#include "base/buf.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* A hardware thread that this process may use. */
typedef struct nf_topology_cpu {
    int cpu;     /* the system's number, as in an affinity mask */
    int core;    /* 0 .. n_cores-1: threads of one core share the number */
    int sibling; /* 0: the core's first allowed thread, 1: its second, ... */
    int package; /* 0 .. n_packages-1 */
    int node;    /* index into `nodes` of the nearest NUMA node */
} nf_topology_cpu;

typedef struct nf_topology_node {
    int os_node;           /* the system's number */
    uint64_t memory_bytes; /* installed; 0: unknown */
} nf_topology_node;

/* All data or unified caches of one level. */
typedef struct nf_topology_cache {
    int level;      /* 1 .. 5 */
    int count;      /* caches of this level */
    uint64_t bytes; /* of one */
    int line_bytes;
    int shared_by; /* hardware threads that share one */
} nf_topology_cache;

#define NF_CACHE_LEVELS 5

typedef struct nf_topology {
    int n_packages, n_numa_nodes;
    int n_cores;             /* physical cores that the mask allows (at least one of their threads) */
    int n_threads;           /* hardware threads that the mask allows */
    int all_cores;           /* physical cores of the machine, as far as the process may see it */
    int all_threads;         /* hardware threads of the machine, likewise */
    double quota_cpus;       /* processors' worth of time that control groups allow; 0: no limit */
    uint64_t memory_limit;   /* bytes that control groups allow; 0: no limit */
    uint64_t memory_bytes;   /* installed, all nodes; 0: unknown */
    nf_topology_cpu *cpus;   /* [n_threads], ordered by node, core, sibling */
    nf_topology_node *nodes; /* [n_numa_nodes] */
    nf_topology_cache caches[NF_CACHE_LEVELS]; /* [n_caches], innermost first */
    size_t n_caches;
} nf_topology;

/* Where to look instead of at this process and machine; all NULL: here. */
typedef struct nf_topology_source {
    const char *synthetic;   /* an hwloc description: "package:2 [numa] core:4 pu:2" */
    const char *mask;        /* allowed processors as a list: "0-3,8" */
    const char *cgroup_root; /* folder that holds proc/ and sys/, for nf_cgroup_read */
} nf_topology_source;

/* Asks hwloc, restricted to this process's affinity mask and control groups. Release with nf_topology_free.
 */
nf_status nf_topology_get(nf_topology *out, nf_error *err);
/* As nf_topology_get, of another source. A synthetic machine has no control groups unless cgroup_root is
 * given. NF_ERR_ARGUMENT for a description or list that is not understood, or when no processor is left. */
nf_status nf_topology_read(const nf_topology_source *source, nf_topology *out, nf_error *err);
/* Releases the arrays and zeroes the struct. Accepts zeroed memory. */
void nf_topology_free(nf_topology *topology);

/* How many threads compute by default: one per allowed core, but no more than the quota of the control
 * groups, rounded down (a team that uses up its quota is stopped as a whole until the period ends); at
 * least 1. */
int nf_topology_default_threads(const nf_topology *topology);

/* The processor's name as the kernel has it ("unknown processor" where it has none), cut to n - 1 bytes. */
void nf_processor_name(char *out, size_t n);
/* Appends a description for people, a few lines. */
nf_status nf_topology_describe(const nf_topology *topology, nf_buf *out, nf_error *err);

#endif
