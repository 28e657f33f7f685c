/*
 * Template source to syntax tree: Jinja2's grammar for the statements and expressions that chat templates
 * use. Tokens come from template_lex.c.
 */
#include "runtime/template_parse_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- expressions ---- */

static tpl_node *expression(parser *p);
static tpl_node *or_expression(parser *p);
static tpl_node *unary(parser *p, bool filters);

static tpl_node *constant(parser *p, tpl_value v) {
    tpl_node *n = tplp_node(p, N_CONST);
    n->value = v;
    return n;
}

/* Expressions separated by commas: one is itself, several (or a trailing comma) are a tuple. `condition`:
 * whether "a if b" may occur. */
static tpl_node *tuple(parser *p, bool condition, bool explicit_parentheses) {
    tpl_node *list = tplp_node(p, N_TUPLE);
    bool comma = false;
    for (;;) {
        bool ended = p->tok.kind == K_END || tplp_is_op(p, ")") || tplp_is_op(p, "=") ||
                     (!condition && (tplp_is_name(p, "if") || tplp_is_name(p, "recursive")));
        if (ended) break;
        tplp_push(p, list, condition ? expression(p) : or_expression(p));
        comma = tplp_skip_op(p, ",");
        if (!comma) break;
    }
    if (list->n == 1 && !comma) return list->list[0];
    if (!list->n && !explicit_parentheses) SYNTAX(p, "expected an expression");
    return list;
}

static tpl_node *primary(parser *p) {
    token t = p->tok;
    tpl_node *n;
    if (t.kind == K_NAME) {
        tplp_next(p);
        if (tpl_str_is(t.text, "true") || tpl_str_is(t.text, "True")) return constant(p, tpl_bool(true));
        if (tpl_str_is(t.text, "false") || tpl_str_is(t.text, "False")) return constant(p, tpl_bool(false));
        if (tpl_str_is(t.text, "none") || tpl_str_is(t.text, "None")) return constant(p, tpl_none());
        n = tplp_node(p, N_NAME);
        n->str = t.text;
        return n;
    }
    if (t.kind == K_INT || t.kind == K_FLOAT) {
        tplp_next(p);
        return constant(p, t.kind == K_INT ? tpl_int(t.i) : tpl_float(t.f));
    }
    if (t.kind == K_STR) {
        tplp_next(p);
        while (p->tok.kind == K_STR) { /* adjacent strings are one */
            char *joined = tplp_make(p, t.text.n + p->tok.text.n + 1);
            memcpy(joined, t.text.p, t.text.n);
            memcpy(joined + t.text.n, p->tok.text.p, p->tok.text.n);
            t.text = (tpl_str){joined, t.text.n + p->tok.text.n};
            tplp_next(p);
        }
        return constant(p, tpl_text(t.text));
    }
    if (tplp_skip_op(p, "(")) {
        n = tuple(p, true, true);
        tplp_expect_op(p, ")");
        return n;
    }
    if (tplp_skip_op(p, "[")) {
        n = tplp_node(p, N_LIST);
        while (!tplp_is_op(p, "]")) {
            tplp_push(p, n, expression(p));
            if (!tplp_skip_op(p, ",")) break;
        }
        tplp_expect_op(p, "]");
        return n;
    }
    if (tplp_skip_op(p, "{")) {
        n = tplp_node(p, N_DICT);
        while (!tplp_is_op(p, "}")) {
            tplp_push(p, n, expression(p));
            tplp_expect_op(p, ":");
            tplp_push(p, n, expression(p));
            if (!tplp_skip_op(p, ",")) break;
        }
        tplp_expect_op(p, "}");
        return n;
    }
    SYNTAX(p, t.kind == K_END ? "expected an expression before the end of the tag" : "unexpected '%.*s'",
           (int)t.text.n, t.text.p ? t.text.p : "");
}

/* Behind '(': positional and keyword arguments up to ')'. */
static void call_arguments(parser *p, tpl_node *to) {
    while (!tplp_is_op(p, ")")) {
        if (tplp_skip_op(p, "**"))
            to->star_kwargs = expression(p);
        else if (tplp_skip_op(p, "*"))
            to->star_args = expression(p);
        else {
            tpl_node *value = expression(p);
            if (value->kind == N_NAME && tplp_is_op(p, "=")) {
                tplp_next(p);
                tplp_push_named(p, to, value->str, expression(p));
            } else {
                if (to->n_named) SYNTAX(p, "a positional argument behind a keyword argument");
                tplp_push(p, to, value);
            }
        }
        if (!tplp_skip_op(p, ",")) break;
    }
    tplp_expect_op(p, ")");
}

