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

/* K and V of one KV head over the block of `position`. */
static void *kv_block(nf_session *s, uint32_t layer, size_t head, size_t position) {
    return s->kv[layer].pages[position / NF_ATTENTION_BLOCK] + head * s->kv_layout.bytes;
}

static void note_numeric(nf_session *s, bool finite) {
    if (!finite) atomic_store_explicit(&s->numeric_error, true, memory_order_relaxed);
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
        float *k = s->k + (t * d->n_kv_heads + head) * dim;
        const size_t position = s->first + t;
        nf_norm_row(s, k, w->k_norm, dim, k);
        rotate(k, cosine, sine, half);
        note_numeric(s,
                     nf_kv_store(&s->kv_layout, kv_block(s, step->layer, head, position),
                                 position % NF_ATTENTION_BLOCK, k, s->v + (t * d->n_kv_heads + head) * dim));
    }
}

/* ---- rows of a KV head: (token, head of the group) ---- */

/* Tokens whose rows are computed together: aligned to absolute positions, so that none of their blocks of
 * keys begins between them. */
static size_t tokens_together(size_t group) {
    size_t n = 1;
    while (2 * n * group <= NF_ATTENTION_ROWS) n *= 2;
    return n;
}

/* Part of the rows of one KV head: tokens t .. t + n - 1, heads h .. h + heads - 1 of its group. */
typedef struct row_set {
    size_t kv_head, t, n_tokens, h, n_heads;
} row_set;

/* The rows against the keys of the block that begins at position `block`. Results go to row r's output, or
 * to parts + r and accs + r * dim when these are set (then the block stands alone). */
static void attend_rows(nf_session *s, uint32_t layer, const row_set *set, size_t block, float *scratch,
                        nf_attention_part *parts, float *accs) {
    const nf_model_desc *d = &s->model->desc;
    const size_t dim = d->head_dim, group = d->n_heads / d->n_kv_heads;
    nf_attention_rows rows = {.n = set->n_tokens * set->n_heads,
                              .layout = &s->kv_layout,
                              .first = accs || !block,
                              .scale = 1.0f / sqrtf((float)dim),
                              .scratch = scratch};
    for (size_t r = 0; r < rows.n; r++) {
        const size_t t = set->t + r / set->n_heads, head = set->kv_head * group + set->h + r % set->n_heads,
                     left = s->first + t + 1 - block;
        rows.q[r] = s->q + (t * d->n_heads + head) * nf_query_stride(d);
        rows.acc[r] = accs ? accs + head * dim : s->attended.x + t * s->attended.kp + head * dim;
        rows.part[r] = accs ? parts + head : s->attention_parts + t * d->n_heads + head;
        rows.keys[r] = left < NF_ATTENTION_BLOCK ? left : NF_ATTENTION_BLOCK;
    }
    note_numeric(s, s->model->kernels->attention_block(&rows, kv_block(s, layer, set->kv_head, block)));
}

/* acc / sum, times the gate. */
static void finish_row(nf_session *s, size_t t, size_t head) {
    const nf_model_desc *d = &s->model->desc;
    const size_t dim = d->head_dim;
    float *out = s->attended.x + t * s->attended.kp + head * dim;
    const float sum = s->attention_parts[t * d->n_heads + head].sum;
    s->model->kernels->scale_rows(out, 1.0f / sum, NULL, out, dim);
    if (d->attention_gate)
        s->model->kernels->sigmoid_mul(s->q + (t * d->n_heads + head) * nf_query_stride(d) + dim, out, dim);
}

/* ---- a prompt: a piece is a run of tokens and a KV head, which stays in the caches ---- */

/* Pieces are cut at absolute multiples of this many tokens. */
#define TOKEN_RUN 32

static size_t token_runs(const nf_session *s) {
    return (s->first + s->n - 1) / TOKEN_RUN - s->first / TOKEN_RUN + 1;
}

