/*
 * Thread team: all threads run the same function (SPMD) and walk through the same sequence of loops. A loop's
 * items are handed out in pieces that threads take in turn; the next loop opens when all items are done, not
 * when all threads have arrived, so a thread that the system has put aside holds up nobody unless it was in
 * the middle of a piece. It skips the loops that the others finished.
 *
 * Which thread computes a piece never changes its value: pieces are whole output tiles, rows or heads, and
 * nothing is summed across threads. What a loop reads must stay as it is until the whole region ends or until
 * a loop that every reader takes part in: a late thread may look at the arguments of a loop that is long
 * over.
 */
#ifndef NF_CPU_TEAM_H
#define NF_CPU_TEAM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nf_team {
    int n_threads;
    int spin; /* how often a waiting thread looks before it sleeps */
    /* The open loop: its number in the high half, the first item not handed out in the low half. */
    _Alignas(64) atomic_uint_fast64_t ticket;
    _Alignas(64) atomic_size_t finished; /* items done of the open loop */
    _Alignas(64) atomic_uint phase;      /* number of the open loop: what sleepers wait on (a futex) */
    atomic_uint sleepers;
} nf_team;

typedef struct nf_worker {
    nf_team *team;
    int thread;     /* 0 .. n-1 */
    int n;          /* threads that run: at most team->n_threads */
    uint32_t phase; /* number of the next loop of this thread */
} nf_worker;

/* Prepares a team of n_threads (>= 1). */
void nf_team_init(nf_team *team, int n_threads);

/* Runs fn(worker, user) on all threads and returns when all have returned. Not reentrant. */
void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user);

/* Every worker calls this with the same arguments (`user` may be a copy of its own): items 0..n-1 (n < 2^32 -
 * grain) are handed out in pieces of `grain`, body(user, begin, end, thread) runs once for each. Returns when
 * all items are done. */
void nf_team_loop(nf_worker *worker, size_t n, size_t grain,
                  void (*body)(void *user, size_t begin, size_t end, int thread), void *user);

#endif
