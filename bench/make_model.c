/*
 * ninfer-bench make-model: a container with the shapes of a published model and random weights, for
 * measurements. Everything is a function of the seed. Weights are uniform with variance 1/K, so activations
 * stay near 1. Experts are put together from a pool of random tiles for each layer: quantising every one
 * would take longer than writing them, and a kernel's time does not depend on values. All other matrices are
 * random throughout (equal rows in a router would tie). Memory does not grow with the model.
 */
#include "bench/bench.h"

#include "base/progress.h"
#include "converter/convert_internal.h" /* the recipe: what is stored in which type */
#include "runtime/tokenizer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_TILES 256 /* of each of an expert's three matrices; for each layer */
#define SLAB_TILES 256

static const struct {
    const char *name;
    int layers, experts, top_k, vocab;
    const char *config; /* without braces; what does not depend on the options */
} presets[] = {
    {"qwen3.6-35b-a3b", 40, 256, 8, 248320,
     "\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":2048,\"num_attention_heads\":"
     "16,"
     "\"num_key_value_heads\":2,\"head_dim\":256,\"max_position_embeddings\":262144,\"rms_norm_eps\":1e-6,"
     "\"full_attention_interval\":4,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,"
     "\"partial_rotary_factor\":0.25},\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,"
     "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,"
     "\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512"},
    {"qwen3-30b-a3b", 48, 128, 8, 151936,
     "\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":4,\"head_dim\":128,\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-6,"
     "\"rope_theta\":1000000,\"moe_intermediate_size\":768,\"norm_topk_prob\":true"},
};
#define N_PRESETS (sizeof presets / sizeof *presets)

typedef struct settings {
    const char *like, *type, *tokenizer_from, *out;
    int64_t layers, experts, vocab, seed;
} settings;

typedef struct maker {
    const settings *o;
    size_t preset;
    nf_convert_options recipe;
    nf_model_desc desc;
    nf_tensor_spec *specs;
    size_t n_specs;
    nf_writer *writer;
    nf_progress bar;
    uint64_t done, total;
} maker;

static volatile int interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

/* ---- random numbers ---- */

static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* n values in low..high. */
static void fill(uint64_t key, float low, float high, float *out, size_t n) {
    uint64_t x = mix(key);
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        out[i] = low + (high - low) * ((float)(x >> 40) * 0x1p-24f);
    }
}

/* What the numbers of tensor `spec`, part `part`, tile `tile` are a function of. */
static uint64_t key_of(const maker *m, size_t spec, uint64_t part, uint64_t tile) {
    return mix(mix(mix((uint64_t)m->o->seed) + spec) + part) + tile;
}

/* The table is one for all tiles: every f8 block has this scale, c4 with e4m3 scales one factor. */
static float table_value(nf_format format, float bound) {
    return format.type == NF_TYPE_F8 ? exp2f(floorf(log2f(bound / 224.0f)))
                                     : nf_c4_factor(format.codebook, bound);
}

/* `n` random tiles of full height to out, tile after tile; the table of a tile's row has `across` entries. */
static nf_status make_tiles(uint64_t key, nf_format format, uint64_t cols, size_t n, size_t last_rows,
                            uint8_t *out, nf_error *err) {
    const uint64_t bytes = nf_matrix_tile_bytes(format, NF_TILE_ROWS, cols);
    const float bound = sqrtf(3.0f / (float)cols);
    const size_t across = (size_t)(cols + NF_F8_BLOCK - 1) / NF_F8_BLOCK;
    float *table = nf_alloc(across, sizeof *table, "a table of scales", err);
    if (!table) return NF_ERR_MEMORY;
    for (size_t i = 0; i < across; i++) table[i] = table_value(format, bound);
    nf_status status = NF_OK;
#pragma omp parallel
    {
        nf_error what = {0};
        float *rows = nf_alloc(NF_TILE_ROWS * (size_t)cols, sizeof *rows, "random rows", &what);
        nf_status own = rows ? NF_OK : NF_ERR_MEMORY;
#pragma omp for schedule(dynamic, 4)
        for (size_t t = 0; t < n; t++) {
            if (own) continue;
            fill(key + t * 0x632BE59BD9B4E019ull, -bound, bound, rows, NF_TILE_ROWS * (size_t)cols);
            own = nf_quantise_tile(format, rows, (size_t)cols, t + 1 == n ? last_rows : NF_TILE_ROWS,
                                   (size_t)cols, nf_format_has_table(format) ? table : NULL, NULL,
                                   out + t * bytes, &what);
        }
        free(rows);
#pragma omp critical
        if (own && !status) {
            status = own;
            *err = what;
        }
    }
    free(table);
    return status;
}

