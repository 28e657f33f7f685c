/*
 * Loads a compiled blob: checks every offset, count, id and flag once, so that encoding can trust the bytes,
 * and compiles the split patterns. The tables are used where they lie; nothing is copied.
 */
#include "runtime/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct section {
    const unsigned char *at;
    uint32_t n;
} section;

static const char *const section_names[NF_TOK_SECTIONS] = {"tokens", "bytes", "byte ids", "texts",
                                                           "merges", "raw",   "norm",     "steps"};
static const uint32_t record_bytes[NF_TOK_SECTIONS] = {12, 1, 4, 4, 16, 24, 24, 20};

static nf_status damaged(nf_error *err, int part, uint32_t record, const char *what) {
    return nf_fail(err, NF_ERR_FORMAT,
                   "tokenizer: section '%s', record %u: %s: the blob is damaged, convert again",
                   section_names[part], record, what);
}

static nf_status read_sections(const unsigned char *blob, size_t n, section *sections, nf_error *err) {
    for (int i = 0; i < NF_TOK_SECTIONS; i++) {
        uint64_t offset = nf_tok_u32(blob + 32 + i * 8), count = nf_tok_u32(blob + 36 + i * 8);
        if (offset < NF_TOK_HEADER_BYTES || offset > n || count * record_bytes[i] > n - offset)
            return damaged(err, i, 0, "outside of the blob");
        sections[i] = (section){blob + offset, (uint32_t)count};
    }
    if (sections[NF_TOK_BYTE_IDS].n != 256) return damaged(err, NF_TOK_BYTE_IDS, 0, "not 256 records");
    if (sections[NF_TOK_STEPS].n > NF_TOK_MAX_STEPS) return damaged(err, NF_TOK_STEPS, 0, "too many");
    for (int i = NF_TOK_TEXT; i <= NF_TOK_MERGES; i++)
        if (sections[i].n == 0 || (sections[i].n & (sections[i].n - 1)))
            return damaged(err, i, 0, "not a power of two");
    return NF_OK;
}

static bool is_in_pool(const nf_tokenizer *t, uint32_t offset, uint32_t length) {
    return offset <= t->n_bytes && length <= t->n_bytes - offset;
}

static nf_status check_tokens(const nf_tokenizer *t, nf_error *err) {
    uint32_t n_added = t->raw.n + t->norm.n;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        const unsigned char *r = t->tokens + (size_t)i * 12;
        uint32_t flags = nf_tok_u32(r + 8);
        if (!is_in_pool(t, nf_tok_u32(r), nf_tok_u32(r + 4))) return damaged(err, NF_TOK_TOKENS, i, "text");
        if ((flags & 0xff & ~(uint32_t)NF_TOK_TOKEN_FLAGS) || flags >> NF_TOK_ADDED_SHIFT > n_added ||
            (flags && !(flags & NF_TOK_EXISTS)))
            return damaged(err, NF_TOK_TOKENS, i, "flags");
    }
    for (uint32_t i = 0; i < 256; i++)
        if (nf_tok_u32(t->byte_ids + i * 4) > t->n_tokens) return damaged(err, NF_TOK_BYTE_IDS, i, "id");
    return NF_OK;
}

static nf_status check_hashes(const nf_tokenizer *t, nf_error *err) {
    for (uint32_t i = 0; i <= t->text_mask; i++)
        if (nf_tok_u32(t->text + (size_t)i * 4) > t->n_tokens) return damaged(err, NF_TOK_TEXT, i, "id");
    for (uint32_t i = 0; i <= t->merge_mask; i++) {
        const unsigned char *r = t->merges + (size_t)i * 16;
        uint32_t left = nf_tok_u32(r);
        if (left == NF_TOK_EMPTY) continue;
        if (left >= t->n_tokens || nf_tok_u32(r + 4) >= t->n_tokens || nf_tok_u32(r + 12) >= t->n_tokens)
            return damaged(err, NF_TOK_MERGES, i, "id");
        if (nf_tok_u32(r + 8) == 0xffffffffu) return damaged(err, NF_TOK_MERGES, i, "rank");
    }
    return NF_OK;
}

static int compare(const unsigned char *a, uint32_t na, const unsigned char *b, uint32_t nb) {
    int order = memcmp(a, b, na < nb ? na : nb);
    return order ? order : na < nb ? -1 : na > nb;
}

/* Patterns are valid UTF-8: a cut inside a character would hand PCRE2 invalid text. */
static nf_status load_added(nf_tokenizer *t, nf_tok_added *set, int part, bool *single_word, nf_error *err) {
    uint32_t counts[257] = {0};
    const unsigned char *before = NULL;
    uint32_t before_n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const unsigned char *r = set->records + (size_t)i * 24;
        uint32_t at = nf_tok_u32(r + 12), n = nf_tok_u32(r + 16), flags = nf_tok_u32(r + 20);
        size_t bad;
        if (nf_tok_u32(r) >= t->n_tokens) return damaged(err, part, i, "id");
        if (flags & ~(uint32_t)NF_TOK_ADDED_FLAGS) return damaged(err, part, i, "flags");
        if (!is_in_pool(t, nf_tok_u32(r + 4), nf_tok_u32(r + 8)) || !is_in_pool(t, at, n) || n == 0 ||
            !nf_utf8_valid(t->bytes + at, n, &bad))
            return damaged(err, part, i, "text");
        if (before && compare(before, before_n, t->bytes + at, n) >= 0) return damaged(err, part, i, "order");
        if (flags & NF_TOK_SINGLE_WORD) *single_word = true;
        before = t->bytes + at;
        before_n = n;
        counts[before[0] + 1]++;
    }
    for (uint32_t b = 0; b < 256; b++) set->first[b + 1] = set->first[b] + counts[b + 1];
    return NF_OK;
}

