/* Tokens of a template's tags, and what the grammar builds its tree with. */
#include "runtime/template_parse_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noreturn, format(printf, 3, 4))) void tplp_fail(parser *p, nf_status status,
                                                               const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = nf_fail(p->err, status, "line %d: %s", p->line, text);
    longjmp(p->fail, 1);
}

void *tplp_make(parser *p, size_t n) {
    void *m = tpl_alloc(&p->t->arena, n);
    if (!m) tplp_fail(p, NF_ERR_MEMORY, "out of memory for the template");
    return m;
}

tpl_node *tplp_node(parser *p, tpl_node_kind kind) {
    tpl_node *n = tplp_make(p, sizeof *n);
    n->kind = kind;
    n->line = p->line;
    return n;
}

void tplp_push(parser *p, tpl_node *to, tpl_node *item) {
    if ((to->n & (to->n - 1)) == 0) { /* grow at powers of two */
        tpl_node **list = tplp_make(p, (to->n ? to->n * 2 : 1) * sizeof *list);
        if (to->n) memcpy(list, to->list, to->n * sizeof *list);
        to->list = list;
    }
    to->list[to->n++] = item;
}

void tplp_push_named(parser *p, tpl_node *to, tpl_str name, tpl_node *value) {
    if ((to->n_named & (to->n_named - 1)) == 0) {
        size_t cap = to->n_named ? to->n_named * 2 : 1;
        tpl_str *names = tplp_make(p, cap * sizeof *names);
        tpl_node **named = tplp_make(p, cap * sizeof *named);
        if (to->n_named)
            memcpy(names, to->names, to->n_named * sizeof *names),
                memcpy(named, to->named, to->n_named * sizeof *named);
        to->names = names;
        to->named = named;
    }
    to->names[to->n_named] = name;
    to->named[to->n_named++] = value;
}

/* ---- tokens ---- */

static bool name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}
static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static int hex_digits(parser *p, const char **s, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        char c = *s < p->end ? **s : 0;
        int v = digit(c)               ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (v < 0) SYNTAX(p, "bad escape in a string");
        *out = *out << 4 | (uint32_t)v;
    }
    return 0;
}

static void put_escape(parser *p, const char **s, nf_buf *out) {
    static const char plain[] = "\\'\"abfnrtv", value[] = "\\'\"\a\b\f\n\r\t\v";
    char c = *(*s)++;
    uint32_t code;
    const char *at = c ? strchr(plain, c) : NULL;
    nf_status status = NF_OK;
    if (c == '\n') return; /* a continued line */
    if (at)
        status = nf_buf_byte(out, (unsigned char)value[at - plain], NULL);
    else if (c == 'x' || c == 'u' || c == 'U') {
        hex_digits(p, s, c == 'x' ? 2 : c == 'u' ? 4 : 8, &code);
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) || !tpl_put(code, out, NULL))
            status = NF_ERR_MEMORY;
    } else if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *s < p->end && **s >= '0' && **s <= '7'; i++)
            code = code * 8 + (uint32_t)(*(*s)++ - '0');
        if (!tpl_put(code, out, NULL)) status = NF_ERR_MEMORY;
    } else if (c == 'N') {
        UNSUPPORTED(p, "named characters (\\N{...}) in strings");
    } else if (nf_buf_byte(out, '\\', NULL) ||
               nf_buf_byte(out, (unsigned char)c, NULL)) { /* Python keeps unknown escapes */
        status = NF_ERR_MEMORY;
    }
    if (status) {
        nf_buf_free(out);
        SYNTAX(p, "bad escape in a string");
    }
}

static void read_string(parser *p) {
    char quote = *p->p;
    nf_buf text = {0};
    const char *s = p->p + 1;
    while (s < p->end && *s != quote) {
        if (*s == '\n') p->line++;
        if (*s == '\\' && s + 1 < p->end) {
            s++;
            put_escape(p, &s, &text);
        } else if (nf_buf_byte(&text, (unsigned char)*s++, NULL)) {
            nf_buf_free(&text);
            tplp_fail(p, NF_ERR_MEMORY, "out of memory for a string");
        }
    }
    if (s >= p->end) {
        nf_buf_free(&text);
        SYNTAX(p, "a string does not end");
    }
    char *copy = tpl_alloc(&p->t->arena, text.len + 1);
    if (copy && text.len) memcpy(copy, text.data, text.len);
    p->tok = (token){.kind = K_STR, .text = {copy, text.len}, .line = p->line};
    nf_buf_free(&text);
    if (!copy) tplp_fail(p, NF_ERR_MEMORY, "out of memory for a string");
    p->p = s + 1;
}

