/* Filters and tests of the template interpreter, as Jinja2 3.1 defines them. */
#include "runtime/template_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef bool (*filter_fn)(tpl_ctx *c, tpl_value v, const tpl_args *args, tpl_value *out);

static bool text_of(tpl_ctx *c, tpl_value v, tpl_str *out) {
    return tpl_to_str(c, v, out);
}

static bool text_result(tpl_ctx *c, nf_buf *buf, bool ok, tpl_value *out) {
    *out = (tpl_value){.kind = T_STR};
    if (ok) return tpl_keep(c, buf, &out->s);
    nf_buf_free(buf);
    return c->status ? false : tpl_fail(c, NF_ERR_MEMORY, "out of memory");
}

static bool append(nf_buf *out, tpl_str s) {
    return !nf_buf_append(out, s.p, s.n, NULL);
}

/* ---- attributes by path ("a.b.0"), for map, selectattr, sort, ... ---- */

static bool by_path(tpl_ctx *c, tpl_value v, tpl_value path, tpl_value *out) {
    if (path.kind != T_STR) return tpl_item(c, v, path, out);
    const char *p = path.s.p, *end = p + path.s.n;
    *out = v;
    while (p <= end) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        tpl_str part = {p, (size_t)((dot ? dot : end) - p)};
        bool number = part.n > 0 && part.n < 10;
        int64_t index = 0;
        for (size_t i = 0; i < part.n; i++)
            number &= part.p[i] >= '0' && part.p[i] <= '9', index = index * 10 + (part.p[i] - '0');
        if (!tpl_item(c, *out, number ? tpl_int(index) : tpl_text(part), out)) return false;
        if (!dot) break;
        p = dot + 1;
    }
    return true;
}

/* ---- strings ---- */

static bool f_case(tpl_ctx *c, tpl_value v, char how, tpl_value *out) {
    tpl_str s = {0};
    *out = (tpl_value){.kind = T_STR};
    return text_of(c, v, &s) && tpl_case(c, s, how, &out->s);
}
static bool f_upper(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return (void)a, f_case(c, v, 'u', out);
}
static bool f_lower(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return (void)a, f_case(c, v, 'l', out);
}
static bool f_capitalize(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return (void)a, f_case(c, v, 'c', out);
}

/* Jinja's title: words are split at white space, -, (, {, [ and <. */
static bool f_title(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_str s = {0};
    nf_buf buf = {0};
    bool ok = text_of(c, v, &s), start = true;
    (void)a;
    for (const char *p = s.p, *end = s.p + s.n; ok && p < end;) {
        const char *from = p;
        uint32_t code = tpl_next(&p);
        bool separator = tpl_is_space(code) || (code < 128 && strchr("-({[<", (int)code) && code);
        tpl_str piece;
        ok = tpl_case(c, (tpl_str){from, (size_t)(p - from)}, start ? 'u' : 'l', &piece) &&
             append(&buf, piece);
        start = separator;
    }
    return text_result(c, &buf, ok, out);
}

static bool f_trim(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *chars = tpl_arg(a, 0, "chars");
    tpl_str s = {0};
    if (!text_of(c, v, &s)) return false;
    if (chars && chars->kind != T_STR && chars->kind != T_NONE)
        return tpl_fail(c, NF_ERR_ARGUMENT, "trim: chars must be a string");
    *out = tpl_text(tpl_trim(s, chars && chars->kind == T_STR ? &chars->s : NULL, true, true));
    return true;
}

static bool f_string(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    (void)a;
    *out = (tpl_value){.kind = T_STR};
    return tpl_to_str(c, v, &out->s);
}

