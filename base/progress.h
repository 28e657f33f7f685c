/*
 * The one progress display. Libraries report through nf_progress_fn and never print; a program passes
 * nf_progress_bar, which draws a bar with rate and ETA on a terminal and otherwise prints a line every few
 * seconds.
 */
#ifndef NF_BASE_PROGRESS_H
#define NF_BASE_PROGRESS_H

#include "base/status.h"

#include <stdio.h>

/* State of the bar: zero-initialise, set `out` (stderr) and pass it as `user`. */
typedef struct nf_progress {
    FILE *out;
    const volatile int *cancel; /* when not NULL and non-zero, the bar asks to cancel (Ctrl-C) */
    const char *unit;           /* what is counted, e.g. "tokens"; NULL: bytes */
    char phase[64];
    double started, last_drawn;
    bool is_terminal, active;
} nf_progress;

bool nf_progress_bar(void *progress, const char *phase, uint64_t done, uint64_t total);

/* Seconds of a monotonic clock. */
double nf_now(void);

#endif
