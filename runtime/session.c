/*
 * Sessions: the state of one sequence (tokens, KV pages, recurrent state, checkpoints) and its scratch
 * memory; evaluation in chunks. Layers are in forward.c and its neighbours, generation in generate.c.
 */
#include "runtime/session_internal.h"

#include "runtime/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- sizes and memory ---- */

/* Where scratch arrays are carved from. First pass: base NULL, only counts; second pass: hands out zeroed
 * memory. */
typedef struct carver {
    char *base;
    uint64_t used;
} carver;

static void *carve(carver *c, uint64_t count, size_t size) {
    uint64_t at = c->used;
    c->used += (count * size + 63) / 64 * 64;
    return c->base ? c->base + at : NULL;
}

static nf_rows carve_rows(carver *c, uint64_t n, size_t k) {
    nf_rows rows = {.k = k, .kp = nf_padded(k)};
    rows.x = carve(c, n * rows.kp, sizeof(float));
    rows.q = carve(c, n * rows.kp, 1);
    rows.scale = carve(c, n * rows.kp / NF_GROUP, sizeof(float));
    rows.sum = carve(c, n * rows.kp / NF_GROUP, sizeof(int32_t));
    return rows;
}

static void carve_moe(carver *c, const nf_model_desc *d, uint64_t T, nf_moe_scratch *m) {
    const uint64_t P = T * d->top_k;
    m->router = carve(c, T * d->n_experts, sizeof(float));
    m->ids = carve(c, P, sizeof(int32_t));
    m->weights = carve(c, P, sizeof(float));
    m->begin = carve(c, (uint64_t)d->n_experts + 1, sizeof(uint32_t));
    m->token = carve(c, P, sizeof(uint32_t));
    m->pair = carve(c, P, sizeof(uint32_t));
    m->act = carve_rows(c, P, d->expert_hidden);
    m->shared_act = carve_rows(c, T, d->shared_hidden);
    m->out = carve(c, P * d->hidden, sizeof(float));
    m->shared_out = carve(c, T * d->hidden, sizeof(float));
    m->gate_logit = carve(c, T, sizeof(float));
    m->sum = carve(c, T * d->hidden, sizeof(float));
    m->lists = carve(c, d->n_layers, sizeof *m->lists);
    for (uint32_t l = 0; l < d->n_layers; l++) {
        nf_moe_lists lists = {.in = carve(c, (uint64_t)d->n_experts + 1, sizeof(nf_product)),
                              .down = carve(c, (uint64_t)d->n_experts + 1, sizeof(nf_product))};
        if (c->base) m->lists[l] = lists;
    }
}

static void carve_scratch(carver *c, const nf_model *model, uint64_t T, nf_session *s) {
    const nf_model_desc *d = &model->desc;
    const uint64_t heads = (uint64_t)d->n_heads * d->head_dim, kv = (uint64_t)d->n_kv_heads * d->head_dim;
    const uint64_t values = (uint64_t)d->lin_v_heads * d->lin_v_dim;
    const uint64_t channels = 2ull * d->lin_k_heads * d->lin_k_dim + values;
    s->x = carve(c, T * d->hidden, sizeof(float));
    s->h = carve_rows(c, T, d->hidden);
    s->attended = carve_rows(c, T, (size_t)heads);
    s->mixed = carve_rows(c, T, (size_t)values);
    s->q = carve(c, T * heads * 2, sizeof(float));
    s->k = carve(c, T * kv, sizeof(float));
    s->v = carve(c, T * kv, sizeof(float));
    s->conv_in = carve(c, T * channels, sizeof(float));
    s->conv_out = carve(c, T * channels, sizeof(float));
    s->z = carve(c, T * values, sizeof(float));
    s->ba = carve(c, T * 2 * d->lin_v_heads, sizeof(float));
    s->rope = carve(c, T * d->rope_dim, sizeof(float));
    s->thread_stride = (nf_attention_scratch(d->head_dim) + 15) / 16 * 16;
    s->thread_scratch = carve(c, (uint64_t)model->team.n_threads * s->thread_stride, sizeof(float));
    const uint64_t blocks = ((uint64_t)d->max_context + NF_ATTENTION_BLOCK - 1) / NF_ATTENTION_BLOCK,
                   split = blocks < NF_SPLIT_BLOCKS ? blocks : NF_SPLIT_BLOCKS;
    s->attention_parts = carve(c, T * d->n_heads, sizeof *s->attention_parts);
    s->split_parts = carve(c, split * d->n_heads, sizeof *s->split_parts);
    s->split_accs = carve(c, split * heads, sizeof(float));
    carve_moe(c, d, T, &s->moe);
    s->head_rows = carve_rows(c, NF_HEAD_ROWS, d->hidden);
    s->logits = carve(c, (uint64_t)NF_HEAD_ROWS * d->vocab_size, sizeof(float));
}

