/*
 * The template interpreter: values, syntax tree and what its files share. Everything that a parse or a render
 * makes lives in an arena and is freed with it, so that no path can leak.
 */
#ifndef NF_RUNTIME_TEMPLATE_INTERNAL_H
#define NF_RUNTIME_TEMPLATE_INTERNAL_H

#include "runtime/template.h"

#include <stdbool.h>
#include <stdint.h>

#define NF_TPL_MAX_SOURCE (1u << 20)
#define NF_TPL_MAX_OUTPUT (64u << 20)
#define NF_TPL_MAX_ARENA (512u << 20)
#define NF_TPL_MAX_STEPS 50000000u
#define NF_TPL_MAX_DEPTH 200 /* nesting of syntax and of macro calls */

/* ---- arena ---- */

typedef struct tpl_block {
    struct tpl_block *next;
} tpl_block;

typedef struct tpl_arena {
    tpl_block *blocks;
    char *at;
    size_t left, total;
} tpl_arena;

/* Zeroed memory on 16 bytes; NULL when out of memory or over NF_TPL_MAX_ARENA. */
void *tpl_alloc(tpl_arena *a, size_t n);
void tpl_arena_free(tpl_arena *a);

/* ---- values ---- */

typedef enum tpl_kind {
    T_UNDEFINED,
    T_NONE,
    T_BOOL,
    T_INT,
    T_FLOAT,
    T_STR,
    T_LIST,
    T_TUPLE,
    T_DICT,
    T_NAMESPACE,
    T_MACRO,
    T_FUNCTION,
    T_METHOD,
    T_LOOP
} tpl_kind;

typedef struct tpl_str {
    const char *p;
    size_t n;
} tpl_str;

typedef struct tpl_value tpl_value;
typedef struct tpl_list {
    tpl_value *items;
    size_t n, cap;
} tpl_list;
typedef struct tpl_dict { /* insertion order; also namespaces */
    tpl_value *keys, *values;
    size_t n, cap;
} tpl_dict;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_method tpl_method;

struct tpl_value {
    tpl_kind kind;
    bool markup; /* T_STR: result of safe or escape; adding plain text to it escapes that text, as markupsafe
                    does */
    union {
        bool b;
        int64_t i;
        double f;
        tpl_str s; /* T_STR; T_UNDEFINED: name for messages; T_FUNCTION: name */
        tpl_list *list;
        tpl_dict *dict;
        tpl_macro *macro;
        tpl_loop *loop;
        tpl_method *method;
    };
};

struct tpl_method { /* obj.name, waiting to be called */
    tpl_value self;
    tpl_str name;
};

/* ---- syntax ---- */

typedef enum tpl_node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_COND,
    N_BINARY,
    N_COMPARE,
    N_CONCAT,
    /* statements */
    N_TEXT,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_BREAK,
    N_CONTINUE,
    N_BODY
} tpl_node_kind;

typedef struct tpl_node tpl_node;
/* Meaning of the fields by kind (list: n items):
 *   N_CONST value        N_NAME str             N_LIST/N_TUPLE list     N_DICT list: key, value, ...
 *   N_ATTR a.str         N_ITEM a[b]            N_SLICE a[list 0..2], NULL where absent
 *   N_CALL a(args)       N_FILTER a|str(args)   N_TEST a is str(args), flag: negated
 *   N_COND a if b else c N_BINARY a op b        N_COMPARE a, then list with ops[]       N_CONCAT list
 *   N_TEXT value         N_PRINT a              N_IF a: body b, else c  N_FOR target a in b [if c]: list[0]
 * body, list[1] else N_SET target a = b   N_SET_BLOCK a, body b, filters c (a chain on a placeholder) N_MACRO
 * str, params, body b N_CALL_BLOCK call a, params, body b         N_FILTER_BLOCK chain a, body b N_WITH list:
 * target, value, ...; body b */
struct tpl_node {
    tpl_node_kind kind;
    int line;
    bool flag;
    int op;       /* N_BINARY: '+', '-', '*', '/', 'D' (//), '%', 'P' (**) */
    uint8_t *ops; /* N_COMPARE: '=', '!', '<', 'l' (<=), '>', 'g' (>=), 'i' (in), 'n' (not in) */
    tpl_str str;
    tpl_value value;
    tpl_node *a, *b, *c;
    tpl_node **list;
    size_t n;
    /* calls: positional in list, keywords here; macros: parameters (names) and defaults */
    tpl_str *names;
    tpl_node **named;
    size_t n_named;
    tpl_node *star_args, *star_kwargs; /* *x and **x of a call */
};

struct nf_template {
    tpl_arena arena;
    tpl_node *root;
};

/* ---- rendering ---- */

typedef struct tpl_scope {
    struct tpl_scope *parent;
    tpl_dict vars;
} tpl_scope;

struct tpl_macro {
    const tpl_node *node; /* N_MACRO or N_CALL_BLOCK */
    tpl_scope *scope;     /* where it was defined */
    tpl_str name;
};

struct tpl_loop {
    const tpl_list *items;
    size_t index; /* of the current item */
    int depth;
    tpl_value last_changed;
    bool has_changed;
};

typedef struct tpl_ctx {
    tpl_arena arena;
    nf_error *err;
    nf_status status; /* of the first failure */
    nf_buf *out;
    tpl_scope *scope;
    uint64_t steps;
    int depth;
    int line; /* of the node in work, for messages */
} tpl_ctx;

/* Arguments of a call of a filter, test, function or method. */
typedef struct tpl_args {
    tpl_value *pos;
    size_t n;
    tpl_str *names;
    tpl_value *named;
    size_t n_named;
} tpl_args;

