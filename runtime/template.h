/*
 * Chat templates: an interpreter of the Jinja2 subset that published chat templates use. Values are JSON
 * (jansson). Syntax that is not supported is an error at parse time and names line and construct.
 */
#ifndef NF_RUNTIME_TEMPLATE_H
#define NF_RUNTIME_TEMPLATE_H

#include "base/buf.h"

#include <jansson.h>
#include <stddef.h>

typedef struct nf_template nf_template;

/* Parses a template (UTF-8, hostile: nesting and size are limited) with the options that chat templates are
 * rendered with: trim_blocks, lstrip_blocks, no autoescape, loop controls (break/continue). */
nf_status nf_template_parse(const char *source, size_t n, nf_template **out, nf_error *err);
void nf_template_free(nf_template *t);

/* Renders with the variables of the JSON object `vars` (borrowed, not changed). raise_exception(...) gives
 * NF_ERR_ARGUMENT with the template's message. Output, steps and recursion are limited (NF_ERR_LIMIT). */
nf_status nf_template_render(const nf_template *t, const json_t *vars, nf_buf *out, nf_error *err);

#endif
