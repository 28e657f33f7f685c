/*
 * Which processors the threads of a team run on: one thread a physical core, spread evenly over the NUMA
 * nodes, grouped by node; and whether they are pinned there. Pure arithmetic over a topology: it changes no
 * thread.
 */
#ifndef NF_CPU_THREAD_PLAN_H
#define NF_CPU_THREAD_PLAN_H

#include "cpu/topology.h"

typedef enum nf_pin {
    NF_PIN_AUTO, /* NINFER_PIN=0 or 1 decides, without it nf_thread_plan_make */
    NF_PIN_OFF,
    NF_PIN_ON
} nf_pin;

typedef struct nf_thread_plan {
    int n_threads;
    bool pinned;
    const char *why; /* why pinned or not, for people; static text */
    int *cpus;  /* [n_threads], grouped by node: the system's number of each thread's processor; NULL when
                 * there are more threads than allowed cores */
    int *nodes; /* [n_threads], index into the topology's nodes; NULL likewise */
} nf_thread_plan;

/* Plans n_threads threads (0: nf_topology_default_threads). NF_PIN_AUTO pins when the cores lie on
 * several NUMA nodes and the team has every one that the process may use. On one node pinning gains nothing
 * and is slower beside other busy programs; with fewer threads another process may well have made the same
 * choice, and both would share cores while others idle (docs/machine.md). More threads than cores are never
 * pinned. NF_ERR_ARGUMENT for a number
 * outside 0..1024 or a NINFER_PIN that is neither 0 nor 1. Release with nf_thread_plan_free. */
nf_status nf_thread_plan_make(const nf_topology *topology, int n_threads, nf_pin pin, nf_thread_plan *out,
                              nf_error *err);
/* Accepts zeroed memory. */
void nf_thread_plan_free(nf_thread_plan *plan);

#endif
