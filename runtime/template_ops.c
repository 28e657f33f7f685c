/* Operators of the template interpreter: Python's arithmetic, joining, containment and comparison. */
#include "runtime/template_internal.h"

#include <math.h>
#include <string.h>

static bool type_error(tpl_ctx *c, const char *op, tpl_value a, tpl_value b) {
    if (a.kind == T_UNDEFINED) return tpl_undefined_error(c, a);
    if (b.kind == T_UNDEFINED) return tpl_undefined_error(c, b);
    return tpl_fail(c, NF_ERR_ARGUMENT, "unsupported operand type(s) for %s: '%s' and '%s'", op,
                    tpl_type_name(a), tpl_type_name(b));
}

static bool join_lists(tpl_ctx *c, tpl_value a, tpl_value b, tpl_value *out) {
    tpl_list *l = tpl_list_new(c);
    for (size_t i = 0; l && i < a.list->n; i++)
        if (!tpl_list_add(c, l, a.list->items[i])) return false;
    for (size_t i = 0; l && i < b.list->n; i++)
        if (!tpl_list_add(c, l, b.list->items[i])) return false;
    *out = (tpl_value){.kind = a.kind, .list = l};
    return l != NULL;
}

/* Markup plus text: the plain side is escaped, the result is markup. */
static bool join_markup(tpl_ctx *c, tpl_value a, tpl_value b, tpl_value *out) {
    nf_buf buf = {0};
    for (int side = 0; side < 2; side++) {
        const tpl_value *v = side ? &b : &a;
        if (v->markup ? nf_buf_append(&buf, v->s.p, v->s.n, NULL) != NF_OK : !tpl_escape(v->s, &buf)) {
            nf_buf_free(&buf);
            return tpl_fail(c, NF_ERR_MEMORY, "out of memory");
        }
    }
    *out = (tpl_value){.kind = T_STR, .markup = true};
    return tpl_keep(c, &buf, &out->s);
}

static bool join_strings(tpl_ctx *c, tpl_str a, tpl_str b, tpl_value *out) {
    char *p = tpl_make(c, a.n + b.n + 1);
    if (!p || !tpl_step(c, (a.n + b.n) / 64)) return false;
    if (a.n) memcpy(p, a.p, a.n);
    if (b.n) memcpy(p + a.n, b.p, b.n);
    *out = tpl_text((tpl_str){p, a.n + b.n});
    return true;
}

static bool repeat(tpl_ctx *c, tpl_value v, int64_t times, tpl_value *out) {
    if (times < 0) times = 0;
    *out =
        v.kind == T_STR ? tpl_text((tpl_str){"", 0}) : (tpl_value){.kind = v.kind, .list = tpl_list_new(c)};
    if (v.kind != T_STR) {
        if (!out->list) return false;
        for (int64_t k = 0; k < times; k++)
            for (size_t i = 0; i < v.list->n; i++)
                if (!tpl_step(c, 1) || !tpl_list_add(c, out->list, v.list->items[i])) return false;
        return true;
    }
    if (v.s.n && (uint64_t)times > NF_TPL_MAX_OUTPUT / v.s.n)
        return tpl_fail(c, NF_ERR_LIMIT, "a repeated string is too long");
    char *p = tpl_make(c, v.s.n * (size_t)times + 1);
    for (int64_t k = 0; p && v.s.n && k < times; k++) memcpy(p + (size_t)k * v.s.n, v.s.p, v.s.n);
    *out = tpl_text((tpl_str){p, v.s.n * (size_t)times});
    return p && tpl_step(c, out->s.n / 64);
}

static int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static bool int_binary(tpl_ctx *c, int op, int64_t a, int64_t b, tpl_value *out) {
    int64_t r = 0;
    bool overflow = false;
    if ((op == 'D' || op == '%' || op == '/') && !b) return tpl_fail(c, NF_ERR_ARGUMENT, "division by zero");
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case 'D':
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) r = floor_div(a, b);
        break;
    case '%':
        r = b == -1 ? 0 : a % b; /* a product could overflow */
        if (r && (r < 0) != (b < 0)) r += b;
        break;
    case '/':
        *out = tpl_float((double)a / (double)b);
        return true;
    default: /* ** */
        if (b < 0) {
            *out = tpl_float(pow((double)a, (double)b));
            return true;
        }
        r = 1;
        for (int64_t k = 0; k < b && !overflow; k++) {
            if (a == 0 || a == 1 || (a == -1 && k > 1)) { /* the rest changes at most the sign */
                r = a == -1 ? (b % 2 ? -1 : 1) : a == 1 || b == 0 ? 1 : 0;
                break;
            }
            overflow = __builtin_mul_overflow(r, a, &r);
        }
    }
    if (overflow) return tpl_fail(c, NF_ERR_LIMIT, "a whole number beyond 64 bits");
    *out = tpl_int(r);
    return true;
}

