/*
 * Verification of a whole container: everything that opening checks, then every blob, chunk, expert and
 * padding byte of every part, in parallel. Work items are listed first; findings are reported one at a time,
 * and damage in one place does not hide damage in another. Reads with pread, not through mappings: an I/O
 * error is then a status and not a signal.
 */
#include "format/container_internal.h"

#include "base/io.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A range of one part: an expert or chunk with its checksum (object set), a whole blob, or (object NULL)
 * padding. */
typedef struct verify_item {
    const nf_entry *object;
    nf_check_range range;
} verify_item;

typedef struct verify_job {
    nf_container *c;
    verify_item *items;
    size_t n, cap;
    uint64_t total, done;
    nf_finding_fn finding;
    void *user;
    nf_progress_fn progress;
    void *progress_user;
    nf_error first; /* the first error-level finding */
    bool damaged;
    atomic_bool cancelled;
} verify_job;

static void report(verify_job *job, nf_finding_level level, const nf_error *what) {
    if (job->finding) job->finding(job->user, level, what->message);
    if (level != NF_FINDING_ERROR || job->damaged) return;
    job->damaged = true;
    job->first = *what;
}

static void report_problem(void *job, const nf_error *what) {
    report(job, NF_FINDING_ERROR, what);
}

/* ---- what there is to check ---- */

static nf_status add_item(verify_job *job, verify_item item, nf_error *err) {
    /* Parts that cannot be used were reported when they were opened. */
    if (!item.range.bytes || job->c->parts[item.range.part].fd < 0) return NF_OK;
    nf_status status = nf_grow((void **)&job->items, &job->cap, job->n + 1, sizeof *job->items, err);
    if (status) return status;
    job->items[job->n++] = item;
    job->total += item.range.bytes;
    return NF_OK;
}

static bool parts_usable(const nf_container *c, const nf_object *o) {
    for (size_t i = 0; i < o->n_segments; i++)
        if (c->parts[o->segments[i].part].fd < 0) return false;
    return true;
}

static nf_status list_object(verify_job *job, const nf_entry *e, const bool *bad_table, nf_error *err) {
    const nf_object *o = &e->pub;
    nf_status status = NF_OK;
    if (o->kind == NF_OBJECT_BLOB) {
        if (!o->n_segments || !parts_usable(job->c, o)) return NF_OK;
        return add_item(job, (verify_item){e, {0, o->segments[0].part, o->segments[0].offset, o->bytes}},
                        err);
    }
    if (e->checks_object != NF_NO_CHECKS && bad_table[e->checks_object]) return NF_OK;
    nf_range_cursor cursor = {0};
    nf_check_range range;
    while (!status && nf_next_range(o, &cursor, &range)) status = add_item(job, (verify_item){e, range}, err);
    return status;
}

/* Loads the checksum tables. What a damaged one covers cannot be checked; that is said once for each table.
 */
static nf_status load_tables(verify_job *job, bool *bad, nf_error *err) {
    nf_container *c = job->c;
    for (size_t i = 0; i < c->dir.n_objects; i++) {
        const nf_entry *e = &c->dir.objects[i];
        if (e->checks_object == NF_NO_CHECKS || bad[e->checks_object] || c->checks[e->checks_object].data)
            continue;
        const nf_object *table = &c->dir.objects[e->checks_object].pub;
        nf_error what = {0};
        if (!parts_usable(c, table))
            nf_fail(&what, NF_ERR_FORMAT, "%s: checksum table '%s' lies in a part that cannot be used",
                    c->path, table->name);
        else if (nf_stored_check(c, e, 0, &what))
            continue;
        if (what.status == NF_ERR_MEMORY) return nf_fail(err, NF_ERR_MEMORY, "%s", what.message);
        bad[e->checks_object] = true;
        nf_context(&what, "objects with checksums in '%s' cannot be checked", table->name);
        report(job, NF_FINDING_ERROR, &what);
    }
    return NF_OK;
}

static nf_status add_padding(verify_job *job, uint32_t part, uint64_t from, uint64_t to, nf_error *err) {
    uint64_t file = job->c->parts[part].file_bytes;
    if (to > file) to = file;
    if (to <= from) return NF_OK;
    return add_item(job, (verify_item){NULL, {0, part, from, to - from}}, err);
}

/* What lies between the objects of a part, up to the next multiple of 4096 behind the last one, and behind
 * the directory in force must be zero. */
static nf_status list_padding(verify_job *job, nf_error *err) {
    const nf_directory *d = &job->c->dir;
    const nf_slot *slot = &job->c->slot[job->c->slot_in_force];
    nf_placed *all;
    size_t n, at = 0;
    nf_status status = nf_directory_placed(d, &all, &n, err);
    if (status) return status;
    for (uint32_t part = 0; part < d->n_parts && !status; part++) {
        uint64_t end = part ? NF_PARTN_DATA : NF_PART0_DATA;
        for (; at < n && all[at].segment.part == part && !status; at++) {
            status = add_padding(job, part, end, all[at].segment.offset, err);
            end = all[at].segment.offset + all[at].segment.length;
        }
        if (!status) status = add_padding(job, part, end, nf_block_up(d->parts[part].length), err);
    }
    free(all);
    uint64_t end = slot->offset + slot->stored;
    return status ? status : add_padding(job, 0, end, nf_block_up(end), err);
}