/* Floats of the states of all linear layers; fills the offsets when asked. */
static uint64_t layout_state(const nf_model *model, size_t *state_at, size_t *conv_at) {
    const nf_model_desc *d = &model->desc;
    const uint64_t channels = 2ull * d->lin_k_heads * d->lin_k_dim + (uint64_t)d->lin_v_heads * d->lin_v_dim;
    const uint64_t blocks = (d->lin_v_dim + NF_DELTA_COLUMNS - 1) / NF_DELTA_COLUMNS,
                   matrix = d->lin_v_heads * blocks * d->lin_k_dim * NF_DELTA_COLUMNS;
    uint64_t at = 0;
    for (uint32_t l = 0; l < d->n_layers; l++) {
        if (d->layer_kind[l] != NF_LAYER_LINEAR_ATTENTION) continue;
        if (state_at) state_at[l] = (size_t)at;
        at += (matrix + 15) / 16 * 16;
        if (conv_at) conv_at[l] = (size_t)at;
        at += ((d->conv_width - 1) * channels + 15) / 16 * 16;
    }
    return at;
}

/* Bytes of all attention layers for one block of positions. */
static uint64_t kv_block_bytes(const nf_model_desc *d, const nf_kv_layout *layout) {
    uint64_t attention_layers = 0;
    for (uint32_t l = 0; l < d->n_layers; l++)
        attention_layers += d->layer_kind[l] == NF_LAYER_FULL_ATTENTION;
    return attention_layers * d->n_kv_heads * layout->bytes;
}

void nf_session_sizes(const nf_model *model, nf_kv_type kv_type, uint32_t chunk, uint64_t *kv_per_token,
                      uint64_t *state, uint64_t *workspace) {
    const nf_kv_layout layout = nf_kv_layout_get(kv_type, model->desc.head_dim);
    if (kv_per_token) *kv_per_token = kv_block_bytes(&model->desc, &layout) / NF_ATTENTION_BLOCK;
    if (state) *state = layout_state(model, NULL, NULL) * sizeof(float);
    if (workspace) {
        carver counter = {0};
        nf_session unused;
        carve_scratch(&counter, model, chunk, &unused);
        *workspace = counter.used;
    }
}

static nf_status allocate(nf_session *s, nf_error *err) {
    nf_model *model = s->model;
    const uint32_t n_layers = model->desc.n_layers;
    carver c = {0};
    carve_scratch(&c, model, s->chunk, s);
    s->scratch = nf_calloc_aligned(
        64, 1, (size_t)c.used, "the scratch memory of a session (a smaller prefill chunk needs less)", err);
    if (!s->scratch) return NF_ERR_MEMORY;
    c = (carver){.base = s->scratch};
    carve_scratch(&c, model, s->chunk, s);
    s->kv = nf_calloc(n_layers, sizeof *s->kv, "KV tables", err);
    s->state_at = nf_calloc(n_layers, sizeof *s->state_at, "state offsets", err);
    s->conv_at = nf_calloc(n_layers, sizeof *s->conv_at, "state offsets", err);
    if (!s->kv || !s->state_at || !s->conv_at) return NF_ERR_MEMORY;
    s->state_floats = (size_t)layout_state(model, s->state_at, s->conv_at);
    s->state = nf_calloc_aligned(64, s->state_floats, sizeof *s->state, "the recurrent state", err);
    return s->state ? NF_OK : NF_ERR_MEMORY;
}

nf_status nf_session_new(nf_model *model, const nf_session_options *options, nf_session **out,
                         nf_error *err) {
    nf_session_options defaults = {0};
    if (!options) options = &defaults;
    *out = NULL;
    if (options->max_context > model->desc.max_context)
        return nf_fail(err, NF_ERR_ARGUMENT, "a context of %u tokens was asked for, the model's limit is %u",
                       options->max_context, model->desc.max_context);
    if (options->prefill_chunk > 65536)
        return nf_fail(err, NF_ERR_ARGUMENT, "the prefill chunk must be between 1 and 65536 tokens, not %u",
                       options->prefill_chunk);
    nf_kv_type kv_type = NF_KV_F32;
    if (options->kv_dtype && !nf_kv_type_by_name(options->kv_dtype, &kv_type))
        return nf_fail(err, NF_ERR_ARGUMENT, "the KV cache's type must be " NF_KV_TYPE_NAMES ", not '%s'",
                       options->kv_dtype);
    nf_session *s = nf_calloc(1, sizeof *s, "a session", err);
    if (!s) return NF_ERR_MEMORY;
    s->model = model;
    s->kv_layout = nf_kv_layout_get(kv_type, model->desc.head_dim);
    s->max_context = options->max_context ? options->max_context : model->desc.max_context;
    s->chunk = options->prefill_chunk ? options->prefill_chunk : NF_DEFAULT_PREFILL_CHUNK;
    if (s->chunk > s->max_context) s->chunk = s->max_context;
    nf_status status = allocate(s, err);
    if (status) {
        nf_session_free(s);
        return status;
    }
    *out = s;
    return NF_OK;
}

