/*
 * Tokenizer: golden cases of the embedded model, queries, invalid text, long text, threads; the streaming
 * detokeniser; damaged tokenizer.json and hostile blobs. The comparison with the reference is
 * tests/python/test_tokenizer.py.
 */
#include "base/io.h"
#include "runtime/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY "models/tiny-moe/tokenizer.json"
#define GOLDEN "models/tiny-moe/golden/tokenizer_cases.json"

typedef struct fixture {
    nf_buf json, blob;
    nf_tokenizer *t;
} fixture;

static fixture tiny;

static void compile_ok(const char *json, size_t n, nf_buf *blob) {
    nf_error err = {0};
    if (nf_tokenizer_compile(json, n, "test.json", blob, &err)) fail_msg("%s", err.message);
}

static nf_tokenizer *load_ok(const nf_buf *blob) {
    nf_error err = {0};
    nf_tokenizer *t = NULL;
    if (nf_tokenizer_load(blob->data, blob->len, &t, &err)) fail_msg("%s", err.message);
    return t;
}

static int setup(void **state) {
    (void)state;
    nf_error err = {0};
    if (nf_read_file(TINY, 1 << 26, &tiny.json, &err)) fail_msg("%s", err.message);
    compile_ok(tiny.json.data, tiny.json.len, &tiny.blob);
    tiny.t = load_ok(&tiny.blob);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    nf_tokenizer_free(tiny.t);
    nf_buf_free(&tiny.json);
    nf_buf_free(&tiny.blob);
    return 0;
}

typedef struct id_list {
    int32_t *ids;
    size_t n, cap;
} id_list;

static id_list encode(const nf_tokenizer *t, const char *text, size_t n, nf_added_tokens mode) {
    nf_error err = {0};
    id_list list = {0};
    if (nf_tokenizer_encode(t, text, n, mode, &list.ids, &list.n, &list.cap, &err))
        fail_msg("%s", err.message);
    return list;
}

static void check_decode(const nf_tokenizer *t, id_list list, bool skip_special, const char *want, size_t n) {
    nf_buf out = {0};
    assert_int_equal(nf_tokenizer_decode(t, list.ids, list.n, skip_special, &out, NULL), NF_OK);
    assert_int_equal(out.len, n);
    if (n) assert_memory_equal(out.data, want, n);
    nf_buf_free(&out);
}

/* ---- the embedded model ---- */

static void test_golden_cases(void **state) {
    (void)state;
    json_error_t where;
    json_t *cases = json_load_file(GOLDEN, JSON_ALLOW_NUL, &where), *item, *id;
    size_t i, k;
    assert_int_equal(json_array_size(cases), 200);
    json_array_foreach(cases, i, item) {
        const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, "ids");
        id_list got = encode(tiny.t, json_string_value(text), json_string_length(text), NF_ADDED_PARSE);
        assert_int_equal(got.n, json_array_size(ids));
        json_array_foreach(ids, k, id) assert_int_equal(got.ids[k], json_integer_value(id));
        free(got.ids);
    }
    json_decref(cases);
}

