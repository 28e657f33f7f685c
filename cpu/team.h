/*
 * Thread team: all threads run the same function (SPMD) and meet at barriers; work inside is split by
 * nf_team_loop into pieces that threads take in turn. Which thread computes a piece never changes its value:
 * pieces are whole output tiles, rows or heads, and nothing is summed across threads.
 */
#ifndef NF_CPU_TEAM_H
#define NF_CPU_TEAM_H

#include <stdatomic.h>
#include <stddef.h>

typedef struct nf_team {
    int n_threads;
    int spin; /* how often a waiting thread looks before it sleeps */
    /* Barrier: how many have arrived, its generation (a futex), how many sleep on it. */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint generation;
    atomic_uint sleepers;
    /* Two counters in turn: while loop i uses one, the other is reset for loop i+1. One cache line each. */
    struct {
        _Alignas(64) atomic_size_t next;
    } counter[2];
} nf_team;

typedef struct nf_worker {
    nf_team *team;
    int thread;          /* 0 .. n-1 */
    int n;               /* threads that run: at most team->n_threads */
    unsigned loops_done; /* the same in all workers between barriers */
} nf_worker;

/* Prepares a team of n_threads (>= 1). */
void nf_team_init(nf_team *team, int n_threads);

/* Runs fn(worker, user) on all threads and returns when all have returned. Not reentrant. */
void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user);

/* All threads wait for each other. */
void nf_team_barrier(nf_worker *worker);

/* Every worker calls this with the same arguments: items 0..n-1 are handed out in pieces of `grain`,
 * body(user, begin, end, thread) runs for each piece, and a barrier follows. */
void nf_team_loop(nf_worker *worker, size_t n, size_t grain,
                  void (*body)(void *user, size_t begin, size_t end, int thread), void *user);

#endif
