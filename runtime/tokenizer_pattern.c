/*
 * Oniguruma patterns to PCRE2. Everything that the two read differently is either written in another way or
 * refused; what this file does not know is refused, so that a pattern that passes splits every text as the
 * reference does. It knows nothing of tokens.
 *
 * Known differences and what happens to them:
 *   \h \H \v    Oniguruma: hexadecimal digits, vertical tab; written out
 *   . ^ $       Oniguruma: any but \n; start and end of every line; written out
 *   {n,m}+      Oniguruma: repeated, not possessive; written as a group
 *   {,m}        written {0,m}                            {n}?  refused
 *   \w \d       Oniguruma: Alphabetic, M, Nd, Pc and (not in classes) \xb2 \xb3 \xb9 \xbc-\xbe; Nd; written
 * out \p{Han}     PCRE2: script extensions; written \p{sc:Han}
 *   (?i)        only at the start of a pattern or group, where both mean the rest of it; in it only ASCII, no
 * letter pair that is also one character (ss, st, ff, fi, fl), no \p{Lu}, \p{Ll}, \p{Lt} [a[b]], &&  set
 * operations: refused; [:alpha:], \b, \R, \X, \G, \K, back-references, conditions, (?x): refused new code
 * points  replaced before matching (nf_unicode_shadow); a literal or range that tells a code point from its
 *               stand-in is refused
 */
#include "runtime/tokenizer_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 100, MAX_REPEAT = 65535, AS_MANY_AS_POSSIBLE = -1 };

/* Oniguruma's \w holds the numbers of Latin-1 when it stands alone, and not when it stands in a class. The
 * reference's regex for single words has the two joiners instead. */
#define ALPHABETIC "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN_1_NUMBERS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
const char nf_tok_word_pattern[] = "\\A[" ALPHABETIC "\\x{200c}\\x{200d}]";

typedef struct parser {
    const unsigned char *text;
    size_t n, at;
    nf_buf *out;
    nf_error *err;
    int depth;
    uint32_t before; /* the literal just before this place, also across parentheses; 0: something else */
} parser;

static nf_status refuse(const parser *p, const char *what) {
    return nf_fail(p->err, NF_ERR_UNSUPPORTED, "pattern, byte %zu: %s", p->at, what);
}

static bool is_next(const parser *p, char c) {
    return p->at < p->n && p->text[p->at] == (unsigned char)c;
}

static bool starts(const parser *p, const char *text) {
    size_t n = strlen(text);
    return p->n - p->at >= n && memcmp(p->text + p->at, text, n) == 0;
}

static bool take(parser *p, const char *text) {
    if (!starts(p, text)) return false;
    p->at += strlen(text);
    return true;
}

static nf_status put(parser *p, const char *text) {
    return nf_buf_text(p->out, text, p->err);
}

/* A literal range (one code point when first == last) must not tell a code point from its stand-in. */
static nf_status put_range(parser *p, uint32_t first, uint32_t last) {
    size_t n;
    const nf_unicode_stand_in *items = nf_unicode_stand_ins(&n);
    for (size_t i = 0; i < n; i++) {
        uint32_t low = first > items[i].first ? first : items[i].first;
        uint32_t high = last < items[i].last ? last : items[i].last;
        bool some = low <= high, all = first <= items[i].first && last >= items[i].last;
        bool code = first <= items[i].code && items[i].code <= last;
        if (code ? !all : some)
            return refuse(p, "this range depends on code points newer than the regex library");
    }
    if (first == last && first < 0x80 && isalnum((int)first))
        return nf_buf_byte(p->out, (unsigned char)first, p->err);
    if (first == last) return nf_buf_printf(p->out, p->err, "\\x{%x}", first);
    return nf_buf_printf(p->out, p->err, "\\x{%x}-\\x{%x}", first, last);
}

