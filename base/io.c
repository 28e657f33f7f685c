/* File helpers; see io.h. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

nf_status nf_pread_full(int fd, void *out, size_t n, uint64_t offset, const char *name, nf_error *err) {
    char *to = out;
    while (n) {
        ssize_t got = pread(fd, to, n > (1u << 30) ? (1u << 30) : n, (off_t)offset);
        if (got < 0) {
            if (errno == EINTR) continue;
            return nf_fail_errno(err, errno, "%s: cannot read at offset %llu", name,
                                 (unsigned long long)offset);
        }
        if (got == 0)
            return nf_fail(err, NF_ERR_FORMAT,
                           "%s: the file ends at offset %llu, %zu more bytes were expected", name,
                           (unsigned long long)offset, n);
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return NF_OK;
}

nf_status nf_pwrite_full(int fd, const void *bytes, size_t n, uint64_t offset, const char *name,
                         nf_error *err) {
    const char *from = bytes;
    while (n) {
        ssize_t put = pwrite(fd, from, n > (1u << 30) ? (1u << 30) : n, (off_t)offset);
        if (put < 0) {
            if (errno == EINTR) continue;
            return nf_fail_errno(err, errno, "%s: cannot write %zu bytes", name, n);
        }
        from += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return NF_OK;
}

nf_status nf_read_fd(int fd, const char *name, size_t limit, nf_buf *out, nf_error *err) {
    for (;;) {
        nf_status status = nf_buf_reserve(out, 65536, err);
        if (status) return status;
        ssize_t got = read(fd, out->data + out->len, out->cap - out->len - 1);
        if (got < 0) {
            if (errno == EINTR) continue;
            return nf_fail_errno(err, errno, "%s: cannot read", name);
        }
        out->len += (size_t)got;
        out->data[out->len] = '\0';
        if (out->len > limit)
            return nf_fail(err, NF_ERR_LIMIT, "%s: larger than the limit of %zu bytes", name, limit);
        if (got == 0) return NF_OK;
    }
}

nf_status nf_read_file(const char *path, size_t limit, nf_buf *out, nf_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nf_fail_errno(err, errno, "%s: cannot open", path);
    nf_status status = nf_read_fd(fd, path, limit, out, err);
    close(fd);
    return status;
}

nf_status nf_fsync_parent(const char *path, nf_error *err) {
    const char *slash = strrchr(path, '/');
    char *dir =
        slash ? nf_strndup(path, slash == path ? 1 : (size_t)(slash - path), err) : nf_strdup(".", err);
    if (!dir) return NF_ERR_MEMORY;
    nf_status status = NF_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) status = nf_fail_errno(err, errno, "%s: cannot open folder", dir);
    /* Some file systems cannot fsync a folder and say EINVAL; nothing more can be done there. */
    else if (fsync(fd) && errno != EINVAL)
        status = nf_fail_errno(err, errno, "%s: cannot sync folder", dir);
    if (fd >= 0) close(fd);
    free(dir);
    return status;
}

/* Opens the file that will be renamed to path; *temp has its name, empty after an error. */
static nf_status open_temp(const char *path, nf_buf *temp, int *fd, nf_error *err) {
    nf_status status = nf_buf_printf(temp, err, "%s.tmp-%ld", path, (long)getpid());
    if (status) return status;
    *fd = open(temp->data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (*fd >= 0) return NF_OK;
    status = nf_fail_errno(err, errno, "%s: cannot create", temp->data);
    nf_buf_free(temp);
    return status;
}

nf_status nf_check_output(const char *path, nf_error *err) {
    nf_buf temp = {0};
    struct stat st;
    int fd;
    if (!stat(path, &st) && S_ISDIR(st.st_mode))
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: is a folder", path);
    nf_status status = open_temp(path, &temp, &fd, err);
    if (status) return status;
    close(fd);
    unlink(temp.data);
    nf_buf_free(&temp);
    return NF_OK;
}

nf_status nf_write_file_atomic(const char *path, const void *bytes, size_t n, nf_error *err) {
    nf_buf temp = {0};
    int fd;
    nf_status status = open_temp(path, &temp, &fd, err);
    if (status) return status;
    status = nf_pwrite_full(fd, bytes, n, 0, path, err);
    if (!status && fsync(fd)) status = nf_fail_errno(err, errno, "%s: cannot sync", path);
    if (close(fd) && !status) status = nf_fail_errno(err, errno, "%s: cannot close", path);
    if (!status && rename(temp.data, path)) status = nf_fail_errno(err, errno, "%s: cannot rename", path);
    if (status)
        unlink(temp.data);
    else
        status = nf_fsync_parent(path, err);
    nf_buf_free(&temp);
    return status;
}

nf_status nf_make_dirs(const char *path, nf_error *err) {
    char *copy = nf_strdup(path, err);
    if (!copy) return NF_ERR_MEMORY;
    nf_status status = NF_OK;
    for (char *p = copy + 1; !status; p++) {
        if (*p != '/' && *p != '\0') continue;
        char end = *p;
        *p = '\0';
        if (mkdir(copy, 0777) && errno != EEXIST)
            status = nf_fail_errno(err, errno, "%s: cannot create folder", copy);
        *p = end;
        if (!end) break;
    }
    free(copy);
    return status;
}

nf_status nf_cache_folder(nf_buf *out, nf_error *err) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        return nf_buf_printf(out, err, "%s/ninfer", xdg); /* relative values are invalid by the spec */
    if (!home || !*home) {
        const struct passwd *user = getpwuid(getuid());
        home = user ? user->pw_dir : NULL;
    }
    if (!home) return nf_fail(err, NF_ERR_NOT_FOUND, "no cache folder: set XDG_CACHE_HOME or HOME");
    return nf_buf_printf(out, err, "%s/.cache/ninfer", home);
}
