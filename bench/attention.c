/*
 * ninfer-bench attention: the runtime's attention (runtime/attention.c, without its projections) over a KV
 * cache of each type. Decode: one token against a full context, layer after layer through caches that are
 * together far larger than the processor's own, in alternation with plain reading of as much memory; it
 * reads every byte of K and V once and can be no faster than that. Prefill: a prompt from an empty context,
 * bound by arithmetic. Multiply-adds in registers (bench/peak.h) are timed in the same alternation.
 */
#include "bench/bench.h"
#include "bench/peak.h"

#include "base/progress.h"
#include "cpu/thread_plan.h"
#include "runtime/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    int64_t heads, kv_heads, dim, prompt, mib, threads, runs;
    const char *type; /* NULL: all */
} settings;

static const uint32_t contexts[] = {512, 4096, 32768};
#define N_CONTEXTS (sizeof contexts / sizeof *contexts)

typedef struct bench {
    const settings *o;
    nf_model model; /* a description, kernels and a team: what attention needs of a model */
    nf_session *session;
    nf_bench_memory memory;
    json_t *results; /* owned by the report */
} bench;

/* ---- a session whose cache is full ---- */

/* Pages for the whole context in every layer, each a copy of one page of small numbers. */
static nf_status fill_cache(nf_session *s, nf_error *err) {
    const nf_model_desc *d = &s->model->desc;
    const nf_kv_layout *l = &s->kv_layout;
    const size_t bytes = d->n_kv_heads * l->bytes, n = d->max_context / NF_ATTENTION_BLOCK;
    uint64_t x = 1;
    float *row = nf_alloc(2 * l->dim, sizeof *row, "a position of the cache", err);
    uint8_t *page = nf_calloc_aligned(64, 1, bytes, "a KV cache page", err);
    nf_status status = row && page ? NF_OK : NF_ERR_MEMORY;
    for (size_t i = 0; i < d->n_kv_heads * (size_t)NF_ATTENTION_BLOCK && !status; i++) {
        for (size_t c = 0; c < 2 * l->dim; c++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            row[c] = (float)(x >> 40) * 0x1p-23f - 1.0f;
        }
        if (!nf_kv_store(l, page + i / NF_ATTENTION_BLOCK * l->bytes, i % NF_ATTENTION_BLOCK, row,
                         row + l->dim))
            status = nf_fail(err, NF_ERR_INTERNAL, "a position of the cache is not finite");
    }
    for (uint32_t layer = 0; layer < d->n_layers && !status; layer++) {
        nf_kv *kv = &s->kv[layer];
        status = nf_grow((void **)&kv->pages, &kv->cap, n, sizeof *kv->pages, err);
        for (; kv->n_pages < n && !status; kv->n_pages++) {
            kv->pages[kv->n_pages] = nf_calloc_aligned(64, 1, bytes, "a KV cache page", err);
            if (!kv->pages[kv->n_pages]) status = NF_ERR_MEMORY;
            if (!status) memcpy(kv->pages[kv->n_pages], page, bytes);
            if (status) break;
        }
    }
    free(row);
    free(page);
    return status;
}

static void close_session(bench *b) {
    nf_session_free(b->session);
    b->session = NULL;
    free(b->model.desc.layer_kind);
    b->model.desc.layer_kind = NULL;
}

/* A session of `tokens` computed together at the end of `context`, with as many layers as fill the memory. */
static nf_status open_session(bench *b, nf_kv_type type, uint32_t context, uint32_t tokens, uint32_t layers,
                              nf_error *err) {
    const settings *o = b->o;
    const nf_session_options options = {.prefill_chunk = tokens, .kv_dtype = nf_kv_type_name(type)};
    nf_model_desc *d = &b->model.desc;
    *d = (nf_model_desc){.vocab_size = 1,
                         .hidden = NF_GROUP,
                         .n_layers = layers,
                         .max_context = context,
                         .n_heads = (uint32_t)o->heads,
                         .n_kv_heads = (uint32_t)o->kv_heads,
                         .head_dim = (uint32_t)o->dim,
                         .n_experts = 1,
                         .top_k = 1,
                         .expert_hidden = NF_GROUP};
    d->layer_kind = nf_calloc(layers, sizeof *d->layer_kind, "layers", err); /* all full attention */
    nf_status status = d->layer_kind ? nf_session_new(&b->model, &options, &b->session, err) : NF_ERR_MEMORY;
    if (!status) status = fill_cache(b->session, err);
    if (status) return status;
    nf_session *s = b->session;
    s->first = context - tokens;
    s->n = tokens;
    for (size_t i = 0; i < tokens * (size_t)o->heads * (size_t)o->dim; i++)
        s->q[i] = (float)((i * 37) % 255) / 2000.0f - 0.0635f;
    return NF_OK;
}

