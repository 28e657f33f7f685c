/* What a program does with a terminal: dim text where it is wanted, and Ctrl-C as a request instead of an
 * end. */
#ifndef NF_RUNNER_TERMINAL_H
#define NF_RUNNER_TERMINAL_H

#include "runtime/ninfer.h"

#include <stdbool.h>
#include <stdio.h>

/* True when the stream is a terminal that may get escape sequences (TERM is not "dumb", NO_COLOR is not set).
 */
bool nf_terminal_styled(FILE *stream);
/* Prints one formatted line to `stream`, dim on a terminal. A newline is added. */
__attribute__((format(printf, 2, 3))) void nf_dim_line(FILE *stream, const char *format, ...);

/* Installs the SIGINT handler (system calls are not restarted) and lets a broken pipe end the process
 * quietly. */
void nf_interrupt_setup(void);
/* The session that Ctrl-C cancels; NULL for none. */
void nf_interrupt_target(nf_session *session);
/* Non-zero after Ctrl-C; the form that nf_progress.cancel wants. */
const volatile int *nf_interrupt_flag(void);
bool nf_interrupted(void);
void nf_interrupt_clear(void);
/* Ends the process as an unhandled SIGINT would, so that a calling shell or script sees it. */
_Noreturn void nf_interrupt_exit(void);

#endif
