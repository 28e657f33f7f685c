/* Error object: formats messages and message chains. Knows nothing of what failed. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifndef NF_VERSION
#error "NF_VERSION comes from the Makefile"
#endif

const char *nf_version(void) {
    return NF_VERSION;
}

const char *nf_status_name(nf_status status) {
    switch (status) {
    case NF_OK:
        return "ok";
    case NF_ERR_ARGUMENT:
        return "argument";
    case NF_ERR_IO:
        return "io";
    case NF_ERR_NOT_FOUND:
        return "not_found";
    case NF_ERR_FORMAT:
        return "format";
    case NF_ERR_UNSUPPORTED:
        return "unsupported";
    case NF_ERR_MEMORY:
        return "memory";
    case NF_ERR_LIMIT:
        return "limit";
    case NF_ERR_NO_SPACE:
        return "no_space";
    case NF_ERR_BUSY:
        return "busy";
    case NF_ERR_NUMERIC:
        return "numeric";
    case NF_ERR_CANCELLED:
        return "cancelled";
    case NF_ERR_INTERNAL:
        return "internal";
    }
    return "unknown";
}

/* A cut in the middle of a UTF-8 sequence would make the message itself invalid UTF-8. */
static void trim_partial_utf8(char *text) {
    size_t n = strlen(text), i = n;
    while (i > 0 && n - i < 4 && ((unsigned char)text[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (lead >= 0xC0 && n - (i - 1) < need) text[i - 1] = '\0';
}

static void set_message(nf_error *err, const char *format, va_list args) {
    vsnprintf(err->message, sizeof err->message, format, args);
    trim_partial_utf8(err->message);
}

static void add_suffix(nf_error *err, const char *suffix) {
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof err->message - n, ": %s", suffix);
    trim_partial_utf8(err->message);
}

nf_status nf_fail(nf_error *err, nf_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        set_message(err, format, args);
        va_end(args);
    }
    return status;
}

nf_status nf_fail_errno(nf_error *err, int errno_value, const char *format, ...) {
    nf_status status = NF_ERR_IO;
    if (errno_value == ENOENT)
        status = NF_ERR_NOT_FOUND;
    else if (errno_value == ENOSPC || errno_value == EDQUOT)
        status = NF_ERR_NO_SPACE;
    else if (errno_value == ENOMEM)
        status = NF_ERR_MEMORY;
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        set_message(err, format, args);
        va_end(args);
        char text[128];
        /* GNU strerror_r may return a static string instead of filling the buffer. */
        add_suffix(err, strerror_r(errno_value, text, sizeof text));
    }
    return status;
}

nf_status nf_context(nf_error *err, const char *format, ...) {
    if (!err) return NF_ERR_INTERNAL;
    nf_error old = *err;
    va_list args;
    va_start(args, format);
    set_message(err, format, args);
    va_end(args);
    add_suffix(err, old.message);
    err->status = old.status;
    return old.status;
}
