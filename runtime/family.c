/*
 * Model families (docs/models.md): what their config.json says and which tensors they have. A family is a row
 * of a table; a tensor is one too: name pattern, role and shape in terms of the hyper-parameters.
 */
#include "runtime/family.h"

#include "base/buf.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What distinguishes families that share these layers; a number in a config.json wins over its default here.
 */
typedef struct family {
    const char *model_type;
    bool linear_layers; /* Gated DeltaNet layers among the attention layers */
    bool attention_gate, norms_add_one, shared_expert;
    bool norm_topk;     /* default of norm_topk_prob */
    uint32_t head_dim;  /* default; 0: hidden_size / num_attention_heads */
    double rotary_part; /* default of partial_rotary_factor */
    double rope_theta;  /* default */
} family;

static const family families[] = {
    {"qwen3_5_moe", true, true, true, true, true, 256, 0.25, 1e7},
    {"qwen3_5_moe_text", true, true, true, true, true, 256, 0.25, 1e7},
    {"qwen3_moe", false, false, false, false, false, 0, 1.0, 1e4},
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* ---- config.json ---- */

typedef struct config {
    const json_t *root, *text; /* text: the text_config of multimodal models, else root */
    const family *family;
    const char *file;
    nf_error *err;
    nf_status status; /* of the first bad field */
} config;

static void bad_field(config *c, const char *field, const char *what) {
    if (!c->status) c->status = nf_fail(c->err, NF_ERR_FORMAT, "%s: '%s' %s", c->file, field, what);
}

/* An integer in min..max; `otherwise` when the field is absent (a negative value means that it must be
 * there). */
static uint32_t get_u32(config *c, const char *field, int64_t min, int64_t max, int64_t otherwise) {
    const json_t *v = json_object_get(c->text, field);
    if (!v || json_is_null(v)) {
        if (otherwise < 0) bad_field(c, field, "is missing");
        return otherwise < 0 ? (uint32_t)min : (uint32_t)otherwise;
    }
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        char what[96];
        snprintf(what, sizeof what, "must be a whole number between %lld and %lld", (long long)min,
                 (long long)max);
        bad_field(c, field, what);
        return (uint32_t)min;
    }
    return (uint32_t)json_integer_value(v);
}

static double get_real(config *c, const json_t *object, const char *field, double min, double max,
                       double otherwise) {
    const json_t *v = json_object_get(object, field);
    if (!v || json_is_null(v)) return otherwise;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        bad_field(c, field, "is out of range");
        return otherwise;
    }
    return x;
}

static bool get_bool(config *c, const json_t *object, const char *field, bool otherwise) {
    const json_t *v = json_object_get(object, field);
    if (!v || json_is_null(v)) return otherwise;
    if (!json_is_boolean(v)) bad_field(c, field, "must be true or false");
    return json_is_true(v);
}

static void parse_rope(config *c, nf_model_desc *d) {
    const json_t *rope = json_object_get(c->text, "rope_parameters");
    if (!json_is_object(rope)) rope = c->text;
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (type && strcmp(type, "default") != 0) {
        bad_field(c, "rope_type", "names a kind of rotary embedding that is not supported for this family");
        return;
    }
    d->rope_theta = get_real(c, rope, "rope_theta", 1.0, 1e12, c->family->rope_theta);
    double part = get_real(c, rope, "partial_rotary_factor", 0.0, 1.0,
                           get_real(c, c->text, "partial_rotary_factor", 0.0, 1.0, c->family->rotary_part));
    d->rope_dim = (uint32_t)((double)d->head_dim * part);
    if (d->rope_dim % 2) bad_field(c, "partial_rotary_factor", "gives an odd number of rotary dimensions");
}

static void parse_layers(config *c, nf_model_desc *d) {
    const json_t *types = json_object_get(c->text, "layer_types");
    for (uint32_t l = 0; l < d->n_layers && !c->family->linear_layers; l++)
        d->layer_kind[l] = NF_LAYER_FULL_ATTENTION;
    if (!c->family->linear_layers) return;
    uint32_t interval = get_u32(c, "full_attention_interval", 1, 4096, 4);
    if (types && json_array_size(types) != d->n_layers) {
        bad_field(c, "layer_types", "does not list num_hidden_layers layers");
        return;
    }
    for (uint32_t l = 0; l < d->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        if (!types)
            d->layer_kind[l] = (l + 1) % interval ? NF_LAYER_LINEAR_ATTENTION : NF_LAYER_FULL_ATTENTION;
        else if (type && !strcmp(type, "full_attention"))
            d->layer_kind[l] = NF_LAYER_FULL_ATTENTION;
        else if (type && !strcmp(type, "linear_attention"))
            d->layer_kind[l] = NF_LAYER_LINEAR_ATTENTION;
        else
            bad_field(c, "layer_types", "holds something other than full_attention and linear_attention");
    }
}