/* Items: (run of tokens, KV head), the last and longest run first. */
static void run_body(void *user, size_t begin, size_t end, int thread) {
    const attention_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t group = d->n_heads / d->n_kv_heads, together = tokens_together(group),
                 last = s->first + s->n;
    float *scratch = s->thread_scratch + (size_t)thread * s->thread_stride;
    for (size_t i = begin; i < end; i++) {
        const size_t kv_head = i % d->n_kv_heads, run = (last - 1) / TOKEN_RUN - i / d->n_kv_heads,
                     from = run * TOKEN_RUN < s->first ? s->first : run * TOKEN_RUN,
                     to = (run + 1) * TOKEN_RUN > last ? last : (run + 1) * TOKEN_RUN;
        for (size_t block = 0; block < to; block += NF_ATTENTION_BLOCK)
            for (size_t p = from, next; p < to; p = next) {
                next = p / together * together + together;
                if (next > to) next = to;
                for (size_t h = 0; h < group; h += NF_ATTENTION_ROWS) {
                    const row_set set = {kv_head, p - s->first, next - p, h,
                                         group - h < NF_ATTENTION_ROWS ? group - h : NF_ATTENTION_ROWS};
                    attend_rows(s, step->layer, &set, block, scratch, NULL, NULL);
                }
            }
        for (size_t t = from - s->first; t < to - s->first; t++)
            for (size_t h = 0; h < group; h++) finish_row(s, t, kv_head * group + h);
    }
}

/* ---- one token: a piece is a block of keys and a KV head; blocks join in order afterwards ---- */

typedef struct split_step {
    nf_session *s;
    uint32_t layer;
    size_t first_block, n_blocks; /* of this wave, at most NF_SPLIT_BLOCKS */
} split_step;

static void split_body(void *user, size_t begin, size_t end, int thread) {
    const split_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t group = d->n_heads / d->n_kv_heads;
    float *scratch = s->thread_scratch + (size_t)thread * s->thread_stride;
    for (size_t i = begin; i < end; i++) {
        const size_t at = i / d->n_kv_heads;
        for (size_t h = 0; h < group; h += NF_ATTENTION_ROWS) {
            const row_set set = {i % d->n_kv_heads, 0, 1, h,
                                 group - h < NF_ATTENTION_ROWS ? group - h : NF_ATTENTION_ROWS};
            attend_rows(s, step->layer, &set, (step->first_block + at) * NF_ATTENTION_BLOCK, scratch,
                        s->split_parts + at * d->n_heads, s->split_accs + at * d->n_heads * d->head_dim);
        }
    }
}

/* Items: query heads. */
static void join_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const split_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t dim = d->head_dim, heads = d->n_heads;
    for (size_t head = begin; head < end; head++) {
        for (size_t at = 0; at < step->n_blocks; at++)
            s->model->kernels->attention_join(step->first_block + at == 0, &s->split_parts[at * heads + head],
                                              s->split_accs + (at * heads + head) * dim, dim,
                                              s->attention_parts + head, s->attended.x + head * dim);
        if ((step->first_block + step->n_blocks) * NF_ATTENTION_BLOCK > s->first) finish_row(s, 0, head);
    }
}

static void attend_split(nf_worker *worker, nf_session *s, uint32_t layer) {
    const nf_model_desc *d = &s->model->desc;
    const size_t blocks = s->first / NF_ATTENTION_BLOCK + 1;
    for (size_t b = 0; b < blocks; b += NF_SPLIT_BLOCKS) {
        split_step step = {s, layer, b, blocks - b < NF_SPLIT_BLOCKS ? blocks - b : NF_SPLIT_BLOCKS};
        const size_t blocks_here = step.n_blocks * d->n_kv_heads, dim = d->head_dim,
                     keys = s->first < NF_ATTENTION_BLOCK ? s->first + 1 : NF_ATTENTION_BLOCK,
                     work = 2 * keys * dim * (d->n_heads / d->n_kv_heads);
        nf_team_loop(worker, blocks_here, nf_team_grain(worker, blocks_here, work), split_body, &step);
        nf_team_loop(worker, d->n_heads, nf_team_grain(worker, d->n_heads, (8 * step.n_blocks + 64) * dim),
                     join_body, &step);
    }
}

void nf_attend(nf_worker *worker, nf_session *s, uint32_t layer) {
    attention_step step = {s, layer};
    if (s->n == 1)
        attend_split(worker, s, layer);
    else
        nf_team_loop(worker, token_runs(s) * s->model->desc.n_kv_heads, 1, run_body, &step);
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
    const size_t heads = (size_t)s->n * (d->n_heads + d->n_kv_heads);
    nf_team_loop(worker, heads, nf_team_grain(worker, heads, 64 * (size_t)d->head_dim), prepare_body, &step);
    nf_attend(worker, s, layer);
    nf_team_loop(worker, s->n, nf_team_grain(worker, s->n, 16 * s->attended.kp), quantise_body, &step);
    nf_product output = {
        .w = w->o, .in = &s->attended, .n = s->n, .out = s->x, .out_stride = d->hidden, .add = true};
    nf_run_products(worker, &output, 1);
}
