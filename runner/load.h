/* What every program of this folder needs first: a model, a text, checked input, and one way to report an
 * error. */
#ifndef NF_RUNNER_LOAD_H
#define NF_RUNNER_LOAD_H

#include "base/args.h"
#include "base/buf.h"
#include "runtime/ninfer.h"

#include <stdbool.h>
#include <stddef.h>

#define NF_MAX_TEXT_BYTES ((size_t)1 << 30)

/* The flags of every program that loads a model. Zero-initialise. */
typedef struct nf_load_args {
    int64_t threads;
    bool no_pin, verify;
    const char *weights;
} nf_load_args;

/* Rows of an nf_opt table for `a` (an nf_load_args variable). */
/* clang-format off */
#define NF_LOAD_OPTIONS(a)                                                                                   \
    {"threads", 0, NF_OPT_INT, &(a).threads, "N",                                                            \
     "threads (default: one per core that the process may use)", 1, 1024, NULL},                             \
    {"no-pin", 0, NF_OPT_FLAG, &(a).no_pin, NULL,                                                            \
     "pin no thread to a core (default: NINFER_PIN=0 or 1;\npinned on several NUMA nodes)", 0, 0, NULL},     \
    {"weights", 0, NF_OPT_TEXT, &(a).weights, "WHERE",                                                       \
     "map: in the mapped file (default); ram: copied to memory, on huge\npages; auto: ram where it fits "    \
     "and is known to help",                                                                                 \
     0, 0, NULL},                                                                                            \
    {"verify", 0, NF_OPT_FLAG, &(a).verify, NULL, "check every checksum of the model before using it", 0, 0, \
     NULL}
/* clang-format on */

/* Opens a container. A missing file, a folder or an unfinished conversion gets advice. With args->verify,
 * every checksum is checked first, with a progress bar on stderr. */
nf_status nf_load_model(const char *path, const nf_load_args *args, nf_model **out, nf_error *err);
/* Reads a text file ("-": standard input), at most NF_MAX_TEXT_BYTES, and checks that it is UTF-8. */
nf_status nf_load_text(const char *path, nf_buf *out, nf_error *err);
/* NF_ERR_ARGUMENT with the offset of the first ill-formed byte; `name` is the file or flag it came from. */
nf_status nf_check_utf8(const char *text, size_t n, const char *name, nf_error *err);
/* Prints "program: message" to stderr; returns 1, the exit status of errors. */
int nf_report(const char *program, const nf_error *err);

#endif
