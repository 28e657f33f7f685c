/*
 * safetensors reader; see safetensors.h. A file is u64 header length, a JSON header, data. Nothing in it is
 * trusted: every offset is checked against the file before a tensor exists, and tensors must tile the data
 * exactly.
 */
#include "format/safetensors.h"

#include "base/io.h"
#include "format/numeric.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER_BYTES (100u << 20) /* the limit of the reference implementation */
#define MAX_TENSORS 4000000u
#define MAX_NAME_BYTES 512u /* longer ones would push the reason out of an error message */

typedef struct mapping {
    char *path;
    uint8_t *base;
    size_t bytes;
} mapping;

struct nf_safetensors {
    mapping *files;
    size_t n_files, files_cap;
    nf_st_tensor *tensors; /* sorted by name once open */
    size_t n_tensors, tensors_cap;
    uint64_t bytes;
};

static const struct {
    const char *name;
    size_t size;
} dtypes[NF_ST_DTYPE_COUNT] = {
    [NF_ST_BOOL] = {"BOOL", 1},       [NF_ST_U8] = {"U8", 1},           [NF_ST_I8] = {"I8", 1},
    [NF_ST_I16] = {"I16", 2},         [NF_ST_U16] = {"U16", 2},         [NF_ST_F16] = {"F16", 2},
    [NF_ST_BF16] = {"BF16", 2},       [NF_ST_I32] = {"I32", 4},         [NF_ST_U32] = {"U32", 4},
    [NF_ST_F32] = {"F32", 4},         [NF_ST_F64] = {"F64", 8},         [NF_ST_I64] = {"I64", 8},
    [NF_ST_U64] = {"U64", 8},         [NF_ST_F8_E4M3] = {"F8_E4M3", 1}, [NF_ST_F8_E5M2] = {"F8_E5M2", 1},
    [NF_ST_F8_E8M0] = {"F8_E8M0", 1},
};

const char *nf_st_dtype_name(nf_st_dtype dtype) {
    return (unsigned)dtype < NF_ST_DTYPE_COUNT ? dtypes[dtype].name : "?";
}
size_t nf_st_dtype_size(nf_st_dtype dtype) {
    return (unsigned)dtype < NF_ST_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

/* ---- one file ---- */

static nf_status map_file(nf_safetensors *st, const char *path, mapping **out, nf_error *err) {
    nf_status status = nf_grow((void **)&st->files, &st->files_cap, st->n_files + 1, sizeof *st->files, err);
    if (status) return status;
    mapping *m = &st->files[st->n_files];
    *m = (mapping){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us before it is refused */
    if (fd < 0) return nf_fail_errno(err, errno, "%s: cannot open", path);
    struct stat info;
    if (fstat(fd, &info))
        status = nf_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(info.st_mode))
        status = nf_fail(err, NF_ERR_FORMAT, "%s: is not a regular file", path);
    else if (info.st_size < 8)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: %lld bytes are too few for a safetensors file", path,
                         (long long)info.st_size);
    if (!status && !(m->path = nf_strdup(path, err))) status = NF_ERR_MEMORY;
    if (!status) {
        m->bytes = (size_t)info.st_size;
        void *p = mmap(NULL, m->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = nf_fail_errno(err, errno, "%s: cannot map", path);
            free(m->path);
        } else {
            m->base = p;
            st->n_files++;
            *out = m;
        }
    }
    close(fd);
    return status;
}

/* Text from the file that may stand in a message: control characters could command the terminal. */
static bool is_plain(const char *text) {
    size_t n = 0;
    for (; text[n]; n++)
        if ((unsigned char)text[n] < 0x20 || text[n] == 0x7f || n >= MAX_NAME_BYTES) return false;
    return true;
}

static nf_status check_name(const char *file, const char *name, nf_error *err) {
    if (is_plain(name)) return NF_OK;
    int shown = 0;
    while (shown < 60 && name[shown] >= 0x20 && name[shown] < 0x7f) shown++;
    return nf_fail(err, NF_ERR_FORMAT,
                   "%s: the tensor name '%.*s...' holds control characters or more than %u bytes", file,
                   shown, name, MAX_NAME_BYTES);
}

static nf_status parse_shape(nf_st_tensor *t, const json_t *shape, uint64_t *count, nf_error *err) {
    if (!json_is_array(shape))
        return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has no shape", t->file, t->name);
    if (json_array_size(shape) > NF_ST_MAX_DIMS)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: tensor '%s' has %zu dimensions", t->file, t->name,
                       json_array_size(shape));
    *count = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0 ||
            __builtin_mul_overflow(*count, (uint64_t)json_integer_value(d), count))
            return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has an impossible shape", t->file, t->name);
        t->shape[t->n_dims++] = (uint64_t)json_integer_value(d);
    }
    return NF_OK;
}

