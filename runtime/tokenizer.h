/*
 * Byte-level BPE tokenizer: compiled from tokenizer.json into a flat blob at conversion, used from the blob
 * at run time. Equal to PyPI `tokenizers` on every input (docs/models.md, "Tokenizer").
 */
#ifndef NF_RUNTIME_TOKENIZER_H
#define NF_RUNTIME_TOKENIZER_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Compiles tokenizer.json (n bytes; hostile) to a blob appended to `out`. What cannot be represented exactly
 * (normaliser, pre-tokeniser, model or decoder of another kind) is NF_ERR_UNSUPPORTED and names the field. */
nf_status nf_tokenizer_compile(const char *json, size_t n, const char *file, nf_buf *out, nf_error *err);

typedef struct nf_tokenizer nf_tokenizer;

/* Loads a blob (hostile: every offset and count is checked). The bytes must outlive the tokenizer. Safe to
 * use from several threads at once afterwards. */
nf_status nf_tokenizer_load(const void *blob, size_t n, nf_tokenizer **out, nf_error *err);
void nf_tokenizer_free(nf_tokenizer *t);

/* Largest token id + 1. */
size_t nf_tokenizer_size(const nf_tokenizer *t);
/* Raw bytes of a token (NULL and 0 for ids without one). For byte-level tokens these are the bytes it stands
 * for, for added tokens its text. */
const char *nf_tokenizer_bytes(const nf_tokenizer *t, int32_t id, size_t *n);
/* True for added tokens marked special: they are not part of the visible text. */
bool nf_tokenizer_is_special(const nf_tokenizer *t, int32_t id);
/* Id of an added token or vocabulary entry with exactly this text; -1 when there is none. */
int32_t nf_tokenizer_find(const nf_tokenizer *t, const char *text, size_t n);

typedef enum nf_added_tokens {
    NF_ADDED_PARSE, /* added tokens in the text become their ids (`encode` of the reference) */
    NF_ADDED_IGNORE /* text is only text: special added tokens are not recognised (user input in a chat) */
} nf_added_tokens;

/* Appends the ids of UTF-8 text to the array *ids (grown with nf_grow; *n, *cap updated). Invalid UTF-8 is
 * NF_ERR_ARGUMENT with the byte offset. */
nf_status nf_tokenizer_encode(const nf_tokenizer *t, const char *text, size_t n_bytes, nf_added_tokens mode,
                              int32_t **ids, size_t *n, size_t *cap, nf_error *err);
/* Appends the text of ids (bytes as they are; an answer cut inside a character gives a partial sequence). */
nf_status nf_tokenizer_decode(const nf_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              nf_buf *out, nf_error *err);

/* Streaming detokeniser: holds back the bytes of an incomplete UTF-8 sequence, so that what was emitted is
 * always valid UTF-8. Zero-initialise. */
typedef struct nf_utf8_stream {
    unsigned char held[4];
    size_t n_held;
} nf_utf8_stream;

/* Appends to out what can be emitted after `n` more bytes; ill-formed bytes become U+FFFD, one for each
 * maximal ill-formed subpart (Unicode 15, section 3.9; as Python's errors="replace"). */
nf_status nf_utf8_stream_push(nf_utf8_stream *s, const void *bytes, size_t n, nf_buf *out, nf_error *err);
/* End of the text: what is held back is an ill-formed sequence and becomes U+FFFD. */
nf_status nf_utf8_stream_end(nf_utf8_stream *s, nf_buf *out, nf_error *err);

#endif
