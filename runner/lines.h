/* Reads the user's lines: with editing and history on a terminal (libedit), as they are from a pipe. */
#ifndef NF_RUNNER_LINES_H
#define NF_RUNNER_LINES_H

#include "base/buf.h"

#include <stdbool.h>

typedef struct nf_lines nf_lines;

typedef enum nf_line_result {
    NF_LINE_TEXT,      /* a line, without its newline */
    NF_LINE_INTERRUPT, /* Ctrl-C at the prompt; the line so far is dropped */
    NF_LINE_END,       /* Ctrl-D or the end of the input */
    NF_LINE_ERROR      /* err says why */
} nf_line_result;

/* Opens standard input. History is kept in $XDG_STATE_HOME/ninfer/history (default
 * ~/.local/state/ninfer/history); without a writable place there is history for this run only. */
nf_status nf_lines_open(nf_lines **out, nf_error *err);
/* Saves nothing (each line was saved when it was entered). Accepts NULL. */
void nf_lines_close(nf_lines *lines);
bool nf_lines_is_terminal(const nf_lines *lines);
/* Next line; *text is valid until the next call. `prompt` is shown on a terminal only. */
nf_line_result nf_lines_next(nf_lines *lines, const char *prompt, const char **text, size_t *n,
                             nf_error *err);

#endif
