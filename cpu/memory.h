/*
 * Anonymous memory of a wanted kind: on huge pages or on small ones, bound to a NUMA node or interleaved over
 * several, and a report of what the kernel really gave. Wishes that the kernel refuses cost speed, never
 * correctness: nf_memory_inspect and `placed` say what became of them.
 */
#ifndef NF_CPU_MEMORY_H
#define NF_CPU_MEMORY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum nf_pages {
    NF_PAGES_HUGE, /* from the pool of huge pages when it holds enough, otherwise transparent ones */
    NF_PAGES_SMALL
} nf_pages;

typedef struct nf_memory_options {
    nf_pages pages;
    const int *nodes; /* system numbers of NUMA nodes; [n_nodes] */
    size_t n_nodes;   /* 0: on the node of the thread that first writes a page; 1: there; more: interleaved */
} nf_memory_options;

typedef struct nf_memory {
    uint8_t *bytes; /* [n], zeros at first, aligned to the size of a huge page; NULL: none */
    size_t n;
    bool pool;   /* taken from the pool of huge pages (vm.nr_hugepages) */
    bool placed; /* on the nodes asked for; always true when none were */
    void *map;   /* what was mapped, guard pages included */
    size_t map_bytes;
} nf_memory;

/* Maps n > 0 bytes; `options` may be NULL (huge pages, any node). Pages are taken when first written, but for
 * the pool's, which are taken at once. NF_ERR_MEMORY when there is no room, NF_ERR_ARGUMENT for a node number
 * that cannot be one. Release with nf_memory_free. */
nf_status nf_memory_new(size_t n, const nf_memory_options *options, nf_memory *out, nf_error *err);
/* Accepts zeroed memory. */
void nf_memory_free(nf_memory *memory);

typedef struct nf_memory_report {
    uint64_t resident_bytes; /* in RAM */
    uint64_t huge_bytes;     /* of these: on huge pages */
} nf_memory_report;

/* What the kernel says in /proc/self/smaps about this memory. */
nf_status nf_memory_inspect(const nf_memory *memory, nf_memory_report *out, nf_error *err);

/* Bytes that a program could still take without swapping, as the kernel estimates them (MemAvailable), but no
 * more than `limit` (of a control group; 0: none). 0 when the kernel does not say. */
uint64_t nf_memory_available(uint64_t limit);

#endif
