/*
 * ninfer: plain generation, token ids and logits for scripts. The answer (or the JSON that was asked for)
 * goes to standard output, everything else to standard error.
 */
#include "base/args.h"
#include "base/buf.h"
#include "base/progress.h"
#include "runner/load.h"
#include "runner/npy.h"
#include "runner/sampling_args.h"
#include "runner/session_args.h"
#include "runner/terminal.h"
#include "runtime/ninfer.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "ninfer"

static struct {
    const char *prompt, *file, *ids, *dump_logits, *kv_dtype;
    bool has_prompt, has_file, has_ids, has_n, chat, tokenize, ignore_eos, json;
    int64_t n, prefill_chunk, max_context;
    nf_load_args load;
    nf_text_list stop;
    nf_sampling_args sampling;
} args = {.n = 256};

static const nf_opt options[] = {
    {"prompt", 'p', NF_OPT_TEXT, &args.prompt, "TEXT", "the prompt", 0, 0, &args.has_prompt},
    {"file", 'f', NF_OPT_TEXT, &args.file, "FILE",
     "read the prompt from FILE (-: standard input), every byte of it", 0, 0, &args.has_file},
    {"ids", 0, NF_OPT_TEXT, &args.ids, "JSON", "the prompt as a JSON array of token ids", 0, 0,
     &args.has_ids},
    {"max-tokens", 'n', NF_OPT_INT, &args.n, "N", "longest answer in tokens (default 256)", 0, INT32_MAX,
     &args.has_n},
    {"chat", 0, NF_OPT_FLAG, &args.chat, NULL,
     "the prompt is a user message: apply the chat template and the\nmodel's own sampling defaults (default: "
     "raw text, greedy)",
     0, 0, NULL},
    NF_SAMPLING_OPTIONS(args.sampling, "0, with --chat the model's"),
    {"seed", 0, NF_OPT_INT, &args.sampling.seed, "N",
     "of sampling; the same seed gives the same answer (default 0)", 0, 9e18, &args.sampling.has_seed},
    {"stop", 0, NF_OPT_LIST, &args.stop, "TEXT", "end the answer before TEXT; may be given several times", 0,
     0, NULL},
    {"ignore-eos", 0, NF_OPT_FLAG, &args.ignore_eos, NULL, "treat stop tokens as ordinary tokens", 0, 0,
     NULL},
    {"tokenize", 0, NF_OPT_FLAG, &args.tokenize, NULL,
     "print the prompt's token ids as one JSON array and exit", 0, 0, NULL},
    {"dump-logits", 0, NF_OPT_TEXT, &args.dump_logits, "FILE",
     "write the prompt's logits, f32 [tokens, vocabulary], as .npy;\nno answer then unless -n is given", 0, 0,
     NULL},
    {"json", 0, NF_OPT_FLAG, &args.json, NULL, "print ids, text, counts and times as one JSON object", 0, 0,
     NULL},
    {"max-context", 0, NF_OPT_INT, &args.max_context, "N",
     "tokens of prompt and answer (default: the model's limit)", 1, INT32_MAX, NULL},
    {"prefill-chunk", 0, NF_OPT_INT, &args.prefill_chunk, "N",
     "prompt tokens computed together (default 512)", 1, 65536, NULL},
    NF_KV_DTYPE_OPTION(args.kv_dtype),
    NF_LOAD_OPTIONS(args.load),
    {0}};

static const nf_args_spec spec = {
    .program = PROGRAM,
    .usage = "MODEL.ninfer -p TEXT | -f FILE | --ids JSON [options]",
    .about =
        "Continues a text (or, with --chat, answers a message). The answer is printed as it comes; greedy\n"
        "and seeded output is the same for every number of threads and every prefill chunk.",
    .options = options,
    .footer = "examples:\n"
              "  ninfer tiny-moe.ninfer -p 'The package libcurl4 is' -n 40\n"
              "  ninfer tiny-moe.ninfer --chat -p 'What is 23 + 19?' --temperature 0\n"
              "  ninfer tiny-moe.ninfer -f prompt.txt --dump-logits logits.npy\n\n"
              "exit status: 0, 1 after an error, 2 after a usage error",
    .min_positional = 1,
    .max_positional = 1,
};