/* ---- timing ---- */

static void all_layers(nf_worker *worker, void *user) {
    nf_session *s = user;
    for (uint32_t layer = 0; layer < s->model->desc.n_layers; layer++) nf_attend(worker, s, layer);
}

static nf_status time_once(bench *b, double *seconds, nf_error *err) {
    const double start = nf_now();
    nf_team_run(&b->model.team, all_layers, b->session);
    *seconds = nf_now() - start;
    if (atomic_load(&b->session->numeric_error)) return nf_fail(err, NF_ERR_NUMERIC, "a score is not finite");
    return NF_OK;
}

/* ---- the bound of arithmetic ---- */

typedef struct peak_work {
    double (*fn)(size_t rounds, float *sink);
    atomic_uint_fast64_t flops;
    float *sinks; /* [threads] */
} peak_work;

#define PEAK_ROUNDS ((size_t)1 << 16)

static void peak_body(void *user, size_t begin, size_t end, int thread) {
    peak_work *w = user;
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&w->flops, (uint64_t)w->fn(PEAK_ROUNDS, &w->sinks[thread]));
}

static void run_peak(nf_worker *worker, void *user) {
    nf_team_loop(worker, 64 * (size_t)worker->team->n_threads, 1, peak_body, user);
}

/* GFLOP/s of multiply-adds in registers; 0 where the level has no vectors of its own. */
static double peak_gflop_s(bench *b) {
    const char *isa = b->model.kernels->name;
    float sinks[1024];
    peak_work w = {.sinks = sinks};
#if defined(__x86_64__)
    if (!strcmp(isa, "avx2")) w.fn = nf_peak_avx2;
    if (!strcmp(isa, "avx512") || !strcmp(isa, "amx")) w.fn = nf_peak_avx512;
#endif
    if (!w.fn) return 0;
    const double start = nf_now();
    nf_team_run(&b->model.team, run_peak, &w);
    return (double)atomic_load(&w.flops) / (nf_now() - start) / 1e9;
}

static nf_status time_runs(bench *b, nf_summary *seconds, nf_summary *read, nf_summary *peak, nf_error *err) {
    double s[NF_BENCH_MAX_RUNS], r[NF_BENCH_MAX_RUNS], p[NF_BENCH_MAX_RUNS];
    nf_status status = time_once(b, s, err); /* touches everything, counts for nothing */
    for (int64_t i = 0; i < b->o->runs && !status; i++) {
        r[i] = nf_bench_read_gb_s(&b->model.team, &b->memory);
        status = time_once(b, &s[i], err);
        p[i] = peak_gflop_s(b);
    }
    if (status) return status;
    *seconds = nf_summarise(s, (size_t)b->o->runs);
    *read = nf_summarise(r, (size_t)b->o->runs);
    *peak = nf_summarise(p, (size_t)b->o->runs);
    return NF_OK;
}

