/* The thread team: every item of a loop once, what one loop wrote visible in the next, any number of threads.
 */
#include "tests/support/support.h"

#include "cpu/team.h"

#include <stdatomic.h>
#include <string.h>

enum { ITEMS = 1000, LOOPS = 300 };

typedef struct job {
    atomic_int taken[ITEMS];
    int value[ITEMS]; /* written in one loop, read in the next */
    atomic_int wrong;
    size_t n, grain;
    int round; /* changed by a loop of one item */
} job;

static void count(void *user, size_t begin, size_t end, int thread) {
    job *j = user;
    (void)thread;
    if (begin >= end || end > j->n) atomic_fetch_add(&j->wrong, 1);
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
    (void)thread;
    if (begin != 0 || end != 1) atomic_fetch_add(&j->wrong, 1);
    j->round++;
}

static void work(nf_worker *w, void *user) {
    job *j = user;
    for (int round = 0; round < LOOPS; round++) {
        nf_team_loop(w, 1, 1, next_round, j);
        nf_team_loop(w, j->n, j->grain, count, j);
        nf_team_loop(w, j->n, 1, check, j);
    }
}

static void test_loops(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 64, ITEMS};
    static job j;
    for (int threads = 1; threads <= 9; threads += 2)
        for (int k = 0; k < 5; k++) {
            nf_team team;
            memset(&j, 0, sizeof j);
            j.n = sizes[k];
            j.grain = k + 1;
            nf_team_init(&team, threads);
            nf_team_run(&team, work, &j);
            nf_team_run(&team, work, &j); /* a team is used again and again */
            assert_int_equal(j.wrong, 0);
            for (size_t i = 0; i < j.n; i++) assert_int_equal(j.taken[i], 2 * LOOPS);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
