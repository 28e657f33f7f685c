/*
 * NInfer: run a Mixture-of-Experts language model stored in a .ninfer container.
 *
 * This is the library's only public header. A program opens a model, makes a session (the state of one
 * sequence: KV cache and recurrent state) and generates:
 *
 *   nf_error err = {0};
 *   nf_model *model = NULL;
 *   nf_session *session = NULL;
 *   if (nf_model_open("tiny-moe.ninfer", NULL, &model, &err)) ...        // err.message says what is wrong
 *   if (nf_session_new(model, NULL, &session, &err)) ...
 *   int32_t *ids; size_t n_ids;
 *   nf_tokenize(model, "Debian is", 9, true, &ids, &n_ids, &err);
 *   nf_generate_options options = nf_generate_defaults();
 *   nf_generation answer;
 *   nf_session_generate(session, ids, n_ids, &options, &answer, &err);
 *   fwrite(answer.text, 1, answer.text_bytes, stdout);
 *   nf_generation_free(&answer); nf_free(ids); nf_session_free(session); nf_model_free(model);
 *
 * A complete program is runtime/examples/generate.c.
 *
 * Promise: greedy and seeded output depends on the container and the input alone; it is byte-identical for
 * every number of threads and every prefill chunk.
 *
 * Threads: a model may be shared by sessions; functions that take a session must not run at the same time for
 * the same session (nf_session_cancel excepted), and sessions of one model compute one at a time. Memory:
 * what a function allocates for the caller is released with nf_free unless stated otherwise.
 */
#ifndef NINFER_H
#define NINFER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nf_model nf_model;
typedef struct nf_session nf_session;

/* Frees memory that this library returned. Accepts NULL. */
NF_API void nf_free(void *p);

/* ---- models ---- */

typedef struct nf_model_options {
    int n_threads; /* 0: one per physical core this process may use, within its
                    quota of processor time */
    bool no_pin;   /* leave threads to the system's scheduler; without it NINFER_PIN=0 or 1
                    * decides, and otherwise a team that has every allowed core of several
                    * NUMA nodes is pinned */
    /* Where weights are: "map" (NULL means it): used in the mapped file; "ram": copied to memory, on huge
     * pages where the system gives them, interleaved over NUMA nodes; "auto": ram where half of the free
     * memory is enough for it and it helps (several nodes, or a fresh `ninfer-bench machine` says that huge
     * pages do). Never changes the result. */
    const char *weights;
    bool verify;             /* check every tensor's checksum before the first use */
    nf_progress_fn progress; /* may be NULL; called during verification and while weights are copied */
    void *progress_user;
} nf_model_options;

/* Opens a container: maps it, checks heads, directory and blobs, builds the tokenizer and the chat template
 * and checks that every tensor of the model family is there with the right shape. options may be NULL
 * (defaults: all zero). */
NF_API nf_status nf_model_open(const char *path, const nf_model_options *options, nf_model **out,
                               nf_error *err);
/* Accepts NULL. All sessions of the model must have been freed. */
NF_API void nf_model_free(nf_model *model);

typedef struct nf_model_info {
    const char *path;         /* as given to nf_model_open */
    const char *name;         /* name of the source folder at conversion, e.g. "tiny-moe" */
    const char *architecture; /* "qwen3_5_moe_text" */
    const char *type;         /* storage type of the recipe: "c4" */
    uint32_t n_layers, hidden, n_experts, top_k;
    uint32_t vocab_size;         /* columns of the logits */
    uint32_t max_context;        /* tokens, prompt and answer together */
    uint64_t file_bytes;         /* all parts */
    uint64_t weight_bytes;       /* bytes of tensors that inference maps (banks included) */
    uint64_t expert_bytes;       /* of these: expert banks */
    uint64_t kv_bytes_per_token; /* with f32 entries; nf_session_get_info has a session's own */
    uint64_t state_bytes;        /* recurrent and convolution state of one session */
    uint64_t workspace_bytes;    /* scratch of one session at the default prefill chunk */
    int n_threads;               /* threads in use */
    bool pinned;                 /* each to a core of its own */
    const char *pinning;         /* why so or not, in a few words */
    const char *weights;         /* where the weights are, and what of huge pages and nodes was got */
    const char *isa;             /* kernels in use: "portable", "avx2", "avx512" */
    bool has_chat_template;
} nf_model_info;

