/*
 * A conversion from start to end: read the config, find every source before anything is written, reserve
 * objects, convert, store the texts, publish.
 */
#include "converter/convert_internal.h"

#include "base/io.h"
#include "runtime/template.h"
#include "runtime/tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_TEXT_BYTES (256u << 20)

/* ---- texts of the checkpoint ---- */

/* The files beside the weights; text.data is NULL for a file that does not exist. */
typedef struct checkpoint_texts {
    nf_buf config, tokenizer, tokenizer_config, generation_config, chat_template;
} checkpoint_texts;

static void free_texts(checkpoint_texts *t) {
    nf_buf_free(&t->config);
    nf_buf_free(&t->tokenizer);
    nf_buf_free(&t->tokenizer_config);
    nf_buf_free(&t->generation_config);
    nf_buf_free(&t->chat_template);
}

static nf_status read_text(const char *dir, const char *name, bool required, nf_buf *out, nf_error *err) {
    nf_buf path = {0};
    nf_status status = nf_buf_printf(&path, err, "%s/%s", dir, name);
    if (!status) status = nf_read_file(path.data, MAX_TEXT_BYTES, out, err);
    if (status == NF_ERR_NOT_FOUND && !required) {
        nf_buf_free(out);
        status = NF_OK;
    } else if (status == NF_ERR_NOT_FOUND) {
        nf_context(err, "%s is not a complete checkpoint", dir);
    }
    nf_buf_free(&path);
    return status;
}

static nf_status read_texts(const char *dir, checkpoint_texts *t, nf_error *err) {
    nf_status status = read_text(dir, "config.json", true, &t->config, err);
    if (!status) status = read_text(dir, "tokenizer.json", true, &t->tokenizer, err);
    if (!status) status = read_text(dir, "tokenizer_config.json", false, &t->tokenizer_config, err);
    if (!status) status = read_text(dir, "generation_config.json", false, &t->generation_config, err);
    if (!status) status = read_text(dir, "chat_template.jinja", false, &t->chat_template, err);
    return status;
}

/* Text of a special token: a string, or an object with "content". */
static const char *token_text(const json_t *v) {
    return json_is_object(v) ? json_string_value(json_object_get(v, "content")) : json_string_value(v);
}

/* From tokenizer_config.json: the chat template where there is no file of its own, and the special tokens
 * that templates use. */
static nf_status read_tokenizer_config(const char *dir, checkpoint_texts *t, nf_buf *special, nf_error *err) {
    if (!t->tokenizer_config.data) return NF_OK;
    json_error_t where;
    json_t *root = json_loadb(t->tokenizer_config.data, t->tokenizer_config.len, 0, &where);
    if (!json_is_object(root)) {
        json_decref(root);
        return nf_fail(err, NF_ERR_FORMAT, "%s/tokenizer_config.json: line %d: %s", dir, where.line,
                       where.text);
    }
    nf_status status = NF_OK;
    const json_t *tmpl = json_object_get(root, "chat_template"), *item;
    size_t i;
    const char *text = json_string_value(tmpl);
    json_array_foreach(tmpl, i, item) { /* a list of named templates */
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) text = json_string_value(json_object_get(item, "template"));
    }
    if (!t->chat_template.data && text) status = nf_buf_text(&t->chat_template, text, err);
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    json_t *tokens = json_object();
    for (size_t k = 0; k < 4; k++) {
        const char *token = token_text(json_object_get(root, names[k]));
        if (token) json_object_set_new(tokens, names[k], json_string(token));
    }
    char *dump = json_dumps(tokens, JSON_COMPACT);
    if (!status)
        status = dump ? nf_buf_text(special, dump, err) : nf_fail(err, NF_ERR_MEMORY, "out of memory");
    free(dump);
    json_decref(tokens);
    json_decref(root);
    return status;
}

/* ---- preparation ---- */

static nf_status open_checkpoint(nf_conversion *c, const checkpoint_texts *t, nf_error *err) {
    nf_buf name = {0};
    nf_status status = nf_buf_printf(&name, err, "%s/config.json", c->source_dir);
    if (!status) status = nf_model_desc_parse(t->config.data, t->config.len, name.data, &c->desc, err);
    nf_buf_free(&name);
    if (!status) status = nf_safetensors_open(c->source_dir, &c->st, err);
    if (!status) status = nf_model_desc_tensors(&c->desc, &c->specs, &c->n_specs, err);
    if (status) return status;
    c->prefix = nf_safetensors_find(c->st, "model.language_model.embed_tokens.weight")
                    ? "model.language_model."
                    : "model.";
    c->used = nf_calloc(nf_safetensors_count(c->st), sizeof *c->used, "tensor marks", err);
    return c->used ? NF_OK : NF_ERR_MEMORY;
}

