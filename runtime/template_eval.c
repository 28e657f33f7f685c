/* Evaluation: expressions, statements, scopes, macros and loops. A false return means that the context holds
 * a failure. */
#include "runtime/template_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum flow { F_NEXT, F_BREAK, F_CONTINUE, F_FAIL } flow;

static bool eval(tpl_ctx *c, const tpl_node *n, tpl_value *out);
static flow exec(tpl_ctx *c, const tpl_node *n);

static bool enter(tpl_ctx *c) {
    return ++c->depth <= NF_TPL_MAX_DEPTH ||
           tpl_fail(c, NF_ERR_LIMIT, "nested or recursive calls are more than %d deep", NF_TPL_MAX_DEPTH);
}

/* ---- scopes ---- */

static tpl_scope *push_scope(tpl_ctx *c, tpl_scope *parent) {
    tpl_scope *s = tpl_make(c, sizeof *s);
    if (!s) return NULL;
    s->parent = parent;
    c->scope = s;
    return s;
}

static bool lookup(tpl_ctx *c, tpl_str name, tpl_value *out) {
    for (tpl_scope *s = c->scope; s; s = s->parent) {
        if (!tpl_step(c, s->vars.n)) return false;
        tpl_value *v = tpl_dict_get_str(&s->vars, name);
        if (v) {
            *out = *v;
            return true;
        }
    }
    *out = tpl_is_function(name) ? (tpl_value){.kind = T_FUNCTION, .s = name} : tpl_undefined(name);
    return true;
}

static bool assign(tpl_ctx *c, const tpl_node *target, tpl_value v) {
    if (target->kind == N_NAME) return tpl_dict_set(c, &c->scope->vars, tpl_text(target->str), v);
    if (target->kind == N_ATTR) {
        tpl_value ns;
        if (!eval(c, target->a, &ns)) return false;
        if (ns.kind != T_NAMESPACE)
            return tpl_fail(c, NF_ERR_ARGUMENT, "cannot assign attribute on non-namespace object");
        return tpl_dict_set(c, ns.dict, tpl_text(target->str), v);
    }
    tpl_list *items;
    if (!tpl_iterate(c, v, &items)) return false;
    if (items->n != target->n)
        return tpl_fail(c, NF_ERR_ARGUMENT, "cannot unpack %zu values into %zu names", items->n, target->n);
    for (size_t i = 0; i < target->n; i++)
        if (!assign(c, target->list[i], items->items[i])) return false;
    return true;
}

/* ---- attributes and items ---- */

static bool loop_attribute(tpl_ctx *c, const tpl_loop *l, tpl_str name, tpl_value *out) {
    size_t n = l->items->n, i = l->index;
    if (tpl_str_is(name, "index"))
        *out = tpl_int((int64_t)i + 1);
    else if (tpl_str_is(name, "index0"))
        *out = tpl_int((int64_t)i);
    else if (tpl_str_is(name, "revindex"))
        *out = tpl_int((int64_t)(n - i));
    else if (tpl_str_is(name, "revindex0"))
        *out = tpl_int((int64_t)(n - i) - 1);
    else if (tpl_str_is(name, "first"))
        *out = tpl_bool(i == 0);
    else if (tpl_str_is(name, "last"))
        *out = tpl_bool(i + 1 == n);
    else if (tpl_str_is(name, "length"))
        *out = tpl_int((int64_t)n);
    else if (tpl_str_is(name, "depth"))
        *out = tpl_int(l->depth);
    else if (tpl_str_is(name, "depth0"))
        *out = tpl_int(l->depth - 1);
    else if (tpl_str_is(name, "previtem"))
        *out = i ? l->items->items[i - 1] : tpl_undefined(tpl_lit("there is no previous item"));
    else if (tpl_str_is(name, "nextitem"))
        *out = i + 1 < n ? l->items->items[i + 1] : tpl_undefined(tpl_lit("there is no next item"));
    else
        *out = tpl_undefined(name);
    (void)c;
    return true;
}

static bool method_value(tpl_ctx *c, tpl_value self, tpl_str name, tpl_value *out) {
    tpl_method *m = tpl_make(c, sizeof *m);
    if (!m) return false;
    *m = (tpl_method){self, name};
    *out = (tpl_value){.kind = T_METHOD, .method = m};
    return true;
}

