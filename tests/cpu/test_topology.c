/* The topology on synthetic machines, and the limits of control groups in folders made for the purpose. */
#include "tests/support/support.h"

#include "base/io.h"
#include "cpu/cgroup.h"
#include "cpu/topology.h"

#include <stdio.h>
#include <string.h>

#define TWO_PACKAGES "package:2 [numa(memory=8GB)] l3:1(size=33554432) core:4 pu:2"

/* A fresh root for a case. */
static const char *root_of(const char *name) {
    return temp_path(name);
}

static void put(const char *root, const char *name, const char *text) {
    nf_error err = {0};
    char path[512], folder[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    OK(nf_make_dirs(folder, &err));
    OK(nf_write_file_atomic(path, text, strlen(text), &err));
}

static nf_status read_machine(const char *mask, const char *root, nf_topology *t, nf_error *err) {
    return nf_topology_read(&(nf_topology_source){TWO_PACKAGES, mask, root}, t, err);
}

/* ---- machines ---- */

static void test_this_machine(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    OK(nf_topology_get(&t, &err));
    assert_true(t.n_cores >= 1 && t.n_threads >= t.n_cores && t.n_packages >= 1 && t.n_numa_nodes >= 1);
    assert_true(t.all_threads >= t.n_threads && t.all_cores >= t.n_cores);
    int n = nf_topology_default_threads(&t);
    assert_true(n >= 1 && n <= t.n_cores);
    nf_topology_free(&t);
    nf_topology_free(&t); /* zeroed: nothing to free */
}

static void test_whole_synthetic_machine(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    OK(read_machine(NULL, NULL, &t, &err));
    assert_int_equal(t.n_packages, 2);
    assert_int_equal(t.n_numa_nodes, 2);
    assert_int_equal(t.n_cores, 8);
    assert_int_equal(t.n_threads, 16);
    assert_int_equal(t.all_cores, 8);
    assert_int_equal(t.all_threads, 16);
    assert_true(t.memory_bytes == t.nodes[0].memory_bytes + t.nodes[1].memory_bytes && t.memory_bytes > 0);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(t.cpus[i].cpu, i);
        assert_int_equal(t.cpus[i].core, i / 2);
        assert_int_equal(t.cpus[i].sibling, i % 2);
        assert_int_equal(t.cpus[i].node, i / 8);
        assert_int_equal(t.cpus[i].package, i / 8);
    }
    assert_int_equal(t.n_caches, 1);
    assert_int_equal(t.caches[0].level, 3);
    assert_int_equal(t.caches[0].count, 2);
    assert_int_equal(t.caches[0].shared_by, 8);
    assert_int_equal(nf_topology_default_threads(&t), 8);
    nf_topology_free(&t);
}

/* One thread of core 0, both of core 1, one of core 6 in the other package. */
static void test_mask(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    OK(read_machine("1-3,13", NULL, &t, &err));
    static const nf_topology_cpu expected[] = {
        {1, 0, 0, 0, 0}, {2, 1, 0, 0, 0}, {3, 1, 1, 0, 0}, {13, 2, 0, 1, 1}};
    assert_int_equal(t.n_threads, 4);
    assert_int_equal(t.n_cores, 3);
    assert_int_equal(t.all_cores, 8);
    assert_memory_equal(t.cpus, expected, sizeof expected);
    nf_topology_free(&t);
    assert_int_equal(read_machine("16-20", NULL, &t, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "leave no processor"));
    assert_int_equal(read_machine("two", NULL, &t, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_topology_read(&(nf_topology_source){.synthetic = "nonsense"}, &t, &err),
                     NF_ERR_ARGUMENT);
    assert_null(t.cpus);
}

/* Systems that number all first threads before all second ones: order is by core all the same. */
static void test_interleaved_numbers(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    OK(nf_topology_read(&(nf_topology_source){.synthetic = "package:1 core:2 pu:2(indexes=0,2,1,3)"}, &t,
                        &err));
    static const int cpus[] = {0, 2, 1, 3};
    assert_int_equal(t.n_cores, 2);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(t.cpus[i].cpu, cpus[i]);
        assert_int_equal(t.cpus[i].core, i / 2);
        assert_int_equal(t.cpus[i].sibling, i % 2);
    }
    nf_topology_free(&t);
}

/* Some virtual machines show threads only. */
static void test_no_cores(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    OK(nf_topology_read(&(nf_topology_source){.synthetic = "pu:3"}, &t, &err));
    assert_int_equal(t.n_cores, 3);
    assert_int_equal(t.n_threads, 3);
    assert_int_equal(t.n_packages, 1);
    nf_topology_free(&t);
}

