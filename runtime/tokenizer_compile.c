/*
 * tokenizer.json to the blob of tokenizer_internal.h, at conversion. What the blob cannot say exactly is
 * refused by name. The post-processor, truncation and padding are not part of it: ids are those of the
 * reference's encode(text, add_special_tokens=False) of the whole text.
 */
#include "runtime/tokenizer_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct token {
    uint32_t at, n, flags;
} token;

typedef struct added {
    uint32_t id, content, content_n, pattern, pattern_n, flags;
    bool normalized;
    const char *text; /* the pattern, while the list is sorted */
} added;

typedef struct compiler {
    const json_t *root, *model, *vocabulary;
    nf_error *err;
    nf_buf pool, sections[NF_TOK_SECTIONS];
    token *tokens;
    uint32_t n_tokens, flags, unknown, text_probe, merge_probe, n_steps;
    added *added;
    size_t n_added, added_cap;
    bool byte_level; /* the pre-tokeniser reached its ByteLevel step */
} compiler;

static nf_status unsupported(compiler *c, const char *field, const json_t *value) {
    const char *name =
        json_is_object(value) ? json_string_value(json_object_get(value, "type")) : json_string_value(value);
    return nf_fail(c->err, NF_ERR_UNSUPPORTED, "%s%s%.64s is not supported (byte-level BPE only)", field,
                   name ? " of type " : ": this value", name ? name : "");
}

static nf_status bad(compiler *c, const char *field, const char *what) {
    return nf_fail(c->err, NF_ERR_FORMAT, "%s: %s", field, what);
}

static const json_t *get(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool is_type(const json_t *value, const char *type) {
    const char *name = json_string_value(json_object_get(value, "type"));
    return name && strcmp(name, type) == 0;
}

/* A boolean field; `missing` is its value when it is absent (-1: it must be there). */
static nf_status get_flag(compiler *c, const json_t *object, const char *field, int missing, bool *out) {
    const json_t *value = json_object_get(object, field);
    *out = value ? json_is_true(value) : missing > 0;
    if (value ? !json_is_boolean(value) : missing < 0) return bad(c, field, "true or false expected");
    return NF_OK;
}

static nf_status add_bytes(compiler *c, const void *bytes, size_t n, uint32_t *at) {
    if (c->pool.len + n > INT32_MAX)
        return nf_fail(c->err, NF_ERR_LIMIT, "the texts of the tokens are longer than 2 GiB");
    *at = (uint32_t)c->pool.len;
    return nf_buf_append(&c->pool, bytes, n, c->err);
}

/* Appends the bytes that a vocabulary text stands for; *mapped is false for a text with other characters,
 * which stands for itself. */
static nf_status add_mapped(compiler *c, const char *text, size_t n, token *out, bool *mapped) {
    const unsigned char *p = (const unsigned char *)text;
    size_t start = c->pool.len;
    uint32_t code;
    if (add_bytes(c, text, n, &out->at)) return c->err ? c->err->status : NF_ERR_MEMORY;
    *mapped = true;
    for (size_t i = 0; i < n && *mapped;) {
        i += nf_utf8_get(p + i, &code);
        *mapped = nf_tok_code_to_byte(code) >= 0;
    }
    if (*mapped) {
        c->pool.len = start;
        for (size_t i = 0; i < n;) {
            i += nf_utf8_get(p + i, &code);
            c->pool.data[c->pool.len++] = (char)nf_tok_code_to_byte(code);
        }
    }
    out->n = (uint32_t)(c->pool.len - start);
    return NF_OK;
}

static nf_status get_id(compiler *c, const json_t *value, const char *what, const char *text, uint32_t *id) {
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0)
        return nf_fail(c->err, NF_ERR_FORMAT, "%s '%.64s': its id is not a whole number >= 0", what, text);
    if (number > NF_TOK_MAX_ID)
        return nf_fail(c->err, NF_ERR_LIMIT, "%s '%.64s': id %lld, at most %d is supported", what, text,
                       (long long)number, NF_TOK_MAX_ID);
    *id = (uint32_t)number;
    return NF_OK;
}

/* ---- model ---- */

