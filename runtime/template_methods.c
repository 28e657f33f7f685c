/*
 * Methods of strings, lists, dicts and loops, and the global functions. What would change a list or dict is
 * refused, as the sandbox that chat templates are rendered in does.
 */
#include "runtime/template_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

static bool one_of(tpl_str name, const char *list) { /* words separated by single spaces */
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, " ");
        if (name.n == n && !memcmp(name.p, p, n)) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static const char string_methods[] = "split rsplit strip lstrip rstrip startswith endswith upper lower title "
                                     "capitalize replace join find rfind index "
                                     "count splitlines isdigit isalpha isalnum isspace isupper islower "
                                     "isnumeric isdecimal zfill removeprefix removesuffix "
                                     "ljust rjust center swapcase casefold partition rpartition format";
static const char list_methods[] = "index count append extend insert pop remove reverse sort clear copy";
static const char dict_methods[] = "items keys values get pop update setdefault clear copy popitem";

bool tpl_has_method(tpl_value self, tpl_str name) {
    switch (self.kind) {
    case T_STR:
        return one_of(name, string_methods);
    case T_LIST:
        return one_of(name, list_methods);
    case T_TUPLE:
        return one_of(name, "index count");
    case T_DICT:
        return one_of(name, dict_methods);
    case T_LOOP:
        return one_of(name, "cycle changed");
    default:
        return false;
    }
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

/* Argument i as a string; absent (or None, when allowed) gives *given = false. */
static bool str_arg(tpl_ctx *c, const tpl_args *a, size_t i, const char *name, tpl_str *out, bool *given) {
    const tpl_value *v = tpl_arg(a, i, name);
    *given = v && v->kind != T_NONE;
    if (!*given) return true;
    if (v->kind != T_STR)
        return tpl_fail(c, NF_ERR_ARGUMENT, "expected a string, got '%s'", tpl_type_name(*v));
    *out = v->s;
    return true;
}

static bool need_str(tpl_ctx *c, const tpl_args *a, size_t i, const char *name, tpl_str *out) {
    bool given;
    if (!str_arg(c, a, i, name, out, &given)) return false;
    return given || tpl_fail(c, NF_ERR_ARGUMENT, "a string argument is missing");
}

static int64_t int_arg(const tpl_args *a, size_t i, const char *name, int64_t otherwise) {
    const tpl_value *v = tpl_arg(a, i, name);
    return !v || v->kind == T_NONE ? otherwise
           : v->kind == T_INT      ? v->i
           : v->kind == T_BOOL     ? v->b
                                   : otherwise;
}

static const char *find_in(const char *p, size_t n, tpl_str what) {
    return what.n ? memmem(p, n, what.p, what.n) : p;
}

static const char *find_last(const char *p, size_t n, tpl_str what) {
    for (size_t i = n + 1; i-- > 0;)
        if (n - i >= what.n && !memcmp(p + i, what.p, what.n)) return p + i;
    return NULL;
}

/* ---- strings ---- */

static bool add_str(tpl_ctx *c, tpl_list *l, const char *p, size_t n) {
    return tpl_list_add(c, l, tpl_text((tpl_str){p, n}));
}

static bool split_space(tpl_ctx *c, tpl_str s, int64_t max, tpl_list *out) {
    s = tpl_trim(s, NULL, true, false);
    while (s.n) {
        if (max >= 0 && (int64_t)out->n == max)
            return add_str(c, out, s.p, s.n); /* the rest, trailing white space included */
        const char *p = s.p, *end = s.p + s.n, *word = p;
        while (p < end) {
            const char *q = p;
            if (tpl_is_space(tpl_next(&q))) break;
            p = q;
        }
        if (!add_str(c, out, word, (size_t)(p - word))) return false;
        s = tpl_trim((tpl_str){p, (size_t)(end - p)}, NULL, true, false);
    }
    return true;
}

static bool rsplit_space(tpl_ctx *c, tpl_str s, int64_t max, tpl_list *out) {
    tpl_list back = {0};
    s = tpl_trim(s, NULL, false, true);
    while (s.n) {
        if (max >= 0 && (int64_t)back.n == max) {
            if (!add_str(c, &back, s.p, s.n)) return false;
            break;
        }
        const char *end = s.p + s.n, *p = end;
        while (p > s.p) {
            const char *q = p - 1;
            while (q > s.p && ((unsigned char)*q & 0xC0) == 0x80) q--;
            const char *r = q;
            if (tpl_is_space(tpl_next(&r))) break;
            p = q;
        }
        if (!add_str(c, &back, p, (size_t)(end - p))) return false;
        s = tpl_trim((tpl_str){s.p, (size_t)(p - s.p)}, NULL, false, true);
    }
    for (size_t i = back.n; i > 0; i--)
        if (!tpl_list_add(c, out, back.items[i - 1])) return false;
    return true;
}

static bool split_by(tpl_ctx *c, tpl_str s, tpl_str by, int64_t max, bool right, tpl_list *out) {
    if (!by.n) return tpl_fail(c, NF_ERR_ARGUMENT, "empty separator");
    if (!right) {
        const char *p = s.p, *end = s.p + s.n, *at;
        while ((max < 0 || (int64_t)out->n < max) && (at = find_in(p, (size_t)(end - p), by))) {
            if (!add_str(c, out, p, (size_t)(at - p))) return false;
            p = at + by.n;
        }
        return add_str(c, out, p, (size_t)(end - p));
    }
    tpl_list back = {0};
    size_t end = s.n;
    const char *at;
    while ((max < 0 || (int64_t)back.n < max) && (at = find_last(s.p, end, by))) {
        if (!tpl_step(c, end / 16) || !add_str(c, &back, at + by.n, (size_t)(s.p + end - at) - by.n))
            return false;
        end = (size_t)(at - s.p);
    }
    if (!add_str(c, &back, s.p, end)) return false;
    for (size_t i = back.n; i > 0; i--)
        if (!tpl_list_add(c, out, back.items[i - 1])) return false;
    return true;
}

static bool m_split(tpl_ctx *c, tpl_str s, const tpl_args *a, bool right, tpl_value *out) {
    tpl_str by = {0};
    bool given;
    int64_t max = int_arg(a, 1, "maxsplit", -1);
    *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
    if (!out->list || !str_arg(c, a, 0, "sep", &by, &given)) return false;
    if (given) return split_by(c, s, by, max, right, out->list);
    return right ? rsplit_space(c, s, max, out->list) : split_space(c, s, max, out->list);
}

static bool m_strip(tpl_ctx *c, tpl_str s, const tpl_args *a, bool left, bool right, tpl_value *out) {
    tpl_str chars = {0};
    bool given;
    if (!str_arg(c, a, 0, "chars", &chars, &given)) return false;
    *out = tpl_text(tpl_trim(s, given ? &chars : NULL, left, right));
    return true;
}

/* startswith, endswith: a string or a tuple of strings. */
static bool m_affix(tpl_ctx *c, tpl_str s, const tpl_args *a, bool start, tpl_value *out) {
    if (!a->n)
        return tpl_fail(c, NF_ERR_ARGUMENT, "%s takes at least one argument",
                        start ? "startswith" : "endswith");
    const tpl_value *options = a->pos;
    size_t n = 1;
    if (options->kind == T_TUPLE) n = options->list->n, options = options->list->items;
    *out = tpl_bool(false);
    for (size_t i = 0; i < n; i++) {
        if (options[i].kind != T_STR)
            return tpl_fail(c, NF_ERR_ARGUMENT, "expected a string, got '%s'", tpl_type_name(options[i]));
        tpl_str x = options[i].s;
        if (x.n <= s.n && !memcmp(start ? s.p : s.p + s.n - x.n, x.p, x.n)) *out = tpl_bool(true);
    }
    return true;
}

static bool m_replace(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_value *out) {
    tpl_str old = {0}, new = {0};
    int64_t max = int_arg(a, 2, "count", -1);
    if (!need_str(c, a, 0, "old", &old) || !need_str(c, a, 1, "new", &new)) return false;
    nf_buf buf = {0};
    bool ok = true;
    const char *p = s.p, *end = s.p + s.n;
    for (int64_t k = 0; ok && (max < 0 || k < max); k++) {
        const char *at = find_in(p, (size_t)(end - p), old);
        if (!at || buf.len > NF_TPL_MAX_OUTPUT) break;
        ok = append(&buf, (tpl_str){p, (size_t)(at - p)}) && append(&buf, new);
        p = at + old.n;
        if (!old.n) { /* between all characters and at both ends */
            if (p == end) {
                p = end;
                break;
            }
            const char *q = p;
            tpl_next(&q);
            ok = ok && append(&buf, (tpl_str){p, (size_t)(q - p)});
            p = q;
        }
    }
    if (buf.len > NF_TPL_MAX_OUTPUT) ok = tpl_fail(c, NF_ERR_LIMIT, "a replaced string is too long");
    ok = ok && append(&buf, (tpl_str){p, (size_t)(end - p)}) && tpl_step(c, buf.len / 64);
    return text_result(c, &buf, ok, out);
}

static bool m_join(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_value *out) {
    tpl_list *items;
    nf_buf buf = {0};
    if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "join takes one argument");
    if (!tpl_iterate(c, a->pos[0], &items)) return false;
    bool ok = true;
    for (size_t i = 0; i < items->n && ok; i++) {
        if (items->items[i].kind != T_STR)
            ok = tpl_fail(c, NF_ERR_ARGUMENT, "sequence item %zu: expected str instance, %s found", i,
                          tpl_type_name(items->items[i]));
        ok = ok && (!i || append(&buf, s)) && append(&buf, items->items[i].s) && tpl_step(c, 1);
    }
    return text_result(c, &buf, ok, out);
}