/* Strings live as long as the model. */
NF_API void nf_model_get_info(const nf_model *model, nf_model_info *out);

/* ---- text ---- */

/* Tokenizes UTF-8 text. With parse_special, added tokens written in the text ("<|im_end|>") become their ids;
 * without, they are ordinary text. *ids is released with nf_free. Empty text gives 0 ids and *ids = NULL. */
NF_API nf_status nf_tokenize(const nf_model *model, const char *text, size_t n_bytes, bool parse_special,
                             int32_t **ids, size_t *n_ids, nf_error *err);
/* Text of ids (special tokens skipped when asked); always valid UTF-8: broken sequences become U+FFFD.
 * NUL-terminated. */
NF_API nf_status nf_detokenize(const nf_model *model, const int32_t *ids, size_t n_ids, bool skip_special,
                               char **text, size_t *n_bytes, nf_error *err);
/* Renders the model's chat template. `request` is a JSON object in the form of the chat-completions API:
 *   {"messages":[{"role":"user","content":"Hi"}], "tools":[...], "add_generation_prompt":true,
 * "enable_thinking":false} every member becomes a variable of the template, as do the model's bos_token,
 * eos_token, unk_token and pad_token. The result is tokenized with parse_special = true. */
NF_API nf_status nf_chat_prompt(const nf_model *model, const char *request, char **text, size_t *n_bytes,
                                nf_error *err);

/* ---- sessions ---- */

typedef struct nf_session_options {
    uint32_t max_context;   /* 0: the model's; larger values are an error */
    uint32_t prefill_chunk; /* tokens computed together; 0: 512. Never changes the result. */
    /* Type of the KV cache's entries: "f32" (NULL means it), "bf16", "fp8" (e4m3, a scale for each token and
     * head) or "q8" (int8, a scale for 32 values). The smaller ones change the result a little
     * (bench/results/kv.md), but like f32 in the same way for every number of threads and every chunk. */
    const char *kv_dtype;
} nf_session_options;

NF_API nf_status nf_session_new(nf_model *model, const nf_session_options *options, nf_session **out,
                                nf_error *err);
NF_API void nf_session_free(nf_session *session);

typedef struct nf_session_info {
    uint32_t max_context, prefill_chunk; /* tokens */
    const char *kv_dtype;                /* "f32", "bf16", "fp8", "q8"; static memory */
    uint64_t kv_bytes_per_token;         /* all layers, scales included */
    uint64_t kv_bytes;                   /* held now: whole pages of 256 tokens */
    uint64_t state_bytes;                /* recurrent and convolution state, checkpoints not counted */
} nf_session_info;

NF_API void nf_session_get_info(const nf_session *session, nf_session_info *out);
/* Forgets the sequence. */
NF_API void nf_session_reset(nf_session *session);
/* Tokens evaluated so far. */
NF_API uint32_t nf_session_position(const nf_session *session);
/* Asks a running nf_session_eval or nf_session_generate to stop at the next step; async-signal-safe and
 * thread-safe. */
NF_API void nf_session_cancel(nf_session *session);

/* Receives logits [n, vocab_size] of positions first..first+n-1; the memory is valid during the call. Return
 * false to stop (NF_ERR_CANCELLED). */
typedef bool (*nf_logits_fn)(void *user, uint32_t first, uint32_t n, const float *logits);