static nf_status parse_dtype(nf_st_tensor *t, const json_t *value, nf_error *err) {
    const char *name = json_string_value(value);
    for (int d = 0; name && d < NF_ST_DTYPE_COUNT; d++) {
        if (strcmp(name, dtypes[d].name) != 0) continue;
        t->dtype = (nf_st_dtype)d;
        return NF_OK;
    }
    if (!name) return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has no dtype", t->file, t->name);
    return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: tensor '%s' has the unknown dtype '%s'", t->file, t->name,
                   is_plain(name) ? name : "?");
}

/* data_offsets [from, to) relative to the data, which begins at data_at; must hold `bytes`. */
static nf_status parse_offsets(const nf_st_tensor *t, const json_t *value, uint64_t data_bytes,
                               uint64_t bytes, uint64_t *from, nf_error *err) {
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has bad data_offsets", t->file, t->name);
    *from = (uint64_t)json_integer_value(begin);
    const uint64_t to = (uint64_t)json_integer_value(end);
    if (to > data_bytes)
        return nf_fail(
            err, NF_ERR_FORMAT,
            "%s: tensor '%s' ends %llu bytes behind the end of the file; is the download complete?", t->file,
            t->name, (unsigned long long)(to - data_bytes));
    if (bytes != to - *from)
        return nf_fail(err, NF_ERR_FORMAT,
                       "%s: tensor '%s' spans %llu bytes, but its shape and dtype %s need %llu", t->file,
                       t->name, (unsigned long long)(to - *from), dtypes[t->dtype].name,
                       (unsigned long long)bytes);
    return NF_OK;
}

static nf_status add_tensor(nf_safetensors *st, nf_st_tensor *t, nf_error *err) {
    if (st->n_tensors >= MAX_TENSORS) return nf_fail(err, NF_ERR_LIMIT, "%s: too many tensors", t->file);
    nf_status status = nf_grow((void **)&st->tensors, &st->tensors_cap, st->n_tensors + 1, sizeof *t, err);
    if (status) return status;
    if (!(t->name = nf_strdup(t->name, err))) return NF_ERR_MEMORY;
    st->tensors[st->n_tensors++] = *t;
    st->bytes += t->bytes;
    return NF_OK;
}

static nf_status parse_tensor(nf_safetensors *st, const mapping *m, uint64_t data_at, const char *name,
                              const json_t *value, nf_error *err) {
    nf_st_tensor t = {.name = name, .file = m->path};
    nf_status status = check_name(m->path, name, err);
    if (!status && !json_is_object(value))
        status =
            nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' is not described by a JSON object", m->path, name);
    if (!status) status = parse_dtype(&t, json_object_get(value, "dtype"), err);
    uint64_t count = 0, from = 0;
    if (!status) status = parse_shape(&t, json_object_get(value, "shape"), &count, err);
    if (!status && __builtin_mul_overflow(count, (uint64_t)dtypes[t.dtype].size, &t.bytes))
        status = nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has an impossible shape", m->path, name);
    if (!status)
        status = parse_offsets(&t, json_object_get(value, "data_offsets"), m->bytes - data_at, t.bytes, &from,
                               err);
    if (status) return status;
    t.data = m->base + data_at + from;
    return add_tensor(st, &t, err);
}

