/*
 * Writing containers: starting one or an add-on, placing objects in parts, writing their bytes and checksums;
 * see container.h. container_publish.c makes the result visible.
 */
#include "format/container_writer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define BLOB_LEVEL 12 /* of zstd: blobs are small and written once */

/* ---- a new container ---- */

static nf_writer *new_writer(const char *path, const nf_writer_options *options, nf_error *err) {
    nf_writer *w = nf_calloc(1, sizeof *w, "a container writer", err);
    if (!w) return NULL;
    w->max_part = options && options->max_part_bytes ? options->max_part_bytes : NF_DEFAULT_PART_BYTES;
    if (w->max_part > NF_MAX_PART_LENGTH) w->max_part = NF_MAX_PART_LENGTH;
    if (!(w->path = nf_strdup(path, err))) {
        free(w);
        return NULL;
    }
    return w;
}

static nf_status must_not_exist(const char *path, nf_error *err) {
    struct stat info;
    if (!lstat(path, &info))
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: exists already; choose another name or remove it", path);
    if (errno == ENOENT) return NF_OK;
    return nf_fail_errno(err, errno, "%s: cannot look it up", path);
}

static nf_status start_new(nf_writer *w, nf_error *err) {
    w->dir.generation = 1;
    nf_status status = nf_id_random(&w->dir.uuid, err);
    if (status) return status;
    /* RFC 9562: version 4, variant 1. */
    w->dir.uuid.bytes[6] = (uint8_t)((w->dir.uuid.bytes[6] & 0x0f) | 0x40);
    w->dir.uuid.bytes[8] = (uint8_t)((w->dir.uuid.bytes[8] & 0x3f) | 0x80);
    if ((status = nf_writer_new_part(w, err))) return status;
    /* Again, now that the lock is held: another conversion may have finished in between. */
    if ((status = must_not_exist(w->path, err))) return status;
    return nf_writer_remove_stale(w, err);
}

nf_status nf_writer_create(const char *path, const nf_writer_options *options, nf_writer **out,
                           nf_error *err) {
    *out = NULL;
    size_t n = strlen(path);
    if (n < 8 || strcmp(path + n - 7, ".ninfer") != 0)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: the name of a container must end in .ninfer", path);
    nf_status status = must_not_exist(path, err);
    if (status) return status;
    nf_writer *w = new_writer(path, options, err);
    if (!w) return NF_ERR_MEMORY;
    if ((status = start_new(w, err))) {
        nf_writer_abort(w);
        return status;
    }
    *out = w;
    return NF_OK;
}

/* ---- add-ons ---- */

/* Takes over the directory of the container as it is, under the lock. */
static nf_status adopt(nf_writer *w, nf_error *err) {
    nf_container *c;
    nf_status status = nf_container_open(w->path, &c, err);
    if (status) return status;
    w->next_slot = !c->slot_in_force;
    w->keep = c->slot[c->slot_in_force];
    for (size_t i = 0; i < c->dir.n_objects; i++) nf_buf_free(&c->checks[i]);
    w->dir = c->dir;
    c->dir = (nf_directory){0};
    nf_container_close(c);
    w->first_new_object = w->dir.n_objects;
    w->first_new_part = w->dir.n_parts;
    w->parts = nf_calloc(w->dir.n_parts, sizeof *w->parts, "parts", err);
    w->states = nf_calloc(w->dir.n_objects, sizeof *w->states, "object states", err);
    for (size_t i = 0; w->parts && i < w->dir.n_parts; i++) w->parts[i].fd = -1;
    if (!w->parts || !w->states) return NF_ERR_MEMORY;
    w->parts_cap = w->dir.n_parts;
    w->states_cap = w->dir.n_objects;
    if (w->dir.generation == UINT64_MAX)
        return nf_fail(err, NF_ERR_LIMIT, "%s: no generation is left", w->path);
    w->dir.generation++;
    return NF_OK;
}

