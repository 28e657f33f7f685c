/*
 * Gated full attention (docs/models.md, "Attention, gated"): per head q and gate, norms and rotary on q and
 * k, blocks of keys at absolute multiples of NF_ATTENTION_BLOCK combined in order, times sigmoid(gate),
 * o_proj.
 */
#include "runtime/session_internal.h"

#include <math.h>
#include <string.h>

typedef struct attention_step {
    nf_session *s;
    uint32_t layer;
} attention_step;

static float *kv_row(nf_session *s, uint32_t layer, int which, size_t head, size_t position) {
    const nf_model_desc *d = &s->model->desc;
    float *page = s->kv[layer].pages[position / NF_ATTENTION_BLOCK];
    return page +
           (((size_t)which * d->n_kv_heads + head) * NF_ATTENTION_BLOCK + position % NF_ATTENTION_BLOCK) *
               d->head_dim;
}

/* Halves convention: element i turns with element i + R/2; elements from R on stay. */
static void rotate(float *x, const float *cosine, const float *sine, size_t half) {
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[i + half] = fmaf(b, cosine[i], a * sine[i]);
    }
}

/* Items: (token, head) for H query heads, then G key heads (which also store k and v). */
static void prepare_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const nf_attention_weights *w = &s->model->layers[step->layer].attention;
    const size_t heads = d->n_heads + d->n_kv_heads, dim = d->head_dim, half = d->rope_dim / 2;
    for (size_t i = begin; i < end; i++) {
        size_t t = i / heads, head = i % heads;
        const float *cosine = s->rope + t * d->rope_dim, *sine = cosine + half;
        if (head < d->n_heads) {
            float *q = s->q + (t * d->n_heads + head) * nf_query_stride(d);
            nf_norm_row(s, q, w->q_norm, dim, q);
            rotate(q, cosine, sine, half);
            continue;
        }
        head -= d->n_heads;
        float *k = kv_row(s, step->layer, 0, head, s->first + t);
        nf_norm_row(s, s->k + (t * d->n_kv_heads + head) * dim, w->k_norm, dim, k);
        rotate(k, cosine, sine, half);
        memcpy(kv_row(s, step->layer, 1, head, s->first + t), s->v + (t * d->n_kv_heads + head) * dim,
               dim * sizeof(float));
    }
}

/* softmax(q K^T / sqrt(dim)) V of one head over positions 0..position, into out [dim]. */
static void attend(nf_session *s, uint32_t layer, const float *q, size_t kv_head, size_t position, float *out,
                   float *scratch) {
    const nf_kernels *kernels = s->model->kernels;
    const size_t dim = s->model->desc.head_dim;
    const float scale = 1.0f / sqrtf((float)dim);
    float *scores = scratch, *block = scratch + NF_ATTENTION_BLOCK;
    nf_attention_part total = {0};
    for (size_t first = 0; first <= position; first += NF_ATTENTION_BLOCK) {
        size_t n = position + 1 - first < NF_ATTENTION_BLOCK ? position + 1 - first : NF_ATTENTION_BLOCK;
        nf_attention_part part = kernels->attention_block(q, kv_row(s, layer, 0, kv_head, first),
                                                          kv_row(s, layer, 1, kv_head, first), dim, n, dim,
                                                          scale, first ? block : out, scores);
        if (!first) {
            total = part;
            continue;
        }
        float max = part.max > total.max ? part.max : total.max;
        float old = kernels->exp(total.max - max), fresh = kernels->exp(part.max - max);
        total.sum = fmaf(total.sum, old, part.sum * fresh);
        total.max = max;
        kernels->scale_rows(out, old, NULL, out, dim);
        kernels->axpy(fresh, block, out, dim);
    }
    kernels->scale_rows(out, 1.0f / total.sum, NULL, out, dim);
}

/* Items: (token, query head). */
static void attend_body(void *user, size_t begin, size_t end, int thread) {
    const attention_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t dim = d->head_dim, group = d->n_heads / d->n_kv_heads;
    float *scratch = s->thread_scratch + (size_t)thread * s->thread_stride;
    for (size_t i = begin; i < end; i++) {
        size_t t = i / d->n_heads, head = i % d->n_heads;
        const float *q = s->q + (t * d->n_heads + head) * nf_query_stride(d);
        float *out = s->attended.x + t * s->attended.kp + head * dim;
        attend(s, step->layer, q, head / group, s->first + t, out, scratch);
        if (d->attention_gate) s->model->kernels->sigmoid_mul(q + dim, out, dim);
    }
}

static void quantise_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const attention_step *step = user;
    for (size_t i = begin; i < end; i++)
        nf_prepare_row(step->s, &step->s->model->layers[step->layer].attention.o, &step->s->attended, i);
}

void nf_attention_layer(nf_worker *worker, nf_session *s, uint32_t layer) {
    const nf_model_desc *d = &s->model->desc;
    const nf_attention_weights *w = &s->model->layers[layer].attention;
    attention_step step = {s, layer};
    const size_t kv = (size_t)d->n_kv_heads * d->head_dim;
    nf_product inputs[3] = {
        {.w = w->q, .in = &s->h, .n = s->n, .out = s->q, .out_stride = d->n_heads * nf_query_stride(d)},
        {.w = w->k, .in = &s->h, .n = s->n, .out = s->k, .out_stride = kv},
        {.w = w->v, .in = &s->h, .n = s->n, .out = s->v, .out_stride = kv},
    };
    nf_run_products(worker, inputs, 3);
    nf_team_loop(worker, (size_t)s->n * (d->n_heads + d->n_kv_heads), 4, prepare_body, &step);
    nf_team_loop(worker, (size_t)s->n * d->n_heads, 1, attend_body, &step);
    nf_team_loop(worker, s->n, 1, quantise_body, &step);
    nf_product output = {
        .w = w->o, .in = &s->attended, .n = s->n, .out = s->x, .out_stride = d->hidden, .add = true};
    nf_run_products(worker, &output, 1);
}
