/* Opening, mapping and reading a container; see container.h. */
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

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static nf_status open_part(nf_container *c, size_t number, nf_id *uuid, nf_id *id, nf_error *err) {
    nf_open_part *p = &c->parts[number];
    *p = (nf_open_part){.fd = -1};
    c->n_open = number + 1;
    if (!(p->path = nf_part_path(c->path, number, "", err))) return NF_ERR_MEMORY;
    p->fd = open(p->path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0) return nf_fail_errno(err, errno, number ? "%s: cannot open this part of the model" : "%s: cannot open", p->path);
    struct stat info;
    if (fstat(p->fd, &info)) return nf_fail_errno(err, errno, "%s: cannot stat", p->path);
    if (!S_ISREG(info.st_mode)) return nf_fail(err, NF_ERR_FORMAT, "%s: is not a regular file", p->path);
    p->file_bytes = (uint64_t)info.st_size;
    uint8_t block[NF_BLOCK];
    if (p->file_bytes < NF_BLOCK)
        return nf_fail(err, NF_ERR_FORMAT, "%s: is not a .ninfer container (%llu bytes)", p->path, (unsigned long long)p->file_bytes);
    nf_status status = nf_pread_full(p->fd, block, NF_BLOCK, 0, p->path, err);
    uint32_t stored_number = 0;
    if (!status) status = nf_head_decode(block, p->path, uuid, &stored_number, id, err);
    if (!status && stored_number != number)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: is part %u of a model, where part %zu was expected", p->path, stored_number, number);
    if (!status) nf_id_text(id, p->id_text);
    return status;
}

/* The directory that a slot points to. */
static nf_status load_directory(nf_container *c, const nf_slot *slot, nf_directory *out, nf_error *err) {
    const nf_open_part *p = &c->parts[0];
    if (slot->raw > NF_MAX_DIRECTORY_BYTES || slot->stored > NF_MAX_DIRECTORY_BYTES || slot->offset < NF_PART0_DATA ||
        slot->offset > p->file_bytes || slot->stored > p->file_bytes - slot->offset)
        return nf_fail(err, NF_ERR_FORMAT, "%s: the directory lies outside the file or is too large", p->path);
    uint8_t *stored = nf_alloc(slot->stored, 1, "the directory", err), *raw = nf_alloc(slot->raw, 1, "the directory", err);
    nf_status status = stored && raw ? nf_pread_full(p->fd, stored, slot->stored, slot->offset, p->path, err) : NF_ERR_MEMORY;
    if (!status) {
        XXH128_canonical_t hash = nf_hash(stored, slot->stored);
        if (!nf_hash_equal(&hash, &slot->hash))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: the directory is damaged (checksum differs)", p->path);
    }
    if (!status && ZSTD_decompress(raw, slot->raw, stored, slot->stored) != slot->raw)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: the directory cannot be decompressed", p->path);
    if (!status) status = nf_directory_decode(raw, slot->raw, c->path, out, err);
    if (!status && out->generation != slot->generation) {
        nf_directory_free(out);
        status = nf_fail(err, NF_ERR_FORMAT, "%s: directory and slot disagree about the generation", p->path);
    }
    free(stored);
    free(raw);
    return status;
}

static nf_status read_slots(nf_container *c, const nf_id *uuid, nf_error *err) {
    const nf_open_part *p = &c->parts[0];
    if (p->file_bytes < NF_PART0_DATA) return nf_fail(err, NF_ERR_FORMAT, "%s: is cut short; the conversion or copy was not finished", p->path);
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
    if (c->slot_in_force < 0) return nf_fail(err, NF_ERR_FORMAT, "%s: no valid directory slot; the conversion was not finished or the file is damaged", p->path);
    return NF_OK;
}

static nf_status open_other_parts(nf_container *c, nf_error *err) {
    for (size_t i = 0; i < c->dir.n_parts; i++) {
        nf_id uuid, id;
        nf_status status = i ? open_part(c, i, &uuid, &id, err) : NF_OK;
        if (status) return status;
        const nf_open_part *p = &c->parts[i];
        if (i && memcmp(&uuid, &c->dir.uuid, sizeof uuid) != 0)
            return nf_fail(err, NF_ERR_FORMAT, "%s: belongs to another model (its set id differs)", p->path);
        char wanted[33];
        nf_id_text(&c->dir.parts[i].id, wanted);
        if (strcmp(wanted, p->id_text) != 0)
            return nf_fail(err, NF_ERR_FORMAT, "%s: is not the part that this model was completed with (part id %s, expected %s); "
                           "it may come from another add-on of the same model", p->path, p->id_text, wanted);
        if (p->file_bytes < c->dir.parts[i].length)
            return nf_fail(err, NF_ERR_FORMAT, "%s: has %llu bytes, %llu are needed; is the copy complete?", p->path,
                           (unsigned long long)p->file_bytes, (unsigned long long)c->dir.parts[i].length);
    }
    return NF_OK;
}

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