/* Finds every source, so that what is missing or misshapen is known before the first byte is written; sums
 * source bytes. */
static nf_status find_all(nf_conversion *c, nf_error *err) {
    c->total = 0;
    for (size_t i = 0; i < c->n_specs; i++) {
        const nf_tensor_spec *spec = &c->specs[i];
        nf_source s[3];
        nf_status status;
        if (spec->role == NF_ROLE_BANK) {
            for (uint64_t e = 0; e < spec->shape[0]; e++) {
                if ((status = nf_source_expert(c, spec, e, s, err))) return status;
                for (int m = 0; m < 3; m++) c->total += nf_source_bytes(&s[m]);
            }
            continue;
        }
        char name[200];
        nf_source_name(c, spec->source, name, sizeof name);
        if ((status = nf_source_find(c, name, spec->shape, spec->n_dims, &s[0], err))) return status;
        c->total += nf_source_bytes(&s[0]);
    }
    return nf_source_check_unused(c, err);
}

static nf_status estimate(const nf_conversion *c, uint64_t *out_bytes, nf_error *err) {
    *out_bytes = 1 << 20; /* heads, directory, blobs */
    for (size_t i = 0; i < c->n_specs; i++) {
        nf_object o;
        nf_status status = nf_recipe_object(c->options, &c->specs[i], &o, err);
        if (status) return status;
        *out_bytes += o.bytes + (o.kind == NF_OBJECT_BANK ? 2 << 20 : 4096);
    }
    return NF_OK;
}

