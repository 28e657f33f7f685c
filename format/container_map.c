/* Bytes of objects: mapping, blobs, checksums of chunks and experts. */
#include "format/container_internal.h"

#include "base/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <zstd.h>

#define READ_BYTES (1u << 20)

static size_t index_of(const nf_container *c, const nf_object *o) {
    return (size_t)((const nf_entry *)(const void *)o - c->dir.objects);
}

static const nf_entry *entry_of(const nf_object *o) {
    return (const nf_entry *)(const void *)o;
}

/* ---- mapping ---- */

/* One address range for all segments: reserved first, then each segment is mapped over its place. Segments
 * but the last are multiples of 4096 long, so each begins on a page; the file offsets' larger alignment does
 * not matter. */
static nf_status map_object(const nf_container *c, const nf_object *o, const uint8_t **out, nf_error *err) {
    uint8_t *base = mmap(NULL, o->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return nf_fail_errno(err, errno, "%s: cannot reserve %llu bytes of address space for '%s'", c->path,
                             (unsigned long long)o->bytes, o->name);
    uint8_t *at = base;
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        if (mmap(at, s->length, PROT_READ, MAP_PRIVATE | MAP_FIXED, c->parts[s->part].fd, (off_t)s->offset) ==
            MAP_FAILED) {
            nf_status status =
                nf_fail_errno(err, errno, "%s: cannot map '%s'", c->parts[s->part].path, o->name);
            munmap(base, o->bytes);
            return status;
        }
        at += s->length;
    }
    *out = base;
    return NF_OK;
}

nf_status nf_container_map(nf_container *c, const nf_object *object, const uint8_t **out, nf_error *err) {
    nf_status status = NF_OK;
    size_t i = index_of(c, object);
    *out = NULL;
    if (!object->bytes) return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' is empty", c->path, object->name);
    pthread_mutex_lock(&c->lock);
    if (!c->mapped[i]) status = map_object(c, object, &c->mapped[i], err);
    *out = c->mapped[i];
    pthread_mutex_unlock(&c->lock);
    return status;
}

nf_status nf_container_read(const nf_container *c, const nf_object *object, uint64_t offset, void *out,
                            size_t n, nf_error *err) {
    uint8_t *to = out;
    if (offset > object->bytes || n > object->bytes - offset)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' ends before byte %llu", c->path, object->name,
                       (unsigned long long)offset + n);
    while (n) {
        const nf_place place = nf_locate(object, offset);
        const size_t count = place.left < n ? (size_t)place.left : n;
        nf_status status =
            nf_pread_full(c->parts[place.part].fd, to, count, place.at, c->parts[place.part].path, err);
        if (status) return status;
        to += count;
        offset += count;
        n -= count;
    }
    return NF_OK;
}

/* ---- blobs ---- */

/* The file a blob begins in, for messages. */
static const char *blob_path(const nf_container *c, const nf_object *o) {
    return o->n_segments ? c->parts[o->segments[0].part].path : c->path;
}

static nf_status blob_damaged(const nf_container *c, const nf_object *o, nf_error *err) {
    return nf_fail(err, NF_ERR_FORMAT, "%s: object '%s': checksum differs", blob_path(c, o), o->name);
}

/* A frame must say how large its content is, and agree with the directory: then a bomb is refused before
 * anything is allocated for it. */
static nf_status check_frame(const nf_container *c, const nf_object *o, const uint8_t *head, size_t n,
                             nf_error *err) {
    if (!o->compressed || ZSTD_getFrameContentSize(head, n) == o->raw_bytes) return NF_OK;
    return nf_fail(err, NF_ERR_FORMAT, "%s: object '%s' is not a zstd frame of %llu bytes", blob_path(c, o),
                   o->name, (unsigned long long)o->raw_bytes);
}

/* In pieces: needs no memory for the blob. */
nf_status nf_container_check_blob(const nf_container *c, const nf_entry *e, nf_error *err) {
    const nf_object *o = &e->pub;
    XXH3_state_t *state = XXH3_createState();
    uint8_t *bytes = nf_alloc(o->bytes < READ_BYTES ? o->bytes : READ_BYTES, 1, "a read buffer", err);
    nf_status status =
        bytes && state ? NF_OK : nf_fail(err, NF_ERR_MEMORY, "out of memory while checking '%s'", o->name);
    if (!status) XXH3_128bits_reset(state);
    for (size_t i = 0; i < o->n_segments && !status; i++) {
        const nf_segment *s = &o->segments[i];
        for (uint64_t done = 0; done < s->length && !status;) {
            size_t n = s->length - done < READ_BYTES ? (size_t)(s->length - done) : READ_BYTES;
            status =
                nf_pread_full(c->parts[s->part].fd, bytes, n, s->offset + done, c->parts[s->part].path, err);
            if (!status && !i && !done) status = check_frame(c, o, bytes, n, err);
            if (!status) XXH3_128bits_update(state, bytes, n);
            done += n;
        }
    }
    if (!status) {
        XXH128_canonical_t hash;
        XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
        if (!nf_hash_equal(&hash, &e->hash)) status = blob_damaged(c, o, err);
    }
    XXH3_freeState(state);
    free(bytes);
    return status;
}

