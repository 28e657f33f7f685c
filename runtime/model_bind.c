/*
 * Binding: from the family's tensor list to pointers into the mapped container. Every object is checked
 * against the description before a layer may see it, so that layers need no checks.
 */
#include "runtime/model_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The family's tensors sorted by name, and the container: what binding looks things up in. */
typedef struct binder {
    nf_model *model;
    nf_tensor_spec *specs;
    size_t n_specs;
} binder;

static int compare_specs(const void *a, const void *b) {
    return strcmp(((const nf_tensor_spec *)a)->name, ((const nf_tensor_spec *)b)->name);
}

static nf_status check_shape(const nf_model *model, const nf_object *object, const nf_tensor_spec *spec,
                             nf_error *err) {
    /* conv1d is stored without its middle dimension of 1; everything else keeps the checkpoint's shape. */
    uint64_t want[3];
    uint32_t n = 0;
    for (uint32_t i = 0; i < spec->n_dims; i++)
        if (!(spec->n_dims == 3 && i == 1 && spec->shape[1] == 1 && spec->role == NF_ROLE_VECTOR))
            want[n++] = spec->shape[i];
    bool same = object->n_dims == n;
    for (uint32_t i = 0; same && i < n; i++) same = object->shape[i] == want[i];
    if (same) return NF_OK;
    return nf_fail(err, NF_ERR_FORMAT,
                   "%s: '%s' has a shape that the model's config does not allow; convert it again",
                   model->path, spec->name);
}

/* Finds the object of a spec, checks kind and shape, maps it. */
static nf_status locate(binder *b, const char *name, nf_role role, const nf_object **object,
                        const uint8_t **bytes, nf_error *err) {
    nf_model *model = b->model;
    nf_tensor_spec key = {0};
    snprintf(key.name, sizeof key.name, "%s", name);
    const nf_tensor_spec *spec = bsearch(&key, b->specs, b->n_specs, sizeof *b->specs, compare_specs);
    if (!spec) return nf_fail(err, NF_ERR_INTERNAL, "the family table has no tensor '%s'", name);
    const nf_object *o = nf_container_find(model->container, name);
    if (!o)
        return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' is missing; convert the model again", model->path,
                       name);
    nf_object_kind kind = spec->role == NF_ROLE_BANK ? NF_OBJECT_BANK : NF_OBJECT_TENSOR;
    bool tiled = spec->role == NF_ROLE_MATRIX || spec->role == NF_ROLE_SMALL_MATRIX;
    if (o->kind != kind || (kind == NF_OBJECT_TENSOR && o->tiled != tiled) ||
        (spec->role != role && !(tiled && role == NF_ROLE_MATRIX)))
        return nf_fail(err, NF_ERR_FORMAT,
                       "%s: '%s' is stored as another kind of object than this model needs", model->path,
                       name);
    nf_status status = check_shape(model, o, spec, err);
    if (status) return status;
    *object = o;
    model->weight_bytes += o->bytes;
    return nf_weights_bytes(model, o, bytes, err);
}

__attribute__((format(printf, 3, 4))) static const char *name_of(char *out, size_t n, const char *format,
                                                                 ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out, n, format, args);
    va_end(args);
    return out;
}

static nf_status bind_matrix(binder *b, const char *name, nf_weights *out, nf_error *err) {
    const nf_object *o;
    const uint8_t *bytes;
    nf_status status = locate(b, name, NF_ROLE_MATRIX, &o, &bytes, err);
    if (status) return status;
    *out = (nf_weights){.format = o->format, .rows = o->shape[0], .cols = o->shape[1], .tiles = bytes};
    b->model->integer_dot |= nf_type_get(o->format.type)->integer_dot;
    out->tile_stride = nf_matrix_tile_bytes(o->format, NF_TILE_ROWS, out->cols);
    if (nf_format_has_table(o->format))
        out->table =
            (const float *)(const void *)(bytes + nf_matrix_table_offset(o->format, out->rows, out->cols));
    return NF_OK;
}

static nf_status bind_vector(binder *b, const char *name, const float **out, size_t *n, nf_error *err) {
    const nf_object *o;
    const uint8_t *bytes;
    nf_status status = locate(b, name, NF_ROLE_VECTOR, &o, &bytes, err);
    if (status) return status;
    if (o->format.type != NF_TYPE_F32)
        return nf_fail(err, NF_ERR_FORMAT, "%s: '%s' is not stored as f32", b->model->path, name);
    *out = (const float *)(const void *)bytes;
    *n = (size_t)(o->bytes / sizeof(float));
    return NF_OK;
}