static void test_queries(void **state) {
    (void)state;
    size_t n;
    assert_int_equal(nf_tokenizer_size(tiny.t), 8192);
    int32_t end = nf_tokenizer_find(tiny.t, "<|im_end|>", 10);
    assert_int_equal(end, 8185);
    assert_true(nf_tokenizer_is_special(tiny.t, end));
    assert_false(nf_tokenizer_is_special(tiny.t, nf_tokenizer_find(tiny.t, "<think>", 7)));
    assert_false(nf_tokenizer_is_special(tiny.t, 0));
    assert_memory_equal(nf_tokenizer_bytes(tiny.t, end, &n), "<|im_end|>", 10);
    assert_int_equal(n, 10);
    assert_int_equal(nf_tokenizer_find(tiny.t, "<|im_end|>", 9), -1);
    assert_int_equal(nf_tokenizer_find(tiny.t, "", 0), -1);
    /* A token is found by its bytes: a space, not the letter that stands for it. */
    int32_t the = nf_tokenizer_find(tiny.t, " the", 4);
    assert_memory_equal(nf_tokenizer_bytes(tiny.t, the, &n), " the", 4);
    assert_int_equal(nf_tokenizer_find(tiny.t, "\xc4\xa0the", 5), -1);
    for (int32_t id = 0; id < 8192; id++) {
        const char *bytes = nf_tokenizer_bytes(tiny.t, id, &n);
        assert_non_null(bytes);
        assert_int_equal(nf_tokenizer_find(tiny.t, bytes, n), id);
    }
    const int32_t absent[] = {-1, 8192, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        assert_null(nf_tokenizer_bytes(tiny.t, absent[i], &n));
        assert_int_equal(n, 0);
        assert_false(nf_tokenizer_is_special(tiny.t, absent[i]));
    }
    check_decode(tiny.t, (id_list){(int32_t *)absent, 4, 4}, false, "", 0);
}

static void test_special_tokens_as_text(void **state) {
    (void)state;
    static const char text[] = "a<|im_end|><think>";
    id_list parsed = encode(tiny.t, text, strlen(text), NF_ADDED_PARSE);
    assert_int_equal(parsed.n, 3);
    assert_int_equal(parsed.ids[1], 8185);
    assert_int_equal(parsed.ids[2], 8186);
    check_decode(tiny.t, parsed, false, text, strlen(text));
    check_decode(tiny.t, parsed, true, "a<think>", 8);
    id_list ignored = encode(tiny.t, text, strlen(text), NF_ADDED_IGNORE);
    assert_true(ignored.n > 3);
    assert_int_equal(ignored.ids[ignored.n - 1], 8186);
    for (size_t i = 0; i < ignored.n; i++) assert_false(nf_tokenizer_is_special(tiny.t, ignored.ids[i]));
    check_decode(tiny.t, ignored, true, text, strlen(text));
    free(parsed.ids);
    free(ignored.ids);
}

static void test_encode_appends(void **state) {
    (void)state;
    nf_error err = {0};
    id_list list = encode(tiny.t, "one", 3, NF_ADDED_PARSE);
    size_t before = list.n;
    assert_int_equal(nf_tokenizer_encode(tiny.t, "", 0, NF_ADDED_PARSE, &list.ids, &list.n, &list.cap, &err),
                     NF_OK);
    assert_int_equal(list.n, before);
    assert_int_equal(
        nf_tokenizer_encode(tiny.t, " two", 4, NF_ADDED_PARSE, &list.ids, &list.n, &list.cap, &err), NF_OK);
    check_decode(tiny.t, list, false, "one two", 7);
    before = list.n;
    assert_int_equal(
        nf_tokenizer_encode(tiny.t, "x\xff", 2, NF_ADDED_PARSE, &list.ids, &list.n, &list.cap, &err),
        NF_ERR_ARGUMENT);
    assert_int_equal(list.n, before);
    free(list.ids);
}

static void test_invalid_utf8_offset(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n, offset;
    } cases[] = {{"\x80", 1, 0},
                 {"ab\xff", 3, 2},
                 {"a\xc3", 2, 1},
                 {"\xc0\x80", 2, 0},
                 {"\xe0\x80\x80", 3, 0},
                 {"z\xed\xa0\x80", 4, 1},
                 {"\xf4\x90\x80\x80", 4, 0},
                 {"\xf0\x9f\x98", 3, 0},
                 {"\xc3\xa9\xc3", 3, 2},
                 {"\xe2\x82\xac\x82", 4, 3},
                 {"\xf5\x80\x80\x80", 4, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nf_error err = {0};
        id_list list = {0};
        char want[64];
        assert_int_equal(nf_tokenizer_encode(tiny.t, cases[i].text, cases[i].n, NF_ADDED_PARSE, &list.ids,
                                             &list.n, &list.cap, &err),
                         NF_ERR_ARGUMENT);
        snprintf(want, sizeof want, "byte offset %zu)", cases[i].offset);
        assert_non_null(strstr(err.message, want));
        free(list.ids);
    }
}