static tpl_node *subscript(parser *p, tpl_node *object) {
    tpl_node *part[3] = {NULL}, *n;
    int colons = 0;
    for (;;) {
        if (tplp_is_op(p, ":")) {
            tplp_next(p);
            if (++colons > 2) SYNTAX(p, "too many ':' in a slice");
        } else if (tplp_is_op(p, "]")) {
            break;
        } else {
            if (part[colons]) SYNTAX(p, "expected ':' or ']'");
            part[colons] = expression(p);
            if (tplp_is_op(p, ",")) UNSUPPORTED(p, "tuples as subscripts");
        }
    }
    tplp_expect_op(p, "]");
    if (!colons) {
        if (!part[0]) SYNTAX(p, "an empty subscript");
        n = tplp_node(p, N_ITEM);
        n->a = object;
        n->b = part[0];
        return n;
    }
    n = tplp_node(p, N_SLICE);
    n->a = object;
    for (int i = 0; i < 3; i++) tplp_push(p, n, part[i]);
    return n;
}

static tpl_node *postfix_one(parser *p, tpl_node *object, bool *found) {
    tpl_node *n;
    *found = true;
    if (tplp_skip_op(p, ".")) {
        if (p->tok.kind == K_INT) { /* x.0 is x[0] */
            n = tplp_node(p, N_ITEM);
            n->a = object;
            n->b = constant(p, tpl_int(p->tok.i));
            tplp_next(p);
            return n;
        }
        n = tplp_node(p, N_ATTR);
        n->a = object;
        n->str = tplp_expect_name(p);
        return n;
    }
    if (tplp_skip_op(p, "[")) return subscript(p, object);
    if (tplp_skip_op(p, "(")) {
        n = tplp_node(p, N_CALL);
        n->a = object;
        call_arguments(p, n);
        return n;
    }
    *found = false;
    return object;
}

static tpl_node *postfix(parser *p, tpl_node *n) {
    for (bool found = true; found;) n = postfix_one(p, n, &found);
    return n;
}

static tpl_node *filter(parser *p, tpl_node *value) {
    tpl_node *n = tplp_node(p, N_FILTER);
    n->a = value;
    n->str = tplp_expect_name(p);
    if (!tpl_known_filter(n->str)) UNSUPPORTED(p, "the filter '%.*s'", (int)n->str.n, n->str.p);
    if (tplp_skip_op(p, "(")) call_arguments(p, n);
    return n;
}

static tpl_node *test(parser *p, tpl_node *value) {
    tpl_node *n = tplp_node(p, N_TEST);
    n->a = value;
    n->flag = tplp_skip_name(p, "not");
    /* `none`, `true` and `false` are names here. */
    n->str = tplp_expect_name(p);
    if (!tpl_known_test(n->str)) UNSUPPORTED(p, "the test '%.*s'", (int)n->str.n, n->str.p);
    bool argument = p->tok.kind == K_STR || p->tok.kind == K_INT || p->tok.kind == K_FLOAT ||
                    tplp_is_op(p, "[") || tplp_is_op(p, "{") ||
                    (p->tok.kind == K_NAME && !tplp_is_name(p, "else") && !tplp_is_name(p, "or") &&
                     !tplp_is_name(p, "and") && !tplp_is_name(p, "if") && !tplp_is_name(p, "in") &&
                     !tplp_is_name(p, "not"));
    if (tplp_skip_op(p, "("))
        call_arguments(p, n);
    else if (tplp_is_name(p, "is"))
        SYNTAX(p, "tests cannot be chained with 'is'");
    else if (argument)
        tplp_push(p, n, postfix(p, primary(p)));
    return n;
}

static tpl_node *filters(parser *p, tpl_node *n) {
    for (;;) {
        bool found;
        if (tplp_skip_op(p, "|"))
            n = filter(p, n);
        else if (tplp_skip_name(p, "is"))
            n = test(p, n);
        else if (tplp_is_op(p, "("))
            n = postfix_one(p, n, &found);
        else
            return n;
    }
}