/* Locks part 0 and makes sure that the locked file is the one that the name means. */
static nf_status lock_existing(const char *path, int fd, nf_error *err) {
    struct stat mine, named;
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno == EWOULDBLOCK)
            return nf_fail(err, NF_ERR_BUSY, "%s: another program is changing this model", path);
        return nf_fail_errno(err, errno, "%s: cannot lock", path);
    }
    if (fstat(fd, &mine) || stat(path, &named)) return nf_fail_errno(err, errno, "%s: cannot stat", path);
    if (mine.st_ino != named.st_ino || mine.st_dev != named.st_dev)
        return nf_fail(err, NF_ERR_BUSY, "%s: was replaced by another file just now", path);
    return NF_OK;
}

/* A writer that was killed may have left a directory in force that is not on disk yet. It must be before
 * anything that only the one before it refers to is overwritten. */
static nf_status settle(nf_writer *w, nf_error *err) {
    if (nf_file_ops_in_use->fsync(w->parts[0].fd))
        return nf_fail_errno(err, errno, "%s: cannot sync", w->path);
    return nf_writer_remove_stale(w, err);
}

nf_status nf_writer_append(const char *path, const nf_writer_options *options, nf_writer **out,
                           nf_error *err) {
    *out = NULL;
    int fd = nf_file_ops_in_use->open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return nf_fail_errno(err, errno, "%s: cannot open for writing", path);
    nf_status status = lock_existing(path, fd, err);
    nf_writer *w = status ? NULL : new_writer(path, options, err);
    if (!status && !w) status = NF_ERR_MEMORY;
    if (!status) {
        w->append = true;
        status = adopt(w, err);
    }
    if (w && w->parts)
        w->parts[0].fd = fd;
    else
        nf_file_ops_in_use->close(fd);
    if (!status && !(w->parts[0].final = nf_strdup(path, err))) status = NF_ERR_MEMORY;
    if (!status) status = settle(w, err);
    if (status) {
        nf_writer_abort(w);
        return status;
    }
    *out = w;
    return NF_OK;
}

nf_status nf_writer_retire(nf_writer *w, size_t i, nf_error *err) {
    nf_directory *d = &w->dir;
    nf_entry *e = &d->objects[i];
    for (size_t k = 0; k < d->n_objects; k++)
        if (d->objects[k].checks_object == i)
            return nf_fail(err, NF_ERR_ARGUMENT,
                           "'%s' holds checksums of other objects and cannot be replaced", e->pub.name);
    size_t n = e->pub.n_segments;
    nf_status status =
        nf_grow((void **)&d->retired, &d->retired_cap, d->n_retired + n, sizeof *d->retired, err);
    if (status) return status;
    if (n) memcpy(d->retired + d->n_retired, e->segments, n * sizeof *e->segments);
    d->n_retired += n;
    nf_entry_free(e);
    memmove(e, e + 1, (d->n_objects - i - 1) * sizeof *e);
    memmove(&w->states[i], &w->states[i + 1], (d->n_objects - i - 1) * sizeof *w->states);
    d->n_objects--;
    w->first_new_object--;
    for (size_t k = 0; k < d->n_objects; k++)
        if (d->objects[k].checks_object != NF_NO_CHECKS && d->objects[k].checks_object > i)
            d->objects[k].checks_object--;
    return NF_OK;
}

/* ---- placing objects ---- */

static nf_status add_segment(nf_entry *e, size_t *cap, nf_segment segment, nf_error *err) {
    size_t n = e->pub.n_segments;
    nf_status status = nf_grow((void **)&e->segments, cap, n + 1, sizeof segment, err);
    if (status) return status;
    e->segments[n] = segment;
    e->pub.segments = e->segments;
    e->pub.n_segments = n + 1;
    return NF_OK;
}

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* Places an object: in the last new part as far as it fits, then in further parts. Experts are not divided.
 */