bool tpl_undefined_error(tpl_ctx *c, tpl_value v) {
    return tpl_fail(c, NF_ERR_ARGUMENT, "'%.*s' is undefined", (int)(v.s.n < 100 ? v.s.n : 100),
                    v.s.p ? v.s.p : "");
}

bool tpl_attribute(tpl_ctx *c, tpl_value obj, tpl_str name, tpl_value *out) {
    const bool hidden = obj.kind == T_UNDEFINED && obj.s.n > 1 && obj.s.p[0] == '_' && obj.s.p[1] == '_';
    if (!hidden && name.n > 1 && name.p[0] == '_' &&
        name.p[1] == '_') { /* the sandbox hides Python's internals */
        *out = tpl_undefined(name);
        return true;
    }
    if (obj.kind == T_UNDEFINED) return tpl_undefined_error(c, obj);
    if (tpl_has_method(obj, name)) return method_value(c, obj, name, out);
    if (obj.kind == T_LOOP) return loop_attribute(c, obj.loop, name, out);
    if (obj.kind == T_MACRO && tpl_str_is(name, "name")) {
        *out = tpl_text(obj.macro->name);
        return true;
    }
    tpl_value *v = obj.kind == T_DICT || obj.kind == T_NAMESPACE ? tpl_dict_get_str(obj.dict, name) : NULL;
    if (obj.kind == T_DICT || obj.kind == T_NAMESPACE)
        if (!tpl_step(c, obj.dict->n)) return false;
    *out = v ? *v : tpl_undefined(name);
    return true;
}

bool tpl_item(tpl_ctx *c, tpl_value obj, tpl_value key, tpl_value *out) {
    if (obj.kind == T_UNDEFINED) return tpl_undefined_error(c, obj);
    if (key.kind == T_BOOL && obj.kind != T_DICT) key = tpl_int(key.b);
    if ((obj.kind == T_LIST || obj.kind == T_TUPLE) && key.kind == T_INT) {
        int64_t i = key.i < 0 ? key.i + (int64_t)obj.list->n : key.i;
        *out = i >= 0 && i < (int64_t)obj.list->n ? obj.list->items[i] : tpl_undefined(tpl_lit("list item"));
        return true;
    }
    if (obj.kind == T_STR && key.kind == T_INT) {
        int64_t n = (int64_t)tpl_length(obj.s), i = key.i < 0 ? key.i + n : key.i;
        if (!tpl_step(c, obj.s.n / 16)) return false;
        if (i < 0 || i >= n) {
            *out = tpl_undefined(tpl_lit("string item"));
            return true;
        }
        size_t at = tpl_offset(obj.s, (size_t)i),
               end = at + tpl_offset((tpl_str){obj.s.p + at, obj.s.n - at}, 1);
        *out = tpl_text((tpl_str){obj.s.p + at, end - at});
        return true;
    }
    if (obj.kind == T_DICT) {
        if (!tpl_step(c, obj.dict->n)) return false;
        tpl_value *v = tpl_dict_get(c, obj.dict, key);
        if (v) {
            *out = *v;
            return true;
        }
        if (key.kind == T_STR && tpl_has_method(obj, key.s)) return method_value(c, obj, key.s, out);
        *out = tpl_undefined(key.kind == T_STR ? key.s : tpl_lit("dict item"));
        return true;
    }
    if (key.kind == T_STR) return tpl_attribute(c, obj, key.s, out);
    *out = tpl_undefined(tpl_lit("item"));
    return true;
}