static nf_status check_model(compiler *c) {
    const json_t *type = json_object_get(c->model, "type"), *value;
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool flag;
    nf_status status;
    if (type && !is_type(c->model, "BPE")) return unsupported(c, "model", c->model);
    if ((value = get(c->model, "dropout")) && !(json_is_number(value) && json_number_value(value) == 0))
        return unsupported(c, "model.dropout", value);
    for (int i = 0; i < 2; i++)
        if ((value = get(c->model, empty[i])) && !(json_is_string(value) && json_string_length(value) == 0))
            return unsupported(c, empty[i], NULL);
    if (get(c->model, "ignore_merges")) {
        if ((status = get_flag(c, c->model, "ignore_merges", 0, &flag))) return status;
        c->flags |= flag ? NF_TOK_IGNORE_MERGES : 0;
    }
    if (get(c->model, "fuse_unk")) {
        if ((status = get_flag(c, c->model, "fuse_unk", 0, &flag))) return status;
        c->flags |= flag ? NF_TOK_FUSE_UNKNOWN : 0;
    }
    c->vocabulary = json_object_get(c->model, "vocab");
    if (!json_is_object(c->vocabulary)) return bad(c, "model.vocab", "an object of texts and ids expected");
    return json_object_size(c->vocabulary) ? NF_OK : bad(c, "model.vocab", "it is empty");
}

/* Allocates the tokens up to the largest id of vocabulary and added tokens. */
static nf_status size_tokens(compiler *c, const json_t *list) {
    const char *text;
    json_t *value;
    size_t i;
    uint32_t id = 0, largest = 0;
    nf_status status;
    json_object_foreach((json_t *)c->vocabulary, text, value) {
        if ((status = get_id(c, value, "model.vocab", text, &id))) return status;
        if (id > largest) largest = id;
    }
    json_array_foreach(list, i, value) {
        text = json_string_value(json_object_get(value, "content"));
        if (!text) return nf_fail(c->err, NF_ERR_FORMAT, "added_tokens[%zu]: no text in 'content'", i);
        if ((status = get_id(c, json_object_get(value, "id"), "added token", text, &id))) return status;
        if (id > largest) largest = id;
    }
    c->n_tokens = largest + 1;
    c->tokens = nf_calloc(c->n_tokens, sizeof *c->tokens, "tokens", c->err);
    return c->tokens ? NF_OK : NF_ERR_MEMORY;
}

static nf_status read_vocabulary(compiler *c) {
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)c->vocabulary, text, value) {
        token *t = &c->tokens[json_integer_value(value)];
        bool mapped;
        if (t->flags)
            return nf_fail(c->err, NF_ERR_FORMAT, "model.vocab '%.64s': id %lld is that of another entry",
                           text, (long long)json_integer_value(value));
        nf_status status = add_mapped(c, text, strlen(text), t, &mapped);
        if (status) return status;
        t->flags = mapped ? NF_TOK_EXISTS | NF_TOK_BYTE_LEVEL : NF_TOK_EXISTS;
    }
    return NF_OK;
}

/* Ids of the single bytes; a vocabulary without some of them needs its unknown token (or drops the bytes, as
 * the reference does when there is none). */
static nf_status read_byte_ids(compiler *c) {
    bool complete = true, fallback = false;
    for (unsigned b = 0; b < 256; b++) {
        char text[8] = {0};
        uint32_t code = nf_tok_byte_to_code((unsigned char)b);
        text[0] = (char)(code < 0x80 ? code : 0xc0 | code >> 6);
        if (code >= 0x80) text[1] = (char)(0x80 | (code & 0x3f));
        const json_t *value = json_object_get(c->vocabulary, text);
        complete = complete && value;
        if (nf_buf_u32(&c->sections[NF_TOK_BYTE_IDS], value ? (uint32_t)json_integer_value(value) + 1 : 0,
                       c->err))
            return NF_ERR_MEMORY;
    }
    if (complete) return NF_OK;
    nf_status status =
        get(c->model, "byte_fallback") ? get_flag(c, c->model, "byte_fallback", 0, &fallback) : NF_OK;
    if (status) return status;
    if (fallback) return unsupported(c, "model.byte_fallback", NULL);
    const json_t *unknown = get(c->model, "unk_token");
    if (!unknown) return NF_OK;
    const json_t *id =
        json_is_string(unknown) ? json_object_get(c->vocabulary, json_string_value(unknown)) : NULL;
    if (!id)
        return bad(c, "model.unk_token",
                   "it is needed (not every byte is in the vocabulary) but not in model.vocab");
    c->unknown = (uint32_t)json_integer_value(id) + 1;
    return NF_OK;
}

