/*
 * Verification of a whole container: everything that opening checks, then every chunk, every expert and every padding byte of
 * every part, in parallel. Work items are listed first; findings are reported one at a time.
 */
#include "format/container_internal.h"

#include "base/io.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A range of one part: an expert or chunk with its checksum (object set), or padding that must be zero. */
typedef struct verify_item {
    const nf_entry *object;
    uint64_t index;
    uint32_t part;
    uint64_t offset, bytes;
} verify_item;

typedef struct verify_job {
    nf_container *c;
    verify_item *items;
    size_t n, cap;
    uint64_t total;
    nf_finding_fn finding;
    void *user;
    nf_progress_fn progress;
    void *progress_user;
    nf_error *err; /* of the first error-level finding */
    nf_status status;
    uint64_t done;
    atomic_bool cancelled;
} verify_job;

static void report(verify_job *job, nf_finding_level level, const nf_error *what) {
    if (job->finding) job->finding(job->user, level, what->message);
    if (level != NF_FINDING_ERROR || job->status) return;
    job->status = NF_ERR_FORMAT;
    if (job->err) *job->err = *what;
}

static nf_status add_item(verify_job *job, verify_item item, nf_error *err) {
    if (!item.bytes) return NF_OK;
    nf_status status = nf_grow((void **)&job->items, &job->cap, job->n + 1, sizeof *job->items, err);
    if (!status) {
        job->items[job->n++] = item;
        job->total += item.bytes;
    }
    return status;
}

static nf_status list_object(verify_job *job, const nf_entry *e, nf_error *err) {
    const nf_object *o = &e->pub;
    nf_status status = NF_OK;
    if (o->kind == NF_OBJECT_BLOB) return NF_OK; /* opening has checked blobs */
    if (o->kind == NF_OBJECT_BANK) {
        for (uint64_t i = 0; i < o->n_experts && !status; i++) {
            verify_item item = {.object = e, .index = i, .bytes = o->expert_stride};
            uint64_t left;
            nf_locate(o, i * o->expert_stride, &item.part, &item.offset, &left);
            status = add_item(job, item, err);
        }
        return status;
    }
    uint64_t chunk = 0;
    for (size_t s = 0; s < o->n_segments; s++)
        for (uint64_t done = 0; done < o->segments[s].length && !status; chunk++) {
            uint64_t left = o->segments[s].length - done, n = left < NF_CHUNK_BYTES ? left : NF_CHUNK_BYTES;
            status = add_item(job, (verify_item){e, chunk, o->segments[s].part, o->segments[s].offset + done, n}, err);
            done += n;
        }
    return status;
}