/* ---- writing ---- */

static nf_status advance(maker *m, uint64_t bytes, nf_error *err) {
    m->done += bytes;
    uint64_t shown =
        m->done < m->total ? m->done : m->total - 1; /* the end is reported when it is published */
    return nf_progress_bar(&m->bar, "write", shown, m->total)
               ? NF_OK
               : nf_fail(err, NF_ERR_CANCELLED, "cancelled; nothing was written");
}

static nf_status write_bank(maker *m, size_t i, const nf_object *bank, size_t handle, nf_error *err) {
    uint8_t *pool[3] = {0}, *blob = nf_calloc(1, bank->expert_stride, "an expert", err);
    nf_status status = blob ? NF_OK : NF_ERR_MEMORY;
    for (uint64_t p = 0; p < 3 && !status; p++) {
        const nf_bank_matrix *b = &bank->matrix[p];
        pool[p] = nf_alloc(POOL_TILES, nf_matrix_tile_bytes(b->format, NF_TILE_ROWS, b->cols), "tiles", err);
        status = pool[p] ? make_tiles(key_of(m, i, p, 0), b->format, b->cols, POOL_TILES, NF_TILE_ROWS,
                                      pool[p], err)
                         : NF_ERR_MEMORY;
        const float scale = table_value(b->format, sqrtf(3.0f / (float)b->cols));
        const uint64_t entries = nf_matrix_table_bytes(b->format, b->rows, b->cols) / sizeof scale;
        for (uint64_t t = 0; t < entries; t++)
            memcpy(blob + b->scale_offset + t * sizeof scale, &scale, sizeof scale);
    }
    for (uint64_t e = 0; e < bank->n_experts && !status; e++) {
        for (uint64_t p = 0; p < 3; p++) {
            const nf_bank_matrix *b = &bank->matrix[p];
            const uint64_t bytes = nf_matrix_tile_bytes(b->format, NF_TILE_ROWS, b->cols);
            for (uint64_t t = 0; t < b->rows / NF_TILE_ROWS; t++)
                memcpy(blob + b->offset + t * b->tile_stride,
                       pool[p] + key_of(m, i, 3 + p, mix(e) + t * 0x9E3779B97F4A7C15ull) % POOL_TILES * bytes,
                       bytes);
        }
        status = nf_writer_write_expert(m->writer, handle, e, blob, err);
        if (!status) status = advance(m, bank->expert_stride, err);
    }
    for (int p = 0; p < 3; p++) free(pool[p]);
    free(blob);
    return status;
}

static nf_status write_matrix(maker *m, size_t i, const nf_object *o, size_t handle, nf_error *err) {
    const uint64_t rows = o->shape[0], cols = o->shape[1], end = nf_matrix_tile_bytes(o->format, rows, cols),
                   tile = nf_matrix_tile_bytes(o->format, NF_TILE_ROWS, cols),
                   n_tiles = (rows + NF_TILE_ROWS - 1) / NF_TILE_ROWS, rest = o->bytes - end;
    uint8_t *slab = nf_alloc(SLAB_TILES, tile, "a slab of tiles", err);
    float *table = nf_calloc(1, rest + sizeof *table, "a table of scales", err);
    nf_status status = slab && table ? NF_OK : NF_ERR_MEMORY;
    for (uint64_t t = 0; t < n_tiles && !status; t += SLAB_TILES) {
        const uint64_t n = n_tiles - t < SLAB_TILES ? n_tiles - t : SLAB_TILES;
        const uint64_t last = t + n == n_tiles ? rows - (n_tiles - 1) * NF_TILE_ROWS : NF_TILE_ROWS;
        status = make_tiles(key_of(m, i, t, 0), o->format, cols, n, last, slab, err);
        if (!status) status = nf_writer_write(m->writer, handle, t * tile, slab, n * tile, err);
        if (!status) status = advance(m, n * tile, err);
    }
    if (!status && rest) {
        const uint64_t at = nf_matrix_table_offset(o->format, rows, cols) - end;
        const float scale = table_value(o->format, sqrtf(3.0f / (float)cols));
        for (uint64_t b = at; b + sizeof scale <= rest; b += sizeof scale)
            memcpy((uint8_t *)table + b, &scale, sizeof scale);
        status = nf_writer_write(m->writer, handle, end, table, rest, err);
        if (!status) status = advance(m, rest, err);
    }
    free(table);
    free(slab);
    return status;
}