static bool f_replace(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *old = tpl_arg(a, 0, "old"), *new = tpl_arg(a, 1, "new"), *count = tpl_arg(a, 2, "count");
    tpl_str s = {0};
    if (!old || !new) return tpl_fail(c, NF_ERR_ARGUMENT, "replace needs the old and the new text");
    tpl_value pos[3];
    tpl_args args = {.pos = pos, .n = 2};
    pos[0] = (tpl_value){.kind = T_STR};
    pos[1] = (tpl_value){.kind = T_STR};
    if (!text_of(c, v, &s) || !text_of(c, *old, &pos[0].s) || !text_of(c, *new, &pos[1].s)) return false;
    if (count && count->kind != T_NONE) pos[args.n++] = *count;
    tpl_method m = {tpl_text(s), tpl_lit("replace")};
    return tpl_method_call(c, &m, &args, out);
}

static bool f_indent(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *width = tpl_arg(a, 0, "width"), *first = tpl_arg(a, 1, "first"),
                    *blank = tpl_arg(a, 2, "blank");
    tpl_str s, pad = tpl_lit("    ");
    tpl_value spaces;
    if (!text_of(c, v, &s)) return false;
    if (width && width->kind == T_STR)
        pad = width->s;
    else if (width && width->kind == T_INT) {
        if (!tpl_binary(c, '*', tpl_text(tpl_lit(" ")), *width, &spaces)) return false;
        pad = spaces.s;
    }
    nf_buf buf = {0};
    bool ok = true, line_first = true;
    /* Python's splitlines: a last empty line stays, since the filter adds a newline first. */
    for (const char *p = s.p, *end = s.p + s.n; ok; line_first = false) {
        const char *nl = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        tpl_str line = {p, (size_t)((nl ? nl : end) - p)};
        bool indent = line_first ? first && tpl_truth(*first) : line.n || (blank && tpl_truth(*blank));
        ok = (!indent || append(&buf, pad)) && append(&buf, line) && (!nl || append(&buf, tpl_lit("\n")));
        if (!nl) break;
        p = nl + 1;
    }
    return text_result(c, &buf, ok, out);
}

bool tpl_escape(tpl_str s, nf_buf *out) {
    bool ok = true;
    for (size_t i = 0; ok && i < s.n; i++) {
        const char *e = s.p[i] == '&'    ? "&amp;"
                        : s.p[i] == '<'  ? "&lt;"
                        : s.p[i] == '>'  ? "&gt;"
                        : s.p[i] == '"'  ? "&#34;"
                        : s.p[i] == '\'' ? "&#39;"
                                         : NULL;
        ok = e ? append(out, tpl_lit(e)) : !nf_buf_byte(out, (unsigned char)s.p[i], NULL);
    }
    return ok;
}

static bool f_escape(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_str s = {0};
    nf_buf buf = {0};
    (void)a;
    *out = v;
    if (v.kind == T_STR && v.markup) return true;
    bool ok = text_of(c, v, &s) && tpl_escape(s, &buf);
    if (!text_result(c, &buf, ok, out)) return false;
    out->markup = true;
    return true;
}

static bool f_safe(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    if (!f_string(c, v, a, out)) return false;
    out->markup = true;
    return true;
}

static bool f_wordcount(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_str s = {0};
    (void)a;
    if (!text_of(c, v, &s)) return false;
    int64_t n = 0;
    bool in_word = false;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        uint32_t code = tpl_next(&p);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)code);
        bool word = (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
                    (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) || code == '_';
        n += word && !in_word;
        in_word = word;
    }
    *out = tpl_int(n);
    return true;
}

