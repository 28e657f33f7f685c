/*
 * ninfer-perplexity: mean negative log-likelihood of a text in windows. Each window is scored alone, from its
 * second token, so that the number does not depend on the order or the overlap of windows.
 */
#include "base/args.h"
#include "base/buf.h"
#include "base/io.h"
#include "base/progress.h"
#include "runner/load.h"
#include "runner/npy.h"
#include "runner/session_args.h"
#include "runner/terminal.h"
#include "runtime/ninfer.h"
#include "runtime/recorder.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "ninfer-perplexity"

static struct {
    int64_t window, stride, max_windows, prefill_chunk;
    nf_load_args load;
    const char *token_nll, *record_imatrix, *kv_dtype;
    bool json;
} args = {.window = 512, .stride = 512};

static const nf_opt options[] = {
    {"window", 0, NF_OPT_INT, &args.window, "N", "tokens of a window (default 512)", 2, INT32_MAX, NULL},
    {"stride", 0, NF_OPT_INT, &args.stride, "N",
     "tokens from a window's start to the next one's (default 512)", 1, INT32_MAX, NULL},
    {"max-windows", 0, NF_OPT_INT, &args.max_windows, "N", "score only the first N windows", 1, INT32_MAX,
     NULL},
    {"token-nll", 0, NF_OPT_TEXT, &args.token_nll, "FILE",
     "write each token's nats, f32 [windows, window - 1], as .npy", 0, 0, NULL},
    {"record-imatrix", 0, NF_OPT_TEXT, &args.record_imatrix, "FILE",
     "write importance statistics for ninfer-convert --imatrix", 0, 0, NULL},
    {"json", 0, NF_OPT_FLAG, &args.json, NULL, "print {\"tokens\":..,\"nll\":..,\"ppl\":..} and the windows",
     0, 0, NULL},
    {"prefill-chunk", 0, NF_OPT_INT, &args.prefill_chunk, "N", "tokens computed together (default 512)", 1,
     65536, NULL},
    NF_KV_DTYPE_OPTION(args.kv_dtype),
    NF_LOAD_OPTIONS(args.load),
    {0}};

static const nf_args_spec spec = {
    .program = PROGRAM,
    .usage = "MODEL.ninfer TEXT_FILE [options]",
    .about = "Scores a text file (-: standard input): the mean negative log-likelihood in nats a token and\n"
             "its exponential. Only full windows count; each is scored alone from its second token.",
    .options = options,
    .footer = "exit status: 0, 1 after an error, 2 after a usage error",
    .min_positional = 2,
    .max_positional = 2,
};

/* One run: what is scored and what came out. */
typedef struct scoring {
    const int32_t *ids; /* of the current window */
    float *nll;         /* of the current window, [window - 1] */
    uint32_t n_vocab;
    uint64_t n_windows, done, total; /* tokens */
    double sum;
    nf_progress bar;
} scoring;

