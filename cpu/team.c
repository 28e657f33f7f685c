/*
 * SPMD team on OpenMP; see team.h. libgomp keeps its threads from one region to the next; the loops inside a
 * region are our own. A thread that has nothing to do spins for about 20 us, the length of a small loop, and
 * then sleeps: spinning for longer would use up the time slice that the thread it waits for needs when other
 * processes share the cores.
 */
#include "cpu/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN 1000 /* times a pause of about 20-40 ns */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void nf_team_init(nf_team *team, int n_threads) {
    team->n_threads = n_threads < 1 ? 1 : n_threads;
    /* With more threads than processors the one waited for may have none: no spinning then. */
    team->spin = team->n_threads <= omp_get_num_procs() ? SPIN : 0;
    atomic_store(&team->ticket, 0);
    atomic_store(&team->finished, 0);
    atomic_store(&team->phase, 0);
    atomic_store(&team->sleepers, 0);
}

void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user) {
    atomic_store(&team->ticket, 0);
    atomic_store(&team->finished, 0);
    atomic_store(&team->phase, 0);
    /* The runtime may give fewer threads than asked for (OMP_THREAD_LIMIT): the team adapts, results do not
     * change. */
#pragma omp parallel num_threads(team->n_threads)
    {
        nf_worker worker = {.team = team, .thread = omp_get_thread_num(), .n = omp_get_num_threads()};
        fn(&worker, user);
    }
}

/* The last item is done: the next loop may be entered. Everything that the loop wrote is visible to whoever
 * sees the new ticket. */
static void open_next(nf_team *team, uint32_t phase) {
    atomic_store_explicit(&team->finished, 0, memory_order_relaxed);
    atomic_store_explicit(&team->ticket, (uint_fast64_t)(phase + 1) << 32, memory_order_release);
    /* Sequentially consistent with the sleeper's increment: either it sees the new phase or we see it
     * sleeping. */
    atomic_store(&team->phase, phase + 1);
    if (atomic_load(&team->sleepers))
        syscall(SYS_futex, &team->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint32_t phase_of(uint_fast64_t ticket) {
    return (uint32_t)(ticket >> 32);
}

/* Others still compute items of this loop. */
static void wait_for_others(nf_team *team, uint32_t phase) {
    for (int i = 0; i < team->spin; i++) {
        if (phase_of(atomic_load_explicit(&team->ticket, memory_order_acquire)) != phase) return;
        relax();
    }
    atomic_fetch_add(&team->sleepers, 1);
    /* The kernel compares once more before it lets the thread sleep; wake-ups without cause only go round. */
    while (atomic_load(&team->phase) == phase)
        syscall(SYS_futex, &team->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

void nf_team_loop(nf_worker *worker, size_t n, size_t grain,
                  void (*body)(void *user, size_t begin, size_t end, int thread), void *user) {
    nf_team *team = worker->team;
    if (!n) return;
    if (worker->n == 1) {
        body(user, 0, n, worker->thread);
        return;
    }
    const uint32_t phase = worker->phase++;
    uint_fast64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    size_t done = 0; /* items of this thread, reported together */
    /* A ticket of a later loop: this one was finished by others. */
    while (phase_of(ticket) == phase) {
        size_t begin = (uint32_t)ticket;
        if (begin >= n) {
            if (done && atomic_fetch_add_explicit(&team->finished, done, memory_order_acq_rel) + done == n)
                open_next(team, phase);
            else
                wait_for_others(team, phase);
            return;
        }
        size_t end = n - begin < grain ? n : begin + grain;
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket + (end - begin),
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        body(user, begin, end, worker->thread);
        done += end - begin;
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}