/* printf-style formatting with %s %r %d %i %f %.Nf %x %%. */
static bool f_format(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_str s = {0};
    nf_buf buf = {0};
    size_t used = 0;
    bool ok = text_of(c, v, &s);
    for (size_t i = 0; ok && i < s.n; i++) {
        if (s.p[i] != '%') {
            ok = !nf_buf_byte(&buf, (unsigned char)s.p[i], NULL);
            continue;
        }
        char spec[24] = "%";
        size_t k = 1;
        i++;
        while (i < s.n && k < 16 && strchr("-+ 0123456789.#", s.p[i]) && s.p[i]) spec[k++] = s.p[i++];
        char type = i < s.n ? s.p[i] : 0;
        if (type == '%') {
            ok = !nf_buf_byte(&buf, '%', NULL);
            continue;
        }
        if (!type || !strchr("srdifxXeg", type))
            ok = tpl_fail(c, NF_ERR_UNSUPPORTED, "format: the conversion %%%c", type ? type : ' ');
        else if (used >= a->n)
            ok = tpl_fail(c, NF_ERR_ARGUMENT, "not enough arguments for format string");
        if (!ok) break;
        tpl_value x = a->pos[used++];
        if (type == 's' || type == 'r') {
            nf_buf piece = {0};
            ok = type == 's' ? tpl_print(c, x, &piece) : tpl_repr(c, x, &piece);
            spec[k++] = 's';
            if (ok && k == 2)
                ok = append(&buf, (tpl_str){piece.data, piece.len});
            else if (ok)
                ok = !nf_buf_printf(&buf, NULL, spec, piece.data ? piece.data : "");
            nf_buf_free(&piece);
        } else if (!tpl_is_number(x)) {
            ok = tpl_fail(c, NF_ERR_ARGUMENT, "%%%c format: a real number is required, not %s", type,
                          tpl_type_name(x));
        } else if (strchr("dixX", type)) {
            spec[k] = spec[k + 1] = 'l';
            spec[k + 2] = type == 'i' ? 'd' : type;
            ok = !nf_buf_printf(&buf, NULL, spec,
                                x.kind == T_FLOAT  ? (long long)x.f
                                : x.kind == T_BOOL ? (long long)x.b
                                                   : (long long)x.i);
        } else {
            spec[k] = type;
            ok = !nf_buf_printf(&buf, NULL, spec, tpl_number(x));
        }
    }
    if (ok && used < a->n)
        ok = tpl_fail(c, NF_ERR_ARGUMENT, "not all arguments converted during string formatting");
    return text_result(c, &buf, ok, out);
}

/* ---- numbers ---- */

static bool f_int(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *otherwise = tpl_arg(a, 0, "default"), *base = tpl_arg(a, 1, "base");
    (void)c;
    *out = otherwise ? *otherwise : tpl_int(0);
    if (v.kind == T_INT || v.kind == T_BOOL)
        *out = tpl_int(v.kind == T_INT ? v.i : v.b);
    else if (v.kind == T_FLOAT && fabs(v.f) < 9.2e18)
        *out = tpl_int((int64_t)v.f);
    else if (v.kind == T_STR) {
        tpl_str s = tpl_trim(v.s, NULL, true, true);
        char text[64], *end;
        if (!s.n || s.n >= sizeof text) return true;
        memcpy(text, s.p, s.n);
        text[s.n] = '\0';
        errno = 0;
        long long i = strtoll(text, &end, base && base->kind == T_INT ? (int)base->i : 10);
        if (!*end && !errno)
            *out = tpl_int(i);
        else { /* int(float(text)) */
            double f = strtod(text, &end);
            if (!*end && fabs(f) < 9.2e18) *out = tpl_int((int64_t)f);
        }
    }
    return true;
}

static bool f_float(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *otherwise = tpl_arg(a, 0, "default");
    (void)c;
    *out = otherwise ? *otherwise : tpl_float(0);
    if (tpl_is_number(v))
        *out = tpl_float(tpl_number(v));
    else if (v.kind == T_STR) {
        tpl_str s = tpl_trim(v.s, NULL, true, true);
        char text[400], *end;
        if (!s.n || s.n >= sizeof text) return true;
        memcpy(text, s.p, s.n);
        text[s.n] = '\0';
        double f = strtod(text, &end);
        if (!*end && !strpbrk(text, "xXpP(")) *out = tpl_float(f);
    }
    return true;
}

