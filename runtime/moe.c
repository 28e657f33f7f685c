/*
 * Mixture of experts (docs/models.md, "MoE (Qwen)"): router, softmax, top-k, token-grouped experts, shared
 * expert, combine in rank order (docs/arithmetic.md, contract A step 6).
 */
#include "runtime/session_internal.h"

#include <math.h>
#include <string.h>

typedef struct moe_step {
    nf_session *s;
    uint32_t layer;
} moe_step;

/* The top_k largest of p [n], largest first, the lower index first among equals. Insertion into a sorted
 * list: k is small. */
static void top_k(const float *p, size_t n, size_t k, int32_t *ids) {
    size_t have = 0;
    for (size_t e = 0; e < n; e++) {
        if (have == k && !(p[e] > p[ids[k - 1]])) continue;
        size_t at = have < k ? have++ : k - 1;
        for (; at > 0 && p[e] > p[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

/* Probability of the last expert chosen minus that of the best one not chosen (for the test hook). */
static float route_gap(const float *p, size_t n, const int32_t *ids, size_t k) {
    float best = 0.0f;
    for (size_t e = 0; e < n; e++) {
        bool chosen = false;
        for (size_t r = 0; r < k; r++) chosen |= ids[r] == (int32_t)e;
        if (!chosen && p[e] > best) best = p[e];
    }
    return p[ids[k - 1]] - best;
}

/* Items: tokens. */
static void route_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const moe_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t E = d->n_experts, k = d->top_k;
    for (size_t t = begin; t < end; t++) {
        float *p = s->moe.router + t * E, max, sum = s->model->kernels->softmax_parts(p, p, E, &max);
        if (!isfinite(max) || !isfinite(sum))
            atomic_store_explicit(&s->numeric_error, true, memory_order_relaxed);
        for (size_t e = 0; e < E; e++) p[e] /= sum;
        int32_t *ids = s->moe.ids + t * k;
        float *weights = s->moe.weights + t * k, total = 0.0f;
        top_k(p, E, k, ids);
        for (size_t r = 0; r < k; r++) total += p[ids[r]];
        for (size_t r = 0; r < k; r++) weights[r] = d->norm_topk ? p[ids[r]] / total : p[ids[r]];
        if (s->route) s->route_gaps[t] = route_gap(p, E, ids, k);
    }
}

/* Sorts the pairs (token, rank) by expert: stable counting sort. */
static void group_by_expert(nf_session *s) {
    const nf_model_desc *d = &s->model->desc;
    const size_t E = d->n_experts, k = d->top_k, pairs = s->n * k;
    nf_moe_scratch *m = &s->moe;
    memset(m->begin, 0, (E + 1) * sizeof *m->begin);
    for (size_t i = 0; i < pairs; i++) m->begin[m->ids[i] + 1]++;
    for (size_t e = 0; e < E; e++) m->begin[e + 1] += m->begin[e];
    for (size_t i = 0; i < pairs; i++) {
        /* begin[e] runs ahead while pairs are placed and is set back below. */
        uint32_t at = m->begin[m->ids[i]]++;
        m->token[at] = (uint32_t)(i / k);
        m->pair[i] = at;
    }
    for (size_t e = E; e > 0; e--) m->begin[e] = m->begin[e - 1];
    m->begin[0] = 0;
}

/* Lists the products of the experts in use, and of the shared one. */
static void list_products(nf_session *s, uint32_t layer) {
    const nf_model_desc *d = &s->model->desc;
    const nf_moe_weights *w = &s->model->layers[layer].moe;
    nf_moe_scratch *m = &s->moe;
    nf_moe_lists *lists = &m->lists[layer];
    const bool quantised = nf_type_get(nf_expert_weights(w, 0, 2).format.type)->integer_dot;
    size_t n = 0;
    for (size_t e = 0; e < d->n_experts; e++) {
        size_t first = m->begin[e], count = m->begin[e + 1] - first;
        if (!count) continue;
        lists->in[n] = (nf_product){.w = nf_expert_weights(w, e, 0),
                                    .up = nf_expert_weights(w, e, 1),
                                    .in = &s->h,
                                    .index = m->token + first,
                                    .n = count,
                                    .act = &m->act,
                                    .act_first = first,
                                    .numeric_error = quantised ? &s->numeric_error : NULL};
        lists->down[n++] = (nf_product){.w = nf_expert_weights(w, e, 2),
                                        .in = &m->act,
                                        .first = first,
                                        .n = count,
                                        .out = m->out + first * d->hidden,
                                        .out_stride = d->hidden};
    }
    if (d->shared_hidden) {
        const bool shared_quantised = nf_type_get(w->shared[2].format.type)->integer_dot;
        lists->in[n] = (nf_product){.w = w->shared[0],
                                    .up = w->shared[1],
                                    .in = &s->h,
                                    .n = s->n,
                                    .act = &m->shared_act,
                                    .numeric_error = shared_quantised ? &s->numeric_error : NULL};
        lists->down[n++] = (nf_product){.w = w->shared[2],
                                        .in = &m->shared_act,
                                        .n = s->n,
                                        .out = m->shared_out,
                                        .out_stride = d->hidden};
    }
    lists->n = n;
}

static void report_routes(const nf_session *s, uint32_t layer) {
    const size_t k = s->model->desc.top_k;
    for (uint32_t t = 0; t < s->n; t++)
        s->route(s->route_user, layer, s->first + t, s->moe.ids + t * k, s->moe.weights + t * k,
                 s->route_gaps[t]);
}

/* One item: what the routers decided becomes lists of products. */
static void plan_body(void *user, size_t begin, size_t end, int thread) {
    (void)begin, (void)end, (void)thread;
    const moe_step *step = user;
    if (step->s->route) report_routes(step->s, step->layer);
    group_by_expert(step->s);
    list_products(step->s, step->layer);
}

/* Items: tokens. y = fma(w_r, e_r, y) for r = 0..k-1, then the shared expert, then x += y. */
static void combine_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const moe_step *step = user;
    nf_session *s = step->s;
    const nf_kernels *kernels = s->model->kernels;
    const nf_model_desc *d = &s->model->desc;
    nf_moe_scratch *m = &s->moe;
    for (size_t t = begin; t < end; t++) {
        float *y = m->sum + t * d->hidden;
        memset(y, 0, d->hidden * sizeof *y);
        for (size_t r = 0; r < d->top_k; r++)
            kernels->axpy(m->weights[t * d->top_k + r],
                          m->out + (size_t)m->pair[t * d->top_k + r] * d->hidden, y, d->hidden);
        if (d->shared_hidden)
            kernels->axpy(1.0f / (1.0f + kernels->exp(-m->gate_logit[t])), m->shared_out + t * d->hidden, y,
                          d->hidden);
        kernels->add(y, s->x + t * d->hidden, d->hidden);
    }
}

void nf_moe_layer(nf_worker *worker, nf_session *s, uint32_t layer) {
    const nf_model_desc *d = &s->model->desc;
    const nf_moe_weights *w = &s->model->layers[layer].moe;
    moe_step step = {s, layer};
    nf_product gates[2] = {
        {.w = w->router, .in = &s->h, .n = s->n, .out = s->moe.router, .out_stride = d->n_experts},
        {.w = w->shared_gate, .in = &s->h, .n = s->n, .out = s->moe.gate_logit, .out_stride = 1},
    };
    nf_run_products(worker, gates, d->shared_hidden ? 2 : 1);
    nf_team_loop(worker, s->n, nf_team_grain(worker, s->n, 128 * (size_t)d->n_experts), route_body, &step);
    nf_team_loop(worker, 1, 1, plan_body, &step);
    const nf_moe_lists *lists = &s->moe.lists[layer];
    nf_run_products(worker, lists->in, lists->n);
    nf_run_products(worker, lists->down, lists->n);
    const size_t work = 8 * (size_t)(d->top_k + 1) * d->hidden;
    nf_team_loop(worker, s->n, nf_team_grain(worker, s->n, work), combine_body, &step);
}
