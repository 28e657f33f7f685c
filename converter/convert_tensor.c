/*
 * The recipe, and the work: a tensor or expert bank is read, quantised and written with memory that does not
 * depend on its size. Banks are converted expert by expert in parallel; large matrices in slabs of tiles.
 */
#include "converter/convert_internal.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define RESIDENT_BYTES                                                                                       \
    (256u                                                                                                    \
     << 20) /* of the checkpoint's mapped pages, about; giving them back costs every thread an interrupt */
#define SLAB_TILES 256 /* tiles of a dense matrix that are converted before they are written */

/* ---- recipe ---- */

nf_format nf_recipe_format(nf_format type, nf_role role) {
    switch (role) {
    case NF_ROLE_BANK:
        return type;
    case NF_ROLE_MATRIX:
        return nf_type_get(type.type)->bits < 8 ? (nf_format){.type = NF_TYPE_I8} : type;
    default:
        return (nf_format){.type = NF_TYPE_F32};
    }
}

nf_status nf_recipe_object(const nf_convert_options *options, const nf_tensor_spec *spec, nf_object *out,
                           nf_error *err) {
    *out = (nf_object){.name = spec->name,
                       .component = spec->component,
                       .format = nf_recipe_format(options->type, spec->role)};
    if (spec->role == NF_ROLE_BANK) {
        const uint64_t I = spec->shape[1], d = spec->shape[2];
        out->kind = NF_OBJECT_BANK;
        out->n_experts = spec->shape[0];
        for (int m = 0; m < 3; m++) {
            out->matrix[m].format = out->format;
            out->matrix[m].rows = m == 2 ? d : I;
            out->matrix[m].cols = m == 2 ? I : d;
        }
        return nf_bank_layout(out, err);
    }
    out->kind = NF_OBJECT_TENSOR;
    /* A convolution's middle dimension of 1 is dropped. */
    for (uint32_t i = 0; i < spec->n_dims; i++)
        if (!(spec->n_dims == 3 && i == 1 && spec->shape[1] == 1)) out->shape[out->n_dims++] = spec->shape[i];
    out->tiled = spec->role != NF_ROLE_VECTOR;
    if (out->tiled) {
        out->bytes = nf_matrix_bytes(out->format, out->shape[0], out->shape[1]);
    } else {
        out->bytes = sizeof(float);
        for (uint32_t i = 0; i < out->n_dims; i++)
            if (__builtin_mul_overflow(out->bytes, out->shape[i], &out->bytes)) out->bytes = 0;
    }
    out->raw_bytes = out->bytes;
    return out->bytes ? NF_OK : nf_fail(err, NF_ERR_LIMIT, "tensor '%s' is too large", spec->name);
}

/* ---- progress ---- */

void nf_conversion_note(const nf_conversion *c, const char *line) {
    if (c->options->note) c->options->note(c->options->note_user, line);
}

nf_status nf_conversion_advance(nf_conversion *c, uint64_t bytes, nf_error *err) {
    pthread_mutex_lock(&c->lock);
    c->done += bytes;
    c->resident += bytes;
    if (c->resident >= RESIDENT_BYTES) {
        nf_safetensors_release(c->st);
        c->resident = 0;
    }
    /* The last byte is reported when the container is published. */
    uint64_t shown = c->done < c->total ? c->done : c->total - 1;
    if (!c->cancelled && c->options->progress && c->total &&
        !c->options->progress(c->options->progress_user, "convert", shown, c->total))
        c->cancelled = true;
    bool stop = c->cancelled;
    pthread_mutex_unlock(&c->lock);
    return stop ? nf_fail(err, NF_ERR_CANCELLED, "the conversion was cancelled") : NF_OK;
}

/* ---- parallel loops that stop at the first error ---- */

typedef struct first_error {
    nf_conversion *c;
    nf_error *err;
    nf_status status;
} first_error;

static void keep_error(first_error *f, nf_status status, const nf_error *what) {
    pthread_mutex_lock(&f->c->lock);
    if (!f->status) {
        f->status = status;
        if (f->err) *f->err = *what;
    }
    pthread_mutex_unlock(&f->c->lock);
}

static bool stopped(first_error *f) {
    pthread_mutex_lock(&f->c->lock);
    bool stop = f->status != NF_OK;
    pthread_mutex_unlock(&f->c->lock);
    return stop;
}

/* ---- one matrix ---- */

