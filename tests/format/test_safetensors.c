/*
 * The safetensors reader: the embedded model against values read by other means, hostile files and indexes
 * (each error must name its file and tensor), every dtype, a checkpoint of 30,000 tensors, and mutated
 * headers. A file is written as text of the header plus a number of data bytes, so that every lie can be
 * told.
 */
#include "tests/support/support.h"

#include "base/buf.h"
#include "format/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HONEST UINT64_MAX /* the header's true length */

static void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Length, header, `data` (zeros when NULL). */
static void write_file(const char *path, uint64_t length, const char *header, size_t header_bytes,
                       const void *data, size_t data_bytes) {
    nf_buf out = {0};
    nf_error err = {0};
    static const char zeros[4096];
    OK(nf_buf_u64(&out, length == HONEST ? header_bytes : length, &err));
    OK(nf_buf_append(&out, header, header_bytes, &err));
    assert_true(data || data_bytes <= sizeof zeros);
    OK(nf_buf_append(&out, data ? data : zeros, data_bytes, &err));
    write_bytes(path, out.data, out.len);
    nf_buf_free(&out);
}

/* A fresh folder of the temporary folder. */
static const char *new_folder(const char *name) {
    const char *path = temp_path(name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static const char *in_folder(const char *folder, const char *file) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s", folder + strlen(temp_dir()) + 1, file);
    return temp_path(name);
}

static void put_file(const char *folder, const char *file, const char *header, size_t data_bytes) {
    write_file(in_folder(folder, file), HONEST, header, strlen(header), NULL, data_bytes);
}

static void put_text(const char *folder, const char *file, const char *text) {
    write_bytes(in_folder(folder, file), text, strlen(text));
}

static nf_safetensors *open_good(const char *path) {
    nf_error err = {0};
    nf_safetensors *st = NULL;
    OK(nf_safetensors_open(path, &st, &err));
    assert_non_null(st);
    return st;
}

/* Opening fails with `status`, and the message holds both texts. */
static void open_bad(const char *path, nf_status status, const char *what, const char *who) {
    nf_error err = {0};
    nf_safetensors *st = NULL;
    nf_status got = nf_safetensors_open(path, &st, &err);
    if (got != status || st) fail_msg("%s: got %s, '%s'", path, nf_status_name(got), err.message);
    if (!strstr(err.message, what) || !strstr(err.message, who))
        fail_msg("'%s' names not both '%s' and '%s'", err.message, what, who);
    for (const char *p = err.message; *p; p++) assert_false((unsigned char)*p < 0x20);
}

/* ---- the embedded model ---- */

static void test_the_model(void **state) {
    (void)state;
    nf_error err = {0};
    nf_safetensors *st = open_good(MODEL_DIR);
    assert_int_equal(nf_safetensors_count(st), 2842);
    assert_int_equal(nf_safetensors_bytes(st), 30958968);
    for (size_t i = 1; i < nf_safetensors_count(st); i++)
        assert_true(strcmp(nf_safetensors_at(st, i - 1)->name, nf_safetensors_at(st, i)->name) < 0);
    for (size_t i = 0; i < nf_safetensors_count(st); i++)
        assert_ptr_equal(nf_safetensors_find(st, nf_safetensors_at(st, i)->name), nf_safetensors_at(st, i));
    assert_null(nf_safetensors_find(st, "model.layers.0"));

    const nf_st_tensor *t = nf_safetensors_find(st, "model.layers.0.linear_attn.A_log");
    assert_non_null(t);
    assert_true(t->dtype == NF_ST_BF16 && t->n_dims == 1 && t->shape[0] == 8 && t->bytes == 16);
    assert_non_null(strstr(t->file, "model-00001-of-00004.safetensors"));
    float x[8];
    OK(nf_st_to_f32(t, 0, 8, x, &err));
    assert_true(x[0] == 2.34375f && x[1] == 2.5f && x[2] == 2.78125f && x[3] == 2.46875f && x[7] == 2.8125f);

    t = nf_safetensors_find(st, "model.layers.0.mlp.experts.0.gate_proj.weight");
    assert_non_null(t);
    assert_true(t->dtype == NF_ST_F8_E4M3 && t->n_dims == 2 && t->shape[0] == 64 && t->shape[1] == 256);
    static const float first[] = {72, 128, 80, 64, 88, -144, -44, 96};
    OK(nf_st_to_f32(t, 0, 8, x, &err));
    assert_memory_equal(x, first, sizeof first);
    OK(nf_st_to_f32(t, 64 * 256 - 1, 1, x, &err));
    assert_true(x[0] == -80.0f);
    assert_int_equal(nf_st_to_f32(t, 64 * 256 - 1, 2, x, &err), NF_ERR_INTERNAL);
    assert_int_equal(nf_st_to_f32(t, UINT64_MAX, 1, x, &err), NF_ERR_INTERNAL);
    assert_int_equal(nf_st_to_f32(t, 1, UINT64_MAX, x, &err), NF_ERR_INTERNAL);

    t = nf_safetensors_find(st, "model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv");
    assert_non_null(t);
    nf_safetensors_release(st); /* pages come back when they are read again */
    OK(nf_st_to_f32(t, 0, 2, x, &err));
    assert_true(x[0] == 0x1p-10f && x[1] == 0x1p-10f);
    nf_safetensors_close(st);

    st = open_good(MODEL_DIR "/model-00004-of-00004.safetensors"); /* one shard alone */
    assert_non_null(nf_safetensors_find(st, "mtp.pre_fc_norm_hidden.weight"));
    assert_null(nf_safetensors_find(st, "model.embed_tokens.weight"));
    nf_safetensors_close(st);
    nf_safetensors_close(NULL);
}

/* ---- values ---- */

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        uint8_t bytes[16]; /* two elements */
        float want[2];
    } cases[] = {
        {"U8", {0, 255}, {0, 255}},
        {"I8", {0x80, 0x7f}, {-128, 127}},
        {"I16", {0, 0x80, 0xff, 0xff}, {-32768, -1}},
        {"U16", {0, 0x80, 0xff, 0xff}, {32768, 65535}},
        {"I32", {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x40}, {-1, 0x1p30f}},
        {"U32", {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0}, {0x1p32f, 1}},
        {"I64", {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80}, {-1, -0x1p63f}},
        {"U64", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}, {2, 0x1p63f}},
        {"F16", {0x00, 0x3c, 0x01, 0x80}, {1, -0x1p-24f}},
        {"BF16", {0x80, 0x3f, 0x20, 0xc0}, {1, -2.5f}},
        {"F32", {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0}, {1, -2.5f}},
        {"F64", {0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0x04, 0xc0}, {1, -2.5f}},
        {"F8_E4M3", {0x7e, 0x81}, {448, -0x1p-9f}},
        {"F8_E5M2", {0x7b, 0x81}, {57344, -0x1p-16f}},
        {"F8_E8M0", {127, 0}, {1, 0x1p-127f}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nf_error err = {0};
        char header[200];
        const char *path = temp_path("dtype.safetensors");
        size_t size = 0;
        nf_st_dtype dtype = NF_ST_DTYPE_COUNT;
        for (int d = 0; d < NF_ST_DTYPE_COUNT; d++)
            if (!strcmp(nf_st_dtype_name((nf_st_dtype)d), cases[i].dtype)) dtype = (nf_st_dtype)d;
        size = nf_st_dtype_size(dtype);
        int n = snprintf(header, sizeof header,
                         "{\"t\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[0,%zu]}}", cases[i].dtype,
                         2 * size);
        write_file(path, HONEST, header, (size_t)n, cases[i].bytes, 2 * size);
        nf_safetensors *st = open_good(path);
        float x[2];
        OK(nf_st_to_f32(nf_safetensors_at(st, 0), 0, 2, x, &err));
        if (x[0] != cases[i].want[0] || x[1] != cases[i].want[1])
            fail_msg("%s: %g %g", cases[i].dtype, (double)x[0], (double)x[1]);
        OK(nf_st_to_f32(nf_safetensors_at(st, 0), 1, 1, x, &err));
        assert_true(x[0] == cases[i].want[1]);
        OK(nf_st_to_f32(nf_safetensors_at(st, 0), 2, 0, x, &err));
        nf_safetensors_close(st);
    }
    assert_int_equal(nf_st_dtype_size((nf_st_dtype)99), 0);
    assert_string_equal(nf_st_dtype_name((nf_st_dtype)99), "?");
}

