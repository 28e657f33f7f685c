/*
 * Writing containers; see container.h. The order of publishing (docs/container.md, "Publishing") is what makes a crash
 * harmless: parts are whole and synced before the directory names them, the directory is synced before a slot points to it,
 * and for a new container part 0 gets its name last.
 */
#include "format/container_internal.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

/* ---- file operations ------------------------------------------------------------------------------------------------------ */

static int posix_open(const char *path, int flags, mode_t mode) { return open(path, flags, mode); }

static int posix_fsync_dir(const char *path) {
    nf_error err = {0};
    if (!nf_fsync_parent(path, &err)) return 0;
    return -1;
}

const nf_file_ops nf_posix_file_ops = {posix_open, pwrite, ftruncate, fsync, rename, unlink, posix_fsync_dir};
const nf_file_ops *nf_file_ops_in_use = &nf_posix_file_ops;

/* ---- state ---------------------------------------------------------------------------------------------------------------- */

typedef struct part_file {
    char *temp, *final; /* temp is NULL once renamed, and for part 0 of an add-on */
    int fd;
    uint64_t end;       /* of the last object placed */
} part_file;

/* Progress of one object: checksums as they become known. */
typedef struct object_state {
    XXH128_canonical_t *checks;
    uint64_t n_checks, next_check;
    uint64_t written;       /* front-to-back bytes */
    XXH3_state_t *hash;     /* of the chunk in progress */
    uint64_t in_chunk;
    atomic_uchar *experts;  /* banks: 1 when written */
} object_state;

struct nf_writer {
    char *path;
    uint64_t max_part;
    bool append;
    nf_directory dir;
    size_t first_new_object, first_new_part; /* for an add-on: what was there before */
    part_file *parts; /* [dir.n_parts]; old parts of an add-on have fd -1, except part 0 */
    size_t parts_cap;
    object_state *states; /* [dir.n_objects] */
    size_t states_cap;
    nf_slot keep;    /* add-on: the directory in force, which must stay whole until the new one is published */
    int next_slot;   /* the slot that the new directory gets */
    bool committed;  /* add-on: the slot may have been written, so the new parts may be in use */
    uint64_t directory_from; /* first byte of part 0 that the new directory may use */
};

