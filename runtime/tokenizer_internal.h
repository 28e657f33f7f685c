/*
 * What the files of the tokenizer share: the layout of the compiled blob, the loaded tokenizer, and the text
 * helpers.
 *
 * The blob (all integers u32, little-endian, at any alignment):
 *
 *   header, NF_TOK_HEADER_BYTES:
 *     0  magic "NFTOKBL1"            8  version (1)                12  flags (NF_TOK_NFC ...)
 *    16  n_tokens: largest id + 1   20  unknown id + 1, 0: none    24  longest probe of the text hash
 *    28  longest probe of the merge hash
 *    32  NF_TOK_SECTIONS times: offset, number of records
 *   sections, in this order, anywhere behind the header:
 *     tokens    {bytes offset, bytes length, flags} for each id; offsets count from the start of `bytes`
 *     bytes     the byte pool (records of one byte)
 *     byte_ids  256 times: id + 1 of the token that stands for this byte, 0: none
 *     text      hash of token texts: id + 1 or 0; a power of two, linear probing from nf_tok_hash_text
 *     merges    hash of merges: {left id, right id, rank, merged id}, left id NF_TOK_EMPTY: free; a power of
 * two, linear probing from nf_tok_hash_pair raw, norm added tokens matched in the text as given, and in the
 * normalised text: {id, content offset, content length, pattern offset, pattern length, flags}, strictly
 * ascending by pattern bytes steps     pre-tokeniser, applied one after the other: {kind, behaviour, invert,
 * pattern offset, pattern length}; patterns are PCRE2 text, made by nf_tok_pattern_translate
 *
 * bits 8.. of a token's flags: 1 + index of its record in `raw` followed by `norm`.
 */
#ifndef NF_RUNTIME_TOKENIZER_INTERNAL_H
#define NF_RUNTIME_TOKENIZER_INTERNAL_H

#include "runtime/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define NF_TOK_MAGIC "NFTOKBL1"
#define NF_TOK_VERSION 1u
#define NF_TOK_EMPTY 0xffffffffu

enum {
    NF_TOK_SECTIONS = 8,
    NF_TOK_HEADER_BYTES = 32 + NF_TOK_SECTIONS * 8,
    NF_TOK_MAX_ID = 4194303,    /* largest id: 16 times the largest published vocabulary */
    NF_TOK_MAX_PROBE = 4096,    /* a longer probe chain is a damaged or hostile hash */
    NF_TOK_MAX_PATTERN = 65536, /* bytes of one translated pattern */
    NF_TOK_MAX_STEPS = 32,
    NF_TOK_MAX_TEXT = 1 << 30 /* bytes of one text, so that spans fit in 32 bits */
};

enum {
    NF_TOK_TOKENS,
    NF_TOK_BYTES,
    NF_TOK_BYTE_IDS,
    NF_TOK_TEXT,
    NF_TOK_MERGES,
    NF_TOK_RAW,
    NF_TOK_NORM,
    NF_TOK_STEPS
};

/* Header flags. */
enum { NF_TOK_NFC = 1, NF_TOK_IGNORE_MERGES = 2, NF_TOK_FUSE_UNKNOWN = 4, NF_TOK_FLAGS = 7 };
/* Token flags. */
enum {
    NF_TOK_EXISTS = 1,     /* the id has a token */
    NF_TOK_BYTE_LEVEL = 2, /* in the vocabulary, made of mapped bytes: encoding can produce it */
    NF_TOK_SPECIAL = 4,
    NF_TOK_TOKEN_FLAGS = 7,
    NF_TOK_ADDED_SHIFT = 8
};
/* Flags of added tokens. */
enum {
    NF_TOK_ADDED_SPECIAL = 1,
    NF_TOK_SINGLE_WORD = 2,
    NF_TOK_LSTRIP = 4,
    NF_TOK_RSTRIP = 8,
    NF_TOK_ADDED_FLAGS = 15
};
/* Steps of the pre-tokeniser. */
enum { NF_TOK_STEP_SPLIT = 1, NF_TOK_STEP_PREFIX_SPACE = 2 };
/* What a split does with a match (the reference's SplitDelimiterBehavior). */
enum {
    NF_TOK_ISOLATED,
    NF_TOK_REMOVED,
    NF_TOK_CONTIGUOUS,
    NF_TOK_MERGED_PREVIOUS,
    NF_TOK_MERGED_NEXT,
    NF_TOK_BEHAVIOURS
};

/* A range of bytes of a text. */
typedef struct nf_tok_span {
    uint32_t start, end;
} nf_tok_span;

typedef struct nf_tok_spans {
    nf_tok_span *items;
    size_t n, cap;
} nf_tok_spans;

/* One of the two lists of added tokens, with where each first byte starts in it. */
typedef struct nf_tok_added {
    const unsigned char *records;
    uint32_t n;
    uint32_t first[257];
} nf_tok_added;

typedef struct nf_tok_step {
    uint32_t kind, behaviour;
    bool invert;
    pcre2_code *code;
} nf_tok_step;

struct nf_tokenizer {
    const unsigned char *tokens, *bytes, *byte_ids, *text, *merges;
    uint32_t n_tokens, flags, unknown, n_bytes; /* unknown: id + 1 */
    uint32_t text_mask, text_probe, merge_mask, merge_probe;
    nf_tok_added raw, norm;
    nf_tok_step steps[NF_TOK_MAX_STEPS];
    size_t n_steps;
    pcre2_code *word; /* one word character; NULL when no added token is single_word */
    pcre2_match_context *limits;
};

