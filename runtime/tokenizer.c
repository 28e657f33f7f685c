/*
 * Text to ids and back, from a loaded blob. The walk of a text: cut at added tokens as given, normalise what
 * is between, cut at added tokens of the normalised text, pre-tokenise, merge bytes.
 */
#include "runtime/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

size_t nf_tokenizer_size(const nf_tokenizer *t) {
    return t->n_tokens;
}

/* What a token decodes to; for an added token of mapped letters that differs from its text (as in the
 * reference). */
static const unsigned char *decoded_bytes(const nf_tokenizer *t, uint32_t id, size_t *n) {
    const unsigned char *r = t->tokens + (size_t)id * 12;
    *n = nf_tok_u32(r + 4);
    return t->bytes + nf_tok_u32(r);
}

const char *nf_tokenizer_bytes(const nf_tokenizer *t, int32_t id, size_t *n) {
    uint32_t flags = nf_tok_flags(t, (uint32_t)id), added = flags >> NF_TOK_ADDED_SHIFT;
    *n = 0;
    if (!flags) return NULL;
    if (!added) return (const char *)decoded_bytes(t, (uint32_t)id, n);
    const unsigned char *r = added <= t->raw.n ? t->raw.records + (size_t)(added - 1) * 24
                                               : t->norm.records + (size_t)(added - 1 - t->raw.n) * 24;
    *n = nf_tok_u32(r + 8);
    return (const char *)t->bytes + nf_tok_u32(r + 4);
}

bool nf_tokenizer_is_special(const nf_tokenizer *t, int32_t id) {
    return nf_tok_flags(t, (uint32_t)id) & NF_TOK_SPECIAL;
}

int32_t nf_tokenizer_find(const nf_tokenizer *t, const char *text, size_t n) {
    uint32_t slot = nf_tok_hash_text((const unsigned char *)text, n) & t->text_mask;
    int32_t best = -1;
    for (uint32_t probe = 0; probe <= t->text_probe; probe++, slot = (slot + 1) & t->text_mask) {
        uint32_t entry = nf_tok_u32(t->text + (size_t)slot * 4);
        size_t size;
        if (!entry) break;
        int32_t id = (int32_t)entry - 1;
        const char *bytes = nf_tokenizer_bytes(t, id, &size);
        if (!bytes || size != n || memcmp(bytes, text, n) != 0) continue;
        /* An added token comes before a vocabulary entry of the same text. */
        if (nf_tok_flags(t, (uint32_t)id) >> NF_TOK_ADDED_SHIFT) return id;
        if (best < 0 || (nf_tok_flags(t, (uint32_t)id) & NF_TOK_BYTE_LEVEL)) best = id;
    }
    return best;
}

int32_t nf_tok_vocabulary_id(const nf_tokenizer *t, const unsigned char *p, size_t n) {
    uint32_t slot = nf_tok_hash_text(p, n) & t->text_mask;
    for (uint32_t probe = 0; probe <= t->text_probe; probe++, slot = (slot + 1) & t->text_mask) {
        uint32_t entry = nf_tok_u32(t->text + (size_t)slot * 4);
        size_t size;
        if (!entry) break;
        if (!(nf_tok_flags(t, entry - 1) & NF_TOK_BYTE_LEVEL)) continue;
        const unsigned char *bytes = decoded_bytes(t, entry - 1, &size);
        if (size == n && memcmp(bytes, p, n) == 0) return (int32_t)entry - 1;
    }
    return -1;
}

/* Text without added tokens. */
static nf_status encode_plain(nf_tok_scratch *s, const unsigned char *text, uint32_t n, nf_error *err) {
    const unsigned char *pieces;
    nf_status status = nf_tok_split(s, text, n, &pieces, err);
    for (size_t i = 0; i < s->pieces.n && !status; i++) {
        nf_tok_span piece = s->pieces.items[i];
        status = nf_tok_bpe(s, pieces + piece.start, piece.end - piece.start, err);
    }
    return status;
}

/* Text between two added tokens of the raw list. */
static nf_status encode_between(nf_tok_scratch *s, const unsigned char *text, uint32_t n,
                                nf_added_tokens mode, nf_error *err) {
    size_t n_cuts;
    nf_status status = NF_OK;
    if ((s->t->flags & NF_TOK_NFC) && !nf_unicode_is_plain(text, n)) {
        s->normal.len = 0;
        if ((status = nf_unicode_nfc(text, n, &s->normal, err))) return status;
        if (s->normal.len > UINT32_MAX) return nf_fail(err, NF_ERR_LIMIT, "tokenizer: the text is too long");
        text = (const unsigned char *)s->normal.data;
        n = (uint32_t)s->normal.len;
    }
    if ((status = nf_tok_cut_added(s, &s->t->norm, text, n, mode, 1, &n_cuts, err))) return status;
    for (size_t i = 0; i < n_cuts && !status; i++) {
        nf_tok_cut cut = s->cuts[1][i];
        status = cut.id >= 0 ? nf_tok_emit(s, cut.id, err)
                             : encode_plain(s, text + cut.start, cut.end - cut.start, err);
    }
    return status;
}

nf_status nf_tokenizer_encode(const nf_tokenizer *t, const char *text, size_t n_bytes, nf_added_tokens mode,
                              int32_t **ids, size_t *n, size_t *cap, nf_error *err) {
    const unsigned char *p = (const unsigned char *)text;
    size_t bad, n_cuts, n_before = *n;
    if (n_bytes > NF_TOK_MAX_TEXT)
        return nf_fail(err, NF_ERR_LIMIT, "the text has %zu bytes, at most %d can be tokenized at once",
                       n_bytes, NF_TOK_MAX_TEXT);
    if (!nf_utf8_valid(p, n_bytes, &bad))
        return nf_fail(err, NF_ERR_ARGUMENT, "the text is not valid UTF-8 (byte offset %zu)", bad);
    nf_tok_scratch s = {.t = t, .ids = ids, .n_ids = n, .ids_cap = cap};
    s.match = pcre2_match_data_create(1, NULL);
    nf_status status = s.match ? nf_tok_cut_added(&s, &t->raw, p, (uint32_t)n_bytes, mode, 0, &n_cuts, err)
                               : nf_fail(err, NF_ERR_MEMORY, "tokenizer: out of memory");
    for (size_t i = 0; !status && i < n_cuts; i++) {
        nf_tok_cut cut = s.cuts[0][i];
        status = cut.id >= 0 ? nf_tok_emit(&s, cut.id, err)
                             : encode_between(&s, p + cut.start, cut.end - cut.start, mode, err);
    }
    if (status) *n = n_before;
    pcre2_match_data_free(s.match);
    nf_buf_free(&s.normal);
    nf_buf_free(&s.spaced[0]);
    nf_buf_free(&s.spaced[1]);
    nf_buf_free(&s.shadow);
    free(s.pieces.items);
    free(s.next.items);
    free(s.cuts[0]);
    free(s.cuts[1]);
    free(s.symbols);
    free(s.heap);
    return status;
}

nf_status nf_tokenizer_decode(const nf_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              nf_buf *out, nf_error *err) {
    for (size_t i = 0; i < n; i++) {
        uint32_t flags = nf_tok_flags(t, (uint32_t)ids[i]);
        size_t size;
        if (!flags || (skip_special && (flags & NF_TOK_SPECIAL))) continue;
        const unsigned char *bytes = decoded_bytes(t, (uint32_t)ids[i], &size);
        if (nf_buf_append(out, bytes, size, err)) return NF_ERR_MEMORY;
    }
    return NF_OK;
}
