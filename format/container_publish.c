/*
 * Publishing what a writer has written, or dropping it. The order (docs/container.md, "Publishing") is what
 * makes a crash harmless: parts are whole and synced before the directory names them, the directory is synced
 * before a slot points to it, and for a new container part 0 gets its name last.
 */
#include "format/container_writer_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define DIRECTORY_LEVEL 9 /* of zstd */

/* ---- the directory's content ---- */

static nf_status check_complete(const nf_writer *w, nf_error *err) {
    if (atomic_load(&w->failed))
        return nf_fail(err, NF_ERR_INTERNAL, "%s: a write failed before; the container is not finished",
                       w->path);
    for (size_t i = w->first_new_object; i < w->dir.n_objects; i++) {
        const nf_object *o = &w->dir.objects[i].pub;
        const nf_object_state *s = &w->states[i];
        bool whole = o->kind == NF_OBJECT_BANK || s->written == o->bytes;
        for (uint64_t e = 0; o->kind == NF_OBJECT_BANK && e < o->n_experts; e++) whole &= s->experts[e] != 0;
        if (!whole)
            return nf_fail(err, NF_ERR_INTERNAL, "%s: object '%s' was not written completely", w->path,
                           o->name);
    }
    return NF_OK;
}

/* Old checksum tables that nothing refers to any more, because what they covered was replaced. */
static nf_status retire_unused_tables(nf_writer *w, nf_error *err) {
    for (size_t i = w->first_new_object; i-- > 0;) {
        bool used = false;
        for (size_t k = 0; k < w->dir.n_objects && !used; k++) used = w->dir.objects[k].checks_object == i;
        if (used || strcmp(w->dir.objects[i].pub.component, NF_CHECKS_COMPONENT) != 0) continue;
        nf_status status = nf_writer_retire(w, i, err);
        if (status) return status;
    }
    return NF_OK;
}

/* One blob holds the checksums of everything that this publication adds. */
static nf_status add_checksum_blob(nf_writer *w, nf_error *err) {
    size_t end = w->dir.n_objects;
    nf_buf table = {0};
    nf_status status = NF_OK;
    for (size_t i = w->first_new_object; i < end && !status; i++) {
        const nf_object_state *s = &w->states[i];
        if (!s->n_checks) continue;
        w->dir.objects[i].checks_object = (uint32_t)end;
        w->dir.objects[i].checks_first = table.len / 16;
        w->dir.objects[i].checks_count = s->n_checks;
        status = nf_buf_append(&table, s->checks, s->n_checks * sizeof *s->checks, err);
    }
    if (!status && table.len) {
        char name[48];
        snprintf(name, sizeof name, NF_CHECKS_COMPONENT ".%llu", (unsigned long long)w->dir.generation);
        status = nf_writer_add_own_blob(w, name, NF_CHECKS_COMPONENT, table.data, table.len, err);
    }
    nf_buf_free(&table);
    return status;
}

/* ---- files ---- */

/* Exact file lengths, everything on disk, final names; part 0 of a new container keeps its temporary name. */
static nf_status publish_parts(nf_writer *w, nf_error *err) {
    const nf_file_ops *ops = nf_file_ops_in_use;
    for (size_t i = w->first_new_part; i < w->dir.n_parts; i++) {
        nf_part_file *p = &w->parts[i];
        if (!i) continue;
        if (ops->ftruncate(p->fd, (off_t)p->end))
            return nf_fail_errno(err, errno, "%s: cannot set the length", p->temp);
        if (ops->fsync(p->fd)) return nf_fail_errno(err, errno, "%s: cannot sync", p->temp);
        if (ops->rename(p->temp, p->final)) return nf_fail_errno(err, errno, "%s: cannot rename", p->temp);
        free(p->temp);
        p->temp = NULL;
    }
    if (ops->fsync_dir(w->path)) return nf_fail_errno(err, errno, "%s: cannot sync the folder", w->path);
    return NF_OK;
}

/* The zstd frame of the directory, padded with zeros to a multiple of 4096 (stored: without the padding). */
static nf_status compress_directory(const nf_writer *w, nf_buf *out, nf_slot *slot, nf_error *err) {
    nf_buf raw = {0};
    nf_status status = nf_directory_encode(&w->dir, &raw, err);
    size_t bound = ZSTD_compressBound(raw.len);
    slot->raw = raw.len;
    if (!status) status = nf_buf_reserve(out, bound + NF_BLOCK, err);
    if (!status) {
        size_t size = ZSTD_compress(out->data, bound, raw.data, raw.len, DIRECTORY_LEVEL);
        if (ZSTD_isError(size)) {
            status = nf_fail(err, NF_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(size));
        } else {
            slot->stored = size;
            slot->hash = nf_hash(out->data, size);
            out->len = nf_block_up(size);
            memset(out->data + size, 0, out->len - size);
        }
    }
    nf_buf_free(&raw);
    return status;
}

