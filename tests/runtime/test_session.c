/* Sessions on the embedded model: router decisions against the golden ones, reuse of a conversation, limits,
 * cancelling, damaged weights. */
#include "tests/support/support.h"

#include "converter/convert.h"
#include "format/safetensors.h"
#include "runtime/session_internal.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nf_model *open_model(const char *type) {
    nf_error err = {0};
    nf_model *m;
    const nf_model_options options = {.n_threads = 2};
    OK(nf_model_open(converted(type), &options, &m, &err));
    return m;
}

static nf_session *open_session(nf_model *m, uint32_t context, uint32_t chunk) {
    nf_error err = {0};
    nf_session *s;
    const nf_session_options options = {.max_context = context, .prefill_chunk = chunk};
    OK(nf_session_new(m, &options, &s, &err));
    return s;
}

static int32_t *golden_ids(const char *name, const char *what, size_t *n) {
    json_error_t where;
    json_t *root = json_load_file(MODEL_DIR "/golden/golden.json", 0, &where);
    json_t *list = json_object_get(json_object_get(json_object_get(root, "prompts"), name), what);
    *n = json_array_size(list);
    assert_true(*n > 0);
    int32_t *ids = calloc(*n, sizeof *ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    json_decref(root);
    return ids;
}

/* ---- router ---- */

typedef struct routes {
    const int32_t *ids;
    const float *weights, *gaps;
    uint32_t n_tokens, seen, close;
} routes;

static void on_route(void *user, uint32_t layer, uint32_t position, const int32_t *ids, const float *weights,
                     float gap) {
    routes *r = user;
    size_t at = (size_t)layer * r->n_tokens + position;
    float want = r->gaps[at];
    r->seen++;
    assert_float_equal(gap, want, 1e-4f);
    if (want <= 1e-5f) {
        r->close++;
        return;
    }
    for (int k = 0; k < 6; k++) {
        assert_int_equal(ids[k], r->ids[at * 6 + (size_t)k]);
        assert_float_equal(weights[k], r->weights[at * 6 + (size_t)k], 1e-4f);
    }
}

static void test_router_choices(void **state) {
    (void)state;
    nf_error err = {0};
    nf_safetensors *golden;
    OK(nf_safetensors_open(MODEL_DIR "/golden/golden.safetensors", &golden, &err));
    size_t n_prompt, n_answer;
    int32_t *ids = golden_ids("chat", "ids", &n_prompt), *answer = golden_ids("chat", "greedy", &n_answer);
    ids = realloc(ids, (n_prompt + n_answer) * sizeof *ids);
    memcpy(ids + n_prompt, answer, n_answer * sizeof *ids);
    routes r = {.ids = (const int32_t *)nf_safetensors_find(golden, "chat.expert_ids")->data,
                .weights = (const float *)nf_safetensors_find(golden, "chat.expert_weights")->data,
                .gaps = (const float *)nf_safetensors_find(golden, "chat.expert_gaps")->data,
                .n_tokens = (uint32_t)(n_prompt + n_answer)};
    static const char *const types[] = {"f32", "bf16"};
    for (int t = 0; t < 2; t++) {
        nf_model *m = open_model(types[t]);
        nf_session *s = open_session(m, 0, 30);
        r.seen = r.close = 0;
        OK(nf_session_set_route_hook(s, on_route, &r, &err));
        OK(nf_session_eval(s, ids, r.n_tokens, NULL, NULL, &err));
        assert_int_equal(r.seen, 6 * r.n_tokens);
        assert_true(r.close < r.seen / 20);
        nf_session_free(s);
        nf_model_free(m);
    }
    free(ids), free(answer);
    nf_safetensors_close(golden);
}

/* ---- reuse ---- */

static nf_generation generate(nf_session *s, const int32_t *ids, size_t n, uint32_t max) {
    nf_error err = {0};
    nf_generate_options o = nf_generate_defaults();
    nf_generation g;
    o.max_tokens = max;
    o.ignore_eos = true;
    OK(nf_session_generate(s, ids, n, &o, &g, &err));
    return g;
}

static void expect_same(const nf_generation *a, const nf_generation *b) {
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
}

/* A second turn, a regenerated answer, an edited message: each gives the bytes of a cold run and computes
 * only what it must. */
static void test_a_conversation_is_reused(void **state) {
    (void)state;
    nf_model *m = open_model("c4");
    nf_session *warm = open_session(m, 0, 0), *cold = open_session(m, 0, 0);
    size_t n, n_more;
    int32_t *ids = golden_ids("tool", "ids", &n), *more = golden_ids("sum", "ids", &n_more);
    nf_generation first = generate(warm, ids, n, 20);
    assert_int_equal(first.reused_tokens, 0);
    /* second turn: prompt, answer, next message */
    int32_t *turn = calloc(n + 20 + n_more, sizeof *turn);
    memcpy(turn, ids, n * sizeof *turn);
    memcpy(turn + n, first.ids, 20 * sizeof *turn);
    memcpy(turn + n + 20, more, n_more * sizeof *turn);
    nf_generation second = generate(warm, turn, n + 20 + n_more, 16),
                  fresh = generate(cold, turn, n + 20 + n_more, 16);
    assert_true(second.reused_tokens >= n + 19);
    expect_same(&second, &fresh);
    nf_generation_free(&fresh);
    /* regenerate: nothing of the prompt is computed again */
    nf_generation again = generate(warm, turn, n + 20 + n_more, 16);
    assert_int_equal(again.reused_tokens, n + 20 + n_more);
    expect_same(&again, &second);
    /* an edited last message resumes at the end of the first prompt or later */
    turn[n + 22] ^= 1;
    nf_session_reset(cold);
    nf_generation edited = generate(warm, turn, n + 20 + n_more, 16);
    fresh = generate(cold, turn, n + 20 + n_more, 16);
    assert_true(edited.reused_tokens >= n && edited.reused_tokens <= n + 22);
    expect_same(&edited, &fresh);
    nf_generation_free(&first), nf_generation_free(&second), nf_generation_free(&again),
        nf_generation_free(&edited), nf_generation_free(&fresh);
    free(ids), free(more), free(turn);
    nf_session_free(warm), nf_session_free(cold);
    nf_model_free(m);
}

/* ---- limits and errors ---- */

static void test_limits(void **state) {
    (void)state;
    nf_error err = {0};
    nf_model *m = open_model("c4");
    nf_session *s = open_session(m, 40, 0);
    size_t n;
    int32_t *ids = golden_ids("tool", "ids", &n); /* 59 tokens */
    nf_generation g;
    nf_generate_options o = nf_generate_defaults();
    assert_int_equal(nf_session_generate(s, ids, n, &o, &g, &err), NF_ERR_LIMIT);
    assert_non_null(strstr(err.message, "59"));
    assert_non_null(strstr(err.message, "40"));
    assert_int_equal(nf_session_generate(s, ids, 0, &o, &g, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_session_eval(s, ids, n, NULL, NULL, &err), NF_ERR_LIMIT);
    assert_int_equal(nf_session_position(s), 0);
    const int32_t bad = 8192, negative = -1;
    assert_int_equal(nf_session_eval(s, &bad, 1, NULL, NULL, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_session_eval(s, &negative, 1, NULL, NULL, &err), NF_ERR_ARGUMENT);
    assert_null(nf_session_logits(s));
    o.ignore_eos = true;
    OK(nf_session_generate(s, ids, 30, &o, &g, &err));
    assert_int_equal(g.finish, NF_FINISH_CONTEXT);
    assert_int_equal(g.n_ids, 11); /* ten of them evaluated, the last one only sampled */
    nf_generation_free(&g);
    nf_session_free(s);
    const nf_session_options too_long = {.max_context = 8193};
    assert_int_equal(nf_session_new(m, &too_long, &s, &err), NF_ERR_ARGUMENT);
    nf_sampling bad_sampling = nf_sampling_greedy();
    bad_sampling.temperature = NAN;
    s = open_session(m, 0, 0);
    o.sampling = bad_sampling;
    assert_int_equal(nf_session_generate(s, ids, 5, &o, &g, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "temperature"));
    nf_session_free(s);
    free(ids);
    nf_model_free(m);
}

static bool cancel_soon(void *user, const char *text, size_t n) {
    (void)text, (void)n;
    nf_session_cancel(user);
    return true;
}

static bool refuse(void *user, const char *text, size_t n) {
    (void)user, (void)text, (void)n;
    return false;
}

static void test_cancel(void **state) {
    (void)state;
    nf_error err = {0};
    nf_model *m = open_model("c4");
    nf_session *s = open_session(m, 0, 0);
    size_t n;
    int32_t *ids = golden_ids("chat", "ids", &n);
    nf_generate_options o = nf_generate_defaults();
    nf_generation g;
    o.on_text = cancel_soon;
    o.user = s;
    OK(nf_session_generate(s, ids, n, &o, &g, &err));
    assert_int_equal(g.finish, NF_FINISH_CANCELLED);
    assert_true(g.n_ids >= 1 && g.n_ids < 4);
    nf_generation_free(&g);
    o.on_text = refuse;
    OK(nf_session_generate(s, ids, n, &o, &g, &err));
    assert_int_equal(g.finish, NF_FINISH_CANCELLED);
    nf_generation_free(&g);
    /* Afterwards the session goes on as if nothing had happened. */
    nf_generation after = generate(s, ids, n, 12);
    nf_session_reset(s);
    nf_generation fresh = generate(s, ids, n, 12);
    expect_same(&after, &fresh);
    nf_generation_free(&after), nf_generation_free(&fresh);
    nf_session_free(s);
    free(ids);
    nf_model_free(m);
}

/* An infinite scale in the weights must fail the step, not pass as an answer. */
static void test_damaged_weights_fail_the_step(void **state) {
    (void)state;
    nf_error err = {0};
    const char *path = temp_path("inf.ninfer");
    nf_convert_options options = {.type = {.type = NF_TYPE_I8}};
    OK(nf_convert(MODEL_DIR, path, &options, &err));
    nf_container *c;
    OK(nf_container_open(path, &c, &err));
    uint64_t at = nf_container_find(c, "layers.2.self_attn.v_proj")->segments[0].offset;
    nf_container_close(c);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "\x00\x7c", 2, (off_t)at), 2); /* f16 infinity */
    close(fd);
    nf_model *m;
    OK(nf_model_open(path, NULL, &m, &err));
    nf_session *s = open_session(m, 0, 0);
    size_t n;
    int32_t *ids = golden_ids("chat", "ids", &n);
    assert_int_equal(nf_session_eval(s, ids, n, NULL, NULL, &err), NF_ERR_NUMERIC);
    assert_int_equal(nf_session_position(s), 0);
    const nf_model_options verify = {.verify = true};
    nf_model *checked;
    assert_int_equal(nf_model_open(path, &verify, &checked, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "v_proj"));
    free(ids);
    nf_session_free(s);
    nf_model_free(m);
}

static void test_stop_strings(void **state) {
    (void)state;
    nf_error err = {0};
    nf_model *m = open_model("c4");
    nf_session *s = open_session(m, 0, 0);
    size_t n;
    int32_t *ids = golden_ids("long", "ids", &n);
    nf_generation whole = generate(s, ids, 200, 40);
    assert_true(whole.text_bytes > 60);
    /* Every piece of the answer as a stop string: the text ends right before its first occurrence. */
    for (size_t at = 5; at + 7 < whole.text_bytes && at < 60; at += 6) {
        char stop[8] = {0};
        const char *stops[] = {"never in the text", stop};
        memcpy(stop, whole.text + at, 7);
        if ((stop[0] & 0xC0) == 0x80 || (whole.text[at + 7] & 0xC0) == 0x80) continue;
        nf_generate_options o = nf_generate_defaults();
        nf_generation g;
        o.max_tokens = 40;
        o.ignore_eos = true;
        o.stop = stops;
        o.n_stop = 2;
        OK(nf_session_generate(s, ids, 200, &o, &g, &err));
        size_t first = (size_t)(strstr(whole.text, stop) - whole.text);
        assert_int_equal(g.finish, NF_FINISH_STOP_STRING);
        assert_int_equal(g.text_bytes, first);
        assert_memory_equal(g.text, whole.text, first);
        nf_generation_free(&g);
    }
    nf_generation_free(&whole);
    free(ids);
    nf_session_free(s);
    nf_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_choices),
        cmocka_unit_test(test_a_conversation_is_reused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_damaged_weights_fail_the_step),
        cmocka_unit_test(test_stop_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
