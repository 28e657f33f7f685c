/*
 * ninfer-bench model: prefill and decode of a container, through the public API alone. Each run also reads
 * plain memory between its tokens, so that decode stands beside the bandwidth of its own second: decode of
 * one sequence reads every dense weight, the chosen experts and the KV cache once for a token, and can be no
 * faster than that.
 */
#include "bench/bench.h"

#include "base/progress.h"
#include "format/container.h"
#include "runtime/ninfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_EVERY 16 /* tokens */

typedef struct settings {
    int64_t pp, tg, threads, runs, mib;
    bool turns;
    const char *path, *weights;
} settings;

typedef struct bench {
    const settings *o;
    nf_model *model;
    nf_session *session;
    nf_model_info info;
    nf_bench_memory memory;
    nf_team team;
    int32_t *ids;            /* [pp + tg], spread over the vocabulary */
    double token_bytes;      /* read for one decoded token, on average over the tg positions */
    nf_summary pp, tg, read; /* tokens/s, tokens/s, GB/s */
    nf_summary of_read;      /* of each run: bytes of its tokens over what the bandwidth had given */
} bench;

/* Dense weights but the embedding (one row of it), chosen experts, recurrent state, and the KV of the mean
 * position. A tied embedding is the head, and read whole. */
static nf_status count_bytes(bench *b, nf_error *err) {
    nf_container *c;
    nf_status status = nf_container_open(b->o->path, &c, err);
    if (status) return status;
    const nf_object *embedding = nf_container_find(c, "embed_tokens"),
                    *head = nf_container_find(c, "lm_head");
    const nf_model_info *i = &b->info;
    double dense = (double)i->weight_bytes - (double)i->expert_bytes;
    if (embedding && head) dense -= (double)embedding->bytes * (1.0 - 1.0 / i->vocab_size);
    nf_container_close(c);
    b->token_bytes = dense + (double)i->expert_bytes * i->top_k / i->n_experts + (double)i->state_bytes +
                     (double)i->kv_bytes_per_token * (double)(b->o->tg + 1) / 2;
    return NF_OK;
}

/* A linear congruential sequence: every run and every machine evaluates the same tokens. */
static nf_status make_ids(bench *b, nf_error *err) {
    const size_t n = (size_t)(b->o->pp + b->o->tg);
    b->ids = nf_alloc(n, sizeof *b->ids, "tokens", err);
    if (!b->ids) return NF_ERR_MEMORY;
    uint64_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        b->ids[i] = (int32_t)((x >> 33) % b->info.vocab_size);
    }
    return NF_OK;
}

static nf_status open_all(bench *b, nf_error *err) {
    const nf_model_options options = {.n_threads = (int)b->o->threads, .weights = b->o->weights};
    nf_status status = nf_model_open(b->o->path, &options, &b->model, err);
    if (status) return status;
    nf_model_get_info(b->model, &b->info);
    const int64_t longest = b->o->pp > b->o->tg ? b->o->pp : b->o->tg;
    if (longest > b->info.max_context)
        return nf_fail(err, NF_ERR_LIMIT, "%s: the context holds %u tokens; use a smaller --pp or --tg",
                       b->o->path, b->info.max_context);
    const nf_session_options session = {.max_context = (uint32_t)longest};
    status = nf_session_new(b->model, &session, &b->session, err);
    if (!status) status = nf_bench_memory_new((size_t)b->o->mib << 20, &b->memory, err);
    if (!status) status = nf_team_start_n(&b->team, b->info.n_threads, err);
    if (!status) status = count_bytes(b, err);
    return status ? status : make_ids(b, err);
}

static nf_status prefill(bench *b, double *rate, nf_error *err) {
    nf_session_reset(b->session);
    const double start = nf_now();
    nf_status status = nf_session_eval(b->session, b->ids, (size_t)b->o->pp, NULL, NULL, err);
    *rate = (double)b->o->pp / (nf_now() - start);
    return status;
}

/* The next n tokens, one by one; `first` of them were decoded before. */
static nf_status decode_some(bench *b, int64_t first, int64_t n, double *seconds, nf_error *err) {
    const double start = nf_now();
    nf_status status = NF_OK;
    for (int64_t i = first; i < first + n && !status; i++)
        status = nf_session_eval(b->session, b->ids + b->o->pp + i, 1, NULL, NULL, err);
    *seconds = nf_now() - start;
    return status;
}

/* Decodes, and reads memory between the tokens (outside decode's time): on a machine that others share the
 * bandwidth changes within seconds. */
