/*
 * Model description: what config.json says (hyper-parameters) and which tensors a family has. The converter
 * walks the tensor list to find sources, the runtime to find objects: one table, so that they cannot
 * disagree.
 */
#ifndef NF_RUNTIME_FAMILY_H
#define NF_RUNTIME_FAMILY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum nf_layer_kind { NF_LAYER_FULL_ATTENTION, NF_LAYER_LINEAR_ATTENTION } nf_layer_kind;

typedef enum nf_role {
    NF_ROLE_VECTOR, /* norms, biases, A_log, convolution taps: f32, plain */
    NF_ROLE_MATRIX, /* dense matrix [out, in]: i8 when the recipe's type is smaller than 8 bits, else that
                       type */
    NF_ROLE_SMALL_MATRIX, /* router and gates [out, in]: f32 always, tiled */
    NF_ROLE_BANK          /* routed experts of one layer: the recipe's type */
} nf_role;

typedef struct nf_tensor_spec {
    char name[96];         /* object name in the container, e.g. "layers.3.self_attn.q_proj" */
    char source[160];      /* tensor name in the checkpoint without the text prefix ("model." or
                              "model.language_model."): "layers.3.self_attn.q_proj.weight". For banks the stem:
                              "layers.3.mlp.experts" (packed "gate_up_proj"/"down_proj" or "E.gate_proj.weight",
                              ...).      Names that begin with '/' are absolute: "/lm_head.weight",
                              "/mtp.fc.weight". */
    const char *component; /* "text" or "mtp" */
    nf_role role;
    uint32_t n_dims;
    uint64_t shape[3]; /* as stored in the checkpoint, e.g. conv1d [C, 1, K]; banks [E, I, d] */
} nf_tensor_spec;

typedef struct nf_model_desc {
    char architecture[64]; /* model_type of the text part */
    uint32_t vocab_size, hidden, n_layers, max_context;
    float rms_eps;
    bool tied_embedding;
    nf_layer_kind *layer_kind; /* [n_layers] */
    bool norms_add_one;        /* RMSNorm weights are stored as w - 1 */
    /* attention */
    bool attention_gate; /* q_proj gives a query and a gate for each head */
    uint32_t n_heads, n_kv_heads, head_dim, rope_dim;
    double rope_theta;
    /* Gated DeltaNet; all 0 in families without it */
    uint32_t lin_k_heads, lin_v_heads, lin_k_dim, lin_v_dim, conv_width;
    /* mixture of experts */
    uint32_t n_experts, top_k, expert_hidden;
    uint32_t shared_hidden; /* 0: no shared expert */
    bool norm_topk;
    uint32_t n_mtp_layers; /* 0 or 1 */
    int32_t eos_ids[8];    /* of config.json */
    uint32_t n_eos;
} nf_model_desc;

/* Reads config.json (n bytes of JSON, hostile): every field used is range-checked (no head count, width or
 * product can overflow later); a model_type that is not supported is NF_ERR_UNSUPPORTED and lists those that
 * are. A multimodal config is read through its text_config. `file` is for messages. Free with
 * nf_model_desc_free. */
nf_status nf_model_desc_parse(const char *json, size_t n, const char *file, nf_model_desc *out,
                              nf_error *err);
void nf_model_desc_free(nf_model_desc *desc);

/* A matrix product whose input importance statistics describe (docs/quantisation.md). */
typedef struct nf_product_input {
    char name[112];  /* of the statistics: the tensor's, of a bank with ".gate_up_proj" or ".down_proj" */
    uint32_t matrix; /* of a bank: its first matrix with this input, 0 (gate; up has the same) or 2 (down) */
    uint64_t experts, cols; /* experts is 1 for a dense matrix */
} nf_product_input;

/* Inputs of a tensor's products: 0 (not recorded: no matrix of the text component), 1 or, of a bank, 2. */
size_t nf_tensor_inputs(const nf_tensor_spec *spec, nf_product_input out[2]);

/* Lists all tensors of the model: text component first, then mtp. *out is an array of *n specs (free()). */
nf_status nf_model_desc_tensors(const nf_model_desc *desc, nf_tensor_spec **out, size_t *n, nf_error *err);

#endif