static nf_status place(nf_writer *w, nf_entry *e, nf_error *err) {
    nf_object *o = &e->pub;
    const bool bank = o->kind == NF_OBJECT_BANK;
    uint64_t left = o->bytes, unit = bank ? o->expert_stride : NF_BLOCK;
    size_t cap = 0;
    bool fresh = false; /* the last part was made for this segment and is still empty */
    while (left) {
        if (w->dir.n_parts == w->first_new_part) {
            nf_status status = nf_writer_new_part(w, err);
            if (status) return status;
            fresh = true;
        }
        nf_part_file *p = &w->parts[w->dir.n_parts - 1];
        uint64_t at = round_up(p->end, bank && !o->n_segments ? NF_BANK_ALIGN : NF_BLOCK);
        uint64_t room = at < w->max_part ? w->max_part - at : 0,
                 take = left <= room ? left : room / unit * unit;
        if (!take && fresh)
            return nf_fail(err, NF_ERR_LIMIT,
                           "%s: parts of %llu bytes are too small for '%s'; the largest part must have at "
                           "least %llu bytes",
                           w->path, (unsigned long long)w->max_part, o->name,
                           (unsigned long long)(at + (left < unit ? left : unit)));
        nf_status status;
        if (!take) {
            if ((status = nf_writer_new_part(w, err))) return status;
            fresh = true;
            continue;
        }
        status = add_segment(e, &cap, (nf_segment){(uint32_t)(w->dir.n_parts - 1), at, take}, err);
        if (status) return status;
        p->end = at + take;
        left -= take;
        fresh = false;
    }
    return NF_OK;
}

/* ---- adding objects ---- */

static nf_status prepare_state(const nf_object *o, nf_object_state *s, nf_error *err) {
    s->n_checks = nf_checks_needed(o);
    s->checks = nf_calloc(s->n_checks, sizeof *s->checks, "checksums", err);
    if (!s->checks) return NF_ERR_MEMORY;
    if (o->kind == NF_OBJECT_BANK) {
        s->experts = nf_calloc(o->n_experts, sizeof *s->experts, "expert marks", err);
        return s->experts ? NF_OK : NF_ERR_MEMORY;
    }
    if (o->kind == NF_OBJECT_BLOB) return NF_OK; /* hashed in one step */
    s->hash = XXH3_createState();
    if (!s->hash) return nf_fail(err, NF_ERR_MEMORY, "out of memory for a checksum");
    XXH3_128bits_reset(s->hash);
    return NF_OK;
}

/* The entry with this name, or n_objects. */
static size_t find_name(const nf_directory *d, const char *name) {
    size_t i = 0;
    while (i < d->n_objects && strcmp(d->objects[i].pub.name, name) != 0) i++;
    return i;
}

static nf_status check_new(const nf_writer *w, const nf_object *o, nf_error *err) {
    size_t n = o->name ? strlen(o->name) : 0;
    if (!n || n > NF_MAX_NAME || !nf_directory_text_valid(o->name, n))
        return nf_fail(err, NF_ERR_ARGUMENT, "an object name is empty, longer than %d bytes or not UTF-8",
                       NF_MAX_NAME);
    if (o->metadata && (strlen(o->metadata) > NF_MAX_TEXT_BYTES ||
                        !nf_directory_text_valid(o->metadata, strlen(o->metadata))))
        return nf_fail(err, NF_ERR_ARGUMENT, "object '%s': its metadata is too long or not UTF-8", o->name);
    if (o->n_dims > NF_MAX_DIMS)
        return nf_fail(err, NF_ERR_ARGUMENT, "object '%s' has more than %d dimensions", o->name, NF_MAX_DIMS);
    if (w->dir.n_objects >= NF_MAX_OBJECTS)
        return nf_fail(err, NF_ERR_LIMIT, "more than %u objects", NF_MAX_OBJECTS);
    /* A bank is placed by its stride, so it must be right before that; the rest is checked before publishing.
     */
    nf_object copy = *o;
    if (o->kind == NF_OBJECT_BANK &&
        (nf_bank_layout(&copy, NULL) || copy.bytes != o->bytes || copy.expert_stride != o->expert_stride))
        return nf_fail(err, NF_ERR_ARGUMENT, "bank '%s': strides and bytes are not those of nf_bank_layout",
                       o->name);
    if (o->bytes > (1ull << 56)) return nf_fail(err, NF_ERR_LIMIT, "object '%s' is too large", o->name);
    return NF_OK;
}

/* Handles are counted from the first new object, so that retiring a replaced one does not move them. */
static nf_entry *entry_of(const nf_writer *w, size_t handle) {
    return &w->dir.objects[w->first_new_object + handle];
}
static nf_object_state *state_of(const nf_writer *w, size_t handle) {
    return &w->states[w->first_new_object + handle];
}

/* Appends a copy of the object to the directory; the directory owns what has been copied even when this
 * fails. */