/* One row of the report: `tokens` at the end of `context`. */
static nf_status measure_one(bench *b, nf_kv_type type, uint32_t context, uint32_t tokens,
                             nf_bench_report *report, nf_error *err) {
    const settings *o = b->o;
    const nf_kv_layout l = nf_kv_layout_get(type, (size_t)o->dim);
    const double layer_bytes = (double)context / NF_ATTENTION_BLOCK * (double)o->kv_heads * (double)l.bytes;
    const double fitting = (double)((uint64_t)o->mib << 20) / layer_bytes;
    const uint32_t layers = tokens > 1 ? 4 : (uint32_t)fitting + 1;
    nf_summary seconds, read, peak;
    nf_status status = open_session(b, type, context, tokens, layers, err);
    if (!status) status = time_runs(b, &seconds, &read, &peak, err);
    close_session(b);
    if (status) return status;
    const double keys = tokens * (context - tokens) + tokens * (tokens + 1.0) / 2, /* of all tokens */
        gflop = 4.0 * keys * (double)o->heads * (double)o->dim * layers / 1e9,
                 gb = layer_bytes * layers / 1e9, of_read = gb / seconds.median / read.median;
    const double of_peak = peak.median > 0 ? gflop / seconds.median / peak.median : 0;
    const char *name = nf_kv_type_name(type);
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:i, s:f, s:o, s:o, s:o, s:f, s:f, s:f, s:f}", "type", name, "context",
                  (int)context, "tokens", (int)tokens, "layers", (int)layers, "layer_mb", layer_bytes / 1e6,
                  "seconds", nf_summary_json(seconds), "read_gb_s", nf_summary_json(read), "peak_gflop_s",
                  nf_summary_json(peak), "gb_s", gb / seconds.median, "of_read", of_read, "gflop_s",
                  gflop / seconds.median, "of_peak", of_peak);
    if (!row || json_array_append_new(b->results, row))
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    fprintf(stderr, "%-4s %5u of %5u: %.1f GB/s, %.0f GFLOP/s\n", name, tokens, context, gb / seconds.median,
            gflop / seconds.median);
    const double us = 1e6 / layers;
    status =
        nf_buf_printf(&report->text, err, "| %s | %u | %u | %.0f / **%.0f** / %.0f | %.0f | %.0f | %.2f |",
                      name, context, tokens, seconds.min * us, seconds.median * us, seconds.max * us,
                      gflop / seconds.median, peak.median, of_peak);
    if (!status && tokens == 1)
        status = nf_buf_printf(&report->text, err, " %.1f | %.1f | %.2f |\n", gb / seconds.median,
                               read.median, of_read);
    else if (!status)
        status = nf_buf_text(&report->text, " | | |\n", err);
    return status;
}

static nf_status measure_type(bench *b, nf_kv_type type, nf_bench_report *report, nf_error *err) {
    nf_status status = NF_OK;
    for (size_t i = 0; i < N_CONTEXTS && !status; i++)
        status = measure_one(b, type, contexts[i], 1, report, err);
    const uint32_t prompt = (uint32_t)b->o->prompt;
    return status ? status : measure_one(b, type, prompt, prompt, report, err);
}

static nf_status measure(bench *b, nf_bench_report *report, int argc, char **argv, nf_error *err) {
    const settings *o = b->o;
    nf_topology topology;
    nf_status status = nf_kernels_get(&b->model.kernels, err);
    if (!status) status = nf_topology_get(&topology, err);
    if (status) return status;
    nf_thread_plan plan = {0};
    status = nf_thread_plan_make(&topology, (int)o->threads, NF_PIN_AUTO, &plan, err);
    if (!status) status = nf_team_start(&b->model.team, &plan, err);
    nf_thread_plan_free(&plan);
    nf_topology_free(&topology);
    if (!status) status = nf_bench_memory_new((size_t)o->mib << 20, &b->memory, err);
    if (!status) status = nf_report_begin(report, "Attention", argc, argv, b->model.team.n_threads, err);
    if (status) return status;
    b->results = json_array();
    if (!b->results || json_object_set_new(report->json, "isa", json_string(b->model.kernels->name)) ||
        json_object_set_new(report->json, "results", b->results))
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    status = nf_buf_printf(
        &report->text, err,
        "%s kernels, %lld query heads, %lld KV heads of %lld, %lld runs; time of one layer: minimum / "
        "**median** / maximum.\nOne token: over so many layers that their caches fill %lld MiB, in "
        "alternation with reading that much memory and with multiply-adds in registers (peak; 0: not "
        "measured "
        "at this level).\nBoth bounds hold: a group of %lld heads does %.0f flops for a byte of an f32 "
        "cache, "
        "four times that for a byte of q8 or fp8.\n\n"
        "| KV | context | tokens | us a layer | GFLOP/s | peak GFLOP/s | of peak | GB/s | read GB/s | of "
        "read "
        "|\n"
        "|---|---|---|---|---|---|---|---|---|---|\n",
        b->model.kernels->name, (long long)o->heads, (long long)o->kv_heads, (long long)o->dim,
        (long long)o->runs, (long long)o->mib, (long long)(o->heads / o->kv_heads),
        (double)o->heads / (double)o->kv_heads / 2);
    for (int type = 0; type < NF_KV_N_TYPES && !status; type++)
        if (!o->type || !strcmp(o->type, nf_kv_type_name((nf_kv_type)type)))
            status = measure_type(b, (nf_kv_type)type, report, err);
    return status ? status : nf_report_end(report, err);
}