static int compare_data(const void *a, const void *b) {
    const nf_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The format allows neither overlaps nor holes: hidden bytes could mean one thing to one reader and nothing
 * to another. */
static nf_status check_tiling(nf_safetensors *st, size_t first, const mapping *m, uint64_t data_at,
                              nf_error *err) {
    if (st->n_tensors > first)
        qsort(st->tensors + first, st->n_tensors - first, sizeof *st->tensors, compare_data);
    const uint8_t *at = m->base + data_at;
    for (size_t i = first; i < st->n_tensors; i++) {
        const nf_st_tensor *t = &st->tensors[i];
        if (t->data < at)
            return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' overlaps another tensor", m->path, t->name);
        if (t->data > at)
            return nf_fail(err, NF_ERR_FORMAT, "%s: %zu bytes before tensor '%s' belong to no tensor",
                           m->path, (size_t)(t->data - at), t->name);
        at += t->bytes;
    }
    size_t left = (size_t)(m->base + m->bytes - at);
    if (left)
        return nf_fail(err, NF_ERR_FORMAT, "%s: %zu bytes at the end belong to no tensor", m->path, left);
    return NF_OK;
}

/* __metadata__ holds text only; nothing here reads it, so a tensor must not hide in it. */
static nf_status check_metadata(const char *path, const json_t *value, nf_error *err) {
    const char *key;
    json_t *text;
    bool good = json_is_object(value);
    json_object_foreach((json_t *)value, key, text) good = good && json_is_string(text);
    return good ? NF_OK : nf_fail(err, NF_ERR_FORMAT, "%s: __metadata__ is not an object of strings", path);
}

/* Header bytes, checked against the file. */
static nf_status read_header(const mapping *m, json_t **root, uint64_t *header, nf_error *err) {
    *header = 0;
    for (int i = 0; i < 8; i++) *header |= (uint64_t)m->base[i] << (8 * i);
    if (*header > m->bytes - 8)
        return nf_fail(err, NF_ERR_FORMAT,
                       "%s: the header claims %llu bytes, the file has %zu; not a safetensors file, or cut",
                       m->path, (unsigned long long)*header, m->bytes);
    if (*header > MAX_HEADER_BYTES)
        return nf_fail(err, NF_ERR_LIMIT, "%s: the header claims %llu bytes, the format allows %u", m->path,
                       (unsigned long long)*header, MAX_HEADER_BYTES);
    const char *text = (const char *)m->base + 8;
    json_error_t where = {.text = "it does not begin with '{'"};
    *root =
        *header && *text == '{' ? json_loadb(text, (size_t)*header, JSON_REJECT_DUPLICATES, &where) : NULL;
    if (*root) return NF_OK;
    return nf_fail(err, NF_ERR_FORMAT, "%s: the header is not a JSON object: %s", m->path,
                   is_plain(where.text) ? where.text : "damaged text");
}

static nf_status open_file(nf_safetensors *st, const char *path, nf_error *err) {
    mapping *m = NULL;
    json_t *root = NULL, *value;
    uint64_t header = 0;
    nf_status status = map_file(st, path, &m, err);
    if (!status) status = read_header(m, &root, &header, err);
    if (status) return status;
    const size_t first = st->n_tensors;
    const char *name;
    json_object_foreach(root, name, value) {
        status = strcmp(name, "__metadata__") ? parse_tensor(st, m, 8 + header, name, value, err)
                                              : check_metadata(path, value, err);
        if (status) break;
    }
    json_decref(root);
    return status ? status : check_tiling(st, first, m, 8 + header, err);
}

/* ---- a checkpoint ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp(((const nf_st_tensor *)a)->name, ((const nf_st_tensor *)b)->name);
}

static nf_status sort_and_check(nf_safetensors *st, nf_error *err) {
    if (st->n_tensors) qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_names);
    for (size_t i = 1; i < st->n_tensors; i++)
        if (!strcmp(st->tensors[i - 1].name, st->tensors[i].name))
            return nf_fail(err, NF_ERR_FORMAT, "tensor '%s' is in %s and again in %s", st->tensors[i].name,
                           st->tensors[i - 1].file, st->tensors[i].file);
    return NF_OK;
}

static nf_status join(const char *dir, const char *name, nf_buf *out, nf_error *err) {
    out->len = 0;
    return nf_buf_printf(out, err, "%s/%s", dir, name);
}

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Opens n files of the folder in name order, each once. Sorts `names`. */
static nf_status open_files(nf_safetensors *st, const char *dir, const char **names, size_t n,
                            nf_error *err) {
    nf_status status = NF_OK;
    nf_buf path = {0};
    if (n) qsort(names, n, sizeof *names, compare_strings);
    for (size_t i = 0; i < n && !status; i++) {
        if (i && !strcmp(names[i], names[i - 1])) continue;
        status = join(dir, names[i], &path, err);
        if (!status) status = open_file(st, path.data, err);
    }
    nf_buf_free(&path);
    return status;
}

/* Every file that the index names. Names that could leave the folder are refused. */
static nf_status open_indexed(nf_safetensors *st, const char *dir, const char *index_path, const json_t *map,
                              nf_error *err) {
    size_t n = 0;
    const char **files = nf_alloc(json_object_size(map), sizeof *files, "file names of the index", err);
    if (!files) return NF_ERR_MEMORY;
    nf_status status = NF_OK;
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        const char *file = json_string_value(value);
        status = check_name(index_path, tensor, err);
        if (!status && (!file || !*file || strchr(file, '/') || !strcmp(file, ".") || !strcmp(file, "..") ||
                        !is_plain(file)))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has a bad file name", index_path, tensor);
        if (status) break;
        files[n++] = file;
    }
    if (!status) status = open_files(st, dir, files, n, err);
    if (status == NF_ERR_NOT_FOUND)
        status =
            nf_context(err, "%s names a file that does not exist; is the download complete?", index_path);
    free(files);
    return status;
}

