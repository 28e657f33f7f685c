/* Values of the template interpreter: Python's meaning of truth, equality, order, str(), repr() and
 * json.dumps(). */
#include "runtime/template_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- memory ---- */

void *tpl_alloc(tpl_arena *a, size_t n) {
    n = (n + 15) / 16 * 16;
    if (n > a->left) {
        size_t block = n > 65536 - sizeof(tpl_block) ? n : 65536 - 16;
        if (n > NF_TPL_MAX_ARENA || a->total > NF_TPL_MAX_ARENA - block) return NULL;
        tpl_block *b = calloc(1, block + 16);
        if (!b) return NULL;
        b->next = a->blocks;
        a->blocks = b;
        a->at = (char *)b + 16;
        a->left = block;
        a->total += block;
    }
    void *p = a->at;
    a->at += n;
    a->left -= n;
    return p;
}

void tpl_arena_free(tpl_arena *a) {
    for (tpl_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *a = (tpl_arena){0};
}

bool tpl_fail(tpl_ctx *c, nf_status status, const char *format, ...) {
    if (c->status) return false;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->status = nf_fail(c->err, status, "line %d: %s", c->line, text);
    return false;
}

void *tpl_make(tpl_ctx *c, size_t n) {
    void *p = tpl_alloc(&c->arena, n);
    if (!p) tpl_fail(c, NF_ERR_LIMIT, "the template uses too much memory");
    return p;
}

bool tpl_step(tpl_ctx *c, uint64_t n) {
    c->steps += n;
    return c->steps <= NF_TPL_MAX_STEPS ||
           tpl_fail(c, NF_ERR_LIMIT, "the template runs too long (over %u steps)", NF_TPL_MAX_STEPS);
}

bool tpl_keep(tpl_ctx *c, nf_buf *buf, tpl_str *out) {
    char *copy = tpl_make(c, buf->len + 1);
    if (copy && buf->len) memcpy(copy, buf->data, buf->len);
    *out = (tpl_str){copy, buf->len};
    nf_buf_free(buf);
    return copy != NULL;
}

/* ---- strings ---- */

bool tpl_str_is(tpl_str s, const char *text) {
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}
bool tpl_str_eq(tpl_str a, tpl_str b) {
    return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n));
}

uint32_t tpl_next(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    int n = *s < 0x80 ? 1 : *s < 0xE0 ? 2 : *s < 0xF0 ? 3 : 4;
    uint32_t c = n == 1 ? *s : *s & (0xFFu >> (n + 1));
    for (int i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3Fu);
    *p += n;
    return c;
}

size_t tpl_length(tpl_str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

size_t tpl_offset(tpl_str s, size_t index) {
    const char *p = s.p, *end = s.p + s.n;
    while (index-- && p < end) tpl_next(&p);
    return (size_t)(p - s.p);
}

bool tpl_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool tpl_put(uint32_t code, nf_buf *out, nf_error *err) {
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)code, bytes);
    return n > 0 && !nf_buf_append(out, bytes, (size_t)n, err);
}

static bool in_set(uint32_t c, const tpl_str *chars) {
    if (!chars) return tpl_is_space(c);
    for (const char *p = chars->p, *end = p + chars->n; p < end;)
        if (tpl_next(&p) == c) return true;
    return false;
}

tpl_str tpl_trim(tpl_str s, const tpl_str *chars, bool left, bool right) {
    const char *p = s.p, *end = s.p + s.n;
    while (left && p < end) {
        const char *q = p;
        if (!in_set(tpl_next(&q), chars)) break;
        p = q;
    }
    while (right && end > p) {
        const char *q = end - 1;
        while (q > p && ((unsigned char)*q & 0xC0) == 0x80) q--;
        const char *r = q;
        if (!in_set(tpl_next(&r), chars)) break;
        end = q;
    }
    return (tpl_str){p, (size_t)(end - p)};
}