/* Records a failure (the first one stays) with the line in front; returns false. */
__attribute__((format(printf, 3, 4))) bool tpl_fail(tpl_ctx *c, nf_status status, const char *format, ...);
void *tpl_make(tpl_ctx *c, size_t n); /* tpl_alloc that records the failure */

static inline tpl_str tpl_lit(const char *text) {
    return (tpl_str){text, __builtin_strlen(text)};
}
bool tpl_str_is(tpl_str s, const char *text);
bool tpl_str_eq(tpl_str a, tpl_str b);
static inline tpl_value tpl_none(void) {
    return (tpl_value){.kind = T_NONE};
}
static inline tpl_value tpl_undefined(tpl_str name) {
    return (tpl_value){.kind = T_UNDEFINED, .s = name};
}
static inline tpl_value tpl_bool(bool b) {
    return (tpl_value){.kind = T_BOOL, .b = b};
}
static inline tpl_value tpl_int(int64_t i) {
    return (tpl_value){.kind = T_INT, .i = i};
}
static inline tpl_value tpl_float(double f) {
    return (tpl_value){.kind = T_FLOAT, .f = f};
}
static inline tpl_value tpl_text(tpl_str s) {
    return (tpl_value){.kind = T_STR, .s = s};
}

/* values (template_value.c) */
tpl_list *tpl_list_new(tpl_ctx *c);
bool tpl_list_add(tpl_ctx *c, tpl_list *l, tpl_value v);
tpl_dict *tpl_dict_new(tpl_ctx *c);
bool tpl_dict_set(tpl_ctx *c, tpl_dict *d, tpl_value key, tpl_value v);
tpl_value *tpl_dict_get(tpl_ctx *c, const tpl_dict *d, tpl_value key);
tpl_value *tpl_dict_get_str(const tpl_dict *d, tpl_str key);
bool tpl_truth(tpl_value v);
/* Counts steps and levels: values of a template can share parts. Over a limit: records the failure, and
 * false. */
bool tpl_equal(tpl_ctx *c, tpl_value a, tpl_value b);
/* Numbers, exactly: -1, 0, 1, or 2 when one is NaN. */
int tpl_order_numbers(tpl_value a, tpl_value b);
/* Python's ordering: <0, 0, >0 in *order; a TypeError for kinds that do not compare. */
bool tpl_order(tpl_ctx *c, tpl_value a, tpl_value b, int *order);
bool tpl_is_number(tpl_value v); /* int, float, bool */
double tpl_number(tpl_value v);
/* str(v), repr(v) and json.dumps appended to out. */
bool tpl_print(tpl_ctx *c, tpl_value v, nf_buf *out);
bool tpl_repr(tpl_ctx *c, tpl_value v, nf_buf *out);
bool tpl_json(tpl_ctx *c, tpl_value v, const tpl_args *options, nf_buf *out);
bool tpl_to_str(tpl_ctx *c, tpl_value v, tpl_str *out);
/* A buffer's bytes moved to the arena; frees the buffer. */
bool tpl_keep(tpl_ctx *c, nf_buf *buf, tpl_str *out);
/* The items that iterating over v gives (list itself, characters, keys). */
bool tpl_iterate(tpl_ctx *c, tpl_value v, tpl_list **out);
const char *tpl_type_name(tpl_value v);
bool tpl_from_json(tpl_ctx *c, const json_t *j, int depth, tpl_value *out);
/* Code points. */
size_t tpl_length(tpl_str s);
size_t tpl_offset(tpl_str s, size_t index); /* byte offset of code point `index` (n when behind the end) */
uint32_t tpl_next(const char **p);
bool tpl_is_space(uint32_t c);
bool tpl_put(uint32_t c, nf_buf *out, nf_error *err);
tpl_str tpl_trim(tpl_str s, const tpl_str *chars, bool left, bool right);
bool tpl_case(tpl_ctx *c, tpl_str s, char how, tpl_str *out); /* 'u', 'l', 'c' capitalize, 't' title */

/* parsing */
bool tpl_known_filter(tpl_str name);
bool tpl_known_test(tpl_str name);

/* evaluation */
bool tpl_attribute(tpl_ctx *c, tpl_value obj, tpl_str name, tpl_value *out);
bool tpl_item(tpl_ctx *c, tpl_value obj, tpl_value key, tpl_value *out);
bool tpl_call(tpl_ctx *c, tpl_value f, const tpl_args *args, tpl_value *out);
bool tpl_binary(tpl_ctx *c, int op, tpl_value a, tpl_value b, tpl_value *out);
/* One comparison; op as in tpl_node.ops. */
bool tpl_compare(tpl_ctx *c, int op, tpl_value a, tpl_value b, bool *out);
/* Records "'name' is undefined". */
bool tpl_undefined_error(tpl_ctx *c, tpl_value v);
/* Appends text with & < > " ' replaced by HTML entities. */
bool tpl_escape(tpl_str s, nf_buf *out);
bool tpl_contains(tpl_ctx *c, tpl_value container, tpl_value item, bool *out);
bool tpl_filter(tpl_ctx *c, tpl_str name, tpl_value v, const tpl_args *args, tpl_value *out);
bool tpl_test(tpl_ctx *c, tpl_str name, tpl_value v, const tpl_args *args, bool *out);
bool tpl_method_call(tpl_ctx *c, const tpl_method *m, const tpl_args *args, tpl_value *out);
bool tpl_has_method(tpl_value self, tpl_str name);
bool tpl_function(tpl_ctx *c, tpl_str name, const tpl_args *args, tpl_value *out);
bool tpl_is_function(tpl_str name);
bool tpl_step(tpl_ctx *c, uint64_t n);
/* Argument `index` or keyword `name`; NULL when neither was given. */
const tpl_value *tpl_arg(const tpl_args *args, size_t index, const char *name);

#endif