static bool m_find(tpl_ctx *c, tpl_str s, const tpl_args *a, bool right, bool must, tpl_value *out) {
    tpl_str what = {0};
    if (!need_str(c, a, 0, "sub", &what)) return false;
    if (a->n > 1) return tpl_fail(c, NF_ERR_UNSUPPORTED, "find with a start or an end");
    const char *at = right ? find_last(s.p, s.n, what) : find_in(s.p, s.n, what);
    if (!at && must) return tpl_fail(c, NF_ERR_ARGUMENT, "substring not found");
    *out = tpl_int(at ? (int64_t)tpl_length((tpl_str){s.p, (size_t)(at - s.p)}) : -1);
    return tpl_step(c, s.n / 16);
}

static bool m_count(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_value *out) {
    tpl_str what = {0};
    if (!need_str(c, a, 0, "sub", &what)) return false;
    int64_t n = 0;
    if (!what.n)
        n = (int64_t)tpl_length(s) + 1;
    else
        for (const char *p = s.p, *end = s.p + s.n; (p = find_in(p, (size_t)(end - p), what)); p += what.n)
            n++;
    *out = tpl_int(n);
    return tpl_step(c, s.n / 16);
}

static bool m_splitlines(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_value *out) {
    const tpl_value *keep = tpl_arg(a, 0, "keepends");
    *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
    if (!out->list) return false;
    const char *line = s.p;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        const char *from = p;
        uint32_t code = tpl_next(&p);
        bool ends = (code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                    code == 0x2028 || code == 0x2029;
        if (!ends) {
            if (p == end && !add_str(c, out->list, line, (size_t)(p - line))) return false;
            continue;
        }
        if (code == '\r' && p < end && *p == '\n') p++;
        if (!add_str(c, out->list, line, (size_t)((keep && tpl_truth(*keep) ? p : from) - line)))
            return false;
        line = p;
    }
    return true;
}