bool tpl_case(tpl_ctx *c, tpl_str s, char how, tpl_str *out) {
    nf_buf buf = {0};
    bool ok = true, word = false, first = true;
    for (const char *p = s.p, *end = s.p + s.n; p < end && ok;) {
        uint32_t code = tpl_next(&p);
        bool upper = how == 'u' || (how == 'c' && first) || (how == 't' && !word);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        if (code == 0xDF && upper) { /* the one common letter whose upper case is two */
            ok = tpl_put('S', &buf, NULL) && tpl_put(how == 'u' ? 'S' : 's', &buf, NULL);
        } else {
            utf8proc_int32_t mapped = upper ? (how == 'u' ? utf8proc_toupper((utf8proc_int32_t)code)
                                                          : utf8proc_totitle((utf8proc_int32_t)code))
                                            : utf8proc_tolower((utf8proc_int32_t)code);
            ok = tpl_put((uint32_t)mapped, &buf, NULL);
        }
        word = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
               category == UTF8PROC_CATEGORY_LT;
        first = false;
    }
    return tpl_keep(c, &buf, out) && (ok || tpl_fail(c, NF_ERR_MEMORY, "out of memory"));
}

/* ---- lists and dicts ---- */

tpl_list *tpl_list_new(tpl_ctx *c) {
    return tpl_make(c, sizeof(tpl_list));
}

static bool grow(tpl_ctx *c, tpl_value **items, size_t n, size_t cap) {
    tpl_value *grown = tpl_make(c, cap * sizeof **items);
    if (!grown) return false;
    if (n) memcpy(grown, *items, n * sizeof **items);
    *items = grown;
    return true;
}

bool tpl_list_add(tpl_ctx *c, tpl_list *l, tpl_value v) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        if (!tpl_step(c, l->n) || !grow(c, &l->items, l->n, cap)) return false;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return true;
}

tpl_dict *tpl_dict_new(tpl_ctx *c) {
    return tpl_make(c, sizeof(tpl_dict));
}

tpl_value *tpl_dict_get(tpl_ctx *c, const tpl_dict *d, tpl_value key) {
    for (size_t i = 0; i < d->n; i++)
        if (tpl_equal(c, d->keys[i], key)) return &d->values[i];
    return NULL;
}

tpl_value *tpl_dict_get_str(const tpl_dict *d, tpl_str key) {
    for (size_t i = 0; i < d->n; i++)
        if (d->keys[i].kind == T_STR && tpl_str_eq(d->keys[i].s, key)) return &d->values[i];
    return NULL;
}

bool tpl_dict_set(tpl_ctx *c, tpl_dict *d, tpl_value key, tpl_value v) {
    if (!tpl_step(c, d->n)) return false;
    tpl_value *old = tpl_dict_get(c, d, key);
    if (old) {
        *old = v;
        return true;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        if (!grow(c, &d->keys, d->n, cap) || !grow(c, &d->values, d->n, cap)) return false;
        d->cap = cap;
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
    return true;
}

bool tpl_from_json(tpl_ctx *c, const json_t *j, int depth, tpl_value *out) {
    if (depth > NF_TPL_MAX_DEPTH)
        return tpl_fail(c, NF_ERR_LIMIT, "variables are nested more than %d deep", NF_TPL_MAX_DEPTH);
    if (!tpl_step(c, 1)) return false;
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = tpl_none();
        return true;
    case JSON_TRUE:
        *out = tpl_bool(true);
        return true;
    case JSON_FALSE:
        *out = tpl_bool(false);
        return true;
    case JSON_INTEGER:
        *out = tpl_int(json_integer_value(j));
        return true;
    case JSON_REAL:
        *out = tpl_float(json_real_value(j));
        return true;
    case JSON_STRING:
        *out = tpl_text((tpl_str){json_string_value(j), json_string_length(j)});
        return true; /* outlives the render */
    case JSON_ARRAY: {
        *out = (tpl_value){.kind = T_LIST, .list = tpl_list_new(c)};
        for (size_t i = 0; out->list && i < json_array_size(j); i++) {
            tpl_value v;
            if (!tpl_from_json(c, json_array_get(j, i), depth + 1, &v) || !tpl_list_add(c, out->list, v))
                return false;
        }
        return out->list != NULL;
    }
    case JSON_OBJECT: {
        *out = (tpl_value){.kind = T_DICT, .dict = tpl_dict_new(c)};
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)j, key, value) {
            tpl_value v;
            if (!out->dict || !tpl_from_json(c, value, depth + 1, &v) ||
                !tpl_dict_set(c, out->dict, tpl_text(tpl_lit(key)), v))
                return false;
        }
        return out->dict != NULL;
    }
    }
    return false;
}

/* ---- truth, equality, order ---- */

bool tpl_is_number(tpl_value v) {
    return v.kind == T_INT || v.kind == T_FLOAT || v.kind == T_BOOL;
}
double tpl_number(tpl_value v) {
    return v.kind == T_FLOAT ? v.f : v.kind == T_INT ? (double)v.i : (double)v.b;
}

