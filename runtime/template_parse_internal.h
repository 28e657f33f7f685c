/* What the two halves of the template parser share: the state, tokens (template_lex.c) and the grammar's
 * helpers. */
#ifndef NF_RUNTIME_TEMPLATE_PARSE_INTERNAL_H
#define NF_RUNTIME_TEMPLATE_PARSE_INTERNAL_H

#include "runtime/template_internal.h"

#include <setjmp.h>

typedef enum token_kind { K_END, K_NAME, K_STR, K_INT, K_FLOAT, K_OP } token_kind; /* K_END: end of the tag */

typedef struct token {
    token_kind kind;
    tpl_str text; /* K_NAME, K_OP; K_STR: decoded */
    int64_t i;
    double f;
    int line;
} token;

typedef struct parser {
    nf_template *t;
    nf_error *err;
    nf_status status;
    jmp_buf fail; /* the one way out: parsing owns nothing but the arena */
    const char *p, *end;
    int line;
    int depth;
    int in_loop;
    token tok;           /* current token of the tag in work */
    const char *tag_end; /* "%}" or "}}" */
    int open;            /* brackets of the tag that are open: inside them tag_end is no end */
    bool trim_next;      /* the last tag ended with '-': strip white space of the following text */
    bool newline_next;   /* trim_blocks: drop one newline that follows */
    bool line_starting;  /* the next text begins a line */
} parser;

/* Ends parsing with an error that names the line. */
__attribute__((noreturn, format(printf, 3, 4))) void tplp_fail(parser *p, nf_status status,
                                                               const char *format, ...);
#define SYNTAX(p, ...) tplp_fail(p, NF_ERR_FORMAT, __VA_ARGS__)
#define UNSUPPORTED(p, ...) tplp_fail(p, NF_ERR_UNSUPPORTED, __VA_ARGS__)

/* Memory of the template's arena; does not return when there is none. */
void *tplp_make(parser *p, size_t n);
tpl_node *tplp_node(parser *p, tpl_node_kind kind);
void tplp_push(parser *p, tpl_node *to, tpl_node *item);
void tplp_push_named(parser *p, tpl_node *to, tpl_str name, tpl_node *value);

/* Whether the source goes on with `text`. */
bool tplp_at(const parser *p, const char *text);
/* Reads the next token of the tag. At the tag's end: K_END, and what follows the tag is prepared. */
void tplp_next(parser *p);
bool tplp_is_op(const parser *p, const char *op);
bool tplp_is_name(const parser *p, const char *name);
/* Consume the token if it is this one. */
bool tplp_skip_op(parser *p, const char *op);
bool tplp_skip_name(parser *p, const char *name);
void tplp_expect_op(parser *p, const char *op);
tpl_str tplp_expect_name(parser *p);
/* One level of nesting more; the caller takes it back. */
void tplp_enter(parser *p);

#endif
