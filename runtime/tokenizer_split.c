/*
 * From text to pieces: cutting at added tokens, and the pre-tokeniser (regex splits and prefix spaces). Works
 * on spans of a buffer; knows nothing of merges.
 */
#include "runtime/tokenizer_internal.h"

#include <string.h>

/* ---- added tokens ---- */

typedef struct added {
    int32_t id;
    const unsigned char *pattern;
    uint32_t n, flags;
} added;

static added get_added(const nf_tokenizer *t, const nf_tok_added *set, uint32_t i) {
    const unsigned char *r = set->records + (size_t)i * 24;
    return (added){(int32_t)nf_tok_u32(r), t->bytes + nf_tok_u32(r + 12), nf_tok_u32(r + 16),
                   nf_tok_u32(r + 20)};
}

/* First of [low, high) whose pattern has at `depth` a byte >= `byte`. */
static uint32_t lower(const nf_tokenizer *t, const nf_tok_added *set, uint32_t low, uint32_t high,
                      uint32_t depth, unsigned byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (get_added(t, set, middle).pattern[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Longest added token that starts at text[0]: patterns that share the prefix read so far are a range of the
 * list. */
static bool longest_at(const nf_tokenizer *t, const nf_tok_added *set, const unsigned char *text, uint32_t n,
                       added *best) {
    uint32_t low = set->first[text[0]], high = set->first[text[0] + 1u];
    bool found = false;
    for (uint32_t depth = 1; low < high; depth++) {
        added a = get_added(t, set, low);
        if (a.n == depth) {
            *best = a;
            found = true;
            low++;
        }
        if (low == high || depth == n) break;
        low = lower(t, set, low, high, depth, text[depth]);
        high = lower(t, set, low, high, depth, text[depth] + 1u);
    }
    return found;
}

static uint32_t start_of_last(const unsigned char *text, uint32_t end) {
    do end--;
    while ((text[end] & 0xc0) == 0x80);
    return end;
}

static nf_status is_word(nf_tok_scratch *s, const unsigned char *p, bool *word, nf_error *err) {
    uint32_t code;
    bool changed;
    size_t n = nf_utf8_get(p, &code);
    nf_status status = nf_unicode_shadow(p, n, &s->shadow, &changed, err);
    if (status) return status;
    int rc = pcre2_match(s->t->word, changed ? (unsigned char *)s->shadow.data : p, n, 0, PCRE2_NO_UTF_CHECK,
                         s->match, s->t->limits);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return nf_fail(err, NF_ERR_INTERNAL, "tokenizer: PCRE2 error %d on one character", rc);
    *word = rc >= 0;
    return NF_OK;
}

/* Does a word character touch [start, end)? */
static nf_status touches_word(nf_tok_scratch *s, const unsigned char *text, uint32_t n, uint32_t start,
                              uint32_t end, bool *touches, nf_error *err) {
    nf_status status = NF_OK;
    *touches = false;
    if (start > 0) status = is_word(s, text + start_of_last(text, start), touches, err);
    if (!status && !*touches && end < n) status = is_word(s, text + end, touches, err);
    return status;
}

static uint32_t skip_spaces_left(const unsigned char *text, uint32_t start) {
    while (start > 0) {
        uint32_t code, before = start_of_last(text, start);
        nf_utf8_get(text + before, &code);
        if (!nf_unicode_is_space(code)) break;
        start = before;
    }
    return start;
}

static uint32_t skip_spaces_right(const unsigned char *text, uint32_t n, uint32_t end) {
    while (end < n) {
        uint32_t code;
        size_t len = nf_utf8_get(text + end, &code);
        if (!nf_unicode_is_space(code)) break;
        end += (uint32_t)len;
    }
    return end;
}

static nf_status add_cut(nf_tok_scratch *s, int level, size_t *n, nf_tok_cut cut, nf_error *err) {
    if (*n == s->cuts_cap[level] &&
        nf_grow((void **)&s->cuts[level], &s->cuts_cap[level], *n + 1, sizeof(nf_tok_cut), err))
        return NF_ERR_MEMORY;
    s->cuts[level][(*n)++] = cut;
    return NF_OK;
}

nf_status nf_tok_cut_added(nf_tok_scratch *s, const nf_tok_added *set, const unsigned char *text, uint32_t n,
                           nf_added_tokens mode, int level, size_t *n_cuts, nf_error *err) {
    uint32_t done =
        0; /* text before it is in a cut; may go back: rstrip reaches over a token of white space */
    nf_status status;
    *n_cuts = 0;
    for (uint32_t i = 0; i < n && set->n;) {
        added a = {0};
        if (!longest_at(s->t, set, text + i, n - i, &a)) {
            i++;
            continue;
        }
        uint32_t start = i, end = i + a.n;
        i = end; /* also when the token is passed over: nothing is searched inside it */
        if (mode == NF_ADDED_IGNORE && (a.flags & NF_TOK_ADDED_SPECIAL)) continue;
        if (a.flags & NF_TOK_SINGLE_WORD) {
            bool touches;
            if ((status = touches_word(s, text, n, start, end, &touches, err))) return status;
            if (touches) continue;
        }
        if (a.flags & NF_TOK_LSTRIP) {
            start = skip_spaces_left(text, start);
            if (start < done) start = done;
        }
        if (a.flags & NF_TOK_RSTRIP) end = skip_spaces_right(text, n, end);
        if (done < start && (status = add_cut(s, level, n_cuts, (nf_tok_cut){done, start, -1}, err)))
            return status;
        if ((status = add_cut(s, level, n_cuts, (nf_tok_cut){start, end, a.id}, err))) return status;
        done = end;
    }
    return done == n ? NF_OK : add_cut(s, level, n_cuts, (nf_tok_cut){done, n, -1}, err);
}

/* ---- pre-tokeniser ---- */

/* Spans of one split in order, as the behaviour joins them. */
typedef struct joiner {
    nf_tok_spans *out;
    size_t first; /* out->items[first..] belong to the present piece */
    const nf_tok_step *step;
    bool previous;
} joiner;

static nf_status add_span(nf_tok_spans *spans, uint32_t start, uint32_t end, nf_error *err) {
    if (spans->n == spans->cap &&
        nf_grow((void **)&spans->items, &spans->cap, spans->n + 1, sizeof *spans->items, err))
        return NF_ERR_MEMORY;
    spans->items[spans->n++] = (nf_tok_span){start, end};
    return NF_OK;
}

static nf_status join(joiner *j, uint32_t start, uint32_t end, bool match, nf_error *err) {
    nf_tok_spans *out = j->out;
    bool any = out->n > j->first, extend = false, previous = j->previous;
    if (j->step->invert) match = !match;
    j->previous = match;
    switch (j->step->behaviour) {
    case NF_TOK_REMOVED:
        if (match) return NF_OK;
        break;
    case NF_TOK_CONTIGUOUS:
        extend = match == previous;
        break;
    case NF_TOK_MERGED_PREVIOUS:
        extend = match && !previous;
        break;
    case NF_TOK_MERGED_NEXT: /* seen from the right end: a match takes what precedes its successor */
        extend = any && previous && !match;
        break;
    default:
        break;
    }
    if (extend && any) {
        out->items[out->n - 1].end = end;
        return NF_OK;
    }
    return add_span(out, start, end, err);
}

/* Matches `code` from *at on. *found is false at the end. */
static nf_status find(nf_tok_scratch *s, const pcre2_code *code, const unsigned char *text, uint32_t n,
                      uint32_t at, uint32_t *start, uint32_t *end, bool *found, nf_error *err) {
    *found = false;
    int rc = pcre2_match(code, text, n, at, PCRE2_NO_UTF_CHECK, s->match, s->t->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->t->limits);
    if (rc == PCRE2_ERROR_NOMATCH) return NF_OK;
    if (rc < 0) {
        unsigned char message[160] = "?";
        pcre2_get_error_message(rc, message, sizeof message);
        bool limit =
            rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT;
        return nf_fail(err,
                       limit                        ? NF_ERR_LIMIT
                       : rc == PCRE2_ERROR_NOMEMORY ? NF_ERR_MEMORY
                                                    : NF_ERR_INTERNAL,
                       "tokenizer: the split pattern failed at byte %u of a piece of %u bytes: %s", at, n,
                       (const char *)message);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->match);
    if (ends[0] < at || ends[1] < ends[0] || ends[1] > n)
        return nf_fail(err, NF_ERR_FORMAT, "tokenizer: the split pattern matched backwards");
    *start = (uint32_t)ends[0];
    *end = (uint32_t)ends[1];
    *found = true;
    return NF_OK;
}

/* Splits text[0..n) into spans that start at `base`. Matches follow each other as in the reference's
 * iterator: an empty match where the last one ended is passed over. */
static nf_status split_piece(nf_tok_scratch *s, joiner *j, const unsigned char *text, uint32_t n,
                             uint32_t base, nf_error *err) {
    uint32_t at = 0, done = 0, start, end;
    bool any = false, found;
    j->first = j->out->n;
    j->previous = false;
    while (at <= n) {
        nf_status status = find(s, j->step->code, text, n, at, &start, &end, &found, err);
        if (status) return status;
        if (!found) break;
        if (start == end && any && done == end) {
            uint32_t code;
            at += at < n ? (uint32_t)nf_utf8_get(text + at, &code) : 1;
            continue;
        }
        if (done < start && (status = join(j, base + done, base + start, false, err))) return status;
        if ((status = join(j, base + start, base + end, true, err))) return status;
        at = done = end;
        any = true;
    }
    return done < n ? join(j, base + done, base + n, false, err) : NF_OK;
}

static nf_status run_split(nf_tok_scratch *s, const nf_tok_step *step, const unsigned char *text, size_t n,
                           nf_error *err) {
    bool changed;
    nf_status status = nf_unicode_shadow(text, n, &s->shadow, &changed, err);
    if (status) return status;
    const unsigned char *subject = changed ? (const unsigned char *)s->shadow.data : text;
    joiner j = {.out = &s->next, .step = step};
    s->next.n = 0;
    for (size_t i = 0; i < s->pieces.n; i++) {
        nf_tok_span piece = s->pieces.items[i];
        if ((status = split_piece(s, &j, subject + piece.start, piece.end - piece.start, piece.start, err)))
            return status;
        /* Empty spans count while spans are joined, not afterwards. */
        size_t kept = j.first;
        for (size_t k = j.first; k < s->next.n; k++)
            if (s->next.items[k].start < s->next.items[k].end) s->next.items[kept++] = s->next.items[k];
        s->next.n = kept;
    }
    nf_tok_spans pieces = s->pieces;
    s->pieces = s->next;
    s->next = pieces;
    return NF_OK;
}

/* Puts a space before every piece that has none, into a new text. */
static nf_status add_prefix_spaces(nf_tok_scratch *s, const unsigned char *text, nf_buf *out, nf_error *err) {
    out->len = 0;
    for (size_t i = 0; i < s->pieces.n; i++) {
        nf_tok_span *piece = &s->pieces.items[i];
        size_t start = out->len;
        if (text[piece->start] != ' ' && nf_buf_byte(out, ' ', err)) return NF_ERR_MEMORY;
        if (nf_buf_append(out, text + piece->start, piece->end - piece->start, err)) return NF_ERR_MEMORY;
        if (out->len > UINT32_MAX) return nf_fail(err, NF_ERR_LIMIT, "tokenizer: the text is too long");
        *piece = (nf_tok_span){(uint32_t)start, (uint32_t)out->len};
    }
    return NF_OK;
}

nf_status nf_tok_split(nf_tok_scratch *s, const unsigned char *text, uint32_t n, const unsigned char **out,
                       nf_error *err) {
    size_t size = n;
    int buffer = 0;
    s->pieces.n = 0;
    nf_status status = n ? add_span(&s->pieces, 0, n, err) : NF_OK;
    for (size_t i = 0; i < s->t->n_steps && !status; i++) {
        const nf_tok_step *step = &s->t->steps[i];
        if (step->kind == NF_TOK_STEP_SPLIT) {
            status = run_split(s, step, text, size, err);
            continue;
        }
        nf_buf *spaced = &s->spaced[buffer ^= 1];
        if (!s->pieces.n) break;
        status = add_prefix_spaces(s, text, spaced, err);
        text = (const unsigned char *)spaced->data;
        size = spaced->len;
    }
    *out = text;
    return status;
}