static bool f_abs(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    (void)a;
    if (v.kind == T_FLOAT)
        *out = tpl_float(fabs(v.f));
    else if (tpl_is_number(v))
        return tpl_binary(c, '*', v, tpl_int((v.kind == T_INT ? v.i : v.b) < 0 ? -1 : 1), out);
    else
        return tpl_fail(c, NF_ERR_ARGUMENT, "bad operand type for abs(): '%s'", tpl_type_name(v));
    return true;
}

static bool f_round(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *precision = tpl_arg(a, 0, "precision"), *method = tpl_arg(a, 1, "method");
    if (!tpl_is_number(v)) return tpl_fail(c, NF_ERR_ARGUMENT, "round: not a number");
    int digits = precision && precision->kind == T_INT && precision->i >= -300 && precision->i <= 300
                     ? (int)precision->i
                     : 0;
    double x = tpl_number(v), scale = pow(10, digits);
    const bool common = !method || method->kind != T_STR || tpl_str_is(method->s, "common");
    if (common && v.kind != T_FLOAT && digits >= 0) { /* Python's round keeps whole numbers whole */
        *out = tpl_int(v.kind == T_INT ? v.i : v.b);
        return true;
    }
    if (method && method->kind == T_STR && tpl_str_is(method->s, "ceil"))
        x = ceil(x * scale) / scale;
    else if (method && method->kind == T_STR && tpl_str_is(method->s, "floor"))
        x = floor(x * scale) / scale;
    else if (digits >= 0 &&
             digits < 20) { /* Python rounds the decimal value, half to even: printf does as well */
        char text[400];
        snprintf(text, sizeof text, "%.*f", digits, x);
        x = strtod(text, NULL);
    } else {
        x = nearbyint(x * scale) / scale;
    }
    *out = tpl_float(x);
    return true;
}

/* ---- lists ---- */

static bool f_length(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    (void)a;
    switch (v.kind) {
    case T_UNDEFINED:
        *out = tpl_int(0);
        return true;
    case T_STR:
        *out = tpl_int((int64_t)tpl_length(v.s));
        return true;
    case T_LIST:
    case T_TUPLE:
        *out = tpl_int((int64_t)v.list->n);
        return true;
    case T_DICT:
        *out = tpl_int((int64_t)v.dict->n);
        return true;
    default:
        return tpl_fail(c, NF_ERR_ARGUMENT, "object of type '%s' has no len()", tpl_type_name(v));
    }
}

static bool f_list(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_list *items, *copy = tpl_list_new(c);
    (void)a;
    if (!copy || !tpl_iterate(c, v, &items)) return false;
    for (size_t i = 0; i < items->n; i++)
        if (!tpl_list_add(c, copy, items->items[i])) return false;
    *out = (tpl_value){.kind = T_LIST, .list = copy};
    return true;
}

static bool f_first(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_list *items;
    (void)a;
    if (!tpl_iterate(c, v, &items)) return false;
    *out = items->n ? items->items[0] : tpl_undefined(tpl_lit("No first item, sequence was empty."));
    return true;
}

static bool f_last(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_list *items;
    (void)a;
    if (!tpl_iterate(c, v, &items)) return false;
    *out =
        items->n ? items->items[items->n - 1] : tpl_undefined(tpl_lit("No last item, sequence was empty."));
    return true;
}

static bool f_join(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *d = tpl_arg(a, 0, "d"), *attribute = tpl_arg(a, 1, "attribute");
    tpl_list *items;
    tpl_str separator = {"", 0};
    nf_buf buf = {0};
    if (!tpl_iterate(c, v, &items) || (d && !text_of(c, *d, &separator))) return false;
    bool ok = true;
    for (size_t i = 0; i < items->n && ok; i++) {
        tpl_value x = items->items[i];
        if (attribute && attribute->kind != T_NONE) ok = by_path(c, x, *attribute, &x);
        ok = ok && (!i || append(&buf, separator)) && tpl_print(c, x, &buf);
    }
    return text_result(c, &buf, ok, out);
}