void nf_session_free(nf_session *s) {
    if (!s) return;
    for (uint32_t l = 0; s->kv && l < s->model->desc.n_layers; l++) {
        for (size_t p = 0; p < s->kv[l].n_pages; p++) free(s->kv[l].pages[p]);
        free(s->kv[l].pages);
    }
    nf_checkpoints_clear(s);
    free(s->kv);
    free(s->state);
    free(s->state_at);
    free(s->conv_at);
    free(s->ids);
    free(s->route_gaps);
    free(s->scratch);
    free(s);
}

void nf_session_reset(nf_session *s) {
    memset(s->state, 0, s->state_floats * sizeof *s->state);
    nf_checkpoints_clear(s);
    s->position = 0;
    s->has_logits = false;
}

uint32_t nf_session_position(const nf_session *s) {
    return s->position;
}
void nf_session_get_info(const nf_session *s, nf_session_info *out) {
    const uint64_t block = kv_block_bytes(&s->model->desc, &s->kv_layout);
    uint64_t pages = 0;
    for (uint32_t l = 0; l < s->model->desc.n_layers; l++) pages += s->kv[l].n_pages;
    *out = (nf_session_info){.max_context = s->max_context,
                             .prefill_chunk = s->chunk,
                             .kv_dtype = nf_kv_type_name(s->kv_layout.type),
                             .kv_bytes_per_token = block / NF_ATTENTION_BLOCK,
                             .kv_bytes = pages * s->model->desc.n_kv_heads * s->kv_layout.bytes,
                             .state_bytes = s->state_floats * sizeof *s->state};
}
void nf_session_cancel(nf_session *s) {
    s->cancelled = 1;
}
const float *nf_session_logits(const nf_session *s) {
    return s->has_logits ? s->logits : NULL;
}

nf_status nf_session_set_route_hook(nf_session *s, nf_route_fn fn, void *user, nf_error *err) {
    free(s->route_gaps);
    s->route_gaps = NULL;
    s->route = NULL;
    if (!fn) return NF_OK;
    s->route_gaps = nf_alloc(s->chunk, sizeof *s->route_gaps, "router gaps", err);
    if (!s->route_gaps) return NF_ERR_MEMORY;
    s->route = fn;
    s->route_user = user;
    return NF_OK;
}

/* ---- evaluation ---- */

/* KV pages for positions up to `end`. */
static nf_status reserve_kv(nf_session *s, uint32_t end, nf_error *err) {
    const nf_model_desc *d = &s->model->desc;
    const size_t pages = ((size_t)end + NF_ATTENTION_BLOCK - 1) / NF_ATTENTION_BLOCK;
    for (uint32_t l = 0; l < d->n_layers; l++) {
        if (d->layer_kind[l] != NF_LAYER_FULL_ATTENTION) continue;
        nf_kv *kv = &s->kv[l];
        nf_status status = nf_grow((void **)&kv->pages, &kv->cap, pages, sizeof *kv->pages, err);
        if (status) return status;
        for (; kv->n_pages < pages; kv->n_pages++) {
            kv->pages[kv->n_pages] =
                nf_calloc_aligned(64, d->n_kv_heads, s->kv_layout.bytes, "a KV cache page", err);
            if (!kv->pages[kv->n_pages]) return NF_ERR_MEMORY;
        }
    }
    return nf_grow((void **)&s->ids, &s->ids_cap, end, sizeof *s->ids, err);
}

static nf_status numeric_failure(nf_session *s, nf_error *err) {
    uint32_t first = s->first, last = s->first + s->n - 1;
    nf_session_reset(s);
    return nf_fail(err, NF_ERR_NUMERIC,
                   "a NaN or infinity appeared while evaluating tokens %u..%u; the model's weights may be "
                   "damaged (ninfer-convert "
                   "verify checks the file)",
                   first, last);
}

