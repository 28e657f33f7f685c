/* The thread team: every item of a loop once, what one loop wrote visible in the next, any number of threads,
 * whatever else the processors do; and pinning that leaves no trace. */
#include "tests/support/support.h"

#include "cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ITEMS = 1000, LOOPS = 300 };

typedef struct job {
    atomic_int taken[ITEMS];
    int value[ITEMS]; /* written in one loop, read in the next */
    atomic_int wrong;
    size_t n, grain;
    int threads;
    int round; /* changed by a loop of one item */
} job;

static void count(void *user, size_t begin, size_t end, int thread) {
    job *j = user;
    if (begin >= end || end > j->n || thread < 0 || thread >= j->threads) atomic_fetch_add(&j->wrong, 1);
    for (size_t i = begin; i < end; i++) {
        atomic_fetch_add(&j->taken[i], 1);
        j->value[i] = j->round;
    }
}

static void check(void *user, size_t begin, size_t end, int thread) {
    job *j = user;
    (void)thread;
    for (size_t i = begin; i < end; i++) /* a neighbour's item: visible since that loop is over */
        if (j->value[(i * 7 + 3) % j->n] != j->round) atomic_fetch_add(&j->wrong, 1);
}

static void next_round(void *user, size_t begin, size_t end, int thread) {
    job *j = user;
    if (begin != 0 || end != 1 || thread != 0) atomic_fetch_add(&j->wrong, 1);
    j->round++;
}

static void work(nf_worker *w, void *user) {
    job *j = user;
    for (int round = 0; round < LOOPS; round++) {
        nf_team_loop(w, 1, 1, next_round, j);
        nf_team_loop(w, j->n, j->grain, count, j);
        nf_team_loop(w, j->n, 1, check, j);
    }
    nf_team_loop(w, 0, 1, count, j); /* nothing to do: no call */
}

static void run_job(job *j, nf_team *team, size_t n, size_t grain) {
    memset(j, 0, sizeof *j);
    j->n = n;
    j->grain = grain;
    j->threads = team->n_threads;
    nf_team_run(team, work, j);
    nf_team_run(team, work, j); /* a team is used again and again */
    assert_int_equal(j->wrong, 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(j->taken[i], 2 * LOOPS);
}

/* Fewer and more threads than this machine has processors. */
static void test_loops(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 64, ITEMS};
    static job j;
    nf_error err = {0};
    for (int threads = 1; threads <= 16; threads += threads < 4 ? 1 : 4) {
        nf_team team;
        OK(nf_team_start_n(&team, threads, &err));
        assert_int_equal(team.n_threads, threads);
        for (size_t k = 0; k < 5; k++) run_job(&j, &team, sizes[k], k + 1);
        nf_team_stop(&team);
        nf_team_stop(&team); /* stopped already: nothing to do */
    }
}

static void *burn(void *user) {
    volatile uint64_t x = 0;
    while (!atomic_load((atomic_bool *)user)) x = x + 1;
    return NULL;
}

/* Threads that never give their processor up: members are put aside in the middle of their pieces. */
static void test_busy_processors(void **state) {
    (void)state;
    static job j;
    nf_error err = {0};
    atomic_bool stop = false;
    pthread_t hogs[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&hogs[i], NULL, burn, &stop), 0);
    for (int threads = 2; threads <= 5; threads += 3) {
        nf_team team;
        OK(nf_team_start_n(&team, threads, &err));
        run_job(&j, &team, 64, 4);
        nf_team_stop(&team);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) pthread_join(hogs[i], NULL);
}

static nf_thread_plan plan_of(int n, nf_pin pin) {
    nf_error err = {0};
    nf_topology t;
    nf_thread_plan plan;
    OK(nf_topology_get(&t, &err));
    OK(nf_thread_plan_make(&t, n, pin, &plan, &err));
    nf_topology_free(&t);
    return plan;
}

typedef struct second {
    job j;
    nf_team team;
    int runs;
} second;

static void *run_second(void *user) {
    second *s = user;
    for (int i = 0; i < s->runs; i++) run_job(&s->j, &s->team, 100, 3);
    return NULL;
}