static bool in_categories(utf8proc_category_t k, utf8proc_category_t from, utf8proc_category_t to) {
    return k >= from && k <= to;
}

static bool m_is(tpl_ctx *c, tpl_str s, tpl_str name, tpl_value *out) {
    bool all = s.n > 0, cased = false;
    const char kind = name.p[2];
    if (tpl_str_is(name, "isupper") || tpl_str_is(name, "islower")) {
        const bool upper = kind == 'u';
        for (const char *p = s.p, *end = s.p + s.n; p < end;) {
            utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)tpl_next(&p));
            cased |= k == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
            all &= k != (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) && k != UTF8PROC_CATEGORY_LT;
        }
        *out = tpl_bool(all && cased);
        return tpl_step(c, 1);
    }
    for (const char *p = s.p, *end = s.p + s.n; p < end && all;) {
        uint32_t code = tpl_next(&p);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)code);
        bool alpha = in_categories(k, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO),
             decimal = k == UTF8PROC_CATEGORY_ND;
        bool numeric = in_categories(k, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
        bool superscript = code == 0xB2 || code == 0xB3 || code == 0xB9 || (code >= 0x2070 && code <= 0x2089);
        if (tpl_str_is(name, "isspace"))
            all = tpl_is_space(code);
        else if (tpl_str_is(name, "isalpha"))
            all = alpha;
        else if (tpl_str_is(name, "isalnum"))
            all = alpha || numeric;
        else if (tpl_str_is(name, "isnumeric"))
            all = numeric;
        else if (tpl_str_is(name, "isdecimal"))
            all = decimal;
        else
            all = decimal || superscript; /* isdigit */
    }
    *out = tpl_bool(all);
    return tpl_step(c, s.n / 16);
}

