/*
 * Opening a container and what its directory says; see container.h. Every length is compared with fstat here,
 * so that mapping an object later cannot reach behind the end of a file.
 */
#include "format/container_internal.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

/* ---- parts ---- */

/* Opens part `number` and reads its head. c->parts must have room. */
static nf_status open_part(nf_container *c, size_t number, nf_head *head, nf_error *err) {
    nf_open_part *p = &c->parts[number];
    *p = (nf_open_part){.fd = -1};
    c->n_open = number + 1;
    if (!(p->path = nf_part_path(c->path, number, err))) return NF_ERR_MEMORY;
    /* Non-blocking, so that a pipe of this name cannot hang us before fstat tells what it is. */
    p->fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (p->fd < 0)
        return nf_fail_errno(err, errno,
                             number ? "%s: cannot open this part of the model" : "%s: cannot open", p->path);
    struct stat info;
    if (fstat(p->fd, &info)) return nf_fail_errno(err, errno, "%s: cannot stat", p->path);
    if (!S_ISREG(info.st_mode)) return nf_fail(err, NF_ERR_FORMAT, "%s: is not a regular file", p->path);
    p->file_bytes = (uint64_t)info.st_size;
    uint8_t block[NF_BLOCK];
    if (p->file_bytes < NF_BLOCK)
        return nf_fail(err, NF_ERR_FORMAT, "%s: is not a .ninfer container (only %llu bytes)", p->path,
                       (unsigned long long)p->file_bytes);
    nf_status status = nf_pread_full(p->fd, block, NF_BLOCK, 0, p->path, err);
    if (!status) status = nf_head_decode(block, p->path, head, err);
    if (!status && head->part != number)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: is part %u of a model, where part %zu was expected",
                         p->path, head->part, number);
    if (!status) nf_id_text(&head->part_id, p->id_text);
    return status;
}

/* Opens a part (part 0 is open already) and compares it with the directory. */
static nf_status check_part(nf_container *c, size_t i, nf_error *err) {
    nf_head head;
    nf_status status = i ? open_part(c, i, &head, err) : NF_OK;
    if (status) return status;
    const nf_open_part *p = &c->parts[i];
    if (i && memcmp(&head.uuid, &c->dir.uuid, sizeof head.uuid) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "%s: belongs to another model (its set id differs)", p->path);
    char wanted[33];
    nf_id_text(&c->dir.parts[i].id, wanted);
    if (strcmp(wanted, p->id_text) != 0)
        return nf_fail(err, NF_ERR_FORMAT,
                       "%s: is not the part that this model was completed with (part id %s, expected %s); it "
                       "may come from "
                       "another add-on to a copy of the model",
                       p->path, p->id_text, wanted);
    if (p->file_bytes < c->dir.parts[i].length)
        return nf_fail(err, NF_ERR_FORMAT, "%s: has %llu bytes, %llu are needed; is the copy complete?",
                       p->path, (unsigned long long)p->file_bytes,
                       (unsigned long long)c->dir.parts[i].length);
    return NF_OK;
}

static nf_status check_parts(nf_container *c, nf_problem_fn problem, void *user, nf_error *err) {
    for (size_t i = 0; i < c->dir.n_parts; i++) {
        nf_status status = check_part(c, i, err);
        if (!status) continue;
        if (!problem || !i || status == NF_ERR_MEMORY) return status;
        problem(user, err);
        if (c->parts[i].fd >= 0) close(c->parts[i].fd);
        c->parts[i].fd = -1;
    }
    return NF_OK;
}

/* ---- directory ---- */

static nf_status read_slots(nf_container *c, const nf_id *uuid, nf_error *err) {
    const nf_open_part *p = &c->parts[0];
    if (p->file_bytes < NF_PART0_DATA)
        return nf_fail(err, NF_ERR_FORMAT, "%s: is cut short; the conversion or copy was not finished",
                       p->path);
    c->slot_in_force = -1;
    for (int i = 0; i < 2; i++) {
        uint8_t block[NF_BLOCK];
        nf_status status = nf_pread_full(p->fd, block, NF_BLOCK, i ? NF_SLOT_B : NF_SLOT_A, p->path, err);
        if (status) return status;
        c->slot_valid[i] = nf_slot_decode(block, uuid, &c->slot[i]);
        if (c->slot_valid[i] && !c->slot[i].empty &&
            (c->slot_in_force < 0 || c->slot[i].generation > c->slot[c->slot_in_force].generation))
            c->slot_in_force = i;
    }
    if (c->slot_in_force < 0)
        return nf_fail(err, NF_ERR_FORMAT,
                       "%s: no valid directory slot; the conversion was not finished or the file is damaged",
                       p->path);
    return NF_OK;
}

