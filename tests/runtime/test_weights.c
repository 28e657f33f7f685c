/* Where weights lie changes nothing: the same logits from the mapped file and from a copy, of one part and of
 * several; and what is said about it. */
#include "tests/support/support.h"

#include "base/buf.h"
#include "converter/convert.h"
#include "format/container.h"
#include "runtime/ninfer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int32_t ids[] = {35, 459, 490, 276, 7, 300};
enum { N_IDS = sizeof ids / sizeof *ids };

typedef struct outcome {
    float *logits;
    uint32_t vocab;
    char weights[256];
} outcome;

static outcome run(const char *path, const char *weights, nf_progress_fn progress, uint64_t *seen) {
    nf_error err = {0};
    nf_model *model;
    nf_session *session;
    nf_model_info info;
    const nf_model_options options = {
        .n_threads = 3, .weights = weights, .progress = progress, .progress_user = seen};
    outcome out = {0};
    OK(nf_model_open(path, &options, &model, &err));
    nf_model_get_info(model, &info);
    OK(nf_session_new(model, NULL, &session, &err));
    OK(nf_session_eval(session, ids, N_IDS, NULL, NULL, &err));
    out.vocab = info.vocab_size;
    out.logits = nf_alloc(info.vocab_size, sizeof(float), "logits", &err);
    assert_non_null(out.logits);
    memcpy(out.logits, nf_session_logits(session), info.vocab_size * sizeof(float));
    snprintf(out.weights, sizeof out.weights, "%s", info.weights);
    nf_session_free(session);
    nf_model_free(model);
    return out;
}

static void expect_same(const outcome *a, const outcome *b) {
    assert_int_equal(a->vocab, b->vocab);
    assert_memory_equal(a->logits, b->logits, a->vocab * sizeof(float));
}

static bool count_progress(void *user, const char *phase, uint64_t done, uint64_t total) {
    uint64_t *seen = user;
    assert_string_equal(phase, "load");
    assert_true(done > *seen && done <= total);
    *seen = done;
    return true;
}

static void test_same_values(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", temp_path("no-calibration"), 1);
    static const char *const types[] = {"c4", "f8"};
    for (size_t i = 0; i < 2; i++) {
        uint64_t seen = 0;
        const char *path = converted(types[i]);
        outcome map = run(path, NULL, NULL, NULL), ram = run(path, "ram", count_progress, &seen),
                chosen = run(path, "auto", NULL, NULL);
        expect_same(&map, &ram);
        expect_same(&map, &chosen);
        assert_string_equal(map.weights, "mapped from the file");
        assert_non_null(strstr(ram.weights, "MB copied to memory, "));
        assert_non_null(strstr(ram.weights, "% on huge pages"));
        assert_true(seen > 10 << 20);
        free(map.logits), free(ram.logits), free(chosen.logits);
    }
}

static bool refuse(void *user, const char *phase, uint64_t done, uint64_t total) {
    (void)user, (void)phase, (void)done, (void)total;
    return false;
}

static void test_errors(void **state) {
    (void)state;
    nf_error err = {0};
    nf_model *model;
    const char *path = converted("c4");
    assert_int_equal(nf_model_open(path, &(nf_model_options){.weights = "disk"}, &model, &err),
                     NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "'map', 'ram' or 'auto', not 'disk'"));
    assert_int_equal(
        nf_model_open(path, &(nf_model_options){.weights = "ram", .progress = refuse}, &model, &err),
        NF_ERR_CANCELLED);
    assert_null(model);
}

/* The embedded model in parts so small that objects lie in several of them. */
static const char *in_parts(void) {
    nf_error err = {0};
    const char *path = temp_path("parts.ninfer");
    nf_convert_options options = {.max_part_bytes = 2200 << 10};
    assert_true(nf_type_by_name("i8", &options.type.type));
    OK(nf_convert(MODEL_DIR, path, &options, &err));
    return path;
}

/* A range of an object, across its segments, is what the mapping shows. */
static void test_parts(void **state) {
    (void)state;
    nf_error err = {0};
    nf_container *c;
    uint64_t seed = 1;
    size_t most_segments = 0;
    const char *path = in_parts();
    outcome map = run(path, "map", NULL, NULL), ram = run(path, "ram", NULL, NULL);
    expect_same(&map, &ram);
    free(map.logits), free(ram.logits);
    OK(nf_container_open(path, &c, &err));
    for (size_t i = 0; i < nf_container_object_count(c); i++) {
        const nf_object *o = nf_container_object(c, i);
        const uint8_t *bytes;
        if (o->kind == NF_OBJECT_BLOB || !o->bytes) continue;
        if (o->n_segments > most_segments) most_segments = o->n_segments;
        OK(nf_container_map(c, o, &bytes, &err));
        const uint64_t at = next_random(&seed) % o->bytes, n = o->bytes - at;
        uint8_t *copy = nf_alloc(n, 1, "a copy", &err);
        OK(nf_container_read(c, o, at, copy, n, &err));
        assert_memory_equal(copy, bytes + at, n);
        assert_int_equal(nf_container_read(c, o, o->bytes, copy, 1, &err), NF_ERR_ARGUMENT);
        assert_int_equal(nf_container_read(c, o, UINT64_MAX, copy, 1, &err), NF_ERR_ARGUMENT);
        OK(nf_container_read(c, o, o->bytes, copy, 0, &err));
        free(copy);
    }
    assert_true(most_segments > 1);
    nf_container_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_values), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