static nf_status check_index(const nf_safetensors *st, const char *index_path, const json_t *map,
                             nf_error *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        const nf_st_tensor *t = nf_safetensors_find(st, tensor);
        const char *file = json_string_value(value);
        const char *slash = t ? strrchr(t->file, '/') : NULL;
        if (!t || !slash || strcmp(slash + 1, file) != 0)
            return nf_fail(err, NF_ERR_FORMAT, "%s: says that tensor '%s' is in %s, but it is %s%s",
                           index_path, tensor, file, t ? "in " : "missing there", t ? t->file : "");
    }
    return NF_OK;
}

static nf_status open_index(nf_safetensors *st, const char *dir, const char *index_path, nf_error *err) {
    nf_buf text = {0};
    struct stat info;
    if (stat(index_path, &info)) return nf_fail_errno(err, errno, "%s: cannot open", index_path);
    if (!S_ISREG(info.st_mode)) return nf_fail(err, NF_ERR_FORMAT, "%s: is not a regular file", index_path);
    nf_status status = nf_read_file(index_path, MAX_HEADER_BYTES, &text, err);
    if (status) {
        nf_buf_free(&text);
        return status;
    }
    json_error_t where;
    json_t *root = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &where);
    nf_buf_free(&text);
    const json_t *map = json_object_get(root, "weight_map");
    if (!root)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: line %d: %s", index_path, where.line,
                         is_plain(where.text) ? where.text : "damaged text");
    else if (!json_is_object(map) || !json_object_size(map))
        status = nf_fail(err, NF_ERR_FORMAT, "%s: has no weight_map, or an empty one", index_path);
    if (!status) status = open_indexed(st, dir, index_path, map, err);
    if (!status) status = sort_and_check(st, err);
    if (!status) status = check_index(st, index_path, map, err);
    json_decref(root);
    return status;
}

/* Names of the *.safetensors entries of a folder, owned by the caller. */
static nf_status list_folder(const char *dir, char ***names, size_t *n, nf_error *err) {
    DIR *d = opendir(dir);
    if (!d) return nf_fail_errno(err, errno, "%s: cannot open folder", dir);
    nf_status status = NF_OK;
    size_t cap = 0;
    for (;;) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) break;
        const size_t length = strlen(e->d_name);
        if (length < 12 || strcmp(e->d_name + length - 12, ".safetensors") != 0) continue;
        status = nf_grow((void **)names, &cap, *n + 1, sizeof **names, err);
        char *name = status ? NULL : nf_strdup(e->d_name, err);
        if (!name) {
            status = NF_ERR_MEMORY;
            break;
        }
        (*names)[(*n)++] = name;
    }
    if (!status && errno) status = nf_fail_errno(err, errno, "%s: cannot read folder", dir);
    closedir(d);
    return status;
}

/* A folder without index: model.safetensors if there is one (others beside it are copies in other layouts),
 * otherwise all files. */
static nf_status open_all(nf_safetensors *st, const char *dir, nf_error *err) {
    char **names = NULL;
    size_t n = 0;
    nf_status status = list_folder(dir, &names, &n, err);
    if (!status && !n)
        status = nf_fail(err, NF_ERR_NOT_FOUND,
                         "%s: holds no .safetensors file and no model.safetensors.index.json", dir);
    const char *single = NULL;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], "model.safetensors")) single = names[i];
    if (!status)
        status =
            single ? open_files(st, dir, &single, 1, err) : open_files(st, dir, (const char **)names, n, err);
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    return status ? status : sort_and_check(st, err);
}

static nf_status open_folder(nf_safetensors *st, const char *dir, nf_error *err) {
    nf_buf index = {0};
    struct stat info;
    nf_status status = join(dir, "model.safetensors.index.json", &index, err);
    /* lstat: an index whose link leads nowhere is an error, not a checkpoint without index. */
    if (!status && lstat(index.data, &info)) {
        status = errno == ENOENT ? open_all(st, dir, err)
                                 : nf_fail_errno(err, errno, "%s: cannot open", index.data);
    } else if (!status) {
        status = open_index(st, dir, index.data, err);
    }
    nf_buf_free(&index);
    return status;
}

