/*
 * Opening a model: container, description, tokenizer, chat template, generation defaults, weights. After this
 * nothing about the file can surprise a session.
 */
#include "runtime/model_internal.h"

#include "cpu/thread_plan.h"
#include "runtime/session_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void nf_free(void *p) {
    free(p);
}

static nf_status read_text_blob(nf_model *model, const char *name, nf_buf *out, bool *found, nf_error *err) {
    const nf_object *object = nf_container_find(model->container, name);
    *found = object != NULL;
    if (!object) return NF_OK;
    if (object->kind != NF_OBJECT_BLOB)
        return nf_fail(err, NF_ERR_FORMAT, "%s: '%s' is not a blob", model->path, name);
    return nf_container_read_blob(model->container, object, out, err);
}

static nf_status load_text(nf_model *model, nf_error *err) {
    bool found;
    nf_status status = read_text_blob(model, "tokenizer", &model->tokenizer_blob, &found, err);
    if (status) return status;
    if (!found)
        return nf_fail(err, NF_ERR_FORMAT, "%s: holds no tokenizer; convert the model again", model->path);
    status = nf_tokenizer_load(model->tokenizer_blob.data, model->tokenizer_blob.len, &model->tokenizer, err);
    if (status) return nf_context(err, "%s: tokenizer", model->path);
    if (nf_tokenizer_size(model->tokenizer) > model->desc.vocab_size)
        return nf_fail(err, NF_ERR_FORMAT, "%s: the tokenizer has %zu ids, the model's vocabulary %u",
                       model->path, nf_tokenizer_size(model->tokenizer), model->desc.vocab_size);
    status = read_text_blob(model, "chat_template", &model->template_text, &found, err);
    if (status || !found) return status;
    status =
        nf_template_parse(model->template_text.data, model->template_text.len, &model->chat_template, err);
    return status ? nf_context(err, "%s: chat template", model->path) : NF_OK;
}

static nf_status add_stop_id(nf_model *model, int64_t id, size_t *cap, nf_error *err) {
    if (id < 0 || id >= model->desc.vocab_size)
        return nf_fail(err, NF_ERR_FORMAT, "%s: stop token %lld is outside the vocabulary", model->path,
                       (long long)id);
    for (size_t i = 0; i < model->n_stop_ids; i++)
        if (model->stop_ids[i] == id) return NF_OK;
    nf_status status =
        nf_grow((void **)&model->stop_ids, cap, model->n_stop_ids + 1, sizeof *model->stop_ids, err);
    if (!status) model->stop_ids[model->n_stop_ids++] = (int32_t)id;
    return status;
}

static double number_or(const json_t *object, const char *key, double otherwise) {
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* Stop tokens: eos_token_id of generation_config.json united with the config's. Sampling: what
 * generation_config.json names, with do_sample false (or nothing) meaning greedy. */
static nf_status load_generation(nf_model *model, nf_error *err) {
    size_t cap = 0;
    nf_status status = NF_OK;
    for (uint32_t i = 0; i < model->desc.n_eos && !status; i++)
        status = add_stop_id(model, model->desc.eos_ids[i], &cap, err);
    model->sampling = nf_sampling_greedy();
    const char *text = nf_container_meta(model->container, "model.generation_config");
    if (status || !text) return status;
    json_error_t where;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(root)) {
        json_decref(root);
        return nf_fail(err, NF_ERR_FORMAT, "%s: generation defaults are not a JSON object: %s", model->path,
                       where.text);
    }
    const json_t *eos = json_object_get(root, "eos_token_id");
    if (json_is_integer(eos)) status = add_stop_id(model, json_integer_value(eos), &cap, err);
    for (size_t i = 0; i < json_array_size(eos) && !status; i++)
        status = add_stop_id(model, json_integer_value(json_array_get(eos, i)), &cap, err);
    nf_sampling *s = &model->sampling;
    if (json_is_true(json_object_get(root, "do_sample"))) {
        s->temperature = number_or(root, "temperature", 1.0);
        s->top_k = (int32_t)fmin(fmax(number_or(root, "top_k", 0), 0), 1e9);
        s->top_p = number_or(root, "top_p", 1.0);
        s->min_p = number_or(root, "min_p", 0.0);
    }
    s->repetition_penalty = number_or(root, "repetition_penalty", 1.0);
    json_decref(root);
    return status;
}