static bool m_pad(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_str name, tpl_value *out) {
    int64_t width = int_arg(a, 0, "width", 0), n = (int64_t)tpl_length(s),
            missing = width > n ? width - n : 0;
    tpl_str fill = tpl_lit(name.p[0] == 'z' ? "0" : " ");
    bool given = false;
    if (name.p[0] != 'z' && !str_arg(c, a, 1, "fillchar", &fill, &given)) return false;
    if (missing > (int64_t)NF_TPL_MAX_OUTPUT) return tpl_fail(c, NF_ERR_LIMIT, "a padded string is too long");
    int64_t left = name.p[0] == 'l' ? 0 : name.p[0] == 'c' ? missing / 2 + (missing & width & 1) : missing;
    nf_buf buf = {0};
    bool ok = true, sign = name.p[0] == 'z' && s.n && (*s.p == '-' || *s.p == '+');
    if (sign) ok = append(&buf, (tpl_str){s.p, 1});
    for (int64_t i = 0; i < left && ok; i++) ok = append(&buf, fill);
    ok = ok && append(&buf, (tpl_str){s.p + sign, s.n - sign});
    for (int64_t i = left; i < missing && ok; i++) ok = append(&buf, fill);
    return text_result(c, &buf, ok, out);
}

static bool m_partition(tpl_ctx *c, tpl_str s, const tpl_args *a, bool right, tpl_value *out) {
    tpl_str by = {0};
    if (!need_str(c, a, 0, "sep", &by)) return false;
    if (!by.n) return tpl_fail(c, NF_ERR_ARGUMENT, "empty separator");
    const char *at = right ? find_last(s.p, s.n, by) : find_in(s.p, s.n, by);
    *out = (tpl_value){.kind = T_TUPLE, .list = tpl_list_new(c)};
    if (!out->list) return false;
    if (!at)
        return add_str(c, out->list, right ? "" : s.p, right ? 0 : s.n) && add_str(c, out->list, "", 0) &&
               add_str(c, out->list, right ? s.p : "", right ? s.n : 0);
    return add_str(c, out->list, s.p, (size_t)(at - s.p)) && add_str(c, out->list, by.p, by.n) &&
           add_str(c, out->list, at + by.n, s.n - (size_t)(at - s.p) - by.n);
}

static bool swap_case(tpl_ctx *c, tpl_str s, tpl_value *out) {
    nf_buf buf = {0};
    bool ok = true;
    for (const char *p = s.p, *end = s.p + s.n; p < end && ok;) {
        utf8proc_int32_t code = (utf8proc_int32_t)tpl_next(&p);
        ok = tpl_put((uint32_t)(utf8proc_category(code) == UTF8PROC_CATEGORY_LU ? utf8proc_tolower(code)
                                                                                : utf8proc_toupper(code)),
                     &buf, NULL);
    }
    return text_result(c, &buf, ok, out);
}