static bool float_binary(tpl_ctx *c, int op, double a, double b, tpl_value *out) {
    if ((op == 'D' || op == '%' || op == '/') && b == 0)
        return tpl_fail(c, NF_ERR_ARGUMENT, "division by zero");
    double r = 0, m;
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case '/':
        r = a / b;
        break;
    case 'D':
        r = floor(a / b);
        break;
    case '%':
        m = fmod(a, b);
        r = m != 0 && (m < 0) != (b < 0) ? m + b : m;
        break;
    default:
        r = pow(a, b);
    }
    *out = tpl_float(r);
    return true;
}

/* "%s and %d" % values: the conversions that templates use. */
static bool format_percent(tpl_ctx *c, tpl_str format, tpl_value args, tpl_value *out) {
    tpl_args list = {.pos = args.kind == T_TUPLE ? args.list->items : &args,
                     .n = args.kind == T_TUPLE ? args.list->n : 1};
    return tpl_filter(c, tpl_lit("format"), tpl_text(format), &list, out);
}

bool tpl_binary(tpl_ctx *c, int op, tpl_value a, tpl_value b, tpl_value *out) {
    static const char *const names[128] = {
        ['+'] = "+", ['-'] = "-", ['*'] = "*", ['/'] = "/", ['D'] = "//", ['%'] = "%", ['P'] = "**"};
    if (tpl_is_number(a) && tpl_is_number(b)) {
        if (a.kind == T_FLOAT || b.kind == T_FLOAT)
            return float_binary(c, op, tpl_number(a), tpl_number(b), out);
        return int_binary(c, op, a.kind == T_BOOL ? a.b : a.i, b.kind == T_BOOL ? b.b : b.i, out);
    }
    bool list_a = a.kind == T_LIST || a.kind == T_TUPLE;
    if (op == '+' && a.kind == T_STR && b.kind == T_STR && (a.markup || b.markup))
        return join_markup(c, a, b, out);
    if (op == '+' && a.kind == T_STR && b.kind == T_STR) return join_strings(c, a.s, b.s, out);
    if (op == '+' && list_a && a.kind == b.kind) return join_lists(c, a, b, out);
    if (op == '*' && (a.kind == T_STR || list_a) && (b.kind == T_INT || b.kind == T_BOOL))
        return repeat(c, a, b.kind == T_INT ? b.i : b.b, out);
    if (op == '*' && (b.kind == T_STR || b.kind == T_LIST || b.kind == T_TUPLE) &&
        (a.kind == T_INT || a.kind == T_BOOL))
        return repeat(c, b, a.kind == T_INT ? a.i : a.b, out);
    if (op == '%' && a.kind == T_STR) return format_percent(c, a.s, b, out);
    return type_error(c, names[op], a, b);
}

bool tpl_contains(tpl_ctx *c, tpl_value container, tpl_value item, bool *out) {
    if (container.kind == T_STR) {
        if (item.kind != T_STR)
            return tpl_fail(c, NF_ERR_ARGUMENT, "'in <string>' requires string as left operand, not %s",
                            tpl_type_name(item));
        *out = !item.s.n || memmem(container.s.p, container.s.n, item.s.p, item.s.n) != NULL;
        return tpl_step(c, container.s.n / 64);
    }
    if (container.kind == T_DICT) {
        *out = tpl_dict_get(c, container.dict, item) != NULL;
        return tpl_step(c, container.dict->n);
    }
    tpl_list *items;
    if (!tpl_iterate(c, container, &items) || !tpl_step(c, items->n)) return false;
    *out = false;
    for (size_t i = 0; i < items->n && !*out; i++) *out = tpl_equal(c, items->items[i], item);
    return true;
}

bool tpl_compare(tpl_ctx *c, int op, tpl_value a, tpl_value b, bool *out) {
    int order;
    switch (op) {
    case '=':
        *out = tpl_equal(c, a, b);
        return !c->status;
    case '!':
        *out = !tpl_equal(c, a, b);
        return !c->status;
    case 'i':
        return tpl_contains(c, b, a, out);
    case 'n':
        if (!tpl_contains(c, b, a, out)) return false;
        *out = !*out;
        return true;
    default:
        break;
    }
    if (a.kind == T_UNDEFINED || b.kind == T_UNDEFINED) return type_error(c, "<", a, b);
    if (!tpl_order(c, a, b, &order)) return false;
    *out = op == '<' ? order < 0 : op == 'l' ? order <= 0 : op == '>' ? order > 0 : order >= 0;
    if (tpl_is_number(a) && (isnan(tpl_number(a)) || isnan(tpl_number(b)))) *out = false;
    return true;
}