static nf_status check_space(const char *out_path, uint64_t bytes, nf_error *err) {
    const char *slash = strrchr(out_path, '/');
    char *dir = slash ? nf_strndup(out_path, slash == out_path ? 1 : (size_t)(slash - out_path), err)
                      : nf_strdup(".", err);
    if (!dir) return NF_ERR_MEMORY;
    struct statvfs fs;
    nf_status status = NF_OK;
    if (statvfs(dir, &fs))
        status = nf_fail_errno(err, errno, "%s: cannot write to this folder", dir);
    else if ((uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        status = nf_fail(err, NF_ERR_NO_SPACE, "%s: the container needs %.1f MB, only %.1f MB are free there",
                         dir, (double)bytes / 1e6, (double)fs.f_bavail * (double)fs.f_frsize / 1e6);
    free(dir);
    return status;
}

static void free_conversion(nf_conversion *c) {
    nf_safetensors_close(c->st);
    nf_model_desc_free(&c->desc);
    free(c->specs);
    free(c->used);
    nf_importance_free(&c->importance);
    pthread_mutex_destroy(&c->lock);
}

static void init_conversion(nf_conversion *c, const char *source, const nf_convert_options *options) {
    *c = (nf_conversion){.source_dir = source,
                         .options = options,
                         .n_threads = options->n_threads > 0 ? options->n_threads : omp_get_num_procs()};
    pthread_mutex_init(&c->lock, NULL);
}

/* ---- texts of the container ---- */

static nf_status store_texts(nf_conversion *c, const checkpoint_texts *t, nf_error *err) {
    nf_buf blob = {0}, path = {0};
    nf_status status = nf_buf_printf(&path, err, "%s/tokenizer.json", c->source_dir);
    if (!status) status = nf_tokenizer_compile(t->tokenizer.data, t->tokenizer.len, path.data, &blob, err);
    nf_tokenizer *tokenizer = NULL;
    if (!status) status = nf_tokenizer_load(blob.data, blob.len, &tokenizer, err);
    if (!status && nf_tokenizer_size(tokenizer) > c->desc.vocab_size)
        status = nf_fail(err, NF_ERR_FORMAT, "%s has ids up to %zu, but vocab_size in config.json is %u",
                         path.data, nf_tokenizer_size(tokenizer) - 1, c->desc.vocab_size);
    nf_tokenizer_free(tokenizer);
    if (!status) status = nf_writer_add_blob(c->writer, "tokenizer", "tokenizer", blob.data, blob.len, err);
    nf_buf_free(&blob);
    nf_buf_free(&path);
    if (status || !t->chat_template.data) return status;
    nf_template *tmpl;
    status = nf_template_parse(t->chat_template.data, t->chat_template.len, &tmpl, err);
    if (status) return nf_context(err, "%s: chat template", c->source_dir);
    nf_template_free(tmpl);
    return nf_writer_add_blob(c->writer, "chat_template", "tokenizer", t->chat_template.data,
                              t->chat_template.len, err);
}

/* Last component of a path, without trailing slashes. */
static nf_status folder_name(const char *path, nf_buf *out, nf_error *err) {
    char *real = realpath(path, NULL);
    if (!real) return nf_fail_errno(err, errno, "%s: cannot resolve", path);
    const char *slash = strrchr(real, '/');
    nf_status status = nf_buf_text(out, slash && slash[1] ? slash + 1 : real, err);
    free(real);
    return status;
}

/* Provenance: files of the checkpoint and their sizes. */
static nf_status store_sources(nf_conversion *c, nf_error *err) {
    json_t *files = json_object();
    for (size_t i = 0; i < nf_safetensors_count(c->st); i++) {
        const nf_st_tensor *t = nf_safetensors_at(c->st, i);
        const char *slash = strrchr(t->file, '/'), *name = slash ? slash + 1 : t->file;
        json_int_t so_far = json_integer_value(json_object_get(files, name));
        json_object_set_new(files, name, json_integer(so_far + (json_int_t)t->bytes));
    }
    char *text = json_dumps(files, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(files);
    nf_status status = text ? nf_writer_meta(c->writer, "converter.sources", text, err)
                            : nf_fail(err, NF_ERR_MEMORY, "out of memory");
    free(text);
    return status;
}

static nf_status store_metadata(nf_conversion *c, const checkpoint_texts *t, const nf_buf *special,
                                nf_error *err) {
    nf_buf name = {0};
    nf_status status = folder_name(c->source_dir, &name, err);
    const nf_format type = c->options->type;
    if (!status) status = nf_writer_meta(c->writer, "model.name", name.data, err);
    if (!status) status = nf_writer_meta(c->writer, "model.config", t->config.data, err);
    if (!status) status = nf_writer_meta(c->writer, "model.type", nf_type_get(type.type)->name, err);
    if (!status) status = nf_writer_meta(c->writer, "model.codebook", nf_codebook_name(type.codebook), err);
    if (!status) status = nf_writer_meta(c->writer, "model.scale", nf_scale_name(type.scale), err);
    if (!status && t->generation_config.data)
        status = nf_writer_meta(c->writer, "model.generation_config", t->generation_config.data, err);
    if (!status && special->data)
        status = nf_writer_meta(c->writer, "tokenizer.special_tokens", special->data, err);
    if (!status) status = nf_writer_meta(c->writer, "converter.version", nf_version(), err);
    if (!status) status = store_sources(c, err);
    nf_buf_free(&name);
    return status;
}

/* ---- the conversion ---- */

static nf_status write_all(nf_conversion *c, const checkpoint_texts *t, const nf_buf *special,
                           const char *out_path, nf_error *err) {
    const nf_writer_options options = {.max_part_bytes = c->options->max_part_bytes};
    nf_status status = nf_writer_create(out_path, &options, &c->writer, err);
    if (!status) status = store_metadata(c, t, special, err);
    if (!status) status = store_texts(c, t, err);
    for (size_t i = 0; i < c->n_specs && !status; i++) {
        nf_object o;
        size_t handle;
        status = nf_recipe_object(c->options, &c->specs[i], &o, err);
        if (!status) status = nf_writer_add(c->writer, &o, &handle, err);
        if (!status) status = nf_convert_spec(c, &c->specs[i], handle, err);
    }
    if (status) {
        nf_writer_abort(c->writer);
        return status;
    }
    status = nf_writer_finish(c->writer, err);
    if (!status && c->options->progress)
        c->options->progress(c->options->progress_user, "convert", c->total, c->total);
    return status;
}

nf_status nf_convert(const char *source, const char *out_path, const nf_convert_options *options,
                     nf_error *err) {
    nf_conversion c;
    checkpoint_texts texts = {0};
    nf_buf special = {0};
    uint64_t bytes = 0;
    init_conversion(&c, source, options);
    nf_status status = read_texts(source, &texts, err);
    if (!status) status = read_tokenizer_config(source, &texts, &special, err);
    if (!status) status = open_checkpoint(&c, &texts, err);
    if (!status) status = nf_conversion_importance(&c, err);
    if (!status) status = find_all(&c, err);
    if (!status) status = estimate(&c, &bytes, err);
    if (!status) status = check_space(out_path, bytes, err);
    if (!status) status = write_all(&c, &texts, &special, out_path, err);
    free_conversion(&c);
    free_texts(&texts);
    nf_buf_free(&special);
    return status;
}

nf_status nf_convert_estimate(const char *source, const nf_convert_options *options, uint64_t *source_bytes,
                              uint64_t *out_bytes, nf_error *err) {
    nf_conversion c;
    checkpoint_texts texts = {0};
    init_conversion(&c, source, options);
    nf_status status = read_texts(source, &texts, err);
    if (!status) status = open_checkpoint(&c, &texts, err);
    if (!status) status = find_all(&c, err);
    if (!status) status = estimate(&c, out_bytes, err);
    *source_bytes = c.total;
    free_conversion(&c);
    free_texts(&texts);
    return status;
}