/* A piece of a million bytes: quadratic work would take minutes. */
static void test_long_pieces(void **state) {
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(n);
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = kind == 0   ? 'a'
                      : kind == 1 ? ' '
                      : kind == 2 ? '\n'
                                  : (char)('a' + (i * i / 7 + i) % 26);
        id_list list = encode(tiny.t, text, n, NF_ADDED_PARSE);
        assert_in_range(list.n, 1, n);
        check_decode(tiny.t, list, false, text, n);
        free(list.ids);
    }
    for (size_t i = 1; i + 1 < n; i += 2) memcpy(text + i, i < n / 2 ? "\xcc\x81" : "\xcc\xa3", 2);
    text[0] = 'a';
    id_list list = encode(tiny.t, text, n - 1, NF_ADDED_PARSE); /* marks of two classes in the wrong order */
    assert_true(list.n > 0);
    free(list.ids);
    free(text);
}

static void *encode_in_thread(void *result) {
    static const char text[] = "The package libcurl4 \xe4\xb8\xad\xe6\x96\x87 e\xcc\x81 <think> 12345";
    for (int i = 0; i < 200; i++) {
        id_list *list = result;
        list->n = 0;
        if (nf_tokenizer_encode(tiny.t, text, strlen(text), NF_ADDED_PARSE, &list->ids, &list->n, &list->cap,
                                NULL))
            return NULL;
    }
    return result;
}

static void test_threads(void **state) {
    (void)state;
    pthread_t threads[4];
    id_list lists[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &lists[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, &lists[i]);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(lists[i].n, lists[0].n);
        assert_memory_equal(lists[i].ids, lists[0].ids, lists[0].n * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) free(lists[i].ids);
}

/* ---- streaming detokeniser ---- */

#define FFFD "\xef\xbf\xbd"

/* Feeds bytes in chunks of `step`; checks after every push that only whole characters came out. */
static void stream(const char *bytes, size_t n, size_t step, nf_buf *out) {
    nf_utf8_stream s = {0};
    for (size_t i = 0; i < n; i += step) {
        size_t take = n - i < step ? n - i : step;
        assert_int_equal(nf_utf8_stream_push(&s, bytes + i, take, out, NULL), NF_OK);
        json_t *valid = json_stringn(out->data ? out->data : "", out->len);
        assert_non_null(valid);
        json_decref(valid);
    }
    assert_int_equal(nf_utf8_stream_end(&s, out, NULL), NF_OK);
    assert_int_equal(s.n_held, 0);
}

static void test_stream_cases(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98", FFFD},
        {"\xf0\x9f\x98x", FFFD "x"},
        {"\xf0\x9f\xc3\xa9", FFFD "\xc3\xa9"},
        {"\x80\x80", FFFD FFFD},
        {"\xc0\xaf", FFFD FFFD},
        {"\xe0\x80\xaf", FFFD FFFD FFFD},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42",
         FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B"},                      /* Unicode, table 3-10 */
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", FFFD FFFD FFFD FFFD "A"}, /* table 3-11 */
        {"\xf0\xf0\xf0\x9f\x98\x80", FFFD FFFD "\xf0\x9f\x98\x80"},
        {"a\xe2", "a" FFFD}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 10; step++) {
            nf_buf out = {0};
            stream(cases[i][0], strlen(cases[i][0]), step, &out);
            assert_string_equal(out.data, cases[i][1]);
            nf_buf_free(&out);
        }
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Bytes near the edges of UTF-8 in random order: every way to cut them gives the same text. */
static void test_stream_random(void **state) {
    (void)state;
    static const unsigned char pool[] = {0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                         0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0,
                                         0xf1, 0xf3, 0xf4, 0xf5, 0xff, 0xc3, 0xe2, 0xf0};
    uint64_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char bytes[24];
        nf_buf whole = {0};
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)pool[next_random(&seed) % sizeof pool];
        stream(bytes, sizeof bytes, sizeof bytes, &whole);
        for (size_t step = 1; step < 6; step++) {
            nf_buf out = {0};
            stream(bytes, sizeof bytes, step, &out);
            assert_string_equal(out.data, whole.data);
            nf_buf_free(&out);
        }
        nf_buf_free(&whole);
    }
}

