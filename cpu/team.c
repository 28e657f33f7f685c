/*
 * SPMD team on OpenMP; see team.h. libgomp keeps its threads from one region to the next. Barriers inside a
 * region are our own: a waiting thread spins for about 20 us, the length of a small loop, and then sleeps. A
 * barrier that spins for longer (libgomp's does) uses up the time slice that the thread it waits for needs
 * when other processes share the cores.
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
    atomic_store(&team->counter[0].next, 0);
    atomic_store(&team->counter[1].next, 0);
    atomic_store(&team->arrived, 0);
    atomic_store(&team->generation, 0);
    atomic_store(&team->sleepers, 0);
}

void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user) {
    atomic_store(&team->counter[0].next, 0);
    atomic_store(&team->counter[1].next, 0);
    /* The runtime may give fewer threads than asked for (OMP_THREAD_LIMIT): the team adapts, results do not
     * change. */
#pragma omp parallel num_threads(team->n_threads)
    {
        nf_worker worker = {.team = team, .thread = omp_get_thread_num(), .n = omp_get_num_threads()};
        fn(&worker, user);
    }
}

void nf_team_barrier(nf_worker *worker) {
    nf_team *team = worker->team;
    if (worker->n == 1) return;
    unsigned generation = atomic_load_explicit(&team->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == (unsigned)worker->n) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        /* Sequentially consistent with the sleeper's increment: either it sees the new generation or we see
         * it sleeping. */
        atomic_store(&team->generation, generation + 1);
        if (atomic_load(&team->sleepers))
            syscall(SYS_futex, &team->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < team->spin; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != generation) return;
        relax();
    }
    atomic_fetch_add(&team->sleepers, 1);
    /* The kernel compares once more before it lets the thread sleep; wake-ups without cause only go round. */
    while (atomic_load(&team->generation) == generation)
        syscall(SYS_futex, &team->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

void nf_team_loop(nf_worker *worker, size_t n, size_t grain,
                  void (*body)(void *user, size_t begin, size_t end, int thread), void *user) {
    nf_team *team = worker->team;
    unsigned mine = worker->loops_done & 1;
    worker->loops_done++;
    /* Everyone has left the loop before this one (its barrier), so its counter is free for the next. */
    if (worker->thread == 0) atomic_store_explicit(&team->counter[mine ^ 1].next, 0, memory_order_relaxed);
    for (;;) {
        size_t begin = atomic_fetch_add_explicit(&team->counter[mine].next, grain, memory_order_relaxed);
        if (begin >= n) break;
        body(user, begin, begin + grain < n ? begin + grain : n, worker->thread);
    }
    nf_team_barrier(worker);
}