/* ---- checks before the long work ---- */

/* Returns 0, or 2 after printing what is wrong. */
static int check_usage(void) {
    int sources = args.has_prompt + args.has_file + args.has_ids;
    if (!sources) return nf_usage_error(&spec, "give a prompt with -p TEXT, -f FILE or --ids JSON");
    if (sources > 1) return nf_usage_error(&spec, "give only one of -p, -f and --ids");
    if (args.has_ids && args.chat)
        return nf_usage_error(&spec, "--chat needs text; --ids are used as they are");
    if (args.has_ids && args.tokenize) return nf_usage_error(&spec, "--tokenize needs text, not --ids");
    if (args.tokenize && args.json)
        return nf_usage_error(&spec, "--tokenize prints a JSON array already; leave out --json");
    if (args.tokenize && args.dump_logits)
        return nf_usage_error(&spec, "--tokenize computes no logits; leave out --dump-logits");
    for (size_t i = 0; i < args.stop.n; i++)
        if (!args.stop.items[i][0]) return nf_usage_error(&spec, "--stop must not be empty");
    nf_kv_type kv_type;
    return nf_kv_dtype_check(&spec, args.kv_dtype, &kv_type);
}

static nf_status check_stops(nf_error *err) {
    nf_status status = NF_OK;
    for (size_t i = 0; i < args.stop.n && !status; i++)
        status = nf_check_utf8(args.stop.items[i], strlen(args.stop.items[i]), "--stop", err);
    return status;
}

/* ---- the prompt ---- */

typedef struct prompt_ids {
    int32_t *ids;
    size_t n;
} prompt_ids;

/* Parses --ids. Returns 0, 2 after a usage error, 1 after another. */
static int parse_ids(prompt_ids *out) {
    json_error_t where;
    json_t *array = json_loads(args.ids, 0, &where);
    int status = 0;
    if (!array)
        status = nf_usage_error(&spec, "--ids is not JSON: %s (column %d)", where.text, where.column);
    else if (!json_is_array(array))
        status = nf_usage_error(&spec, "--ids wants a JSON array such as [1, 2, 3]");
    size_t n = status ? 0 : json_array_size(array);
    nf_error err = {0};
    if (!status && n && !(out->ids = nf_alloc(n, sizeof *out->ids, "token ids", &err)))
        status = nf_report(PROGRAM, &err);
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            status = nf_usage_error(&spec, "--ids: item %zu is not a token id", i);
        else
            out->ids[out->n++] = (int32_t)id;
    }
    json_decref(array);
    return status;
}

/* The chat prompt for one user message, in place of the message. */
static nf_status apply_template(const nf_model *model, nf_buf *text, const char *name, nf_error *err) {
    if (text->len && memchr(text->data, 0, text->len))
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: a chat message must not contain a NUL byte", name);
    json_t *root = json_pack("{s:[{s:s,s:s%}],s:b}", "messages", "role", "user", "content",
                             text->data ? text->data : "", text->len, "add_generation_prompt", 1);
    char *request = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    nf_status status = NF_OK;
    char *rendered = NULL;
    size_t n = 0;
    if (!request) status = nf_fail(err, NF_ERR_MEMORY, "out of memory for the chat request");
    if (!status) status = nf_chat_prompt(model, request, &rendered, &n, err);
    if (!status) {
        text->len = 0;
        status = nf_buf_append(text, rendered, n, err);
    }
    nf_free(rendered);
    free(request);
    return status;
}

static nf_status tokenize_prompt(const nf_model *model, prompt_ids *out, nf_error *err) {
    const char *name = args.has_prompt ? "-p" : !strcmp(args.file, "-") ? "standard input" : args.file;
    nf_buf text = {0};
    nf_status status;
    if (args.has_prompt) {
        status = nf_check_utf8(args.prompt, strlen(args.prompt), name, err);
        if (!status) status = nf_buf_text(&text, args.prompt, err);
    } else {
        status = nf_load_text(args.file, &text, err);
    }
    if (!status && !text.len && !args.tokenize)
        status = nf_fail(err, NF_ERR_ARGUMENT, "%s: the prompt is empty", name);
    if (!status && args.chat) status = apply_template(model, &text, name, err);
    if (!status &&
        (status = nf_tokenize(model, text.data ? text.data : "", text.len, true, &out->ids, &out->n, err)))
        nf_context(err, "%s", name);
    nf_buf_free(&text);
    return status;
}