/* Bounds of a Python slice over n items. */
static bool slice_bounds(tpl_ctx *c, const tpl_node *n, int64_t count, int64_t *start, int64_t *stop,
                         int64_t *step) {
    tpl_value v[3];
    bool given[3] = {false};
    for (int i = 0; i < 3; i++) {
        if (!n->list[i]) continue;
        if (!eval(c, n->list[i], &v[i])) return false;
        if (v[i].kind == T_BOOL) v[i] = tpl_int(v[i].b);
        if (v[i].kind != T_INT && v[i].kind != T_NONE)
            return tpl_fail(c, NF_ERR_ARGUMENT, "slice indices must be integers or None");
        given[i] = v[i].kind == T_INT;
    }
    *step = given[2] ? v[2].i : 1;
    if (!*step) return tpl_fail(c, NF_ERR_ARGUMENT, "slice step cannot be zero");
    if (*step > count + 1) *step = count + 1; /* takes the first item only, and cannot overflow */
    if (*step < -count - 1) *step = -count - 1;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? count - 1 : count;
    for (int i = 0; i < 2; i++) {
        int64_t x = given[i] ? v[i].i : 0;
        if (given[i] && x < 0) x = x < -count ? low : x + count;
        if (x < low) x = low;
        if (x > high) x = high;
        if (!given[i]) x = (i == 0) == (*step > 0) ? low : high;
        *(i ? stop : start) = x;
    }
    return true;
}

static bool slice(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value obj;
    tpl_list *items;
    int64_t start = 0, stop = 0, step = 1;
    if (!eval(c, n->a, &obj)) return false;
    if (obj.kind == T_UNDEFINED) return tpl_undefined_error(c, obj);
    if (obj.kind != T_LIST && obj.kind != T_TUPLE && obj.kind != T_STR)
        return tpl_fail(c, NF_ERR_ARGUMENT, "'%s' object cannot be sliced", tpl_type_name(obj));
    if (!tpl_iterate(c, obj, &items) || !slice_bounds(c, n, (int64_t)items->n, &start, &stop, &step))
        return false;
    if (obj.kind == T_STR && step == 1) {
        if (stop < start) stop = start;
        size_t from = tpl_offset(obj.s, (size_t)start);
        *out = tpl_text((tpl_str){
            obj.s.p + from, tpl_offset((tpl_str){obj.s.p + from, obj.s.n - from}, (size_t)(stop - start))});
        return true;
    }
    tpl_list *picked = tpl_list_new(c);
    nf_buf text = {0};
    for (int64_t i = start; picked && (step > 0 ? i < stop : i > stop); i += step)
        if (obj.kind == T_STR ? nf_buf_append(&text, items->items[i].s.p, items->items[i].s.n, NULL) != NF_OK
                              : !tpl_list_add(c, picked, items->items[i]))
            return false;
    if (!picked) return false;
    *out = (tpl_value){.kind = obj.kind, .list = picked};
    return obj.kind != T_STR || tpl_keep(c, &text, &out->s);
}

static bool compare(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value left, right;
    bool result = true;
    if (!eval(c, n->a, &left)) return false;
    for (size_t i = 0; i < n->n && result; i++) {
        if (!eval(c, n->list[i], &right) || !tpl_compare(c, n->ops[i], left, right, &result)) return false;
        left = right;
    }
    *out = tpl_bool(result);
    return true;
}

/* ---- calls ---- */

const tpl_value *tpl_arg(const tpl_args *args, size_t index, const char *name) {
    if (index < args->n) return &args->pos[index];
    for (size_t i = 0; name && i < args->n_named; i++)
        if (tpl_str_is(args->names[i], name)) return &args->named[i];
    return NULL;
}

static bool eval_args(tpl_ctx *c, const tpl_node *n, tpl_args *out) {
    tpl_list pos = {0};
    tpl_value v;
    *out = (tpl_args){0};
    for (size_t i = 0; i < n->n; i++)
        if (!eval(c, n->list[i], &v) || !tpl_list_add(c, &pos, v)) return false;
    if (n->star_args) {
        tpl_list *more;
        if (!eval(c, n->star_args, &v) || !tpl_iterate(c, v, &more)) return false;
        for (size_t i = 0; i < more->n; i++)
            if (!tpl_list_add(c, &pos, more->items[i])) return false;
    }
    size_t extra = 0;
    tpl_value kwargs = tpl_none();
    if (n->star_kwargs) {
        if (!eval(c, n->star_kwargs, &kwargs)) return false;
        if (kwargs.kind != T_DICT) return tpl_fail(c, NF_ERR_ARGUMENT, "argument after ** must be a mapping");
        extra = kwargs.dict->n;
    }
    out->pos = pos.items;
    out->n = pos.n;
    out->names = tpl_make(c, (n->n_named + extra + 1) * sizeof *out->names);
    out->named = tpl_make(c, (n->n_named + extra + 1) * sizeof *out->named);
    if (!out->names || !out->named) return false;
    for (size_t i = 0; i < n->n_named; i++) {
        out->names[out->n_named] = n->names[i];
        if (!eval(c, n->named[i], &out->named[out->n_named++])) return false;
    }
    for (size_t i = 0; i < extra; i++) {
        if (kwargs.dict->keys[i].kind != T_STR)
            return tpl_fail(c, NF_ERR_ARGUMENT, "keywords must be strings");
        out->names[out->n_named] = kwargs.dict->keys[i].s;
        out->named[out->n_named++] = kwargs.dict->values[i];
    }
    return true;
}

