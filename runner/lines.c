/*
 * Line input; see lines.h. On a terminal signal characters are switched off while a line is edited, so that
 * Ctrl-C arrives as a key and cannot interrupt libedit itself; during an answer it is SIGINT again.
 */
#include "runner/lines.h"

#include "base/io.h"
#include "runner/terminal.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000

struct nf_lines {
    EditLine *editor; /* NULL: plain lines */
    History *history;
    nf_buf history_path;
    const char *prompt;
    bool interrupted;
    char *line; /* of getline */
    size_t cap;
};

static char *prompt_of(EditLine *editor) {
    static char empty[] = "";
    nf_lines *lines = NULL;
    el_get(editor, EL_CLIENTDATA, &lines);
    /* libedit does not write to the prompt; its interface predates const. */
    union {
        const char *in;
        char *out;
    } text = {.in = lines && lines->prompt ? lines->prompt : empty};
    return text.out;
}

static unsigned char on_interrupt_key(EditLine *editor, wint_t key) {
    nf_lines *lines = NULL;
    (void)key;
    el_get(editor, EL_CLIENTDATA, &lines);
    if (lines) lines->interrupted = true;
    return CC_EOF;
}

/* Ctrl-Z, which is only a key too while a line is edited. */
static unsigned char on_suspend_key(EditLine *editor, wint_t key) {
    (void)key;
    el_set(editor, EL_PREP_TERM, 0);
    raise(SIGTSTP);
    el_set(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
}

/* The history file's path; leaves it empty when there is no place for it. */
static void find_history(nf_buf *path) {
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    nf_status status = NF_ERR_NOT_FOUND;
    if (xdg && xdg[0] == '/')
        status = nf_buf_printf(path, NULL, "%s/ninfer", xdg);
    else if (home && home[0] == '/')
        status = nf_buf_printf(path, NULL, "%s/.local/state/ninfer", home);
    if (!status) status = nf_make_dirs(path->data, NULL);
    if (!status) status = nf_buf_text(path, "/history", NULL);
    if (status) nf_buf_free(path);
}

static nf_status open_editor(nf_lines *lines, nf_error *err) {
    HistEvent event;
    /* Wide characters need a UTF-8 locale; numbers keep the C format. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    lines->history = history_init();
    lines->editor = el_init("ninfer-run", stdin, stderr, stderr);
    if (!lines->history || !lines->editor) return nf_fail(err, NF_ERR_MEMORY, "cannot start the line editor");
    history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    history(lines->history, &event, H_SETUNIQUE, 1);
    el_set(lines->editor, EL_CLIENTDATA, lines);
    el_set(lines->editor, EL_PROMPT, prompt_of);
    el_set(lines->editor, EL_EDITOR, "emacs");
    el_set(lines->editor, EL_HIST, history, lines->history);
    el_set(lines->editor, EL_SIGNAL, 0);
    el_set(lines->editor, EL_SETTY, "-d", "-isig", NULL);
    /* The wide form keeps these literals; the narrow one would leak a copy of each. */
    el_wset(lines->editor, EL_ADDFN, L"ninfer-interrupt", L"drop the line", on_interrupt_key);
    el_set(lines->editor, EL_BIND, "^C", "ninfer-interrupt", NULL);
    el_wset(lines->editor, EL_ADDFN, L"ninfer-suspend", L"stop the program", on_suspend_key);
    el_set(lines->editor, EL_BIND, "^Z", "ninfer-suspend", NULL);
    el_set(lines->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(lines->editor, NULL); /* the user's ~/.editrc */
    find_history(&lines->history_path);
    if (lines->history_path.data) history(lines->history, &event, H_LOAD, lines->history_path.data);
    return NF_OK;
}

nf_status nf_lines_open(nf_lines **out, nf_error *err) {
    *out = NULL;
    nf_lines *lines = nf_calloc(1, sizeof *lines, "line input", err);
    if (!lines) return NF_ERR_MEMORY;
    nf_status status = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) ? open_editor(lines, err) : NF_OK;
    if (status)
        nf_lines_close(lines);
    else
        *out = lines;
    return status;
}

void nf_lines_close(nf_lines *lines) {
    if (!lines) return;
    if (lines->editor) el_end(lines->editor);
    if (lines->history) history_end(lines->history);
    nf_buf_free(&lines->history_path);
    free(lines->line);
    free(lines);
}

bool nf_lines_is_terminal(const nf_lines *lines) {
    return lines->editor != NULL;
}

static void remember(nf_lines *lines, const char *line) {
    HistEvent event;
    if (history(lines->history, &event, H_ENTER, line) >= 0 && lines->history_path.data)
        history(lines->history, &event, H_SAVE, lines->history_path.data);
}

static nf_line_result next_edited(nf_lines *lines, const char *prompt, const char **text, size_t *n) {
    int count = 0;
    lines->prompt = prompt;
    lines->interrupted = false;
    /* libedit shows the prompt before it prepares the terminal; a Ctrl-D or Ctrl-C in between would be lost.
     */
    el_set(lines->editor, EL_PREP_TERM, 1);
    const char *line = el_gets(lines->editor, &count);
    if (lines->interrupted) {
        el_reset(lines->editor);
        fputc('\n', stderr);
        return NF_LINE_INTERRUPT;
    }
    if (!line || count <= 0) {
        fputc('\n', stderr);
        return NF_LINE_END;
    }
    *n = (size_t)count;
    if (line[*n - 1] == '\n') --*n;
    *text = line;
    if (*n) remember(lines, line);
    return NF_LINE_TEXT;
}

static nf_line_result next_plain(nf_lines *lines, const char **text, size_t *n, nf_error *err) {
    errno = 0;
    ssize_t got = getline(&lines->line, &lines->cap, stdin);
    if (got < 0) {
        if (feof(stdin)) return NF_LINE_END;
        if (errno == EINTR) {
            clearerr(stdin);
            return NF_LINE_INTERRUPT;
        }
        nf_fail_errno(err, errno, "standard input: cannot read");
        return NF_LINE_ERROR;
    }
    *n = (size_t)got;
    while (*n && (lines->line[*n - 1] == '\n' || lines->line[*n - 1] == '\r')) --*n;
    lines->line[*n] = '\0';
    *text = lines->line;
    return NF_LINE_TEXT;
}

nf_line_result nf_lines_next(nf_lines *lines, const char *prompt, const char **text, size_t *n,
                             nf_error *err) {
    return lines->editor ? next_edited(lines, prompt, text, n) : next_plain(lines, text, n, err);
}
