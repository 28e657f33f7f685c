/* The cache of conversions; see cache_dir.h. File names are NAME-FOLDERHASH-TYPE-STATEHASH.ninfer, hashes in
 * hex. */
#include "runner/cache_dir.h"

#include "base/io.h"
#include "format/container.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define HASH_DIGITS 16

/* The names of one checkpoint's files in the cache. Zero-initialise. */
typedef struct cache_names {
    nf_buf folder; /* of the cache */
    nf_buf prefix; /* NAME-FOLDERHASH-TYPE- */
    nf_buf path;   /* of the container */
} cache_names;

static void free_names(cache_names *n) {
    nf_buf_free(&n->folder);
    nf_buf_free(&n->prefix);
    nf_buf_free(&n->path);
}

/* ---- what identifies a checkpoint ---- */

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcmp(name + n - m, suffix);
}

static int is_source(const struct dirent *entry) {
    return ends_with(entry->d_name, ".safetensors") || ends_with(entry->d_name, ".json") ||
           ends_with(entry->d_name, ".jinja");
}

/* Hash of names, sizes and modification times of the files that a conversion reads. */
static nf_status hash_state(const char *source, uint64_t *out, nf_error *err) {
    struct dirent **entries = NULL;
    int n = scandir(source, &entries, is_source, alphasort);
    if (n < 0) return nf_fail_errno(err, errno, "%s: cannot list the folder", source);
    nf_buf text = {0};
    nf_status status = nf_buf_printf(&text, err, "%s\n", nf_version());
    for (int i = 0; i < n; i++) {
        nf_buf path = {0};
        struct stat info;
        if (!status) status = nf_buf_printf(&path, err, "%s/%s", source, entries[i]->d_name);
        if (!status && stat(path.data, &info))
            status = nf_fail_errno(err, errno, "%s: cannot read", path.data);
        if (!status)
            status =
                nf_buf_printf(&text, err, "%s %lld %lld.%09ld\n", entries[i]->d_name, (long long)info.st_size,
                              (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
        nf_buf_free(&path);
        free(entries[i]);
    }
    free(entries);
    if (!status && !n)
        status = nf_fail(err, NF_ERR_NOT_FOUND, "%s: holds no checkpoint (no config.json, no *.safetensors)",
                         source);
    if (!status) *out = XXH3_64bits(text.data, text.len);
    nf_buf_free(&text);
    return status;
}

/* Only characters that need no quoting go into the file name. */
static nf_status append_name(nf_buf *out, const char *real, nf_error *err) {
    const char *slash = strrchr(real, '/'), *base = slash ? slash + 1 : real;
    nf_status status = *base ? NF_OK : nf_buf_text(out, "model", err);
    for (size_t i = 0; base[i] && i < 64 && !status; i++) {
        char c = base[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                     c == '_' || c == '-';
        status = nf_buf_byte(out, (unsigned char)(plain && !(i == 0 && c == '.') ? c : '_'), err);
    }
    return status;
}

static nf_status make_names(const char *source, nf_format type, cache_names *n, nf_error *err) {
    const nf_type_traits *traits = nf_type_get(type.type);
    if (!traits) return nf_fail(err, NF_ERR_ARGUMENT, "unknown storage type number %d", (int)type.type);
    char *real = realpath(source, NULL);
    if (!real) return nf_fail_errno(err, errno, "%s: cannot open the checkpoint folder", source);
    uint64_t state = 0;
    nf_status status = hash_state(real, &state, err);
    if (!status) status = nf_cache_folder(&n->folder, err);
    if (!status) status = append_name(&n->prefix, real, err);
    if (!status)
        status = nf_buf_printf(&n->prefix, err, "-%016llx-%s%s%s-",
                               (unsigned long long)XXH3_64bits(real, strlen(real)), traits->name,
                               type.codebook > NF_CODEBOOK_LINEAR ? "-" : "",
                               type.codebook > NF_CODEBOOK_LINEAR ? nf_codebook_name(type.codebook) : "");
    if (!status)
        status = nf_buf_printf(&n->path, err, "%s/%s%016llx.ninfer", n->folder.data, n->prefix.data,
                               (unsigned long long)state);
    free(real);
    return status;
}

nf_status nf_cache_lookup(const char *source, nf_format type, nf_buf *path, bool *exists, nf_error *err) {
    cache_names n = {0};
    nf_status status = make_names(source, type, &n, err);
    if (!status) status = nf_buf_append(path, n.path.data, n.path.len, err);
    if (!status) *exists = !access(n.path.data, F_OK);
    free_names(&n);
    return status;
}

/* ---- conversion ---- */

__attribute__((format(printf, 2, 3))) static void note(const nf_convert_options *o, const char *format, ...) {
    char line[1024];
    va_list args;
    if (!o->note) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    o->note(o->note_user, line);
}

/* Waits for the lock of this checkpoint and type. The lock file stays: removing it would let a third process
 * lock a new one. */
static nf_status take_lock(const cache_names *n, const nf_convert_options *o, const volatile int *cancel,
                           int *out, nf_error *err) {
    nf_buf path = {0};
    nf_status status = nf_buf_printf(&path, err, "%s/%slock", n->folder.data, n->prefix.data);
    int fd = -1;
    if (!status && (fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) < 0)
        status = nf_fail_errno(err, errno, "%s: cannot create the lock file", path.data);
    if (!status && flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno == EWOULDBLOCK) note(o, "another process converts this checkpoint; waiting for it");
        while (flock(fd, LOCK_EX) && !status)
            if (errno != EINTR)
                status = nf_fail_errno(err, errno, "%s: cannot lock", path.data);
            else if (cancel && *cancel)
                status = nf_fail(err, NF_ERR_CANCELLED, "interrupted while waiting for another conversion");
    }
    nf_buf_free(&path);
    if (status && fd >= 0)
        close(fd);
    else
        *out = fd;
    return status;
}

/* True for PREFIX + 16 hex digits + ".ninfer" with or without a part's or temporary's ending. */
static bool is_conversion(const char *name, const nf_buf *prefix) {
    if (strncmp(name, prefix->data, prefix->len) != 0) return false;
    name += prefix->len;
    return strspn(name, "0123456789abcdef") == HASH_DIGITS && !strncmp(name + HASH_DIGITS, ".ninfer", 7);
}

/* Removes conversions with this prefix except those whose name starts with `keep` (NULL: none). The order
 * matters: without its first file a container does not open, so NAME.ninfer goes before its parts. */
static nf_status remove_conversions(const cache_names *n, const char *keep, nf_error *err) {
    struct dirent **entries = NULL;
    int count = scandir(n->folder.data, &entries, NULL, alphasort);
    if (count < 0) return nf_fail_errno(err, errno, "%s: cannot list the folder", n->folder.data);
    nf_status status = NF_OK;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        nf_buf path = {0};
        if (!status && is_conversion(name, &n->prefix) && !(keep && !strncmp(name, keep, strlen(keep)))) {
            status = nf_buf_printf(&path, err, "%s/%s", n->folder.data, name);
            if (!status && unlink(path.data) && errno != ENOENT)
                status = nf_fail_errno(err, errno, "%s: cannot remove the old conversion", path.data);
        }
        nf_buf_free(&path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Sets *usable when the container opens; a damaged one (a crash of the machine) is removed. */
static nf_status check_existing(const cache_names *n, const nf_convert_options *o, bool *usable,
                                nf_error *err) {
    nf_container *container = NULL;
    nf_error why = {0};
    *usable = false;
    if (access(n->path.data, F_OK)) return NF_OK;
    nf_status status = nf_container_open(n->path.data, &container, &why);
    nf_container_close(container);
    if (!status) {
        *usable = true;
        return NF_OK;
    }
    if (status != NF_ERR_FORMAT &&
        status != NF_ERR_NOT_FOUND) { /* no memory, no permission: converting again would not help */
        if (err) *err = why;
        return status;
    }
    note(o, "the cached conversion is damaged and is made again: %s", why.message);
    return remove_conversions(n, NULL, err);
}

static nf_status convert_locked(const char *source, const cache_names *n, const nf_convert_options *o,
                                nf_error *err) {
    bool usable = false;
    nf_status status = check_existing(n, o, &usable, err);
    if (status || usable) return status;
    note(o, "converting %s once, to %s", source, n->path.data);
    status = nf_convert(source, n->path.data, o, err);
    if (status) return status;
    const char *slash = strrchr(n->path.data, '/');
    return remove_conversions(n, slash + 1, err);
}

nf_status nf_cache_convert(const char *source, const nf_convert_options *options, const volatile int *cancel,
                           nf_buf *path, nf_error *err) {
    cache_names n = {0};
    int lock = -1;
    nf_status status = make_names(source, options->type, &n, err);
    if (!status) status = nf_make_dirs(n.folder.data, err);
    if (!status) status = take_lock(&n, options, cancel, &lock, err);
    if (!status) status = convert_locked(source, &n, options, err);
    if (!status) status = nf_buf_append(path, n.path.data, n.path.len, err);
    if (lock >= 0) close(lock);
    free_names(&n);
    return status;
}
