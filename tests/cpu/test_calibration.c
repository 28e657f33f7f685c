/* The calibration file: what is saved is what is loaded, nothing hostile gets through, age and machine count.
 */
#include "tests/support/support.h"

#include "cpu/calibration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nf_calibration sample(void) {
    nf_error err = {0};
    nf_calibration c = {.machine = {"Some Processor 9000", "6.1.0-test", 8, 16, 2, UINT64_C(64) << 30},
                        .created = 1700000000,
                        .isa = "avx2",
                        .read_small_pages = {20, 21, 22},
                        .copy = {10, 11, 12},
                        .latency_small_ns = {100, 110, 120},
                        .latency_huge_ns = {80, 80, 95.5},
                        .latency_bytes = 1 << 28,
                        .huge_fraction = 0.75};
    for (int i = 1; i <= 8; i *= 2) {
        OK(nf_rates_add(&c.read, (nf_thread_rate){i, -1, {i * 10.0, i * 11.0, i * 12.0}}, &err));
        OK(nf_rates_add(&c.i8_dot, (nf_thread_rate){i, -1, {i * 50.0, i * 51.0, i * 52.0}}, &err));
    }
    OK(nf_rates_add(&c.f32_dot, (nf_thread_rate){1, -1, {30, 31, 32}}, &err));
    for (int node = 0; node < 2; node++)
        OK(nf_rates_add(&c.node_read, (nf_thread_rate){4, node, {40, 41, 42}}, &err));
    return c;
}

static void expect_rates(const nf_rates *a, const nf_rates *b) {
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) assert_memory_equal(&a->items[i], &b->items[i], sizeof *a->items);
}

static void test_round_trip(void **state) {
    (void)state;
    nf_error err = {0};
    nf_calibration c = sample(), d;
    const char *path = temp_path("folder/deeper/calibration.json");
    for (int disk = 0; disk < 2; disk++) {
        if (disk) {
            c.has_disk = true;
            c.disk_path = nf_strdup("/some/\"folder\"", &err);
            c.disk = (nf_spread){1.5, 2, 3};
        }
        OK(nf_calibration_save(&c, path, &err));
        OK(nf_calibration_load(path, &d, &err));
        assert_memory_equal(&c.machine, &d.machine, sizeof c.machine);
        assert_true(c.created == d.created && c.latency_bytes == d.latency_bytes);
        assert_string_equal(c.isa, d.isa);
        expect_rates(&c.read, &d.read);
        expect_rates(&c.node_read, &d.node_read);
        expect_rates(&c.f32_dot, &d.f32_dot);
        expect_rates(&c.i8_dot, &d.i8_dot);
        assert_memory_equal(&c.copy, &d.copy, sizeof c.copy);
        assert_memory_equal(&c.read_small_pages, &d.read_small_pages, sizeof c.copy);
        assert_memory_equal(&c.latency_small_ns, &d.latency_small_ns, sizeof c.copy);
        assert_memory_equal(&c.latency_huge_ns, &d.latency_huge_ns, sizeof c.copy);
        assert_true(c.huge_fraction == d.huge_fraction && d.has_disk == (disk == 1));
        if (disk) {
            assert_string_equal(c.disk_path, d.disk_path);
            assert_memory_equal(&c.disk, &d.disk, sizeof c.disk);
        }
        nf_calibration_free(&d);
    }
    nf_calibration_free(&c);
    nf_calibration_free(&c); /* zeroed: nothing to free */
}

/* Writes the file without syncing it: there are thousands. */
static const char *hostile(const char *text, size_t n) {
    static const char *path;
    if (!path) path = temp_path("hostile.json");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static nf_status load_text(const char *text, size_t n, nf_error *err) {
    nf_calibration c;
    nf_status status = nf_calibration_load(hostile(text, n), &c, err);
    if (status) assert_null(c.read.items); /* nothing is left behind */
    nf_calibration_free(&c);
    return status;
}

/* One member replaced (by JSON text) or, with NULL, taken out. */
static nf_status load_changed(const char *object, const char *member, const char *value, nf_error *err) {
    nf_calibration c = sample();
    json_t *root = nf_calibration_json(&c), *at = root;
    nf_calibration_free(&c);
    char names[64];
    snprintf(names, sizeof names, "%s", object);
    for (char *name = strtok(names, "."); name; name = strtok(NULL, ".")) {
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        assert_non_null(at);
    }
    assert_non_null(json_object_get(at, member));
    if (value)
        json_object_set_new(at, member, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(at, member);
    char *text = json_dumps(root, 0);
    nf_status status = load_text(text, strlen(text), err);
    free(text);
    json_decref(root);
    return status;
}

static void test_hostile_members(void **state) {
    (void)state;
    static const struct {
        const char *object, *member, *value, *says;
    } bad[] = {
        {"", "format", "\"other\"", "is not a calibration"},
        {"", "format", NULL, "is not a calibration"},
        {"", "version", "0", "'version'"},
        {"", "version", "1.5", "'version'"},
        {"", "created", "-1", "'created'"},
        {"", "created", "\"today\"", "'created'"},
        {"", "machine", "[]", "'machine'"},
        {"", "memory", NULL, "'memory'"},
        {"", "compute", "null", "'compute'"},
        {"machine", "processor", "5", "'processor'"},
        {"machine", "kernel",
         "\"0123456789012345678901234567890123456789012345678901234567890123456789012345678"
         "90123456789012345678901234567890123456789012345678901234567890\"",
         "'kernel'"},
        {"machine", "cores", "0", "'cores'"},
        {"machine", "threads", "99999999999", "'threads'"},
        {"machine", "memory_bytes", "-5", "'memory_bytes'"},
        {"memory", "read_gb_s", "[]", "'read_gb_s' is empty"},
        {"memory", "read_gb_s", "{}", "'read_gb_s'"},
        {"memory", "read_gb_s", "[5]", "'read_gb_s'"},
        {"memory.read_gb_s.1", "threads", "1", "order"},
        {"memory.read_gb_s.0", "threads", "0", "'threads'"},
        {"memory.read_gb_s.0", "median", "0", "above zero"},
        {"memory.read_gb_s.0", "min", "1e300", "'min'"},
        {"memory.read_gb_s.0", "max", "5", "minimum, median and maximum"},
        {"memory.read_gb_s.0", "max", "true", "'max'"},
        {"memory.node_read_gb_s.0", "node", "-1", "'node'"},
        {"memory", "copy_gb_s", "7", "'copy_gb_s'"},
        {"memory", "latency", "7", "'latency'"},
        {"memory.latency", "bytes", "0", "'bytes'"},
        {"memory.latency", "huge_fraction", "1.5", "'huge_fraction'"},
        {"memory.latency", "huge_pages_ns", NULL, "'huge_pages_ns'"},
        {"compute", "isa", "\"a name beyond all levels\"", "'isa'"},
        {"compute", "i8_gmac_s", "[]", "'i8_gmac_s'"},
    };
    nf_error err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(load_changed(bad[i].object, bad[i].member, bad[i].value, &err), NF_ERR_FORMAT);
        if (!strstr(err.message, bad[i].says)) fail_msg("'%s' lacks '%s'", err.message, bad[i].says);
        assert_non_null(strstr(err.message, "hostile.json"));
    }
    OK(load_changed("machine", "cores", "4", &err));
    OK(load_changed("memory", "node_read_gb_s", "[]", &err));
    assert_int_equal(load_changed("", "version", "2", &err), NF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "version 2"));
}

