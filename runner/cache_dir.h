/*
 * The cache of converted checkpoint folders: $XDG_CACHE_HOME/ninfer (default ~/.cache/ninfer). A container's
 * name holds a hash of what was converted (folder, files, sizes, times, type, program version), so a
 * checkpoint that changes is converted again; a lock keeps two processes from converting the same folder at
 * once.
 */
#ifndef NF_RUNNER_CACHE_DIR_H
#define NF_RUNNER_CACHE_DIR_H

#include "base/buf.h"
#include "converter/convert.h"

#include <stdbool.h>

/* Appends the name that the container of `source` has, converted or not; sets *exists. */
nf_status nf_cache_lookup(const char *source, nf_format type, nf_buf *path, bool *exists, nf_error *err);
/* Appends the path of the container of `source`, converting it first when the cache lacks it (or holds a
 * damaged one). Older conversions of the same folder to the same type are removed. options->note hears what
 * happens; *cancel (may be NULL) ends the wait for another process. */
nf_status nf_cache_convert(const char *source, const nf_convert_options *options, const volatile int *cancel,
                           nf_buf *path, nf_error *err);

#endif
