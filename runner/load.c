/* Opening models and texts with errors that say what to do; see load.h. */
#include "runner/load.h"

#include "base/io.h"
#include "base/progress.h"
#include "runner/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

nf_status nf_load_model(const char *path, const nf_load_args *args, nf_model **out, nf_error *err) {
    struct stat info;
    *out = NULL;
    if (stat(path, &info)) return nf_fail_errno(err, errno, "%s: cannot open the model", path);
    if (S_ISDIR(info.st_mode))
        return nf_fail(err, NF_ERR_ARGUMENT,
                       "%s: is a folder, not a container; convert it with 'ninfer-convert %s NAME.ninfer' or "
                       "chat with it by "
                       "'ninfer-run %s', which converts it once",
                       path, path, path);
    nf_progress bar = {.out = stderr, .cancel = nf_interrupt_flag()};
    const nf_model_options options = {.n_threads = (int)args->threads,
                                      .no_pin = args->no_pin,
                                      .weights = args->weights,
                                      .verify = args->verify,
                                      .progress = nf_progress_bar,
                                      .progress_user = &bar};
    return nf_model_open(path, &options, out, err);
}

nf_status nf_check_utf8(const char *text, size_t n, const char *name, nf_error *err) {
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t code;
        size_t left = n - i < 4 ? n - i : 4;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)left, &code);
        if (used <= 0) return nf_fail(err, NF_ERR_ARGUMENT, "%s: not valid UTF-8 at byte %zu", name, i);
        i += (size_t)used;
    }
    return NF_OK;
}

nf_status nf_load_text(const char *path, nf_buf *out, nf_error *err) {
    bool from_stdin = !strcmp(path, "-");
    const char *name = from_stdin ? "standard input" : path;
    nf_status status = from_stdin ? nf_read_fd(STDIN_FILENO, name, NF_MAX_TEXT_BYTES, out, err)
                                  : nf_read_file(path, NF_MAX_TEXT_BYTES, out, err);
    if (!status) status = nf_check_utf8(out->data, out->len, name, err);
    if (status) nf_buf_free(out);
    return status;
}

int nf_report(const char *program, const nf_error *err) {
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program, err->message[0] ? err->message : nf_status_name(err->status));
    return 1;
}
