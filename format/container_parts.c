/* The files of a writer: the table of file operations, parts under temporary names, leftovers of dead
 * writers. */
#include "format/container_writer_internal.h"

#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- file operations ---- */

static int posix_open(const char *path, int flags, mode_t mode) {
    return open(path, flags, mode);
}

static int posix_fsync_dir(const char *path) {
    nf_error err = {0};
    errno = 0;
    if (!nf_fsync_parent(path, &err)) return 0;
    if (!errno) errno = EIO;
    return -1;
}

const nf_file_ops nf_posix_file_ops = {posix_open, pwrite, ftruncate, fsync,
                                       close,      rename, unlink,    posix_fsync_dir};
const nf_file_ops *nf_file_ops_in_use = &nf_posix_file_ops;

nf_status nf_write_full(int fd, const void *bytes, uint64_t n, uint64_t offset, const char *name,
                        nf_error *err) {
    const char *from = bytes;
    while (n) {
        ssize_t put = nf_file_ops_in_use->pwrite(fd, from, n > (1u << 30) ? 1u << 30 : n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return nf_fail_errno(err, errno, "%s: cannot write", name);
        if (put == 0) return nf_fail_errno(err, ENOSPC, "%s: nothing more can be written", name);
        from += put;
        n -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return NF_OK;
}

const char *nf_part_name(const nf_part_file *p) {
    return p->temp ? p->temp : p->final;
}

/* ---- new parts ---- */

/* The temporary part 0 is the lock of a new container: it is locked before it is emptied. */
static nf_status lock_first_part(const nf_writer *w, nf_part_file *p, nf_error *err) {
    struct stat mine, named;
    /* The name may have moved on between open and lock: then the locked file is somebody's finished
     * container. */
    bool held = !flock(p->fd, LOCK_EX | LOCK_NB);
    if (!held || fstat(p->fd, &mine) || stat(p->temp, &named) || mine.st_ino != named.st_ino ||
        mine.st_dev != named.st_dev) {
        nf_file_ops_in_use->close(p->fd);
        p->fd = -1; /* not ours: abort must not remove it */
        return nf_fail(err, NF_ERR_BUSY, "%s: another conversion to this name is running", w->path);
    }
    if (nf_file_ops_in_use->ftruncate(p->fd, 0))
        return nf_fail_errno(err, errno, "%s: cannot truncate", p->temp);
    return NF_OK;
}

nf_status nf_writer_new_part(nf_writer *w, nf_error *err) {
    size_t number = w->dir.n_parts;
    if (number >= NF_MAX_PARTS)
        return nf_fail(err, NF_ERR_LIMIT,
                       "%s: more than %d parts would be needed; raise the largest part size", w->path,
                       NF_MAX_PARTS);
    nf_status status = nf_grow((void **)&w->parts, &w->parts_cap, number + 1, sizeof *w->parts, err);
    if (!status)
        status = nf_grow((void **)&w->dir.parts, &w->dir.parts_cap, number + 1, sizeof *w->dir.parts, err);
    if (status) return status;
    nf_part_file *p = &w->parts[number];
    *p = (nf_part_file){.fd = -1, .end = number ? NF_PARTN_DATA : NF_PART0_DATA};
    w->dir.parts[number] = (nf_part_entry){0};
    w->dir.n_parts++;
    if (!(p->final = nf_part_path(w->path, number, err)) || !(p->temp = nf_temp_path(w->path, number, err)))
        return NF_ERR_MEMORY;
    nf_head head = {.uuid = w->dir.uuid, .part = (uint32_t)number};
    if ((status = nf_id_random(&head.part_id, err))) return status;
    w->dir.parts[number].id = head.part_id;
    /* Leftovers are removed before, so a name in the way of a later part is not ours: never follow or empty
     * it. */
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (number ? O_EXCL : 0);
    p->fd = nf_file_ops_in_use->open(p->temp, flags, 0666);
    if (p->fd < 0) return nf_fail_errno(err, errno, "%s: cannot create", p->temp);
    if (!number && (status = lock_first_part(w, p, err))) return status;
    uint8_t block[NF_BLOCK];
    nf_head_encode(&head, block);
    return nf_write_full(p->fd, block, NF_BLOCK, 0, p->temp, err);
}

/* ---- leftovers ---- */

/* Number of "BASE.WHAT-NNNN", or -1. */
static int number_of(const char *name, const char *base, const char *what) {
    size_t n = strlen(base), k = strlen(what);
    if (strncmp(name, base, n) != 0 || strncmp(name + n, what, k) != 0) return -1;
    const char *digits = name + n + k;
    if (strlen(digits) != 4 || strspn(digits, "0123456789") != 4) return -1;
    return atoi(digits);
}

/* Whether a file of the folder is what a dead writer left. The temporary part 0 of a new container is its
 * lock and belongs to whoever holds it; parts that the directory names are the model. */
static bool is_stale(const nf_writer *w, const char *name, const char *base) {
    size_t named = w->append ? w->dir.n_parts : 1; /* part 0 is never removed */
    if (number_of(name, base, ".tmp-") >= 1) return true;
    int part = number_of(name, base, ".part-");
    return part >= 1 && (size_t)part >= named;
}

static nf_status remove_file(const char *folder, size_t folder_bytes, const char *name, nf_error *err) {
    nf_buf path = {0};
    nf_status status = nf_buf_append(&path, folder, folder_bytes, err);
    if (!status) status = nf_buf_text(&path, name, err);
    if (!status && nf_file_ops_in_use->unlink(path.data) && errno != ENOENT)
        status =
            nf_fail_errno(err, errno, "%s: cannot remove this leftover of an earlier conversion", path.data);
    nf_buf_free(&path);
    return status;
}

nf_status nf_writer_remove_stale(const nf_writer *w, nf_error *err) {
    const char *slash = strrchr(w->path, '/'), *base = slash ? slash + 1 : w->path;
    size_t folder_bytes = (size_t)(base - w->path);
    char *folder = folder_bytes ? nf_strndup(w->path, folder_bytes, err) : nf_strdup(".", err);
    if (!folder) return NF_ERR_MEMORY;
    DIR *dir = opendir(folder);
    nf_status status = dir ? NF_OK : nf_fail_errno(err, errno, "%s: cannot list the folder", folder);
    while (!status) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry && errno) status = nf_fail_errno(err, errno, "%s: cannot list the folder", folder);
        if (!entry) break;
        if (is_stale(w, entry->d_name, base)) status = remove_file(w->path, folder_bytes, entry->d_name, err);
    }
    if (dir) closedir(dir);
    free(folder);
    return status;
}
