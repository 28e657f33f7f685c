/* .npy writer; see npy.h. The format: magic, version, header length, a Python dictionary padded to 64 bytes,
 * the data. */
#include "runner/npy.h"

#include "base/buf.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define F32_DESCR "<f4"
#else
#define F32_DESCR ">f4"
#endif

static void release(nf_npy *npy) {
    free(npy->path);
    free(npy->temp);
    *npy = (nf_npy){0};
}

static nf_status write_all(nf_npy *npy, const void *bytes, size_t n, nf_error *err) {
    const char *from = bytes;
    while (n) {
        ssize_t put = write(npy->fd, from, n);
        if (put < 0) {
            if (errno == EINTR) continue;
            return nf_fail_errno(err, errno, "%s: cannot write", npy->path);
        }
        from += put;
        n -= (size_t)put;
    }
    return NF_OK;
}

nf_status nf_npy_open(nf_npy *npy, const char *path, nf_error *err) {
    struct stat info;
    bool exists = !stat(path, &info);
    if (exists && S_ISDIR(info.st_mode))
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: is a folder, not a file to write", path);
    nf_buf temp = {0};
    nf_status status = (npy->path = nf_strdup(path, err)) ? NF_OK : NF_ERR_MEMORY;
    if (!status && (!exists || S_ISREG(info.st_mode))) {
        if (exists && access(path, W_OK)) status = nf_fail_errno(err, errno, "%s: cannot write", path);
        if (!status) status = nf_buf_printf(&temp, err, "%s.tmp-%ld", path, (long)getpid());
        npy->temp = nf_buf_take(&temp);
    }
    if (!status) {
        npy->fd = open(npy->temp ? npy->temp : path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (npy->fd < 0) status = nf_fail_errno(err, errno, "%s: cannot create", path);
    }
    if (status) release(npy);
    return status;
}

nf_status nf_npy_begin(nf_npy *npy, uint64_t rows, uint64_t cols, nf_error *err) {
    char text[192];
    const size_t prefix = 10; /* magic 6, version 2, length 2 */
    int n = snprintf(text, sizeof text,
                     "{'descr': '" F32_DESCR "', 'fortran_order': False, 'shape': (%llu, %llu), }",
                     (unsigned long long)rows, (unsigned long long)cols);
    size_t length = (size_t)n, total = (prefix + length + 1 + 63) / 64 * 64;
    unsigned char header[256] = "\x93NUMPY\x01";
    header[8] = (unsigned char)((total - prefix) & 0xFF);
    header[9] = (unsigned char)((total - prefix) >> 8);
    memcpy(header + prefix, text, length);
    memset(header + prefix + length, ' ', total - prefix - length - 1);
    header[total - 1] = '\n';
    npy->rows = rows;
    npy->cols = cols;
    return write_all(npy, header, total, err);
}

nf_status nf_npy_append(nf_npy *npy, const float *values, uint64_t n, nf_error *err) {
    if (n > npy->rows - npy->written)
        return nf_fail(err, NF_ERR_INTERNAL, "%s: more rows than the header says", npy->path);
    npy->written += n;
    return write_all(npy, values, (size_t)(n * npy->cols) * sizeof *values, err);
}

nf_status nf_npy_finish(nf_npy *npy, nf_error *err) {
    nf_status status = NF_OK;
    if (npy->written != npy->rows)
        status = nf_fail(err, NF_ERR_INTERNAL, "%s: %llu of %llu rows were written", npy->path,
                         (unsigned long long)npy->written, (unsigned long long)npy->rows);
    if (status) {
        nf_npy_abort(npy);
        return status;
    }
    if (close(npy->fd)) status = nf_fail_errno(err, errno, "%s: cannot write", npy->path);
    if (!status && npy->temp && rename(npy->temp, npy->path))
        status = nf_fail_errno(err, errno, "%s: cannot rename", npy->path);
    if (status && npy->temp) unlink(npy->temp);
    release(npy);
    return status;
}

void nf_npy_abort(nf_npy *npy) {
    if (!npy->path) return;
    close(npy->fd);
    if (npy->temp) unlink(npy->temp);
    release(npy);
}
