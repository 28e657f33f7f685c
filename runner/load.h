/* What every program of this folder needs first: a model, a text, checked input, and one way to report an
 * error. */
#ifndef NF_RUNNER_LOAD_H
#define NF_RUNNER_LOAD_H

#include "base/buf.h"
#include "runtime/ninfer.h"

#include <stdbool.h>
#include <stddef.h>

#define NF_MAX_TEXT_BYTES ((size_t)1 << 30)

/* Opens a container. A missing file, a folder or an unfinished conversion gets advice. With verify, every
 * checksum is checked first, with a progress bar on stderr. */
nf_status nf_load_model(const char *path, int n_threads, bool verify, nf_model **out, nf_error *err);
/* Reads a text file ("-": standard input), at most NF_MAX_TEXT_BYTES, and checks that it is UTF-8. */
nf_status nf_load_text(const char *path, nf_buf *out, nf_error *err);
/* NF_ERR_ARGUMENT with the offset of the first ill-formed byte; `name` is the file or flag it came from. */
nf_status nf_check_utf8(const char *text, size_t n, const char *name, nf_error *err);
/* Prints "program: message" to stderr; returns 1, the exit status of errors. */
int nf_report(const char *program, const nf_error *err);

#endif