/* Norms are 1, decays what a trained model has, taps of variance 1/taps. */
static nf_status write_vector(maker *m, size_t i, const nf_object *o, size_t handle, nf_error *err) {
    const size_t n = (size_t)(o->bytes / sizeof(float));
    float *v = nf_alloc(n, sizeof *v, "a vector", err);
    if (!v) return NF_ERR_MEMORY;
    const uint64_t key = key_of(m, i, 0, 0);
    if (strstr(o->name, "A_log")) {
        fill(key, 0.0f, 2.77f, v, n); /* log 1 .. log 16 */
    } else if (strstr(o->name, "dt_bias")) {
        fill(key, -6.0f, -2.0f, v, n);
    } else if (strstr(o->name, "conv1d")) {
        const float bound = sqrtf(3.0f / (float)o->shape[o->n_dims - 1]);
        fill(key, -bound, bound, v, n);
    } else {
        const float one = m->desc.norms_add_one && !strstr(o->name, "linear_attn.norm") ? 0.0f : 1.0f;
        for (size_t k = 0; k < n; k++) v[k] = one;
    }
    nf_status status = nf_writer_write(m->writer, handle, 0, v, o->bytes, err);
    free(v);
    return status ? status : advance(m, o->bytes, err);
}

static nf_status write_spec(maker *m, size_t i, nf_error *err) {
    nf_object o;
    size_t handle;
    nf_status status = nf_recipe_object(&m->recipe, &m->specs[i], &o, err);
    if (!status) status = nf_writer_add(m->writer, &o, &handle, err);
    if (status) return status;
    if (o.kind == NF_OBJECT_BANK) return write_bank(m, i, &o, handle, err);
    return o.tiled ? write_matrix(m, i, &o, handle, err) : write_vector(m, i, &o, handle, err);
}

static nf_status check_tokenizer(const maker *m, const nf_buf *blob, nf_error *err) {
    nf_tokenizer *tokenizer;
    nf_status status = nf_tokenizer_load(blob->data, blob->len, &tokenizer, err);
    if (status) return nf_context(err, "%s: tokenizer", m->o->tokenizer_from);
    const size_t n = nf_tokenizer_size(tokenizer);
    nf_tokenizer_free(tokenizer);
    return n <= m->desc.vocab_size
               ? NF_OK
               : nf_fail(err, NF_ERR_ARGUMENT, "the tokenizer of %s has %zu ids, more than --vocab %u",
                         m->o->tokenizer_from, n, m->desc.vocab_size);
}

/* Tokenizer, chat template and special tokens of another container. */
static nf_status copy_texts(maker *m, nf_error *err) {
    nf_container *from;
    nf_status status = nf_container_open(m->o->tokenizer_from, &from, err);
    if (status) return nf_context(err, "--tokenizer-from");
    static const char *const names[] = {"tokenizer", "chat_template"};
    for (int k = 0; k < 2 && !status; k++) {
        const nf_object *blob = nf_container_find(from, names[k]);
        nf_buf bytes = {0};
        if (!blob && k == 0)
            status = nf_fail(err, NF_ERR_FORMAT, "%s: holds no tokenizer", m->o->tokenizer_from);
        if (blob) status = nf_container_read_blob(from, blob, &bytes, err);
        if (blob && !status && k == 0) status = check_tokenizer(m, &bytes, err);
        if (blob && !status)
            status = nf_writer_add_blob(m->writer, names[k], "tokenizer", bytes.data, bytes.len, err);
        nf_buf_free(&bytes);
    }
    const char *special = nf_container_meta(from, "tokenizer.special_tokens");
    if (!status && special) status = nf_writer_meta(m->writer, "tokenizer.special_tokens", special, err);
    nf_container_close(from);
    return status;
}

static nf_status write_all(maker *m, const char *config, nf_error *err) {
    const nf_format type = m->recipe.type;
    char name[96];
    snprintf(name, sizeof name, "random-%s", m->o->like);
    nf_status status = nf_writer_create(m->o->out, NULL, &m->writer, err);
    if (!status) status = nf_writer_meta(m->writer, "model.name", name, err);
    if (!status) status = nf_writer_meta(m->writer, "model.config", config, err);
    if (!status) status = nf_writer_meta(m->writer, "model.type", nf_type_get(type.type)->name, err);
    if (!status) status = nf_writer_meta(m->writer, "model.codebook", nf_codebook_name(type.codebook), err);
    if (!status) status = nf_writer_meta(m->writer, "model.scale", nf_scale_name(type.scale), err);
    if (!status) status = copy_texts(m, err);
    for (size_t i = 0; i < m->n_specs && !status; i++) status = write_spec(m, i, err);
    if (status) {
        nf_writer_abort(m->writer);
        return status;
    }
    status = nf_writer_finish(m->writer, err);
    if (!status) nf_progress_bar(&m->bar, "write", m->total, m->total);
    return status;
}