static void print_ids(const prompt_ids *prompt) {
    putchar('[');
    for (size_t i = 0; i < prompt->n; i++) printf(i ? ", %d" : "%d", prompt->ids[i]);
    puts("]");
}

/* ---- logits ---- */

typedef struct logits_sink {
    nf_npy *npy;
    nf_progress bar;
    uint64_t total;
    nf_status status;
    nf_error *err;
} logits_sink;

static bool write_logits(void *user, uint32_t first, uint32_t n, const float *logits) {
    logits_sink *sink = user;
    sink->status = nf_npy_append(sink->npy, logits, n, sink->err);
    if (sink->status) return false;
    return nf_progress_bar(&sink->bar, "logits", first + n, sink->total);
}

static nf_status dump_logits(const nf_model *model, nf_session *session, const prompt_ids *prompt,
                             nf_npy *npy, nf_error *err) {
    nf_model_info info;
    nf_model_get_info(model, &info);
    logits_sink sink = {.npy = npy,
                        .bar = {.out = stderr, .cancel = nf_interrupt_flag(), .unit = "tokens"},
                        .total = prompt->n,
                        .err = err};
    nf_status status = nf_npy_begin(npy, prompt->n, info.vocab_size, err);
    nf_error eval_err = {0};
    if (!status) status = nf_session_eval(session, prompt->ids, prompt->n, write_logits, &sink, &eval_err);
    if (sink.status) return sink.status; /* why the receiver stopped says more than that it did */
    if (status && eval_err.status) *err = eval_err;
    return status ? status : nf_npy_finish(npy, err);
}

/* ---- the answer ---- */

static bool print_text(void *user, const char *text, size_t n) {
    (void)user;
    return fwrite(text, 1, n, stdout) == n && !fflush(stdout);
}

static const char *finish_name(nf_finish finish) {
    switch (finish) {
    case NF_FINISH_STOP_TOKEN:
        return "stop_token";
    case NF_FINISH_STOP_STRING:
        return "stop_string";
    case NF_FINISH_LENGTH:
        return "length";
    case NF_FINISH_CONTEXT:
        return "context";
    case NF_FINISH_CANCELLED:
        return "cancelled";
    }
    return "unknown";
}

static nf_status print_json(const nf_generation *g, nf_error *err) {
    json_t *ids = json_array();
    for (size_t i = 0; ids && i < g->n_ids; i++)
        if (json_array_append_new(ids, json_integer(g->ids[i]))) {
            json_decref(ids);
            ids = NULL;
        }
    json_t *root = ids ? json_pack("{s:o,s:s%,s:I,s:f,s:f,s:s}", "ids", ids, "text", g->text, g->text_bytes,
                                   "prompt_tokens", (json_int_t)g->prompt_tokens, "prefill_s", g->prefill_s,
                                   "decode_s", g->decode_s, "finish", finish_name(g->finish))
                       : NULL;
    if (!root) return nf_fail(err, NF_ERR_MEMORY, "out of memory for the JSON output");
    int failed = json_dumpf(root, stdout, JSON_COMPACT) || putchar('\n') == EOF;
    json_decref(root);
    return failed ? nf_fail_errno(err, errno, "standard output: cannot write") : NF_OK;
}

static void print_summary(const nf_generation *g) {
    uint32_t computed = g->prompt_tokens - g->reused_tokens;
    double decode_rate = g->n_ids > 1 && g->decode_s > 0 ? (double)(g->n_ids - 1) / g->decode_s : 0;
    nf_dim_line(stderr, "prompt: %u tokens, %.0f tok/s; answer: %zu tokens, %.0f tok/s; end: %s",
                g->prompt_tokens, g->prefill_s > 0 ? computed / g->prefill_s : 0, g->n_ids, decode_rate,
                finish_name(g->finish));
}

