/* Errors, buffers, files and the argument parser. */
#include "tests/support/support.h"

#include "base/args.h"
#include "base/buf.h"
#include "base/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_error_chain(void **state) {
    (void)state;
    nf_error err = {0};
    assert_int_equal(nf_fail(&err, NF_ERR_FORMAT, "bad %d", 7), NF_ERR_FORMAT);
    assert_int_equal(nf_context(&err, "layer %d", 3), NF_ERR_FORMAT);
    assert_string_equal(err.message, "layer 3: bad 7");
    assert_int_equal(nf_fail_errno(&err, ENOSPC, "x"), NF_ERR_NO_SPACE);
    assert_int_equal(nf_fail_errno(&err, ENOENT, "x"), NF_ERR_NOT_FOUND);
    assert_int_equal(nf_fail_errno(&err, EACCES, "file %s", "y"), NF_ERR_IO);
    assert_string_equal(err.message, "file y: Permission denied");
    assert_int_equal(nf_fail(NULL, NF_ERR_LIMIT, "nobody listens"), NF_ERR_LIMIT);
    for (int s = NF_OK; s <= NF_ERR_INTERNAL; s++)
        assert_string_not_equal(nf_status_name((nf_status)s), "unknown");
    /* A long message is cut, never inside a character. */
    char euros[2000] = {0};
    for (int i = 0; i < 600; i++) strcat(euros, "\xE2\x82\xAC");
    for (int lead = 0; lead < 3; lead++) {
        nf_fail(&err, NF_ERR_FORMAT, "%.*s%s", lead, "ab", euros);
        size_t n = strlen(err.message) - (size_t)lead;
        assert_true(n > 1000 && n % 3 == 0);
    }
}

static void test_buffers(void **state) {
    (void)state;
    nf_error err = {0};
    nf_buf b = {0};
    OK(nf_buf_append(&b, NULL, 0, &err));
    assert_string_equal(b.data, "");
    for (int i = 0; i < 1000; i++) OK(nf_buf_printf(&b, &err, "%d,", i));
    assert_int_equal(b.len, 3890);
    assert_int_equal(strlen(b.data), b.len);
    b.len = 0;
    OK(nf_buf_u32(&b, 0x01020304, &err));
    OK(nf_buf_u64(&b, 5, &err));
    assert_memory_equal(b.data, "\x04\x03\x02\x01\x05\0\0\0\0\0\0\0", 12);
    assert_int_equal(nf_buf_reserve(&b, SIZE_MAX - 4, &err), NF_ERR_MEMORY);
    assert_int_equal(b.len, 12);
    nf_buf_free(&b);
    int *items = NULL;
    size_t cap = 0;
    OK(nf_grow((void **)&items, &cap, 100, sizeof *items, &err));
    assert_true(cap >= 100);
    assert_int_equal(nf_grow((void **)&items, &cap, SIZE_MAX / 2, sizeof *items, &err), NF_ERR_MEMORY);
    free(items);
    assert_null(nf_alloc(SIZE_MAX / 2, 16, "the moon", &err));
    assert_non_null(strstr(err.message, "the moon"));
}

static void test_files(void **state) {
    (void)state;
    nf_error err = {0};
    nf_buf b = {0};
    const char *path = temp_path("file");
    OK(nf_write_file_atomic(path, "hello", 5, &err));
    OK(nf_write_file_atomic(path, "world!", 6, &err));
    OK(nf_read_file(path, 6, &b, &err));
    assert_string_equal(b.data, "world!");
    b.len = 0;
    assert_int_equal(nf_read_file(path, 5, &b, &err), NF_ERR_LIMIT);
    b.len = 0;
    assert_int_equal(nf_read_file(temp_path("none"), 5, &b, &err), NF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "none"));
    nf_buf_free(&b);
    OK(nf_make_dirs(temp_path("a/b/c"), &err));
    OK(nf_make_dirs(temp_path("a/b/c"), &err));
    assert_int_equal(access(temp_path("a/b/c"), X_OK), 0);
    assert_int_not_equal(nf_make_dirs(temp_path("file/x"), &err), NF_OK);
    assert_int_equal(nf_write_file_atomic(temp_path("no/dir/x"), "", 0, &err), NF_ERR_NOT_FOUND);
}

typedef struct parsed {
    bool flag, given;
    int64_t n;
    double x;
    const char *text;
    nf_text_list list;
    const char *positional[2];
    size_t n_positional;
} parsed;

static nf_args_result parse(parsed *p, int argc, const char **argv) {
    *p = (parsed){.n = 5};
    const nf_opt options[] = {
        {.name = "flag", .letter = 'f', .kind = NF_OPT_FLAG, .dst = &p->flag},
        {.name = "num",
         .letter = 'n',
         .kind = NF_OPT_INT,
         .dst = &p->n,
         .value = "N",
         .min = 1,
         .max = 9,
         .given = &p->given},
        {.name = "real", .kind = NF_OPT_REAL, .dst = &p->x, .value = "X"},
        {.name = "text", .letter = 't', .kind = NF_OPT_TEXT, .dst = &p->text, .value = "T"},
        {.name = "list", .kind = NF_OPT_LIST, .dst = &p->list, .value = "L"},
        {0}};
    const nf_args_spec spec = {.program = "prog",
                               .usage = "A [B]",
                               .about = "",
                               .options = options,
                               .min_positional = 1,
                               .max_positional = 2};
    return nf_args_parse(&spec, argc, (char **)argv, p->positional, &p->n_positional);
}

#define PARSE(...)                                                                                           \
    parse(&p, sizeof((const char *[]){"prog", __VA_ARGS__}) / sizeof(char *),                                \
          (const char *[]){"prog", __VA_ARGS__})

static void test_arguments(void **state) {
    (void)state;
    parsed p;
    assert_int_equal(PARSE("a", "-f", "-n3", "--real=2.5", "-t", "x", "--list", "l1", "--list=l2", "b"),
                     NF_ARGS_RUN);
    assert_true(p.flag && p.given && p.n == 3 && p.x == 2.5 && !strcmp(p.text, "x") && p.list.n == 2 &&
                !strcmp(p.list.items[1], "l2"));
    assert_int_equal(p.n_positional, 2);
    free(p.list.items);
    assert_int_equal(PARSE("--text=", "a"), NF_ARGS_RUN);
    assert_string_equal(p.text, "");
    assert_int_equal(PARSE("--", "-f", "-"), NF_ARGS_RUN);
    assert_true(!p.flag && !strcmp(p.positional[0], "-f"));
    /* What is wrong is a usage error, whatever it is. */
    assert_int_equal(PARSE("-f"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "b", "c"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--what"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--num"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--num", "10"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--num", "3x"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--num", "99999999999999999999"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--real", "nan"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "--flag=1"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("a", "-x"), NF_ARGS_USAGE);
    assert_int_equal(PARSE("--version"), NF_ARGS_DONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_error_chain), cmocka_unit_test(test_buffers),
                                       cmocka_unit_test(test_files), cmocka_unit_test(test_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