static void test_stream_not_initialised(void **state) {
    (void)state;
    nf_utf8_stream s = {.n_held = 9};
    nf_buf out = {0};
    assert_int_equal(nf_utf8_stream_push(&s, "x", 1, &out, NULL), NF_ERR_ARGUMENT);
    nf_buf_free(&out);
}

/* ---- damaged input ---- */

#define ADDED(id, text, flag)                                                                                \
    "{\"id\":" id ",\"content\":\"" text                                                                     \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":false" flag \
    "}"
#define FLAGS ",\"single_word\":true,\"lstrip\":true,\"rstrip\":true,\"normalized\":true,\"special\":true"

/* A whole tokenizer of 259 entries and 4 added tokens, small enough to damage everywhere. */
static void small_json(nf_buf *out) {
    nf_buf_text(
        out,
        "{\"version\":\"1.0\",\"added_tokens\":[" ADDED("259", "<a>", "") "," ADDED(
            "260", "<a>b",
            "") "," ADDED("262", "word",
                          FLAGS) "," ADDED("70", "z",
                                           "") "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{"
                                               "\"type\":\"Sequence\",\"pretokenizers\":["
                                               "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|(?i:'"
                                               "s)|\\\\s+(?!\\\\S)\"},\"behavior\":"
                                               "\"MergedWithPrevious\",\"invert\":false},{\"type\":"
                                               "\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":"
                                               "true}]},\"post_processor\":null,\"decoder\":{\"type\":"
                                               "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"unk_token\""
                                               ":null,\"ignore_merges\":true,\"vocab\":{\"",
        NULL);
    static const char *const merged[] = {"ab", "abc", "\\u0120a"};
    for (int i = 0, id = 0; i < 256; i++) {
        int printable = (i > 0x20 && i < 0x7f) || (i > 0xa0 && i != 0xad);
        int code = printable ? i : i <= 0x20 ? 0x100 + i : i <= 0xa0 ? 0x121 + i - 0x7f : 0x143;
        nf_buf_printf(out, NULL, "\\u%04x\":%d,\"", code, i == 'z' ? 70 : id++ == 70 ? 'z' : i);
    }
    for (int i = 0; i < 3; i++) nf_buf_printf(out, NULL, "%s\":%d%s", merged[i], 256 + i, i < 2 ? ",\"" : "");
    assert_int_equal(nf_buf_text(out, "},\"merges\":[\"a b\",\"ab c\",\"\\u0120 a\"]}}", NULL), NF_OK);
}

static const char sample[] =
    "abc <a>b it's  word \xc3\xa9"
    "e\xcc\x81 <a> z\xe4\xb8\xad\xe6\x96\x87\xf0\x9f\x99\x82  abcabc "
    "a longer piece of text: abababababababababababababababababababababababababababababababab";

static void test_small_tokenizer(void **state) {
    (void)state;
    nf_buf json = {0}, blob = {0};
    small_json(&json);
    compile_ok(json.data, json.len, &blob);
    nf_tokenizer *t = load_ok(&blob);
    assert_int_equal(nf_tokenizer_size(t), 263);
    size_t n;
    assert_null(nf_tokenizer_bytes(t, 261, &n)); /* a gap */
    assert_int_equal(nf_tokenizer_find(t, "z", 1), 70);
    id_list list = encode(t, "abc<a>b", 7, NF_ADDED_PARSE);
    const int32_t want[] = {' ', 257, 260};
    assert_int_equal(list.n, 3);
    assert_memory_equal(list.ids, want, sizeof want);
    free(list.ids);
    nf_tokenizer_free(t);
    nf_buf_free(&json);
    nf_buf_free(&blob);
}

