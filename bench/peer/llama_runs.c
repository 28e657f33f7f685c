/*
 * llama.cpp as bench/compare.py uses it: one loaded model that does what the lines of standard input say and
 * answers each with a line, so that two programs can take turns every second. The tokens and the commands are
 * those of `ninfer-bench model --turns`; the calls and parameters are those of llama-bench. Built against
 * llama.cpp by compare.py; knows nothing of NInfer.
 *
 *     llama-runs MODEL.gguf THREADS FLASH_ATTENTION REPACK mmap|none PROMPT_TOKENS DECODED_TOKENS
 *
 *     prefill         the prompt from an empty context -> seconds
 *     start           empty context -> 0
 *     decode N        the next N tokens, one by one -> seconds
 *     prompt FILE     int32 [prompt tokens], raw: the prompt from now on -> 0
 *     logits FILE     f32 [prompt tokens, vocabulary] of every position of the prompt, raw -> 0
 */
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct llama_model *model;
static struct llama_context *context;
static struct llama_batch batch;
static int n_prompt, n_decoded, n_vocab, position;
static int32_t *ids; /* [n_prompt + n_decoded] */

static void only_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void fail(const char *what) {
    fprintf(stderr, "llama-runs: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void load(char **argv) {
    const int n_threads = atoi(argv[2]);
    n_prompt = atoi(argv[6]);
    n_decoded = atoi(argv[7]);
    if (n_threads < 1 || n_prompt < 1 || n_decoded < 1) fail("numbers must be positive");
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 0;
    of_model.use_extra_bufts = atoi(argv[4]) != 0;
    of_model.load_mode = llama_load_mode_from_str(argv[5]);
    model = llama_model_load_from_file(argv[1], of_model);
    if (!model) fail("cannot load the model");
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = (uint32_t)(n_prompt > n_decoded ? n_prompt : n_decoded);
    of_context.n_batch = 2048;
    of_context.n_ubatch = 512;
    of_context.flash_attn_type =
        atoi(argv[3]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    of_context.n_threads = of_context.n_threads_batch = n_threads;
    context = llama_init_from_model(model, of_context);
    if (!context) fail("cannot make a context");
    struct ggml_threadpool_params of_pool = ggml_threadpool_params_default(n_threads);
    struct ggml_threadpool *pool = ggml_threadpool_new(&of_pool);
    if (!pool) fail("cannot make threads");
    llama_attach_threadpool(context, pool, NULL);
}

static void make_tokens(void) {
    const int n = n_prompt + n_decoded;
    ids = malloc((size_t)n * sizeof *ids);
    batch = llama_batch_init(n_prompt, 0, 1);
    if (!ids || !batch.token) fail("out of memory");
    uint64_t x = 1;
    for (int i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        ids[i] = (int32_t)((x >> 33) % (uint64_t)n_vocab);
    }
}

/* Evaluates ids[first..first+n) behind the context. */
static void evaluate(int first, int n, int all_logits) {
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = ids[first + i];
        batch.pos[i] = position++;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all_logits || i + 1 == n;
    }
    if (llama_decode(context, batch)) fail("llama_decode failed");
    llama_synchronize(context);
}

static void start(void) {
    llama_memory_clear(llama_get_memory(context), false);
    position = 0;
}

static double prefill(void) {
    start();
    const double begin = now();
    evaluate(0, n_prompt, 0);
    return now() - begin;
}

static double decode(int n) {
    if (n < 1 || position + n > n_decoded) fail("more tokens than were announced");
    const double begin = now();
    for (int i = 0; i < n; i++) evaluate(n_prompt + position, 1, 0);
    return now() - begin;
}

static void prompt(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in || fread(ids, sizeof *ids, (size_t)n_prompt, in) != (size_t)n_prompt) fail("cannot read the prompt");
    fclose(in);
    for (int i = 0; i < n_prompt; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab) fail("a token id outside the vocabulary");
}

static void logits(const char *path) {
    FILE *out = fopen(path, "wb");
    if (!out) fail("cannot create the file of logits");
    start();
    evaluate(0, n_prompt, 1);
    for (int i = 0; i < n_prompt; i++) {
        const float *row = llama_get_logits_ith(context, i);
        if (!row || fwrite(row, sizeof *row, (size_t)n_vocab, out) != (size_t)n_vocab)
            fail("cannot write logits");
    }
    if (fclose(out)) fail("cannot write logits");
}

int main(int argc, char **argv) {
    if (argc != 8) fail("usage: llama-runs MODEL THREADS FLASH_ATTENTION REPACK mmap|none PROMPT DECODED");
    llama_log_set(only_errors, NULL);
    llama_backend_init();
    load(argv);
    make_tokens();
    prefill(); /* touches every page */
    puts("ready");
    fflush(stdout);
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        double answer = 0.0;
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "prefill"))
            answer = prefill();
        else if (!strcmp(line, "start"))
            start();
        else if (!strncmp(line, "decode ", 7))
            answer = decode(atoi(line + 7));
        else if (!strncmp(line, "prompt ", 7))
            prompt(line + 7);
        else if (!strncmp(line, "logits ", 7))
            logits(line + 7);
        else
            fail("unknown command");
        printf("%.9f\n", answer);
        fflush(stdout);
    }
    return 0;
}