static bool f_reverse(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    tpl_list *items, *reversed = tpl_list_new(c);
    nf_buf buf = {0};
    (void)a;
    if (!reversed || !tpl_iterate(c, v, &items)) return false;
    bool ok = true;
    for (size_t i = items->n; i > 0 && ok; i--)
        ok = v.kind == T_STR ? append(&buf, items->items[i - 1].s)
                             : tpl_list_add(c, reversed, items->items[i - 1]);
    if (v.kind == T_STR) return text_result(c, &buf, ok, out);
    *out = (tpl_value){.kind = T_LIST, .list = reversed};
    return ok;
}

/* Strings compare without case unless asked. */
static bool sort_key(tpl_ctx *c, tpl_value v, bool case_sensitive, tpl_value *out) {
    *out = v;
    return case_sensitive || v.kind != T_STR || tpl_case(c, v.s, 'l', &out->s);
}

/* Stable merge sort of indices by keys. */
static bool sort_range(tpl_ctx *c, const tpl_value *keys, size_t *index, size_t *spare, size_t n,
                       bool reverse) {
    if (n < 2) return true;
    size_t half = n / 2, i = 0, j = half, k = 0;
    if (!sort_range(c, keys, index, spare, half, reverse) ||
        !sort_range(c, keys, index + half, spare, n - half, reverse))
        return false;
    while (i < half || j < n) {
        int order = 0;
        if (i < half && j < n && (!tpl_step(c, 1) || !tpl_order(c, keys[index[i]], keys[index[j]], &order)))
            return false;
        if (reverse) order = -order;
        spare[k++] = j == n || (i < half && order <= 0) ? index[i++] : index[j++];
    }
    memcpy(index, spare, n * sizeof *index);
    return true;
}

static bool sorted(tpl_ctx *c, const tpl_list *items, const tpl_value *keys, bool reverse, tpl_list *to) {
    size_t *index = tpl_make(c, 2 * (items->n + 1) * sizeof *index);
    if (!index) return false;
    for (size_t i = 0; i < items->n; i++) index[i] = i;
    if (!sort_range(c, keys, index, index + items->n, items->n, reverse)) return false;
    for (size_t i = 0; i < items->n; i++)
        if (!tpl_list_add(c, to, items->items[index[i]])) return false;
    return true;
}

static bool f_sort(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *reverse = tpl_arg(a, 0, "reverse"), *sensitive = tpl_arg(a, 1, "case_sensitive"),
                    *attribute = tpl_arg(a, 2, "attribute");
    tpl_list *items, *result = tpl_list_new(c);
    if (!result || !tpl_iterate(c, v, &items)) return false;
    tpl_value *keys = tpl_make(c, (items->n + 1) * sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < items->n; i++) {
        tpl_value key = items->items[i];
        if (attribute && attribute->kind != T_NONE && !by_path(c, key, *attribute, &key)) return false;
        if (!sort_key(c, key, sensitive && tpl_truth(*sensitive), &keys[i])) return false;
    }
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return sorted(c, items, keys, reverse && tpl_truth(*reverse), result);
}

static bool pair_list(tpl_ctx *c, tpl_value k, tpl_value v, tpl_value *out) {
    *out = (tpl_value){.kind = T_TUPLE, .list = tpl_list_new(c)};
    return out->list && tpl_list_add(c, out->list, k) && tpl_list_add(c, out->list, v);
}

static bool f_items(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    (void)a;
    *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
    if (!out->list) return false;
    if (v.kind == T_UNDEFINED) return true;
    if (v.kind != T_DICT) return tpl_fail(c, NF_ERR_ARGUMENT, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < v.dict->n; i++) {
        tpl_value pair;
        if (!pair_list(c, v.dict->keys[i], v.dict->values[i], &pair) || !tpl_list_add(c, out->list, pair))
            return false;
    }
    return true;
}