static void parse_eos(config *c, nf_model_desc *d) {
    const json_t *eos = json_object_get(c->text, "eos_token_id");
    if (!eos || json_is_null(eos)) eos = json_object_get(c->root, "eos_token_id");
    size_t n = json_is_array(eos) ? json_array_size(eos) : json_is_integer(eos);
    if (n > sizeof d->eos_ids / sizeof *d->eos_ids) bad_field(c, "eos_token_id", "lists too many tokens");
    for (size_t i = 0; i < n && !c->status; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= d->vocab_size)
            bad_field(c, "eos_token_id", "is outside the vocabulary");
        else
            d->eos_ids[d->n_eos++] = (int32_t)json_integer_value(id);
    }
}

static void parse_delta(config *c, nf_model_desc *d) {
    d->lin_k_heads = get_u32(c, "linear_num_key_heads", 1, 4096, 16);
    d->lin_v_heads = get_u32(c, "linear_num_value_heads", 1, 4096, 32);
    d->lin_k_dim = get_u32(c, "linear_key_head_dim", 1, 4096, 128);
    d->lin_v_dim = get_u32(c, "linear_value_head_dim", 1, 4096, 128);
    if (d->lin_v_heads % d->lin_k_heads)
        bad_field(c, "linear_num_value_heads", "is not a multiple of linear_num_key_heads");
    d->conv_width = get_u32(c, "linear_conv_kernel_dim", 2, 16, 4);
}

/* Dense layers among the others are not supported yet; a config that has some is refused, not misread. */
static void check_every_layer_has_experts(config *c) {
    if (json_array_size(json_object_get(c->text, "mlp_only_layers")))
        bad_field(c, "mlp_only_layers", "names layers without experts, which are not supported");
    if (get_u32(c, "decoder_sparse_step", 1, 4096, 1) != 1)
        bad_field(c, "decoder_sparse_step", "is not 1: layers without experts are not supported");
}

static void parse_fields(config *c, nf_model_desc *d) {
    d->vocab_size = get_u32(c, "vocab_size", 1, 1 << 24, -1);
    d->hidden = get_u32(c, "hidden_size", 1, 1 << 17, -1);
    d->max_context = get_u32(c, "max_position_embeddings", 1, 1 << 24, 32768);
    d->rms_eps = (float)get_real(c, c->text, "rms_norm_eps", 0.0, 1.0, 1e-6);
    d->tied_embedding =
        get_bool(c, c->text, "tie_word_embeddings", get_bool(c, c->root, "tie_word_embeddings", false));
    d->n_heads = get_u32(c, "num_attention_heads", 1, 4096, -1);
    d->n_kv_heads = get_u32(c, "num_key_value_heads", 1, 4096, d->n_heads);
    d->head_dim =
        get_u32(c, "head_dim", 1, 4096, c->family->head_dim ? c->family->head_dim : d->hidden / d->n_heads);
    if (d->n_heads % d->n_kv_heads)
        bad_field(c, "num_attention_heads", "is not a multiple of num_key_value_heads");
    d->attention_gate = c->family->attention_gate;
    d->norms_add_one = c->family->norms_add_one;
    if (c->family->linear_layers) parse_delta(c, d);
    d->n_experts = get_u32(c, "num_experts", 1, 65536, -1);
    d->top_k = get_u32(c, "num_experts_per_tok", 1, d->n_experts, -1);
    d->expert_hidden = get_u32(c, "moe_intermediate_size", 1, 1 << 20, -1);
    if (c->family->shared_expert)
        d->shared_hidden = get_u32(c, "shared_expert_intermediate_size", 1, 1 << 20, -1);
    d->norm_topk = get_bool(c, c->text, "norm_topk_prob", c->family->norm_topk);
    check_every_layer_has_experts(c);
    d->n_mtp_layers = get_u32(c, "mtp_num_hidden_layers", 0, 1, 0);
    const char *act = json_string_value(json_object_get(c->text, "hidden_act"));
    if (act && strcmp(act, "silu") != 0) bad_field(c, "hidden_act", "is not silu");
    if (get_bool(c, c->text, "attention_bias", false))
        bad_field(c, "attention_bias", "is true, which this family does not have");
    if (c->family->attention_gate && !get_bool(c, c->text, "attn_output_gate", true))
        bad_field(c, "attn_output_gate", "is false, which is not supported");
    if (get_bool(c, c->text, "use_sliding_window", false))
        bad_field(c, "use_sliding_window", "is true, which is not supported for this family");
    const json_t *scaling = json_object_get(c->text, "rope_scaling");
    if (scaling && !json_is_null(scaling)) {
        const char *kind = json_string_value(json_object_get(scaling, "rope_type"));
        if (!kind) kind = json_string_value(json_object_get(scaling, "type"));
        if (!kind || strcmp(kind, "default") != 0)
            bad_field(c, "rope_scaling",
                      "names a kind of rotary embedding that is not supported for this family");
    }
}