#define NUMBER(name_, dst_, min_, max_, help_)                                                               \
    {                                                                                                        \
        .name = (name_), .kind = NF_OPT_INT, .dst = (dst_), .value = "N", .min = (min_), .max = (max_),      \
        .help = (help_)                                                                                      \
    }

int nf_bench_attention(int argc, char **argv) {
    settings o = {.heads = 32, .kv_heads = 4, .dim = 128, .prompt = 512, .mib = 512, .runs = 9};
    nf_bench_report report = {0};
    const nf_opt options[] = {
        NUMBER("heads", &o.heads, 1, 1024, "query heads, a multiple of the KV heads (default 32)"),
        NUMBER("kv-heads", &o.kv_heads, 1, 1024, "KV heads (default 4)"),
        NUMBER("head-dim", &o.dim, 1, 4096, "columns of a head (default 128)"),
        NUMBER("prompt", &o.prompt, 256, 32768, "tokens of the prompt, a multiple of 256 (default 512)"),
        NUMBER("mib", &o.mib, 16, 1 << 20, "KV cache in MiB, far beyond the caches (default 512)"),
        NUMBER("threads", &o.threads, 1, 1024, "threads (default: one per core that the process may use)"),
        NUMBER("runs", &o.runs, 1, NF_BENCH_MAX_RUNS,
               "runs of which the median counts, after one that does not (default 9)"),
        {.name = "kv-dtype",
         .kind = NF_OPT_TEXT,
         .dst = &o.type,
         .value = "TYPE",
         .help = "one type only: " NF_KV_TYPE_NAMES " (default: all)"},
        NF_BENCH_REPORT_OPTIONS(&report),
        {0}};
    const nf_args_spec spec = {.program = "ninfer-bench attention",
                               .usage = "[options]",
                               .about = "Times attention over a KV cache of each type: one token at contexts "
                                        "of 512, 4096 and\n32768 tokens beside the memory read bandwidth of "
                                        "the same run, and a prompt.",
                               .options = options};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, NULL, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_kv_type type;
    if (o.type && !nf_kv_type_by_name(o.type, &type))
        return nf_usage_error(&spec, "--kv-dtype must be " NF_KV_TYPE_NAMES ", not '%s'", o.type);
    if (o.heads % o.kv_heads)
        return nf_usage_error(&spec, "--heads %lld is no multiple of --kv-heads %lld", (long long)o.heads,
                              (long long)o.kv_heads);
    if (o.prompt % NF_ATTENTION_BLOCK)
        return nf_usage_error(&spec, "--prompt must be a multiple of %d", NF_ATTENTION_BLOCK);
    nf_error err = {0};
    bench *b = nf_calloc_aligned(64, 1, sizeof *b, "a measurement", &err);
    nf_status status = NF_ERR_MEMORY;
    if (b) {
        b->o = &o;
        status = measure(b, &report, argc, argv, &err);
        nf_team_stop(&b->model.team);
        nf_bench_memory_free(&b->memory);
    }
    free(b);
    nf_report_free(&report);
    if (status) fprintf(stderr, "%s: %s\n", spec.program, err.message);
    return status ? 1 : 0;
}