bool tpl_truth(tpl_value v) {
    switch (v.kind) {
    case T_UNDEFINED:
    case T_NONE:
        return false;
    case T_BOOL:
        return v.b;
    case T_INT:
        return v.i != 0;
    case T_FLOAT:
        return v.f != 0;
    case T_STR:
        return v.s.n != 0;
    case T_LIST:
    case T_TUPLE:
        return v.list->n != 0;
    case T_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

static int64_t as_int(tpl_value v) {
    return v.kind == T_BOOL ? v.b : v.i;
}

int tpl_order_numbers(tpl_value a, tpl_value b) {
    if (a.kind != T_FLOAT && b.kind != T_FLOAT) return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
    if (a.kind == T_FLOAT && b.kind != T_FLOAT) {
        int order = tpl_order_numbers(b, a);
        return order == 2 ? 2 : -order;
    }
    if (isnan(b.f) || (a.kind == T_FLOAT && isnan(a.f))) return 2;
    if (a.kind == T_FLOAT) return a.f < b.f ? -1 : a.f > b.f;
    if (b.f >= 9223372036854775808.0) return -1;
    if (b.f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)b.f;
    double rest = b.f - (double)whole;
    return as_int(a) != whole ? (as_int(a) < whole ? -1 : 1) : rest > 0 ? -1 : rest < 0;
}

static bool equal(tpl_ctx *c, tpl_value a, tpl_value b, int depth) {
    if (tpl_is_number(a) && tpl_is_number(b)) return tpl_order_numbers(a, b) == 0;
    if (a.kind != b.kind) return false;
    if (depth > NF_TPL_MAX_DEPTH) return tpl_fail(c, NF_ERR_LIMIT, "a value is nested too deep to compare");
    if (!tpl_step(c, 1)) return false;
    switch (a.kind) {
    case T_UNDEFINED:
    case T_NONE:
        return true;
    case T_STR:
        return tpl_str_eq(a.s, b.s);
    case T_LIST:
    case T_TUPLE:
        if (a.list->n != b.list->n) return false;
        for (size_t i = 0; i < a.list->n; i++)
            if (!equal(c, a.list->items[i], b.list->items[i], depth + 1)) return false;
        return true;
    case T_DICT:
        if (a.dict->n != b.dict->n) return false;
        for (size_t i = 0; i < a.dict->n; i++) {
            const tpl_value *v = tpl_dict_get(c, b.dict, a.dict->keys[i]);
            if (!v || !equal(c, *v, a.dict->values[i], depth + 1)) return false;
        }
        return true;
    case T_FUNCTION:
        return tpl_str_eq(a.s, b.s);
    default:
        return a.list == b.list; /* the same object */
    }
}

bool tpl_equal(tpl_ctx *c, tpl_value a, tpl_value b) {
    return equal(c, a, b, 0);
}

const char *tpl_type_name(tpl_value v) {
    static const char *const names[] = {"Undefined", "NoneType", "bool",   "int",        "float",
                                        "str",       "list",     "tuple",  "dict",       "Namespace",
                                        "Macro",     "function", "method", "LoopContext"};
    return names[v.kind];
}

static bool order_at(tpl_ctx *c, tpl_value a, tpl_value b, int *order, int depth) {
    if (depth > NF_TPL_MAX_DEPTH) return tpl_fail(c, NF_ERR_LIMIT, "a value is nested too deep to compare");
    if (!tpl_step(c, 1)) return false;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *order = tpl_order_numbers(a, b);
        if (*order == 2) *order = 0; /* NaN sorts as equal to everything */
        return true;
    }
    if (a.kind == T_STR && b.kind == T_STR) { /* UTF-8 sorts as code points do */
        size_t n = a.s.n < b.s.n ? a.s.n : b.s.n;
        int d = n ? memcmp(a.s.p, b.s.p, n) : 0;
        *order = d ? (d < 0 ? -1 : 1) : a.s.n < b.s.n ? -1 : a.s.n > b.s.n;
        return true;
    }
    if ((a.kind == T_LIST || a.kind == T_TUPLE) && a.kind == b.kind) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!tpl_equal(c, a.list->items[i], b.list->items[i]))
                return !c->status && order_at(c, a.list->items[i], b.list->items[i], order, depth + 1);
        *order = a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
        return true;
    }
    return tpl_fail(c, NF_ERR_ARGUMENT, "'<' not supported between instances of '%s' and '%s'",
                    tpl_type_name(a), tpl_type_name(b));
}