static void parse_quantisation(config *c) {
    const json_t *q = json_object_get(c->root, "quantization_config");
    if (!q || json_is_null(q)) q = json_object_get(c->text, "quantization_config");
    if (!q || json_is_null(q)) return;
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method || strcmp(method, "fp8") != 0) {
        if (!c->status)
            c->status = nf_fail(c->err, NF_ERR_UNSUPPORTED,
                                "%s: quantization_config names the method '%s'; only 'fp8' is supported",
                                c->file, method ? method : "");
        return;
    }
    const json_t *block = json_object_get(q, "weight_block_size");
    if (json_integer_value(json_array_get(block, 0)) != 128 ||
        json_integer_value(json_array_get(block, 1)) != 128)
        bad_field(c, "weight_block_size", "must be [128, 128]");
}

static nf_status check_model_type(config *c, nf_model_desc *d) {
    const char *type = json_string_value(json_object_get(c->text, "model_type"));
    nf_buf names = {0};
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (type && !strcmp(type, families[i].model_type)) {
            snprintf(d->architecture, sizeof d->architecture, "%s", type);
            c->family = &families[i];
            nf_buf_free(&names);
            return NF_OK;
        }
        nf_status status = nf_buf_printf(&names, c->err, "%s%s", i ? ", " : "", families[i].model_type);
        if (status) {
            nf_buf_free(&names);
            return status;
        }
    }
    nf_fail(c->err, NF_ERR_UNSUPPORTED, "%s: model_type '%.100s' is not supported; supported: %s", c->file,
            type ? type : "", names.data);
    nf_buf_free(&names);
    return NF_ERR_UNSUPPORTED;
}

nf_status nf_model_desc_parse(const char *json, size_t n, const char *file, nf_model_desc *out,
                              nf_error *err) {
    *out = (nf_model_desc){0};
    json_error_t where;
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(root)) {
        json_decref(root);
        return nf_fail(err, NF_ERR_FORMAT, "%s: line %d: %s", file, where.line,
                       root ? "not a JSON object" : where.text);
    }
    config c = {.root = root, .text = json_object_get(root, "text_config"), .file = file, .err = err};
    if (!json_is_object(c.text)) c.text = root;
    c.status = check_model_type(&c, out);
    if (!c.status) {
        parse_fields(&c, out);
        parse_rope(&c, out);
        out->n_layers = get_u32(&c, "num_hidden_layers", 1, 4096, -1);
    }
    if (!c.status &&
        !(out->layer_kind = nf_calloc(out->n_layers, sizeof *out->layer_kind, "layer kinds", err)))
        c.status = NF_ERR_MEMORY;
    if (!c.status) {
        parse_layers(&c, out);
        parse_eos(&c, out);
        parse_quantisation(&c);
    }
    json_decref(root);
    if (c.status) nf_model_desc_free(out);
    return c.status;
}

void nf_model_desc_free(nf_model_desc *desc) {
    free(desc->layer_kind);
    *desc = (nf_model_desc){0};
}

/* ---- tensors ---- */

/* Hyper-parameters that shapes are written in. */
typedef enum dim {
    D_NONE,
    D_1,
    D_HIDDEN,
    D_VOCAB,
    D_Q_GATE,
    D_Q,
    D_KV,
    D_HEAD,
    D_QKV_LIN,
    D_V_LIN,
    D_V_HEADS,
    D_V_DIM,
    D_CONV,
    D_EXPERTS,
    D_EXPERT_HIDDEN,
    D_SHARED_HIDDEN,
    D_2_HIDDEN
} dim;