/* Runs a body with its output captured. *f: how the body ended. */
static bool capture(tpl_ctx *c, const tpl_node *body, flow *f, tpl_value *out) {
    nf_buf text = {0}, *outer = c->out;
    c->out = &text;
    *f = exec(c, body);
    c->out = outer;
    if (*f == F_FAIL) {
        nf_buf_free(&text);
        return false;
    }
    *out = (tpl_value){.kind = T_STR};
    return tpl_keep(c, &text, &out->s);
}

static bool call_macro(tpl_ctx *c, const tpl_macro *m, const tpl_args *args, tpl_value *out) {
    const tpl_node *n = m->node;
    tpl_scope *outer = c->scope;
    if (!enter(c) || !push_scope(c, m->scope)) return false;
    bool *used = tpl_make(c, args->n_named + 1), ok = used != NULL;
    tpl_scope *scope = c->scope;
    for (size_t i = 0; i < n->n_named && ok; i++) {
        tpl_value v = tpl_undefined(n->names[i]);
        bool given = i < args->n;
        if (given) v = args->pos[i];
        for (size_t k = 0; k < args->n_named && ok; k++) {
            if (!tpl_str_eq(args->names[k], n->names[i])) continue;
            if (given)
                ok = tpl_fail(c, NF_ERR_ARGUMENT, "macro '%.*s' got two values for '%.*s'", (int)m->name.n,
                              m->name.p, (int)n->names[i].n, n->names[i].p);
            v = args->named[k];
            used[k] = given = true;
        }
        if (ok && !given && n->named[i])
            ok = eval(c, n->named[i], &v); /* a default may use earlier parameters */
        ok = ok && tpl_dict_set(c, &scope->vars, tpl_text(n->names[i]), v);
    }
    tpl_list *varargs = ok ? tpl_list_new(c) : NULL;
    tpl_dict *kwargs = ok ? tpl_dict_new(c) : NULL;
    ok = ok && varargs && kwargs;
    for (size_t i = n->n_named; i < args->n && ok; i++) ok = tpl_list_add(c, varargs, args->pos[i]);
    for (size_t k = 0; k < args->n_named && ok; k++)
        if (!used[k]) {
            if (tpl_str_is(args->names[k], "caller"))
                ok = tpl_dict_set(c, &scope->vars, tpl_text(args->names[k]), args->named[k]);
            else
                ok = tpl_dict_set(c, kwargs, tpl_text(args->names[k]), args->named[k]);
        }
    ok = ok &&
         tpl_dict_set(c, &scope->vars, tpl_text(tpl_lit("varargs")),
                      (tpl_value){.kind = T_TUPLE, .list = varargs}) &&
         tpl_dict_set(c, &scope->vars, tpl_text(tpl_lit("kwargs")),
                      (tpl_value){.kind = T_DICT, .dict = kwargs});
    flow f;
    ok = ok && capture(c, n->b, &f, out);
    c->scope = outer;
    c->depth--;
    return ok;
}

bool tpl_call(tpl_ctx *c, tpl_value f, const tpl_args *args, tpl_value *out) {
    switch (f.kind) {
    case T_MACRO:
        return call_macro(c, f.macro, args, out);
    case T_METHOD:
        return tpl_method_call(c, f.method, args, out);
    case T_FUNCTION:
        return tpl_function(c, f.s, args, out);
    case T_UNDEFINED:
        return tpl_undefined_error(c, f);
    default:
        return tpl_fail(c, NF_ERR_ARGUMENT, "'%s' object is not callable", tpl_type_name(f));
    }
}