/* Loads hostile bytes and, when they pass, uses everything. */
static void use_blob(const char *bytes, size_t n) {
    nf_tokenizer *t = NULL;
    nf_error err = {0};
    nf_status status = nf_tokenizer_load(bytes, n, &t, &err);
    if (status) {
        assert_true(status == NF_ERR_FORMAT || status == NF_ERR_UNSUPPORTED);
        assert_true(strlen(err.message) > 0);
        assert_null(t);
        return;
    }
    nf_buf out = {0};
    for (int mode = 0; mode < 2; mode++) {
        id_list list = {0};
        nf_tokenizer_encode(t, sample, strlen(sample), mode ? NF_ADDED_IGNORE : NF_ADDED_PARSE, &list.ids,
                            &list.n, &list.cap, &err);
        for (size_t i = 0; i < list.n; i++) assert_in_range(list.ids[i], 0, nf_tokenizer_size(t) - 1);
        nf_tokenizer_decode(t, list.ids, list.n, mode, &out, &err);
        free(list.ids);
    }
    for (size_t id = 0; id < nf_tokenizer_size(t) && id < 300; id++) {
        size_t size;
        const char *text = nf_tokenizer_bytes(t, (int32_t)id, &size);
        if (text) nf_tokenizer_find(t, text, size);
    }
    nf_buf_free(&out);
    nf_tokenizer_free(t);
}

/* A copy of its exact size, so that the sanitizer sees a read behind it. */
static void use_copy(const char *bytes, size_t n, size_t flips, uint64_t *seed) {
    char *copy = malloc(n ? n : 1);
    memcpy(copy, bytes, n);
    for (size_t i = 0; i < flips; i++) {
        /* Half of the flips hit the header and the last kilobyte (steps and added tokens). */
        uint64_t r = next_random(seed), kind = next_random(seed) % 4;
        size_t at = kind == 0 ? r % 96 : kind == 1 ? n - 1 - r % 1024 : r % n;
        copy[at] =
            next_random(seed) % 2 ? (char)(copy[at] ^ (1 << next_random(seed) % 8)) : (char)next_random(seed);
    }
    use_blob(copy, n);
    free(copy);
}

static void test_hostile_blobs(void **state) {
    (void)state;
    nf_buf json = {0}, blob = {0};
    uint64_t seed = 7;
    small_json(&json);
    compile_ok(json.data, json.len, &blob);
    for (size_t n = 0; n < blob.len; n++) {
        nf_tokenizer *t = NULL;
        char *copy = malloc(n ? n : 1);
        memcpy(copy, blob.data, n);
        assert_int_equal(nf_tokenizer_load(copy, n, &t, NULL), NF_ERR_FORMAT);
        free(copy);
    }
    for (int i = 0; i < 6000; i++) use_copy(blob.data, blob.len, 1 + (size_t)i % 4, &seed);
    for (int i = 0; i < 100; i++) use_copy(tiny.blob.data, tiny.blob.len, 1 + (size_t)i % 40, &seed);
    for (size_t n = 0; n < tiny.blob.len; n += 1 + tiny.blob.len / 200) use_copy(tiny.blob.data, n, 0, &seed);
    /* Lies in each word of the header. */
    static const uint32_t lies[] = {0,          1,          2,          95,         96,
                                    0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 1u << 22};
    for (size_t at = 0; at < 96; at += 4)
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            char *copy = malloc(blob.len);
            memcpy(copy, blob.data, blob.len);
            memcpy(copy + at, &lies[i], 4);
            use_blob(copy, blob.len);
            free(copy);
        }
    nf_buf_free(&json);
    nf_buf_free(&blob);
}