/* ---- merges ---- */

typedef struct merge_table {
    uint32_t *slots; /* 4 words each */
    uint32_t mask, probe;
} merge_table;

static uint32_t table_size(size_t n) {
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

/* A merge that is listed twice has its last rank, as in the reference. */
static nf_status insert_merge(compiler *c, merge_table *m, const uint32_t merge[4]) {
    uint32_t slot = nf_tok_hash_pair(merge[0], merge[1]) & m->mask;
    for (uint32_t probe = 0; probe <= NF_TOK_MAX_PROBE; probe++, slot = (slot + 1) & m->mask) {
        uint32_t *at = m->slots + (size_t)slot * 4;
        if (at[0] != NF_TOK_EMPTY && (at[0] != merge[0] || at[1] != merge[1])) continue;
        memcpy(at, merge, 16);
        if (probe > m->probe) m->probe = probe;
        return NF_OK;
    }
    return nf_fail(c->err, NF_ERR_LIMIT, "model.merges: too many merges share a hash value");
}

static const json_t *find_text(const compiler *c, const char *text, size_t n) {
    return json_object_getn(c->vocabulary, text, n);
}

/* Texts of merge i: "left right" or ["left", "right"]. */
static nf_status get_merge(compiler *c, const json_t *item, size_t i, const char *parts[2],
                           size_t lengths[2]) {
    const char *text = json_string_value(item), *space;
    if (json_is_array(item) && json_array_size(item) == 2) {
        for (size_t k = 0; k < 2; k++) {
            const json_t *part = json_array_get(item, k);
            parts[k] = json_string_value(part);
            lengths[k] = json_string_length(part);
        }
        if (parts[0] && parts[1]) return NF_OK;
    } else if (text && (space = memchr(text, ' ', json_string_length(item)))) {
        parts[0] = text;
        lengths[0] = (size_t)(space - text);
        parts[1] = space + 1;
        lengths[1] = json_string_length(item) - lengths[0] - 1;
        if (!memchr(parts[1], ' ', lengths[1])) return NF_OK;
    }
    return nf_fail(c->err, NF_ERR_FORMAT, "model.merges[%zu]: two texts expected", i);
}

static nf_status read_merge(compiler *c, merge_table *m, const json_t *item, size_t i, uint32_t rank,
                            nf_buf *joined) {
    const char *parts[2];
    size_t lengths[2];
    uint32_t merge[4] = {[2] = rank};
    nf_status status = get_merge(c, item, i, parts, lengths);
    if (status) return status;
    joined->len = 0;
    for (int k = 0; k < 3; k++) {
        if (k < 2 && nf_buf_append(joined, parts[k], lengths[k], c->err)) return NF_ERR_MEMORY;
        const json_t *id =
            k < 2 ? find_text(c, parts[k], lengths[k]) : find_text(c, joined->data, joined->len);
        if (!id)
            return nf_fail(c->err, NF_ERR_FORMAT, "model.merges[%zu]: '%.*s' is not in model.vocab", i,
                           (int)(k < 2 ? lengths[k] : joined->len), k < 2 ? parts[k] : joined->data);
        merge[k < 2 ? k : 3] = (uint32_t)json_integer_value(id);
    }
    return insert_merge(c, m, merge);
}

static nf_status read_merges(compiler *c) {
    const json_t *list = json_object_get(c->model, "merges");
    size_t n = json_array_size(list);
    nf_buf joined = {0};
    if (!json_is_array(list)) return bad(c, "model.merges", "a list expected");
    if (n > 4u * (NF_TOK_MAX_ID + 1u))
        return nf_fail(c->err, NF_ERR_LIMIT, "model.merges: %zu merges are too many", n);
    merge_table m = {.mask = table_size(n) - 1};
    size_t words = ((size_t)m.mask + 1) * 4;
    m.slots = nf_alloc(words, sizeof *m.slots, "merges", c->err);
    nf_status status = m.slots ? NF_OK : NF_ERR_MEMORY;
    if (m.slots) memset(m.slots, 0xff, words * sizeof *m.slots);
    uint32_t rank = 0;
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *item = json_array_get(list, i);
        const char *text = json_string_value(item);
        if (text && strncmp(text, "#version", 8) == 0) continue;
        status = read_merge(c, &m, item, i, rank++, &joined);
    }
    for (size_t i = 0; i < words && !status; i++)
        status = nf_buf_u32(&c->sections[NF_TOK_MERGES], m.slots[i], c->err);
    c->merge_probe = m.probe;
    free(m.slots);
    nf_buf_free(&joined);
    return status;
}

