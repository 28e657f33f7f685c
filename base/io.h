/* Whole-range file input and output on top of POSIX: short reads and writes, EINTR and limits handled once.
 */
#ifndef NF_BASE_IO_H
#define NF_BASE_IO_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Reads exactly n bytes at `offset`. A short file is NF_ERR_FORMAT, with `name` in the message. */
nf_status nf_pread_full(int fd, void *out, size_t n, uint64_t offset, const char *name, nf_error *err);
/* Writes exactly n bytes at `offset`. */
nf_status nf_pwrite_full(int fd, const void *bytes, size_t n, uint64_t offset, const char *name,
                         nf_error *err);
/* Reads a whole regular file, at most `limit` bytes (NF_ERR_LIMIT beyond). The caller frees *out with
 * nf_buf_free. A NUL follows the bytes. */
nf_status nf_read_file(const char *path, size_t limit, nf_buf *out, nf_error *err);
/* As nf_read_file for an open descriptor (also pipes); `name` is for messages. */
nf_status nf_read_fd(int fd, const char *name, size_t limit, nf_buf *out, nf_error *err);
/* Writes a file under a temporary name in the same folder, fsyncs it and renames it to path: readers see the
 * old content or the new one. */
nf_status nf_write_file_atomic(const char *path, const void *bytes, size_t n, nf_error *err);
/* Whether nf_write_file_atomic could write `path` now (its folder exists and takes a new file, it is no
 * folder itself); leaves nothing behind. Asked before long work whose result goes there. */
nf_status nf_check_output(const char *path, nf_error *err);
/* fsync of the folder that holds `path`, so that a rename in it survives a crash. */
nf_status nf_fsync_parent(const char *path, nf_error *err);
/* mkdir -p, mode 0777 & ~umask. */
nf_status nf_make_dirs(const char *path, nf_error *err);
/* Appends the path of this user's cache folder, $XDG_CACHE_HOME/ninfer or ~/.cache/ninfer; does not create
 * it.
 */
nf_status nf_cache_folder(nf_buf *out, nf_error *err);

#endif