static nf_status read_stored(const nf_container *c, const nf_object *o, uint8_t *out, nf_error *err) {
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        nf_status status =
            nf_pread_full(c->parts[s->part].fd, out, s->length, s->offset, c->parts[s->part].path, err);
        if (status) return status;
        out += s->length;
    }
    return NF_OK;
}

static nf_status decompress(const nf_container *c, const nf_object *o, const uint8_t *stored, nf_buf *out,
                            nf_error *err) {
    nf_status status = check_frame(c, o, stored, o->bytes, err);
    if (!status) status = nf_buf_reserve(out, o->raw_bytes, err);
    if (status) return status;
    size_t got = ZSTD_decompress(out->data + out->len, o->raw_bytes, stored, o->bytes);
    if (ZSTD_isError(got) || got != o->raw_bytes)
        return nf_fail(err, NF_ERR_FORMAT, "%s: '%s' cannot be decompressed", blob_path(c, o), o->name);
    out->len += got;
    out->data[out->len] = '\0';
    return NF_OK;
}

nf_status nf_container_read_blob(nf_container *c, const nf_object *object, nf_buf *out, nf_error *err) {
    if (object->kind != NF_OBJECT_BLOB)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' is not a blob", c->path, object->name);
    uint8_t *stored = nf_alloc(object->bytes, 1, "a blob", err);
    if (!stored) return NF_ERR_MEMORY;
    nf_status status = read_stored(c, object, stored, err);
    if (!status) {
        XXH128_canonical_t hash = nf_hash(stored, object->bytes);
        if (!nf_hash_equal(&hash, &entry_of(object)->hash)) status = blob_damaged(c, object, err);
    }
    if (!status)
        status = object->compressed ? decompress(c, object, stored, out, err)
                                    : nf_buf_append(out, stored, object->bytes, err);
    free(stored);
    return status;
}

/* ---- checksums ---- */

const XXH128_canonical_t *nf_stored_check(nf_container *c, const nf_entry *e, uint64_t i, nf_error *err) {
    if (e->checks_object == NF_NO_CHECKS || i >= e->checks_count) {
        nf_fail(err, NF_ERR_INTERNAL, "%s: '%s' has no checksum %llu", c->path, e->pub.name,
                (unsigned long long)i);
        return NULL;
    }
    nf_buf *table = &c->checks[e->checks_object];
    nf_status status = NF_OK;
    pthread_mutex_lock(&c->lock);
    if (!table->data) {
        nf_buf read = {0};
        status = nf_container_read_blob(c, &c->dir.objects[e->checks_object].pub, &read, err);
        if (status)
            nf_buf_free(&read);
        else
            *table = read;
    }
    pthread_mutex_unlock(&c->lock);
    if (status) return NULL;
    /* nf_directory_check has compared first + count with the size of the table. */
    return (const XXH128_canonical_t *)(const void *)(table->data + 16 * (e->checks_first + i));
}

nf_status nf_check_range_bytes(nf_container *c, const nf_entry *e, const nf_check_range *r, nf_error *err) {
    const nf_open_part *p = &c->parts[r->part];
    nf_error local = {0};
    if (!err) err = &local;
    const XXH128_canonical_t *stored = nf_stored_check(c, e, r->index, err);
    if (!stored) return err->status;
    XXH3_state_t *state = XXH3_createState();
    uint8_t *bytes = nf_alloc(READ_BYTES, 1, "a read buffer", err);
    nf_status status = state && bytes
                           ? NF_OK
                           : nf_fail(err, NF_ERR_MEMORY, "out of memory while checking '%s'", e->pub.name);
    if (!status) XXH3_128bits_reset(state);
    for (uint64_t done = 0; done < r->bytes && !status;) {
        size_t n = r->bytes - done < READ_BYTES ? (size_t)(r->bytes - done) : READ_BYTES;
        status = nf_pread_full(p->fd, bytes, n, r->offset + done, p->path, err);
        if (!status) XXH3_128bits_update(state, bytes, n);
        done += n;
    }
    if (!status) {
        XXH128_canonical_t hash;
        XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
        if (!nf_hash_equal(stored, &hash))
            status =
                nf_fail(err, NF_ERR_FORMAT, "part %u (%s): object '%s', %s %llu: checksum differs", r->part,
                        p->path, e->pub.name, e->pub.kind == NF_OBJECT_BANK ? "expert" : "chunk",
                        (unsigned long long)r->index);
    }
    XXH3_freeState(state);
    free(bytes);
    return status;
}

nf_status nf_container_check(nf_container *c, const nf_object *object, uint64_t expert, nf_error *err) {
    const nf_entry *e = entry_of(object);
    if (object->kind == NF_OBJECT_BLOB) return nf_container_check_blob(c, e, err);
    if (expert != UINT64_MAX) {
        if (object->kind != NF_OBJECT_BANK || expert >= object->n_experts)
            return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' has no expert %llu", c->path, object->name,
                           (unsigned long long)expert);
        nf_place at = nf_locate(object, expert * object->expert_stride);
        return nf_check_range_bytes(c, e, &(nf_check_range){expert, at.part, at.at, object->expert_stride},
                                    err);
    }
    nf_range_cursor cursor = {0};
    nf_check_range range;
    nf_status status = NF_OK;
    while (!status && nf_next_range(object, &cursor, &range))
        status = nf_check_range_bytes(c, e, &range, err);
    return status;
}