static void test_bool_and_nan(void **state) {
    (void)state;
    nf_error err = {0};
    const char *path = temp_path("nan.safetensors");
    const char *header = "{\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"e\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[1,2]},"
                         "\"h\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[2,4]}}";
    write_file(path, HONEST, header, strlen(header), "\1\xff\x01\x7e", 4);
    nf_safetensors *st = open_good(path);
    float x = 0;
    assert_int_equal(nf_st_to_f32(nf_safetensors_find(st, "b"), 0, 1, &x, &err), NF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'b'"));
    OK(nf_st_to_f32(nf_safetensors_find(st, "e"), 0, 1, &x, &err));
    assert_true(isnan(x));
    OK(nf_st_to_f32(nf_safetensors_find(st, "h"), 0, 1, &x,
                    &err)); /* a scalar has no dimension and one element */
    assert_true(isnan(x));
    nf_safetensors_close(st);
}

/* ---- hostile files ---- */

#define T(name, dtype, shape, from, to)                                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"
#define A T("first", "F32", "4", 0, 16)

static void test_hostile_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        nf_status status;
        const char *what, *who;
    } cases[] = {
        /* offsets */
        {"{" A "," T("victim", "F32", "4", 16, 32) "}", 31, NF_ERR_FORMAT, "ends 1 bytes behind the end",
         "'victim'"},
        {"{" A "," T("victim", "F32", "4", 12, 28) "}", 28, NF_ERR_FORMAT, "overlaps", "'victim'"},
        {"{" A "," T("victim", "F32", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "overlaps", "'"},
        {"{" A "," T("victim", "F32", "4", 20, 36) "}", 36, NF_ERR_FORMAT, "4 bytes before", "'victim'"},
        {"{" A "," T("victim", "F32", "0", 8, 8) "}", 16, NF_ERR_FORMAT, "overlaps", "'victim'"},
        {"{" T("victim", "F32", "4", 8, 24) "}", 24, NF_ERR_FORMAT, "8 bytes before", "'victim'"},
        {"{" A "}", 17, NF_ERR_FORMAT, "1 bytes at the end", "bad.safetensors"},
        {"{}", 1, NF_ERR_FORMAT, "1 bytes at the end", "bad.safetensors"},
        {"{" T("victim", "F32", "4", 16, 0) "}", 16, NF_ERR_FORMAT, "data_offsets", "'victim'"},
        {"{" T("victim", "F32", "4", -16, 0) "}", 16, NF_ERR_FORMAT, "data_offsets", "'victim'"},
        {"{" T("victim", "F32", "4", 0, 16.0) "}", 16, NF_ERR_FORMAT, "data_offsets", "'victim'"},
        {"{" T("victim", "F32", "4", 0, 9223372036854775807) "}", 16, NF_ERR_FORMAT, "behind the end",
         "'victim'"},
        {"{" T("victim", "F32", "4", 0, 99999999999999999999) "}", 16, NF_ERR_FORMAT, "big integer",
         "bad.safe"},
        {"{\"victim\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,8,16]}}", 16, NF_ERR_FORMAT,
         "data_offsets", "'victim'"},
        {"{\"victim\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":{}}}", 16, NF_ERR_FORMAT,
         "data_offsets", "'victim'"},
        {"{\"victim\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16, NF_ERR_FORMAT, "data_offsets", "'victim'"},
        /* shapes */
        {"{" T("victim", "F32", "5", 0, 16) "}", 16, NF_ERR_FORMAT, "F32 need 20", "'victim'"},
        {"{" T("victim", "BF16", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "spans 16 bytes", "'victim'"},
        {"{" T("victim", "F32", "-4", 0, 16) "}", 16, NF_ERR_FORMAT, "impossible shape", "'victim'"},
        {"{" T("victim", "F32", "4.0", 0, 16) "}", 16, NF_ERR_FORMAT, "impossible shape", "'victim'"},
        {"{" T("victim", "F32", "\"4\"", 0, 16) "}", 16, NF_ERR_FORMAT, "impossible shape", "'victim'"},
        /* products that wrap around to the right size */
        {"{" T("victim", "U8", "4294967296,4294967296,16", 0, 0) "}", 0, NF_ERR_FORMAT, "impossible shape",
         "'victim'"},
        {"{" T("victim", "F32", "4611686018427387904", 0, 0) "}", 0, NF_ERR_FORMAT, "impossible shape",
         "'victim'"},
        {"{" T("victim", "F64", "2305843009213693953,1", 0, 8) "}", 8, NF_ERR_FORMAT, "impossible shape",
         "'victim'"},
        {"{" T("victim", "F32", "1,1,1,1,1,1,1,1,4", 0, 16) "}", 16, NF_ERR_UNSUPPORTED, "9 dimensions",
         "'victim'"},
        {"{\"victim\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16, NF_ERR_FORMAT, "no shape",
         "'victim'"},
        /* dtypes */
        {"{" T("victim", "F31", "4", 0, 16) "}", 16, NF_ERR_UNSUPPORTED, "unknown dtype 'F31'", "'victim'"},
        {"{" T("victim", "F\\u001b[2J", "4", 0, 16) "}", 16, NF_ERR_UNSUPPORTED, "unknown dtype '?'",
         "'victim'"},
        {"{\"victim\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, NF_ERR_FORMAT, "no dtype", "'victim'"},
        {"{\"victim\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]}}", 16, NF_ERR_FORMAT, "no dtype",
         "'victim'"},
        {"{\"victim\":[]}", 0, NF_ERR_FORMAT, "JSON object", "'victim'"},
        {"{\"victim\":null}", 0, NF_ERR_FORMAT, "JSON object", "'victim'"},
        /* names and metadata */
        {"{" A "," A "}", 16, NF_ERR_FORMAT, "duplicate object key", "first"},
        {"{" T("vic\\u001b[31mtim", "F32", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "control characters", "vic"},
        {"{" T("vic\\u0000tim", "F32", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "JSON", "bad.safetensors"},
        {"{\"__metadata__\":[]," A "}", 16, NF_ERR_FORMAT, "__metadata__", "bad.safetensors"},
        {"{\"__metadata__\":{\"a\":1}," A "}", 16, NF_ERR_FORMAT, "__metadata__", "bad.safetensors"},
        /* text */
        {"", 0, NF_ERR_FORMAT, "begin with", "bad.safetensors"},
        {" {" A "}", 16, NF_ERR_FORMAT, "begin with", "bad.safetensors"},
        {"[]", 0, NF_ERR_FORMAT, "begin with", "bad.safetensors"},
        {"{" A, 16, NF_ERR_FORMAT, "JSON", "bad.safetensors"},
        {"{" A "}x", 16, NF_ERR_FORMAT, "JSON", "bad.safetensors"},
        {"{" T("vic\xff\xfetim", "F32", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "JSON", "bad.safetensors"},
        {"{" T("vic\xed\xa0\x80tim", "F32", "4", 0, 16) "}", 16, NF_ERR_FORMAT, "JSON", "bad.safetensors"},
    };
    const char *path = temp_path("bad.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, HONEST, cases[i].header, strlen(cases[i].header), NULL, cases[i].data_bytes);
        open_bad(path, cases[i].status, cases[i].what, cases[i].who);
        open_bad(path, cases[i].status, cases[i].what, "bad.safetensors");
    }
}

static void test_allowed_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes, count;
    } cases[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0},
        {"{" A "}   ", 16, 1}, /* writers pad with spaces */
        {"{" T("empty", "F32", "0,7", 0, 0) "," A "}", 16, 2},
        {"{" A "," T("empty", "F32", "7,0", 16, 16) "}", 16, 2},
        {"{" T("scalar", "F32", "", 0, 4) "}", 4, 1},
        {"{" T("b", "U8", "3", 0, 3) "," T("a", "F32", "1", 3, 7) "}", 7, 2}, /* not aligned */
        {"{" T("later", "F32", "4", 16, 32) "," A "}", 32, 2},                /* in another order */
        {"{" T("\xc3\xa9", "U8", "1", 0, 1) "}", 1, 1},
    };
    const char *path = temp_path("good.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, HONEST, cases[i].header, strlen(cases[i].header), NULL, cases[i].data_bytes);
        nf_safetensors *st = open_good(path);
        assert_int_equal(nf_safetensors_count(st), cases[i].count);
        assert_int_equal(nf_safetensors_bytes(st), cases[i].data_bytes);
        assert_null(nf_safetensors_find(st, "absent"));
        assert_null(nf_safetensors_find(st, "__metadata__"));
        nf_safetensors_close(st);
    }
}

static void test_header_lengths(void **state) {
    (void)state;
    const char *path = temp_path("length.safetensors"), *header = "{" A "}";
    static const uint64_t lies[] = {
        0, 1, 7, 1000, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX - 8};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        write_file(path, lies[i], header, strlen(header), NULL, 16);
        open_bad(path, NF_ERR_FORMAT, "header", "length.safetensors");
    }
    for (size_t n = 0; n < 8; n++) { /* an empty file, and those too short for a length */
        write_bytes(path, "\2\0\0\0\0\0\0\0", n);
        open_bad(path, NF_ERR_FORMAT, "too few", "length.safetensors");
    }
    /* A header over the limit in a file that is long enough (sparse). */
    write_file(path, (100u << 20) + 1, "{", 1, NULL, 0);
    assert_int_equal(truncate(path, (off_t)(101u << 20)), 0);
    open_bad(path, NF_ERR_LIMIT, "the format allows", "length.safetensors");
    unlink(path);
    /* Nesting is bounded too. */
    nf_buf deep = {0};
    nf_error err = {0};
    OK(nf_buf_text(&deep, "{\"a\":", &err));
    for (int i = 0; i < 100000; i++) OK(nf_buf_byte(&deep, '[', &err));
    write_file(path, HONEST, deep.data, deep.len, NULL, 0);
    open_bad(path, NF_ERR_FORMAT, "JSON", "length.safetensors");
    nf_buf_free(&deep);
}