static nf_status copy_object(nf_writer *w, const nf_object *object, nf_error *err) {
    nf_directory *d = &w->dir;
    nf_status status =
        nf_grow((void **)&d->objects, &d->objects_cap, d->n_objects + 1, sizeof *d->objects, err);
    if (!status)
        status = nf_grow((void **)&w->states, &w->states_cap, d->n_objects + 1, sizeof *w->states, err);
    if (status) return status;
    char *name = nf_strdup(object->name, err);
    if (!name) return NF_ERR_MEMORY;
    w->states[d->n_objects] = (nf_object_state){0};
    nf_entry *e = &d->objects[d->n_objects++];
    *e = (nf_entry){.pub = *object, .checks_object = NF_NO_CHECKS};
    e->pub.name = name;
    e->pub.metadata = NULL;
    e->pub.component = NULL;
    e->pub.segments = NULL;
    e->pub.n_segments = 0;
    if (e->pub.kind != NF_OBJECT_BLOB) e->pub.raw_bytes = e->pub.bytes;
    if (object->metadata && !(e->pub.metadata = nf_strdup(object->metadata, err))) return NF_ERR_MEMORY;
    if ((status = nf_directory_component(d, object->component, &e->component, err))) return status;
    e->pub.component = d->components[e->component];
    return NF_OK;
}

static nf_status add_object(nf_writer *w, const nf_object *object, size_t *handle, nf_error *err) {
    nf_status status = check_new(w, object, err);
    if (status) return status;
    size_t same = find_name(&w->dir, object->name);
    if (same < w->dir.n_objects && same >= w->first_new_object)
        return nf_fail(err, NF_ERR_ARGUMENT, "object '%s' was added already", object->name);
    if (same < w->dir.n_objects) status = nf_writer_retire(w, same, err);
    if (!status) status = copy_object(w, object, err);
    if (status) return status;
    *handle = w->dir.n_objects - 1 - w->first_new_object;
    nf_entry *e = entry_of(w, *handle);
    if ((status = place(w, e, err))) return status;
    return prepare_state(&e->pub, state_of(w, *handle), err);
}

/* Remembers that something went wrong. */
static nf_status outcome(nf_writer *w, nf_status status) {
    if (status) atomic_store(&w->failed, true);
    return status;
}

static bool is_own(const char *name, const char *component) {
    return (name && !strncmp(name, NF_CHECKS_COMPONENT ".", sizeof NF_CHECKS_COMPONENT)) ||
           (component && !strcmp(component, NF_CHECKS_COMPONENT));
}

static nf_status not_own(const char *name, const char *component, nf_error *err) {
    if (!is_own(name, component)) return NF_OK;
    return nf_fail(err, NF_ERR_ARGUMENT, "'%s': names and components of checksum tables are the writer's own",
                   name);
}

nf_status nf_writer_add(nf_writer *w, const nf_object *object, size_t *handle, nf_error *err) {
    nf_status status = not_own(object->name, object->component, err);
    if (!status && object->kind == NF_OBJECT_BLOB)
        status = nf_fail(err, NF_ERR_ARGUMENT, "'%s': blobs are added with nf_writer_add_blob", object->name);
    return outcome(w, status ? status : add_object(w, object, handle, err));
}

/* ---- writing bytes ---- */

static nf_status write_at(const nf_writer *w, const nf_object *o, uint64_t offset, const void *bytes,
                          uint64_t n, nf_error *err) {
    const char *from = bytes;
    while (n) {
        nf_place at = nf_locate(o, offset);
        uint64_t take = n < at.left ? n : at.left;
        const nf_part_file *p = &w->parts[at.part];
        nf_status status = nf_write_full(p->fd, from, take, at.at, nf_part_name(p), err);
        if (status) return status;
        from += take;
        offset += take;
        n -= take;
    }
    return NF_OK;
}

/* Adds bytes at the current end to the chunk hashes; chunks end at NF_CHUNK_BYTES and at segment ends. */
static void hash_forward(const nf_object *o, nf_object_state *s, const uint8_t *bytes, uint64_t n) {
    while (n) {
        uint64_t room = NF_CHUNK_BYTES - s->in_chunk, in_segment = nf_locate(o, s->written).left;
        uint64_t take = n < in_segment ? n : in_segment;
        if (take > room) take = room;
        XXH3_128bits_update(s->hash, bytes, take);
        s->in_chunk += take;
        s->written += take;
        bytes += take;
        n -= take;
        if (s->in_chunk < NF_CHUNK_BYTES && take < in_segment) continue;
        if (s->next_check < s->n_checks)
            XXH128_canonicalFromHash(&s->checks[s->next_check++], XXH3_128bits_digest(s->hash));
        XXH3_128bits_reset(s->hash);
        s->in_chunk = 0;
    }
}