/* Scratch memory of one call of encode. */
typedef struct nf_tok_scratch {
    const nf_tokenizer *t;
    pcre2_match_data *match;
    nf_buf normal, spaced[2], shadow;
    nf_tok_spans pieces, next;
    struct nf_tok_cut *cuts[2];
    size_t cuts_cap[2];
    uint32_t *symbols;
    size_t symbols_cap;
    struct nf_tok_merge *heap;
    size_t heap_cap;
    int32_t **ids;
    size_t *n_ids, *ids_cap;
} nf_tok_scratch;

static inline uint32_t nf_tok_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint32_t nf_tok_hash_pair(uint32_t a, uint32_t b) {
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

static inline uint32_t nf_tok_hash_text(const unsigned char *p, size_t n) {
    uint64_t x = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) x = (x ^ p[i]) * 0x100000001b3u;
    return (uint32_t)((x * 0x9e3779b97f4a7c15u) >> 32);
}

/* tokenizer_unicode.c */

typedef enum nf_utf8_kind { NF_UTF8_CHARACTER, NF_UTF8_PARTIAL, NF_UTF8_ILL_FORMED } nf_utf8_kind;
/* Looks at the first bytes of p (n >= 1). CHARACTER: *len bytes are one. PARTIAL: all n (= *len, < 4) bytes
 * are the start of one. ILL_FORMED: *len bytes are a maximal ill-formed subpart. */
nf_utf8_kind nf_utf8_scan(const unsigned char *p, size_t n, size_t *len);
/* Code point and length of the character at p, which is valid UTF-8. */
size_t nf_utf8_get(const unsigned char *p, uint32_t *code);
/* Appends a code point. */
nf_status nf_utf8_put(nf_buf *out, uint32_t code, nf_error *err);
/* True when all of the text is valid; otherwise *bad is the offset of the first byte that is not. */
bool nf_utf8_valid(const unsigned char *p, size_t n, size_t *bad);
/* Unicode White_Space. */
bool nf_unicode_is_space(uint32_t code);
/* True when the text is the same in NFC at a glance (all code points below U+0300). */
bool nf_unicode_is_plain(const unsigned char *p, size_t n);
/* Appends the NFC form of valid UTF-8, as the reference's older Unicode tables give it. */
nf_status nf_unicode_nfc(const unsigned char *p, size_t n, nf_buf *out, nf_error *err);
/* Code points that PCRE2's Unicode version does not know (or sees otherwise than Oniguruma), as ranges, each
 * with an equally long code point that has the same properties in both. */
typedef struct nf_unicode_stand_in {
    uint32_t first, last, code;
} nf_unicode_stand_in;
const nf_unicode_stand_in *nf_unicode_stand_ins(size_t *n);
/* Puts the stand-ins into `text` (n bytes of valid UTF-8). False when there was nothing to change and nothing
 * was written; otherwise `shadow` holds the n bytes of the text with stand-ins. */
nf_status nf_unicode_shadow(const unsigned char *text, size_t n, nf_buf *shadow, bool *changed,
                            nf_error *err);

/* tokenizer_bytes: byte <-> printable code point of byte-level vocabularies. */
uint32_t nf_tok_byte_to_code(unsigned char byte);
int nf_tok_code_to_byte(uint32_t code); /* -1: not in the map */

/* tokenizer_pattern.c: appends the PCRE2 form of an Oniguruma pattern that means exactly the same on every
 * text, or fails with NF_ERR_UNSUPPORTED (NF_ERR_FORMAT for a pattern that is an error in Oniguruma too). */
nf_status nf_tok_pattern_translate(const char *pattern, size_t n, nf_buf *out, nf_error *err);
/* As above for a text that stands for itself. */
nf_status nf_tok_pattern_literal(const char *text, size_t n, nf_buf *out, nf_error *err);
/* Compiles a translated pattern with the options that translation relies on. */
nf_status nf_tok_pattern_compile(const unsigned char *pattern, size_t n, pcre2_code **out, nf_error *err);
extern const char nf_tok_word_pattern[]; /* one character of the reference's \w for `single_word` */

/* tokenizer_split.c */

/* A part of a text: an added token (id >= 0) or ordinary text. */
typedef struct nf_tok_cut {
    uint32_t start, end;
    int32_t id;
} nf_tok_cut;
/* Cuts `text` at the added tokens of `set`, into s->cuts[level]. */
nf_status nf_tok_cut_added(nf_tok_scratch *s, const nf_tok_added *set, const unsigned char *text, uint32_t n,
                           nf_added_tokens mode, int level, size_t *n_cuts, nf_error *err);
/* Runs the pre-tokeniser; the pieces are s->pieces of *out. */
nf_status nf_tok_split(nf_tok_scratch *s, const unsigned char *text, uint32_t n, const unsigned char **out,
                       nf_error *err);

/* Appends one id to the result. */
static inline nf_status nf_tok_emit(nf_tok_scratch *s, int32_t id, nf_error *err) {
    if (*s->n_ids == *s->ids_cap && nf_grow((void **)s->ids, s->ids_cap, *s->n_ids + 1, sizeof **s->ids, err))
        return NF_ERR_MEMORY;
    (*s->ids)[(*s->n_ids)++] = id;
    return NF_OK;
}

/* tokenizer_bpe.c: appends the ids of one piece. */
nf_status nf_tok_bpe(nf_tok_scratch *s, const unsigned char *piece, size_t n, nf_error *err);

/* tokenizer.c: id of the byte-level vocabulary entry with these bytes, -1: none. */
int32_t nf_tok_vocabulary_id(const nf_tokenizer *t, const unsigned char *p, size_t n);
/* Flags of a token; 0 for ids out of range. */
static inline uint32_t nf_tok_flags(const nf_tokenizer *t, uint32_t id) {
    return id < t->n_tokens ? nf_tok_u32(t->tokens + (size_t)id * 12 + 8) : 0;
}

#endif