static nf_status write_full(int fd, const void *bytes, uint64_t n, uint64_t offset, const char *name, nf_error *err) {
    const char *from = bytes;
    while (n) {
        ssize_t put = nf_file_ops_in_use->pwrite(fd, from, n > (1u << 30) ? 1u << 30 : n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return nf_fail_errno(err, errno, "%s: cannot write", name);
        from += put;
        n -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return NF_OK;
}

static const char *part_name(const part_file *p) { return p->temp ? p->temp : p->final; }

/* ---- parts ---------------------------------------------------------------------------------------------------------------- */

/* Creates the next part under its temporary name and writes its head. */
static nf_status new_part(nf_writer *w, nf_error *err) {
    size_t number = w->dir.n_parts;
    if (number >= NF_MAX_PARTS)
        return nf_fail(err, NF_ERR_LIMIT, "%s: more than %d parts would be needed; raise the largest part size", w->path, NF_MAX_PARTS);
    nf_status status = nf_grow((void **)&w->parts, &w->parts_cap, number + 1, sizeof *w->parts, err);
    if (!status) status = nf_grow((void **)&w->dir.parts, &w->dir.parts_cap, number + 1, sizeof *w->dir.parts, err);
    if (status) return status;
    part_file *p = &w->parts[number];
    *p = (part_file){.fd = -1, .end = number ? NF_PARTN_DATA : NF_PART0_DATA};
    w->dir.parts[number] = (nf_part_entry){0};
    w->dir.n_parts++;
    if (!(p->final = nf_part_path(w->path, number, "", err)) || !(p->temp = nf_part_path(w->path, number, ".tmp", err))) return NF_ERR_MEMORY;
    if ((status = nf_id_random(&w->dir.parts[number].id, err))) return status;
    /* Part 0 is the lock of a new container: it must not be truncated before the lock is held. */
    p->fd = nf_file_ops_in_use->open(p->temp, O_RDWR | O_CREAT | O_CLOEXEC | (number ? O_TRUNC : 0), 0666);
    if (p->fd < 0) return nf_fail_errno(err, errno, "%s: cannot create", p->temp);
    if (!number) {
        struct stat mine, named;
        /* The name may have moved on between open and lock: then the locked file is somebody's finished container. */
        if (flock(p->fd, LOCK_EX | LOCK_NB) || fstat(p->fd, &mine) || stat(p->temp, &named) || mine.st_ino != named.st_ino) {
            close(p->fd);
            p->fd = -1;
            return nf_fail(err, NF_ERR_BUSY, "%s: another conversion to this name is running", w->path);
        }
        if (nf_file_ops_in_use->ftruncate(p->fd, 0)) return nf_fail_errno(err, errno, "%s: cannot truncate", p->temp);
    }
    uint8_t block[NF_BLOCK];
    nf_head_encode(&w->dir.uuid, (uint32_t)number, &w->dir.parts[number].id, block);
    return write_full(p->fd, block, NF_BLOCK, 0, p->temp, err);
}

/* Leftovers of a conversion that died: nothing refers to them, since part 0 does not exist. */
static nf_status remove_stale_parts(nf_writer *w, nf_error *err) {
    for (size_t i = 1; i < NF_MAX_PARTS; i++) {
        bool found = false;
        static const char *const suffix[] = {"", ".tmp"};
        for (int s = 0; s < 2; s++) {
            char *name = nf_part_path(w->path, i, suffix[s], err);
            if (!name) return NF_ERR_MEMORY;
            if (!access(name, F_OK)) {
                found = true;
                if (nf_file_ops_in_use->unlink(name)) {
                    nf_status status = nf_fail_errno(err, errno, "%s: cannot remove this leftover of an earlier conversion", name);
                    free(name);
                    return status;
                }
            }
            free(name);
        }
        if (!found) break;
    }
    return NF_OK;
}

static nf_writer *new_writer(const char *path, const nf_writer_options *options, nf_error *err) {
    nf_writer *w = nf_calloc(1, sizeof *w, "a container writer", err);
    if (!w) return NULL;
    w->max_part = options && options->max_part_bytes ? options->max_part_bytes : NF_DEFAULT_PART_BYTES;
    if (!(w->path = nf_strdup(path, err))) {
        free(w);
        return NULL;
    }
    return w;
}

nf_status nf_writer_create(const char *path, const nf_writer_options *options, nf_writer **out, nf_error *err) {
    *out = NULL;
    size_t n = strlen(path);
    if (n < 8 || strcmp(path + n - 7, ".ninfer") != 0)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: the name of a container must end in .ninfer", path);
    if (!access(path, F_OK)) return nf_fail(err, NF_ERR_ARGUMENT, "%s: exists already; choose another name or remove it", path);
    nf_writer *w = new_writer(path, options, err);
    if (!w) return NF_ERR_MEMORY;
    w->dir.generation = 1;
    nf_status status = nf_id_random(&w->dir.uuid, err);
    /* RFC 9562: version 4, variant 1. */
    w->dir.uuid.bytes[6] = (uint8_t)((w->dir.uuid.bytes[6] & 0x0f) | 0x40);
    w->dir.uuid.bytes[8] = (uint8_t)((w->dir.uuid.bytes[8] & 0x3f) | 0x80);
    if (!status) status = new_part(w, err);
    if (!status && !access(path, F_OK)) status = nf_fail(err, NF_ERR_ARGUMENT, "%s: exists already; choose another name or remove it", path);
    if (!status) status = remove_stale_parts(w, err);
    if (status) {
        nf_writer_abort(w);
        return status;
    }
    *out = w;
    return NF_OK;
}

/* ---- add-ons -------------------------------------------------------------------------------------------------------------- */

/* Takes over the directory of the container as it is, under the lock. */
static nf_status adopt(nf_writer *w, nf_error *err) {
    nf_container *c;
    nf_status status = nf_container_open(w->path, &c, err);
    if (status) return status;
    w->next_slot = !c->slot_in_force;
    w->keep = c->slot[c->slot_in_force];
    /* The new directory goes where neither the objects nor the directory in force are; the place of the one before may do. */
    w->directory_from = (c->dir.parts[0].length + NF_BLOCK - 1) / NF_BLOCK * NF_BLOCK;
    for (size_t i = 0; i < c->dir.n_objects; i++) nf_buf_free(&c->checks[i]);
    w->dir = c->dir;
    c->dir = (nf_directory){0};
    nf_container_close(c);
    w->dir.generation++;
    w->first_new_object = w->dir.n_objects;
    w->first_new_part = w->dir.n_parts;
    w->parts = nf_calloc(w->dir.n_parts, sizeof *w->parts, "parts", err);
    w->states = nf_calloc(w->dir.n_objects, sizeof *w->states, "object states", err);
    if (!w->parts || !w->states) return NF_ERR_MEMORY;
    w->parts_cap = w->dir.n_parts;
    w->states_cap = w->dir.n_objects;
    for (size_t i = 0; i < w->dir.n_parts; i++) w->parts[i].fd = -1;
    return NF_OK;
}

nf_status nf_writer_append(const char *path, const nf_writer_options *options, nf_writer **out, nf_error *err) {
    *out = NULL;
    int fd = nf_file_ops_in_use->open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return nf_fail_errno(err, errno, "%s: cannot open for writing", path);
    nf_status status = NF_OK;
    if (flock(fd, LOCK_EX | LOCK_NB)) status = nf_fail(err, NF_ERR_BUSY, "%s: another program is changing this model", path);
    nf_writer *w = status ? NULL : new_writer(path, options, err);
    if (!status && !w) status = NF_ERR_MEMORY;
    if (w) {
        w->append = true;
        status = adopt(w, err);
    }
    if (w && w->parts) {
        w->parts[0].fd = fd;
        if (!(w->parts[0].final = nf_strdup(path, err))) status = NF_ERR_MEMORY;
    } else {
        close(fd);
    }
    if (status) {
        nf_writer_abort(w);
        return status;
    }
    *out = w;
    return NF_OK;
}

/* ---- objects -------------------------------------------------------------------------------------------------------------- */

static nf_status add_segment(nf_entry *e, size_t *cap, nf_segment segment, nf_error *err) {
    size_t n = e->pub.n_segments;
    nf_status status = nf_grow((void **)&e->segments, cap, n + 1, sizeof segment, err);
    if (status) return status;
    e->segments[n] = segment;
    e->pub.segments = e->segments;
    e->pub.n_segments = n + 1;
    return NF_OK;
}

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Places an object: in the last new part as far as it fits, then in further parts. Experts are not divided. */
static nf_status place(nf_writer *w, nf_entry *e, nf_error *err) {
    nf_object *o = &e->pub;
    const bool bank = o->kind == NF_OBJECT_BANK;
    uint64_t left = o->bytes, unit = bank ? o->expert_stride : NF_BLOCK;
    size_t cap = 0;
    bool fresh = false; /* the last part was made for this segment and is still empty */
    while (left) {
        if (w->dir.n_parts == w->first_new_part) {
            nf_status status = new_part(w, err);
            if (status) return status;
            fresh = true;
        }
        part_file *p = &w->parts[w->dir.n_parts - 1];
        uint64_t at = round_up(p->end, bank && !o->n_segments ? NF_BANK_ALIGN : NF_BLOCK);
        uint64_t room = at < w->max_part ? w->max_part - at : 0, take = left <= room ? left : room / unit * unit;
        if (!take) {
            if (fresh)
                return nf_fail(err, NF_ERR_LIMIT, "%s: parts of %llu bytes are too small for '%s'; the largest part must have at least %llu bytes",
                               w->path, (unsigned long long)w->max_part, o->name, (unsigned long long)(at + (left < unit ? left : unit)));
            nf_status status = new_part(w, err);
            if (status) return status;
            fresh = true;
            continue;
        }
        nf_status status = add_segment(e, &cap, (nf_segment){(uint32_t)(w->dir.n_parts - 1), at, take}, err);
        if (status) return status;
        p->end = at + take;
        left -= take;
        fresh = false;
    }
    return NF_OK;
}

static nf_status prepare_state(const nf_object *o, object_state *s, nf_error *err) {
    s->n_checks = nf_checks_needed(o);
    s->checks = nf_calloc(s->n_checks, sizeof *s->checks, "checksums", err);
    if (!s->checks) return NF_ERR_MEMORY;
    if (o->kind == NF_OBJECT_BANK) {
        s->experts = nf_calloc(o->n_experts, sizeof *s->experts, "expert marks", err);
        return s->experts ? NF_OK : NF_ERR_MEMORY;
    }
    s->hash = XXH3_createState();
    if (!s->hash) return nf_fail(err, NF_ERR_MEMORY, "out of memory for a checksum");
    XXH3_128bits_reset(s->hash);
    return NF_OK;
}

static void free_state(object_state *s) {
    free(s->checks);
    free((void *)s->experts);
    XXH3_freeState(s->hash);
    *s = (object_state){0};
}

/* An object of the old model that a new one of the same name replaces gets another name and component: its bytes stay accounted for (and
 * checked by verify) until the model is written anew. */
static nf_status retire_replaced(nf_writer *w, const char *name, nf_error *err) {
    for (size_t i = 0; i < w->first_new_object; i++) {
        nf_entry *e = &w->dir.objects[i];
        if (strcmp(e->pub.name, name) != 0) continue;
        nf_buf retired = {0};
        nf_status status = nf_buf_printf(&retired, err, "replaced.%llu.%s", (unsigned long long)w->dir.generation, name);
        if (!status && retired.len > NF_MAX_NAME) status = nf_fail(err, NF_ERR_LIMIT, "the name '%.100s...' is too long to be replaced", name);
        if (!status) status = nf_directory_component(&w->dir, "replaced", &e->component, err);
        if (status) {
            nf_buf_free(&retired);
            return status;
        }
        free((char *)e->pub.name);
        e->pub.name = nf_buf_take(&retired);
        e->pub.component = w->dir.components[e->component];
        return NF_OK;
    }
    return NF_OK;
}

static nf_status check_new_name(const nf_writer *w, const nf_object *o, nf_error *err) {
    size_t n = o->name ? strlen(o->name) : 0;
    if (!n || n > NF_MAX_NAME || !nf_directory_text_valid(o->name, n)) return nf_fail(err, NF_ERR_ARGUMENT, "an object name is empty, too long or not UTF-8");
    for (size_t i = w->first_new_object; i < w->dir.n_objects; i++)
        if (!strcmp(w->dir.objects[i].pub.name, o->name)) return nf_fail(err, NF_ERR_ARGUMENT, "object '%s' was added already", o->name);
    if (w->dir.n_objects >= NF_MAX_OBJECTS) return nf_fail(err, NF_ERR_LIMIT, "more than %u objects", NF_MAX_OBJECTS);
    return NF_OK;
}

/* Handles are counted from the first new object. */
static nf_entry *entry_of(const nf_writer *w, size_t handle) { return &w->dir.objects[w->first_new_object + handle]; }
static object_state *state_of(const nf_writer *w, size_t handle) { return &w->states[w->first_new_object + handle]; }

nf_status nf_writer_add(nf_writer *w, const nf_object *object, size_t *handle, nf_error *err) {
    nf_status status = check_new_name(w, object, err);
    if (status) return status;
    if (w->append && (status = retire_replaced(w, object->name, err))) return status;
    status = nf_grow((void **)&w->dir.objects, &w->dir.objects_cap, w->dir.n_objects + 1, sizeof *w->dir.objects, err);
    if (!status) status = nf_grow((void **)&w->states, &w->states_cap, w->dir.n_objects + 1, sizeof *w->states, err);
    if (status) return status;
    nf_entry *e = &w->dir.objects[w->dir.n_objects];
    object_state *s = &w->states[w->dir.n_objects];
    *e = (nf_entry){.pub = *object, .checks_object = NF_NO_CHECKS};
    *s = (object_state){0};
    e->pub.segments = NULL;
    e->pub.n_segments = 0;
    e->pub.name = nf_strdup(object->name, err);
    e->pub.metadata = nf_strdup(object->metadata ? object->metadata : "", err);
    w->dir.n_objects++; /* from here on owned by the directory */
    if (!e->pub.name || !e->pub.metadata) return NF_ERR_MEMORY;
    if (!e->pub.raw_bytes) e->pub.raw_bytes = e->pub.bytes;
    if ((status = nf_directory_component(&w->dir, object->component, &e->component, err))) return status;
    e->pub.component = w->dir.components[e->component];
    if ((status = place(w, e, err)) || (status = prepare_state(&e->pub, s, err))) return status;
    *handle = w->dir.n_objects - 1 - w->first_new_object;
    return NF_OK;
}

static nf_status write_at(const nf_writer *w, const nf_object *o, uint64_t offset, const void *bytes, uint64_t n, nf_error *err) {
    const char *from = bytes;
    while (n) {
        uint32_t part;
        uint64_t at, left;
        nf_locate(o, offset, &part, &at, &left);
        uint64_t take = n < left ? n : left;
        nf_status status = write_full(w->parts[part].fd, from, take, at, part_name(&w->parts[part]), err);
        if (status) return status;
        from += take;
        offset += take;
        n -= take;
    }
    return NF_OK;
}

/* Adds bytes at the current end to the chunk hashes; chunks end at NF_CHUNK_BYTES and at segment ends. */
static void hash_forward(const nf_object *o, object_state *s, const uint8_t *bytes, uint64_t n) {
    while (n) {
        uint32_t part;
        uint64_t at, in_segment, room = NF_CHUNK_BYTES - s->in_chunk;
        nf_locate(o, s->written, &part, &at, &in_segment);
        uint64_t take = n < in_segment ? n : in_segment;
        if (take > room) take = room;
        XXH3_128bits_update(s->hash, bytes, take);
        s->in_chunk += take;
        s->written += take;
        bytes += take;
        n -= take;
        if (s->in_chunk < NF_CHUNK_BYTES && take < in_segment) continue;
        if (s->next_check < s->n_checks) XXH128_canonicalFromHash(&s->checks[s->next_check++], XXH3_128bits_digest(s->hash));
        XXH3_128bits_reset(s->hash);
        s->in_chunk = 0;
    }
}

nf_status nf_writer_write(nf_writer *w, size_t handle, uint64_t offset, const void *bytes, uint64_t n, nf_error *err) {
    const nf_object *o = &entry_of(w, handle)->pub;
    object_state *s = state_of(w, handle);
    if (o->kind == NF_OBJECT_BANK || offset != s->written || n > o->bytes - offset)
        return nf_fail(err, NF_ERR_INTERNAL, "'%s': bytes must be written front to back", o->name);
    nf_status status = write_at(w, o, offset, bytes, n, err);
    if (!status) hash_forward(o, s, bytes, n);
    return status;
}

nf_status nf_writer_write_expert(nf_writer *w, size_t handle, uint64_t expert, const void *bytes, nf_error *err) {
    const nf_object *o = &entry_of(w, handle)->pub;
    object_state *s = state_of(w, handle);
    if (o->kind != NF_OBJECT_BANK || expert >= o->n_experts || atomic_exchange(&s->experts[expert], 1))
        return nf_fail(err, NF_ERR_INTERNAL, "'%s': expert %llu does not exist or was written already", o->name, (unsigned long long)expert);
    s->checks[expert] = nf_hash(bytes, o->expert_stride);
    return write_at(w, o, expert * o->expert_stride, bytes, o->expert_stride, err);
}

nf_status nf_writer_add_blob(nf_writer *w, const char *name, const char *component, const void *bytes, uint64_t n, nf_error *err) {
    if (n > NF_MAX_BLOB_BYTES) return nf_fail(err, NF_ERR_LIMIT, "blob '%s' has %llu bytes, the limit is %llu", name, (unsigned long long)n,
                                              NF_MAX_BLOB_BYTES);
    nf_object o = {.name = name, .component = component, .kind = NF_OBJECT_BLOB, .format = {NF_TYPE_U8, NF_CODEBOOK_NONE},
                   .n_dims = 1, .shape = {n}, .raw_bytes = n};
    size_t bound = ZSTD_compressBound(n), handle;
    uint8_t *packed = nf_alloc(bound, 1, "a compressed blob", err);
    if (!packed) return NF_ERR_MEMORY;
    size_t size = ZSTD_compress(packed, bound, bytes, n, 12);
    o.compressed = !ZSTD_isError(size) && size < n;
    const void *stored = o.compressed ? packed : bytes;
    o.bytes = o.compressed ? size : n;
    nf_status status = nf_writer_add(w, &o, &handle, err);
    if (!status) {
        entry_of(w, handle)->hash = nf_hash(stored, o.bytes);
        status = nf_writer_write(w, handle, 0, stored, o.bytes, err);
    }
    free(packed);
    return status;
}

nf_status nf_writer_meta(nf_writer *w, const char *key, const char *value, nf_error *err) {
    return nf_directory_set_meta(&w->dir, key, value, err);
}

/* ---- finishing ------------------------------------------------------------------------------------------------------------ */

static nf_status check_complete(const nf_writer *w, nf_error *err) {
    for (size_t i = w->first_new_object; i < w->dir.n_objects; i++) {
        const nf_object *o = &w->dir.objects[i].pub;
        const object_state *s = &w->states[i];
        bool whole = o->kind == NF_OBJECT_BANK || s->written == o->bytes;
        for (uint64_t e = 0; o->kind == NF_OBJECT_BANK && e < o->n_experts; e++) whole &= s->experts[e] != 0;
        if (!whole) return nf_fail(err, NF_ERR_INTERNAL, "%s: object '%s' was not written completely", w->path, o->name);
    }
    return NF_OK;
}

/* One blob holds the checksums of everything that this publication adds. */
static nf_status add_checksum_blob(nf_writer *w, nf_error *err) {
    size_t end = w->dir.n_objects;
    nf_buf table = {0};
    nf_status status = NF_OK;
    for (size_t i = w->first_new_object; i < end && !status; i++) {
        const object_state *s = &w->states[i];
        if (!s->n_checks) continue;
        w->dir.objects[i].checks_object = (uint32_t)end;
        w->dir.objects[i].checks_first = table.len / 16;
        w->dir.objects[i].checks_count = s->n_checks;
        status = nf_buf_append(&table, s->checks, s->n_checks * sizeof *s->checks, err);
    }
    if (!status && table.len) {
        char name[48];
        snprintf(name, sizeof name, "checksums.%llu", (unsigned long long)w->dir.generation);
        status = nf_writer_add_blob(w, name, "checksums", table.data, table.len, err);
    }
    nf_buf_free(&table);
    return status;
}

/* Exact file lengths, everything on disk, final names; part 0 of a new container keeps its temporary name. */
static nf_status publish_parts(nf_writer *w, nf_error *err) {
    for (size_t i = w->first_new_part; i < w->dir.n_parts; i++) {
        part_file *p = &w->parts[i];
        w->dir.parts[i].length = p->end;
        if (!i) continue;
        if (nf_file_ops_in_use->ftruncate(p->fd, (off_t)p->end)) return nf_fail_errno(err, errno, "%s: cannot set the length", p->temp);
        if (nf_file_ops_in_use->fsync(p->fd)) return nf_fail_errno(err, errno, "%s: cannot sync", p->temp);
        if (nf_file_ops_in_use->rename(p->temp, p->final)) return nf_fail_errno(err, errno, "%s: cannot rename", p->temp);
        free(p->temp);
        p->temp = NULL;
    }
    if (nf_file_ops_in_use->fsync_dir(w->path)) return nf_fail_errno(err, errno, "%s: cannot sync the folder", w->path);
    return NF_OK;
}

static nf_status compress_directory(const nf_writer *w, nf_buf *packed, uint64_t *raw_bytes, nf_error *err) {
    nf_buf raw = {0};
    nf_status status = nf_directory_encode(&w->dir, &raw, err);
    *raw_bytes = raw.len;
    if (!status) status = nf_buf_reserve(packed, ZSTD_compressBound(raw.len), err);
    if (!status) {
        size_t size = ZSTD_compress(packed->data, packed->cap, raw.data, raw.len, 9);
        if (ZSTD_isError(size)) status = nf_fail(err, NF_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(size));
        else packed->len = size;
    }
    nf_buf_free(&raw);
    return status;
}

/* Where the directory goes in part 0: behind its objects; for an add-on also clear of the directory in force. */
static uint64_t directory_offset(const nf_writer *w, uint64_t stored) {
    if (!w->append) return round_up(w->parts[0].end, NF_BLOCK);
    const nf_slot *keep = &w->keep;
    if (w->directory_from + round_up(stored, NF_BLOCK) <= keep->offset) return w->directory_from;
    return round_up(keep->offset + keep->stored, NF_BLOCK);
}

static nf_status publish_directory(nf_writer *w, nf_error *err) {
    nf_buf packed = {0};
    nf_slot slot = {.generation = w->dir.generation};
    nf_status status = compress_directory(w, &packed, &slot.raw, err);
    part_file *p = &w->parts[0];
    if (!status) {
        slot.stored = packed.len;
        slot.hash = nf_hash(packed.data, packed.len);
        slot.offset = directory_offset(w, slot.stored);
        /* Reclaims the unused tail; what stays is the directory in force and the new one. */
        uint64_t end = slot.offset + round_up(slot.stored, NF_BLOCK);
        uint64_t kept = round_up(w->keep.offset + w->keep.stored, NF_BLOCK);
        if (w->append && end < kept) end = kept;
        if (nf_file_ops_in_use->ftruncate(p->fd, (off_t)end)) status = nf_fail_errno(err, errno, "%s: cannot set the length", part_name(p));
    }
    if (!status) status = write_full(p->fd, packed.data, packed.len, slot.offset, part_name(p), err);
    nf_buf_free(&packed);
    if (!status && nf_file_ops_in_use->fsync(p->fd)) status = nf_fail_errno(err, errno, "%s: cannot sync", part_name(p));
    if (status) return status;
    uint8_t block[NF_BLOCK];
    nf_slot_encode(&slot, &w->dir.uuid, block);
    w->committed = w->append;
    status = write_full(p->fd, block, NF_BLOCK, w->next_slot ? NF_SLOT_B : NF_SLOT_A, part_name(p), err);
    if (!status && nf_file_ops_in_use->fsync(p->fd)) status = nf_fail_errno(err, errno, "%s: cannot sync", part_name(p));
    return status;
}

static nf_status publish_name(nf_writer *w, nf_error *err) {
    if (w->append) return NF_OK;
    part_file *p = &w->parts[0];
    if (!access(p->final, F_OK)) return nf_fail(err, NF_ERR_ARGUMENT, "%s: appeared during the conversion", p->final);
    if (nf_file_ops_in_use->rename(p->temp, p->final)) return nf_fail_errno(err, errno, "%s: cannot rename", p->temp);
    free(p->temp);
    p->temp = NULL;
    if (nf_file_ops_in_use->fsync_dir(w->path)) return nf_fail_errno(err, errno, "%s: cannot sync the folder", w->path);
    return NF_OK;
}

static void free_writer(nf_writer *w) {
    for (size_t i = 0; w->states && i < w->dir.n_objects; i++) free_state(&w->states[i]);
    for (size_t i = 0; w->parts && i < w->dir.n_parts; i++) {
        if (w->parts[i].fd >= 0) close(w->parts[i].fd);
        free(w->parts[i].temp);
        free(w->parts[i].final);
    }
    free(w->states);
    free(w->parts);
    nf_directory_free(&w->dir);
    free(w->path);
    free(w);
}

nf_status nf_writer_finish(nf_writer *w, nf_error *err) {
    nf_status status = check_complete(w, err);
    if (!status) status = add_checksum_blob(w, err);
    if (!status) status = publish_parts(w, err);
    if (!status) status = nf_directory_check(&w->dir, w->path, err);
    if (!status) status = publish_directory(w, err);
    if (!status) status = publish_name(w, err);
    if (status) nf_writer_abort(w);
    else free_writer(w);
    return status;
}

void nf_writer_abort(nf_writer *w) {
    if (!w) return;
    for (size_t i = w->first_new_part; w->parts && !w->committed && i < w->dir.n_parts; i++) {
        part_file *p = &w->parts[i];
        /* fd < 0: this writer never created the file, or another conversion holds it. */
        if (p->fd < 0) continue;
        (void)nf_file_ops_in_use->unlink(p->temp ? p->temp : p->final);
    }
    free_writer(w);
}