bool tpl_order(tpl_ctx *c, tpl_value a, tpl_value b, int *order) {
    return order_at(c, a, b, order, 0);
}

/* ---- iteration ---- */

bool tpl_iterate(tpl_ctx *c, tpl_value v, tpl_list **out) {
    if (v.kind == T_LIST || v.kind == T_TUPLE) {
        *out = v.list;
        return true;
    }
    if (v.kind != T_UNDEFINED && v.kind != T_STR && v.kind != T_DICT)
        return tpl_fail(c, NF_ERR_ARGUMENT, "'%s' object is not iterable", tpl_type_name(v));
    if (!(*out = tpl_list_new(c))) return false;
    if (v.kind == T_DICT)
        for (size_t i = 0; i < v.dict->n; i++)
            if (!tpl_list_add(c, *out, v.dict->keys[i])) return false;
    if (v.kind == T_STR)
        for (const char *p = v.s.p, *end = p + v.s.n; p < end;) {
            const char *from = p;
            tpl_next(&p);
            if (!tpl_list_add(c, *out, tpl_text((tpl_str){from, (size_t)(p - from)}))) return false;
        }
    return true;
}

/* ---- str() and repr() ---- */

static bool put(tpl_ctx *c, nf_buf *out, const char *text, size_t n) {
    if (out->len + n > NF_TPL_MAX_OUTPUT)
        return tpl_fail(c, NF_ERR_LIMIT, "the output is larger than %u bytes", NF_TPL_MAX_OUTPUT);
    return !nf_buf_append(out, text, n, NULL) || tpl_fail(c, NF_ERR_MEMORY, "out of memory for the output");
}

static bool put_text(tpl_ctx *c, nf_buf *out, const char *text) {
    return put(c, out, text, strlen(text));
}

/* Python's repr of a float: the shortest digits that read back the same. */
static bool put_float(tpl_ctx *c, double f, bool json, nf_buf *out) {
    char text[40], digits[40];
    if (isnan(f)) return put_text(c, out, json ? "NaN" : "nan");
    if (isinf(f)) return put_text(c, out, json ? (f < 0 ? "-Infinity" : "Infinity") : f < 0 ? "-inf" : "inf");
    int precision = 1;
    do snprintf(text, sizeof text, "%.*e", precision - 1, f);
    while (strtod(text, NULL) != f && precision++ < 17);
    int exponent = atoi(strchr(text, 'e') + 1), n = 0;
    for (const char *p = text; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    if (f < 0 || (f == 0 && signbit(f))) {
        if (!put_text(c, out, "-")) return false;
    }
    char result[400];
    int k = 0;
    if (exponent < -4 || exponent >= 16) {
        k = snprintf(result, sizeof result, "%c%s%.*se%c%02d", digits[0], n > 1 ? "." : "", n - 1, digits + 1,
                     exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        k = snprintf(result, sizeof result, "0.%.*s%.*s", -exponent - 1, "0000", n, digits);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) result[k++] = '.';
            result[k++] = i < n ? digits[i] : '0';
        }
        if (n <= exponent + 1) result[k++] = '.', result[k++] = '0';
    }
    return put(c, out, result, (size_t)k);
}