/* The factors of a norm, which some families store as w - 1; owned by the caller. */
static nf_status bind_norm(binder *b, const char *name, float **out, nf_error *err) {
    const float *w = NULL;
    size_t n = 0;
    nf_status status = bind_vector(b, name, &w, &n, err);
    if (status) return status;
    float *copy = nf_alloc(n, sizeof *copy, "a norm", err);
    if (!copy) return NF_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) copy[i] = b->model->desc.norms_add_one ? 1.0f + w[i] : w[i];
    *out = copy;
    return NF_OK;
}

static nf_status bind_attention(binder *b, int i, nf_attention_weights *a, nf_error *err) {
    char name[96];
    nf_status status;
    struct {
        const char *name;
        nf_weights *out;
    } matrices[] = {{"q_proj", &a->q}, {"k_proj", &a->k}, {"v_proj", &a->v}, {"o_proj", &a->o}};
    for (size_t m = 0; m < 4; m++)
        if ((status =
                 bind_matrix(b, name_of(name, sizeof name, "layers.%d.self_attn.%s", i, matrices[m].name),
                             matrices[m].out, err)))
            return status;
    if ((status = bind_norm(b, name_of(name, sizeof name, "layers.%d.self_attn.q_norm", i), &a->q_norm, err)))
        return status;
    return bind_norm(b, name_of(name, sizeof name, "layers.%d.self_attn.k_norm", i), &a->k_norm, err);
}

static nf_status bind_delta(binder *b, int i, nf_delta_weights *d, nf_error *err) {
    char name[96];
    nf_status status;
    struct {
        const char *name;
        nf_weights *out;
    } matrices[] = {{"in_proj_qkv", &d->qkv},
                    {"in_proj_z", &d->z},
                    {"in_proj_b", &d->b},
                    {"in_proj_a", &d->a},
                    {"out_proj", &d->out}};
    for (size_t m = 0; m < 5; m++)
        if ((status =
                 bind_matrix(b, name_of(name, sizeof name, "layers.%d.linear_attn.%s", i, matrices[m].name),
                             matrices[m].out, err)))
            return status;
    const float *conv = NULL, *a_log = NULL;
    size_t n = 0, n_heads = 0;
    if ((status =
             bind_vector(b, name_of(name, sizeof name, "layers.%d.linear_attn.conv1d", i), &conv, &n, err)))
        return status;
    size_t taps = b->model->desc.conv_width, channels = n / taps;
    if (taps > NF_MAX_CONV_TAPS)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: a convolution of %zu taps; at most %d are supported",
                       b->model->path, taps, NF_MAX_CONV_TAPS);
    if (!(d->conv = nf_alloc(n, sizeof *d->conv, "convolution taps", err))) return NF_ERR_MEMORY;
    for (size_t c = 0; c < channels; c++)
        for (size_t t = 0; t < taps; t++) d->conv[t * channels + c] = conv[c * taps + t];
    if ((status = bind_vector(b, name_of(name, sizeof name, "layers.%d.linear_attn.A_log", i), &a_log,
                              &n_heads, err)))
        return status;
    if (!(d->decay_rate = nf_alloc(n_heads, sizeof *d->decay_rate, "decay rates", err))) return NF_ERR_MEMORY;
    for (size_t h = 0; h < n_heads; h++) d->decay_rate[h] = (float)exp((double)a_log[h]);
    if ((status = bind_vector(b, name_of(name, sizeof name, "layers.%d.linear_attn.dt_bias", i), &d->dt_bias,
                              &n, err)))
        return status;
    return bind_vector(b, name_of(name, sizeof name, "layers.%d.linear_attn.norm", i), &d->norm, &n, err);
}

