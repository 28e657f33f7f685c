/* Streaming detokeniser: bytes of tokens in, valid UTF-8 out. Knows UTF-8 only, nothing of tokens. */
#include "runtime/tokenizer_internal.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Completes what is held back with bytes of the input; returns in *used how many were taken. */
static nf_status push_held(nf_utf8_stream *s, const unsigned char *bytes, size_t n, size_t *used, nf_buf *out,
                           nf_error *err) {
    unsigned char joined[4];
    size_t held = s->n_held, take = n < sizeof joined - held ? n : sizeof joined - held, len;
    memcpy(joined, s->held, held);
    memcpy(joined + held, bytes, take);
    nf_utf8_kind kind = nf_utf8_scan(joined, held + take, &len);
    *used = kind == NF_UTF8_PARTIAL ? take : len - held;
    if (kind == NF_UTF8_PARTIAL) {
        memcpy(s->held, joined, len);
        s->n_held = len;
        return NF_OK;
    }
    if (kind == NF_UTF8_CHARACTER ? nf_buf_append(out, joined, len, err) : nf_buf_text(out, replacement, err))
        return NF_ERR_MEMORY;
    s->n_held = 0;
    return NF_OK;
}

nf_status nf_utf8_stream_push(nf_utf8_stream *s, const void *bytes, size_t n, nf_buf *out, nf_error *err) {
    const unsigned char *p = bytes;
    size_t i = 0, start, len;
    if (s->n_held >= sizeof s->held)
        return nf_fail(err, NF_ERR_ARGUMENT, "UTF-8 stream: the state was not zero-initialised");
    if (s->n_held && n && push_held(s, p, n, &i, out, err)) return NF_ERR_MEMORY;
    for (start = i; i < n; i += len) {
        nf_utf8_kind kind = nf_utf8_scan(p + i, n - i, &len);
        if (kind == NF_UTF8_CHARACTER) continue;
        if (nf_buf_append(out, p + start, i - start, err)) return NF_ERR_MEMORY;
        start = i + len;
        if (kind == NF_UTF8_PARTIAL) {
            memcpy(s->held, p + i, len);
            s->n_held = len;
        } else if (nf_buf_text(out, replacement, err)) {
            return NF_ERR_MEMORY;
        }
    }
    return start < n ? nf_buf_append(out, p + start, n - start, err) : NF_OK;
}

nf_status nf_utf8_stream_end(nf_utf8_stream *s, nf_buf *out, nf_error *err) {
    if (!s->n_held) return NF_OK;
    s->n_held = 0;
    return nf_buf_text(out, replacement, err);
}