static void test_long_names(void **state) {
    (void)state;
    char name[600], header[800];
    const char *path = temp_path("name.safetensors");
    for (size_t n = 511; n < 515; n++) {
        memset(name, 'n', n);
        name[n] = '\0';
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                 name);
        write_file(path, HONEST, header, strlen(header), NULL, 0);
        if (n > 512) {
            open_bad(path, NF_ERR_FORMAT, "more than 512 bytes", "nnn");
        } else {
            nf_safetensors *st = open_good(path);
            assert_non_null(nf_safetensors_find(st, name));
            nf_safetensors_close(st);
        }
    }
}

static void test_not_files(void **state) {
    (void)state;
    open_bad(temp_path("absent"), NF_ERR_NOT_FOUND, "cannot open", "absent");
    const char *fifo = temp_path("fifo.safetensors");
    assert_int_equal(mkfifo(fifo, 0666), 0);
    alarm(20); /* a reader that waits for a writer would wait for ever */
    open_bad(fifo, NF_ERR_FORMAT, "regular file", "fifo.safetensors");
    alarm(0);
    const char *folder = new_folder("no-files");
    open_bad(folder, NF_ERR_NOT_FOUND, "no .safetensors file", "no-files");
    assert_int_equal(mkdir(in_folder(folder, "model.safetensors"), 0777), 0);
    open_bad(folder, NF_ERR_FORMAT, "regular file", "model.safetensors");
}