static nf_status bind_moe(binder *b, int i, nf_moe_weights *m, nf_error *err) {
    char name[96];
    nf_status status;
    static const char *const part[3] = {"gate_proj", "up_proj", "down_proj"};
    if ((status = bind_matrix(b, name_of(name, sizeof name, "layers.%d.mlp.gate", i), &m->router, err)))
        return status;
    if (b->model->desc.shared_hidden) {
        if ((status = bind_matrix(b, name_of(name, sizeof name, "layers.%d.mlp.shared_expert_gate", i),
                                  &m->shared_gate, err)))
            return status;
        for (int p = 0; p < 3; p++)
            if ((status =
                     bind_matrix(b, name_of(name, sizeof name, "layers.%d.mlp.shared_expert.%s", i, part[p]),
                                 &m->shared[p], err)))
                return status;
    }
    name_of(name, sizeof name, "layers.%d.mlp.experts", i);
    if ((status = locate(b, name, NF_ROLE_BANK, &m->bank_object, &m->bank, err))) return status;
    const nf_object *o = m->bank_object;
    const nf_model_desc *d = &b->model->desc;
    for (int p = 0; p < 3; p++) {
        uint64_t rows = p == 2 ? d->hidden : d->expert_hidden, cols = p == 2 ? d->expert_hidden : d->hidden;
        if (o->matrix[p].rows != rows || o->matrix[p].cols != cols)
            return nf_fail(err, NF_ERR_FORMAT, "%s: '%s' holds %s of another shape than the config says",
                           b->model->path, name, part[p]);
        b->model->integer_dot |= nf_type_get(o->matrix[p].format.type)->integer_dot;
    }
    b->model->expert_bytes += o->bytes;
    return NF_OK;
}

static nf_status bind_all(binder *b, nf_error *err) {
    nf_model *model = b->model;
    const nf_model_desc *d = &model->desc;
    char name[96];
    nf_status status;
    if ((status = bind_matrix(b, "embed_tokens", &model->embedding, err))) return status;
    model->head = model->embedding;
    if (!d->tied_embedding && (status = bind_matrix(b, "lm_head", &model->head, err))) return status;
    if ((status = bind_norm(b, "norm", &model->final_norm, err))) return status;
    for (int i = 0; i < (int)d->n_layers; i++) {
        nf_layer *l = &model->layers[i];
        l->kind = d->layer_kind[i];
        if ((status = bind_norm(b, name_of(name, sizeof name, "layers.%d.input_layernorm", i), &l->input_norm,
                                err)))
            return status;
        if ((status = bind_norm(b, name_of(name, sizeof name, "layers.%d.post_attention_layernorm", i),
                                &l->post_norm, err)))
            return status;
        status = l->kind == NF_LAYER_FULL_ATTENTION ? bind_attention(b, i, &l->attention, err)
                                                    : bind_delta(b, i, &l->delta, err);
        if (status || (status = bind_moe(b, i, &l->moe, err))) return status;
    }
    return NF_OK;
}

nf_status nf_model_bind(nf_model *model, nf_error *err) {
    binder b = {.model = model};
    nf_status status = nf_model_desc_tensors(&model->desc, &b.specs, &b.n_specs, err);
    if (status) return status;
    qsort(b.specs, b.n_specs, sizeof *b.specs, compare_specs);
    model->layers = nf_calloc(model->desc.n_layers, sizeof *model->layers, "layers", err);
    status = model->layers ? bind_all(&b, err) : NF_ERR_MEMORY;
    free(b.specs);
    return status;
}

void nf_model_unbind(nf_model *model) {
    for (uint32_t i = 0; model->layers && i < model->desc.n_layers; i++) {
        nf_layer *l = &model->layers[i];
        free(l->input_norm);
        free(l->post_norm);
        free(l->attention.q_norm);
        free(l->attention.k_norm);
        free(l->delta.conv);
        free(l->delta.decay_rate);
    }
    free(model->layers);
    free(model->final_norm);
    model->layers = NULL;
    model->final_norm = NULL;
}

nf_weights nf_expert_weights(const nf_moe_weights *moe, size_t expert, int which) {
    const nf_bank_matrix *m = &moe->bank_object->matrix[which];
    const uint8_t *blob = moe->bank + expert * moe->bank_object->expert_stride;
    return (nf_weights){
        .format = m->format,
        .rows = (size_t)m->rows,
        .cols = (size_t)m->cols,
        .tiles = blob + m->offset,
        .tile_stride = (size_t)m->tile_stride,
        .table = m->scale_offset ? (const float *)(const void *)(blob + m->scale_offset) : NULL,
    };
}
