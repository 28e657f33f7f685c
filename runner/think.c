/* Thinking and answer; see think.h. An opening marker counts only where the answer begins: a later one is
 * quoted text. */
#include "runner/think.h"

#include <string.h>

#define OPEN "<think>"
#define CLOSE "</think>"

bool nf_think_is_open(const char *prompt, size_t n) {
    const char *last = NULL, *end = prompt + n;
    for (const char *p = prompt; p < end && (p = memmem(p, (size_t)(end - p), OPEN, strlen(OPEN)));
         p += strlen(OPEN))
        last = p;
    if (!last || memmem(last, (size_t)(end - last), CLOSE, strlen(CLOSE))) return false;
    /* A user's own "<think>" is followed by the rest of the turn; the template's ends the prompt. */
    for (last += strlen(OPEN); last < end; last++)
        if (*last != '\n' && *last != ' ') return false;
    return true;
}

static bool is_blank(char c) {
    return c == '\n' || c == '\r' || c == ' ' || c == '\t';
}

static nf_status put(nf_think_split *s, const char *text, size_t n, bool *go_on, nf_error *err) {
    nf_buf *to = s->thinking ? &s->thought : &s->said;
    if (!to->len && (s->thinking || s->closed)) /* blank lines around the markers are no content */
        while (n && is_blank(*text)) text++, n--;
    if (!n) return NF_OK;
    nf_status status = nf_buf_append(to, text, n, err);
    if (!status && s->emit && *go_on && !s->emit(s->user, s->thinking, text, n)) *go_on = false;
    return status;
}

/* Drops n bytes from the front of what is held. */
static void consume(nf_buf *b, size_t n) {
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

/* Bytes at the end of `held` that could be the beginning of the marker. */
static size_t partial(const nf_buf *held, const char *marker) {
    size_t n = strlen(marker) - 1 < held->len ? strlen(marker) - 1 : held->len;
    while (n && memcmp(held->data + held->len - n, marker, n) != 0) n--;
    return n;
}

/* While nothing was said: handles an opening marker at the start. Returns true when more text must come
 * first. */
static bool open_marker(nf_think_split *s) {
    size_t blank = 0;
    while (blank < s->held.len && is_blank(s->held.data[blank])) blank++;
    size_t left = s->held.len - blank, n = strlen(OPEN) < left ? strlen(OPEN) : left;
    if (memcmp(s->held.data + blank, OPEN, n) != 0) return false;
    if (n < strlen(OPEN)) return true;
    consume(&s->held, blank + n);
    s->thinking = true;
    return false;
}

nf_status nf_think_push(nf_think_split *s, const char *text, size_t n, bool *go_on, nf_error *err) {
    nf_status status = nf_buf_append(&s->held, text, n, err);
    if (status || !s->held.len) return status;
    if (!s->thinking && !s->said.len && !s->closed && open_marker(s)) return NF_OK;
    if (s->thinking) {
        const char *close = memmem(s->held.data, s->held.len, CLOSE, strlen(CLOSE));
        size_t ready = close ? (size_t)(close - s->held.data) : s->held.len - partial(&s->held, CLOSE);
        status = put(s, s->held.data, ready, go_on, err);
        consume(&s->held, ready + (close ? strlen(CLOSE) : 0));
        if (status || !close) return status;
        s->thinking = false;
        s->closed = true;
    }
    status = put(s, s->held.data, s->held.len, go_on, err);
    consume(&s->held, s->held.len);
    return status;
}

nf_status nf_think_end(nf_think_split *s, bool *go_on, nf_error *err) {
    nf_status status = s->held.len ? put(s, s->held.data, s->held.len, go_on, err) : NF_OK;
    nf_buf_free(&s->held);
    return status;
}

void nf_think_split_free(nf_think_split *s) {
    nf_buf_free(&s->thought);
    nf_buf_free(&s->said);
    nf_buf_free(&s->held);
}
