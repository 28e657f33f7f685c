/* What processors this process may use. */
#ifndef NF_CPU_TOPOLOGY_H
#define NF_CPU_TOPOLOGY_H

#include "base/status.h"

typedef struct nf_topology {
    int n_packages, n_numa_nodes;
    int n_cores;   /* physical cores that the affinity mask allows (at least one of their threads) */
    int n_threads; /* hardware threads that the affinity mask allows */
} nf_topology;

/* Asks hwloc, restricted to this process's affinity mask. */
nf_status nf_topology_get(nf_topology *out, nf_error *err);

#endif