static bool eval_call(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value f;
    tpl_args args;
    return eval(c, n->a, &f) && eval_args(c, n, &args) && tpl_call(c, f, &args, out);
}

/* ---- expressions ---- */

static bool eval_list(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value v;
    *out = (tpl_value){.kind = n->kind == N_LIST ? T_LIST : T_TUPLE, .list = tpl_list_new(c)};
    for (size_t i = 0; out->list && i < n->n; i++)
        if (!eval(c, n->list[i], &v) || !tpl_list_add(c, out->list, v)) return false;
    return out->list != NULL;
}

static bool eval_dict(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value k, v;
    *out = (tpl_value){.kind = T_DICT, .dict = tpl_dict_new(c)};
    for (size_t i = 0; out->dict && i < n->n; i += 2) {
        if (!eval(c, n->list[i], &k) || !eval(c, n->list[i + 1], &v)) return false;
        if (k.kind == T_LIST || k.kind == T_DICT)
            return tpl_fail(c, NF_ERR_ARGUMENT, "unhashable type: '%s'", tpl_type_name(k));
        if (!tpl_dict_set(c, out->dict, k, v)) return false;
    }
    return out->dict != NULL;
}

static bool eval_concat(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    nf_buf text = {0};
    bool ok = true;
    for (size_t i = 0; i < n->n && ok; i++) {
        tpl_value v;
        ok = eval(c, n->list[i], &v) && tpl_print(c, v, &text);
    }
    *out = (tpl_value){.kind = T_STR};
    if (ok) return tpl_keep(c, &text, &out->s);
    nf_buf_free(&text);
    return false;
}

static bool negate(tpl_ctx *c, tpl_value v, tpl_value *out) {
    if (v.kind == T_BOOL) v = tpl_int(v.b);
    if (v.kind == T_INT && v.i != INT64_MIN)
        *out = tpl_int(-v.i);
    else if (v.kind == T_FLOAT)
        *out = tpl_float(-v.f);
    else if (v.kind == T_UNDEFINED)
        return tpl_undefined_error(c, v);
    else
        return tpl_fail(c, NF_ERR_ARGUMENT, "bad operand type for unary -: '%s'", tpl_type_name(v));
    return true;
}

static bool eval_filter(tpl_ctx *c, const tpl_node *n, tpl_value v, tpl_value *out) {
    tpl_args args;
    if (!eval_args(c, n, &args)) return false;
    c->line = n->line;
    return tpl_filter(c, n->str, v, &args, out);
}

static bool eval_test(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value v;
    tpl_args args;
    bool result;
    if (!eval(c, n->a, &v) || !eval_args(c, n, &args) || !tpl_test(c, n->str, v, &args, &result))
        return false;
    *out = tpl_bool(result != n->flag);
    return true;
}

static bool eval_node(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    tpl_value a, b;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return true;
    case N_NAME:
        return lookup(c, n->str, out);
    case N_LIST:
    case N_TUPLE:
        return eval_list(c, n, out);
    case N_DICT:
        return eval_dict(c, n, out);
    case N_ATTR:
        return eval(c, n->a, &a) && tpl_attribute(c, a, n->str, out);
    case N_ITEM:
        return eval(c, n->a, &a) && eval(c, n->b, &b) && tpl_item(c, a, b, out);
    case N_SLICE:
        return slice(c, n, out);
    case N_CALL:
        return eval_call(c, n, out);
    case N_FILTER:
        return eval(c, n->a, &a) && eval_filter(c, n, a, out);
    case N_TEST:
        return eval_test(c, n, out);
    case N_NOT:
        if (!eval(c, n->a, &a)) return false;
        *out = tpl_bool(!tpl_truth(a));
        return true;
    case N_NEG:
        return eval(c, n->a, &a) && negate(c, a, out);
    case N_POS:
        if (!eval(c, n->a, out)) return false;
        if (out->kind == T_BOOL) *out = tpl_int(out->b);
        return tpl_is_number(*out) ||
               tpl_fail(c, NF_ERR_ARGUMENT, "bad operand type for unary +: '%s'", tpl_type_name(*out));
    case N_AND:
        return eval(c, n->a, out) && (!tpl_truth(*out) || eval(c, n->b, out));
    case N_OR:
        return eval(c, n->a, out) && (tpl_truth(*out) || eval(c, n->b, out));
    case N_COND:
        if (!eval(c, n->b, &a)) return false;
        if (tpl_truth(a)) return eval(c, n->a, out);
        *out = tpl_undefined(tpl_lit("the inline if-expression without else"));
        return !n->c || eval(c, n->c, out);
    case N_BINARY:
        return eval(c, n->a, &a) && eval(c, n->b, &b) && tpl_binary(c, n->op, a, b, out);
    case N_COMPARE:
        return compare(c, n, out);
    case N_CONCAT:
        return eval_concat(c, n, out);
    default:
        return tpl_fail(c, NF_ERR_INTERNAL, "a statement where an expression was expected");
    }
}