/* "{} and {0} {name}".format(...): plain fields only. */
static bool m_format(tpl_ctx *c, tpl_str s, const tpl_args *a, tpl_value *out) {
    nf_buf buf = {0};
    size_t automatic = 0;
    bool ok = true;
    for (size_t i = 0; i < s.n && ok; i++) {
        char ch = s.p[i];
        if ((ch == '{' || ch == '}') && i + 1 < s.n && s.p[i + 1] == ch) {
            ok = !nf_buf_byte(&buf, (unsigned char)s.p[++i], NULL);
            continue;
        }
        if (ch != '{') {
            ok = ch != '}' ? !nf_buf_byte(&buf, (unsigned char)ch, NULL)
                           : tpl_fail(c, NF_ERR_ARGUMENT, "Single '}' encountered in format string");
            continue;
        }
        const char *close = memchr(s.p + i, '}', s.n - i);
        if (!close) {
            ok = tpl_fail(c, NF_ERR_ARGUMENT, "expected '}' before end of string");
            break;
        }
        tpl_str field = {s.p + i + 1, (size_t)(close - s.p) - i - 1};
        const tpl_value *v = NULL;
        bool digits = field.n > 0 && field.n < 4;
        size_t index = 0;
        for (size_t k = 0; k < field.n; k++)
            digits &= field.p[k] >= '0' && field.p[k] <= '9', index = index * 10 + (size_t)(field.p[k] - '0');
        if (memchr(field.p, ':', field.n) || memchr(field.p, '!', field.n) || memchr(field.p, '.', field.n) ||
            memchr(field.p, '[', field.n))
            ok = tpl_fail(c, NF_ERR_UNSUPPORTED, "format fields with a specification");
        else if (!field.n)
            v = automatic < a->n ? &a->pos[automatic++] : NULL;
        else if (digits)
            v = index < a->n ? &a->pos[index] : NULL;
        else
            for (size_t k = 0; k < a->n_named; k++)
                if (tpl_str_eq(a->names[k], field)) v = &a->named[k];
        if (ok && !v)
            ok = tpl_fail(c, NF_ERR_ARGUMENT, "format: no argument for the field '%.*s'", (int)field.n,
                          field.p);
        ok = ok && tpl_print(c, *v, &buf);
        i = (size_t)(close - s.p);
    }
    return text_result(c, &buf, ok, out);
}

static bool string_method(tpl_ctx *c, tpl_str s, tpl_str name, const tpl_args *a, tpl_value *out) {
#define IS(text) tpl_str_is(name, text)
    tpl_str affix = {0};
    *out = (tpl_value){.kind = T_STR};
    if (IS("split") || IS("rsplit")) return m_split(c, s, a, name.p[0] == 'r', out);
    if (IS("strip")) return m_strip(c, s, a, true, true, out);
    if (IS("lstrip")) return m_strip(c, s, a, true, false, out);
    if (IS("rstrip")) return m_strip(c, s, a, false, true, out);
    if (IS("startswith") || IS("endswith")) return m_affix(c, s, a, name.p[0] == 's', out);
    if (IS("upper")) return tpl_case(c, s, 'u', &out->s);
    if (IS("lower") || IS("casefold")) return tpl_case(c, s, 'l', &out->s);
    if (IS("title")) return tpl_case(c, s, 't', &out->s);
    if (IS("capitalize")) return tpl_case(c, s, 'c', &out->s);
    if (IS("swapcase")) return swap_case(c, s, out);
    if (IS("replace")) return m_replace(c, s, a, out);
    if (IS("join")) return m_join(c, s, a, out);
    if (IS("find") || IS("rfind") || IS("index"))
        return m_find(c, s, a, name.p[0] == 'r', name.p[0] == 'i', out);
    if (IS("count")) return m_count(c, s, a, out);
    if (IS("splitlines")) return m_splitlines(c, s, a, out);
    if (IS("partition") || IS("rpartition")) return m_partition(c, s, a, name.p[0] == 'r', out);
    if (IS("zfill") || IS("ljust") || IS("rjust") || IS("center")) return m_pad(c, s, a, name, out);
    if (IS("format")) return m_format(c, s, a, out);
    if (IS("removeprefix") || IS("removesuffix")) {
        if (!need_str(c, a, 0, NULL, &affix)) return false;
        bool prefix = name.p[6] == 'p',
             has = affix.n <= s.n && !memcmp(prefix ? s.p : s.p + s.n - affix.n, affix.p, affix.n);
        *out = tpl_text(has ? (tpl_str){prefix ? s.p + affix.n : s.p, s.n - affix.n} : s);
        return true;
    }
    return m_is(c, s, name, out);
#undef IS
}

