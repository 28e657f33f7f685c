/* Which processors a team gets, on synthetic machines, and when it is pinned. */
#include "tests/support/support.h"

#include "cpu/thread_plan.h"

#include <stdlib.h>
#include <string.h>

static nf_topology machine(const char *synthetic, const char *mask) {
    nf_error err = {0};
    nf_topology t;
    OK(nf_topology_read(&(nf_topology_source){.synthetic = synthetic, .mask = mask}, &t, &err));
    return t;
}

static void expect(const nf_topology *t, int n, const int *cpus, const int *nodes) {
    nf_error err = {0};
    nf_thread_plan plan;
    OK(nf_thread_plan_make(t, n, NF_PIN_OFF, &plan, &err));
    assert_int_equal(plan.n_threads, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(plan.cpus[i], cpus[i]);
        assert_int_equal(plan.nodes[i], nodes[i]);
    }
    nf_thread_plan_free(&plan);
    nf_thread_plan_free(&plan); /* zeroed: nothing to free */
}

/* One thread a core, as many on each node, grouped by node. */
static void test_two_nodes(void **state) {
    (void)state;
    nf_topology t = machine("package:2 [numa] core:4 pu:2", NULL);
    expect(&t, 1, (int[]){0}, (int[]){0});
    expect(&t, 2, (int[]){0, 8}, (int[]){0, 1});
    expect(&t, 5, (int[]){0, 2, 4, 8, 10}, (int[]){0, 0, 0, 1, 1});
    expect(&t, 8, (int[]){0, 2, 4, 6, 8, 10, 12, 14}, (int[]){0, 0, 0, 0, 1, 1, 1, 1});
    nf_topology_free(&t);
}

/* Five cores left of the first node, one of the second: they fill up in proportion. The core whose first
 * thread is masked out runs on its second. */
static void test_uneven_nodes(void **state) {
    (void)state;
    nf_topology t = machine("package:2 [numa] core:5 pu:2", "1-9,14");
    expect(&t, 2, (int[]){1, 14}, (int[]){0, 1});
    expect(&t, 4, (int[]){1, 2, 4, 14}, (int[]){0, 0, 0, 1});
    expect(&t, 6, (int[]){1, 2, 4, 6, 8, 14}, (int[]){0, 0, 0, 0, 0, 1});
    nf_topology_free(&t);
}

static bool is_pinned(const nf_topology *t, int n, nf_pin pin, const char *why) {
    nf_error err = {0};
    nf_thread_plan plan;
    OK(nf_thread_plan_make(t, n, pin, &plan, &err));
    const bool pinned = plan.pinned;
    assert_string_equal(plan.why, why);
    assert_int_equal(plan.cpus != NULL, plan.n_threads <= t->n_cores);
    nf_thread_plan_free(&plan);
    return pinned;
}

static void test_pinning(void **state) {
    (void)state;
    nf_topology one = machine("package:2 [numa] core:4 pu:2", "0-7"),
                t = machine("package:2 [numa] core:2 pu:2", NULL);
    unsetenv("NINFER_PIN");
    assert_true(is_pinned(&t, 4, NF_PIN_AUTO, "every allowed core is used"));
    assert_true(is_pinned(&t, 0, NF_PIN_AUTO, "every allowed core is used"));
    assert_false(is_pinned(&t, 3, NF_PIN_AUTO, "not every core is used"));
    assert_false(is_pinned(&one, 4, NF_PIN_AUTO, "one NUMA node"));
    assert_true(is_pinned(&one, 4, NF_PIN_ON, "asked for"));
    assert_false(is_pinned(&t, 5, NF_PIN_AUTO, "more threads than cores"));
    assert_true(is_pinned(&t, 3, NF_PIN_ON, "asked for"));
    assert_false(is_pinned(&t, 5, NF_PIN_ON, "more threads than cores"));
    assert_false(is_pinned(&t, 4, NF_PIN_OFF, "not asked for"));
    setenv("NINFER_PIN", "1", 1);
    assert_true(is_pinned(&t, 3, NF_PIN_AUTO, "asked for"));
    assert_false(is_pinned(&t, 4, NF_PIN_OFF, "not asked for")); /* a flag wins */
    setenv("NINFER_PIN", "0", 1);
    assert_false(is_pinned(&t, 4, NF_PIN_AUTO, "not asked for"));
    setenv("NINFER_PIN", "yes", 1);
    nf_error err = {0};
    nf_thread_plan plan;
    assert_int_equal(nf_thread_plan_make(&t, 4, NF_PIN_AUTO, &plan, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "NINFER_PIN must be 0 or 1, not 'yes'"));
    unsetenv("NINFER_PIN");
    assert_int_equal(nf_thread_plan_make(&t, 1025, NF_PIN_AUTO, &plan, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_thread_plan_make(&t, -1, NF_PIN_AUTO, &plan, &err), NF_ERR_ARGUMENT);
    assert_null(plan.cpus);
    nf_topology_free(&t);
    nf_topology_free(&one);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_nodes), cmocka_unit_test(test_uneven_nodes),
                                       cmocka_unit_test(test_pinning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