static void test_damaged_json(void **state) {
    (void)state;
    static const struct {
        const char *old, *new;
        nf_status status;
        const char *message;
    } cases[] = {
        {"\"1.0\"", "\"2.0\"", NF_ERR_UNSUPPORTED, "version"},
        {"\"NFC\"", "\"NFKC\"", NF_ERR_UNSUPPORTED, "normalizer of type NFKC"},
        {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}",
         NF_ERR_UNSUPPORTED, "Lowercase"},
        {"\"Split\"", "\"Metaspace\"", NF_ERR_UNSUPPORTED, "Metaspace"},
        {"\\\\p{L}+|", "\\\\p{L}+|\\\\b", NF_ERR_UNSUPPORTED, "pattern, byte 8"},
        {"\\\\p{L}+|", "\\\\p{Elbish}+|", NF_ERR_UNSUPPORTED, "Elbish"},
        {"\\\\p{L}+|", "(\\\\p{L}+|", NF_ERR_UNSUPPORTED, "not closed"},
        {"\"MergedWithPrevious\"", "\"Doubled\"", NF_ERR_FORMAT, "behavior"},
        {"\"invert\":false", "\"invert\":3", NF_ERR_FORMAT, "invert"},
        {"\"Regex\"", "\"Glob\"", NF_ERR_FORMAT, "pattern"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}", "null", NF_ERR_UNSUPPORTED,
         "pre_tokenizer"},
        {"\"use_regex\":true}", "\"use_regex\":true},{\"type\":\"Digits\",\"individual_digits\":true}",
         NF_ERR_UNSUPPORTED, "behind ByteLevel"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", NF_ERR_FORMAT, "decoder"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"Metaspace\"}", NF_ERR_UNSUPPORTED,
         "decoder"},
        {"\"BPE\"", "\"Unigram\"", NF_ERR_UNSUPPORTED, "model of type Unigram"},
        {"\"model\"", "\"modell\"", NF_ERR_FORMAT, "model"},
        {"\"unk_token\":null", "\"dropout\":0.5", NF_ERR_UNSUPPORTED, "dropout"},
        {"\"unk_token\":null", "\"end_of_word_suffix\":\"</w>\"", NF_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"\"ignore_merges\":true", "\"ignore_merges\":1", NF_ERR_FORMAT, "ignore_merges"},
        {"\"vocab\":{", "\"vocab\":[],\"old\":{", NF_ERR_FORMAT, "model.vocab"},
        {"\"vocab\":{", "\"vocab\":{},\"old\":{", NF_ERR_FORMAT, "empty"},
        {"\"abc\":257", "\"abc\":-1", NF_ERR_FORMAT, "abc"},
        {"\"abc\":257", "\"abc\":1.5", NF_ERR_FORMAT, "abc"},
        {"\"abc\":257", "\"abc\":256", NF_ERR_FORMAT, "another entry"},
        {"\"abc\":257", "\"abc\":2000000000", NF_ERR_LIMIT, "2000000000"},
        {"\"abc\":257", "\"abx\":257", NF_ERR_FORMAT, "model.merges[1]: 'abc' is not in model.vocab"},
        {"\"merges\":[\"a b\"", "\"merges\":[\"ab\"", NF_ERR_FORMAT, "model.merges[0]"},
        {"\"merges\":[\"a b\"", "\"merges\":[[\"a\",7]", NF_ERR_FORMAT, "model.merges[0]"},
        {"\"merges\":[\"a b\"", "\"merges\":[\"a b c\"", NF_ERR_FORMAT, "model.merges[0]"},
        {"\"merges\"", "\"mergers\"", NF_ERR_FORMAT, "model.merges"},
        {"\"id\":259", "\"id\":\"259\"", NF_ERR_FORMAT, "<a>"},
        {"\"id\":259", "\"id\":99999999", NF_ERR_LIMIT, "<a>"},
        {"\"id\":259", "\"id\":258", NF_ERR_FORMAT, "another token"},
        {"\"id\":260", "\"id\":259", NF_ERR_FORMAT, "another token"},
        {"\"id\":70", "\"id\":71", NF_ERR_FORMAT, "but 70 in model.vocab"},
        {"\"<a>b\"", "\"<a>\"", NF_ERR_FORMAT, "match the same text"},
        {"\"content\":\"<a>\"", "\"content\":5", NF_ERR_FORMAT, "added_tokens[0]"},
        {"\"lstrip\":false", "\"lstrip\":null", NF_ERR_FORMAT, "lstrip"},
        {"\"added_tokens\":[", "\"added_tokens\":7,\"old\":[", NF_ERR_FORMAT, "added_tokens"},
        {"\"version\"", "version", NF_ERR_FORMAT, "line 1"}};
    nf_buf json = {0};
    small_json(&json);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nf_buf changed = {0}, out = {0};
        nf_error err = {0};
        const char *at = strstr(json.data, cases[i].old);
        assert_non_null(at);
        nf_buf_append(&changed, json.data, (size_t)(at - json.data), NULL);
        nf_buf_text(&changed, cases[i].new, NULL);
        nf_buf_text(&changed, at + strlen(cases[i].old), NULL);
        nf_buf_text(&out, "kept", NULL);
        nf_status status = nf_tokenizer_compile(changed.data, changed.len, "some/tokenizer.json", &out, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].message) ||
            strncmp(err.message, "some/tokenizer.json: ", 21) != 0)
            fail_msg("'%s' for '%s': %s: %s", cases[i].new, cases[i].old, nf_status_name(status),
                     err.message);
        assert_string_equal(out.data, "kept");
        assert_int_equal(nf_tokenizer_compile(changed.data, changed.len, "t", &out, NULL), cases[i].status);
        nf_buf_free(&changed);
        nf_buf_free(&out);
    }
    nf_buf_free(&json);
}