/* ---- lists, dicts, loops ---- */

static bool list_method(tpl_ctx *c, tpl_value self, tpl_str name, const tpl_args *a, tpl_value *out) {
    const tpl_list *l = self.list;
    if (tpl_str_is(name, "copy")) return tpl_filter(c, tpl_lit("list"), self, &(tpl_args){0}, out);
    if (!tpl_str_is(name, "index") && !tpl_str_is(name, "count"))
        return tpl_fail(c, NF_ERR_ARGUMENT,
                        "list.%.*s would change a list: the sandbox of chat templates forbids it",
                        (int)name.n, name.p);
    if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "list.%.*s takes one argument", (int)name.n, name.p);
    int64_t count = 0, first = -1;
    for (size_t i = 0; i < l->n; i++)
        if (tpl_equal(c, l->items[i], a->pos[0])) {
            if (first < 0) first = (int64_t)i;
            count++;
        }
    if (tpl_str_is(name, "index") && first < 0)
        return tpl_fail(c, NF_ERR_ARGUMENT, "the value is not in the list");
    *out = tpl_int(tpl_str_is(name, "index") ? first : count);
    return tpl_step(c, l->n);
}

static bool dict_method(tpl_ctx *c, tpl_value self, tpl_str name, const tpl_args *a, tpl_value *out) {
    const tpl_dict *d = self.dict;
    if (tpl_str_is(name, "get")) {
        const tpl_value *otherwise = tpl_arg(a, 1, "default");
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "get expected at least 1 argument, got 0");
        tpl_value *v = tpl_dict_get(c, d, a->pos[0]);
        *out = v ? *v : otherwise ? *otherwise : tpl_none();
        return tpl_step(c, d->n);
    }
    if (tpl_str_is(name, "items")) return tpl_filter(c, tpl_lit("items"), self, &(tpl_args){0}, out);
    if (tpl_str_is(name, "keys") || tpl_str_is(name, "values")) {
        *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
        for (size_t i = 0; out->list && i < d->n; i++)
            if (!tpl_list_add(c, out->list, name.p[0] == 'k' ? d->keys[i] : d->values[i])) return false;
        return out->list != NULL;
    }
    if (tpl_str_is(name, "copy")) {
        *out = (tpl_value){.kind = T_DICT, .dict = tpl_dict_new(c)};
        for (size_t i = 0; out->dict && i < d->n; i++)
            if (!tpl_dict_set(c, out->dict, d->keys[i], d->values[i])) return false;
        return out->dict != NULL;
    }
    return tpl_fail(c, NF_ERR_ARGUMENT,
                    "dict.%.*s would change a dict: the sandbox of chat templates forbids it", (int)name.n,
                    name.p);
}

static bool loop_method(tpl_ctx *c, tpl_loop *l, tpl_str name, const tpl_args *a, tpl_value *out) {
    if (tpl_str_is(name, "cycle")) {
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "no items for cycling given");
        *out = a->pos[l->index % a->n];
        return true;
    }
    tpl_list *now = tpl_list_new(c);
    for (size_t i = 0; now && i < a->n; i++)
        if (!tpl_list_add(c, now, a->pos[i])) return false;
    if (!now) return false;
    tpl_value v = {.kind = T_TUPLE, .list = now};
    *out = tpl_bool(!l->has_changed || !tpl_equal(c, l->last_changed, v));
    l->last_changed = v;
    l->has_changed = true;
    return true;
}

bool tpl_method_call(tpl_ctx *c, const tpl_method *m, const tpl_args *args, tpl_value *out) {
    if (!tpl_step(c, 1)) return false;
    switch (m->self.kind) {
    case T_STR:
        return string_method(c, m->self.s, m->name, args, out);
    case T_LIST:
    case T_TUPLE:
        return list_method(c, m->self, m->name, args, out);
    case T_DICT:
        return dict_method(c, m->self, m->name, args, out);
    case T_LOOP:
        return loop_method(c, m->self.loop, m->name, args, out);
    default:
        return tpl_fail(c, NF_ERR_INTERNAL, "a method of '%s'", tpl_type_name(m->self));
    }
}

/* ---- functions ---- */

bool tpl_is_function(tpl_str name) {
    return one_of(name, "range dict namespace raise_exception strftime_now");
}