/* Reads and checks the stored bytes of the directory; *out is freed by the caller in any case. */
static nf_status read_directory(const nf_open_part *p, const nf_slot *slot, uint8_t **out, nf_error *err) {
    if (slot->raw > NF_MAX_DIRECTORY_BYTES || slot->stored > NF_MAX_DIRECTORY_BYTES ||
        slot->offset < NF_PART0_DATA || slot->offset % NF_BLOCK || slot->offset > p->file_bytes ||
        slot->stored > p->file_bytes - slot->offset)
        return nf_fail(err, NF_ERR_FORMAT, "%s: the directory lies outside the file or is too large",
                       p->path);
    if (!(*out = nf_alloc(slot->stored, 1, "the directory", err))) return NF_ERR_MEMORY;
    nf_status status = nf_pread_full(p->fd, *out, slot->stored, slot->offset, p->path, err);
    if (status) return status;
    XXH128_canonical_t hash = nf_hash(*out, slot->stored);
    if (!nf_hash_equal(&hash, &slot->hash))
        return nf_fail(err, NF_ERR_FORMAT, "%s: the directory is damaged (checksum differs)", p->path);
    if (ZSTD_getFrameContentSize(*out, slot->stored) != slot->raw)
        return nf_fail(err, NF_ERR_FORMAT, "%s: the directory is not a zstd frame of %llu bytes", p->path,
                       (unsigned long long)slot->raw);
    return NF_OK;
}

/* The directory that a slot points to. */
static nf_status load_directory(nf_container *c, const nf_slot *slot, const nf_id *uuid, nf_error *err) {
    const nf_open_part *p = &c->parts[0];
    uint8_t *stored = NULL, *raw = NULL;
    nf_status status = read_directory(p, slot, &stored, err);
    if (!status && !(raw = nf_alloc(slot->raw, 1, "the directory", err))) status = NF_ERR_MEMORY;
    if (!status && ZSTD_decompress(raw, slot->raw, stored, slot->stored) != slot->raw)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: the directory cannot be decompressed", p->path);
    if (!status) status = nf_directory_decode(raw, slot->raw, c->path, &c->dir, err);
    free(stored);
    free(raw);
    if (status) return status;
    if (c->dir.generation != slot->generation || memcmp(uuid, &c->dir.uuid, sizeof *uuid) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "%s: head, slot and directory belong to different models",
                       p->path);
    if (slot->offset < nf_block_up(c->dir.parts[0].length))
        return nf_fail(err, NF_ERR_FORMAT, "%s: the directory overlaps an object", p->path);
    return NF_OK;
}

/* ---- open and close ---- */

static int compare_by_name(const void *a, const void *b, void *dir) {
    const nf_directory *d = dir;
    return strcmp(d->objects[*(const uint32_t *)a].pub.name, d->objects[*(const uint32_t *)b].pub.name);
}

static nf_status prepare_tables(nf_container *c, nf_error *err) {
    size_t n = c->dir.n_objects;
    c->by_name = nf_alloc(n, sizeof *c->by_name, "object index", err);
    c->mapped = nf_calloc(n, sizeof *c->mapped, "object mappings", err);
    c->checks = nf_calloc(n, sizeof *c->checks, "checksum tables", err);
    if (!c->by_name || !c->mapped || !c->checks) return NF_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) c->by_name[i] = (uint32_t)i;
    if (n) qsort_r(c->by_name, n, sizeof *c->by_name, compare_by_name, &c->dir);
    return NF_OK;
}

static nf_status open_all(nf_container *c, nf_problem_fn problem, void *user, nf_error *err) {
    nf_head head;
    nf_status status = open_part(c, 0, &head, err);
    if (!status) status = read_slots(c, &head.uuid, err);
    if (!status) status = load_directory(c, &c->slot[c->slot_in_force], &head.uuid, err);
    if (status) return status;
    size_t cap = 1;
    status = nf_grow((void **)&c->parts, &cap, c->dir.n_parts, sizeof *c->parts, err);
    if (!status) status = check_parts(c, problem, user, err);
    if (!status) status = prepare_tables(c, err);
    nf_id_text(&c->dir.uuid, c->uuid_text);
    return status;
}

