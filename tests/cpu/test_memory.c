/* Memory of a wanted kind: writable from end to end, zero at first, on the pages that were asked for. */
#include "tests/support/support.h"

#include "cpu/memory.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20 };

static bool system_allows_huge_pages(void) {
    char text[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (!f) return false;
    const bool allowed = fgets(text, sizeof text, f) && !strstr(text, "[never]");
    fclose(f);
    return allowed;
}

static void test_sizes(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4096, 2 * MIB, 2 * MIB + 1, 9 * MIB - 5};
    nf_error err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int pages = NF_PAGES_HUGE; pages <= NF_PAGES_SMALL; pages++) {
            nf_memory m;
            nf_memory_report got;
            const nf_memory_options options = {.pages = pages};
            OK(nf_memory_new(sizes[i], &options, &m, &err));
            assert_int_equal(m.n, sizes[i]);
            assert_int_equal((uintptr_t)m.bytes % (2 * MIB), 0);
            assert_true(m.placed);
            OK(nf_memory_inspect(&m, &got, &err));
            if (!m.pool) assert_int_equal(got.resident_bytes, 0);
            for (size_t k = 0; k < m.n; k += 4096) assert_int_equal(m.bytes[k], 0);
            memset(m.bytes, 0xA5, m.n);
            assert_true(m.bytes[0] == 0xA5 && m.bytes[m.n - 1] == 0xA5);
            OK(nf_memory_inspect(&m, &got, &err));
            assert_true(got.resident_bytes >= m.n && got.huge_bytes <= got.resident_bytes);
            if (pages == NF_PAGES_SMALL) assert_int_equal(got.huge_bytes, 0);
            nf_memory_free(&m);
            assert_null(m.bytes);
            nf_memory_free(&m); /* zeroed: nothing to free */
        }
}

/* Two memories that lie side by side are told apart. */
static void test_reports_of_neighbours(void **state) {
    (void)state;
    nf_error err = {0};
    nf_memory a, b;
    nf_memory_report got;
    OK(nf_memory_new(8 * MIB, NULL, &a, &err));
    OK(nf_memory_new(8 * MIB, NULL, &b, &err));
    memset(a.bytes, 1, a.n);
    OK(nf_memory_inspect(&a, &got, &err));
    assert_int_equal(got.resident_bytes, 8 * MIB);
    /* How many is the kernel's business, which may lack contiguous memory; none without its consent. */
    if (!system_allows_huge_pages() && !a.pool) assert_int_equal(got.huge_bytes, 0);
    if (!b.pool) {
        OK(nf_memory_inspect(&b, &got, &err));
        assert_int_equal(got.resident_bytes, 0);
    }
    nf_memory_free(&a);
    nf_memory_free(&b);
}

static void test_nodes(void **state) {
    (void)state;
    nf_error err = {0};
    nf_memory m;
    const int nodes[] = {0, 1500}, absent = 1023;
    OK(nf_memory_new(MIB, &(nf_memory_options){.nodes = nodes, .n_nodes = 1}, &m, &err));
    memset(m.bytes, 1, m.n); /* placed or not: containers may forbid it */
    nf_memory_free(&m);
    assert_int_equal(nf_memory_new(MIB, &(nf_memory_options){.nodes = nodes, .n_nodes = 2}, &m, &err),
                     NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "1500"));
    assert_null(m.bytes);
    /* A node that no machine of ours has: the memory is there all the same, and says that it is elsewhere. */
    OK(nf_memory_new(MIB, &(nf_memory_options){.nodes = &absent, .n_nodes = 1}, &m, &err));
    assert_false(m.placed);
    memset(m.bytes, 1, m.n);
    nf_memory_free(&m);
}

static void test_too_much(void **state) {
    (void)state;
    nf_error err = {0};
    nf_memory m;
    assert_int_equal(nf_memory_new(0, NULL, &m, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_memory_new(SIZE_MAX, NULL, &m, &err), NF_ERR_MEMORY);
    assert_int_equal(nf_memory_new(SIZE_MAX / 4, NULL, &m, &err), NF_ERR_MEMORY);
    assert_null(m.bytes);
    nf_memory_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_reports_of_neighbours),
                                       cmocka_unit_test(test_nodes), cmocka_unit_test(test_too_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