nf_status nf_safetensors_open(const char *path, nf_safetensors **out, nf_error *err) {
    *out = NULL;
    struct stat info;
    if (stat(path, &info)) return nf_fail_errno(err, errno, "%s: cannot open", path);
    nf_safetensors *st = nf_calloc(1, sizeof *st, "a checkpoint", err);
    if (!st) return NF_ERR_MEMORY;
    nf_status status;
    if (S_ISDIR(info.st_mode)) {
        status = open_folder(st, path, err);
    } else {
        status = open_file(st, path, err);
        if (!status) status = sort_and_check(st, err);
    }
    if (status)
        nf_safetensors_close(st);
    else
        *out = st;
    return status;
}

void nf_safetensors_close(nf_safetensors *st) {
    if (!st) return;
    for (size_t i = 0; i < st->n_tensors; i++) free((char *)st->tensors[i].name);
    for (size_t i = 0; i < st->n_files; i++) {
        munmap(st->files[i].base, st->files[i].bytes);
        free(st->files[i].path);
    }
    free(st->tensors);
    free(st->files);
    free(st);
}

size_t nf_safetensors_count(const nf_safetensors *st) {
    return st->n_tensors;
}
const nf_st_tensor *nf_safetensors_at(const nf_safetensors *st, size_t i) {
    return &st->tensors[i];
}
uint64_t nf_safetensors_bytes(const nf_safetensors *st) {
    return st->bytes;
}

const nf_st_tensor *nf_safetensors_find(const nf_safetensors *st, const char *name) {
    const nf_st_tensor key = {.name = name};
    return st->n_tensors ? bsearch(&key, st->tensors, st->n_tensors, sizeof key, compare_names) : NULL;
}

/* ---- values ---- */

static float e5m2_to_f32(uint8_t b) {
    return nf_f16_to_f32((uint16_t)(b << 8));
}

static float e8m0_to_f32(uint8_t b) {
    return b == 255 ? NAN : ldexpf(1.0f, (int)b - 127);
}

/* Converts n elements of type T at p with `expression` of `v`. */
#define CONVERT(T, expression)                                                                               \
    for (uint64_t i = 0; i < n; i++) {                                                                       \
        T v;                                                                                                 \
        memcpy(&v, p + i * sizeof v, sizeof v);                                                              \
        out[i] = (expression);                                                                               \
    }                                                                                                        \
    return NF_OK

nf_status nf_st_to_f32(const nf_st_tensor *tensor, uint64_t first, uint64_t n, float *out, nf_error *err) {
    size_t size = nf_st_dtype_size(tensor->dtype);
    if (first > tensor->bytes / size || n > tensor->bytes / size - first)
        return nf_fail(err, NF_ERR_INTERNAL, "%s: a range outside tensor '%s'", tensor->file, tensor->name);
    const uint8_t *p = tensor->data + first * size;
    switch (tensor->dtype) {
    case NF_ST_F32:
        memcpy(out, p, n * sizeof *out);
        return NF_OK;
    case NF_ST_BF16:
        CONVERT(uint16_t, nf_bf16_to_f32(v));
    case NF_ST_F16:
        CONVERT(uint16_t, nf_f16_to_f32(v));
    case NF_ST_F64:
        CONVERT(double, (float)v);
    case NF_ST_F8_E4M3: {
        float table[256];
        for (int i = 0; i < 256; i++) table[i] = nf_e4m3_to_f32((uint8_t)i);
        CONVERT(uint8_t, table[v]);
    }
    case NF_ST_F8_E5M2:
        CONVERT(uint8_t, e5m2_to_f32(v));
    case NF_ST_F8_E8M0:
        CONVERT(uint8_t, e8m0_to_f32(v));
    case NF_ST_U8:
        CONVERT(uint8_t, (float)v);
    case NF_ST_I8:
        CONVERT(int8_t, (float)v);
    case NF_ST_I16:
        CONVERT(int16_t, (float)v);
    case NF_ST_U16:
        CONVERT(uint16_t, (float)v);
    case NF_ST_I32:
        CONVERT(int32_t, (float)v);
    case NF_ST_U32:
        CONVERT(uint32_t, (float)v);
    case NF_ST_I64:
        CONVERT(int64_t, (float)v);
    case NF_ST_U64:
        CONVERT(uint64_t, (float)v);
    default:
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: tensor '%s' of dtype %s holds no numbers", tensor->file,
                       tensor->name, nf_st_dtype_name(tensor->dtype));
    }
}

void nf_safetensors_release(const nf_safetensors *st) {
    for (size_t i = 0; i < st->n_files; i++)
        (void)madvise(st->files[i].base, st->files[i].bytes,
                      MADV_DONTNEED); /* a hint: failure costs memory only */
}