/* Where the directory goes in part 0: behind its objects; for an add-on also clear of the directory in force.
 * The place of the directory before that one may be used: no valid slot refers to it once ours is written. */
static uint64_t directory_offset(const nf_writer *w, uint64_t padded) {
    uint64_t from = nf_block_up(w->dir.parts[0].length);
    if (!w->append || from + padded <= w->keep.offset) return from;
    return nf_block_up(w->keep.offset + w->keep.stored);
}

static nf_status write_directory(nf_writer *w, nf_slot *slot, nf_error *err) {
    nf_part_file *p = &w->parts[0];
    nf_buf packed = {0};
    nf_status status = compress_directory(w, &packed, slot, err);
    if (!status) {
        slot->offset = directory_offset(w, packed.len);
        /* Reclaims the unused tail; what stays is the directory in force and the new one. */
        uint64_t end = slot->offset + packed.len,
                 kept = w->append ? nf_block_up(w->keep.offset + w->keep.stored) : 0;
        if (nf_file_ops_in_use->ftruncate(p->fd, (off_t)(end > kept ? end : kept)))
            status = nf_fail_errno(err, errno, "%s: cannot set the length", nf_part_name(p));
    }
    if (!status) status = nf_write_full(p->fd, packed.data, packed.len, slot->offset, nf_part_name(p), err);
    nf_buf_free(&packed);
    if (!status && nf_file_ops_in_use->fsync(p->fd))
        status = nf_fail_errno(err, errno, "%s: cannot sync", nf_part_name(p));
    return status;
}

static nf_status publish_directory(nf_writer *w, nf_error *err) {
    nf_part_file *p = &w->parts[0];
    nf_slot slot = {.generation = w->dir.generation};
    nf_status status = write_directory(w, &slot, err);
    if (status) return status;
    uint8_t block[NF_BLOCK];
    nf_slot_encode(&slot, &w->dir.uuid, block);
    w->committed = w->append;
    status =
        nf_write_full(p->fd, block, NF_BLOCK, w->next_slot ? NF_SLOT_B : NF_SLOT_A, nf_part_name(p), err);
    if (!status && nf_file_ops_in_use->fsync(p->fd))
        status = nf_fail_errno(err, errno, "%s: cannot sync", nf_part_name(p));
    return status;
}

/* The final name of a new container's part 0. The lock keeps other writers away; the check is for other
 * programs. */
static nf_status publish_name(nf_writer *w, nf_error *err) {
    if (w->append) return NF_OK;
    nf_part_file *p = &w->parts[0];
    if (!access(p->final, F_OK))
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: appeared during the conversion", p->final);
    if (nf_file_ops_in_use->rename(p->temp, p->final))
        return nf_fail_errno(err, errno, "%s: cannot rename", p->temp);
    free(p->temp);
    p->temp = NULL;
    if (nf_file_ops_in_use->fsync_dir(w->path))
        return nf_fail_errno(err, errno, "%s: cannot sync the folder", w->path);
    return NF_OK;
}

/* ---- the end ---- */

static void free_state(nf_object_state *s) {
    free(s->checks);
    free((void *)s->experts);
    XXH3_freeState(s->hash);
}

void nf_writer_free(nf_writer *w) {
    for (size_t i = 0; w->states && i < w->dir.n_objects; i++) free_state(&w->states[i]);
    for (size_t i = 0; w->parts && i < w->dir.n_parts; i++) {
        if (w->parts[i].fd >= 0)
            nf_file_ops_in_use->close(w->parts[i].fd); /* synced or dropped: nothing to lose */
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
    if (!status) status = retire_unused_tables(w, err);
    if (!status) status = add_checksum_blob(w, err);
    for (size_t i = w->first_new_part; i < w->dir.n_parts; i++) w->dir.parts[i].length = w->parts[i].end;
    if (!status) status = nf_directory_check(&w->dir, w->path, err);
    if (!status) status = publish_parts(w, err);
    if (!status) status = publish_directory(w, err);
    if (!status) status = publish_name(w, err);
    if (status)
        nf_writer_abort(w);
    else
        nf_writer_free(w);
    return status;
}

static void remove_part(const nf_writer *w, size_t i) {
    const nf_part_file *p = &w->parts[i];
    /* fd < 0: this writer never created the file, or another conversion holds it. */
    if (p->fd >= 0) (void)nf_file_ops_in_use->unlink(nf_part_name(p));
}

void nf_writer_abort(nf_writer *w) {
    if (!w) return;
    if (!w->committed && w->parts) {
        /* A part 0 that has its final name goes first, so that nothing opens; one that has not goes last,
         * because it is the lock that keeps other conversions off these names. */
        bool named = !w->append && w->dir.n_parts && !w->parts[0].temp;
        if (named) remove_part(w, 0);
        for (size_t i = w->dir.n_parts; i-- > w->first_new_part;)
            if (i || !named) remove_part(w, i);
    }
    nf_writer_free(w);
}