nf_status nf_writer_write(nf_writer *w, size_t handle, uint64_t offset, const void *bytes, uint64_t n,
                          nf_error *err) {
    if (handle >= w->dir.n_objects - w->first_new_object)
        return outcome(w, nf_fail(err, NF_ERR_INTERNAL, "%s: no object has handle %zu", w->path, handle));
    const nf_object *o = &entry_of(w, handle)->pub;
    nf_object_state *s = state_of(w, handle);
    if (!s->hash || offset != s->written || n > o->bytes - offset)
        return outcome(w,
                       nf_fail(err, NF_ERR_INTERNAL, "'%s': bytes must be written front to back", o->name));
    nf_status status = write_at(w, o, offset, bytes, n, err);
    if (!status) hash_forward(o, s, bytes, n);
    return outcome(w, status);
}

nf_status nf_writer_write_expert(nf_writer *w, size_t handle, uint64_t expert, const void *bytes,
                                 nf_error *err) {
    if (handle >= w->dir.n_objects - w->first_new_object)
        return outcome(w, nf_fail(err, NF_ERR_INTERNAL, "%s: no object has handle %zu", w->path, handle));
    const nf_object *o = &entry_of(w, handle)->pub;
    nf_object_state *s = state_of(w, handle);
    if (!s->experts || expert >= o->n_experts || atomic_exchange(&s->experts[expert], 1))
        return outcome(w, nf_fail(err, NF_ERR_INTERNAL,
                                  "'%s': expert %llu does not exist or was written already", o->name,
                                  (unsigned long long)expert));
    s->checks[expert] = nf_hash(bytes, o->expert_stride);
    return outcome(w, write_at(w, o, expert * o->expert_stride, bytes, o->expert_stride, err));
}

nf_status nf_writer_add_own_blob(nf_writer *w, const char *name, const char *component, const void *bytes,
                                 uint64_t n, nf_error *err) {
    if (n > NF_MAX_BLOB_BYTES)
        return outcome(w, nf_fail(err, NF_ERR_LIMIT, "blob '%s' has %llu bytes, the limit is %llu", name,
                                  (unsigned long long)n, NF_MAX_BLOB_BYTES));
    nf_object o = {.name = name,
                   .component = component,
                   .kind = NF_OBJECT_BLOB,
                   .n_dims = 1,
                   .shape = {n},
                   .raw_bytes = n};
    o.format.type = NF_TYPE_U8;
    size_t bound = ZSTD_compressBound(n), handle;
    uint8_t *packed = nf_alloc(bound, 1, "a compressed blob", err);
    if (!packed) return outcome(w, NF_ERR_MEMORY);
    size_t size = ZSTD_compress(packed, bound, bytes, n, BLOB_LEVEL);
    o.compressed = !ZSTD_isError(size) && size < n;
    const void *stored = o.compressed ? packed : bytes;
    o.bytes = o.compressed ? size : n;
    nf_status status = add_object(w, &o, &handle, err);
    if (!status) status = write_at(w, &entry_of(w, handle)->pub, 0, stored, o.bytes, err);
    if (!status) {
        entry_of(w, handle)->hash = nf_hash(stored, o.bytes);
        state_of(w, handle)->written = o.bytes;
    }
    free(packed);
    return outcome(w, status);
}

nf_status nf_writer_add_blob(nf_writer *w, const char *name, const char *component, const void *bytes,
                             uint64_t n, nf_error *err) {
    nf_status status = not_own(name, component, err);
    if (status) return outcome(w, status);
    return nf_writer_add_own_blob(w, name, component, bytes, n, err);
}

nf_status nf_writer_meta(nf_writer *w, const char *key, const char *value, nf_error *err) {
    return outcome(w, nf_directory_set_meta(&w->dir, key, value, err));
}
