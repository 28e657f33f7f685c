/*
 * The state of one sequence and the scratch memory of its forward pass; shared by the layer files of runtime/
 * only. T is the prefill chunk; all activations are f32.
 */
#ifndef NF_RUNTIME_SESSION_INTERNAL_H
#define NF_RUNTIME_SESSION_INTERNAL_H

#include "runtime/model_internal.h"

#include <signal.h>
#include <stdatomic.h>

#define NF_DEFAULT_PREFILL_CHUNK 512
#define NF_CHECKPOINT_EVERY 4096 /* tokens */
#define NF_MAX_CHECKPOINTS 8
#define NF_SPLIT_BLOCKS 64 /* blocks of keys of one token computed side by side */
#define NF_HEAD_ROWS 16    /* rows of logits computed together */

/* One matrix product of input rows index[j] or first + j, j = 0..n-1. Plain: out row j = w . in. Gated (`act`
 * is set): row act_first + j of act = silu(w . in) * (up . in). */
typedef struct nf_product {
    nf_weights w;
    const nf_rows *in;
    const uint32_t *index; /* NULL: rows first, first + 1, ... */
    size_t first, n;
    float *out;
    size_t out_stride;
    bool add; /* out += instead of out = */
    nf_weights up;
    nf_rows *act;
    size_t act_first;
    atomic_bool *numeric_error; /* set: act is quantised too, and this notes NaN and infinity */
} nf_product;

/* A saved recurrent state: the sequence can be resumed at `position` (its KV pages are still there). */
typedef struct nf_checkpoint {
    uint32_t position;
    uint64_t used; /* clock of the last use, for LRU */
    float *state;  /* copy of nf_session.state; NULL: the slot is free */
    float *logits; /* [vocab] after token position-1, or NULL */
} nf_checkpoint;

/* KV of one attention layer: pages of NF_ATTENTION_BLOCK positions, [kv head][kv_layout.bytes]. */
typedef struct nf_kv {
    uint8_t **pages; /* [n_pages], grown on demand */
    size_t n_pages, cap;
} nf_kv;

/* A router decision, reported to tests: ids and weights [top_k] of one token, and the probability of the last
 * expert chosen minus that of the best not chosen. */
typedef void (*nf_route_fn)(void *user, uint32_t layer, uint32_t position, const int32_t *ids,
                            const float *weights, float gap);

/* Products of one MoE layer in the step at work. Each layer has its own: a late thread may look at a list
 * after the others have gone on to the next layers (cpu/team.h). */
typedef struct nf_moe_lists {
    nf_product *in, *down; /* [E + 1] gated and down products of the experts in use and the shared one */
    size_t n;
} nf_moe_lists;

/* Scratch of the mixture of experts. P = T * top_k pairs (token, rank), sorted by expert. */
typedef struct nf_moe_scratch {
    float *router;       /* [T, E] logits, then probabilities */
    int32_t *ids;        /* [T, top_k] */
    float *weights;      /* [T, top_k] */
    uint32_t *begin;     /* [E + 1]: pairs of expert e are begin[e] .. begin[e+1]-1 */
    uint32_t *token;     /* [P]: token of a pair */
    uint32_t *pair;      /* [T, top_k]: pair of (token, rank) */
    nf_rows act;         /* P rows of I */
    nf_rows shared_act;  /* T rows of S */
    float *out;          /* [P, d] */
    float *shared_out;   /* [T, d] */
    float *gate_logit;   /* [T] */
    float *sum;          /* [T, d] */
    nf_moe_lists *lists; /* [n_layers] */
} nf_moe_scratch;

struct nf_session {
    nf_model *model;
    uint32_t max_context, chunk; /* chunk = T */

    /* the sequence */
    int32_t *ids; /* [position]: tokens evaluated so far */
    size_t ids_cap;
    uint32_t position;
    nf_kv_layout kv_layout; /* of one KV head in a page */
    nf_kv *kv;              /* [n_layers]; unused for linear attention */
    float *state;           /* recurrent and convolution states of all linear layers */
    size_t state_floats;
    size_t *state_at, *conv_at; /* [n_layers]: offsets in state */
    nf_checkpoint checkpoints[NF_MAX_CHECKPOINTS];
    uint64_t clock;
    bool has_logits;