static bool fn_range(tpl_ctx *c, const tpl_args *a, tpl_value *out) {
    int64_t v[3] = {0, 0, 1};
    if (a->n < 1 || a->n > 3) return tpl_fail(c, NF_ERR_ARGUMENT, "range expects 1 to 3 arguments");
    for (size_t i = 0; i < a->n; i++) {
        if (a->pos[i].kind != T_INT && a->pos[i].kind != T_BOOL)
            return tpl_fail(c, NF_ERR_ARGUMENT, "'%s' object cannot be interpreted as an integer",
                            tpl_type_name(a->pos[i]));
        v[a->n == 1 ? 1 : i] = a->pos[i].kind == T_INT ? a->pos[i].i : a->pos[i].b;
    }
    if (!v[2]) return tpl_fail(c, NF_ERR_ARGUMENT, "range() arg 3 must not be zero");
    *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
    if (!out->list) return false;
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        /* The sandbox allows 100,000 elements. */
        if (out->list->n >= 100000)
            return tpl_fail(c, NF_ERR_LIMIT, "range too big: the sandbox blocks ranges larger than 100000");
        if (!tpl_list_add(c, out->list, tpl_int(i))) return false;
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return true;
}

/* dict(...) and namespace(...): a mapping or pairs, then keywords. */
static bool fn_dict(tpl_ctx *c, const tpl_args *a, tpl_kind kind, tpl_value *out) {
    *out = (tpl_value){.kind = kind, .dict = tpl_dict_new(c)};
    if (!out->dict) return false;
    if (a->n && a->pos[0].kind == T_DICT) {
        for (size_t i = 0; i < a->pos[0].dict->n; i++)
            if (!tpl_dict_set(c, out->dict, a->pos[0].dict->keys[i], a->pos[0].dict->values[i])) return false;
    } else if (a->n) {
        tpl_list *pairs, *pair;
        if (!tpl_iterate(c, a->pos[0], &pairs)) return false;
        for (size_t i = 0; i < pairs->n; i++) {
            if (!tpl_iterate(c, pairs->items[i], &pair)) return false;
            if (pair->n != 2)
                return tpl_fail(c, NF_ERR_ARGUMENT,
                                "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                                pair->n);
            if (!tpl_dict_set(c, out->dict, pair->items[0], pair->items[1])) return false;
        }
    }
    for (size_t i = 0; i < a->n_named; i++)
        if (!tpl_dict_set(c, out->dict, tpl_text(a->names[i]), a->named[i])) return false;
    return true;
}

static bool fn_raise(tpl_ctx *c, const tpl_args *a) {
    tpl_str message = tpl_lit("the template raised an exception");
    const tpl_value *v = tpl_arg(a, 0, "message");
    if (v && !tpl_to_str(c, *v, &message)) return false;
    return tpl_fail(c, NF_ERR_ARGUMENT, "%.*s", (int)(message.n < 400 ? message.n : 400), message.p);
}

static bool fn_strftime(tpl_ctx *c, const tpl_args *a, tpl_value *out) {
    tpl_str format = {0};
    char pattern[256], text[1024];
    if (!need_str(c, a, 0, "format", &format)) return false;
    if (format.n >= sizeof pattern) return tpl_fail(c, NF_ERR_LIMIT, "strftime_now: the format is too long");
    memcpy(pattern, format.p, format.n);
    pattern[format.n] = '\0';
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    size_t n = strftime(text, sizeof text, pattern, &local);
    char *copy = tpl_make(c, n + 1);
    if (!copy) return false;
    memcpy(copy, text, n);
    *out = tpl_text((tpl_str){copy, n});
    return true;
}

bool tpl_function(tpl_ctx *c, tpl_str name, const tpl_args *args, tpl_value *out) {
    if (tpl_str_is(name, "range")) return fn_range(c, args, out);
    if (tpl_str_is(name, "dict")) return fn_dict(c, args, T_DICT, out);
    if (tpl_str_is(name, "namespace")) return fn_dict(c, args, T_NAMESPACE, out);
    if (tpl_str_is(name, "raise_exception")) return fn_raise(c, args);
    return fn_strftime(c, args, out);
}