static nf_status load_description(nf_model *model, nf_error *err) {
    const char *config = nf_container_meta(model->container, "model.config");
    if (!config)
        return nf_fail(err, NF_ERR_FORMAT, "%s: has no model description ('model.config'); is it a model?",
                       model->path);
    return nf_model_desc_parse(config, strlen(config), model->path, &model->desc, err);
}

static nf_status start_team(nf_model *model, const nf_model_options *options, const nf_topology *topology,
                            nf_error *err) {
    nf_thread_plan plan = {0};
    nf_status status = nf_kernels_get(&model->kernels, err);
    if (!status)
        status = nf_thread_plan_make(topology, options->n_threads, options->no_pin ? NF_PIN_OFF : NF_PIN_AUTO,
                                     &plan, err);
    if (!status) status = nf_team_start(&model->team, &plan, err);
    model->pinning = plan.why;
    nf_thread_plan_free(&plan);
    return status;
}

static nf_status verify_all(nf_model *model, const nf_model_options *options, nf_error *err) {
    return nf_container_verify(model->path, model->team.n_threads, NULL, NULL, options->progress,
                               options->progress_user, err);
}

nf_status nf_model_open(const char *path, const nf_model_options *options, nf_model **out, nf_error *err) {
    nf_model_options defaults = {0};
    if (!options) options = &defaults;
    *out = NULL;
    nf_model *model = nf_calloc_aligned(64, 1, sizeof *model, "a model", err);
    if (!model) return NF_ERR_MEMORY;
    pthread_mutex_init(&model->compute, NULL);
    nf_topology topology = {0};
    nf_status status = (model->path = nf_strdup(path, err)) ? NF_OK : NF_ERR_MEMORY;
    if (!status) status = nf_topology_get(&topology, err);
    if (!status) status = start_team(model, options, &topology, err);
    if (!status) status = nf_container_open(path, &model->container, err);
    if (!status) status = load_description(model, err);
    if (!status) status = load_text(model, err);
    if (!status) status = load_generation(model, err);
    if (!status && options->verify) status = verify_all(model, options, err);
    if (!status) status = nf_weights_load(model, options, &topology, err);
    if (!status) status = nf_model_bind(model, err);
    nf_topology_free(&topology);
    if (status) {
        nf_model_free(model);
        return status;
    }
    model->file_bytes = nf_container_file_bytes(model->container);
    *out = model;
    return NF_OK;
}

void nf_model_free(nf_model *model) {
    if (!model) return;
    nf_team_stop(&model->team);
    nf_model_unbind(model);
    nf_model_desc_free(&model->desc);
    nf_tokenizer_free(model->tokenizer);
    nf_template_free(model->chat_template);
    nf_buf_free(&model->tokenizer_blob);
    nf_buf_free(&model->template_text);
    nf_weights_free(model);
    nf_container_close(model->container);
    pthread_mutex_destroy(&model->compute);
    free(model->stop_ids);
    free(model->path);
    free(model);
}