static void test_describe(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    nf_buf text = {0};
    const char *root = root_of("describe");
    put(root, "proc/self/cgroup", "0::/a\n");
    put(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    put(root, "sys/fs/cgroup/a/memory.max", "3221225472\n");
    OK(read_machine("1-3,13", root, &t, &err));
    OK(nf_topology_describe(&t, &text, &err));
    assert_non_null(strstr(text.data, "cores    3 of 8 allowed, hardware threads 4 of 16\n"));
    assert_non_null(strstr(text.data, "processors 1 2+3\n"));
    assert_non_null(strstr(text.data, "processors 13\n"));
    assert_non_null(strstr(text.data, "L3       2 x 32768 KiB, each for 8 hardware threads\n"));
    assert_non_null(strstr(text.data, "quota    1.50 processors"));
    assert_non_null(strstr(text.data, "limited to 3.0 GiB"));
    nf_buf_free(&text);
    nf_topology_free(&t);
}

/* ---- control groups ---- */

static void test_no_groups(void **state) {
    (void)state;
    nf_error err = {0};
    nf_cgroup_limits l = {1, 1};
    OK(nf_cgroup_read(root_of("nothing"), NULL, &l, &err));
    assert_true(l.cpus == 0 && l.memory_bytes == 0);
}

/* A parent's limit binds as well; the smallest counts. */
static void test_version_2(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    const char *root = root_of("v2");
    put(root, "proc/self/cgroup", "0::/outer/inner\n");
    put(root, "sys/fs/cgroup/outer/cpu.max", "250000 100000\n");
    put(root, "sys/fs/cgroup/outer/memory.max", "max\n");
    put(root, "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    put(root, "sys/fs/cgroup/outer/inner/memory.max", "1073741824\n");
    put(root, "sys/fs/cgroup/cpuset.cpus.effective", "0-15\n");
    put(root, "sys/fs/cgroup/outer/cpuset.cpus.effective", "0-7,14\n");
    OK(read_machine("4-15", root, &t, &err));
    assert_true(t.quota_cpus == 2.5 && t.memory_limit == 1073741824u);
    assert_int_equal(t.n_threads, 5);
    assert_int_equal(t.n_cores, 3);
    assert_int_equal(t.cpus[4].cpu, 14);
    assert_int_equal(nf_topology_default_threads(&t), 2);
    nf_topology_free(&t);
    put(root, "sys/fs/cgroup/outer/cpu.max", "40000 100000\n"); /* less than one processor: still a thread */
    OK(read_machine(NULL, root, &t, &err));
    assert_int_equal(nf_topology_default_threads(&t), 1);
    nf_topology_free(&t);
}

static void test_version_1(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    const char *root = root_of("v1");
    put(root, "proc/self/cgroup",
        "9:name=systemd:/\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
    /* The container sees its own group as the root: /docker/abc is not there. */
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "2147483648\n");
    put(root, "sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0-7\n");
    OK(read_machine(NULL, root, &t, &err));
    assert_true(t.quota_cpus == 3 && t.memory_limit == 2147483648u);
    assert_int_equal(t.n_cores, 4);
    assert_int_equal(nf_topology_default_threads(&t), 3);
    nf_topology_free(&t);
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    OK(read_machine(NULL, root, &t, &err));
    assert_true(t.quota_cpus == 0);
    nf_topology_free(&t);
    /* "cpuacct" alone must not be taken for "cpu". */
    put(root, "proc/self/cgroup", "2:cpuacct:/\n");
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    OK(read_machine(NULL, root, &t, &err));
    assert_true(t.quota_cpus == 0);
    nf_topology_free(&t);
}

/* A group outside of the view ("/../x") is not looked for; the visible root counts. */
static void test_group_outside(void **state) {
    (void)state;
    nf_error err = {0};
    nf_cgroup_limits l;
    const char *root = root_of("outside");
    put(root, "proc/self/cgroup", "0::/../x\n");
    put(root, "sys/fs/x/cpu.max", "100000 100000\n");
    put(root, "sys/fs/cgroup/cpu.max", "200000 100000\n");
    OK(nf_cgroup_read(root, NULL, &l, &err));
    assert_true(l.cpus == 2);
}

static void test_not_understood(void **state) {
    (void)state;
    nf_error err = {0};
    nf_cgroup_limits l;
    const char *root = root_of("bad");
    static const struct {
        const char *file, *text;
    } bad[] = {{"cpu.max", "0 100000\n"},
               {"cpu.max", "100000\n"},
               {"cpu.max", "100000 0\n"},
               {"cpu.max", "-5 100000\n"},
               {"cpu.max", "99999999999999999999999 100000\n"},
               {"memory.max", "1k\n"},
               {"memory.max", "-1\n"},
               {"cpuset.cpus.effective", "all\n"},
               {"cpuset.cpus.effective", "0xf\n"}};
    put(root, "proc/self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[128];
        hwloc_bitmap_t cpus = hwloc_bitmap_alloc_full();
        snprintf(name, sizeof name, "sys/fs/cgroup/%s", bad[i].file);
        put(root, name, bad[i].text);
        assert_int_equal(nf_cgroup_read(root, cpus, &l, &err), NF_ERR_FORMAT);
        assert_non_null(strstr(err.message, bad[i].file));
        put(root, name, ""); /* empty: no limit */
        OK(nf_cgroup_read(root, cpus, &l, &err));
        hwloc_bitmap_free(cpus);
    }
    put(root, "proc/self/cgroup", "nonsense\n");
    assert_int_equal(nf_cgroup_read(root, NULL, &l, &err), NF_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),   cmocka_unit_test(test_whole_synthetic_machine),
        cmocka_unit_test(test_mask),           cmocka_unit_test(test_interleaved_numbers),
        cmocka_unit_test(test_no_cores),       cmocka_unit_test(test_describe),
        cmocka_unit_test(test_no_groups),      cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_version_1),      cmocka_unit_test(test_group_outside),
        cmocka_unit_test(test_not_understood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