static nf_status make(maker *m, nf_error *err) {
    nf_buf config = {0};
    const int64_t experts = m->o->experts ? m->o->experts : presets[m->preset].experts;
    nf_status status = nf_buf_printf(
        &config, err,
        "{%s,\"vocab_size\":%lld,\"num_hidden_layers\":%lld,\"num_experts\":%lld,\"num_experts_per_tok\":%d}",
        presets[m->preset].config, (long long)(m->o->vocab ? m->o->vocab : presets[m->preset].vocab),
        (long long)(m->o->layers ? m->o->layers : presets[m->preset].layers), (long long)experts,
        presets[m->preset].top_k);
    if (!status) status = nf_model_desc_parse(config.data, config.len, m->o->like, &m->desc, err);
    if (!status) status = nf_model_desc_tensors(&m->desc, &m->specs, &m->n_specs, err);
    for (size_t i = 0; i < m->n_specs && !status; i++) {
        nf_object o;
        status = nf_recipe_object(&m->recipe, &m->specs[i], &o, err);
        if (!status) m->total += o.bytes;
    }
    if (!status) status = write_all(m, config.data, err);
    free(m->specs);
    nf_model_desc_free(&m->desc);
    nf_buf_free(&config);
    return status;
}

int nf_bench_make_model(int argc, char **argv) {
    settings o = {.type = "c4", .tokenizer_from = "build/tiny-moe.ninfer", .seed = 1};
    const nf_opt options[] = {{.name = "like",
                               .kind = NF_OPT_TEXT,
                               .dst = &o.like,
                               .value = "MODEL",
                               .help = "shapes of qwen3.6-35b-a3b or qwen3-30b-a3b"},
                              {.name = "layers",
                               .kind = NF_OPT_INT,
                               .dst = &o.layers,
                               .value = "N",
                               .min = 1,
                               .max = 4096,
                               .help = "layers (default: all of the model's)"},
                              {.name = "experts",
                               .kind = NF_OPT_INT,
                               .dst = &o.experts,
                               .value = "N",
                               .min = 8,
                               .max = 65536,
                               .help = "routed experts of a layer (default: the model's)"},
                              {.name = "vocab",
                               .kind = NF_OPT_INT,
                               .dst = &o.vocab,
                               .value = "N",
                               .min = 1,
                               .max = 1 << 24,
                               .help = "rows of embedding and head (default: the model's)"},
                              {.name = "type",
                               .kind = NF_OPT_TEXT,
                               .dst = &o.type,
                               .value = "TYPE",
                               .help = "c4, z4, a4, s5, s6, i8, f8, bf16, f16 or f32 (default c4)"},
                              {.name = "seed",
                               .kind = NF_OPT_INT,
                               .dst = &o.seed,
                               .value = "N",
                               .min = 0,
                               .max = 1e15,
                               .help = "the weights are a function of it (default 1)"},
                              {.name = "tokenizer-from",
                               .kind = NF_OPT_TEXT,
                               .dst = &o.tokenizer_from,
                               .value = "FILE",
                               .help = "container whose tokenizer is copied (default build/tiny-moe.ninfer)"},
                              {0}};
    const nf_args_spec spec = {
        .program = "ninfer-bench make-model",
        .usage = "--like MODEL OUT.ninfer [options]",
        .about =
            "Writes a container with the shapes of a published model and random weights. It measures what "
            "the model\nwould; what it says is noise. Experts are put together from a pool of 256 random "
            "tiles "
            "for each of a\nlayer's three expert matrices, c4 uses the linear codebook. Free space is not "
            "checked beforehand.",
        .options = options,
        .min_positional = 1,
        .max_positional = 1};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &o.out, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    maker m = {.o = &o, .bar = {.out = stderr, .cancel = &interrupted}};
    while (m.preset < N_PRESETS && o.like && strcmp(o.like, presets[m.preset].name) != 0) m.preset++;
    if (!o.like || m.preset == N_PRESETS)
        return nf_usage_error(&spec, "--like must be qwen3.6-35b-a3b or qwen3-30b-a3b, whose families exist");
    nf_format *type = &m.recipe.type;
    if (!nf_type_by_name(o.type, &type->type) || type->type == NF_TYPE_U8)
        return nf_usage_error(&spec, "--type must be c4, z4, a4, s5, s6, i8, f8, bf16, f16 or f32, not '%s'",
                              o.type);
    if (type->type == NF_TYPE_C4) type->codebook = NF_CODEBOOK_LINEAR;
    signal(SIGINT, on_interrupt);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is then an error of write, with a message */
    nf_error err = {0};
    if (!make(&m, &err)) return 0;
    fprintf(stderr, "%s: %s\n", spec.program, err.message);
    return 1;
}