/* ---- added tokens ---- */

static nf_status read_added_flags(compiler *c, const json_t *item, added *a) {
    static const char *const names[] = {"special", "single_word", "lstrip", "rstrip"};
    for (unsigned i = 0; i < 4; i++) {
        bool flag;
        nf_status status = get_flag(c, item, names[i], -1, &flag);
        if (status) return status;
        a->flags |= flag ? 1u << i : 0;
    }
    return get_flag(c, item, "normalized", -1, &a->normalized);
}

/* The id in the file must be that of the vocabulary entry with this text, or be free. */
static nf_status check_added_id(compiler *c, const char *text, size_t n, uint32_t id) {
    const json_t *entry = memchr(text, 0, n) ? NULL : find_text(c, text, n);
    if (entry && (uint32_t)json_integer_value(entry) != id)
        return nf_fail(c->err, NF_ERR_FORMAT, "added token '%.64s' has id %u, but %lld in model.vocab", text,
                       id, (long long)json_integer_value(entry));
    if (entry || !c->tokens[id].flags) return NF_OK;
    uint32_t other = c->tokens[id].flags >> NF_TOK_ADDED_SHIFT;
    const added *a = other ? &c->added[other - 1] : NULL;
    if (a && a->content_n == n && memcmp(c->pool.data + a->content, text, n) == 0) return NF_OK;
    return nf_fail(c->err, NF_ERR_FORMAT, "added token '%.64s' has id %u, which is that of another token",
                   text, id);
}

static nf_status read_added(compiler *c, const json_t *item) {
    const json_t *content = json_object_get(item, "content");
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    added a = {.id = (uint32_t)json_integer_value(json_object_get(item, "id")), .content_n = (uint32_t)n};
    token *t = &c->tokens[a.id];
    bool mapped;
    nf_status status;
    if (n == 0) return NF_OK; /* as the reference: it matches nothing */
    if ((status = read_added_flags(c, item, &a)) || (status = check_added_id(c, text, n, a.id)) ||
        (status = add_bytes(c, text, n, &a.content)))
        return status;
    a.pattern = a.content;
    a.pattern_n = a.content_n;
    if (a.normalized && (c->flags & NF_TOK_NFC)) {
        a.pattern = (uint32_t)c->pool.len;
        if ((status = nf_unicode_nfc((const unsigned char *)text, n, &c->pool, c->err))) return status;
        a.pattern_n = (uint32_t)c->pool.len - a.pattern;
    }
    char *shown =
        nf_strndup(c->pool.data + a.pattern, a.pattern_n, c->err); /* the pool moves while it grows */
    if (!shown) return NF_ERR_MEMORY;
    status = add_mapped(c, shown, a.pattern_n, t, &mapped);
    free(shown);
    if (status) return status;
    t->flags |= NF_TOK_EXISTS | (a.flags & NF_TOK_ADDED_SPECIAL ? NF_TOK_SPECIAL : 0u);
    uint32_t index = t->flags >> NF_TOK_ADDED_SHIFT;
    if (index) { /* listed twice: the last one counts */
        c->added[index - 1] = a;
        return NF_OK;
    }
    if (nf_grow((void **)&c->added, &c->added_cap, c->n_added + 1, sizeof a, c->err)) return NF_ERR_MEMORY;
    c->added[c->n_added++] = a;
    t->flags |= (uint32_t)c->n_added << NF_TOK_ADDED_SHIFT;
    return NF_OK;
}