void nf_model_get_info(const nf_model *model, nf_model_info *out) {
    const nf_model_desc *d = &model->desc;
    const char *name = nf_container_meta(model->container, "model.name");
    const char *type = nf_container_meta(model->container, "model.type");
    *out = (nf_model_info){
        .path = model->path,
        .name = name ? name : "",
        .architecture = d->architecture,
        .type = type ? type : "",
        .n_layers = d->n_layers,
        .hidden = d->hidden,
        .n_experts = d->n_experts,
        .top_k = d->top_k,
        .vocab_size = d->vocab_size,
        .max_context = d->max_context,
        .file_bytes = model->file_bytes,
        .weight_bytes = model->weight_bytes,
        .expert_bytes = model->expert_bytes,
        .n_threads = model->team.n_threads,
        .pinned = model->team.pinned,
        .pinning = model->pinning,
        .weights = model->weights_text,
        .isa = model->kernels->name,
        .has_chat_template = model->chat_template != NULL,
    };
    nf_session_sizes(model, NF_KV_F32, NF_DEFAULT_PREFILL_CHUNK, &out->kv_bytes_per_token, &out->state_bytes,
                     &out->workspace_bytes);
}

/* ---- text ---- */

nf_status nf_tokenize(const nf_model *model, const char *text, size_t n_bytes, bool parse_special,
                      int32_t **ids, size_t *n_ids, nf_error *err) {
    size_t cap = 0;
    *ids = NULL;
    *n_ids = 0;
    nf_status status =
        nf_tokenizer_encode(model->tokenizer, text, n_bytes, parse_special ? NF_ADDED_PARSE : NF_ADDED_IGNORE,
                            ids, n_ids, &cap, err);
    if (status) {
        free(*ids);
        *ids = NULL;
        *n_ids = 0;
    }
    return status;
}

nf_status nf_detokenize(const nf_model *model, const int32_t *ids, size_t n_ids, bool skip_special,
                        char **text, size_t *n_bytes, nf_error *err) {
    nf_buf raw = {0}, valid = {0};
    nf_utf8_stream stream = {0};
    nf_status status = nf_tokenizer_decode(model->tokenizer, ids, n_ids, skip_special, &raw, err);
    if (!status) status = nf_buf_append(&valid, NULL, 0, err);
    if (!status) status = nf_utf8_stream_push(&stream, raw.data, raw.len, &valid, err);
    if (!status) status = nf_utf8_stream_end(&stream, &valid, err);
    nf_buf_free(&raw);
    if (status) {
        nf_buf_free(&valid);
        return status;
    }
    *n_bytes = valid.len;
    *text = nf_buf_take(&valid);
    return NF_OK;
}

/* bos_token, eos_token, ... become variables of the template unless the request has its own. */
static nf_status add_special_tokens(const nf_model *model, json_t *vars, nf_error *err) {
    const char *text = nf_container_meta(model->container, "tokenizer.special_tokens");
    if (!text) return NF_OK;
    json_error_t where;
    json_t *tokens = json_loads(text, 0, &where);
    nf_status status = NF_OK;
    if (!json_is_object(tokens))
        status =
            nf_fail(err, NF_ERR_FORMAT, "%s: 'tokenizer.special_tokens' is not a JSON object", model->path);
    else if (json_object_update_missing(vars, tokens))
        status = nf_fail(err, NF_ERR_MEMORY, "out of memory for template variables");
    json_decref(tokens);
    return status;
}

nf_status nf_chat_prompt(const nf_model *model, const char *request, char **text, size_t *n_bytes,
                         nf_error *err) {
    if (!model->chat_template)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: the model has no chat template; give it plain text",
                       model->path);
    json_error_t where;
    json_t *vars = json_loads(request, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(vars)) {
        json_decref(vars);
        return nf_fail(err, NF_ERR_ARGUMENT, "the chat request is not a JSON object: line %d: %s", where.line,
                       where.text);
    }
    nf_buf out = {0};
    nf_status status = add_special_tokens(model, vars, err);
    if (!status) status = nf_buf_append(&out, NULL, 0, err);
    if (!status) status = nf_template_render(model->chat_template, vars, &out, err);
    json_decref(vars);
    if (status) {
        nf_buf_free(&out);
        return nf_context(err, "chat template");
    }
    *n_bytes = out.len;
    *text = nf_buf_take(&out);
    return NF_OK;
}
