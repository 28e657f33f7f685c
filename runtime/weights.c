/*
 * Where a model's weights lie: in the mapped file, or copied into memory of our own on huge pages,
 * interleaved over NUMA nodes. Binding asks here for the bytes of an object and does not know which it is.
 */
#include "runtime/model_internal.h"

#include "cpu/calibration.h"
#include "cpu/memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE ((size_t)8 << 20) /* read by one thread in one go */
#define ALIGN 4096
/* Auto takes memory of its own only when this much of what is free holds the copy: the cache of the file that
 * it is read from, the KV cache and other programs need room too. */
#define COMFORT 0.5
/* And only when reading from huge pages was measured to be faster by this factor. */
#define WORTH 1.10

static size_t align(uint64_t n) {
    return (size_t)((n + ALIGN - 1) / ALIGN * ALIGN);
}

/* ---- what and how much ---- */

static nf_status list_objects(nf_model *model, size_t *bytes, nf_error *err) {
    nf_tensor_spec *specs;
    size_t n;
    *bytes = 0;
    nf_status status = nf_model_desc_tensors(&model->desc, &specs, &n, err);
    if (status) return status;
    model->copies = nf_calloc(n + 1, sizeof *model->copies, "a list of weights", err);
    if (!model->copies) status = NF_ERR_MEMORY;
    for (size_t i = 0; i < n && !status; i++) {
        const nf_object *o = nf_container_find(model->container, specs[i].name);
        if (!o || !o->bytes || strcmp(specs[i].component, "text") != 0)
            continue; /* binding says what is missing */
        model->copies[model->n_copies++] = (nf_weight_copy){o, *bytes};
        *bytes += align(o->bytes);
    }
    free(specs);
    return status;
}

/* ---- auto ---- */

/* Why `auto` keeps the mapping, or NULL. */
static const char *against_memory(const nf_topology *t, uint64_t bytes) {
    const uint64_t available = nf_memory_available(t->memory_limit);
    if ((double)bytes > COMFORT * (double)available) return "too little free memory for a copy";
    if (t->n_numa_nodes > 1) return NULL; /* a mapped file lies on the node that read it first */
    nf_buf path = {0};
    nf_calibration c = {0};
    nf_machine machine;
    char why[128];
    const char *against = NULL;
    if (nf_calibration_path(&path, NULL) || nf_calibration_load(path.data, &c, NULL)) {
        against = "this machine was not measured (ninfer-bench machine)";
    } else {
        nf_machine_of(t, &machine);
        if (nf_calibration_stale(&c, &machine, (int64_t)time(NULL), why, sizeof why))
            against = "the measurement of this machine is stale (ninfer-bench machine)";
        else if (c.read.items[c.read.n - 1].rate.median < WORTH * c.read_small_pages.median)
            against = "huge pages were measured to gain little";
    }
    nf_calibration_free(&c);
    nf_buf_free(&path);
    return against;
}

/* ---- the copy ---- */

typedef struct copying {
    nf_model *model;
    const nf_model_options *options;
    uint64_t done, total;
    nf_status status;
    nf_error err; /* of the first piece that failed */
} copying;

static void copy_piece(copying *c, const nf_weight_copy *w, uint64_t offset) {
    const nf_object *o = w->object;
    const size_t n = o->bytes - offset < PIECE ? (size_t)(o->bytes - offset) : PIECE;
    nf_error err = {0};
    nf_status status, before;
#pragma omp atomic read
    before = c->status;
    if (before) return;
    status =
        nf_container_read(c->model->container, o, offset, c->model->memory.bytes + w->at + offset, n, &err);
#pragma omp critical(nf_weights)
    {
        c->done += n;
        if (!status && c->options->progress &&
            !c->options->progress(c->options->progress_user, "load", c->done, c->total))
            status = nf_fail(&err, NF_ERR_CANCELLED, "%s: loading was cancelled", c->model->path);
        if (status && !c->status) {
            c->err = err;
#pragma omp atomic write
            c->status = status;
        }
    }
}