nf_status nf_container_open_parts(const char *path, nf_problem_fn problem, void *user, nf_container **out,
                                  nf_error *err) {
    *out = NULL;
    nf_error local;
    if (!err) err = &local; /* problem() needs the message */
    nf_container *c = nf_calloc(1, sizeof *c, "a container", err);
    if (!c) return NF_ERR_MEMORY;
    pthread_mutex_init(&c->lock, NULL); /* never fails for default attributes */
    c->path = nf_strdup(path, err);
    c->parts = nf_calloc(1, sizeof *c->parts, "parts", err);
    nf_status status = c->path && c->parts ? open_all(c, problem, user, err) : NF_ERR_MEMORY;
    if (status) {
        nf_container_close(c);
        return status;
    }
    *out = c;
    return NF_OK;
}

nf_status nf_container_open(const char *path, nf_container **out, nf_error *err) {
    nf_container *c;
    *out = NULL;
    nf_status status = nf_container_open_parts(path, NULL, NULL, &c, err);
    if (status) return status;
    for (size_t i = 0; i < c->dir.n_objects && !status; i++)
        if (c->dir.objects[i].pub.kind == NF_OBJECT_BLOB)
            status = nf_container_check_blob(c, &c->dir.objects[i], err);
    if (status) {
        nf_container_close(c);
        return status;
    }
    *out = c;
    return NF_OK;
}

void nf_container_close(nf_container *c) {
    if (!c) return;
    for (size_t i = 0; c->mapped && i < c->dir.n_objects; i++)
        if (c->mapped[i]) munmap((void *)c->mapped[i], c->dir.objects[i].pub.bytes);
    for (size_t i = 0; c->checks && i < c->dir.n_objects; i++) nf_buf_free(&c->checks[i]);
    for (size_t i = 0; i < c->n_open; i++) {
        free(c->parts[i].path);
        if (c->parts[i].fd >= 0) close(c->parts[i].fd);
    }
    free(c->parts);
    free(c->by_name);
    free(c->mapped);
    free(c->checks);
    nf_directory_free(&c->dir);
    pthread_mutex_destroy(&c->lock);
    free(c->path);
    free(c);
}

/* ---- what it holds ---- */

const char *nf_container_path(const nf_container *c) {
    return c->path;
}
const char *nf_container_uuid(const nf_container *c) {
    return c->uuid_text;
}
uint64_t nf_container_generation(const nf_container *c) {
    return c->dir.generation;
}
size_t nf_container_part_count(const nf_container *c) {
    return c->dir.n_parts;
}
size_t nf_container_object_count(const nf_container *c) {
    return c->dir.n_objects;
}
const nf_object *nf_container_object(const nf_container *c, size_t i) {
    return &c->dir.objects[i].pub;
}
size_t nf_container_meta_count(const nf_container *c) {
    return c->dir.n_meta;
}

void nf_container_part(const nf_container *c, size_t i, const char **path, uint64_t *length,
                       const char **id) {
    if (path) *path = c->parts[i].path;
    if (length) *length = c->dir.parts[i].length;
    if (id) *id = c->parts[i].id_text;
}

uint64_t nf_container_file_bytes(const nf_container *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n_open; i++) sum += c->parts[i].file_bytes;
    return sum;
}

const nf_object *nf_container_find(const nf_container *c, const char *name) {
    size_t lo = 0, hi = c->dir.n_objects;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const nf_object *o = &c->dir.objects[c->by_name[mid]].pub;
        int order = strcmp(o->name, name);
        if (!order) return o;
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const char *nf_container_meta(const nf_container *c, const char *key) {
    for (size_t i = 0; i < c->dir.n_meta; i++)
        if (!strcmp(c->dir.meta[i].key, key)) return c->dir.meta[i].value;
    return NULL;
}

void nf_container_meta_at(const nf_container *c, size_t i, const char **key, const char **value) {
    *key = c->dir.meta[i].key;
    *value = c->dir.meta[i].value;
}