static nf_status decode(bench *b, double *rate, double *read_gb_s, nf_error *err) {
    nf_session_reset(b->session);
    double decode_s = 0.0, seconds_per_gb = 0.0;
    int n_reads = 0;
    nf_status status = NF_OK;
    for (int64_t i = 0; i < b->o->tg && !status; i += READ_EVERY) {
        seconds_per_gb += 1.0 / nf_bench_read_gb_s(&b->team, &b->memory);
        n_reads++;
        double seconds;
        const int64_t rest = b->o->tg - i;
        status = decode_some(b, i, rest < READ_EVERY ? rest : READ_EVERY, &seconds, err);
        decode_s += seconds;
    }
    *rate = (double)b->o->tg / decode_s;
    *read_gb_s = n_reads / seconds_per_gb;
    return status;
}

/* --turns: runs as another program asks for them, so that two programs can alternate within a second.
 * Commands are lines of standard input, and each is answered with one line. */
static nf_status take_turns(bench *b, nf_error *err) {
    double answer;
    nf_status status = prefill(b, &answer, err); /* touches every page */
    if (status) return status;
    printf("ready {\"token_bytes\": %.0f, \"isa\": \"%s\"}\n", b->token_bytes, b->info.isa);
    int64_t position = b->o->tg;
    char line[64];
    while (!status && !fflush(stdout) && fgets(line, sizeof line, stdin)) {
        answer = 0.0;
        long n;
        if (!strcmp(line, "prefill\n")) {
            status = prefill(b, &answer, err);
            answer = (double)b->o->pp / answer;
            position = b->o->tg;
        } else if (!strcmp(line, "start\n")) {
            nf_session_reset(b->session);
            position = 0;
        } else if (!strcmp(line, "read\n")) {
            answer = nf_bench_read_gb_s(&b->team, &b->memory);
        } else if (sscanf(line, "decode %ld\n", &n) == 1 && n > 0 && n <= b->o->tg - position) {
            status = decode_some(b, position, n, &answer, err);
            position += n;
        } else {
            return nf_fail(
                err, NF_ERR_ARGUMENT,
                "--turns: %.*s: commands are prefill, start, read, and decode N with as many tokens as --tg "
                "after each start",
                (int)strcspn(line, "\n"), line);
        }
        if (!status) printf("%.9f\n", answer);
    }
    return status;
}

static nf_status run_all(bench *b, nf_error *err) {
    double pp[NF_BENCH_MAX_RUNS], tg[NF_BENCH_MAX_RUNS], read[NF_BENCH_MAX_RUNS], of_read[NF_BENCH_MAX_RUNS],
        ignored, ignored_read;
    nf_progress bar = {.out = stderr, .unit = "runs"};
    const uint64_t runs = (uint64_t)b->o->runs;
    nf_status status = prefill(b, &ignored, err); /* touches every page and fills no summary */
    if (!status) status = decode(b, &ignored, &ignored_read, err);
    for (uint64_t i = 0; i < runs && !status; i++) {
        status = prefill(b, &pp[i], err);
        if (!status) status = decode(b, &tg[i], &read[i], err);
        if (!status) of_read[i] = tg[i] * b->token_bytes / 1e9 / read[i];
        nf_progress_bar(&bar, "measure", i + 1, runs);
    }
    if (status) return status;
    b->pp = nf_summarise(pp, runs);
    b->tg = nf_summarise(tg, runs);
    b->read = nf_summarise(read, runs);
    b->of_read = nf_summarise(of_read, runs);
    return NF_OK;
}

