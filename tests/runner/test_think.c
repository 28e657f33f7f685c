/* The splitter of thinking and answer: the result must not depend on how the text arrives. */
#include "runner/think.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

/* What was emitted, with the kind of each byte. */
typedef struct seen {
    nf_buf thought, said;
    size_t n_calls, stop_after;
} seen;

static bool collect(void *user, bool thinking, const char *text, size_t n) {
    seen *s = user;
    assert_int_equal(nf_buf_append(thinking ? &s->thought : &s->said, text, n, NULL), NF_OK);
    return ++s->n_calls != s->stop_after;
}

static void check(const char *text, bool open, size_t step, const char *thought, const char *said) {
    seen out = {0};
    nf_think_split s = {.thinking = open, .emit = collect, .user = &out};
    bool go_on = true;
    for (size_t i = 0; i < strlen(text); i += step) {
        size_t n = strlen(text) - i < step ? strlen(text) - i : step;
        assert_int_equal(nf_think_push(&s, text + i, n, &go_on, NULL), NF_OK);
    }
    assert_int_equal(nf_think_end(&s, &go_on, NULL), NF_OK);
    assert_true(go_on);
    assert_string_equal(s.thought.data ? s.thought.data : "", thought);
    assert_string_equal(s.said.data ? s.said.data : "", said);
    assert_string_equal(out.thought.data ? out.thought.data : "", thought);
    assert_string_equal(out.said.data ? out.said.data : "", said);
    nf_buf_free(&out.thought);
    nf_buf_free(&out.said);
    nf_think_split_free(&s);
}

static void test_splits_at_every_step(void **state) {
    (void)state;
    for (size_t step = 1; step < 40; step++) {
        check("plain <b>text</b>", false, step, "", "plain <b>text</b>");
        check("hm, 5 < 6\n</think>\n\nSix.", true, step, "hm, 5 < 6\n", "Six.");
        check("\n</think>\n\nAt once.", true, step, "", "At once.");
        check("<think>\nwhy\n</think>\n\nso", false, step, "why\n", "so");
        check(" \n<think></think>x", false, step, "", "x");
        check("cut while thinking </thin", true, step, "cut while thinking </thin", "");
        check("a <think> quoted </think> b", false, step, "", "a <think> quoted </think> b");
        check("t</think>say </think> again", true, step, "t", "say </think> again");
        check("\n leading", false, step, "", "\n leading");
        check("<th", false, step, "", "<th");
        check("", true, step, "", "");
    }
}

static void test_emit_can_stop(void **state) {
    (void)state;
    seen out = {.stop_after = 1};
    nf_think_split s = {.emit = collect, .user = &out};
    bool go_on = true;
    assert_int_equal(nf_think_push(&s, "first", 5, &go_on, NULL), NF_OK);
    assert_false(go_on);
    assert_int_equal(nf_think_push(&s, "second", 6, &go_on, NULL), NF_OK);
    assert_string_equal(out.said.data, "first");     /* nothing was shown afterwards */
    assert_string_equal(s.said.data, "firstsecond"); /* but nothing is lost */
    nf_buf_free(&out.said);
    nf_think_split_free(&s);
}

static void test_open_prompt(void **state) {
    (void)state;
    assert_true(
        nf_think_is_open("<|im_start|>assistant\n<think>\n", strlen("<|im_start|>assistant\n<think>\n")));
    assert_false(
        nf_think_is_open("assistant\n<think>\n\n</think>\n\n", strlen("assistant\n<think>\n\n</think>\n\n")));
    assert_false(nf_think_is_open("user says <think><|im_end|>\nassistant\n",
                                  strlen("user says <think><|im_end|>\nassistant\n")));
    assert_false(nf_think_is_open("", 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits_at_every_step),
        cmocka_unit_test(test_emit_can_stop),
        cmocka_unit_test(test_open_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
