/*
 * The one argument parser. A program (or a subcommand) is described by one table of options; the table also
 * prints --help. Accepted forms: --name VALUE, --name=VALUE, -x VALUE, -xVALUE, --flag.
 * "--" ends the options. --help and --version are added to every table.
 */
#ifndef NF_BASE_ARGS_H
#define NF_BASE_ARGS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum nf_opt_kind {
    NF_OPT_FLAG, /* dst: bool *, set to true */
    NF_OPT_INT,  /* dst: int64_t *, min..max checked */
    NF_OPT_REAL, /* dst: double *, min..max checked, finite */
    NF_OPT_TEXT, /* dst: const char **, points into argv */
    NF_OPT_LIST  /* dst: nf_text_list *, may be given several times */
} nf_opt_kind;

/* Values of a repeatable option, in order. Items point into argv; free the array with free(list.items). */
typedef struct nf_text_list {
    const char **items;
    size_t n, cap;
} nf_text_list;

typedef struct nf_opt {
    const char *name; /* long name without dashes; NULL ends the table */
    char letter;      /* short form or 0 */
    nf_opt_kind kind;
    void *dst;
    const char *value; /* name of the value in --help, e.g. "FILE"; NULL for flags */
    const char *help;  /* one or more lines; the default is stated here */
    double min, max;   /* for NF_OPT_INT and NF_OPT_REAL; both 0: no limits */
    bool *given;       /* set to true when the option was given; may be NULL */
} nf_opt;

typedef struct nf_args_spec {
    const char *program;   /* "ninfer-convert" or "ninfer-convert inspect" */
    const char *usage;     /* what follows the program name: "SRC_DIR OUT.ninfer [options]" */
    const char *about;     /* paragraph under the usage line */
    const nf_opt *options; /* ends with a NULL name */
    const char *footer;    /* examples; may be NULL */
    size_t min_positional, max_positional;
} nf_args_spec;

typedef enum nf_args_result {
    NF_ARGS_RUN,  /* go on */
    NF_ARGS_DONE, /* --help or --version was printed: exit 0 */
    NF_ARGS_USAGE /* a message and a hint were printed to stderr: exit 2 */
} nf_args_result;

/* Parses argv[1..argc). Positional arguments are stored in positional[0..*n_positional) (capacity
 * spec->max_positional; points into argv). */
nf_args_result nf_args_parse(const nf_args_spec *spec, int argc, char **argv, const char **positional,
                             size_t *n_positional);
/* Prints the --help text to `out`. */
void nf_args_help(const nf_args_spec *spec, FILE *out);
/* Prints "program: message" and "try 'program --help'" to stderr, for usage errors found after parsing;
 * returns 2, the exit status of usage errors. */
__attribute__((format(printf, 2, 3))) int nf_usage_error(const nf_args_spec *spec, const char *format, ...);

#endif