/* Every beginning of a good file, and with every byte replaced: an error or sane figures, never worse. */
static void test_hostile_bytes(void **state) {
    (void)state;
    nf_error err = {0};
    nf_calibration c = sample(), d;
    json_t *root = nf_calibration_json(&c);
    char *text = json_dumps(root, JSON_COMPACT);
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) assert_int_equal(load_text(text, i, &err), NF_ERR_FORMAT);
    OK(load_text(text, n, &err));
    for (size_t i = 0; i < n; i++) {
        const char was = text[i];
        text[i] = (char)(was ^ 0x11);
        if (!nf_calibration_load(hostile(text, n), &d, &err))
            for (size_t k = 0; k < d.read.n; k++)
                assert_true(d.read.items[k].rate.median > 0 && d.read.items[k].threads > 0);
        nf_calibration_free(&d);
        text[i] = was;
    }
    free(text);
    json_decref(root);
    nf_calibration_free(&c);
    assert_int_equal(load_text("[1]", 3, &err), NF_ERR_FORMAT);
    assert_int_equal(load_text("", 0, &err), NF_ERR_FORMAT);
    assert_int_equal(nf_calibration_load(temp_path("absent.json"), &d, &err), NF_ERR_NOT_FOUND);
}

static void test_stale(void **state) {
    (void)state;
    nf_calibration c = sample();
    char why[200];
    const int64_t day = 86400;
    nf_machine m = c.machine;
    assert_false(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    assert_false(nf_calibration_stale(&c, &m, c.created + 30 * day, why, sizeof why));
    assert_true(nf_calibration_stale(&c, &m, c.created + 31 * day, why, sizeof why));
    assert_string_equal(why, "measured 31 days ago");
    assert_true(nf_calibration_stale(&c, &m, c.created - 2 * day, why, sizeof why));
    m.memory_bytes -= m.memory_bytes / 100; /* the kernel's own share changes */
    assert_false(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    m.memory_bytes /= 2;
    assert_true(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    assert_non_null(strstr(why, "68.7 GB of memory"));
    m = c.machine, m.cores = 4;
    assert_true(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    assert_non_null(strstr(why, "8 cores, 16 hardware threads and 2 NUMA nodes"));
    m = c.machine, strcpy(m.kernel, "6.2");
    assert_true(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    assert_non_null(strstr(why, "6.1.0-test"));
    m = c.machine, strcpy(m.processor, "Another");
    assert_true(nf_calibration_stale(&c, &m, c.created, why, sizeof why));
    assert_non_null(strstr(why, "Some Processor 9000"));
    nf_calibration_free(&c);
}

static void test_this_machine(void **state) {
    (void)state;
    nf_error err = {0};
    nf_topology t;
    nf_machine m;
    OK(nf_topology_get(&t, &err));
    nf_machine_of(&t, &m);
    assert_true(m.processor[0] && m.kernel[0] && m.cores == t.all_cores && m.nodes == t.n_numa_nodes);
    nf_topology_free(&t);
}

static void test_path(void **state) {
    (void)state;
    nf_error err = {0};
    nf_buf path = {0};
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    OK(nf_calibration_path(&path, &err));
    assert_string_equal(path.data, "/somewhere/ninfer/calibration.json");
    nf_buf_free(&path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_hostile_members),
        cmocka_unit_test(test_hostile_bytes), cmocka_unit_test(test_stale),
        cmocka_unit_test(test_this_machine),  cmocka_unit_test(test_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
