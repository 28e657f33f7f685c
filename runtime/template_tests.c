/* Tests ("x is defined") of the template interpreter, as Jinja2 3.1 defines them. */
#include "runtime/template_internal.h"

#include <string.h>
#include <utf8proc.h>

static const char *const tests[] = {
    "!=",        "==",       "boolean", "callable", "defined",  "divisibleby", "eq",      "equalto",
    "even",      "false",    "filter",  "float",    "ge",       "greaterthan", "gt",      "in",
    "integer",   "iterable", "le",      "lessthan", "lower",    "lt",          "mapping", "ne",
    "none",      "number",   "odd",     "sameas",   "sequence", "string",      "test",    "true",
    "undefined", "upper",    ">",       "<",        ">=",       "<="};

bool tpl_known_test(tpl_str name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (tpl_str_is(name, tests[i])) return true;
    return false;
}

/* str.isupper()/islower(): some cased character, and none of the other case. */
static bool only_case(tpl_ctx *c, tpl_value v, bool upper, bool *out) {
    tpl_str s = {0};
    if (!tpl_to_str(c, v, &s)) return false;
    bool any = false, other = false;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)tpl_next(&p));
        any |= k == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
        other |= k == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) || k == UTF8PROC_CATEGORY_LT;
    }
    *out = any && !other;
    return true;
}

static bool compare_test(tpl_ctx *c, tpl_str name, tpl_value v, const tpl_args *a, bool *known, bool *out) {
    static const struct {
        const char *name;
        char op;
    } table[] = {{"eq", '='}, {"==", '='},          {"equalto", '='}, {"ne", '!'}, {"!=", '!'},
                 {"lt", '<'}, {"lessthan", '<'},    {"<", '<'},       {"le", 'l'}, {"<=", 'l'},
                 {"gt", '>'}, {"greaterthan", '>'}, {">", '>'},       {"ge", 'g'}, {">=", 'g'}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!tpl_str_is(name, table[i].name)) continue;
        int order = 0;
        *known = true;
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "the test '%s' needs an argument", table[i].name);
        if (table[i].op == '=' || table[i].op == '!') {
            *out = tpl_equal(c, v, a->pos[0]) == (table[i].op == '=');
            return true;
        }
        if (!tpl_order(c, v, a->pos[0], &order)) return false;
        *out = table[i].op == '<'   ? order < 0
               : table[i].op == 'l' ? order <= 0
               : table[i].op == '>' ? order > 0
                                    : order >= 0;
        return true;
    }
    *known = false;
    return true;
}

bool tpl_test(tpl_ctx *c, tpl_str name, tpl_value v, const tpl_args *a, bool *out) {
    bool known;
    if (!tpl_step(c, 1) || !compare_test(c, name, v, a, &known, out)) return false;
    if (known) return true;
    const bool list = v.kind == T_LIST || v.kind == T_TUPLE;
    if (tpl_str_is(name, "defined"))
        *out = v.kind != T_UNDEFINED;
    else if (tpl_str_is(name, "undefined"))
        *out = v.kind == T_UNDEFINED;
    else if (tpl_str_is(name, "none"))
        *out = v.kind == T_NONE;
    else if (tpl_str_is(name, "true"))
        *out = v.kind == T_BOOL && v.b;
    else if (tpl_str_is(name, "false"))
        *out = v.kind == T_BOOL && !v.b;
    else if (tpl_str_is(name, "boolean"))
        *out = v.kind == T_BOOL;
    else if (tpl_str_is(name, "string"))
        *out = v.kind == T_STR;
    else if (tpl_str_is(name, "number"))
        *out = tpl_is_number(v);
    else if (tpl_str_is(name, "integer"))
        *out = v.kind == T_INT;
    else if (tpl_str_is(name, "float"))
        *out = v.kind == T_FLOAT;
    else if (tpl_str_is(name, "mapping"))
        *out = v.kind == T_DICT;
    else if (tpl_str_is(name, "sequence"))
        *out = list || v.kind == T_STR || v.kind == T_DICT || v.kind == T_UNDEFINED; /* has len and items */
    else if (tpl_str_is(name, "iterable"))
        *out = list || v.kind == T_STR || v.kind == T_DICT || v.kind == T_UNDEFINED || v.kind == T_LOOP;
    else if (tpl_str_is(name, "callable"))
        *out = v.kind == T_MACRO || v.kind == T_FUNCTION || v.kind == T_METHOD || v.kind == T_UNDEFINED;
    else if (tpl_str_is(name, "upper"))
        return only_case(c, v, true, out);
    else if (tpl_str_is(name, "lower"))
        return only_case(c, v, false, out);
    else if (tpl_str_is(name, "filter"))
        *out = v.kind == T_STR && tpl_known_filter(v.s);
    else if (tpl_str_is(name, "test"))
        *out = v.kind == T_STR && tpl_known_test(v.s);
    else if (tpl_str_is(name, "odd") || tpl_str_is(name, "even")) {
        tpl_value r;
        if (!tpl_binary(c, '%', v, tpl_int(2), &r)) return false;
        *out = (tpl_number(r) == 1) == tpl_str_is(name, "odd");
    } else if (tpl_str_is(name, "divisibleby")) {
        tpl_value r;
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "divisibleby needs a number");
        if (!tpl_binary(c, '%', v, a->pos[0], &r)) return false;
        *out = tpl_number(r) == 0;
    } else if (tpl_str_is(name, "in")) {
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "the test 'in' needs an argument");
        return tpl_contains(c, a->pos[0], v, out);
    } else if (tpl_str_is(name, "sameas")) {
        if (!a->n) return tpl_fail(c, NF_ERR_ARGUMENT, "sameas needs an argument");
        *out = v.kind == a->pos[0].kind &&
               (v.kind < T_LIST ? tpl_equal(c, v, a->pos[0]) : v.list == a->pos[0].list);
    } else {
        return tpl_fail(c, NF_ERR_UNSUPPORTED, "no test named '%.*s'", (int)name.n, name.p);
    }
    return true;
}