/* Two teams at once, both meant to be pinned: one of them gives that up, both get everything done. */
static void test_two_teams(void **state) {
    (void)state;
    static job j;
    static second s = {.runs = 3};
    nf_error err = {0};
    nf_thread_plan plan = plan_of(0, NF_PIN_ON);
    nf_team team;
    pthread_t thread;
    OK(nf_team_start(&team, &plan, &err));
    OK(nf_team_start(&s.team, &plan, &err));
    assert_int_equal(pthread_create(&thread, NULL, run_second, &s), 0);
    for (int i = 0; i < 3; i++) run_job(&j, &team, 100, 3);
    pthread_join(thread, NULL);
    nf_team_stop(&team);
    nf_team_stop(&s.team);
    nf_thread_plan_free(&plan);
}

typedef struct where {
    const nf_thread_plan *plan;
    int wrong;
} where;

static void look(nf_worker *w, void *user) {
    where *x = user;
    cpu_set_t set;
    (void)w;
    pthread_getaffinity_np(pthread_self(), sizeof set, &set);
    x->wrong += CPU_COUNT(&set) != 1 || !CPU_ISSET(x->plan->cpus[0], &set);
}

/* While it runs loops the calling thread has one processor, before and after all that it had. */
static void test_pinning_leaves_no_trace(void **state) {
    (void)state;
    nf_error err = {0};
    nf_thread_plan plan = plan_of(1, NF_PIN_ON);
    nf_team team;
    cpu_set_t before, after;
    where x = {&plan, 0};
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof before, &before), 0);
    OK(nf_team_start(&team, &plan, &err));
    nf_team_run(&team, look, &x);
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    assert_int_equal(x.wrong, 0);
    nf_team_stop(&team);
    nf_thread_plan_free(&plan);
}

static void nested(nf_worker *w, void *user) {
    (void)w;
    second *s = user;
    run_job(&s->j, &s->team, 100, 3);
}

/* A pinned team that runs while another one does is not pinned from then on. */
static void test_pinning_given_up(void **state) {
    (void)state;
    static second s;
    nf_error err = {0};
    nf_thread_plan plan = plan_of(0, NF_PIN_ON);
    nf_team team;
    OK(nf_team_start(&team, &plan, &err));
    OK(nf_team_start(&s.team, &plan, &err));
    nf_team_run(&team, nested, &s);
    assert_true(team.pinned);
    assert_false(s.team.pinned);
    nf_team_stop(&team);
    nf_team_stop(&s.team);
    nf_thread_plan_free(&plan);
}

/* Work worth a hand-over in each piece; few pieces when there is much. */
static void test_grain(void **state) {
    (void)state;
    nf_error err = {0};
    nf_team team;
    OK(nf_team_start_n(&team, 2, &err));
    nf_worker w = {&team};
    assert_int_equal(nf_team_grain(&w, 10, NF_TEAM_LEAST_WORK), 1);
    assert_int_equal(nf_team_grain(&w, 10, NF_TEAM_LEAST_WORK * 100), 1);
    assert_int_equal(nf_team_grain(&w, 10, NF_TEAM_LEAST_WORK / 4), 4);
    assert_int_equal(nf_team_grain(&w, 10, NF_TEAM_LEAST_WORK / 4 - 1), 5);
    assert_int_equal(nf_team_grain(&w, 1600, NF_TEAM_LEAST_WORK / 4), 100);
    assert_true(nf_team_grain(&w, 10, 0) >= 10); /* nothing to do: the caller's affair */
    nf_team_stop(&team);
}

/* A system that gives no more threads is an error, and no thread is left behind. */
static void test_no_more_threads(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* which reserves terabytes of addresses */
#endif
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        nf_error err = {0};
        nf_team team;
        const struct rlimit little = {256 << 20, 256 << 20}; /* of addresses: some thirty stacks */
        if (setrlimit(RLIMIT_AS, &little)) _exit(2);
        const nf_status status = nf_team_start_n(&team, 1000, &err);
        const bool said = strstr(err.message, "cannot start thread") && strstr(err.message, "--threads");
        _exit((status == NF_ERR_MEMORY || status == NF_ERR_LIMIT) && said && !team.members ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_busy_processors),
        cmocka_unit_test(test_two_teams),
        cmocka_unit_test(test_pinning_leaves_no_trace),
        cmocka_unit_test(test_pinning_given_up),
        cmocka_unit_test(test_grain),
        cmocka_unit_test(test_no_more_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
