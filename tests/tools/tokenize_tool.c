/*
 * The tokenizer as a filter, for tests/python/test_tokenizer.py:
 *   tokenize_tool encode|ignore TOKENIZER.json IN OUT   strings to ids (ignore: special tokens are only text)
 *   tokenize_tool decode|visible TOKENIZER.json IN OUT  ids to bytes (visible: without special tokens)
 * A string is u32 length + bytes, a list of ids u32 count + u32 ids; all little-endian, one behind the other.
 */
#include "base/io.h"
#include "runtime/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t get_u32(const char *p) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; i--) value = value << 8 | (unsigned char)p[i];
    return value;
}

static nf_status encode_all(const nf_tokenizer *t, const nf_buf *in, nf_added_tokens mode, nf_buf *out,
                            nf_error *err) {
    int32_t *ids = NULL;
    size_t cap = 0;
    nf_status status = NF_OK;
    for (size_t at = 0; at + 4 <= in->len && !status;) {
        size_t n = 0, size = get_u32(in->data + at);
        if (size > in->len - at - 4) {
            status = nf_fail(err, NF_ERR_FORMAT, "the input is cut");
            break;
        }
        status = nf_tokenizer_encode(t, in->data + at + 4, size, mode, &ids, &n, &cap, err);
        at += 4 + size;
        if (!status) status = nf_buf_u32(out, (uint32_t)n, err);
        for (size_t i = 0; i < n && !status; i++) status = nf_buf_u32(out, (uint32_t)ids[i], err);
    }
    free(ids);
    return status;
}

static nf_status decode_all(const nf_tokenizer *t, const nf_buf *in, bool skip_special, nf_buf *out,
                            nf_error *err) {
    nf_status status = NF_OK;
    nf_buf text = {0};
    for (size_t at = 0; at + 4 <= in->len && !status;) {
        size_t n = get_u32(in->data + at);
        at += 4;
        text.len = 0;
        for (; n && at + 4 <= in->len && !status; n--, at += 4) {
            int32_t id = (int32_t)get_u32(in->data + at);
            status = nf_tokenizer_decode(t, &id, 1, skip_special, &text, err);
        }
        if (!status) status = nf_buf_u32(out, (uint32_t)text.len, err);
        if (!status) status = nf_buf_append(out, text.data, text.len, err);
    }
    nf_buf_free(&text);
    return status;
}

int main(int argc, char **argv) {
    nf_buf json = {0}, blob = {0}, in = {0}, out = {0};
    nf_tokenizer *t = NULL;
    nf_error err = {0};
    if (argc != 5) {
        fprintf(stderr, "usage: tokenize_tool encode|ignore|decode|visible TOKENIZER.json IN OUT\n");
        return 2;
    }
    const char *what = argv[1];
    nf_status status = nf_read_file(argv[2], SIZE_MAX / 2, &json, &err);
    if (!status) status = nf_tokenizer_compile(json.data, json.len, argv[2], &blob, &err);
    if (!status) status = nf_tokenizer_load(blob.data, blob.len, &t, &err);
    if (!status) status = nf_read_file(argv[3], SIZE_MAX / 2, &in, &err);
    if (!status && (strcmp(what, "encode") == 0 || strcmp(what, "ignore") == 0))
        status = encode_all(t, &in, *what == 'e' ? NF_ADDED_PARSE : NF_ADDED_IGNORE, &out, &err);
    else if (!status)
        status = decode_all(t, &in, strcmp(what, "visible") == 0, &out, &err);
    if (!status) status = nf_write_file_atomic(argv[4], out.data, out.len, &err);
    if (status) fprintf(stderr, "tokenize_tool: %s\n", err.message);
    nf_tokenizer_free(t);
    nf_buf_free(&json);
    nf_buf_free(&blob);
    nf_buf_free(&in);
    nf_buf_free(&out);
    return status ? 1 : 0;
}