static void read_number(parser *p) {
    char digits[64];
    size_t n = 0;
    bool is_float = false;
    const char *s = p->p;
    if (*s == '0' && s + 1 < p->end && strchr("xXoObB", s[1])) UNSUPPORTED(p, "numbers that are not decimal");
    for (; s < p->end && n < sizeof digits - 1; s++) {
        if (digit(*s))
            digits[n++] = *s;
        else if (*s == '_' && s + 1 < p->end && digit(s[1]))
            continue;
        else if (*s == '.' && !is_float && s + 1 < p->end && digit(s[1]))
            is_float = true, digits[n++] = *s;
        else if ((*s == 'e' || *s == 'E') && s + 1 < p->end &&
                 (digit(s[1]) || ((s[1] == '-' || s[1] == '+') && s + 2 < p->end && digit(s[2])))) {
            is_float = true;
            digits[n++] = *s;
            if (!digit(s[1])) digits[n++] = *++s;
        } else
            break;
    }
    digits[n] = '\0';
    errno = 0;
    p->tok = (token){.kind = is_float ? K_FLOAT : K_INT, .line = p->line};
    if (is_float)
        p->tok.f = strtod(digits, NULL);
    else
        p->tok.i = strtoll(digits, NULL, 10);
    if (errno == ERANGE && !is_float) UNSUPPORTED(p, "a whole number beyond 64 bits");
    p->p = s;
}

bool tplp_at(const parser *p, const char *text) {
    size_t n = strlen(text);
    return (size_t)(p->end - p->p) >= n && !memcmp(p->p, text, n);
}

/* Reads the next token of the tag. At the tag's end: K_END, and what follows the tag is prepared. */
void tplp_next(parser *p) {
    while (p->p < p->end && strchr(" \t\n\r\f\v", *p->p)) p->line += *p->p++ == '\n';
    if (p->p >= p->end) SYNTAX(p, "a tag does not end");
    char marked[4] = {0, p->tag_end[0], p->tag_end[1], 0};
    marked[0] = '-';
    bool minus = tplp_at(p, marked);
    marked[0] = '+';
    bool plus = p->tag_end[0] == '%' && tplp_at(p, marked);
    if (!p->open && (minus || plus || tplp_at(p, p->tag_end))) {
        p->p += 2 + (minus || plus);
        p->tok = (token){.kind = K_END, .line = p->line};
        p->trim_next = minus;
        p->newline_next = p->tag_end[0] == '%' && !minus && !plus;
        return;
    }
    char c = *p->p;
    if (name_start(c)) {
        const char *s = p->p;
        while (s < p->end && (name_start(*s) || digit(*s))) s++;
        p->tok = (token){.kind = K_NAME, .text = {p->p, (size_t)(s - p->p)}, .line = p->line};
        p->p = s;
    } else if (digit(c)) {
        read_number(p);
    } else if (c == '"' || c == '\'') {
        read_string(p);
    } else {
        static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
        size_t n = 1;
        for (int i = 0; i < 6; i++)
            if (tplp_at(p, two[i])) n = 2;
        if (n == 1 && !strchr("+-*/%~<>=.:|,()[]{}", c)) SYNTAX(p, "unexpected character '%c'", c);
        if (strchr("([{", c)) p->open++;
        if (strchr(")]}", c) && p->open) p->open--;
        p->tok = (token){.kind = K_OP, .text = {p->p, n}, .line = p->line};
        p->p += n;
    }
}

bool tplp_is_op(const parser *p, const char *op) {
    return p->tok.kind == K_OP && tpl_str_is(p->tok.text, op);
}
bool tplp_is_name(const parser *p, const char *name) {
    return p->tok.kind == K_NAME && tpl_str_is(p->tok.text, name);
}

bool tplp_skip_op(parser *p, const char *op) {
    if (!tplp_is_op(p, op)) return false;
    tplp_next(p);
    return true;
}

bool tplp_skip_name(parser *p, const char *name) {
    if (!tplp_is_name(p, name)) return false;
    tplp_next(p);
    return true;
}

void tplp_expect_op(parser *p, const char *op) {
    if (!tplp_skip_op(p, op))
        SYNTAX(p, "expected '%s'%s%.*s%s", op,
               p->tok.kind == K_END ? " before the end of the tag" : ", found '",
               p->tok.kind == K_END ? 0 : (int)p->tok.text.n, p->tok.text.p ? p->tok.text.p : "",
               p->tok.kind == K_END ? "" : "'");
}

tpl_str tplp_expect_name(parser *p) {
    if (p->tok.kind != K_NAME) SYNTAX(p, "expected a name");
    tpl_str s = p->tok.text;
    tplp_next(p);
    return s;
}

void tplp_enter(parser *p) {
    if (++p->depth > NF_TPL_MAX_DEPTH)
        tplp_fail(p, NF_ERR_LIMIT, "nested more than %d deep", NF_TPL_MAX_DEPTH);
}