static tpl_node *unary(parser *p, bool with_filters) {
    tplp_enter(p);
    tpl_node *n;
    if (tplp_is_op(p, "-") || tplp_is_op(p, "+")) {
        n = tplp_node(p, tplp_is_op(p, "-") ? N_NEG : N_POS);
        tplp_next(p);
        n->a = unary(p, false);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    p->depth--;
    return with_filters ? filters(p, n) : n;
}

static tpl_node *binary(parser *p, tpl_node *a, int op, tpl_node *b) {
    tpl_node *n = tplp_node(p, N_BINARY);
    n->a = a;
    n->b = b;
    n->op = op;
    return n;
}

static tpl_node *power(parser *p) {
    tpl_node *n = unary(p, true);
    while (tplp_skip_op(p, "**")) n = binary(p, n, 'P', unary(p, true));
    return n;
}

static tpl_node *product(parser *p) {
    tpl_node *n = power(p);
    for (;;) {
        if (tplp_skip_op(p, "*"))
            n = binary(p, n, '*', power(p));
        else if (tplp_skip_op(p, "//"))
            n = binary(p, n, 'D', power(p));
        else if (tplp_skip_op(p, "/"))
            n = binary(p, n, '/', power(p));
        else if (tplp_skip_op(p, "%"))
            n = binary(p, n, '%', power(p));
        else
            return n;
    }
}

static tpl_node *concatenation(parser *p) {
    tpl_node *first = product(p);
    if (!tplp_is_op(p, "~")) return first;
    tpl_node *n = tplp_node(p, N_CONCAT);
    tplp_push(p, n, first);
    while (tplp_skip_op(p, "~")) tplp_push(p, n, product(p));
    return n;
}

static tpl_node *sum(parser *p) {
    tpl_node *n = concatenation(p);
    for (;;) {
        if (tplp_skip_op(p, "+"))
            n = binary(p, n, '+', concatenation(p));
        else if (tplp_skip_op(p, "-"))
            n = binary(p, n, '-', concatenation(p));
        else
            return n;
    }
}

static int comparison(parser *p) {
    static const char *const text[] = {"==", "!=", "<=", ">=", "<", ">"};
    static const char code[] = "=!lg<>";
    for (int i = 0; i < 6; i++)
        if (tplp_skip_op(p, text[i])) return code[i];
    if (tplp_skip_name(p, "in")) return 'i';
    if (tplp_is_name(p, "not")) {
        /* Only "not in" continues a comparison. */
        parser saved = *p;
        tplp_next(p);
        if (tplp_skip_name(p, "in")) return 'n';
        p->p = saved.p;
        p->tok = saved.tok;
        p->line = saved.line;
    }
    return 0;
}

static tpl_node *compare(parser *p) {
    tpl_node *first = sum(p), *n = NULL;
    uint8_t ops[64];
    for (int op; (op = comparison(p));) {
        if (!n) {
            n = tplp_node(p, N_COMPARE);
            n->a = first;
        }
        if (n->n == sizeof ops) SYNTAX(p, "too many comparisons in a row");
        ops[n->n] = (uint8_t)op;
        tplp_push(p, n, sum(p));
    }
    if (!n) return first;
    n->ops = tplp_make(p, n->n);
    memcpy(n->ops, ops, n->n);
    return n;
}

static tpl_node *negation(parser *p) {
    if (!tplp_skip_name(p, "not")) return compare(p);
    tplp_enter(p);
    tpl_node *n = tplp_node(p, N_NOT);
    n->a = negation(p);
    p->depth--;
    return n;
}

static tpl_node *pair(parser *p, tpl_node_kind kind, tpl_node *a, tpl_node *b) {
    tpl_node *n = tplp_node(p, kind);
    n->a = a;
    n->b = b;
    return n;
}

static tpl_node *and_expression(parser *p) {
    tpl_node *n = negation(p);
    while (tplp_skip_name(p, "and")) n = pair(p, N_AND, n, negation(p));
    return n;
}

static tpl_node *or_expression(parser *p) {
    tpl_node *n = and_expression(p);
    while (tplp_skip_name(p, "or")) n = pair(p, N_OR, n, and_expression(p));
    return n;
}

static tpl_node *expression(parser *p) {
    tplp_enter(p);
    tpl_node *n = or_expression(p);
    while (tplp_skip_name(p, "if")) {
        tpl_node *cond = tplp_node(p, N_COND);
        cond->a = n;
        cond->b = or_expression(p);
        if (tplp_skip_name(p, "else")) cond->c = expression(p);
        n = cond;
    }
    p->depth--;
    return n;
}

/* ---- text between tags ---- */

static const char *find_tag(const parser *p) {
    for (const char *s = p->p; s + 1 < p->end; s++)
        if (*s == '{' && (s[1] == '{' || s[1] == '%' || s[1] == '#')) return s;
    return NULL;
}

static bool space_byte(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Adds the text from p->p to `end` to the body, with the white space rules of the tags on both sides. */
static void add_text(parser *p, const char *end, tpl_node *body) {
    const char *from = p->p, *to = end;
    if (p->trim_next) {
        while (from < to && space_byte(*from)) from++;
    } else if (p->newline_next && from < to && *from == '\n') {
        from++;
    }
    if (end < p->end) {
        char mark = end + 2 < p->end ? end[2] : 0;
        if (mark == '-') {
            while (to > from && space_byte(to[-1])) to--;
        } else if (mark != '+' && end[1] != '{') { /* lstrip_blocks */
            const char *line = to, *q;
            while (line > from && line[-1] != '\n') line--;
            bool starts = line > from || (from > p->p ? from[-1] == '\n' : p->line_starting);
            for (q = line; q < to && space_byte(*q);) q++;
            if (q < to) starts = false;
            if (starts) to = line;
        }
    }
    for (const char *s = p->p; s < end; s++) p->line += *s == '\n';
    p->trim_next = p->newline_next = false;
    p->line_starting = false;
    if (to > from) {
        tpl_node *n = tplp_node(p, N_TEXT);
        n->value = tpl_text((tpl_str){from, (size_t)(to - from)});
        tplp_push(p, body, n);
    }
    p->p = end;
}

static void skip_comment(parser *p) {
    const char *s = p->p + 2;
    while (s + 1 < p->end && !(s[0] == '#' && s[1] == '}')) p->line += *s++ == '\n';
    if (s + 1 >= p->end) SYNTAX(p, "a comment does not end");
    p->trim_next = s[-1] == '-' && s - 1 > p->p + 1;
    p->newline_next = !p->trim_next && !(s[-1] == '+' && s - 1 > p->p + 1);
    p->p = s + 2;
}

static void begin_tag(parser *p, const char *tag_end) {
    p->p += 2;
    if (p->p < p->end && (*p->p == '-' || *p->p == '+')) p->p++;
    p->tag_end = tag_end;
    p->open = 0;
    tplp_next(p);
}

static void end_tag(parser *p) {
    if (p->tok.kind != K_END)
        SYNTAX(p, "expected the end of the tag, found '%.*s'", (int)p->tok.text.n,
               p->tok.text.p ? p->tok.text.p : "...");
}

/* ---- statements ---- */

static tpl_node *body(parser *p, const char *const *ends, tpl_str *which);

/* A name, an attribute of a name (ns.x), or a tuple of targets. */
static tpl_node *target(parser *p, bool allow_tuple) {
    tpl_node *list = tplp_node(p, N_TUPLE);
    bool comma = false;
    do {
        tpl_node *n;
        if (tplp_skip_op(p, "(")) {
            n = target(p, true);
            tplp_expect_op(p, ")");
        } else {
            n = tplp_node(p, N_NAME);
            n->str = tplp_expect_name(p);
            if (tplp_skip_op(p, ".")) {
                tpl_node *attr = tplp_node(p, N_ATTR);
                attr->a = n;
                attr->str = tplp_expect_name(p);
                n = attr;
            }
        }
        tplp_push(p, list, n);
        comma = allow_tuple && tplp_skip_op(p, ",");
    } while (comma && !tplp_is_name(p, "in") && !tplp_is_op(p, "=") && !tplp_is_op(p, ")"));
    return list->n == 1 && !comma ? list->list[0] : list;
}

static tpl_node *if_statement(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    tpl_node *n = tplp_node(p, N_IF);
    tpl_str which;
    tplp_enter(p);
    n->a = tuple(p, true, false);
    end_tag(p);
    n->b = body(p, ends, &which);
    if (tpl_str_is(which, "elif")) {
        n->c = if_statement(p);
    } else {
        end_tag(p);
        if (tpl_str_is(which, "else")) {
            n->c = body(p, last, &which);
            end_tag(p);
        }
    }
    p->depth--;
    return n;
}

static tpl_node *for_statement(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    tpl_node *n = tplp_node(p, N_FOR), *otherwise = NULL;
    tpl_str which;
    n->a = target(p, true);
    if (!tplp_skip_name(p, "in")) SYNTAX(p, "expected 'in'");
    n->b = tuple(p, false, false);
    if (tplp_skip_name(p, "if")) n->c = expression(p);
    if (tplp_is_name(p, "recursive")) UNSUPPORTED(p, "recursive loops");
    end_tag(p);
    p->in_loop++;
    tpl_node *loop_body = body(p, ends, &which);
    p->in_loop--;
    end_tag(p);
    if (tpl_str_is(which, "else")) {
        otherwise = body(p, last, &which);
        end_tag(p);
    }
    tplp_push(p, n, loop_body);
    tplp_push(p, n, otherwise);
    return n;
}

static tpl_node *set_statement(parser *p) {
    static const char *const ends[] = {"endset", NULL};
    tpl_str which;
    tpl_node *to = target(p, true), *n;
    if (tplp_skip_op(p, "=")) {
        n = tplp_node(p, N_SET);
        n->a = to;
        n->b = tuple(p, true, false);
        end_tag(p);
        return n;
    }
    n = tplp_node(p, N_SET_BLOCK);
    n->a = to;
    if (tplp_is_op(p, "|")) n->c = filters(p, constant(p, tpl_none()));
    end_tag(p);
    n->b = body(p, ends, &which);
    end_tag(p);
    return n;
}

/* Parameters of a macro or call block, behind '('. */
static void parameters(parser *p, tpl_node *to) {
    while (!tplp_is_op(p, ")")) {
        tpl_str name = tplp_expect_name(p);
        tplp_push_named(p, to, name, tplp_skip_op(p, "=") ? expression(p) : NULL);
        if (!tplp_skip_op(p, ",")) break;
    }
    tplp_expect_op(p, ")");
}

static tpl_node *macro_statement(parser *p) {
    static const char *const ends[] = {"endmacro", NULL};
    tpl_node *n = tplp_node(p, N_MACRO);
    tpl_str which;
    n->str = tplp_expect_name(p);
    tplp_expect_op(p, "(");
    parameters(p, n);
    end_tag(p);
    int in_loop = p->in_loop;
    p->in_loop = 0;
    n->b = body(p, ends, &which);
    p->in_loop = in_loop;
    tplp_skip_name(p, "endmacro");
    if (p->tok.kind == K_NAME) tplp_next(p); /* the macro's name may be repeated */
    end_tag(p);
    return n;
}

static tpl_node *call_statement(parser *p) {
    static const char *const ends[] = {"endcall", NULL};
    tpl_node *n = tplp_node(p, N_CALL_BLOCK);
    tpl_str which;
    if (tplp_skip_op(p, "(")) parameters(p, n);
    n->a = expression(p);
    if (n->a->kind != N_CALL) SYNTAX(p, "expected a call");
    end_tag(p);
    n->b = body(p, ends, &which);
    end_tag(p);
    return n;
}

static tpl_node *filter_statement(parser *p) {
    static const char *const ends[] = {"endfilter", NULL};
    tpl_node *n = tplp_node(p, N_FILTER_BLOCK);
    tpl_str which;
    n->a = filters(p, filter(p, constant(p, tpl_none())));
    end_tag(p);
    n->b = body(p, ends, &which);
    end_tag(p);
    return n;
}

static tpl_node *with_statement(parser *p) {
    static const char *const ends[] = {"endwith", NULL};
    tpl_node *n = tplp_node(p, N_WITH);
    tpl_str which;
    while (p->tok.kind != K_END) {
        tplp_push(p, n, target(p, false));
        tplp_expect_op(p, "=");
        tplp_push(p, n, expression(p));
        if (!tplp_skip_op(p, ",")) break;
    }
    end_tag(p);
    n->b = body(p, ends, &which);
    end_tag(p);
    return n;
}

static tpl_node *generation_statement(parser *p) {
    static const char *const ends[] = {"endgeneration", NULL};
    tpl_str which;
    end_tag(p);
    tpl_node *n = body(p, ends, &which); /* marks what the assistant said, for training: prints as it is */
    end_tag(p);
    return n;
}

/* {% raw %}...{% endraw %}: p is behind the opening tag. */
static void raw_text(parser *p, tpl_node *to) {
    end_tag(p);
    for (const char *s = p->p; s + 1 < p->end; s++) {
        if (s[0] != '{' || s[1] != '%') continue;
        const char *q = s + 2;
        if (q < p->end && (*q == '-' || *q == '+')) q++;
        while (q < p->end && space_byte(*q)) q++;
        if ((size_t)(p->end - q) < 6 || memcmp(q, "endraw", 6) != 0) continue;
        add_text(p, s, to);
        begin_tag(p, "%}");
        tplp_next(p);
        end_tag(p);
        return;
    }
    SYNTAX(p, "a raw block does not end");
}

static tpl_node *statement(parser *p, tpl_str name) {
    static const struct {
        const char *name;
        tpl_node *(*parse)(parser *p);
    } table[] = {{"if", if_statement},     {"for", for_statement},
                 {"set", set_statement},   {"macro", macro_statement},
                 {"call", call_statement}, {"filter", filter_statement},
                 {"with", with_statement}, {"generation", generation_statement}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (tpl_str_is(name, table[i].name)) return table[i].parse(p);
    bool is_break = tpl_str_is(name, "break");
    if (is_break || tpl_str_is(name, "continue")) {
        if (!p->in_loop) SYNTAX(p, "'%.*s' outside a loop", (int)name.n, name.p);
        end_tag(p);
        return tplp_node(p, is_break ? N_BREAK : N_CONTINUE);
    }
    UNSUPPORTED(p, "the statement '%.*s'", (int)name.n, name.p);
}

/* Statements up to one of `ends` (NULL: the end of the template); *which is the name found, and its tag's
 * further tokens are left. */
static tpl_node *body(parser *p, const char *const *ends, tpl_str *which) {
    tplp_enter(p);
    tpl_node *list = tplp_node(p, N_BODY);
    for (;;) {
        const char *tag = find_tag(p);
        add_text(p, tag ? tag : p->end, list);
        if (!tag) {
            if (ends) SYNTAX(p, "'%s' is missing at the end of the template", ends[0]);
            break;
        }
        if (tag[1] == '#') {
            skip_comment(p);
            continue;
        }
        if (tag[1] == '{') {
            begin_tag(p, "}}");
            tpl_node *n = tplp_node(p, N_PRINT);
            n->a = tuple(p, true, false);
            end_tag(p);
            tplp_push(p, list, n);
            continue;
        }
        begin_tag(p, "%}");
        tpl_str name = p->tok.text;
        if (p->tok.kind != K_NAME) SYNTAX(p, "expected a statement");
        tplp_next(p);
        bool ended = false;
        for (const char *const *e = ends; e && *e; e++) ended |= tpl_str_is(name, *e);
        if (ended) {
            *which = name;
            break;
        }
        if (tpl_str_is(name, "raw"))
            raw_text(p, list);
        else
            tplp_push(p, list, statement(p, name));
    }
    p->depth--;
    return list;
}

/* Newlines of all kinds become \n, and one at the very end is dropped, as Jinja does. */
static bool normalise(nf_template *t, const char *source, size_t n, tpl_str *out) {
    char *copy = tpl_alloc(&t->arena, n + 1);
    if (!copy) return false;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            copy[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            copy[k++] = source[i];
        }
    }
    if (k && copy[k - 1] == '\n') k--;
    *out = (tpl_str){copy, k};
    return true;
}

nf_status nf_template_parse(const char *source, size_t n, nf_template **out, nf_error *err) {
    *out = NULL;
    if (n > NF_TPL_MAX_SOURCE)
        return nf_fail(err, NF_ERR_LIMIT, "the template has %zu bytes, the limit is %u", n,
                       NF_TPL_MAX_SOURCE);
    if (memchr(source, 0, n)) return nf_fail(err, NF_ERR_FORMAT, "the template holds a NUL byte");
    nf_template *t = nf_calloc(1, sizeof *t, "a template", err);
    tpl_str text;
    if (!t) return NF_ERR_MEMORY;
    if (!normalise(t, source, n, &text)) {
        nf_template_free(t);
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the template");
    }
    parser p = {.t = t, .err = err, .p = text.p, .end = text.p + text.n, .line = 1, .line_starting = true};
    tpl_str unused;
    if (setjmp(p.fail)) {
        nf_status status = p.status;
        nf_template_free(t);
        return status;
    }
    t->root = body(&p, NULL, &unused);
    *out = t;
    return NF_OK;
}

void nf_template_free(nf_template *t) {
    if (!t) return;
    tpl_arena_free(&t->arena);
    free(t);
}