static bool f_dictsort(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *sensitive = tpl_arg(a, 0, "case_sensitive"), *by = tpl_arg(a, 1, "by"),
                    *reverse = tpl_arg(a, 2, "reverse");
    tpl_args none = {0};
    tpl_value pairs;
    if (v.kind != T_DICT) return tpl_fail(c, NF_ERR_ARGUMENT, "dictsort: not a mapping");
    if (!f_items(c, v, &none, &pairs)) return false;
    bool by_value = by && by->kind == T_STR && tpl_str_is(by->s, "value");
    tpl_value *keys = tpl_make(c, (v.dict->n + 1) * sizeof *keys);
    tpl_list *result = tpl_list_new(c);
    if (!keys || !result) return false;
    for (size_t i = 0; i < v.dict->n; i++)
        if (!sort_key(c, by_value ? v.dict->values[i] : v.dict->keys[i], sensitive && tpl_truth(*sensitive),
                      &keys[i]))
            return false;
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return sorted(c, pairs.list, keys, reverse && tpl_truth(*reverse), result);
}

static bool f_unique(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *sensitive = tpl_arg(a, 0, "case_sensitive"), *attribute = tpl_arg(a, 1, "attribute");
    tpl_list *items, *seen = tpl_list_new(c), *result = tpl_list_new(c);
    if (!seen || !result || !tpl_iterate(c, v, &items)) return false;
    for (size_t i = 0; i < items->n; i++) {
        tpl_value key = items->items[i];
        bool known = false;
        if (attribute && attribute->kind != T_NONE && !by_path(c, key, *attribute, &key)) return false;
        if (!sort_key(c, key, sensitive && tpl_truth(*sensitive), &key) ||
            !tpl_contains(c, (tpl_value){.kind = T_LIST, .list = seen}, key, &known))
            return false;
        if (!known && (!tpl_list_add(c, seen, key) || !tpl_list_add(c, result, items->items[i])))
            return false;
    }
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return true;
}

static bool extreme(tpl_ctx *c, tpl_value v, const tpl_args *a, int sign, tpl_value *out) {
    const tpl_value *sensitive = tpl_arg(a, 0, "case_sensitive"), *attribute = tpl_arg(a, 1, "attribute");
    tpl_list *items;
    tpl_value best_key = tpl_none();
    if (!tpl_iterate(c, v, &items)) return false;
    *out = tpl_undefined(tpl_lit("No aggregated item, sequence was empty."));
    for (size_t i = 0; i < items->n; i++) {
        tpl_value key = items->items[i];
        int order = -sign;
        if (attribute && attribute->kind != T_NONE && !by_path(c, key, *attribute, &key)) return false;
        if (!sort_key(c, key, sensitive && tpl_truth(*sensitive), &key) ||
            (i && !tpl_order(c, best_key, key, &order)))
            return false;
        if (order * sign < 0) best_key = key, *out = items->items[i];
    }
    return true;
}
static bool f_min(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return extreme(c, v, a, -1, out);
}
static bool f_max(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return extreme(c, v, a, 1, out);
}

static bool f_sum(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *attribute = tpl_arg(a, 0, "attribute"), *start = tpl_arg(a, 1, "start");
    tpl_list *items;
    if (!tpl_iterate(c, v, &items)) return false;
    *out = start ? *start : tpl_int(0);
    for (size_t i = 0; i < items->n; i++) {
        tpl_value x = items->items[i];
        if (attribute && attribute->kind != T_NONE && !by_path(c, x, *attribute, &x)) return false;
        if (!tpl_binary(c, '+', *out, x, out)) return false;
    }
    return true;
}