/* -log softmax(logits)[id], summed in double. */
static double token_nll(const float *logits, uint32_t n, int32_t id) {
    float max = logits[0];
    for (uint32_t i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    return (double)max + log(sum) - (double)logits[id];
}

static bool score_rows(void *user, uint32_t first, uint32_t n, const float *logits) {
    scoring *s = user;
    for (uint32_t i = 0; i < n; i++) {
        double nll = token_nll(logits + (size_t)i * s->n_vocab, s->n_vocab, s->ids[first + i + 1]);
        s->nll[first + i] = (float)nll;
        s->sum += nll;
    }
    s->done += n;
    return nf_progress_bar(&s->bar, "score", s->done, s->total);
}

static nf_status score_windows(nf_session *session, const int32_t *ids, scoring *s, nf_npy *npy,
                               nf_error *err) {
    const size_t scored = (size_t)args.window - 1;
    nf_status status = npy->path ? nf_npy_begin(npy, s->n_windows, scored, err) : NF_OK;
    for (uint64_t w = 0; w < s->n_windows && !status; w++) {
        s->ids = ids + w * (uint64_t)args.stride;
        nf_session_reset(session);
        /* The last token of a window is only a target: its own logits are not needed. */
        status = nf_session_eval(session, s->ids, scored, score_rows, s, err);
        if (status)
            nf_context(err, "window %llu", (unsigned long long)w);
        else if (npy->path)
            status = nf_npy_append(npy, s->nll, 1, err);
    }
    return !status && npy->path ? nf_npy_finish(npy, err) : status;
}

static nf_status print_result(const scoring *s, nf_error *err) {
    double nll = s->sum / (double)s->total;
    if (args.json) {
        json_t *root = json_pack("{s:I,s:f,s:f,s:I}", "tokens", (json_int_t)s->total, "nll", nll, "ppl",
                                 exp(nll), "windows", (json_int_t)s->n_windows);
        if (!root) return nf_fail(err, NF_ERR_NUMERIC, "the result is not a finite number");
        int failed = json_dumpf(root, stdout, JSON_COMPACT) || putchar('\n') == EOF;
        json_decref(root);
        if (failed) return nf_fail_errno(err, errno, "standard output: cannot write");
    } else {
        printf("tokens   %llu (%llu windows of %lld)\nnll      %.6f nats a token\nperplexity %.4f\n",
               (unsigned long long)s->total, (unsigned long long)s->n_windows, (long long)args.window, nll,
               exp(nll));
    }
    return fflush(stdout) ? nf_fail_errno(err, errno, "standard output: cannot write") : NF_OK;
}

/* Number of full windows of n tokens; an error when there is none. */
static nf_status count_windows(const char *file, size_t n, uint64_t *out, nf_error *err) {
    const uint64_t window = (uint64_t)args.window, stride = (uint64_t)args.stride;
    if (n < window)
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: has %zu tokens, fewer than one window of %llu (--window)",
                       file, n, (unsigned long long)window);
    *out = (n - window) / stride + 1;
    if (args.max_windows && *out > (uint64_t)args.max_windows) *out = (uint64_t)args.max_windows;
    return NF_OK;
}

static nf_status run(const char *model_path, const char *file, nf_npy *npy, nf_error *err) {
    nf_model *model = NULL;
    nf_session *session = NULL;
    nf_recorder *recorder = NULL;
    nf_buf text = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    nf_model_info info;
    scoring s = {.bar = {.out = stderr, .cancel = nf_interrupt_flag(), .unit = "tokens"}};
    nf_session_options session_options = {.max_context = (uint32_t)args.window,
                                          .prefill_chunk = (uint32_t)args.prefill_chunk,
                                          .kv_dtype = args.kv_dtype};
    nf_status status = args.record_imatrix ? nf_check_output(args.record_imatrix, err) : NF_OK;
    if (!status) status = nf_load_text(file, &text, err);
    if (!status) status = nf_load_model(model_path, &args.load, &model, err);
    if (!status) status = nf_tokenize(model, text.data ? text.data : "", text.len, true, &ids, &n_ids, err);
    if (!status) status = count_windows(file, n_ids, &s.n_windows, err);
    if (!status && (status = nf_session_new(model, &session_options, &session, err)) == NF_ERR_ARGUMENT)
        nf_context(err, "--window");
    if (!status && !(s.nll = nf_alloc((size_t)args.window, sizeof *s.nll, "scores of a window", err)))
        status = NF_ERR_MEMORY;
    if (!status && args.record_imatrix) status = nf_recorder_new(model, &recorder, err);
    if (!status) {
        nf_model_get_info(model, &info);
        s.n_vocab = info.vocab_size;
        s.total = s.n_windows * (uint64_t)(args.window - 1);
        nf_interrupt_target(session);
        status = score_windows(session, ids, &s, npy, err);
        nf_interrupt_target(NULL);
    }
    if (!status && recorder) status = nf_recorder_write(recorder, args.record_imatrix, err);
    if (!status) status = print_result(&s, err);
    nf_recorder_free(recorder);
    free(s.nll);
    nf_free(ids);
    nf_buf_free(&text);
    nf_session_free(session);
    nf_model_free(model);
    return status;
}

int main(int argc, char **argv) {
    const char *positional[2];
    size_t n_positional;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, positional, &n_positional);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_kv_type kv_type;
    if (nf_kv_dtype_check(&spec, args.kv_dtype, &kv_type)) return 2;
    nf_interrupt_setup();
    nf_error err = {0};
    nf_npy npy = {0};
    nf_status status = args.token_nll ? nf_npy_open(&npy, args.token_nll, &err) : NF_OK;
    if (!status) status = run(positional[0], positional[1], &npy, &err);
    nf_npy_abort(&npy);
    if (nf_interrupted()) nf_interrupt_exit();
    return status ? nf_report(PROGRAM, &err) : 0;
}