static bool eval(tpl_ctx *c, const tpl_node *n, tpl_value *out) {
    if (!tpl_step(c, 1) || !enter(c)) return false;
    c->line = n->line;
    bool ok = eval_node(c, n, out);
    c->depth--;
    return ok;
}

/* Applies a chain of filters (as parsed on a placeholder) to a value. */
static bool apply_chain(tpl_ctx *c, const tpl_node *chain, tpl_value v, tpl_value *out) {
    if (chain->kind != N_FILTER) {
        *out = v;
        return true;
    }
    tpl_value inner;
    return apply_chain(c, chain->a, v, &inner) && eval_filter(c, chain, inner, out);
}

/* ---- statements ---- */

static flow exec_for(tpl_ctx *c, const tpl_node *n) {
    tpl_value iterable;
    tpl_list *items;
    tpl_scope *outer = c->scope;
    if (!eval(c, n->b, &iterable) || !tpl_iterate(c, iterable, &items)) return F_FAIL;
    if (n->c) { /* the loop's variables count what passes the test */
        tpl_list *kept = tpl_list_new(c);
        for (size_t i = 0; kept && i < items->n; i++) {
            tpl_value pass;
            bool ok = push_scope(c, outer) && assign(c, n->a, items->items[i]) && eval(c, n->c, &pass) &&
                      (!tpl_truth(pass) || tpl_list_add(c, kept, items->items[i]));
            c->scope = outer;
            if (!ok) return F_FAIL;
        }
        if (!kept) return F_FAIL;
        items = kept;
    }
    tpl_loop *loop = tpl_make(c, sizeof *loop);
    if (!loop) return F_FAIL;
    *loop = (tpl_loop){.items = items, .depth = 1}; /* counts recursion, which is not supported */
    flow f = F_NEXT;
    bool whole = false; /* Jinja runs else when no pass came to its end, also for break and continue */
    for (; loop->index < items->n && f != F_BREAK && f != F_FAIL; loop->index++) {
        bool ok = tpl_step(c, 1) && push_scope(c, outer) &&
                  tpl_dict_set(c, &c->scope->vars, tpl_text(tpl_lit("loop")),
                               (tpl_value){.kind = T_LOOP, .loop = loop}) &&
                  assign(c, n->a, items->items[loop->index]);
        f = ok ? exec(c, n->list[0]) : F_FAIL;
        c->scope = outer;
        whole = whole || f == F_NEXT;
    }
    if (f == F_FAIL) return F_FAIL;
    return !whole && n->list[1] ? exec(c, n->list[1]) : F_NEXT;
}

static bool define_macro(tpl_ctx *c, const tpl_node *n, tpl_str name, tpl_value *out) {
    tpl_macro *m = tpl_make(c, sizeof *m);
    if (!m) return false;
    *m = (tpl_macro){n, c->scope, name};
    *out = (tpl_value){.kind = T_MACRO, .macro = m};
    return true;
}

static bool exec_call_block(tpl_ctx *c, const tpl_node *n) {
    tpl_value f, caller, text;
    tpl_args args;
    if (!define_macro(c, n, tpl_lit("caller"), &caller) || !eval(c, n->a->a, &f) ||
        !eval_args(c, n->a, &args))
        return false;
    args.names[args.n_named] = tpl_lit("caller"); /* eval_args leaves room for one more */
    args.named[args.n_named++] = caller;
    return tpl_call(c, f, &args, &text) && tpl_print(c, text, c->out);
}

