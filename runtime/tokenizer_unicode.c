/*
 * Unicode for the tokenizer: UTF-8, NFC, white space, and the differences between the Unicode versions of
 * utf8proc, PCRE2 and the reference (docs/tokenizer.md). The tables were measured by asking the reference
 * about every code point; tests/python/test_tokenizer.py asks again.
 */
#include "runtime/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* New in Unicode 15.0, 15.1 and 16.0 (PCRE2 10.42 has 14.0); U+180E, which PCRE2 counts as \s; U+1171E, whose
 * category changed. Oniguruma has 16.0. */
static const nf_unicode_stand_in stand_ins[] = {
    {0x0897, 0x0897, 0x0898},    {0x0cf3, 0x0cf3, 0x0d02},    {0x0ece, 0x0ece, 0x0ecd},
    {0x180e, 0x180e, 0x200b},    {0x1b4e, 0x1b4f, 0x1b5a},    {0x1b7f, 0x1b7f, 0x1b7e},
    {0x1c89, 0x1c89, 0x2102},    {0x1c8a, 0x1c8a, 0x1c88},    {0x2427, 0x2429, 0x2426},
    {0x2ffc, 0x2fff, 0x2ffb},    {0x31e4, 0x31e5, 0x31e3},    {0x31ef, 0x31ef, 0x31e3},
    {0xa7cb, 0xa7cc, 0xa7c9},    {0xa7cd, 0xa7cd, 0xa7ca},    {0xa7da, 0xa7da, 0xa7d8},
    {0xa7db, 0xa7db, 0xa7d9},    {0xa7dc, 0xa7dc, 0xa7d8},    {0x105c0, 0x105f3, 0x10600},
    {0x10d40, 0x10d49, 0x10d39}, {0x10d4a, 0x10d4d, 0x10d23}, {0x10d4e, 0x10d4e, 0x16b40},
    {0x10d4f, 0x10d4f, 0x10d23}, {0x10d50, 0x10d65, 0x10cb2}, {0x10d69, 0x10d6d, 0x10d27},
    {0x10d6e, 0x10d6e, 0x10ead}, {0x10d6f, 0x10d6f, 0x16b40}, {0x10d70, 0x10d85, 0x10cf2},
    {0x10d8e, 0x10d8f, 0x1d6c1}, {0x10ec2, 0x10ec4, 0x10eb1}, {0x10efc, 0x10eff, 0x10f46},
    {0x1123f, 0x11240, 0x1122b}, {0x11241, 0x11241, 0x1123e}, {0x11380, 0x11389, 0x11361},
    {0x1138b, 0x1138b, 0x11361}, {0x1138e, 0x1138e, 0x11361}, {0x11390, 0x113b5, 0x11361},
    {0x113b7, 0x113b7, 0x11400}, {0x113b8, 0x113ba, 0x11363}, {0x113bb, 0x113c0, 0x11374},
    {0x113c2, 0x113c2, 0x11363}, {0x113c5, 0x113c5, 0x11363}, {0x113c7, 0x113ca, 0x11363},
    {0x113cc, 0x113cd, 0x11363}, {0x113ce, 0x113ce, 0x11374}, {0x113cf, 0x113cf, 0x11435},
    {0x113d0, 0x113d0, 0x11374}, {0x113d1, 0x113d1, 0x11400}, {0x113d2, 0x113d2, 0x11374},
    {0x113d3, 0x113d3, 0x11400}, {0x113d4, 0x113d5, 0x1144b}, {0x113d7, 0x113d8, 0x1144b},
    {0x113e1, 0x113e2, 0x11438}, {0x116d0, 0x116e3, 0x116c9}, {0x1171e, 0x1171e, 0x11720},
    {0x11b00, 0x11b09, 0x11aa2}, {0x11bc0, 0x11be0, 0x11c00}, {0x11be1, 0x11be1, 0x11c41},
    {0x11bf0, 0x11bf9, 0x11c50}, {0x11f00, 0x11f01, 0x11ef4}, {0x11f02, 0x11f02, 0x11ef2},
    {0x11f03, 0x11f03, 0x11ef6}, {0x11f04, 0x11f10, 0x11ef2}, {0x11f12, 0x11f33, 0x11ef2},
    {0x11f34, 0x11f35, 0x11ef6}, {0x11f36, 0x11f3a, 0x11ef4}, {0x11f3e, 0x11f3f, 0x11ef6},
    {0x11f40, 0x11f40, 0x11ef4}, {0x11f41, 0x11f41, 0x11ef6}, {0x11f42, 0x11f42, 0x11ef4},
    {0x11f43, 0x11f4f, 0x11ef8}, {0x11f50, 0x11f59, 0x11da9}, {0x11f5a, 0x11f5a, 0x11ef4},
    {0x1342f, 0x1342f, 0x1342e}, {0x13439, 0x1343f, 0x13438}, {0x13440, 0x13440, 0x11ef4},
    {0x13441, 0x13446, 0x1342e}, {0x13447, 0x13455, 0x11ef4}, {0x13460, 0x143fa, 0x1342e},
    {0x16100, 0x1611d, 0x16800}, {0x1611e, 0x16129, 0x16af0}, {0x1612a, 0x1612c, 0x16f51},
    {0x1612d, 0x1612f, 0x16af0}, {0x16130, 0x16139, 0x16a60}, {0x16d40, 0x16d42, 0x16b43},
    {0x16d43, 0x16d6a, 0x16b8f}, {0x16d6b, 0x16d6c, 0x16b43}, {0x16d6d, 0x16d6f, 0x16e97},
    {0x16d70, 0x16d79, 0x16b59}, {0x18cff, 0x18cff, 0x18d00}, {0x1b132, 0x1b132, 0x1b11f},
    {0x1b155, 0x1b155, 0x1b164}, {0x1cc00, 0x1ccef, 0x1cf50}, {0x1ccf0, 0x1ccf9, 0x1d7ce},
    {0x1cd00, 0x1ceb3, 0x1cf50}, {0x1d2c0, 0x1d2d3, 0x1d2e0}, {0x1df25, 0x1df2a, 0x1df1e},
    {0x1e030, 0x1e06d, 0x1e137}, {0x1e08f, 0x1e08f, 0x1e02a}, {0x1e4d0, 0x1e4ea, 0x1e2eb},
    {0x1e4eb, 0x1e4eb, 0x1e13d}, {0x1e4ec, 0x1e4ef, 0x1e2ef}, {0x1e4f0, 0x1e4f9, 0x1e2f9},
    {0x1e5d0, 0x1e5ed, 0x1e800}, {0x1e5ee, 0x1e5ef, 0x1e8d0}, {0x1e5f0, 0x1e5f0, 0x1e800},
    {0x1e5f1, 0x1e5fa, 0x1e2f9}, {0x1e5ff, 0x1e5ff, 0x1e95e}, {0x1f6dc, 0x1f6dc, 0x1f6dd},
    {0x1f774, 0x1f776, 0x1f773}, {0x1f77b, 0x1f77f, 0x1f780}, {0x1f7d9, 0x1f7d9, 0x1f7d8},
    {0x1f8b2, 0x1f8bb, 0x1f8b1}, {0x1f8c0, 0x1f8c1, 0x1f8b1}, {0x1fa75, 0x1fa77, 0x1fa74},
    {0x1fa87, 0x1fa89, 0x1fa86}, {0x1fa8f, 0x1fa8f, 0x1fa90}, {0x1faad, 0x1faaf, 0x1faac},
    {0x1fabb, 0x1fabf, 0x1faba}, {0x1fac6, 0x1fac6, 0x1fac5}, {0x1face, 0x1facf, 0x1fad0},
    {0x1fada, 0x1fadc, 0x1fad9}, {0x1fadf, 0x1fadf, 0x1fae0}, {0x1fae8, 0x1fae9, 0x1fae7},
    {0x1faf7, 0x1faf8, 0x1faf6}, {0x1fbcb, 0x1fbef, 0x1fbca}, {0x2b739, 0x2b739, 0x2b738},
    {0x2ebf0, 0x2ee5d, 0x2ebe0}, {0x31350, 0x323af, 0x3134a},
};