static nf_status copy_all(nf_model *model, const nf_model_options *options, nf_error *err) {
    copying c = {.model = model, .options = options};
    for (size_t i = 0; i < model->n_copies; i++) c.total += model->copies[i].object->bytes;
    for (size_t i = 0; i < model->n_copies; i++) {
        const nf_weight_copy *w = &model->copies[i];
        const int64_t pieces = (int64_t)((w->object->bytes + PIECE - 1) / PIECE);
        if (pieces == 1) {
            copy_piece(&c, w, 0);
            continue;
        }
#pragma omp parallel for schedule(dynamic) num_threads(model->team.n_threads)
        for (int64_t k = 0; k < pieces; k++) copy_piece(&c, w, (uint64_t)k * PIECE);
    }
    if (c.status && err) *err = c.err;
    return c.status;
}

static nf_status allocate(nf_model *model, const nf_topology *t, size_t bytes, nf_error *err) {
    const uint64_t available = nf_memory_available(t->memory_limit);
    if (bytes > available)
        return nf_fail(
            err, NF_ERR_MEMORY,
            "%s: a copy of the weights takes %zu bytes of memory, %llu are free; use --weights map",
            model->path, bytes, (unsigned long long)available);
    int *nodes = nf_calloc((size_t)t->n_numa_nodes, sizeof *nodes, "NUMA nodes", err);
    if (!nodes) return NF_ERR_MEMORY;
    for (int i = 0; i < t->n_numa_nodes; i++) nodes[i] = t->nodes[i].os_node;
    const nf_memory_options options = {.nodes = nodes,
                                       .n_nodes = t->n_numa_nodes > 1 ? (size_t)t->n_numa_nodes : 0};
    nf_status status = nf_memory_new(bytes, &options, &model->memory, err);
    free(nodes);
    return status ? nf_context(err, "%s: weights", model->path) : NF_OK;
}

/* What was got, for people. */
static nf_status describe(nf_model *model, const nf_topology *t, nf_error *err) {
    nf_memory_report got;
    nf_status status = nf_memory_inspect(&model->memory, &got, err);
    if (status) return status;
    const double share = got.resident_bytes ? (double)got.huge_bytes / (double)got.resident_bytes : 0;
    char nodes[64] = "";
    if (t->n_numa_nodes > 1)
        snprintf(nodes, sizeof nodes,
                 model->memory.placed ? ", interleaved over %d nodes" : ", on any of %d nodes",
                 t->n_numa_nodes);
    snprintf(model->weights_text, sizeof model->weights_text,
             "%.1f MB copied to memory, %.0f%% on huge pages%s%s", (double)model->memory.n / 1e6, 100 * share,
             model->memory.pool ? " of the pool" : "", nodes);
    return NF_OK;
}

nf_status nf_weights_load(nf_model *model, const nf_model_options *options, const nf_topology *topology,
                          nf_error *err) {
    const char *mode = options->weights ? options->weights : "map", *against = NULL;
    const bool choose = !strcmp(mode, "auto");
    if (!choose && strcmp(mode, "map") != 0 && strcmp(mode, "ram") != 0)
        return nf_fail(err, NF_ERR_ARGUMENT, "weights can be 'map', 'ram' or 'auto', not '%s'", mode);
    size_t bytes = 0;
    nf_status status = NF_OK;
    if (strcmp(mode, "map") != 0) status = list_objects(model, &bytes, err);
    if (status) return status;
    if (choose) against = against_memory(topology, bytes);
    if (!strcmp(mode, "map") || against) {
        snprintf(model->weights_text, sizeof model->weights_text, "mapped from the file%s%s",
                 against ? ": " : "", against ? against : "");
        return NF_OK;
    }
    if (!bytes) return nf_fail(err, NF_ERR_FORMAT, "%s: holds no weights", model->path);
    status = allocate(model, topology, bytes, err);
    if (!status) status = copy_all(model, options, err);
    return status ? status : describe(model, topology, err);
}

void nf_weights_free(nf_model *model) {
    nf_memory_free(&model->memory);
    free(model->copies);
    model->copies = NULL;
    model->n_copies = 0;
}

nf_status nf_weights_bytes(const nf_model *model, const nf_object *object, const uint8_t **out,
                           nf_error *err) {
    if (!model->memory.bytes) return nf_container_map(model->container, object, out, err);
    *out = NULL;
    for (size_t i = 0; i < model->n_copies; i++)
        if (model->copies[i].object == object) *out = model->memory.bytes + model->copies[i].at;
    return *out ? NF_OK : nf_fail(err, NF_ERR_INTERNAL, "%s: '%s' was not loaded", model->path, object->name);
}