/* ---- checkpoints of several files ---- */

#define B T("second", "F32", "4", 0, 16)

static void test_folder_without_index(void **state) {
    (void)state;
    const char *folder = new_folder("plain");
    put_file(folder, "x-2.safetensors", "{" B "}", 16);
    put_file(folder, "x-1.safetensors", "{" A "}", 16);
    put_text(folder, "notes.txt", "not a tensor");
    nf_safetensors *st = open_good(folder);
    assert_int_equal(nf_safetensors_count(st), 2);
    assert_non_null(strstr(nf_safetensors_find(st, "second")->file, "x-2.safetensors"));
    nf_safetensors_close(st);

    put_file(folder, "x-3.safetensors", "{" A "}", 16);
    open_bad(folder, NF_ERR_FORMAT, "'first' is in", "x-1.safetensors");
    open_bad(folder, NF_ERR_FORMAT, "'first' is in", "x-3.safetensors");

    put_file(folder, "model.safetensors", "{" B "}", 16); /* this one is the checkpoint then */
    st = open_good(folder);
    assert_int_equal(nf_safetensors_count(st), 1);
    nf_safetensors_close(st);
}

/* With `weight_map` as the index of a folder that holds one.safetensors (first) and two.safetensors (second).
 */
static const char *indexed(const char *name, const char *index) {
    const char *folder = new_folder(name);
    put_file(folder, "one.safetensors", "{" A "}", 16);
    put_file(folder, "two.safetensors", "{" B "}", 16);
    put_text(folder, "model.safetensors.index.json", index);
    return folder;
}