/* Code points that are unassigned in the reference's normaliser but have a combining class, a decomposition
 * or a part in one in later Unicode versions: nothing is reordered or composed across them. And U+11A7, which
 * utf8proc takes for a trailing consonant and drops. */
static const struct {
    uint32_t first, last;
} barriers[] = {
    {0x07fd, 0x07fd},   {0x0897, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},   {0x0c3c, 0x0c3c},
    {0x0cf3, 0x0cf3},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x0ece, 0x0ece},   {0x11a7, 0x11a7},
    {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x105c0, 0x105f3},
    {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efc, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x11380, 0x11389},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113c0}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d5}, {0x113d7, 0x113d8}, {0x113e1, 0x113e2},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f00, 0x11f01},
    {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16100, 0x16139}, {0x16d40, 0x16d79}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
};

enum {
    COUNT_STAND_INS = sizeof stand_ins / sizeof *stand_ins,
    COUNT_BARRIERS = sizeof barriers / sizeof *barriers
};

nf_utf8_kind nf_utf8_scan(const unsigned char *p, size_t n, size_t *len) {
    unsigned char lead = p[0], low = 0x80, high = 0xbf;
    size_t need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    *len = 1;
    if (lead < 0x80) return NF_UTF8_CHARACTER;
    if (lead < 0xc2 || lead > 0xf4) return NF_UTF8_ILL_FORMED;
    if (lead == 0xe0) low = 0xa0;  /* shorter forms exist */
    if (lead == 0xed) high = 0x9f; /* surrogates */
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f; /* beyond U+10FFFF */
    for (; *len < need; ++*len) {
        if (*len == n) return NF_UTF8_PARTIAL;
        if (p[*len] < low || p[*len] > high) return NF_UTF8_ILL_FORMED;
        low = 0x80;
        high = 0xbf;
    }
    return NF_UTF8_CHARACTER;
}