static int compare_segments(const void *a, const void *b) {
    const nf_segment *x = a, *y = b;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What lies between the objects of each part, and up to the next multiple of 4096 behind the last one, must be zero. */
static nf_status list_padding(verify_job *job, nf_error *err) {
    const nf_directory *d = &job->c->dir;
    size_t n = 0;
    for (size_t i = 0; i < d->n_objects; i++) n += d->objects[i].pub.n_segments;
    nf_segment *all = nf_alloc(n + 1, sizeof *all, "segments", err);
    if (!all) return NF_ERR_MEMORY;
    n = 0;
    for (size_t i = 0; i < d->n_objects; i++)
        for (size_t s = 0; s < d->objects[i].pub.n_segments; s++) all[n++] = d->objects[i].pub.segments[s];
    if (n) qsort(all, n, sizeof *all, compare_segments);
    nf_status status = NF_OK;
    size_t at = 0;
    for (uint32_t part = 0; part < d->n_parts && !status; part++) {
        uint64_t end = part ? NF_PARTN_DATA : NF_PART0_DATA;
        for (; at < n && all[at].part == part && !status; at++) {
            status = add_item(job, (verify_item){NULL, 0, part, end, all[at].offset - end}, err);
            end = all[at].offset + all[at].length;
        }
        uint64_t stop = (d->parts[part].length + NF_BLOCK - 1) / NF_BLOCK * NF_BLOCK, file = job->c->parts[part].file_bytes;
        if (stop > file) stop = file;
        if (!status && stop > end) status = add_item(job, (verify_item){NULL, 0, part, end, stop - end}, err);
    }
    free(all);
    return status;
}

/* Notes that need no bytes: slots and unused tails. */
static void report_layout(verify_job *job) {
    const nf_container *c = job->c;
    nf_error what;
    for (int i = 0; i < 2; i++)
        if (!c->slot_valid[i]) {
            nf_fail(&what, NF_OK, "%s: directory slot %c is damaged; it is not the one in force", c->parts[0].path, 'A' + i);
            report(job, NF_FINDING_WARNING, &what);
        }
    for (size_t i = 0; i < c->dir.n_parts; i++) {
        uint64_t used = (c->dir.parts[i].length + NF_BLOCK - 1) / NF_BLOCK * NF_BLOCK, file = c->parts[i].file_bytes;
        if (!i) {
            const nf_slot *s = &c->slot[c->slot_in_force];
            used += (s->stored + NF_BLOCK - 1) / NF_BLOCK * NF_BLOCK;
        }
        if (file <= used) continue;
        nf_fail(&what, NF_OK, "%s: %llu bytes at the end are unused; the next change to the model reclaims them", c->parts[i].path,
                (unsigned long long)(file - used));
        report(job, NF_FINDING_NOTE, &what);
    }
}

static nf_status check_zero(const nf_container *c, const verify_item *item, nf_error *err) {
    static const uint8_t zero[65536];
    uint8_t bytes[65536];
    for (uint64_t done = 0; done < item->bytes;) {
        size_t n = item->bytes - done < sizeof bytes ? (size_t)(item->bytes - done) : sizeof bytes;
        nf_status status = nf_pread_full(c->parts[item->part].fd, bytes, n, item->offset + done, c->parts[item->part].path, err);
        if (status) return status;
        if (memcmp(bytes, zero, n) != 0)
            return nf_fail(err, NF_ERR_FORMAT, "%s: padding between %llu and %llu is not zero", c->parts[item->part].path,
                           (unsigned long long)(item->offset + done), (unsigned long long)(item->offset + done + n));
        done += n;
    }
    return NF_OK;
}

/* Reads with pread into a buffer, not through the mapping: an I/O error is then a status and not a signal. */
static nf_status check_hash(const nf_container *c, const verify_item *item, nf_error *err) {
    nf_open_part *p = &c->parts[item->part];
    XXH3_state_t *state = XXH3_createState();
    uint8_t *bytes = nf_alloc(1 << 20, 1, "a read buffer", err);
    nf_status status = state && bytes ? NF_OK : NF_ERR_MEMORY;
    if (!status) XXH3_128bits_reset(state);
    for (uint64_t done = 0; done < item->bytes && !status;) {
        size_t n = item->bytes - done < (1u << 20) ? (size_t)(item->bytes - done) : 1u << 20;
        status = nf_pread_full(p->fd, bytes, n, item->offset + done, p->path, err);
        if (!status) XXH3_128bits_update(state, bytes, n);
        done += n;
    }
    if (!status) {
        XXH128_canonical_t hash;
        XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
        const XXH128_canonical_t *stored = nf_stored_check(c, item->object, item->index);
        if (!stored || !nf_hash_equal(stored, &hash))
            status = nf_fail(err, NF_ERR_FORMAT, "%s: object '%s', %s %llu: checksum differs", p->path, item->object->pub.name,
                             item->object->pub.kind == NF_OBJECT_BANK ? "expert" : "chunk", (unsigned long long)item->index);
    } else if (status == NF_ERR_MEMORY) {
        nf_fail(err, NF_ERR_MEMORY, "out of memory while verifying");
    }
    XXH3_freeState(state);
    free(bytes);
    return status;
}

static void run_items(verify_job *job, int n_threads) {
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t i = 0; i < job->n; i++) {
        if (atomic_load(&job->cancelled)) continue;
        const verify_item *item = &job->items[i];
        nf_error what = {0};
        nf_status status = item->object ? check_hash(job->c, item, &what) : check_zero(job->c, item, &what);
#pragma omp critical(nf_verify)
        {
            if (status) report(job, NF_FINDING_ERROR, &what);
            job->done += item->bytes;
            if (job->progress && !job->progress(job->progress_user, "verify", job->done, job->total)) atomic_store(&job->cancelled, true);
        }
    }
}

nf_status nf_container_verify(const char *path, int n_threads, nf_finding_fn finding, void *user, nf_progress_fn progress,
                              void *progress_user, nf_error *err) {
    nf_error local = {0};
    if (!err) err = &local;
    verify_job job = {.finding = finding, .user = user, .progress = progress, .progress_user = progress_user, .err = err};
    nf_status status = nf_container_open(path, &job.c, err);
    if (status) {
        nf_error what = *err;
        report(&job, NF_FINDING_ERROR, &what);
        *err = what;
        return status;
    }
    for (size_t i = 0; i < job.c->dir.n_objects && !status; i++) status = list_object(&job, &job.c->dir.objects[i], err);
    if (!status) status = list_padding(&job, err);
    if (!status) {
        report_layout(&job);
        run_items(&job, n_threads > 0 ? n_threads : omp_get_num_procs());
        status = atomic_load(&job.cancelled) ? nf_fail(err, NF_ERR_CANCELLED, "%s: verification was cancelled", path) : job.status;
    }
    free(job.items);
    nf_container_close(job.c);
    return status;
}
