/*
 * A loaded model: the description, the tokenizer and chat template, and views of the mapped weights by layer.
 * Shared by the files of runtime/ only.
 */
#ifndef NF_RUNTIME_MODEL_INTERNAL_H
#define NF_RUNTIME_MODEL_INTERNAL_H

#include "runtime/ninfer.h"

#include "cpu/kernels.h"
#include "cpu/memory.h"
#include "cpu/team.h"
#include "format/container.h"
#include "runtime/family.h"
#include "runtime/template.h"
#include "runtime/tokenizer.h"

#include <pthread.h>

#define NF_MAX_CONV_TAPS 16

typedef struct nf_attention_weights {
    nf_weights q, k, v, o;  /* q rows: per head q (head_dim), with attention_gate then its gate (head_dim) */
    float *q_norm, *k_norm; /* [head_dim] */
} nf_attention_weights;

typedef struct nf_delta_weights {
    nf_weights qkv, z, b, a, out;
    float *conv;          /* [taps, C]: transposed, oldest tap first */
    float *decay_rate;    /* [lin_v_heads]: exp(A_log) */
    const float *dt_bias; /* [lin_v_heads] */
    const float *norm;    /* [lin_v_dim], plain w */
} nf_delta_weights;

typedef struct nf_moe_weights {
    nf_weights router;      /* [E, d] */
    nf_weights shared_gate; /* [1, d]; this and `shared` only where there is a shared expert */
    nf_weights shared[3];   /* gate, up [S, d], down [d, S] */
    const uint8_t *bank;    /* E expert blobs */
    const nf_object *bank_object;
} nf_moe_weights;

typedef struct nf_layer {
    nf_layer_kind kind;
    float *input_norm, *post_norm; /* [d], 1 + w */
    nf_attention_weights attention;
    nf_delta_weights delta;
    nf_moe_weights moe;
} nf_layer;

struct nf_recorder;

/* An object that was copied to memory of our own. */
typedef struct nf_weight_copy {
    const nf_object *object;
    size_t at; /* bytes into nf_model.memory */
} nf_weight_copy;

struct nf_model {
    char *path;
    nf_container *container;
    nf_model_desc desc;
    nf_layer *layers; /* [n_layers] */
    nf_weights embedding, head;
    float *final_norm; /* [d], 1 + w */
    nf_buf tokenizer_blob, template_text;
    nf_tokenizer *tokenizer;
    nf_template *chat_template; /* NULL when the model has none */
    nf_sampling sampling;       /* generation defaults */
    int32_t *stop_ids;          /* ids that end an answer */
    size_t n_stop_ids;
    uint64_t weight_bytes, expert_bytes, file_bytes;
    nf_memory memory;       /* copies of the weights; none: they are used where the file is mapped */
    nf_weight_copy *copies; /* [n_copies] */
    size_t n_copies;
    char weights_text[192]; /* where the weights are, for people */
    bool integer_dot; /* some matrix has an integer-dot type: normalised rows are quantised (contract A, step
                         1) */
    const nf_kernels *kernels;
    nf_team team;
    const char *pinning;          /* why its threads are pinned or not */
    struct nf_recorder *recorder; /* NULL: nothing is recorded (recorder.h) */
    pthread_mutex_t compute;      /* sessions of one model compute one at a time: the team is one */
};

/* Matrix `which` (0 gate, 1 up, 2 down) of one expert. */
nf_weights nf_expert_weights(const nf_moe_weights *moe, size_t expert, int which);

/* Copies the weights to memory if options->weights (or `auto`) wants that; before nf_model_bind. */
nf_status nf_weights_load(nf_model *model, const nf_model_options *options, const nf_topology *topology,
                          nf_error *err);
void nf_weights_free(nf_model *model);
/* Bytes of an object of the model's, wherever they are. */
nf_status nf_weights_bytes(const nf_model *model, const nf_object *object, const uint8_t **out,
                           nf_error *err);

/* Finds and checks every tensor of the text component; fills layers, embedding, head and norms. */
nf_status nf_model_bind(nf_model *model, nf_error *err);
void nf_model_unbind(nf_model *model);

#endif
