/* Splits a streamed answer into its thinking (<think>...</think>) and what is said. Knows nothing of
 * terminals or models. */
#ifndef NF_RUNNER_THINK_H
#define NF_RUNNER_THINK_H

#include "base/buf.h"

#include <stdbool.h>

/* Zero-initialise; set `thinking` when the prompt ends inside a <think> block; set emit. Free with
 * nf_think_split_free. */
typedef struct nf_think_split {
    bool thinking;
    /* Called with each piece as soon as its kind is certain; returns false to stop. May be NULL. */
    bool (*emit)(void *user, bool thinking, const char *text, size_t n);
    void *user;
    nf_buf thought, said; /* everything so far; `said` without the blank lines behind the thinking */
    nf_buf held;          /* could still become a marker */
    bool closed;          /* a block has ended */
} nf_think_split;

/* True when the rendered prompt ends inside an open <think> block, so that the answer begins as thinking. */
bool nf_think_is_open(const char *prompt, size_t n);
/* Takes more text. *go_on becomes false when emit asked to stop. */
nf_status nf_think_push(nf_think_split *s, const char *text, size_t n, bool *go_on, nf_error *err);
/* End of the answer: what is held is plain text. */
nf_status nf_think_end(nf_think_split *s, bool *go_on, nf_error *err);
void nf_think_split_free(nf_think_split *s);

#endif