static nf_sampling choose_sampling(const nf_model *model) {
    nf_sampling sampling = args.chat ? nf_model_sampling(model) : nf_sampling_greedy();
    nf_sampling_args_apply(&args.sampling, &sampling);
    const char *unused = nf_sampling_args_unused(&args.sampling, &sampling);
    if (unused) fprintf(stderr, PROGRAM ": note: %s has no effect at temperature 0\n", unused);
    return sampling;
}

static nf_status generate(const nf_model *model, nf_session *session, const prompt_ids *prompt,
                          nf_error *err) {
    nf_generate_options o = nf_generate_defaults();
    o.sampling = choose_sampling(model);
    o.max_tokens = args.dump_logits && !args.has_n ? 0 : (uint32_t)args.n;
    o.ignore_eos = args.ignore_eos;
    o.stop = args.stop.items;
    o.n_stop = args.stop.n;
    o.on_text = args.json ? NULL : print_text;
    nf_generation g;
    nf_status status = nf_session_generate(session, prompt->ids, prompt->n, &o, &g, err);
    if (status) return status;
    if (args.json)
        status = print_json(&g, err);
    else if (isatty(STDOUT_FILENO) && g.text_bytes && g.text[g.text_bytes - 1] != '\n')
        putchar('\n');
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = nf_fail_errno(err, errno, "standard output: cannot write");
    if (!status && !args.json) print_summary(&g);
    nf_generation_free(&g);
    return status;
}

/* ---- the whole ---- */

static nf_status run(const nf_model *model, nf_session *session, const prompt_ids *prompt, nf_npy *npy,
                     nf_error *err) {
    nf_interrupt_target(session);
    nf_status status = args.dump_logits ? dump_logits(model, session, prompt, npy, err) : NF_OK;
    bool answer = !args.dump_logits || args.has_n || args.json;
    if (!status && answer) status = generate(model, session, prompt, err);
    nf_interrupt_target(NULL);
    return status;
}

static int run_model(const char *path, prompt_ids *prompt, nf_npy *npy) {
    nf_error err = {0};
    nf_model *model = NULL;
    nf_session *session = NULL;
    nf_session_options session_options = {.max_context = (uint32_t)args.max_context,
                                          .prefill_chunk = (uint32_t)args.prefill_chunk,
                                          .kv_dtype = args.kv_dtype};
    nf_status status = nf_load_model(path, &args.load, &model, &err);
    if (!status && !args.has_ids) status = tokenize_prompt(model, prompt, &err);
    if (!status && args.tokenize) {
        print_ids(prompt);
        if (fflush(stdout)) status = nf_fail_errno(&err, errno, "standard output: cannot write");
    } else if (!status) {
        if (!prompt->n) status = nf_fail(&err, NF_ERR_ARGUMENT, "the prompt is empty");
        if (!status && (status = nf_session_new(model, &session_options, &session, &err)) == NF_ERR_ARGUMENT)
            nf_context(&err, args.max_context ? "--max-context" : "session");
        if (!status) status = run(model, session, prompt, npy, &err);
    }
    nf_session_free(session);
    nf_model_free(model);
    return status ? nf_report(PROGRAM, &err) : 0;
}

int main(int argc, char **argv) {
    const char *path = NULL;
    size_t n_positional;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &path, &n_positional);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_interrupt_setup();
    nf_error err = {0};
    nf_npy npy = {0};
    prompt_ids prompt = {0};
    int status = check_usage();
    if (!status && args.has_ids) status = parse_ids(&prompt);
    if (!status && check_stops(&err)) status = nf_report(PROGRAM, &err);
    if (!status && args.dump_logits && nf_npy_open(&npy, args.dump_logits, &err))
        status = nf_report(PROGRAM, &err);
    if (!status) status = run_model(path, &prompt, &npy);
    nf_npy_abort(&npy);
    free(prompt.ids);
    free(args.stop.items);
    if (nf_interrupted()) nf_interrupt_exit();
    return status;
}