/* Converts tile t of a source matrix to `out`; rows: scratch [8, cols]. */
static nf_status convert_tile(const nf_source *s, nf_format format, uint64_t t, const float *table,
                              const float *importance, float *rows, uint8_t *out, nf_error *err) {
    uint64_t first = t * NF_TILE_ROWS, n = s->rows - first < NF_TILE_ROWS ? s->rows - first : NF_TILE_ROWS;
    nf_status status = nf_source_rows(s, first, n, rows, err);
    if (status) return status;
    status = nf_quantise_tile(format, rows, (size_t)s->cols, (size_t)n, (size_t)s->cols,
                              nf_tile_table(format, table, (size_t)s->cols, (size_t)t), importance, out, err);
    return status ? nf_context(err, "%s: tensor '%s', rows from %llu", s->weight->file, s->weight->name,
                               (unsigned long long)first)
                  : NF_OK;
}

/* The table of a matrix: a first reading of its rows, for formats that need one. *table is NULL for the
 * others. */
static nf_status build_table(const nf_source *s, nf_format format, float **table, nf_error *err) {
    *table = NULL;
    if (!nf_format_has_table(format)) return NF_OK;
    const size_t cols = (size_t)s->cols, across = (cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK;
    float *rows = nf_alloc(NF_F8_BLOCK, cols * sizeof *rows, "conversion rows", err), absmax = 0.0f;
    *table = nf_calloc((size_t)nf_matrix_table_bytes(format, s->rows, s->cols), 1, "a table of scales", err);
    nf_status status = rows && *table ? NF_OK : NF_ERR_MEMORY;
    for (uint64_t first = 0; first < s->rows && !status; first += NF_F8_BLOCK) {
        const uint64_t n = s->rows - first < NF_F8_BLOCK ? s->rows - first : NF_F8_BLOCK;
        status = nf_source_rows(s, first, n, rows, err);
        if (status) break;
        if (format.type == NF_TYPE_F8)
            nf_f8_block_scales(rows, cols, (size_t)n, cols, *table + first / NF_F8_BLOCK * across);
        for (size_t i = 0; i < (size_t)n * cols; i++)
            absmax = fabsf(rows[i]) > absmax ? fabsf(rows[i]) : absmax;
    }
    if (!status && format.type == NF_TYPE_C4) (*table)[0] = nf_c4_factor(format.codebook, absmax);
    free(rows);
    return status;
}

/* ---- banks ---- */

static nf_status convert_expert(nf_conversion *c, const nf_tensor_spec *spec, const nf_object *bank,
                                uint64_t e, float *rows, uint8_t *blob, uint64_t *bytes, nf_error *err) {
    nf_source source[3];
    pthread_mutex_lock(&c->lock); /* `used` marks are shared */
    nf_status status = nf_source_expert(c, spec, e, source, err);
    pthread_mutex_unlock(&c->lock);
    if (status) return status;
    memset(blob, 0, bank->expert_stride);
    *bytes = 0;
    for (int m = 0; m < 3 && !status; m++) {
        const nf_bank_matrix *b = &bank->matrix[m];
        float *table, *importance = NULL;
        status = build_table(&source[m], b->format, &table, err);
        if (!status) status = nf_conversion_weights(c, spec, (size_t)e, m, &importance, err);
        for (uint64_t t = 0; t * NF_TILE_ROWS < b->rows && !status; t++)
            status = convert_tile(&source[m], b->format, t, table, importance, rows,
                                  blob + b->offset + t * b->tile_stride, err);
        if (!status && table)
            memcpy(blob + b->scale_offset, table, (size_t)nf_matrix_table_bytes(b->format, b->rows, b->cols));
        free(importance);
        free(table);
        *bytes += nf_source_bytes(&source[m]);
    }
    return status;
}

static nf_status convert_bank(nf_conversion *c, const nf_tensor_spec *spec, size_t handle, nf_error *err) {
    nf_object bank;
    nf_status status = nf_recipe_object(c->options, spec, &bank, err);
    if (status) return status;
    first_error first = {.c = c, .err = err};
    const size_t widest = (size_t)(spec->shape[1] > spec->shape[2] ? spec->shape[1] : spec->shape[2]);
#pragma omp parallel num_threads(c->n_threads)
    {
        nf_error what = {0};
        float *rows = nf_alloc(NF_TILE_ROWS * widest, sizeof *rows, "conversion rows", &what);
        uint8_t *blob = nf_alloc(bank.expert_stride, 1, "an expert", &what);
        if (!rows || !blob) keep_error(&first, NF_ERR_MEMORY, &what);
#pragma omp for schedule(dynamic)
        for (uint64_t e = 0; e < bank.n_experts; e++) {
            if (stopped(&first)) continue;
            uint64_t bytes;
            nf_status s = convert_expert(c, spec, &bank, e, rows, blob, &bytes, &what);
            if (!s) s = nf_writer_write_expert(c->writer, handle, e, blob, &what);
            if (!s) s = nf_conversion_advance(c, bytes, &what);
            if (s) keep_error(&first, s, &what);
        }
        free(rows);
        free(blob);
    }
    return first.status;
}

/* ---- dense matrices and vectors ---- */

static nf_status convert_slab(nf_conversion *c, const nf_source *s, nf_format format, const float *table,
                              const float *importance, uint64_t first, uint64_t n, uint8_t *out,
                              nf_error *err) {
    first_error fail = {.c = c, .err = err};
    const uint64_t tile_bytes = nf_matrix_tile_bytes(format, NF_TILE_ROWS, s->cols);
#pragma omp parallel num_threads(c->n_threads)
    {
        nf_error what = {0};
        float *rows = nf_alloc(NF_TILE_ROWS * (size_t)s->cols, sizeof *rows, "conversion rows", &what);
        if (!rows) keep_error(&fail, NF_ERR_MEMORY, &what);
#pragma omp for schedule(dynamic, 4)
        for (uint64_t t = 0; t < n; t++) {
            if (stopped(&fail)) continue;
            nf_status status =
                convert_tile(s, format, first + t, table, importance, rows, out + t * tile_bytes, &what);
            if (status) keep_error(&fail, status, &what);
        }
        free(rows);
    }
    return fail.status;
}

/* The zeros behind the tiles, and the table. */
static nf_status write_table(nf_conversion *c, const nf_source *s, nf_format format, const float *table,
                             size_t handle, nf_error *err) {
    static const uint8_t zeros[64];
    const uint64_t end = nf_matrix_tile_bytes(format, s->rows, s->cols),
                   at = nf_matrix_table_offset(format, s->rows, s->cols);
    nf_status status = NF_OK;
    if (at > end) status = nf_writer_write(c->writer, handle, end, zeros, at - end, err);
    if (status) return status;
    return nf_writer_write(c->writer, handle, at, table, nf_matrix_table_bytes(format, s->rows, s->cols),
                           err);
}

static nf_status convert_matrix(nf_conversion *c, const nf_tensor_spec *spec, const nf_source *s,
                                size_t handle, nf_error *err) {
    const nf_format format = nf_recipe_format(c->options->type, spec->role);
    const uint64_t tile_bytes = nf_matrix_tile_bytes(format, NF_TILE_ROWS, s->cols),
                   n_tiles = (s->rows + NF_TILE_ROWS - 1) / NF_TILE_ROWS;
    uint8_t *slab =
        nf_alloc((n_tiles < SLAB_TILES ? n_tiles : SLAB_TILES), tile_bytes, "a slab of tiles", err);
    if (!slab) return NF_ERR_MEMORY;
    float *table, *importance = NULL;
    nf_status status = build_table(s, format, &table, err);
    if (!status) status = nf_conversion_weights(c, spec, 0, 0, &importance, err);
    for (uint64_t t = 0; t < n_tiles && !status; t += SLAB_TILES) {
        uint64_t n = n_tiles - t < SLAB_TILES ? n_tiles - t : SLAB_TILES, first = t * NF_TILE_ROWS;
        uint64_t rows = s->rows - first < n * NF_TILE_ROWS ? s->rows - first : n * NF_TILE_ROWS;
        status = convert_slab(c, s, format, table, importance, t, n, slab, err);
        if (!status) status = nf_writer_write(c->writer, handle, t * tile_bytes, slab, n * tile_bytes, err);
        if (!status)
            status = nf_conversion_advance(c, rows * s->cols * nf_st_dtype_size(s->weight->dtype), err);
    }
    if (!status && table) status = write_table(c, s, format, table, handle, err);
    free(importance);
    free(table);
    free(slab);
    return status;
}

static nf_status convert_vector(nf_conversion *c, const nf_source *s, size_t handle, nf_error *err) {
    float *values = nf_alloc(s->rows, (size_t)s->cols * sizeof *values, "a vector", err);
    if (!values) return NF_ERR_MEMORY;
    nf_status status = nf_source_rows(s, 0, s->rows, values, err);
    if (!status)
        status = nf_writer_write(c->writer, handle, 0, values, s->rows * s->cols * sizeof *values, err);
    if (!status) status = nf_conversion_advance(c, nf_source_bytes(s), err);
    free(values);
    return status;
}

nf_status nf_convert_spec(nf_conversion *c, const nf_tensor_spec *spec, size_t handle, nf_error *err) {
    if (spec->role == NF_ROLE_BANK) return convert_bank(c, spec, handle, err);
    char name[200];
    nf_source source;
    nf_source_name(c, spec->source, name, sizeof name);
    nf_status status = nf_source_find(c, name, spec->shape, spec->n_dims, &source, err);
    if (status) return status;
    if (spec->role == NF_ROLE_VECTOR) return convert_vector(c, &source, handle, err);
    return convert_matrix(c, spec, &source, handle, err);
}
