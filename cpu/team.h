/*
 * Thread team: one thread, the caller, walks through a sequence of loops; the others, the members, help with
 * the loop that is open. A loop's items are handed out in pieces that whoever is free takes in turn, and the
 * caller goes on when all pieces are done: it waits only for pieces that a member has really begun, never for
 * a member that is asleep or that the system has put aside. A loop of one piece is no loop at all: the caller
 * runs it without a word to the others.
 *
 * Which thread computes a piece never changes its value: pieces are whole output tiles, rows or heads, and
 * nothing is summed across threads.
 */
#ifndef NF_CPU_TEAM_H
#define NF_CPU_TEAM_H

#include "cpu/thread_plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*nf_team_body)(void *user, size_t begin, size_t end, int thread);

typedef struct nf_team_member nf_team_member;

typedef struct nf_team {
    int n_threads; /* the caller and the members that it has started */
    bool pinned;   /* each to its processor of the plan */
    bool crowded;  /* more threads than processors */
    nf_team_member *members;
    int caller_cpu; /* pinned: the caller's processor while it runs loops */
    /* The open loop: its number in the high half, the first item not handed out in the low half. */
    _Alignas(64) atomic_uint_fast64_t ticket;
    /* What the open loop is. Written by the caller while no loop is open; a member that reads it late finds
     * that the ticket has moved on and takes nothing. */
    _Atomic(nf_team_body) body;
    _Atomic(void *) user;
    atomic_size_t n, grain;
    _Alignas(64)
        atomic_uint finished; /* items that members have done of the open loop; the caller sleeps on it */
    atomic_bool caller_sleeps;
    atomic_bool late;               /* the caller has waited far too long for the open loop */
    _Alignas(64) atomic_uint phase; /* number of the open loop: members sleep on it */
    atomic_uint sleepers;
    atomic_bool stop;
} nf_team;

typedef struct nf_worker {
    nf_team *team;
} nf_worker;

/* Starts plan->n_threads - 1 members, pinned if the plan says so. The team must not move in memory and must
 * be aligned to 64 bytes. NF_ERR_MEMORY or NF_ERR_LIMIT when the system gives no more threads; nothing runs
 * then. Release with nf_team_stop. */
nf_status nf_team_start(nf_team *team, const nf_thread_plan *plan, nf_error *err);
/* The same without a plan: n_threads (>= 1) that are not pinned. */
nf_status nf_team_start_n(nf_team *team, int n_threads, nf_error *err);
/* Ends the members. Accepts zeroed memory. */
void nf_team_stop(nf_team *team);

/* Runs fn(worker, user) on the calling thread, with the members at hand. Not reentrant. A pinned team pins
 * the calling thread for the time being; when another pinned team is running at that moment, this one gives
 * pinning up for good. */
void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user);

/* Items 0..n-1 (n < 2^32 - grain) are handed out in pieces of `grain`, body(user, begin, end, thread) runs
 * once for each (for several at once when no member takes part); thread is 0..n_threads-1. Returns when all
 * items are done. What the body wrote is visible to the caller, and to all bodies of later loops. */
void nf_team_loop(nf_worker *worker, size_t n, size_t grain, nf_team_body body, void *user);

/* Work that is worth handing to another thread, in the unit of nf_team_grain. */
#define NF_TEAM_LEAST_WORK ((size_t)65536)

/* The grain of a loop of n items of about item_work each: in multiply-adds, or in bytes read where those are
 * more, of which a core does some 30 in a nanosecond. A piece takes two microseconds at least, what a
 * hand-over costs several times over; with many items there are about eight pieces for each thread. */
size_t nf_team_grain(const nf_worker *worker, size_t n, size_t item_work);

#endif