static nf_status get_hex(parser *p, size_t min, size_t max, uint32_t *code) {
    size_t n = 0;
    *code = 0;
    for (; n < max && p->at < p->n && isxdigit(p->text[p->at]); n++, p->at++) {
        unsigned char c = p->text[p->at];
        *code = *code << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return n < min ? refuse(p, "hexadecimal digits expected") : NF_OK;
}

/* The literal behind a backslash (which was read): *code, or *found false when it is not a literal. */
static nf_status get_escaped_literal(parser *p, uint32_t *code, bool *found) {
    static const char names[] = "tnrfvae", values[] = "\t\n\r\f\v\a\x1b";
    *found = true;
    if (p->at == p->n) return refuse(p, "the pattern ends with a backslash");
    unsigned char c = p->text[p->at];
    const char *name = c ? strchr(names, c) : NULL;
    if (name) {
        *code = (unsigned char)values[name - names];
        p->at++;
        return NF_OK;
    }
    if (c == 'u') {
        p->at++;
        if (get_hex(p, 4, 4, code)) return NF_ERR_UNSUPPORTED;
    } else if (c == 'x') {
        p->at++;
        bool braces = take(p, "{");
        if (get_hex(p, 1, braces ? 8 : 2, code)) return NF_ERR_UNSUPPORTED;
        if (braces && !take(p, "}")) return refuse(p, "\\x{...} holds one code point");
        if (!braces && *code > 0x7f) return refuse(p, "\\xHH above 7F is a raw byte");
    } else if (c < 0x80 && isalnum(c)) {
        *found = false;
        return NF_OK;
    } else {
        p->at += nf_utf8_get(p->text + p->at, code);
        return NF_OK;
    }
    if (*code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return refuse(p, "not a code point");
    return NF_OK;
}

static const char categories[] =
    " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
    "C Cc Cf Co Cn ";
/* Scripts for which every code point was compared. */
static const char scripts[] =
    " Han Hiragana Katakana Hangul Latin Greek Hebrew Thai Bengali Tamil Telugu Armenian Georgian "
    "Lao Khmer Tibetan Ethiopic Bopomofo ";
static const char *const long_names[][2] = {
    {"Letter", "L"},           {"Mark", "M"},      {"Number", "N"}, {"Punctuation", "P"},
    {"Symbol", "S"},           {"Separator", "Z"}, {"Other", "C"},  {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"}};

static bool is_listed(const char *list, const char *name) {
    char padded[36];
    snprintf(padded, sizeof padded, " %s ", name);
    return strstr(list, padded) != NULL;
}

/* \p{NAME}, \P{NAME}, \p{^NAME}; `p` stands on the brace. */
static nf_status put_property(parser *p, bool negated, bool caseless) {
    char name[32];
    size_t n = 0;
    if (!take(p, "{")) return refuse(p, "\\p needs braces");
    if (take(p, "^")) negated = !negated;
    while (p->at < p->n && p->text[p->at] != '}' && n < sizeof name - 1) name[n++] = (char)p->text[p->at++];
    name[n] = 0;
    if (!take(p, "}") || strlen(name) != n || strchr(name, ' ')) return refuse(p, "unknown property");
    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (strcmp(name, long_names[i][0]) == 0) snprintf(name, sizeof name, "%s", long_names[i][1]);
    bool script = is_listed(scripts, name);
    if (!script && !is_listed(categories, name))
        return nf_fail(p->err, NF_ERR_UNSUPPORTED, "pattern, byte %zu: property '%s' is not supported", p->at,
                       name);
    if (caseless && is_listed(" Lu Ll Lt ", name))
        return refuse(p, "case-insensitive match of a letter case");
    return nf_buf_printf(p->out, p->err, "\\%c{%s%s}", negated ? 'P' : 'p', script ? "sc:" : "", name);
}

/* A class escape (\s \p{L} ...); the backslash was read. */
static nf_status put_class_escape(parser *p, bool in_class, bool caseless) {
    unsigned char c = p->text[p->at++];
    switch (c) {
    case 's':
        return put(p, "\\s");
    case 'S':
        return put(p, "\\S");
    case 'd':
        return put(p, "\\p{Nd}");
    case 'D':
        return put(p, "\\P{Nd}");
    case 'p':
        return put_property(p, false, caseless);
    case 'P':
        return put_property(p, true, caseless);
    case 'h':
        return put(p, in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]");
    case 'w':
        return put(p, in_class ? ALPHABETIC : "[" ALPHABETIC LATIN_1_NUMBERS "]");
    case 'H':
    case 'W':
        if (!in_class) return put(p, c == 'H' ? "[^0-9A-Fa-f]" : "[^" ALPHABETIC LATIN_1_NUMBERS "]");
        break;
    default:
        break;
    }
    return nf_fail(p->err, NF_ERR_UNSUPPORTED, "pattern, byte %zu: \\%c is not supported%s", p->at - 1, c,
                   in_class ? " in a character class" : "");
}

/* One literal of a class; *found is false when a class escape was written instead. */
static nf_status get_class_literal(parser *p, bool caseless, uint32_t *code, bool *found) {
    *found = true;
    if (p->at == p->n) return refuse(p, "a character class is not closed");
    if (starts(p, "[")) return refuse(p, "'[' in a character class (set operation or POSIX class)");
    if (starts(p, "&&")) return refuse(p, "'&&' in a character class");
    if (take(p, "\\")) {
        nf_status status = get_escaped_literal(p, code, found);
        if (status) return status;
        if (!*found) return put_class_escape(p, true, caseless);
    } else {
        p->at += nf_utf8_get(p->text + p->at, code);
    }
    return caseless && *code > 0x7f ? refuse(p, "case-insensitive match beyond ASCII") : NF_OK;
}

/* [...]; the opening bracket was read. */
static nf_status put_class(parser *p, bool caseless) {
    nf_status status = put(p, "[");
    if (!status && take(p, "^")) status = put(p, "^");
    if (status) return status;
    if (is_next(p, ']')) return refuse(p, "']' as the first character of a class");
    for (bool first = true; !take(p, "]"); first = false) {
        uint32_t from, to;
        bool literal, is_dash = is_next(p, '-');
        if ((status = get_class_literal(p, caseless, &from, &literal))) return status;
        if (is_dash && !first && !is_next(p, ']'))
            return refuse(p, "'-' inside a character class: write \\-");
        bool range = is_next(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']';
        if (range && (!literal || is_dash)) return refuse(p, "'-' next to a class: write \\-");
        if (!literal) continue;
        to = from;
        if (range) {
            p->at++;
            if ((status = get_class_literal(p, caseless, &to, &literal))) return status;
            if (!literal || to < from) return refuse(p, "not a range");
        }
        if ((status = put_range(p, from, to))) return status;
    }
    return put(p, "]");
}

static nf_status put_alternatives(parser *p, bool caseless);

/* (...); the parenthesis was read. *quantifiable tells groups from assertions. */
static nf_status put_group(parser *p, bool caseless, bool *quantifiable) {
    static const char *const heads[] = {"?:", "?>", "?=", "?!", "?<=", "?<!"};
    nf_status status = NF_OK;
    size_t i = 0;
    *quantifiable = true;
    if (++p->depth > MAX_DEPTH) return refuse(p, "groups are nested too deeply");
    if (take(p, "?i:")) {
        caseless = true;
        status = put(p, "(?i:");
    } else if (is_next(p, '?')) {
        while (i < 6 && !take(p, heads[i])) i++;
        if (i == 6) return refuse(p, "this kind of group is not supported");
        *quantifiable = i < 2;
        status = nf_buf_printf(p->out, p->err, "(%s", heads[i]);
    } else {
        status = put(p, "(?:"); /* captures are not used */
    }
    if (!status) status = put_alternatives(p, caseless);
    if (status) return status;
    if (!take(p, ")")) return refuse(p, "a group is not closed");
    p->depth--;
    return put(p, ")");
}

/* Puts what the output holds from `start` on into a repeated group. */
static nf_status repeat(parser *p, size_t start) {
    if (put(p, "(?:")) return NF_ERR_MEMORY;
    memmove(p->out->data + start + 3, p->out->data + start, p->out->len - 3 - start);
    memcpy(p->out->data + start, "(?:", 3);
    return put(p, ")+");
}

/* Copies a quantifier, if one follows. `start` is where its atom starts in the output. */
static nf_status put_quantifier(parser *p, size_t start, bool *found) {
    unsigned char c = p->at < p->n ? p->text[p->at] : 0;
    nf_status status = NF_OK;
    *found = c == '*' || c == '+' || c == '?' || c == '{';
    if (!*found) return NF_OK;
    p->at++;
    if (c != '{') {
        status = nf_buf_byte(p->out, c, p->err);
        if (!status && take(p, "?"))
            status = put(p, "?");
        else if (!status && take(p, "+"))
            status = put(p, "+");
        return status;
    }
    long low = 0, high = AS_MANY_AS_POSSIBLE;
    size_t digits = p->at;
    for (; p->at < p->n && isdigit(p->text[p->at]) && low <= MAX_REPEAT; p->at++)
        low = low * 10 + (p->text[p->at] - '0');
    bool has_low = p->at > digits, comma = take(p, ",");
    digits = p->at;
    if (comma && !is_next(p, '}')) high = 0;
    for (; p->at < p->n && isdigit(p->text[p->at]) && high <= MAX_REPEAT; p->at++)
        high = high * 10 + (p->text[p->at] - '0');
    if (!comma) high = low;
    if (!take(p, "}") || (!has_low && p->at == digits + 1) || low > MAX_REPEAT || high > MAX_REPEAT ||
        (high >= 0 && high < low))
        return refuse(p, "not a repetition: write \\{ for a brace");
    if (high < 0)
        status = nf_buf_printf(p->out, p->err, "{%ld,}", low);
    else
        status = nf_buf_printf(p->out, p->err, "{%ld,%ld}", low, high);
    if (status || !take(p, "?")) {
        if (status || !take(p, "+")) return status;
        return repeat(p, start);
    }
    if (!comma) return refuse(p, "{n}? is not supported");
    return put(p, "?");
}

/* Letter pairs that full case folding makes of one character. */
static bool is_folded_pair(uint32_t a, uint32_t b) {
    if (a > 0x7f || b > 0x7f) return false;
    int x = tolower((int)a), y = tolower((int)b);
    return (x == 's' && (y == 's' || y == 't')) || (x == 'f' && (y == 'f' || y == 'i' || y == 'l'));
}

/* One atom. *literal is its code point, or 0 when it is something else. */
static nf_status put_atom(parser *p, bool caseless, uint32_t *literal, bool *quantifiable) {
    uint32_t code;
    bool found;
    nf_status status;
    *literal = 0;
    *quantifiable = true;
    if (take(p, "(")) return put_group(p, caseless, quantifiable);
    if (take(p, "[")) return put_class(p, caseless);
    if (take(p, ".")) return put(p, "[^\\n]");
    if (strchr("^$", p->text[p->at]) && p->text[p->at]) {
        *quantifiable = false;
        return put(p, p->text[p->at++] == '^' ? "(?:\\A|(?<=\\n)(?!\\z))" : "(?=\\n|\\z)");
    }
    if (p->text[p->at] && strchr("*+?{", p->text[p->at]))
        return refuse(p, "a quantifier without anything to repeat");
    if (starts(p, "\\A") || starts(p, "\\z")) {
        *quantifiable = false;
        p->at += 2;
        return put(p, p->text[p->at - 1] == 'A' ? "\\A" : "\\z");
    }
    if (take(p, "\\")) {
        if ((status = get_escaped_literal(p, &code, &found))) return status;
        if (!found) return put_class_escape(p, false, caseless);
    } else {
        p->at += nf_utf8_get(p->text + p->at, &code);
    }
    if (caseless && code > 0x7f) return refuse(p, "case-insensitive match beyond ASCII");
    *literal = code;
    return put_range(p, code, code);
}

static nf_status put_sequence(parser *p, bool caseless) {
    while (p->at < p->n && !is_next(p, '|') && !is_next(p, ')')) {
        size_t start = p->out->len;
        uint32_t literal;
        bool group = is_next(p, '('), quantifiable, quantified;
        nf_status status = put_atom(p, caseless, &literal, &quantifiable);
        if (!status && caseless && is_folded_pair(p->before, literal))
            status = refuse(p, "case-insensitive match of a letter pair that is also one character");
        if (!status) status = put_quantifier(p, start, &quantified);
        if (!status && quantified && !quantifiable) status = refuse(p, "a quantifier behind an assertion");
        if (status) return status;
        bool again = p->at < p->n && p->text[p->at] && strchr("*+?{", p->text[p->at]);
        if (quantified && again) return refuse(p, "a quantifier behind a quantifier");
        if (quantified || !group) p->before = quantified ? 0 : literal;
    }
    return NF_OK;
}

static nf_status put_alternatives(parser *p, bool caseless) {
    /* (?i) holds up to the end of the group; put around it, it means the same in both. */
    bool option = take(p, "(?i)");
    nf_status status = option ? put(p, "(?i:") : NF_OK;
    if (!status) status = put_sequence(p, caseless || option);
    while (!status && take(p, "|")) {
        status = put(p, "|");
        p->before = 0;
        if (!status) status = put_sequence(p, caseless || option);
    }
    return status || !option ? status : put(p, ")");
}

nf_status nf_tok_pattern_translate(const char *pattern, size_t n, nf_buf *out, nf_error *err) {
    parser p = {.text = (const unsigned char *)pattern, .n = n, .out = out, .err = err};
    size_t bad, start = out->len;
    if (!nf_utf8_valid(p.text, n, &bad))
        return nf_fail(err, NF_ERR_FORMAT, "pattern, byte %zu: invalid UTF-8", bad);
    nf_status status = put_alternatives(&p, false);
    if (!status && p.at < n) status = refuse(&p, "')' without '('");
    if (!status && out->len - start > NF_TOK_MAX_PATTERN) status = refuse(&p, "the pattern is too long");
    pcre2_code *code = NULL;
    if (!status)
        status = nf_tok_pattern_compile((unsigned char *)out->data + start, out->len - start, &code, err);
    pcre2_code_free(code);
    return status;
}

nf_status nf_tok_pattern_literal(const char *text, size_t n, nf_buf *out, nf_error *err) {
    parser p = {.text = (const unsigned char *)text, .n = n, .out = out, .err = err};
    nf_status status = NF_OK;
    size_t bad, start = out->len;
    if (!nf_utf8_valid(p.text, n, &bad))
        return nf_fail(err, NF_ERR_FORMAT, "pattern, byte %zu: invalid UTF-8", bad);
    while (p.at < n && !status) {
        uint32_t code;
        p.at += nf_utf8_get(p.text + p.at, &code);
        status = put_range(&p, code, code);
    }
    if (!status && out->len - start > NF_TOK_MAX_PATTERN) status = refuse(&p, "the pattern is too long");
    return status;
}

nf_status nf_tok_pattern_compile(const unsigned char *pattern, size_t n, pcre2_code **out, nf_error *err) {
    int number = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return nf_fail(err, NF_ERR_MEMORY, "out of memory for a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *out = pcre2_compile(pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number, &at, context);
    pcre2_compile_context_free(context);
    if (*out) return NF_OK;
    unsigned char message[160] = "?";
    pcre2_get_error_message(number, message, sizeof message);
    return nf_fail(err, number == PCRE2_ERROR_HEAP_FAILED ? NF_ERR_MEMORY : NF_ERR_UNSUPPORTED,
                   "pattern refused by PCRE2 at byte %zu of its translated form: %s", (size_t)at,
                   (const char *)message);
}