static void test_index(void **state) {
    (void)state;
    nf_safetensors *st = open_good(
        indexed("good", "{\"metadata\":{\"total_size\":32},"
                        "\"weight_map\":{\"first\":\"one.safetensors\",\"second\":\"two.safetensors\"}}"));
    assert_int_equal(nf_safetensors_count(st), 2);
    nf_safetensors_close(st);
    st = open_good(
        indexed("part", "{\"weight_map\":{\"first\":\"one.safetensors\"}}")); /* the rest is not opened */
    assert_int_equal(nf_safetensors_count(st), 1);
    nf_safetensors_close(st);

    static const struct {
        const char *index;
        nf_status status;
        const char *what, *who;
    } cases[] = {
        {"", NF_ERR_FORMAT, "line", "index.json"},
        {"{\"weight_map\":", NF_ERR_FORMAT, "line", "index.json"},
        {"[]", NF_ERR_FORMAT, "no weight_map", "index.json"},
        {"{}", NF_ERR_FORMAT, "no weight_map", "index.json"},
        {"{\"weight_map\":{}}", NF_ERR_FORMAT, "empty", "index.json"},
        {"{\"weight_map\":[\"first\"]}", NF_ERR_FORMAT, "no weight_map", "index.json"},
        {"{\"weight_map\":{\"first\":7}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\"\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\"..\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\".\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\"../good/one.safetensors\"}}", NF_ERR_FORMAT, "bad file name",
         "'first'"},
        {"{\"weight_map\":{\"first\":\"/etc/passwd\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\"./one.safetensors\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"first\":\"one\\u0000.safetensors\"}}", NF_ERR_FORMAT, "line", "index.json"},
        {"{\"weight_map\":{\"first\":\"one\\n.safetensors\"}}", NF_ERR_FORMAT, "bad file name", "'first'"},
        {"{\"weight_map\":{\"fi\\u001brst\":\"one.safetensors\"}}", NF_ERR_FORMAT, "control characters",
         "index.json"},
        {"{\"weight_map\":{\"first\":\"one.safetensors\",\"first\":\"two.safetensors\"}}", NF_ERR_FORMAT,
         "duplicate object key", "first"},
        {"{\"weight_map\":{\"first\":\"gone.safetensors\"}}", NF_ERR_NOT_FOUND, "does not exist",
         "gone.safetensors"},
        {"{\"weight_map\":{\"ghost\":\"one.safetensors\"}}", NF_ERR_FORMAT, "missing there", "'ghost'"},
        {"{\"weight_map\":{\"first\":\"one.safetensors\",\"second\":\"one.safetensors\"}}", NF_ERR_FORMAT,
         "missing", "'second'"},
        {"{\"weight_map\":{\"first\":\"two.safetensors\",\"second\":\"one.safetensors\"}}", NF_ERR_FORMAT,
         "but it is in", "safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "index-%zu", i);
        const char *folder = indexed(name, cases[i].index);
        open_bad(folder, cases[i].status, cases[i].what, cases[i].who);
        open_bad(folder, cases[i].status, cases[i].what, "index.json");
    }
}

static void test_index_is_not_ignored(void **state) {
    (void)state;
    /* The same tensor in two files of the index. */
    const char *folder =
        indexed("twice", "{\"weight_map\":{\"first\":\"one.safetensors\",\"x\":\"two.safetensors\"}}");
    put_file(folder, "two.safetensors", "{" A "," T("x", "U8", "1", 16, 17) "}", 17);
    open_bad(folder, NF_ERR_FORMAT, "'first' is in", "two.safetensors");
    /* An index whose link leads nowhere must not turn into "every file". */
    folder = new_folder("dangling");
    put_file(folder, "one.safetensors", "{" A "}", 16);
    assert_int_equal(symlink("nowhere", in_folder(folder, "model.safetensors.index.json")), 0);
    open_bad(folder, NF_ERR_NOT_FOUND, "cannot open", "index.json");
    folder = new_folder("fifo-index");
    assert_int_equal(mkfifo(in_folder(folder, "model.safetensors.index.json"), 0666), 0);
    alarm(20);
    open_bad(folder, NF_ERR_FORMAT, "regular file", "index.json");
    alarm(0);
    /* A shard behind a link is fine: download caches look so. */
    folder = new_folder("linked");
    put_file(folder, "blob", "{" A "}", 16);
    assert_int_equal(symlink("blob", in_folder(folder, "one.safetensors")), 0);
    put_text(folder, "model.safetensors.index.json", "{\"weight_map\":{\"first\":\"one.safetensors\"}}");
    nf_safetensors_close(open_good(folder));
}

/* ---- many tensors, mutated headers ---- */

static void test_thirty_thousand_tensors(void **state) {
    (void)state;
    nf_error err = {0};
    const char *folder = new_folder("many");
    nf_buf index = {0};
    OK(nf_buf_text(&index, "{\"weight_map\":{", &err));
    const int n_files = 6, per_file = 5000;
    for (int f = 0; f < n_files; f++) {
        nf_buf header = {0};
        char file[32];
        snprintf(file, sizeof file, "part-%d.safetensors", f);
        for (int i = 0; i < per_file; i++) {
            int id = (i * 2741 + 17 * f) % per_file; /* names in no order */
            OK(nf_buf_printf(&header, &err,
                             "%c\"layers.%d.experts.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_"
                             "offsets\":[%d,%d]}",
                             i ? ',' : '{', f, id, 2 * i, 2 * i + 2));
            OK(nf_buf_printf(&index, &err, "%s\"layers.%d.experts.%d.weight\":\"%s\"", i || f ? "," : "", f,
                             id, file));
        }
        OK(nf_buf_byte(&header, '}', &err));
        uint8_t *data = calloc(1, (size_t)(2 * per_file));
        assert_non_null(data);
        for (int i = 0; i < per_file; i++) data[2 * i] = (uint8_t)i;
        write_file(in_folder(folder, file), HONEST, header.data, header.len, data, (size_t)(2 * per_file));
        free(data);
        nf_buf_free(&header);
    }
    OK(nf_buf_text(&index, "}}", &err));
    put_text(folder, "model.safetensors.index.json", index.data);
    nf_buf_free(&index);

    const clock_t start = clock(); /* processor time: other work on the machine does not count */
    nf_safetensors *st = open_good(folder);
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(nf_safetensors_count(st), n_files * per_file);
    print_message("30,000 tensors opened in %.3f s\n", seconds);
    const nf_st_tensor *t = nf_safetensors_find(st, "layers.3.experts.2792.weight"); /* i = 1: 2741 + 51 */
    assert_non_null(t);
    float x[2];
    OK(nf_st_to_f32(t, 0, 2, x, &err));
    assert_true(x[0] == 1.0f && x[1] == 0.0f);
    nf_safetensors_close(st);
#ifdef __SANITIZE_ADDRESS__
    assert_true(seconds < 5.0);
#else
    assert_true(seconds < 1.0);
#endif
}

/* Opens; when that succeeds, everything that is handed out must lie in the file: reading it shows. */
static bool survives(const char *path) {
    nf_error err = {0};
    nf_safetensors *st = NULL;
    nf_status status = nf_safetensors_open(path, &st, &err);
    if (status) {
        assert_null(st);
        assert_true(err.status == status && strstr(err.message, "fuzz.safetensors"));
        return false;
    }
    uint64_t total = 0, sum = 0;
    for (size_t i = 0; i < nf_safetensors_count(st); i++) {
        const nf_st_tensor *t = nf_safetensors_at(st, i);
        total += t->bytes;
        for (uint64_t b = 0; b < t->bytes; b++) sum += t->data[b];
        const uint64_t n = t->bytes / nf_st_dtype_size(t->dtype);
        float x[64];
        if (t->dtype != NF_ST_BOOL && n <= 64) OK(nf_st_to_f32(t, 0, n, x, &err));
    }
    assert_true(total == nf_safetensors_bytes(st) && sum == 0);
    nf_safetensors_close(st);
    return true;
}

static void test_mutated_headers(void **state) {
    (void)state;
    const char *seed_header =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("a.weight", "BF16", "2,3", 0, 12) "," T(
            "b.weight_scale", "F32", "1,2", 12, 20) "," T("c", "I64", "", 20, 28) "," T("d", "F8_E4M3",
                                                                                        "4,1,1", 28, 32) "}";
    static const char *const parts[] = {"0",
                                        "1",
                                        "9",
                                        "-",
                                        ".",
                                        "e9",
                                        "\"",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        ",",
                                        ":",
                                        "[]",
                                        "{}",
                                        "null",
                                        "\\u0000",
                                        "\\ud800",
                                        "4294967296",
                                        "9223372036854775807",
                                        "F64",
                                        "BOOL",
                                        "__metadata__",
                                        "\xff",
                                        "\x1b"};
    const char *path = temp_path("fuzz.safetensors");
    uint64_t seed = 20;
    int opened = 0;
    const size_t length = strlen(seed_header);
    for (int round = 0; round < 6000; round++) {
        char text[1024];
        size_t n = length;
        memcpy(text, seed_header, n);
        for (uint64_t k = next_random(&seed) % 3 + (round > 0); k; k--) {
            const size_t at = next_random(&seed) % n;
            const char *part = parts[next_random(&seed) % (sizeof parts / sizeof *parts)];
            const size_t size = strlen(part);
            switch (next_random(&seed) % 4) {
            case 0:
                text[at] = (char)(text[at] ^ (1 << next_random(&seed) % 8));
                break;
            case 1:
                text[at] = (char)('0' + next_random(&seed) % 10);
                break;
            case 2: /* a part put in */
                if (n + size >= sizeof text) break;
                memmove(text + at + size, text + at, n - at);
                memcpy(text + at, part, size);
                n += size;
                break;
            default: /* some bytes left out */
                memmove(text + at, text + (at + 3 < n ? at + 3 : n), n - (at + 3 < n ? at + 3 : n));
                n -= at + 3 < n ? 3 : n - at;
                if (!n) n = 1;
                break;
            }
        }
        const uint64_t claim = next_random(&seed) % 16 ? n : next_random(&seed) % (n + 40);
        write_file(path, claim, text, n, NULL, next_random(&seed) % 8 ? 32 : next_random(&seed) % 40);
        opened += survives(path);
    }
    print_message("%d of 6000 mutated files opened\n", opened);
    assert_true(opened > 20 && opened < 5000); /* both ways are walked */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_model),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_bool_and_nan),
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_allowed_headers),
        cmocka_unit_test(test_header_lengths),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_not_files),
        cmocka_unit_test(test_folder_without_index),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_index_is_not_ignored),
        cmocka_unit_test(test_thirty_thousand_tensors),
        cmocka_unit_test(test_mutated_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
