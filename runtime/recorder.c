/*
 * Recorder of importance statistics. Every product of a step passes by (products.c); its matrix is known by
 * where its tiles are mapped. Sums are kept in double and grow row by row in the order of the text, so that
 * neither threads nor chunks change them.
 */
#include "runtime/recorder_internal.h"

#include "format/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A matrix that products read, or one matrix of a bank for all experts. */
typedef struct place {
    uintptr_t first, end; /* addresses of tiles: [first, end) */
    size_t stride;        /* from one expert to the next; 0 for a dense matrix */
    size_t within;        /* offset of the matrix in an expert's bytes */
    size_t entry;
} place;

struct nf_recorder {
    nf_model *model;
    nf_importance set; /* names, sizes and counts; its sums are filled when it is written */
    double **sums;     /* [set.n][experts * cols] */
    place *places;     /* sorted by `first` */
    size_t n_places, cap;
};

static nf_status add_object(nf_recorder *r, const nf_tensor_spec *spec, nf_error *err) {
    nf_product_input in[2];
    const size_t n = nf_tensor_inputs(spec, in);
    if (!n) return NF_OK;
    const nf_object *o = nf_container_find(r->model->container, spec->name);
    const uint8_t *bytes;
    if (!o) return nf_fail(err, NF_ERR_INTERNAL, "tensor '%s' is missing", spec->name);
    nf_status status = nf_weights_bytes(r->model, o, &bytes, err);
    for (size_t i = 0; i < n && !status; i++) {
        place where = {.first = (uintptr_t)bytes, .end = (uintptr_t)bytes + o->bytes, .entry = r->set.n};
        if (spec->role == NF_ROLE_BANK) {
            where.stride = (size_t)o->expert_stride;
            where.within = (size_t)o->matrix[in[i].matrix].offset;
        }
        status = nf_importance_add(&r->set, in[i].name, in[i].experts, in[i].cols, err);
        if (!status) status = nf_grow((void **)&r->places, &r->cap, r->n_places + 1, sizeof *r->places, err);
        if (!status) r->places[r->n_places++] = where;
    }
    return status;
}

static int compare_places(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static nf_status list_places(nf_recorder *r, nf_error *err) {
    nf_tensor_spec *specs = NULL;
    size_t n = 0;
    nf_status status = nf_model_desc_tensors(&r->model->desc, &specs, &n, err);
    for (size_t i = 0; i < n && !status; i++) status = add_object(r, &specs[i], err);
    free(specs);
    if (status) return status;
    qsort(r->places, r->n_places, sizeof *r->places, compare_places);
    r->sums = nf_calloc(r->set.n, sizeof *r->sums, "importance sums", err);
    if (!r->sums) return NF_ERR_MEMORY;
    for (size_t i = 0; i < r->set.n; i++) {
        const nf_importance_entry *e = &r->set.entries[i];
        r->sums[i] = nf_calloc((size_t)e->experts * e->cols, sizeof **r->sums, "importance sums", err);
        if (!r->sums[i]) return NF_ERR_MEMORY;
    }
    return NF_OK;
}

nf_status nf_recorder_new(nf_model *model, nf_recorder **out, nf_error *err) {
    *out = NULL;
    if (model->recorder) return nf_fail(err, NF_ERR_ARGUMENT, "%s: is being recorded already", model->path);
    nf_recorder *r = nf_calloc(1, sizeof *r, "a recorder", err);
    if (!r) return NF_ERR_MEMORY;
    r->model = model;
    nf_status status = list_places(r, err);
    if (status) {
        nf_recorder_free(r);
        return nf_context(err, "importance statistics");
    }
    model->recorder = r;
    *out = r;
    return NF_OK;
}

void nf_recorder_free(nf_recorder *r) {
    if (!r) return;
    if (r->model->recorder == r) r->model->recorder = NULL;
    for (size_t i = 0; r->sums && i < r->set.n; i++) free(r->sums[i]);
    free(r->sums);
    free(r->places);
    nf_importance_free(&r->set);
    free(r);
}

nf_status nf_recorder_write(const nf_recorder *r, const char *path, nf_error *err) {
    for (size_t i = 0; i < r->set.n; i++) {
        const nf_importance_entry *e = &r->set.entries[i];
        for (size_t k = 0; k < (size_t)e->experts * e->cols; k++) {
            e->sums[k] = (float)r->sums[i][k];
            if (!isfinite(e->sums[k]))
                return nf_fail(err, NF_ERR_NUMERIC, "the importance of a column of '%s' is too large",
                               e->name);
        }
    }
    return nf_importance_write(&r->set, path, err);
}

/* ---- a step ---- */

/* The place whose tiles begin where a product's do; NULL for small matrices, which are stored exactly. */
static const place *find_place(const nf_recorder *r, const uint8_t *tiles, size_t *expert) {
    const uintptr_t at = (uintptr_t)tiles;
    size_t low = 0, high = r->n_places;
    while (low < high) { /* the first place that begins beyond `at` */
        const size_t middle = (low + high) / 2;
        if (r->places[middle].first > at)
            high = middle;
        else
            low = middle + 1;
    }
    /* The two places of a bank begin at one address. */
    for (size_t i = low; i > 0 && i + 2 > low; i--) {
        const place *p = &r->places[i - 1];
        if (at >= p->end) continue;
        const size_t offset = at - p->first;
        *expert = p->stride ? offset / p->stride : 0;
        if (offset == *expert * p->stride + p->within) return p;
    }
    return NULL;
}

typedef struct record_loop {
    nf_recorder *recorder;
    const nf_product *products;
} record_loop;

static void record_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const record_loop *loop = user;
    for (const nf_product *p = loop->products + begin; p < loop->products + end; p++) {
        size_t expert = 0;
        const place *where = p->n ? find_place(loop->recorder, p->w.tiles, &expert) : NULL;
        if (!where) continue;
        const nf_importance_entry *e = &loop->recorder->set.entries[where->entry];
        double *sums = loop->recorder->sums[where->entry] + expert * e->cols;
        for (size_t j = 0; j < p->n; j++) {
            const float *x = p->in->x + (p->index ? p->index[j] : p->first + j) * p->in->kp;
            for (size_t c = 0; c < e->cols; c++) sums[c] += (double)x[c] * (double)x[c];
        }
        e->counts[expert] += p->n;
    }
}

/* The up matrix of a shared expert is an object of its own with the input of its gate. */
static void record_up(void *user, size_t begin, size_t end, int thread) {
    const record_loop *loop = user;
    for (size_t i = begin; i < end; i++) {
        size_t expert = 0;
        nf_product p = loop->products[i];
        p.w = p.up;
        if (!p.act || !p.n || !find_place(loop->recorder, p.w.tiles, &expert)) continue;
        record_body(&(record_loop){loop->recorder, &p}, 0, 1, thread);
    }
}

void nf_recorder_products(nf_worker *worker, nf_recorder *recorder, const nf_product *products, size_t n) {
    record_loop loop = {recorder, products};
    nf_team_loop(worker, n, 1, record_body, &loop);
    nf_team_loop(worker, n, 1, record_up, &loop);
}