/* Reads every blob once (which checks it); keeps those that are checksum tables. */
static nf_status check_blobs(nf_container *c, nf_error *err) {
    bool *is_table = nf_calloc(c->dir.n_objects, 1, "blob marks", err);
    if (!is_table) return NF_ERR_MEMORY;
    for (size_t i = 0; i < c->dir.n_objects; i++)
        if (c->dir.objects[i].checks_object != NF_NO_CHECKS) is_table[c->dir.objects[i].checks_object] = true;
    nf_status status = NF_OK;
    for (size_t i = 0; i < c->dir.n_objects && !status; i++) {
        if (c->dir.objects[i].pub.kind != NF_OBJECT_BLOB) continue;
        status = nf_container_read_blob(c, &c->dir.objects[i].pub, &c->checks[i], err);
        if (!is_table[i]) nf_buf_free(&c->checks[i]);
    }
    free(is_table);
    return status;
}

nf_status nf_container_open(const char *path, nf_container **out, nf_error *err) {
    *out = NULL;
    nf_container *c = nf_calloc(1, sizeof *c, "a container", err);
    if (!c) return NF_ERR_MEMORY;
    pthread_mutex_init(&c->lock, NULL);
    nf_id uuid, id;
    nf_status status = (c->path = nf_strdup(path, err)) && (c->parts = nf_calloc(1, sizeof *c->parts, "parts", err)) ? NF_OK : NF_ERR_MEMORY;
    if (!status) status = open_part(c, 0, &uuid, &id, err);
    if (!status) status = read_slots(c, &uuid, err);
    if (!status) status = load_directory(c, &c->slot[c->slot_in_force], &c->dir, err);
    if (!status && memcmp(&uuid, &c->dir.uuid, sizeof uuid) != 0)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: head and directory belong to different models", path);
    if (!status) {
        size_t cap = 1;
        status = nf_grow((void **)&c->parts, &cap, c->dir.n_parts, sizeof *c->parts, err);
    }
    if (!status) status = open_other_parts(c, err);
    if (!status) status = prepare_tables(c, err);
    if (!status) status = check_blobs(c, err);
    if (status) {
        nf_container_close(c);
        return status;
    }
    nf_id_text(&c->dir.uuid, c->uuid_text);
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

/* ---- what it holds -------------------------------------------------------------------------------------------------------- */

const char *nf_container_path(const nf_container *c) { return c->path; }
const char *nf_container_uuid(const nf_container *c) { return c->uuid_text; }
uint64_t nf_container_generation(const nf_container *c) { return c->dir.generation; }
size_t nf_container_part_count(const nf_container *c) { return c->dir.n_parts; }
size_t nf_container_object_count(const nf_container *c) { return c->dir.n_objects; }
const nf_object *nf_container_object(const nf_container *c, size_t i) { return &c->dir.objects[i].pub; }
size_t nf_container_meta_count(const nf_container *c) { return c->dir.n_meta; }

void nf_container_part(const nf_container *c, size_t i, const char **path, uint64_t *length, const char **id) {
    if (path) *path = c->parts[i].path;
    if (length) *length = c->dir.parts[i].length;
    if (id) *id = c->parts[i].id_text;
}

const nf_object *nf_container_find(const nf_container *c, const char *name) {
    size_t lo = 0, hi = c->dir.n_objects;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const nf_object *o = &c->dir.objects[c->by_name[mid]].pub;
        int order = strcmp(o->name, name);
        if (!order) return o;
        if (order < 0) lo = mid + 1;
        else hi = mid;
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

/* ---- mapping -------------------------------------------------------------------------------------------------------------- */

static nf_status map_object(const nf_container *c, const nf_object *o, const uint8_t **out, nf_error *err) {
    /* One address range for all segments: reserved first, then each segment is mapped over its place. */
    uint8_t *base = mmap(NULL, o->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nf_fail_errno(err, errno, "%s: cannot reserve %llu bytes of address space for '%s'", c->path,
                                                 (unsigned long long)o->bytes, o->name);
    uint8_t *at = base;
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        if (mmap(at, s->length, PROT_READ, MAP_PRIVATE | MAP_FIXED, c->parts[s->part].fd, (off_t)s->offset) == MAP_FAILED) {
            nf_status status = nf_fail_errno(err, errno, "%s: cannot map '%s'", c->parts[s->part].path, o->name);
            munmap(base, o->bytes);
            return status;
        }
        at += s->length;
    }
    *out = base;
    return NF_OK;
}

static size_t index_of(const nf_container *c, const nf_object *o) { return (size_t)((const nf_entry *)(const void *)o - c->dir.objects); }

nf_status nf_container_map(nf_container *c, const nf_object *object, const uint8_t **out, nf_error *err) {
    nf_status status = NF_OK;
    size_t i = index_of(c, object);
    if (!object->bytes) return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' is empty", c->path, object->name);
    pthread_mutex_lock(&c->lock);
    if (!c->mapped[i]) status = map_object(c, object, &c->mapped[i], err);
    *out = c->mapped[i];
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- blobs and checksums -------------------------------------------------------------------------------------------------- */

static nf_status read_bytes(const nf_container *c, const nf_object *o, uint8_t *out, nf_error *err) {
    for (size_t i = 0; i < o->n_segments; i++) {
        const nf_segment *s = &o->segments[i];
        nf_status status = nf_pread_full(c->parts[s->part].fd, out, s->length, s->offset, c->parts[s->part].path, err);
        if (status) return status;
        out += s->length;
    }
    return NF_OK;
}

nf_status nf_container_read_blob(nf_container *c, const nf_object *object, nf_buf *out, nf_error *err) {
    const nf_entry *e = (const nf_entry *)(const void *)object;
    if (object->kind != NF_OBJECT_BLOB) return nf_fail(err, NF_ERR_ARGUMENT, "%s: '%s' is not a blob", c->path, object->name);
    uint8_t *stored = nf_alloc(object->bytes, 1, "a blob", err);
    if (!stored) return NF_ERR_MEMORY;
    nf_status status = read_bytes(c, object, stored, err);
    if (!status) {
        XXH128_canonical_t hash = nf_hash(stored, object->bytes);
        if (!nf_hash_equal(&hash, &e->hash))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: '%s' is damaged (checksum differs)", c->path, object->name);
    }
    /* A bomb is refused before anything is allocated for it. */
    if (!status && object->compressed && ZSTD_getFrameContentSize(stored, object->bytes) != object->raw_bytes)
        status = nf_fail(err, NF_ERR_FORMAT, "%s: '%s' is not a zstd frame of %llu bytes", c->path, object->name,
                         (unsigned long long)object->raw_bytes);
    if (!status) status = nf_buf_reserve(out, object->raw_bytes, err);
    if (!status && !object->compressed) status = nf_buf_append(out, stored, object->bytes, err);
    else if (!status) {
        size_t got = ZSTD_decompress(out->data + out->len, object->raw_bytes, stored, object->bytes);
        if (ZSTD_isError(got) || got != object->raw_bytes)
            status = nf_fail(err, NF_ERR_FORMAT, "%s: '%s' cannot be decompressed", c->path, object->name);
        else {
            out->len += got;
            out->data[out->len] = '\0';
        }
    }
    free(stored);
    return status;
}

const XXH128_canonical_t *nf_stored_check(const nf_container *c, const nf_entry *e, uint64_t i) {
    if (e->checks_object == NF_NO_CHECKS || i >= e->checks_count) return NULL;
    return (const XXH128_canonical_t *)(const void *)(c->checks[e->checks_object].data + 16 * (e->checks_first + i));
}

static nf_status check_range(const nf_container *c, const nf_entry *e, uint64_t i, const uint8_t *bytes, uint64_t n, nf_error *err) {
    XXH128_canonical_t hash = nf_hash(bytes, n);
    const XXH128_canonical_t *stored = nf_stored_check(c, e, i);
    if (stored && nf_hash_equal(&hash, stored)) return NF_OK;
    uint32_t part;
    uint64_t at, left;
    nf_locate(&e->pub, (uint64_t)(bytes - c->mapped[index_of(c, &e->pub)]), &part, &at, &left);
    return nf_fail(err, NF_ERR_FORMAT, "%s: object '%s', %s %llu: checksum differs", c->parts[part].path, e->pub.name,
                   e->pub.kind == NF_OBJECT_BANK ? "expert" : "chunk", (unsigned long long)i);
}

nf_status nf_container_check(nf_container *c, const nf_object *object, uint64_t expert, nf_error *err) {
    const nf_entry *e = (const nf_entry *)(const void *)object;
    if (object->kind == NF_OBJECT_BLOB) {
        nf_buf unused = {0};
        nf_status status = nf_container_read_blob(c, object, &unused, err);
        nf_buf_free(&unused);
        return status;
    }
    const uint8_t *base;
    nf_status status = nf_container_map(c, object, &base, err);
    if (status) return status;
    if (object->kind == NF_OBJECT_BANK) {
        uint64_t first = expert == UINT64_MAX ? 0 : expert, end = expert == UINT64_MAX ? object->n_experts : expert + 1;
        if (end > object->n_experts) return nf_fail(err, NF_ERR_ARGUMENT, "'%s' has no expert %llu", object->name, (unsigned long long)expert);
        for (uint64_t i = first; i < end && !status; i++)
            status = check_range(c, e, i, base + i * object->expert_stride, object->expert_stride, err);
        return status;
    }
    uint64_t chunk = 0, at = 0;
    for (size_t s = 0; s < object->n_segments; s++)
        for (uint64_t done = 0; done < object->segments[s].length && !status; chunk++) {
            uint64_t left = object->segments[s].length - done, n = left < NF_CHUNK_BYTES ? left : NF_CHUNK_BYTES;
            status = check_range(c, e, chunk, base + at, n, err);
            done += n;
            at += n;
        }
    return status;
}
