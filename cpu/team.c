/*
 * Threads, the hand-over of loops, and waiting; see team.h. A thread that has nothing to do looks for the
 * next loop for about 20 us, the length of a small one; then it looks again and again after offering its
 * processor to others (sched_yield); after some milliseconds without a loop it sleeps. Sleeping early is
 * dear: on a virtual machine an idle processor is given away, and getting it back takes longer than ten small
 * loops.
 */
#include "cpu/team.h"

#include "base/progress.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 1000  /* times a pause of about 20-40 ns */
#define YIELDS 5000 /* times a system call of about 0.4 us, when nobody else wants the processor */
#define MAX_CPUS 8192
/* A piece is late when the caller has waited for it this long and many times as long as its own pieces took.
 */
#define LATE_SECONDS 100e-6
#define LATE_PIECES 8
/* A late member rests for ten times what it cost, within bounds. */
#define REST 10
#define LEAST_REST 2e-3
#define MOST_REST 100e-3

typedef struct cpu_mask {
    cpu_set_t bits[MAX_CPUS / CPU_SETSIZE];
} cpu_mask;

struct nf_team_member {
    nf_team *team;
    pthread_t thread;
    int index; /* 1 .. n_threads-1 */
};

/* The pinned team that is running loops. */
static _Atomic(nf_team *) running;

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void futex_wait(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint32_t phase_of(uint_fast64_t ticket) {
    return (uint32_t)(ticket >> 32);
}

/* ---- pieces ---- */

/* Takes pieces of the open loop until none is left; returns how many items that were, and the loop's number
 * in *phase. A piece is taken by moving the ticket, which fails when the loop is over: what was read of the
 * loop before is then forgotten. */
static size_t take_pieces(nf_team *team, int thread, uint32_t *phase) {
    uint_fast64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    size_t done = 0;
    for (;;) {
        const nf_team_body body = atomic_load_explicit(&team->body, memory_order_relaxed);
        void *user = atomic_load_explicit(&team->user, memory_order_relaxed);
        const size_t n = atomic_load_explicit(&team->n, memory_order_relaxed),
                     grain = atomic_load_explicit(&team->grain, memory_order_relaxed),
                     begin = (uint32_t)ticket, left = begin < n ? n - begin : 0,
                     count = left < grain ? left : grain;
        *phase = phase_of(ticket);
        if (!count) return done;
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket + count,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        body(user, begin, begin + count, thread);
        done += count;
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

/* ---- the members ---- */

/* Returns when another loop than `phase` is open or the team stops. */
static void wait_for_loop(nf_team *team, uint32_t phase) {
    const int spins = team->crowded ? 0 : SPINS;
    for (int i = 0; i < spins + YIELDS; i++) {
        if (phase_of(atomic_load_explicit(&team->ticket, memory_order_acquire)) != phase) return;
        if (i < spins)
            relax();
        else
            sched_yield();
    }
    /* Sequentially consistent with open_loop and nf_team_stop: either they see the sleeper or it sees them.
     * The kernel compares once more before it lets the thread sleep. */
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->phase) == phase && !atomic_load(&team->stop)) futex_wait(&team->phase, phase);
    atomic_fetch_sub(&team->sleepers, 1);
}

/* Something else runs on this member's processor. While it has no piece nobody waits for it, so it leaves the
 * work to the others for a time. */
static void rest(const nf_team *team, double lost) {
    const double wanted = lost * REST, seconds = wanted < LEAST_REST ? LEAST_REST : wanted,
                 end = nf_now() + (seconds > MOST_REST ? MOST_REST : seconds);
    while (nf_now() < end && !atomic_load_explicit(&team->stop, memory_order_relaxed)) usleep(1000);
}

static void *member_main(void *user) {
    nf_team_member *member = user;
    nf_team *team = member->team;
    while (!atomic_load_explicit(&team->stop, memory_order_relaxed)) {
        uint32_t phase;
        const double start = nf_now();
        const size_t done = take_pieces(team, member->index, &phase);
        if (done) {
            const bool late = atomic_load_explicit(&team->late, memory_order_relaxed);
            atomic_fetch_add(&team->finished, (unsigned)done);
            if (atomic_load(&team->caller_sleeps)) futex_wake(&team->finished, 1);
            if (late) rest(team, nf_now() - start);
        }
        wait_for_loop(team, phase);
    }
    return NULL;
}

/* ---- the caller ---- */

static void open_loop(nf_team *team, size_t n, size_t grain, nf_team_body body, void *user) {
    const uint32_t phase = phase_of(atomic_load_explicit(&team->ticket, memory_order_relaxed)) + 1;
    atomic_store_explicit(&team->finished, 0, memory_order_relaxed);
    atomic_store_explicit(&team->late, false, memory_order_relaxed);
    atomic_store_explicit(&team->body, body, memory_order_relaxed);
    atomic_store_explicit(&team->user, user, memory_order_relaxed);
    atomic_store_explicit(&team->n, n, memory_order_relaxed);
    atomic_store_explicit(&team->grain, grain, memory_order_relaxed);
    atomic_store_explicit(&team->ticket, (uint_fast64_t)phase << 32, memory_order_release);
    atomic_store(&team->phase, phase);
    if (atomic_load(&team->sleepers)) futex_wake(&team->phase, INT_MAX);
}

/* Members still compute `items` of the open loop, in which the caller had a piece every `piece` seconds. */
static void wait_for_members(nf_team *team, size_t items, double piece) {
    const int spins = team->crowded ? 0 : SPINS;
    double start = 0;
    for (int i = 0; i < spins + YIELDS; i++) {
        if (atomic_load_explicit(&team->finished, memory_order_acquire) == items) return;
        if (i < spins) {
            relax();
            continue;
        }
        sched_yield();
        if (!start) start = nf_now();
        if (nf_now() - start > LATE_SECONDS + LATE_PIECES * piece)
            atomic_store_explicit(&team->late, true, memory_order_relaxed);
    }
    atomic_store(&team->caller_sleeps, true);
    for (unsigned seen; (seen = atomic_load(&team->finished)) != items;) futex_wait(&team->finished, seen);
    atomic_store(&team->caller_sleeps, false);
}

void nf_team_loop(nf_worker *worker, size_t n, size_t grain, nf_team_body body, void *user) {
    nf_team *team = worker->team;
    uint32_t phase;
    if (!n) return;
    if (team->n_threads == 1 || n <= grain) {
        body(user, 0, n, 0);
        return;
    }
    const double start = nf_now();
    open_loop(team, n, grain, body, user);
    const size_t done = take_pieces(team, 0, &phase);
    if (done == n) return;
    wait_for_members(team, n - done,
                     (nf_now() - start) * (double)grain / (double)(done < grain ? grain : done));
}

size_t nf_team_grain(const nf_worker *worker, size_t n, size_t item_work) {
    const size_t least = (NF_TEAM_LEAST_WORK + item_work - 1) / (item_work ? item_work : 1),
                 even = n / ((size_t)worker->team->n_threads * 8);
    return even > least ? even : least ? least : 1;
}

/* ---- pinning ---- */

static void pin(pthread_t thread, int cpu) {
    cpu_mask one;
    memset(&one, 0, sizeof one);
    CPU_SET_S((size_t)cpu, sizeof one, one.bits);
    /* Refused when the processor was taken away meanwhile: the thread then runs where it may. */
    (void)pthread_setaffinity_np(thread, sizeof one, one.bits);
}

/* Members go wherever the caller may. */
static void unpin(nf_team *team, const cpu_mask *allowed) {
    for (int i = 1; i < team->n_threads; i++)
        (void)pthread_setaffinity_np(team->members[i].thread, sizeof *allowed, allowed->bits);
    team->pinned = false;
}

void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user) {
    nf_worker worker = {team};
    cpu_mask before;
    nf_team *nobody = NULL;
    bool held = false;
    if (team->pinned && !pthread_getaffinity_np(pthread_self(), sizeof before, before.bits)) {
        held = atomic_compare_exchange_strong(&running, &nobody, team);
        if (held)
            pin(pthread_self(), team->caller_cpu);
        else
            unpin(team, &before);
    }
    fn(&worker, user);
    if (!held) return;
    (void)pthread_setaffinity_np(pthread_self(), sizeof before, before.bits);
    atomic_store(&running, NULL);
}