/* Logits of rows first..first+n-1 of the chunk. */
static nf_status run_head(nf_session *s, uint32_t first, uint32_t n, nf_error *err) {
    s->head_first = first;
    s->head_n = n;
    nf_team_run(&s->model->team, nf_forward_head, s);
    return atomic_load(&s->numeric_error) ? numeric_failure(s, err) : NF_OK;
}

/* Hands over logits of the whole chunk; the last row ends up in logits[0..vocab). */
static nf_status report_logits(nf_session *s, nf_logits_fn each, void *user, nf_error *err) {
    const size_t vocab = s->model->desc.vocab_size;
    for (uint32_t i = 0; i < s->n; i += NF_HEAD_ROWS) {
        uint32_t n = s->n - i < NF_HEAD_ROWS ? s->n - i : NF_HEAD_ROWS;
        nf_status status = run_head(s, i, n, err);
        if (status) return status;
        if (!each(user, s->first + i, n, s->logits)) {
            nf_session_reset(s);
            return nf_fail(err, NF_ERR_CANCELLED, "stopped by the receiver of the logits");
        }
        if (n > 1) memmove(s->logits, s->logits + (n - 1) * vocab, vocab * sizeof *s->logits);
    }
    return NF_OK;
}

/* Evaluates n tokens; with want_logits also the last one's logits, in the same region of the team. */
static nf_status run_chunk(nf_session *s, const int32_t *ids, uint32_t n, bool want_logits, nf_error *err) {
    nf_status status = reserve_kv(s, s->position + n, err);
    if (status) {
        nf_session_reset(s);
        return status;
    }
    s->first = s->position;
    s->n = n;
    s->step_ids = ids;
    s->head_first = n - 1;
    s->head_n = want_logits ? 1 : 0;
    atomic_store(&s->numeric_error, false);
    nf_team_run(&s->model->team, nf_forward, s);
    if (atomic_load(&s->numeric_error)) return numeric_failure(s, err);
    memcpy(s->ids + s->position, ids, n * sizeof *ids);
    s->position += n;
    return NF_OK;
}

static nf_status check_tokens(const nf_session *s, const int32_t *ids, size_t n, nf_error *err) {
    if (n == 0) return nf_fail(err, NF_ERR_ARGUMENT, "no tokens to evaluate");
    if (n > s->max_context - s->position)
        return nf_fail(err, NF_ERR_LIMIT, "%zu tokens after %u do not fit in the context of %u tokens", n,
                       s->position, s->max_context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->model->desc.vocab_size)
            return nf_fail(err, NF_ERR_ARGUMENT, "token id %d is outside the vocabulary (0..%u)", ids[i],
                           s->model->desc.vocab_size - 1);
    return NF_OK;
}

static nf_status eval_locked(nf_session *s, const int32_t *ids, size_t n, nf_logits_fn each, void *user,
                             nf_error *err) {
    for (size_t i = 0; i < n;) {
        if (s->cancelled) return nf_fail(err, NF_ERR_CANCELLED, "cancelled after %zu of %zu tokens", i, n);
        size_t take = n - i < s->chunk ? n - i : s->chunk;
        /* A chunk ends where a checkpoint is due, so that it can be taken there. */
        uint32_t to_checkpoint = NF_CHECKPOINT_EVERY - s->position % NF_CHECKPOINT_EVERY;
        if (take > to_checkpoint) take = to_checkpoint;
        nf_status status = run_chunk(s, ids + i, (uint32_t)take, !each && i + take == n, err);
        i += take;
        if (!status && each) status = report_logits(s, each, user, err);
        if (!status && s->position % NF_CHECKPOINT_EVERY == 0) status = nf_checkpoint_take(s, false, err);
        if (status) return status;
    }
    s->has_logits = true;
    return NF_OK;
}

nf_status nf_session_eval_step(nf_session *s, const int32_t *ids, size_t n, nf_logits_fn each, void *user,
                               nf_error *err) {
    nf_status status = check_tokens(s, ids, n, err);
    if (status) return status;
    s->has_logits = false;
    pthread_mutex_lock(&s->model->compute);
    status = eval_locked(s, ids, n, each, user, err);
    pthread_mutex_unlock(&s->model->compute);
    return status;
}

nf_status nf_session_eval(nf_session *s, const int32_t *ids, size_t n, nf_logits_fn each, void *user,
                          nf_error *err) {
    s->cancelled = 0;
    return nf_session_eval_step(s, ids, n, each, user, err);
}