/* Appends n >= 1 tokens to the sequence. With `each`, logits of every one of them are computed and handed
 * over in order; without, only the last token's (nf_session_logits). NF_ERR_LIMIT when the context would
 * overflow (nothing is evaluated then), NF_ERR_ARGUMENT for ids outside the vocabulary (likewise).
 * NF_ERR_CANCELLED after nf_session_cancel: the tokens before nf_session_position were evaluated. After any
 * other error the session is reset. */
NF_API nf_status nf_session_eval(nf_session *session, const int32_t *ids, size_t n, nf_logits_fn each,
                                 void *user, nf_error *err);
/* Logits [vocab_size] after the last token; NULL when nothing was evaluated. Valid until the next call with
 * the session. */
NF_API const float *nf_session_logits(const nf_session *session);

/* ---- generation ---- */

/* Order: repetition, presence and frequency penalties (over prompt and answer for repetition; over the answer
 * for the other two, as the OpenAI API defines them), temperature, top-k, top-p, min-p, then Gumbel-max with
 * noise that is a function of (seed, position in the answer). */
typedef struct nf_sampling {
    double temperature;        /* 0: greedy, everything below but the penalties is ignored */
    int32_t top_k;             /* 0: off */
    double top_p;              /* 1: off */
    double min_p;              /* 0: off */
    double repetition_penalty; /* 1: off */
    double presence_penalty;   /* 0: off */
    double frequency_penalty;  /* 0: off */
    uint64_t seed;
} nf_sampling;

/* Greedy, no penalties. */
NF_API nf_sampling nf_sampling_greedy(void);
/* The generation defaults stored with the model (seed 0); greedy where it names none. */
NF_API nf_sampling nf_model_sampling(const nf_model *model);

typedef struct nf_generate_options {
    nf_sampling sampling;
    uint32_t max_tokens;     /* of the answer; generation also ends when the context is full */
    bool ignore_eos;         /* stop tokens are ordinary tokens */
    bool keep_special;       /* special tokens are part of the text */
    const char *const *stop; /* stop strings (UTF-8, not empty); the text ends before the first one found */
    size_t n_stop;
    /* Called with each piece of text as soon as it is certain (never a broken UTF-8 sequence, never part of a
     * stop string). Return false to end the answer (finish = NF_FINISH_CANCELLED). May be NULL. */
    bool (*on_text)(void *user, const char *text, size_t n_bytes);
    void *user;
} nf_generate_options;

/* Greedy, 256 tokens, no stop strings. */
NF_API nf_generate_options nf_generate_defaults(void);

typedef enum nf_finish {
    NF_FINISH_STOP_TOKEN,
    NF_FINISH_STOP_STRING,
    NF_FINISH_LENGTH,   /* max_tokens */
    NF_FINISH_CONTEXT,  /* the context is full */
    NF_FINISH_CANCELLED /* nf_session_cancel or on_text said so */
} nf_finish;

typedef struct nf_generation {
    int32_t *ids; /* tokens of the answer, without the stop token */
    size_t n_ids;
    char *text; /* NUL-terminated valid UTF-8 */
    size_t text_bytes;
    nf_finish finish;
    uint32_t prompt_tokens;     /* of the whole prompt */
    uint32_t reused_tokens;     /* of these: taken from the session's state */
    double prefill_s, decode_s; /* seconds; decode_s covers the n_ids - 1 steps after the first token */
} nf_generation;

/* Answers a prompt. What the session has already evaluated is reused as far as it is a prefix of the prompt
 * (recurrent layers resume at the last checkpoint before the difference). `out` is filled also when the
 * answer was cancelled; release it with nf_generation_free. NF_ERR_ARGUMENT for an empty prompt, NF_ERR_LIMIT
 * when the prompt leaves no room. */
NF_API nf_status nf_session_generate(nf_session *session, const int32_t *prompt, size_t n_prompt,
                                     const nf_generate_options *options, nf_generation *out, nf_error *err);
NF_API void nf_generation_free(nf_generation *g);

#ifdef __cplusplus
}
#endif
#endif