/* ---- start and stop ---- */

static int processors(void) {
    cpu_mask allowed;
    if (pthread_getaffinity_np(pthread_self(), sizeof allowed, allowed.bits)) return INT_MAX;
    return CPU_COUNT_S(sizeof allowed, allowed.bits);
}

static nf_status start_member(nf_team *team, int index, const nf_thread_plan *plan, nf_error *err) {
    nf_team_member *member = &team->members[index];
    *member = (nf_team_member){.team = team, .index = index};
    const int failed = pthread_create(&member->thread, NULL, member_main, member);
    if (failed)
        return nf_fail(err, failed == ENOMEM ? NF_ERR_MEMORY : NF_ERR_LIMIT,
                       "cannot start thread %d of %d: %s; use fewer --threads", index + 1, plan->n_threads,
                       strerror(failed));
    team->n_threads = index + 1;
    if (plan->pinned) pin(member->thread, plan->cpus[index]);
    return NF_OK;
}

nf_status nf_team_start(nf_team *team, const nf_thread_plan *plan, nf_error *err) {
    memset(team, 0, sizeof *team);
    team->n_threads = 1;
    team->crowded = plan->n_threads > processors();
    team->pinned = plan->pinned;
    if (plan->pinned) team->caller_cpu = plan->cpus[0];
    team->members = nf_calloc((size_t)plan->n_threads, sizeof *team->members, "threads", err);
    nf_status status = team->members ? NF_OK : NF_ERR_MEMORY;
    /* Signals are for the threads of the program. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < plan->n_threads && !status; i++) status = start_member(team, i, plan, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status) nf_team_stop(team);
    return status;
}

nf_status nf_team_start_n(nf_team *team, int n_threads, nf_error *err) {
    return nf_team_start(team, &(nf_thread_plan){.n_threads = n_threads < 1 ? 1 : n_threads}, err);
}

void nf_team_stop(nf_team *team) {
    atomic_store(&team->stop, true);
    /* An empty loop ends the wait of those that look for one. */
    atomic_store(&team->n, 0);
    atomic_store(&team->ticket, (uint_fast64_t)(phase_of(atomic_load(&team->ticket)) + 1) << 32);
    atomic_fetch_add(&team->phase, 1);
    futex_wake(&team->phase, INT_MAX);
    for (int i = 1; i < team->n_threads; i++) pthread_join(team->members[i].thread, NULL);
    free(team->members);
    team->members = NULL;
    team->n_threads = 0;
}
