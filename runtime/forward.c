/*
 * The walk of a token: embedding, layers (attention or linear attention, then mixture of experts), final
 * norm, head. One thread runs these functions and the team helps it (cpu/team.h); each step is a loop over
 * whole rows, heads or tiles. No value depends on how many tokens are computed together or on who
 * computes them (docs/arithmetic.md).
 */
#include "runtime/session_internal.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

static void quantise(nf_session *s, nf_rows *rows, size_t i) {
    size_t groups = rows->kp / NF_GROUP;
    if (!s->model->kernels->quantise_row(rows->x + i * rows->kp, rows->kp, rows->q + i * rows->kp,
                                         rows->scale + i * groups, rows->sum + i * groups))
        atomic_store_explicit(&s->numeric_error, true, memory_order_relaxed);
}

void nf_prepare_row(nf_session *s, const nf_weights *w, nf_rows *rows, size_t i) {
    if (nf_type_get(w->format.type)->integer_dot) quantise(s, rows, i);
}

void nf_norm_row(nf_session *s, const float *x, const float *w, size_t n, float *out) {
    const nf_kernels *kernels = s->model->kernels;
    float mean = kernels->sum_squares(x, n) / (float)n;
    if (!isfinite(mean)) atomic_store_explicit(&s->numeric_error, true, memory_order_relaxed);
    kernels->scale_rows(x, 1.0f / sqrtf(mean + s->model->desc.rms_eps), w, out, n);
}

typedef struct norm_loop {
    nf_session *s;
    const float *norm;
    size_t first;
    nf_rows *out;
} norm_loop;

static void norm_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const norm_loop *loop = user;
    nf_session *s = loop->s;
    const size_t d = s->model->desc.hidden;
    for (size_t i = begin; i < end; i++) {
        nf_norm_row(s, s->x + (loop->first + i) * d, loop->norm, d, loop->out->x + i * loop->out->kp);
        if (s->model->integer_dot) quantise(s, loop->out, i);
    }
}

void nf_norm_rows(nf_worker *worker, nf_session *s, const float *norm, size_t first, size_t n, nf_rows *out) {
    norm_loop loop = {s, norm, first, out};
    nf_team_loop(worker, n, nf_team_grain(worker, n, 16 * out->kp), norm_body, &loop);
}

/* ---- embedding and rotary angles ---- */

static void embed_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    nf_session *s = user;
    const nf_model_desc *d = &s->model->desc;
    const nf_weights *e = &s->model->embedding;
    const size_t half = d->rope_dim / 2;
    for (size_t i = begin; i < end; i++) {
        size_t id = (size_t)s->step_ids[i], tile = id / NF_TILE_ROWS;
        nf_dequantise_row(e->format, e->tiles + tile * e->tile_stride, id % NF_TILE_ROWS, e->cols,
                          nf_tile_table(e->format, e->table, e->cols, tile), s->x + i * d->hidden);
        float *cosine = s->rope + i * d->rope_dim, *sine = cosine + half;
        for (size_t p = 0; p < half; p++) {
            double angle =
                (double)(s->first + i) * pow(d->rope_theta, -2.0 * (double)p / (double)d->rope_dim);
            cosine[p] = (float)cos(angle);
            sine[p] = (float)sin(angle);
        }
    }
}

/* ---- the walk ---- */

void nf_forward(nf_worker *worker, void *session) {
    nf_session *s = session;
    const nf_model *model = s->model;
    /* Sines and powers in double count as a thousand. */
    const size_t work = 16 * (size_t)model->desc.hidden + 1024 * (size_t)model->desc.rope_dim;
    nf_team_loop(worker, s->n, nf_team_grain(worker, s->n, work), embed_body, s);
    for (uint32_t l = 0; l < model->desc.n_layers; l++) {
        const nf_layer *layer = &model->layers[l];
        nf_norm_rows(worker, s, layer->input_norm, 0, s->n, &s->h);
        if (layer->kind == NF_LAYER_FULL_ATTENTION)
            nf_attention_layer(worker, s, l);
        else
            nf_delta_layer(worker, s, l);
        nf_norm_rows(worker, s, layer->post_norm, 0, s->n, &s->h);
        nf_moe_layer(worker, s, l);
    }
    if (s->head_n) nf_forward_head(worker, s);
}

void nf_forward_head(nf_worker *worker, void *session) {
    nf_session *s = session;
    const nf_model *model = s->model;
    nf_norm_rows(worker, s, model->final_norm, s->head_first, s->head_n, &s->head_rows);
    nf_product head = {.w = model->head,
                       .in = &s->head_rows,
                       .n = s->head_n,
                       .out = s->logits,
                       .out_stride = model->desc.vocab_size};
    nf_run_products(worker, &head, 1);
}
