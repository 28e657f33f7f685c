/*
 * Logits of every position of a prompt as llama.cpp computes them: f32 [tokens, vocabulary], written raw. For
 * bench/compare.py, which builds it against llama.cpp and holds them against ours. Knows nothing of NInfer.
 *
 *     llama-logits MODEL.gguf OUT.f32 THREADS ID...
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void only_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *what) {
    fprintf(stderr, "llama-logits: %s\n", what);
    return 1;
}

static int write_logits(struct llama_context *ctx, int n, int n_vocab, const char *path) {
    FILE *out = fopen(path, "wb");
    if (!out) return fail("cannot create the output");
    for (int i = 0; i < n; i++) {
        const float *row = llama_get_logits_ith(ctx, i);
        if (!row || fwrite(row, sizeof *row, (size_t)n_vocab, out) != (size_t)n_vocab) {
            fclose(out);
            return fail("cannot write the logits");
        }
    }
    return fclose(out) ? fail("cannot write the logits") : 0;
}

int main(int argc, char **argv) {
    if (argc < 5) return fail("usage: llama-logits MODEL.gguf OUT.f32 THREADS ID...");
    const int n = argc - 4, n_threads = atoi(argv[3]);
    if (n_threads < 1) return fail("THREADS must be a positive number");
    llama_log_set(only_errors, NULL);
    llama_backend_init();
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], of_model);
    if (!model) return fail("cannot load the model");
    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = (uint32_t)(n < 512 ? 512 : n);
    of_context.n_threads = of_context.n_threads_batch = n_threads;
    struct llama_context *ctx = llama_init_from_model(model, of_context);
    if (!ctx) return fail("cannot make a context");
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = atoi(argv[4 + i]);
        if (batch.token[i] < 0 || batch.token[i] >= n_vocab) return fail("a token id outside the vocabulary");
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = n;
    if (llama_decode(ctx, batch)) return fail("llama_decode failed");
    const int status = write_logits(ctx, n, n_vocab, argv[2]);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
    return status;
}