static nf_status load_steps(nf_tokenizer *t, section steps, nf_error *err) {
    for (uint32_t i = 0; i < steps.n; i++) {
        const unsigned char *r = steps.at + (size_t)i * 20;
        nf_tok_step *step = &t->steps[i];
        uint32_t invert = nf_tok_u32(r + 8), at = nf_tok_u32(r + 12), n = nf_tok_u32(r + 16);
        step->kind = nf_tok_u32(r);
        step->behaviour = nf_tok_u32(r + 4);
        step->invert = invert == 1;
        if ((step->kind != NF_TOK_STEP_SPLIT && step->kind != NF_TOK_STEP_PREFIX_SPACE) ||
            step->behaviour >= NF_TOK_BEHAVIOURS || invert > 1)
            return damaged(err, NF_TOK_STEPS, i, "kind");
        if (!is_in_pool(t, at, n) || n > NF_TOK_MAX_PATTERN) return damaged(err, NF_TOK_STEPS, i, "pattern");
        t->n_steps = i + 1;
        if (step->kind != NF_TOK_STEP_SPLIT) continue;
        nf_status status = nf_tok_pattern_compile(t->bytes + at, n, &step->code, err);
        if (status) return nf_context(err, "tokenizer: step %u", i);
        /* Without just-in-time code (a system that forbids it) the interpreter gives the same matches. */
        (void)pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE);
    }
    return NF_OK;
}

static nf_status set_limits(nf_tokenizer *t, nf_error *err) {
    t->limits = pcre2_match_context_create(NULL);
    if (!t->limits) return nf_fail(err, NF_ERR_MEMORY, "tokenizer: out of memory");
    /* A hundred million steps are enough for as many spaces in a row; a pattern that needs more is an error.
     */
    pcre2_set_match_limit(t->limits, 100u * 1000 * 1000);
    pcre2_set_heap_limit(t->limits, 1u << 20); /* KiB */
    return NF_OK;
}

static nf_status load(nf_tokenizer *t, const unsigned char *blob, size_t n, nf_error *err) {
    section s[NF_TOK_SECTIONS];
    bool single_word = false;
    nf_status status;
    if (n < NF_TOK_HEADER_BYTES || memcmp(blob, NF_TOK_MAGIC, 8) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "tokenizer: not a compiled tokenizer (%zu bytes)", n);
    if (nf_tok_u32(blob + 8) != NF_TOK_VERSION)
        return nf_fail(err, NF_ERR_UNSUPPORTED,
                       "tokenizer: blob version %u, this program reads %u: convert the model again",
                       nf_tok_u32(blob + 8), NF_TOK_VERSION);
    if ((status = read_sections(blob, n, s, err))) return status;
    t->flags = nf_tok_u32(blob + 12);
    t->n_tokens = nf_tok_u32(blob + 16);
    t->unknown = nf_tok_u32(blob + 20);
    t->text_probe = nf_tok_u32(blob + 24);
    t->merge_probe = nf_tok_u32(blob + 28);
    if ((t->flags & ~(uint32_t)NF_TOK_FLAGS) || t->n_tokens != s[NF_TOK_TOKENS].n ||
        t->n_tokens > NF_TOK_MAX_ID + 1u || t->unknown > t->n_tokens || t->text_probe > NF_TOK_MAX_PROBE ||
        t->merge_probe > NF_TOK_MAX_PROBE)
        return nf_fail(err, NF_ERR_FORMAT, "tokenizer: header: the blob is damaged, convert again");
    t->tokens = s[NF_TOK_TOKENS].at;
    t->bytes = s[NF_TOK_BYTES].at;
    t->n_bytes = s[NF_TOK_BYTES].n;
    t->byte_ids = s[NF_TOK_BYTE_IDS].at;
    t->text = s[NF_TOK_TEXT].at;
    t->text_mask = s[NF_TOK_TEXT].n - 1;
    t->merges = s[NF_TOK_MERGES].at;
    t->merge_mask = s[NF_TOK_MERGES].n - 1;
    t->raw.records = s[NF_TOK_RAW].at;
    t->raw.n = s[NF_TOK_RAW].n;
    t->norm.records = s[NF_TOK_NORM].at;
    t->norm.n = s[NF_TOK_NORM].n;
    if ((status = check_tokens(t, err)) || (status = check_hashes(t, err)) ||
        (status = load_added(t, &t->raw, NF_TOK_RAW, &single_word, err)) ||
        (status = load_added(t, &t->norm, NF_TOK_NORM, &single_word, err)) || (status = set_limits(t, err)) ||
        (status = load_steps(t, s[NF_TOK_STEPS], err)))
        return status;
    return single_word ? nf_tok_pattern_compile((const unsigned char *)nf_tok_word_pattern,
                                                strlen(nf_tok_word_pattern), &t->word, err)
                       : NF_OK;
}

nf_status nf_tokenizer_load(const void *blob, size_t n, nf_tokenizer **out, nf_error *err) {
    *out = NULL;
    nf_tokenizer *t = nf_calloc(1, sizeof *t, "tokenizer", err);
    if (!t) return NF_ERR_MEMORY;
    nf_status status = load(t, blob, n, err);
    if (status) {
        nf_tokenizer_free(t);
        return status;
    }
    *out = t;
    return NF_OK;
}

void nf_tokenizer_free(nf_tokenizer *t) {
    if (!t) return;
    for (size_t i = 0; i < t->n_steps; i++) pcre2_code_free(t->steps[i].code);
    pcre2_code_free(t->word);
    pcre2_match_context_free(t->limits);
    free(t);
}