/* Notes that need no bytes: slots, unused tails, replaced objects. */
static void report_layout(verify_job *job) {
    const nf_container *c = job->c;
    nf_error what;
    for (int i = 0; i < 2; i++)
        if (!c->slot_valid[i]) {
            nf_fail(&what, NF_OK,
                    "part 0 (%s): directory slot %c is damaged; the other one (generation %llu) is in force",
                    c->parts[0].path, 'A' + i, (unsigned long long)c->dir.generation);
            report(job, NF_FINDING_WARNING, &what);
        }
    for (size_t i = 0; i < c->dir.n_parts; i++) {
        uint64_t used = nf_block_up(c->dir.parts[i].length), file = c->parts[i].file_bytes;
        if (!i) used += nf_block_up(c->slot[c->slot_in_force].stored);
        if (c->parts[i].fd < 0 || file <= used) continue;
        nf_fail(&what, NF_OK,
                "part %zu (%s): %llu bytes are unused tail; the next change to the model reclaims them", i,
                c->parts[i].path, (unsigned long long)(file - used));
        report(job, NF_FINDING_NOTE, &what);
    }
    uint64_t retired = 0;
    for (size_t i = 0; i < c->dir.n_retired; i++) retired += c->dir.retired[i].length;
    if (!retired) return;
    nf_fail(&what, NF_OK, "%s: %llu bytes belong to replaced objects", c->path, (unsigned long long)retired);
    report(job, NF_FINDING_NOTE, &what);
}

/* ---- checking ---- */

static nf_status check_zero(const nf_container *c, const nf_check_range *r, nf_error *err) {
    static const uint8_t zero[65536];
    uint8_t bytes[sizeof zero];
    const nf_open_part *p = &c->parts[r->part];
    for (uint64_t done = 0; done < r->bytes;) {
        size_t n = r->bytes - done < sizeof bytes ? (size_t)(r->bytes - done) : sizeof bytes;
        nf_status status = nf_pread_full(p->fd, bytes, n, r->offset + done, p->path, err);
        if (status) return status;
        if (memcmp(bytes, zero, n) != 0) {
            size_t i = 0;
            while (!bytes[i]) i++;
            return nf_fail(err, NF_ERR_FORMAT, "part %u (%s): padding byte %llu is not zero", r->part,
                           p->path, (unsigned long long)(r->offset + done + i));
        }
        done += n;
    }
    return NF_OK;
}

static nf_status check_item(nf_container *c, const verify_item *item, nf_error *err) {
    if (!item->object) return check_zero(c, &item->range, err);
    if (item->object->pub.kind != NF_OBJECT_BLOB)
        return nf_check_range_bytes(c, item->object, &item->range, err);
    nf_status status = nf_container_check_blob(c, item->object, err);
    return status ? nf_context(err, "part %u", item->range.part) : NF_OK;
}

static void run_items(verify_job *job, int n_threads) {
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t i = 0; i < job->n; i++) {
        if (atomic_load(&job->cancelled)) continue;
        nf_error what = {0};
        nf_status status = check_item(job->c, &job->items[i], &what);
#pragma omp critical(nf_verify)
        {
            if (status) report(job, NF_FINDING_ERROR, &what);
            job->done += job->items[i].range.bytes;
            if (job->progress && !job->progress(job->progress_user, "verify", job->done, job->total))
                atomic_store(&job->cancelled, true);
        }
    }
}

static nf_status list_all(verify_job *job, nf_error *err) {
    const nf_directory *d = &job->c->dir;
    bool *bad_table = nf_calloc(d->n_objects, sizeof *bad_table, "marks of checksum tables", err);
    nf_status status = bad_table ? load_tables(job, bad_table, err) : NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_objects && !status; i++)
        status = list_object(job, &d->objects[i], bad_table, err);
    free(bad_table);
    return status ? status : list_padding(job, err);
}

nf_status nf_container_verify(const char *path, int n_threads, nf_finding_fn finding, void *user,
                              nf_progress_fn progress, void *progress_user, nf_error *err) {
    verify_job job = {.finding = finding, .user = user, .progress = progress, .progress_user = progress_user};
    nf_error local = {0};
    nf_status status = nf_container_open_parts(path, report_problem, &job, &job.c, &local);
    if (status) {
        report(&job, NF_FINDING_ERROR, &local);
        if (err) *err = local;
        return status;
    }
    status = list_all(&job, &local);
    if (!status) {
        report_layout(&job);
        run_items(&job, n_threads > 0 ? n_threads : omp_get_num_procs());
        if (atomic_load(&job.cancelled))
            status = nf_fail(&local, NF_ERR_CANCELLED, "%s: verification was cancelled", path);
    }
    if (!status && job.damaged) {
        local = job.first;
        status = NF_ERR_FORMAT;
    }
    if (err) *err = local;
    if (err) err->status = status;
    free(job.items);
    nf_container_close(job.c);
    return status;
}