static uint64_t dim_value(const nf_model_desc *d, dim which) {
    switch (which) {
    case D_NONE:
        return 0;
    case D_1:
        return 1;
    case D_HIDDEN:
        return d->hidden;
    case D_2_HIDDEN:
        return 2ull * d->hidden;
    case D_VOCAB:
        return d->vocab_size;
    case D_Q_GATE:
        return (d->attention_gate ? 2ull : 1ull) * d->n_heads * d->head_dim;
    case D_Q:
        return (uint64_t)d->n_heads * d->head_dim;
    case D_KV:
        return (uint64_t)d->n_kv_heads * d->head_dim;
    case D_HEAD:
        return d->head_dim;
    case D_QKV_LIN:
        return 2ull * d->lin_k_heads * d->lin_k_dim + (uint64_t)d->lin_v_heads * d->lin_v_dim;
    case D_V_LIN:
        return (uint64_t)d->lin_v_heads * d->lin_v_dim;
    case D_V_HEADS:
        return d->lin_v_heads;
    case D_V_DIM:
        return d->lin_v_dim;
    case D_CONV:
        return d->conv_width;
    case D_EXPERTS:
        return d->n_experts;
    case D_EXPERT_HIDDEN:
        return d->expert_hidden;
    case D_SHARED_HIDDEN:
        return d->shared_hidden;
    }
    return 0;
}

/* `name` is relative to the layer (or the model); the checkpoint's name has `suffix` behind it. */
typedef struct row {
    const char *name, *suffix;
    nf_role role;
    dim shape[3];
} row;