static int compare_added(const void *x, const void *y) {
    const added *a = x, *b = y;
    if (a->normalized != b->normalized) return a->normalized ? 1 : -1;
    int order = memcmp(a->text, b->text, a->pattern_n < b->pattern_n ? a->pattern_n : b->pattern_n);
    return order ? order : a->pattern_n < b->pattern_n ? -1 : a->pattern_n > b->pattern_n;
}

static nf_status write_added(compiler *c) {
    for (size_t i = 0; i < c->n_added; i++) c->added[i].text = c->pool.data + c->added[i].pattern;
    if (c->n_added) qsort(c->added, c->n_added, sizeof *c->added, compare_added);
    for (size_t i = 0; i < c->n_added; i++) {
        const added *a = &c->added[i];
        if (i && compare_added(a - 1, a) == 0)
            return nf_fail(c->err, NF_ERR_FORMAT, "added tokens %u and %u match the same text '%.*s'",
                           a[-1].id, a->id, (int)(a->pattern_n < 64 ? a->pattern_n : 64), a->text);
        token *t = &c->tokens[a->id];
        t->flags = (t->flags & 0xff) | (uint32_t)(i + 1) << NF_TOK_ADDED_SHIFT;
        const uint32_t words[] = {a->id, a->content, a->content_n, a->pattern, a->pattern_n, a->flags};
        for (int k = 0; k < 6; k++)
            if (nf_buf_u32(&c->sections[a->normalized ? NF_TOK_NORM : NF_TOK_RAW], words[k], c->err))
                return NF_ERR_MEMORY;
    }
    return NF_OK;
}

/* ---- normaliser, pre-tokeniser, decoder ---- */

static nf_status read_normalizer(compiler *c, const json_t *value, int depth) {
    if (!value || json_is_null(value)) return NF_OK;
    if (is_type(value, "NFC")) {
        c->flags |= NF_TOK_NFC;
        return NF_OK;
    }
    const json_t *list = json_object_get(value, "normalizers");
    if (!is_type(value, "Sequence") || !json_is_array(list) || depth > 4)
        return unsupported(c, "normalizer", value);
    for (size_t i = 0; i < json_array_size(list); i++) {
        nf_status status = read_normalizer(c, json_array_get(list, i), depth + 1);
        if (status) return status;
    }
    return NF_OK;
}

static nf_status add_step(compiler *c, uint32_t kind, uint32_t behaviour, bool invert,
                          const nf_buf *pattern) {
    uint32_t at = 0;
    if (c->n_steps++ == NF_TOK_MAX_STEPS)
        return nf_fail(c->err, NF_ERR_LIMIT, "pre_tokenizer: too many steps");
    nf_status status = pattern ? add_bytes(c, pattern->data, pattern->len, &at) : NF_OK;
    const uint32_t words[] = {kind, behaviour, invert, at, pattern ? (uint32_t)pattern->len : 0};
    for (int i = 0; i < 5 && !status; i++) status = nf_buf_u32(&c->sections[NF_TOK_STEPS], words[i], c->err);
    return status;
}

static nf_status add_split(compiler *c, const char *pattern, size_t n, bool literal, uint32_t behaviour,
                           bool invert) {
    nf_buf translated = {0};
    nf_status status = literal ? nf_tok_pattern_literal(pattern, n, &translated, c->err)
                               : nf_tok_pattern_translate(pattern, n, &translated, c->err);
    status = status ? nf_context(c->err, "pre_tokenizer")
                    : add_step(c, NF_TOK_STEP_SPLIT, behaviour, invert, &translated);
    nf_buf_free(&translated);
    return status;
}

static nf_status read_split(compiler *c, const json_t *value) {
    static const char *const behaviours[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                             "MergedWithNext"};
    const json_t *pattern = json_object_get(value, "pattern"), *text = json_object_get(pattern, "Regex");
    const char *name = json_string_value(json_object_get(value, "behavior"));
    bool literal = !text, invert;
    uint32_t behaviour = 0;
    if (literal) text = json_object_get(pattern, "String");
    if (!json_is_string(text)) return bad(c, "pre_tokenizer.pattern", "a Regex or a String expected");
    while (behaviour < NF_TOK_BEHAVIOURS && !(name && strcmp(name, behaviours[behaviour]) == 0)) behaviour++;
    if (behaviour == NF_TOK_BEHAVIOURS)
        return bad(c, "pre_tokenizer.behavior", "unknown behaviour of a Split");
    nf_status status = get_flag(c, value, "invert", -1, &invert);
    if (status) return status;
    return add_split(c, json_string_value(text), json_string_length(text), literal, behaviour, invert);
}