static bool f_batch(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *size = tpl_arg(a, 0, "linecount"), *fill = tpl_arg(a, 1, "fill_with");
    tpl_list *items, *result = tpl_list_new(c), *row = NULL;
    if (!size || size->kind != T_INT || size->i < 1)
        return tpl_fail(c, NF_ERR_ARGUMENT, "batch needs a positive size");
    if (!result || !tpl_iterate(c, v, &items)) return false;
    for (size_t i = 0; i < items->n; i++) {
        if (i % (size_t)size->i == 0) {
            row = tpl_list_new(c);
            if (!row || !tpl_list_add(c, result, (tpl_value){.kind = T_LIST, .list = row})) return false;
        }
        if (!tpl_list_add(c, row, items->items[i])) return false;
    }
    while (row && fill && fill->kind != T_NONE && row->n < (size_t)size->i)
        if (!tpl_step(c, 1) || !tpl_list_add(c, row, *fill)) return false;
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return true;
}

static bool f_groupby(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *attribute = tpl_arg(a, 0, "attribute"), *otherwise = tpl_arg(a, 1, "default");
    if (!attribute) return tpl_fail(c, NF_ERR_ARGUMENT, "groupby needs an attribute");
    tpl_value pos[3] = {tpl_bool(false), tpl_bool(false), *attribute}, ordered;
    tpl_args by = {.pos = pos, .n = 3};
    tpl_list *result = tpl_list_new(c), *group = NULL;
    tpl_value previous = tpl_none();
    if (!result || !f_sort(c, v, &by, &ordered)) return false;
    for (size_t i = 0; i < ordered.list->n; i++) {
        tpl_value key, folded, pair;
        if (!by_path(c, ordered.list->items[i], *attribute, &key)) return false;
        if (key.kind == T_UNDEFINED && otherwise) key = *otherwise;
        if (!sort_key(c, key, false, &folded)) return false;
        if (!group || !tpl_equal(c, folded, previous)) {
            group = tpl_list_new(c);
            if (!group || !pair_list(c, key, (tpl_value){.kind = T_LIST, .list = group}, &pair) ||
                !tpl_list_add(c, result, pair))
                return false;
        }
        previous = folded;
        if (!tpl_list_add(c, group, ordered.list->items[i])) return false;
    }
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return true;
}

/* ---- map, select, reject ---- */

/* The arguments behind the first `skip`. */
static tpl_args rest(const tpl_args *a, size_t skip) {
    tpl_args r = *a;
    r.pos = a->n > skip ? a->pos + skip : NULL;
    r.n = a->n > skip ? a->n - skip : 0;
    return r;
}

static bool f_map(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *attribute = a->n ? NULL : tpl_arg(a, SIZE_MAX, "attribute"),
                    *otherwise = tpl_arg(a, SIZE_MAX, "default");
    tpl_list *items, *result = tpl_list_new(c);
    if (!tpl_truth(v))
        v = tpl_undefined(tpl_lit("")); /* map, select and reject take anything falsy for empty */
    if (!result || !tpl_iterate(c, v, &items)) return false;
    if (!attribute && (!a->n || a->pos[0].kind != T_STR))
        return tpl_fail(c, NF_ERR_ARGUMENT, "map requires a filter argument");
    if (!attribute && !tpl_known_filter(a->pos[0].s))
        return tpl_fail(c, NF_ERR_ARGUMENT, "map: no filter named '%.*s'", (int)a->pos[0].s.n, a->pos[0].s.p);
    tpl_args more = rest(a, 1);
    for (size_t i = 0; i < items->n; i++) {
        tpl_value x;
        if (attribute ? !by_path(c, items->items[i], *attribute, &x)
                      : !tpl_filter(c, a->pos[0].s, items->items[i], &more, &x))
            return false;
        if (attribute && otherwise && x.kind == T_UNDEFINED) x = *otherwise;
        if (!tpl_list_add(c, result, x)) return false;
    }
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return true;
}