static const row model_rows[] = {
    {"embed_tokens", ".weight", NF_ROLE_MATRIX, {D_VOCAB, D_HIDDEN}},
    {"norm", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
};
static const row head_row = {"lm_head", ".weight", NF_ROLE_MATRIX, {D_VOCAB, D_HIDDEN}};
static const row block_rows[] = {
    {"input_layernorm", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
    {"post_attention_layernorm", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
};
static const row attention_rows[] = {
    {"self_attn.q_proj", ".weight", NF_ROLE_MATRIX, {D_Q_GATE, D_HIDDEN}},
    {"self_attn.k_proj", ".weight", NF_ROLE_MATRIX, {D_KV, D_HIDDEN}},
    {"self_attn.v_proj", ".weight", NF_ROLE_MATRIX, {D_KV, D_HIDDEN}},
    {"self_attn.o_proj", ".weight", NF_ROLE_MATRIX, {D_HIDDEN, D_Q}},
    {"self_attn.q_norm", ".weight", NF_ROLE_VECTOR, {D_HEAD}},
    {"self_attn.k_norm", ".weight", NF_ROLE_VECTOR, {D_HEAD}},
};
static const row delta_rows[] = {
    {"linear_attn.in_proj_qkv", ".weight", NF_ROLE_MATRIX, {D_QKV_LIN, D_HIDDEN}},
    {"linear_attn.in_proj_z", ".weight", NF_ROLE_MATRIX, {D_V_LIN, D_HIDDEN}},
    {"linear_attn.in_proj_b", ".weight", NF_ROLE_SMALL_MATRIX, {D_V_HEADS, D_HIDDEN}},
    {"linear_attn.in_proj_a", ".weight", NF_ROLE_SMALL_MATRIX, {D_V_HEADS, D_HIDDEN}},
    {"linear_attn.conv1d", ".weight", NF_ROLE_VECTOR, {D_QKV_LIN, D_1, D_CONV}},
    {"linear_attn.A_log", "", NF_ROLE_VECTOR, {D_V_HEADS}},
    {"linear_attn.dt_bias", "", NF_ROLE_VECTOR, {D_V_HEADS}},
    {"linear_attn.norm", ".weight", NF_ROLE_VECTOR, {D_V_DIM}},
    {"linear_attn.out_proj", ".weight", NF_ROLE_MATRIX, {D_HIDDEN, D_V_LIN}},
};
static const row moe_rows[] = {
    {"mlp.gate", ".weight", NF_ROLE_SMALL_MATRIX, {D_EXPERTS, D_HIDDEN}},
    {"mlp.experts", "", NF_ROLE_BANK, {D_EXPERTS, D_EXPERT_HIDDEN, D_HIDDEN}},
};
static const row shared_rows[] = {
    {"mlp.shared_expert_gate", ".weight", NF_ROLE_SMALL_MATRIX, {D_1, D_HIDDEN}},
    {"mlp.shared_expert.gate_proj", ".weight", NF_ROLE_MATRIX, {D_SHARED_HIDDEN, D_HIDDEN}},
    {"mlp.shared_expert.up_proj", ".weight", NF_ROLE_MATRIX, {D_SHARED_HIDDEN, D_HIDDEN}},
    {"mlp.shared_expert.down_proj", ".weight", NF_ROLE_MATRIX, {D_HIDDEN, D_SHARED_HIDDEN}},
};
static const row mtp_rows[] = {
    {"fc", ".weight", NF_ROLE_MATRIX, {D_HIDDEN, D_2_HIDDEN}},
    {"pre_fc_norm_embedding", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
    {"pre_fc_norm_hidden", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
    {"norm", ".weight", NF_ROLE_VECTOR, {D_HIDDEN}},
};

typedef struct spec_list {
    const nf_model_desc *desc;
    nf_tensor_spec *items;
    size_t n, cap;
    const char *component;
    nf_error *err;
} spec_list;

/* Appends rows under a name prefix ("layers.3.", "mtp.") and the checkpoint's prefix for it. */
static nf_status add_rows(spec_list *list, const row *rows, size_t n, const char *prefix,
                          const char *source_prefix) {
    nf_status status =
        nf_grow((void **)&list->items, &list->cap, list->n + n, sizeof *list->items, list->err);
    for (size_t i = 0; i < n && !status; i++) {
        nf_tensor_spec *s = &list->items[list->n++];
        *s = (nf_tensor_spec){.component = list->component, .role = rows[i].role};
        snprintf(s->name, sizeof s->name, "%s%s", prefix, rows[i].name);
        snprintf(s->source, sizeof s->source, "%s%s%s", source_prefix, rows[i].name, rows[i].suffix);
        for (int k = 0; k < 3 && rows[i].shape[k] != D_NONE; k++)
            s->shape[s->n_dims++] = dim_value(list->desc, rows[i].shape[k]);
    }
    return status;
}

#define ADD(rows, prefix, source)                                                                            \
    if ((status = add_rows(list, rows, sizeof(rows) / sizeof *(rows), prefix, source))) return status

static nf_status add_layer(spec_list *list, nf_layer_kind kind, const char *prefix, const char *source) {
    nf_status status;
    ADD(block_rows, prefix, source);
    if (kind == NF_LAYER_FULL_ATTENTION) {
        ADD(attention_rows, prefix, source);
    } else {
        ADD(delta_rows, prefix, source);
    }
    ADD(moe_rows, prefix, source);
    if (list->desc->shared_hidden) ADD(shared_rows, prefix, source);
    return NF_OK;
}

static nf_status add_all(spec_list *list) {
    const nf_model_desc *d = list->desc;
    nf_status status;
    list->component = "text";
    ADD(model_rows, "", "");
    if (!d->tied_embedding && (status = add_rows(list, &head_row, 1, "", "/"))) return status;
    for (uint32_t l = 0; l < d->n_layers; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%u.", l);
        if ((status = add_layer(list, d->layer_kind[l], prefix, prefix))) return status;
    }
    if (!d->n_mtp_layers) return NF_OK;
    list->component = "mtp";
    ADD(mtp_rows, "mtp.", "/mtp.");
    return add_layer(list, NF_LAYER_FULL_ATTENTION, "mtp.layers.0.", "/mtp.layers.0.");
}

size_t nf_tensor_inputs(const nf_tensor_spec *spec, nf_product_input out[2]) {
    if (strcmp(spec->component, "text") != 0) return 0;
    if (spec->role == NF_ROLE_MATRIX) {
        out[0] = (nf_product_input){.experts = 1, .cols = spec->shape[1]};
        snprintf(out[0].name, sizeof out[0].name, "%s", spec->name);
        return 1;
    }
    if (spec->role != NF_ROLE_BANK) return 0;
    out[0] = (nf_product_input){.experts = spec->shape[0], .cols = spec->shape[2]};
    out[1] = (nf_product_input){.experts = spec->shape[0], .cols = spec->shape[1], .matrix = 2};
    snprintf(out[0].name, sizeof out[0].name, "%s.gate_up_proj", spec->name);
    snprintf(out[1].name, sizeof out[1].name, "%s.down_proj", spec->name);
    return 2;
}

nf_status nf_model_desc_tensors(const nf_model_desc *desc, nf_tensor_spec **out, size_t *n, nf_error *err) {
    spec_list list = {.desc = desc, .err = err};
    nf_status status = add_all(&list);
    if (status) {
        free(list.items);
        return status;
    }
    *out = list.items;
    *n = list.n;
    return NF_OK;
}
