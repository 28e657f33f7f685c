/* Table-driven argument parser; see args.h. */
#include "base/args.h"

#include "base/buf.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void print_option(FILE *out, const char *name, char letter, const char *value, const char *help) {
    char left[64];
    int n = letter ? snprintf(left, sizeof left, "  -%c, --%s", letter, name)
                   : snprintf(left, sizeof left, "      --%s", name);
    if (value && n > 0 && (size_t)n < sizeof left) snprintf(left + n, sizeof left - (size_t)n, " %s", value);
    fprintf(out, "%-32s", left);
    if (strlen(left) >= 32) fprintf(out, "\n%-32s", "");
    for (const char *p = help; *p; p++) {
        fputc(*p, out);
        if (*p == '\n') fprintf(out, "%-32s", "");
    }
    fputc('\n', out);
}

void nf_args_help(const nf_args_spec *spec, FILE *out) {
    fprintf(out, "usage: %s %s\n\n%s\n\noptions:\n", spec->program, spec->usage, spec->about);
    for (const nf_opt *o = spec->options; o->name; o++)
        print_option(out, o->name, o->letter, o->value, o->help);
    print_option(out, "help", 'h', NULL, "print this help and exit");
    print_option(out, "version", 0, NULL, "print the version and exit");
    if (spec->footer) fprintf(out, "\n%s\n", spec->footer);
}

int nf_usage_error(const nf_args_spec *spec, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", spec->program);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\ntry '%s --help'\n", spec->program);
    va_end(args);
    return 2;
}

static const nf_opt *find_long(const nf_args_spec *spec, const char *name, size_t n) {
    for (const nf_opt *o = spec->options; o->name; o++)
        if (strlen(o->name) == n && !memcmp(o->name, name, n)) return o;
    return NULL;
}

static const nf_opt *find_letter(const nf_args_spec *spec, char letter) {
    for (const nf_opt *o = spec->options; o->name; o++)
        if (o->letter && o->letter == letter) return o;
    return NULL;
}

static int out_of_range(const nf_opt *o, double v) {
    return (o->min != 0 || o->max != 0) && (v < o->min || v > o->max);
}

/* Stores one value. Returns 0, or 2 after printing what is wrong. */
static int store(const nf_args_spec *spec, const nf_opt *o, const char *value) {
    if (o->given) *o->given = true;
    char *end = NULL;
    errno = 0;
    switch (o->kind) {
    case NF_OPT_FLAG:
        *(bool *)o->dst = true;
        return 0;
    case NF_OPT_TEXT:
        *(const char **)o->dst = value;
        return 0;
    case NF_OPT_INT: {
        long long v = strtoll(value, &end, 10);
        if (errno || end == value || *end)
            return nf_usage_error(spec, "--%s wants a whole number, not '%s'", o->name, value);
        if (out_of_range(o, (double)v))
            return nf_usage_error(spec, "--%s must be between %.0f and %.0f, not %lld", o->name, o->min,
                                  o->max, v);
        *(int64_t *)o->dst = v;
        return 0;
    }
    case NF_OPT_REAL: {
        double v = strtod(value, &end);
        if (errno || end == value || *end || !isfinite(v))
            return nf_usage_error(spec, "--%s wants a number, not '%s'", o->name, value);
        if (out_of_range(o, v))
            return nf_usage_error(spec, "--%s must be between %g and %g, not %g", o->name, o->min, o->max, v);
        *(double *)o->dst = v;
        return 0;
    }
    case NF_OPT_LIST: {
        nf_text_list *list = o->dst;
        if (nf_grow((void **)&list->items, &list->cap, list->n + 1, sizeof *list->items, NULL)) {
            fprintf(stderr, "%s: out of memory\n", spec->program);
            return 2;
        }
        list->items[list->n++] = value;
        return 0;
    }
    }
    return 2;
}

nf_args_result nf_args_parse(const nf_args_spec *spec, int argc, char **argv, const char **positional,
                             size_t *n_positional) {
    size_t n = 0;
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (options_ended || arg[0] != '-' || !arg[1]) {
            if (n == spec->max_positional) {
                nf_usage_error(spec, "unexpected argument '%s'", arg);
                return NF_ARGS_USAGE;
            }
            positional[n++] = arg;
            continue;
        }
        if (!strcmp(arg, "--")) {
            options_ended = true;
            continue;
        }
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            nf_args_help(spec, stdout);
            return NF_ARGS_DONE;
        }
        if (!strcmp(arg, "--version")) {
            printf("%s %s\n", spec->program, nf_version());
            return NF_ARGS_DONE;
        }
        const nf_opt *o;
        const char *value = NULL;
        if (arg[1] == '-') {
            const char *equals = strchr(arg, '=');
            o = find_long(spec, arg + 2, equals ? (size_t)(equals - arg - 2) : strlen(arg + 2));
            if (equals) value = equals + 1;
        } else {
            o = find_letter(spec, arg[1]);
            if (arg[2]) value = arg + 2;
        }
        if (!o) {
            nf_usage_error(spec, "unknown option '%s'", arg);
            return NF_ARGS_USAGE;
        }
        if (o->kind == NF_OPT_FLAG && value) {
            nf_usage_error(spec, "--%s takes no value", o->name);
            return NF_ARGS_USAGE;
        }
        if (o->kind != NF_OPT_FLAG && !value) {
            if (i + 1 == argc) {
                nf_usage_error(spec, "--%s needs a value (%s)", o->name, o->value);
                return NF_ARGS_USAGE;
            }
            value = argv[++i];
        }
        if (store(spec, o, value)) return NF_ARGS_USAGE;
    }
    *n_positional = n;
    if (n < spec->min_positional) {
        nf_usage_error(spec, "missing argument: usage is '%s %s'", spec->program, spec->usage);
        return NF_ARGS_USAGE;
    }
    return NF_ARGS_RUN;
}