static bool exec_with(tpl_ctx *c, const tpl_node *n, flow *f) {
    tpl_scope *outer = c->scope, *inner = push_scope(c, outer);
    for (size_t i = 0; inner && i < n->n; i += 2) {
        tpl_value v;
        c->scope = outer; /* values are evaluated outside */
        bool ok = eval(c, n->list[i + 1], &v);
        c->scope = inner;
        if (!ok || !assign(c, n->list[i], v)) return false;
    }
    if (!inner) return false;
    *f = exec(c, n->b);
    c->scope = outer;
    return true;
}

static bool in_new_scope(tpl_ctx *c, const tpl_node *body, flow *f, tpl_value *out) {
    tpl_scope *outer = c->scope;
    bool ok = push_scope(c, outer) && capture(c, body, f, out);
    c->scope = outer;
    return ok;
}

static flow exec_node(tpl_ctx *c, const tpl_node *n) {
    tpl_value v, w;
    flow f = F_NEXT;
    switch (n->kind) {
    case N_TEXT:
        return tpl_print(c, n->value, c->out) ? F_NEXT : F_FAIL;
    case N_PRINT:
        return eval(c, n->a, &v) && tpl_print(c, v, c->out) ? F_NEXT : F_FAIL;
    case N_BODY:
        for (size_t i = 0; i < n->n && f == F_NEXT; i++) f = exec(c, n->list[i]);
        return f;
    case N_IF:
        if (!eval(c, n->a, &v)) return F_FAIL;
        return tpl_truth(v) ? exec(c, n->b) : n->c ? exec(c, n->c) : F_NEXT;
    case N_FOR:
        return exec_for(c, n);
    case N_SET:
        return eval(c, n->b, &v) && assign(c, n->a, v) ? F_NEXT : F_FAIL;
    case N_SET_BLOCK:
        if (!in_new_scope(c, n->b, &f, &v)) return F_FAIL;
        if (f != F_NEXT) return f; /* break and continue drop the text, as in Jinja */
        if (n->c && !apply_chain(c, n->c, v, &w)) return F_FAIL;
        return assign(c, n->a, n->c ? w : v) ? F_NEXT : F_FAIL;
    case N_MACRO:
        return define_macro(c, n, n->str, &v) && tpl_dict_set(c, &c->scope->vars, tpl_text(n->str), v)
                   ? F_NEXT
                   : F_FAIL;
    case N_CALL_BLOCK:
        return exec_call_block(c, n) ? F_NEXT : F_FAIL;
    case N_FILTER_BLOCK:
        if (!in_new_scope(c, n->b, &f, &v)) return F_FAIL;
        if (f != F_NEXT) return f;
        return apply_chain(c, n->a, v, &w) && tpl_print(c, w, c->out) ? F_NEXT : F_FAIL;
    case N_WITH:
        return exec_with(c, n, &f) ? f : F_FAIL;
    case N_BREAK:
        return F_BREAK;
    case N_CONTINUE:
        return F_CONTINUE;
    default:
        tpl_fail(c, NF_ERR_INTERNAL, "an expression where a statement was expected");
        return F_FAIL;
    }
}

static flow exec(tpl_ctx *c, const tpl_node *n) {
    if (!tpl_step(c, 1) || !enter(c)) return F_FAIL;
    c->line = n->line;
    flow f = exec_node(c, n);
    c->depth--;
    return f;
}

nf_status nf_template_render(const nf_template *t, const json_t *vars, nf_buf *out, nf_error *err) {
    tpl_ctx c = {.err = err, .out = out, .line = 1};
    const size_t start = out->len;
    tpl_value globals;
    if (!json_is_object(vars))
        return nf_fail(err, NF_ERR_ARGUMENT, "the template's variables are not a JSON object");
    if (tpl_from_json(&c, vars, 0, &globals) && push_scope(&c, NULL)) {
        c.scope->vars = *globals.dict;
        /* Assignments of the template go to a scope of their own. */
        if (push_scope(&c, c.scope)) exec(&c, t->root);
    }
    tpl_arena_free(&c.arena);
    if (c.status && out->data) {
        out->len = start;
        out->data[start] = '\0';
    }
    return c.status;
}