static nf_status read_byte_level(compiler *c, const json_t *value) {
    static const char gpt2[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool prefix, regex;
    nf_status status = get_flag(c, value, "add_prefix_space", -1, &prefix);
    if (!status) status = get_flag(c, value, "use_regex", 1, &regex);
    if (!status && prefix) status = add_step(c, NF_TOK_STEP_PREFIX_SPACE, 0, false, NULL);
    if (!status && regex) status = add_split(c, gpt2, sizeof gpt2 - 1, false, NF_TOK_ISOLATED, false);
    c->byte_level = true;
    return status;
}

static nf_status read_pre_tokenizer(compiler *c, const json_t *value, int depth) {
    bool flag;
    nf_status status;
    const json_t *list = json_object_get(value, "pretokenizers");
    if (is_type(value, "Sequence") && json_is_array(list) && depth < 5) {
        for (size_t i = 0; i < json_array_size(list); i++)
            if ((status = read_pre_tokenizer(c, json_array_get(list, i), depth + 1))) return status;
        return NF_OK;
    }
    if (c->byte_level) return unsupported(c, "pre_tokenizer behind ByteLevel", value);
    if (is_type(value, "ByteLevel")) return read_byte_level(c, value);
    if (is_type(value, "Split")) return read_split(c, value);
    if (!is_type(value, "Digits")) return unsupported(c, "pre_tokenizer", value);
    if ((status = get_flag(c, value, "individual_digits", -1, &flag))) return status;
    return add_split(c, "\\p{N}", 5, false, flag ? NF_TOK_ISOLATED : NF_TOK_CONTIGUOUS, false);
}

static nf_status check_decoder(compiler *c) {
    const json_t *decoder = get(c->root, "decoder"), *list = json_object_get(decoder, "decoders");
    if (!decoder) return bad(c, "decoder", "it is missing (ByteLevel expected)");
    if (is_type(decoder, "Sequence") && json_array_size(list) == 1) decoder = json_array_get(list, 0);
    return is_type(decoder, "ByteLevel") ? NF_OK : unsupported(c, "decoder", decoder);
}

/* ---- output ---- */

static nf_status insert_text(compiler *c, uint32_t *slots, uint32_t mask, uint32_t id, uint32_t at,
                             uint32_t n) {
    uint32_t slot = nf_tok_hash_text((const unsigned char *)c->pool.data + at, n) & mask;
    for (uint32_t probe = 0; probe <= NF_TOK_MAX_PROBE; probe++, slot = (slot + 1) & mask) {
        if (slots[slot]) continue;
        slots[slot] = id + 1;
        if (probe > c->text_probe) c->text_probe = probe;
        return NF_OK;
    }
    return nf_fail(c->err, NF_ERR_LIMIT, "model.vocab: too many texts share a hash value");
}

static nf_status write_texts(compiler *c) {
    size_t n = json_object_size(c->vocabulary) + 2 * c->n_added;
    uint32_t mask = table_size(n) - 1;
    uint32_t *slots = nf_calloc((size_t)mask + 1, sizeof *slots, "texts", c->err);
    nf_status status = slots ? NF_OK : NF_ERR_MEMORY;
    for (uint32_t id = 0; id < c->n_tokens && !status; id++) {
        const token *t = &c->tokens[id];
        if (!t->flags) continue;
        uint32_t index = t->flags >> NF_TOK_ADDED_SHIFT;
        const added *a = index ? &c->added[index - 1] : NULL;
        bool same =
            a && a->content_n == t->n && memcmp(c->pool.data + a->content, c->pool.data + t->at, t->n) == 0;
        if (a) status = insert_text(c, slots, mask, id, a->content, a->content_n);
        if (!status && !same) status = insert_text(c, slots, mask, id, t->at, t->n);
    }
    for (size_t i = 0; i <= mask && !status; i++)
        status = nf_buf_u32(&c->sections[NF_TOK_TEXT], slots[i], c->err);
    free(slots);
    return status;
}

static nf_status write_blob(compiler *c, nf_buf *out) {
    static const uint32_t record_bytes[NF_TOK_SECTIONS] = {12, 1, 4, 4, 16, 24, 24, 20};
    nf_buf *tokens = &c->sections[NF_TOK_TOKENS];
    for (uint32_t i = 0; i < c->n_tokens; i++)
        if (nf_buf_u32(tokens, c->tokens[i].at, c->err) || nf_buf_u32(tokens, c->tokens[i].n, c->err) ||
            nf_buf_u32(tokens, c->tokens[i].flags, c->err))
            return NF_ERR_MEMORY;
    nf_buf_free(&c->sections[NF_TOK_BYTES]);
    c->sections[NF_TOK_BYTES] = c->pool;
    c->pool = (nf_buf){0};
    const uint32_t head[] = {NF_TOK_VERSION, c->flags,      c->n_tokens,
                             c->unknown,     c->text_probe, c->merge_probe};
    nf_status status = nf_buf_append(out, NF_TOK_MAGIC, 8, c->err);
    for (int i = 0; i < 6 && !status; i++) status = nf_buf_u32(out, head[i], c->err);
    uint64_t offset = NF_TOK_HEADER_BYTES;
    for (int i = 0; i < NF_TOK_SECTIONS && !status; i++) {
        if (offset + c->sections[i].len > UINT32_MAX)
            return bad(c, "model", "the compiled tokenizer exceeds 4 GiB");
        if (nf_buf_u32(out, (uint32_t)offset, c->err)) return NF_ERR_MEMORY;
        status = nf_buf_u32(out, (uint32_t)(c->sections[i].len / record_bytes[i]), c->err);
        offset += c->sections[i].len;
    }
    for (int i = 0; i < NF_TOK_SECTIONS && !status; i++)
        status = nf_buf_append(out, c->sections[i].data, c->sections[i].len, c->err);
    return status;
}

static nf_status compile(compiler *c, nf_buf *out) {
    const json_t *version = get(c->root, "version"), *list = get(c->root, "added_tokens");
    nf_status status;
    if (version && !(json_is_string(version) && strcmp(json_string_value(version), "1.0") == 0))
        return unsupported(c, "version", version);
    c->model = json_object_get(c->root, "model");
    if (!json_is_object(c->model)) return bad(c, "model", "it is missing");
    if (list && !json_is_array(list)) return bad(c, "added_tokens", "a list expected");
    if ((status = check_model(c)) || (status = read_normalizer(c, get(c->root, "normalizer"), 0)) ||
        (status = read_pre_tokenizer(c, get(c->root, "pre_tokenizer"), 0)))
        return status;
    if (!c->byte_level) return bad(c, "pre_tokenizer", "no ByteLevel step");
    if ((status = check_decoder(c)) || (status = size_tokens(c, list)) || (status = read_vocabulary(c)) ||
        (status = read_byte_ids(c)) || (status = read_merges(c)))
        return status;
    for (size_t i = 0; i < json_array_size(list); i++)
        if ((status = read_added(c, json_array_get(list, i))))
            return nf_context(c->err, "added_tokens[%zu]", i);
    if ((status = write_added(c)) || (status = write_texts(c))) return status;
    return write_blob(c, out);
}

nf_status nf_tokenizer_compile(const char *json, size_t n, const char *file, nf_buf *out, nf_error *err) {
    json_error_t where;
    nf_error local = {0};
    compiler c = {.err = err ? err : &local};
    size_t before = out->len;
    json_t *root = json_loadb(json, n, JSON_ALLOW_NUL, &where);
    if (!root) return nf_fail(err, NF_ERR_FORMAT, "%s: line %d: %s", file, where.line, where.text);
    c.root = root;
    nf_status status = json_is_object(root) ? compile(&c, out) : bad(&c, "tokenizer", "an object expected");
    if (status) {
        out->len = before;
        if (out->data) out->data[before] = 0;
        status = nf_context(c.err, "%s", file);
    }
    json_decref(root);
    nf_buf_free(&c.pool);
    for (int i = 0; i < NF_TOK_SECTIONS; i++) nf_buf_free(&c.sections[i]);
    free(c.tokens);
    free(c.added);
    return status;
}