/* Random damage to the text: an error or a tokenizer that works, never a crash. */
static void test_random_json(void **state) {
    (void)state;
    nf_buf json = {0};
    uint64_t seed = 11;
    small_json(&json);
    for (size_t n = 0; n < json.len; n += 37) {
        nf_buf out = {0};
        assert_int_equal(nf_tokenizer_compile(json.data, n, "t", &out, NULL), NF_ERR_FORMAT);
        nf_buf_free(&out);
    }
    for (int i = 0; i < 1500; i++) {
        nf_buf out = {0};
        char *copy = malloc(json.len);
        memcpy(copy, json.data, json.len);
        for (int k = 0; k <= i % 3; k++) {
            uint64_t r = next_random(&seed);
            copy[i % 2 ? r % 1200 : r % json.len] =
                "0123456789\"\\{}[]:,.+*?|()^$abpuxi"[next_random(&seed) % 34];
        }
        if (nf_tokenizer_compile(copy, json.len, "t", &out, NULL) == NF_OK) use_blob(out.data, out.len);
        nf_buf_free(&out);
        free(copy);
    }
    nf_buf_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_cases),
                                       cmocka_unit_test(test_queries),
                                       cmocka_unit_test(test_special_tokens_as_text),
                                       cmocka_unit_test(test_encode_appends),
                                       cmocka_unit_test(test_invalid_utf8_offset),
                                       cmocka_unit_test(test_long_pieces),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_stream_cases),
                                       cmocka_unit_test(test_stream_random),
                                       cmocka_unit_test(test_stream_not_initialised),
                                       cmocka_unit_test(test_small_tokenizer),
                                       cmocka_unit_test(test_hostile_blobs),
                                       cmocka_unit_test(test_damaged_json),
                                       cmocka_unit_test(test_random_json)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