static nf_status write_report(bench *b, nf_bench_report *report, int argc, char **argv, nf_error *err) {
    const nf_model_info *i = &b->info;
    nf_status status =
        nf_report_begin(report, "A model from prompt to answer", argc, argv, i->n_threads, err);
    if (status) return status;
    const double rate = b->tg.median * b->token_bytes / 1e9;
    json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:f, s:f, s:o}", "model",
                            i->name, "architecture", i->architecture, "type", i->type, "weights", i->weights,
                            "isa", i->isa, "pp", (json_int_t)b->o->pp, "tg", (json_int_t)b->o->tg,
                            "prefill_tok_s", nf_summary_json(b->pp), "decode_tok_s", nf_summary_json(b->tg),
                            "read_gb_s", nf_summary_json(b->read), "token_bytes", b->token_bytes,
                            "decode_gb_s", rate, "of_read", nf_summary_json(b->of_read));
    if (!all || json_object_update(report->json, all)) {
        json_decref(all);
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    }
    json_decref(all);
    status = nf_buf_printf(&report->text, err,
                           "%s (%s, %s, %.1f MB), %s kernels, %lld runs: minimum / **median** / maximum.\n\n"
                           "| | |\n|---|---|\n"
                           "| prefill of %lld tokens | %.1f / **%.1f** / %.1f tok/s |\n"
                           "| decode of %lld tokens from an empty context | %.2f / **%.2f** / %.2f tok/s |\n",
                           i->name, i->architecture, i->type, (double)i->weight_bytes / 1e6, i->isa,
                           (long long)b->o->runs, (long long)b->o->pp, b->pp.min, b->pp.median, b->pp.max,
                           (long long)b->o->tg, b->tg.min, b->tg.median, b->tg.max);
    if (!status)
        status = nf_buf_printf(&report->text, err,
                               "| weights | %s |\n"
                               "| read for a decoded token | %.1f MB, %.2f GB/s |\n"
                               "| memory read bandwidth | %.2f / **%.2f** / %.2f GB/s |\n"
                               "| decode, of the read bandwidth of its run | %.3f / **%.3f** / %.3f |\n",
                               i->weights, b->token_bytes / 1e6, rate, b->read.min, b->read.median,
                               b->read.max, b->of_read.min, b->of_read.median, b->of_read.max);
    return status ? status : nf_report_end(report, err);
}

int nf_bench_model(int argc, char **argv) {
    settings o = {.pp = 512, .tg = 128, .runs = 9, .mib = 512};
    nf_bench_report report = {0};
    const nf_opt options[] = {
        {.name = "pp",
         .kind = NF_OPT_INT,
         .dst = &o.pp,
         .value = "N",
         .min = 1,
         .max = 1 << 20,
         .help = "tokens of the prompt (default 512)"},
        {.name = "tg",
         .kind = NF_OPT_INT,
         .dst = &o.tg,
         .value = "N",
         .min = 1,
         .max = 1 << 20,
         .help = "tokens decoded one by one, from an empty context (default 128)"},
        {.name = "threads",
         .kind = NF_OPT_INT,
         .dst = &o.threads,
         .value = "N",
         .min = 1,
         .max = 1024,
         .help = "threads (default: one per core that the process may use)"},
        {.name = "weights",
         .kind = NF_OPT_TEXT,
         .dst = &o.weights,
         .value = "WHERE",
         .help = "map, ram or auto, as in ninfer (default map)"},
        {.name = "runs",
         .kind = NF_OPT_INT,
         .dst = &o.runs,
         .value = "N",
         .min = 1,
         .max = NF_BENCH_MAX_RUNS,
         .help = "runs of which the median counts, after one that does not (default 9)"},
        {.name = "mib",
         .kind = NF_OPT_INT,
         .dst = &o.mib,
         .value = "N",
         .min = 16,
         .max = 1 << 20,
         .help = "memory for the read bandwidth in MiB, far beyond the caches (default 512)"},
        {.name = "turns",
         .kind = NF_OPT_FLAG,
         .dst = &o.turns,
         .help =
             "do what lines of standard input say (prefill, start, decode N, read) and answer with seconds "
             "or GB/s; no report"},
        NF_BENCH_REPORT_OPTIONS(&report),
        {0}};
    const nf_args_spec spec = {.program = "ninfer-bench model",
                               .usage = "MODEL.ninfer [options]",
                               .about =
                                   "Times prefill and decode beside the memory read bandwidth of the same "
                                   "run. The bytes read\nfor a token are the dense weights, the chosen "
                                   "experts, the recurrent state and the KV cache.",
                               .options = options,
                               .min_positional = 1,
                               .max_positional = 1};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &o.path, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_error err = {0};
    bench *b = nf_calloc_aligned(64, 1, sizeof *b, "a measurement", &err);
    nf_status status = NF_ERR_MEMORY;
    if (b) {
        b->o = &o;
        status = open_all(b, &err);
        if (!status) status = o.turns ? take_turns(b, &err) : run_all(b, &err);
        if (!status && !o.turns) status = write_report(b, &report, argc, argv, &err);
        nf_session_free(b->session);
        nf_model_free(b->model);
        nf_bench_memory_free(&b->memory);
        nf_team_stop(&b->team);
        free(b->ids);
    }
    free(b);
    nf_report_free(&report);
    if (status) fprintf(stderr, "%s: %s\n", spec.program, err.message);
    return status ? 1 : 0;
}