    /* scratch: one allocation that the pointers below are carved from */
    void *scratch;
    float *x;              /* [T, d]: residual stream */
    nf_rows h;             /* T rows of d: normalised input of a block */
    nf_rows attended;      /* T rows of H D: input of o_proj */
    nf_rows mixed;         /* T rows of V dv: input of out_proj */
    float *q, *k, *v;      /* [T, H 2 D], [T, G D], [T, G D] */
    float *conv_in;        /* [T, C] */
    float *conv_out;       /* [T, C] */
    float *z, *ba;         /* [T, V dv], [T, 2 V]: b then a, then beta and decay */
    float *rope;           /* [T, rope_dim]: cos, then sin */
    float *thread_scratch; /* [n_threads, nf_attention_scratch(head_dim)] */
    size_t thread_stride;
    nf_attention_part *attention_parts; /* [T, H] */
    nf_attention_part *split_parts;     /* [NF_SPLIT_BLOCKS, H]: blocks of keys that wait to be joined */
    float *split_accs;                  /* [NF_SPLIT_BLOCKS, H, D] */
    nf_moe_scratch moe;
    nf_rows head_rows; /* NF_HEAD_ROWS rows of d */
    float *logits;     /* [NF_HEAD_ROWS, vocab] */

    /* the step in progress */
    uint32_t first, n;           /* positions first .. first+n-1 */
    uint32_t head_first, head_n; /* rows of x whose logits are wanted */
    const int32_t *step_ids;
    atomic_bool numeric_error;
    volatile sig_atomic_t cancelled;

    nf_route_fn route;
    void *route_user;
    float *route_gaps; /* [T], only while a hook is set */
};

/* Bytes that a session needs with a prefill chunk of `chunk`. Any out pointer may be NULL. */
void nf_session_sizes(const nf_model *model, nf_kv_type kv_type, uint32_t chunk, uint64_t *kv_per_token,
                      uint64_t *state, uint64_t *workspace);

/* nf_session_eval without forgetting an earlier nf_session_cancel. */
nf_status nf_session_eval_step(nf_session *s, const int32_t *ids, size_t n, nf_logits_fn each, void *user,
                               nf_error *err);

/* Test hook: `fn` sees every router decision, in order of layer, then token. NF_ERR_MEMORY. */
nf_status nf_session_set_route_hook(nf_session *s, nf_route_fn fn, void *user, nf_error *err);

/* Index of x [n] rounded up to whole groups: the row stride of nf_rows. */
static inline size_t nf_padded(size_t k) {
    return (k + NF_GROUP - 1) / NF_GROUP * NF_GROUP;
}

/* Floats from one head to the next in the output of q_proj: the query and, in some families, its gate. */
static inline size_t nf_query_stride(const nf_model_desc *d) {
    return (d->attention_gate ? 2u : 1u) * (size_t)d->head_dim;
}

/* ---- forward pass (forward.c, products.c) ---- */

/* Runs tokens step_ids[0..n-1] at positions first.. through all layers; x then holds the residual stream.
 * With head_n > 0 the head follows. */
void nf_forward(nf_worker *worker, void *session);
/* Final norm and logits of rows head_first .. head_first+head_n-1 of x. */
void nf_forward_head(nf_worker *worker, void *session);

/* All workers: computes the products (all plain or all gated), pieces handed out in turn. */
void nf_run_products(nf_worker *worker, const nf_product *products, size_t n);
/* Quantises row i of rows when w has an integer-dot type; notes NaN and infinity in the session. */
void nf_prepare_row(nf_session *s, const nf_weights *w, nf_rows *rows, size_t i);
/* Normalises rows first..first+n-1 of x [., d] into `out` (rows 0..n-1) and quantises them where any reader
 * needs it. */
void nf_norm_rows(nf_worker *worker, nf_session *s, const float *norm, size_t first, size_t n, nf_rows *out);
/* x / sqrt(mean(x^2) + eps) * w for one row or head; notes NaN and infinity. */
void nf_norm_row(nf_session *s, const float *x, const float *w, size_t n, float *out);

/* Layers: read h, add to x. */
void nf_attention_layer(nf_worker *worker, nf_session *s, uint32_t layer);
/* The middle of it: q of positions first .. first + n - 1 against the cache, which holds them already; fills
 * attended.x. */
void nf_attend(nf_worker *worker, nf_session *s, uint32_t layer);
void nf_delta_layer(nf_worker *worker, nf_session *s, uint32_t layer);
void nf_moe_layer(nf_worker *worker, nf_session *s, uint32_t layer);

/* ---- sampler (sampler.c) ---- */

typedef struct nf_sampler nf_sampler;

/* NF_ERR_ARGUMENT for values out of range (names the parameter). */
nf_status nf_sampler_new(const nf_sampling *sampling, uint32_t vocab, nf_sampler **out, nf_error *err);
void nf_sampler_free(nf_sampler *sampler);
/* A token of the prompt (for the repetition penalty). */
void nf_sampler_see_prompt(nf_sampler *sampler, int32_t id);
/* Picks the token at `position` of the answer (0 = first) from logits [vocab] (not changed) and counts it.
 * NF_ERR_NUMERIC when a logit is NaN. */
nf_status nf_sampler_pick(nf_sampler *sampler, const float *logits, uint32_t position, int32_t *id,
                          nf_error *err);

#endif
