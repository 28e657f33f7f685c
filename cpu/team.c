/* SPMD team on OpenMP; see team.h. libgomp keeps its threads between regions and spins briefly before it sleeps. */
#include "cpu/team.h"

#include <omp.h>

void nf_team_init(nf_team *team, int n_threads) {
    team->n_threads = n_threads < 1 ? 1 : n_threads;
    atomic_store(&team->counter[0].next, 0);
    atomic_store(&team->counter[1].next, 0);
}

void nf_team_run(nf_team *team, void (*fn)(nf_worker *worker, void *user), void *user) {
    atomic_store(&team->counter[0].next, 0);
    atomic_store(&team->counter[1].next, 0);
    /* The runtime may give fewer threads than asked for (OMP_THREAD_LIMIT): the team adapts, results do not change. */
#pragma omp parallel num_threads(team->n_threads)
    {
        nf_worker worker = {.team = team, .thread = omp_get_thread_num()};
        fn(&worker, user);
    }
}

void nf_team_barrier(nf_worker *worker) {
    (void)worker;
#pragma omp barrier
}

void nf_team_loop(nf_worker *worker, size_t n, size_t grain, void (*body)(void *user, size_t begin, size_t end, int thread),
                  void *user) {
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
#pragma omp barrier
}