static bool printable(uint32_t code) {
    if (code == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static bool repr_str(tpl_ctx *c, tpl_str s, nf_buf *out) {
    char quote = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'', escape[16];
    bool ok = put(c, out, &quote, 1);
    for (const char *p = s.p, *end = s.p + s.n; p < end && ok;) {
        const char *from = p;
        uint32_t code = tpl_next(&p);
        if (code == (unsigned char)quote || code == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (code == '\n')
            snprintf(escape, sizeof escape, "\\n");
        else if (code == '\r')
            snprintf(escape, sizeof escape, "\\r");
        else if (code == '\t')
            snprintf(escape, sizeof escape, "\\t");
        else if (printable(code)) {
            ok = put(c, out, from, (size_t)(p - from));
            continue;
        } else
            snprintf(escape, sizeof escape,
                     code < 0x100     ? "\\x%02x"
                     : code < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                     code);
        ok = put_text(c, out, escape);
    }
    return ok && put(c, out, &quote, 1);
}

static bool repr_items(tpl_ctx *c, tpl_value v, nf_buf *out) {
    bool list = v.kind == T_LIST;
    bool ok = put_text(c, out, list ? "[" : "(");
    for (size_t i = 0; i < v.list->n && ok; i++)
        ok = (!i || put_text(c, out, ", ")) && tpl_repr(c, v.list->items[i], out);
    if (ok && !list && v.list->n == 1) ok = put_text(c, out, ",");
    return ok && put_text(c, out, list ? "]" : ")");
}

static bool repr_dict(tpl_ctx *c, const tpl_dict *d, nf_buf *out) {
    bool ok = put_text(c, out, "{");
    for (size_t i = 0; i < d->n && ok; i++)
        ok = (!i || put_text(c, out, ", ")) && tpl_repr(c, d->keys[i], out) && put_text(c, out, ": ") &&
             tpl_repr(c, d->values[i], out);
    return ok && put_text(c, out, "}");
}

bool tpl_repr(tpl_ctx *c, tpl_value v, nf_buf *out) {
    char text[32];
    if (!tpl_step(c, 1)) return false;
    if (++c->depth > NF_TPL_MAX_DEPTH) return tpl_fail(c, NF_ERR_LIMIT, "a value is nested too deep");
    bool ok;
    switch (v.kind) {
    case T_UNDEFINED:
        ok = put_text(c, out, "Undefined");
        break;
    case T_NONE:
        ok = put_text(c, out, "None");
        break;
    case T_BOOL:
        ok = put_text(c, out, v.b ? "True" : "False");
        break;
    case T_INT:
        ok = put(c, out, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i));
        break;
    case T_FLOAT:
        ok = put_float(c, v.f, false, out);
        break;
    case T_STR:
        ok = repr_str(c, v.s, out);
        break;
    case T_LIST:
    case T_TUPLE:
        ok = repr_items(c, v, out);
        break;
    case T_DICT:
        ok = repr_dict(c, v.dict, out);
        break;
    default:
        ok = tpl_fail(c, NF_ERR_UNSUPPORTED, "printing an object of type '%s'", tpl_type_name(v));
        break;
    }
    c->depth--;
    return ok;
}

bool tpl_print(tpl_ctx *c, tpl_value v, nf_buf *out) {
    if (v.kind == T_STR) return put(c, out, v.s.p, v.s.n);
    if (v.kind == T_UNDEFINED) return true;
    return tpl_repr(c, v, out);
}

bool tpl_to_str(tpl_ctx *c, tpl_value v, tpl_str *out) {
    if (v.kind == T_STR) {
        *out = v.s;
        return true;
    }
    nf_buf buf = {0};
    if (tpl_print(c, v, &buf)) return tpl_keep(c, &buf, out);
    nf_buf_free(&buf);
    return false;
}

/* ---- json.dumps ---- */

typedef struct json_style {
    tpl_ctx *c;
    nf_buf *out;
    bool ascii, sort;
    int indent; /* -1: on one line */
    tpl_str indent_text;
    tpl_str item, key; /* separators */
} json_style;

static bool json_text(json_style *j, tpl_str s) {
    tpl_ctx *c = j->c;
    bool ok = put_text(c, j->out, "\"");
    for (const char *p = s.p, *end = s.p + s.n; p < end && ok;) {
        const char *from = p;
        uint32_t code = tpl_next(&p);
        char escape[16];
        static const char special[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
        const char *at = code && code < 128 ? strchr(special, (int)code) : NULL;
        if (at)
            snprintf(escape, sizeof escape, "\\%c", letter[at - special]);
        else if (code < 0x20 || (j->ascii && code > 126 && code < 0x10000 && code != 127))
            snprintf(escape, sizeof escape, "\\u%04x", code);
        else if (j->ascii && code >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                     0xDC00 + ((code - 0x10000) & 0x3FF));
        else {
            ok = put(c, j->out, from, (size_t)(p - from));
            continue;
        }
        ok = put_text(c, j->out, escape);
    }
    return ok && put_text(c, j->out, "\"");
}

static bool json_newline(json_style *j, int level) {
    if (j->indent < 0) return true;
    bool ok = put_text(j->c, j->out, "\n");
    for (int i = 0; i < level && ok; i++) ok = put(j->c, j->out, j->indent_text.p, j->indent_text.n);
    return ok;
}

static bool json_value(json_style *j, tpl_value v, int level);

static bool json_key(json_style *j, tpl_value key) {
    if (key.kind == T_STR) return json_text(j, key.s);
    if (key.kind != T_NONE && !tpl_is_number(key))
        return tpl_fail(j->c, NF_ERR_ARGUMENT, "tojson: keys must be str, int, float, bool or None");
    return put_text(j->c, j->out, "\"") && json_value(j, key, 0) && put_text(j->c, j->out, "\"");
}

static bool json_dict(json_style *j, const tpl_dict *d, int level) {
    tpl_ctx *c = j->c;
    size_t *order = tpl_make(c, (d->n + 1) * sizeof *order);
    if (!order) return false;
    for (size_t i = 0; i < d->n; i++) order[i] = i;
    for (size_t i = 1; j->sort && i < d->n; i++) /* insertion sort: few keys */
        for (size_t k = i; k; k--) {
            int cmp;
            if (!tpl_step(c, 1) || !tpl_order(c, d->keys[order[k - 1]], d->keys[order[k]], &cmp))
                return false;
            if (cmp <= 0) break;
            size_t t = order[k];
            order[k] = order[k - 1];
            order[k - 1] = t;
        }
    bool ok = put_text(c, j->out, "{");
    for (size_t i = 0; i < d->n && ok; i++)
        ok = (!i || put(c, j->out, j->item.p, j->item.n)) && json_newline(j, level + 1) &&
             json_key(j, d->keys[order[i]]) && put(c, j->out, j->key.p, j->key.n) &&
             json_value(j, d->values[order[i]], level + 1);
    return ok && (!d->n || json_newline(j, level)) && put_text(c, j->out, "}");
}

static bool json_value(json_style *j, tpl_value v, int level) {
    tpl_ctx *c = j->c;
    char text[32];
    bool ok;
    if (!tpl_step(c, 1)) return false;
    if (level > NF_TPL_MAX_DEPTH) return tpl_fail(c, NF_ERR_LIMIT, "a value is nested too deep");
    switch (v.kind) {
    case T_NONE:
        return put_text(c, j->out, "null");
    case T_BOOL:
        return put_text(c, j->out, v.b ? "true" : "false");
    case T_INT:
        return put(c, j->out, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i));
    case T_FLOAT:
        return put_float(c, v.f, true, j->out);
    case T_STR:
        return json_text(j, v.s);
    case T_DICT:
        return json_dict(j, v.dict, level);
    case T_LIST:
    case T_TUPLE:
        ok = put_text(c, j->out, "[");
        for (size_t i = 0; i < v.list->n && ok; i++)
            ok = (!i || put(c, j->out, j->item.p, j->item.n)) && json_newline(j, level + 1) &&
                 json_value(j, v.list->items[i], level + 1);
        return ok && (!v.list->n || json_newline(j, level)) && put_text(c, j->out, "]");
    default:
        return tpl_fail(c, NF_ERR_ARGUMENT, "tojson: an object of type '%s' is not JSON serializable",
                        tpl_type_name(v));
    }
}

bool tpl_json(tpl_ctx *c, tpl_value v, const tpl_args *options, nf_buf *out) {
    const tpl_value *ascii = tpl_arg(options, 0, "ensure_ascii"), *indent = tpl_arg(options, 1, "indent"),
                    *separators = tpl_arg(options, 2, "separators"), *sort = tpl_arg(options, 3, "sort_keys");
    json_style j = {.c = c,
                    .out = out,
                    .ascii = ascii && tpl_truth(*ascii),
                    .sort = sort && tpl_truth(*sort),
                    .indent = -1};
    if (indent && indent->kind == T_INT) {
        if (indent->i > 64) return tpl_fail(c, NF_ERR_LIMIT, "tojson: indent is too large");
        static const char spaces[65] = "                                                                ";
        j.indent = 1;
        j.indent_text = (tpl_str){spaces, indent->i > 0 ? (size_t)indent->i : 0};
    } else if (indent && indent->kind == T_STR) {
        j.indent = 1;
        j.indent_text = indent->s;
    }
    j.item = tpl_lit(j.indent >= 0 ? "," : ", ");
    j.key = tpl_lit(": ");
    if (separators && (separators->kind == T_TUPLE || separators->kind == T_LIST) &&
        separators->list->n == 2 && separators->list->items[0].kind == T_STR &&
        separators->list->items[1].kind == T_STR) {
        j.item = separators->list->items[0].s;
        j.key = separators->list->items[1].s;
    } else if (separators && separators->kind != T_NONE) {
        return tpl_fail(c, NF_ERR_ARGUMENT, "tojson: separators must be two strings");
    }
    return json_value(&j, v, 0);
}
