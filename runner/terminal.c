/* Terminal output and SIGINT; see terminal.h. */
#include "runner/terminal.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int interrupted; /* number of Ctrl-C since the last clear */
static _Atomic(nf_session *) target;

bool nf_terminal_styled(FILE *stream) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0 && (!no_color || !*no_color);
}

void nf_dim_line(FILE *stream, const char *format, ...) {
    bool styled = nf_terminal_styled(stream);
    va_list args;
    va_start(args, format);
    if (styled) fputs("\033[2m", stream);
    vfprintf(stream, format, args);
    fputs(styled ? "\033[0m\n" : "\n", stream);
    fflush(stream);
    va_end(args);
}

/* Only async-signal-safe calls here. Who presses Ctrl-C three times while nothing reacts wants out. */
static void on_interrupt(int number) {
    interrupted = interrupted + 1;
    if (interrupted >= 3) {
        signal(number, SIG_DFL);
        raise(number);
    }
    nf_session *session = atomic_load(&target);
    if (session) nf_session_cancel(session);
}

void nf_interrupt_setup(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_DFL); /* also when the parent ignored it: `ninfer ... | head` ends quietly */
}

void nf_interrupt_target(nf_session *session) {
    atomic_store(&target, session);
}
const volatile int *nf_interrupt_flag(void) {
    return &interrupted;
}
bool nf_interrupted(void) {
    return interrupted != 0;
}
void nf_interrupt_clear(void) {
    interrupted = 0;
}

_Noreturn void nf_interrupt_exit(void) {
    fflush(NULL);
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
    _exit(130); /* only when SIGINT is blocked */
}