static bool choose(tpl_ctx *c, tpl_value v, const tpl_args *a, bool by_attribute, bool keep, tpl_value *out) {
    const size_t first = by_attribute ? 1 : 0;
    tpl_list *items, *result = tpl_list_new(c);
    if (!tpl_truth(v)) v = tpl_undefined(tpl_lit(""));
    if (!result || !tpl_iterate(c, v, &items)) return false;
    if (by_attribute && !a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "Missing parameter for attribute name");
    const bool has_test = a->n > first;
    if (has_test && (a->pos[first].kind != T_STR || !tpl_known_test(a->pos[first].s)))
        return tpl_fail(c, NF_ERR_ARGUMENT, "no such test");
    tpl_args more = rest(a, first + 1);
    for (size_t i = 0; i < items->n; i++) {
        tpl_value x = items->items[i];
        bool pass;
        if (by_attribute && !by_path(c, x, a->pos[0], &x)) return false;
        if (!has_test)
            pass = tpl_truth(x);
        else if (!tpl_test(c, a->pos[first].s, x, &more, &pass))
            return false;
        if (pass == keep && !tpl_list_add(c, result, items->items[i])) return false;
    }
    *out = (tpl_value){.kind = T_LIST, .list = result};
    return true;
}
static bool f_select(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return choose(c, v, a, false, true, out);
}
static bool f_reject(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return choose(c, v, a, false, false, out);
}
static bool f_selectattr(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return choose(c, v, a, true, true, out);
}
static bool f_rejectattr(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    return choose(c, v, a, true, false, out);
}

/* ---- the rest ---- */

static bool f_default(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *otherwise = tpl_arg(a, 0, "default_value"), *falsy = tpl_arg(a, 1, "boolean");
    (void)c;
    bool use = v.kind == T_UNDEFINED || (falsy && tpl_truth(*falsy) && !tpl_truth(v));
    *out = !use ? v : otherwise ? *otherwise : tpl_text(tpl_lit(""));
    return true;
}

static bool f_tojson(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    nf_buf buf = {0};
    /* The value is the first argument of the Python function, so positional ones are shifted already. */
    bool ok = tpl_json(c, v, a, &buf);
    return text_result(c, &buf, ok, out);
}

static bool f_attr(tpl_ctx *c, tpl_value v, const tpl_args *a, tpl_value *out) {
    const tpl_value *name = tpl_arg(a, 0, "name");
    if (!name || name->kind != T_STR) return tpl_fail(c, NF_ERR_ARGUMENT, "attr needs a name");
    if (v.kind == T_DICT && !tpl_has_method(v, name->s)) { /* attributes only, not items */
        *out = tpl_undefined(name->s);
        return true;
    }
    return tpl_attribute(c, v, name->s, out);
}

static const struct {
    const char *name;
    filter_fn run;
} filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"batch", f_batch},
    {"capitalize", f_capitalize},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", f_dictsort},
    {"e", f_escape},
    {"escape", f_escape},
    {"first", f_first},
    {"float", f_float},
    {"format", f_format},
    {"groupby", f_groupby},
    {"indent", f_indent},
    {"int", f_int},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"lower", f_lower},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"replace", f_replace},
    {"reverse", f_reverse},
    {"round", f_round},
    {"safe", f_safe},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"string", f_string},
    {"sum", f_sum},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"unique", f_unique},
    {"upper", f_upper},
    {"wordcount", f_wordcount},
};

static filter_fn find_filter(tpl_str name) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (tpl_str_is(name, filters[i].name)) return filters[i].run;
    return NULL;
}

bool tpl_known_filter(tpl_str name) {
    return find_filter(name) != NULL;
}

bool tpl_filter(tpl_ctx *c, tpl_str name, tpl_value v, const tpl_args *args, tpl_value *out) {
    filter_fn run = find_filter(name);
    if (!run) return tpl_fail(c, NF_ERR_UNSUPPORTED, "no filter named '%.*s'", (int)name.n, name.p);
    return tpl_step(c, 1) && run(c, v, args, out);
}