size_t nf_utf8_get(const unsigned char *p, uint32_t *code) {
    uint32_t c = p[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (c < 0xe0) {
        *code = (c & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (c < 0xf0) {
        *code = (c & 0xf) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        return 3;
    }
    *code = (c & 7) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return 4;
}

static size_t encode(uint32_t c, unsigned char out[4]) {
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
    out[0] = (unsigned char)((0xf00 >> n) | c);
    return n;
}

nf_status nf_utf8_put(nf_buf *out, uint32_t code, nf_error *err) {
    unsigned char bytes[4];
    return nf_buf_append(out, bytes, encode(code, bytes), err);
}

bool nf_utf8_valid(const unsigned char *p, size_t n, size_t *bad) {
    for (size_t i = 0, len; i < n; i += len) {
        if (nf_utf8_scan(p + i, n - i, &len) == NF_UTF8_CHARACTER) continue;
        *bad = i;
        return false;
    }
    return true;
}

bool nf_unicode_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

bool nf_unicode_is_plain(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] >= 0xcc) return false;
    return true;
}

static bool is_barrier(uint32_t code) {
    size_t low = 0, high = COUNT_BARRIERS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > barriers[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT_BARRIERS && code >= barriers[low].first;
}

/* Code points of one segment of a text being normalised, with their combining classes. */
typedef struct segment {
    utf8proc_int32_t *codes, *sorted;
    uint8_t *classes;
    size_t n, codes_cap, sorted_cap, classes_cap;
} segment;

static nf_status segment_add(segment *s, uint32_t code, nf_error *err) {
    utf8proc_int32_t parts[8];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, parts, 8,
                                                 UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (n < 1 || n > 8)
        return nf_fail(err, NF_ERR_INTERNAL, "tokenizer: utf8proc cannot decompose U+%04X", code);
    if (nf_grow((void **)&s->codes, &s->codes_cap, s->n + 8, sizeof *s->codes, err) ||
        nf_grow((void **)&s->classes, &s->classes_cap, s->n + 8, sizeof *s->classes, err))
        return NF_ERR_MEMORY;
    for (utf8proc_ssize_t i = 0; i < n; i++, s->n++) {
        s->codes[s->n] = parts[i];
        s->classes[s->n] = (uint8_t)utf8proc_get_property(parts[i])->combining_class;
    }
    return NF_OK;
}

/* Stable order by combining class of codes[from..to), all non-starters. A run of a million marks takes the
 * counting sort: insertion would be quadratic. */
static nf_status order_marks(segment *s, size_t from, size_t to, nf_error *err) {
    if (to - from <= 24) {
        for (size_t i = from + 1; i < to; i++) {
            utf8proc_int32_t code = s->codes[i];
            uint8_t class = s->classes[i];
            size_t j = i;
            for (; j > from && s->classes[j - 1] > class; j--) {
                s->codes[j] = s->codes[j - 1];
                s->classes[j] = s->classes[j - 1];
            }
            s->codes[j] = code;
            s->classes[j] = class;
        }
        return NF_OK;
    }
    if (nf_grow((void **)&s->sorted, &s->sorted_cap, to - from, sizeof *s->sorted, err)) return NF_ERR_MEMORY;
    size_t at[257] = {0};
    for (size_t i = from; i < to; i++) at[s->classes[i] + 1u]++;
    for (size_t c = 1; c < 257; c++) at[c] += at[c - 1];
    for (size_t i = from; i < to; i++) s->sorted[at[s->classes[i]]++] = s->codes[i];
    memcpy(s->codes + from, s->sorted, (to - from) * sizeof *s->sorted);
    return NF_OK; /* classes are not needed any more */
}

static nf_status segment_flush(segment *s, nf_buf *out, nf_error *err) {
    if (!s->n) return NF_OK;
    for (size_t i = 0; i < s->n;) {
        size_t from = i;
        while (i < s->n && s->classes[i]) i++;
        if (i - from > 1 && order_marks(s, from, i, err)) return NF_ERR_MEMORY;
        if (i == from) i++;
    }
    utf8proc_ssize_t n =
        utf8proc_normalize_utf32(s->codes, (utf8proc_ssize_t)s->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n < 0) return nf_fail(err, NF_ERR_INTERNAL, "tokenizer: utf8proc: %s", utf8proc_errmsg(n));
    s->n = 0;
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (nf_utf8_put(out, (uint32_t)s->codes[i], err)) return NF_ERR_MEMORY;
    return NF_OK;
}

nf_status nf_unicode_nfc(const unsigned char *p, size_t n, nf_buf *out, nf_error *err) {
    segment s = {0};
    nf_status status = nf_buf_reserve(out, n, err);
    for (size_t i = 0; i < n && !status;) {
        /* ASCII composes with nothing before it, and only its last character with what follows. */
        size_t ascii = i;
        while (ascii < n && p[ascii] < 0x80) ascii++;
        if (ascii > i + 1 || (ascii > i && ascii == n)) {
            size_t copied = ascii == n ? ascii - i : ascii - i - 1;
            status = segment_flush(&s, out, err);
            if (!status) status = nf_buf_append(out, p + i, copied, err);
            i += copied;
            continue;
        }
        uint32_t code;
        i += nf_utf8_get(p + i, &code);
        if (!is_barrier(code)) {
            status = segment_add(&s, code, err);
            continue;
        }
        status = segment_flush(&s, out, err);
        if (!status) status = nf_utf8_put(out, code, err);
    }
    if (!status) status = segment_flush(&s, out, err);
    free(s.codes);
    free(s.sorted);
    free(s.classes);
    return status;
}

const nf_unicode_stand_in *nf_unicode_stand_ins(size_t *n) {
    *n = COUNT_STAND_INS;
    return stand_ins;
}

static uint32_t stand_in(uint32_t code) {
    size_t low = 0, high = COUNT_STAND_INS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > stand_ins[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT_STAND_INS && code >= stand_ins[low].first ? stand_ins[low].code : code;
}

nf_status nf_unicode_shadow(const unsigned char *text, size_t n, nf_buf *shadow, bool *changed,
                            nf_error *err) {
    *changed = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t code;
        len = nf_utf8_get(text + i, &code);
        if (code < stand_ins[0].first) continue;
        uint32_t other = stand_in(code);
        if (other == code) continue;
        if (!*changed) {
            shadow->len = 0;
            if (nf_buf_append(shadow, text, n, err)) return NF_ERR_MEMORY;
            *changed = true;
        }
        encode(other, (unsigned char *)shadow->data + i);
    }
    return NF_OK;
}

/* Printable Latin-1 bytes stand for themselves, the other 68 for U+0100.. in order. */
static bool is_printable(unsigned char byte) {
    return (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
}

uint32_t nf_tok_byte_to_code(unsigned char byte) {
    if (is_printable(byte)) return byte;
    return byte <= 0x20 ? 0x100u + byte : byte <= 0xa0 ? 0x121u + byte - 0x7fu : 0x143u;
}

int nf_tok_code_to_byte(uint32_t code) {
    if (code < 0x100) return is_printable((unsigned char)code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}
