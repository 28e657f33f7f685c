/*
 * ninfer-bench kernels: products of each storage type for 1 to 512 input rows. Weights from memory (cold) in
 * alternation with plain reading of the same memory, and from the caches (warm).
 */
#include "bench/bench.h"

#include "base/progress.h"
#include "cpu/kernels.h"
#include "cpu/thread_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 512
/* Multiply-adds of one timed run, about: many rows over all of the memory would take minutes. */
#define MACS_OF_A_RUN 2e10

static const struct {
    const char *name;
    nf_format format;
} types[] = {{"c4", {NF_TYPE_C4, NF_CODEBOOK_LINEAR, NF_SCALE_F16}},
             {"c4 nl", {NF_TYPE_C4, NF_CODEBOOK_NL, NF_SCALE_F16}},
             {"mxfp4", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E8M0}},
             {"nvfp4", {NF_TYPE_C4, NF_CODEBOOK_E2M1, NF_SCALE_E4M3}},
             {"z4", {.type = NF_TYPE_Z4}},
             {"a4", {.type = NF_TYPE_A4}},
             {"s5", {.type = NF_TYPE_S5}},
             {"s6", {.type = NF_TYPE_S6}},
             {"i8", {.type = NF_TYPE_I8}},
             {"f8", {.type = NF_TYPE_F8}},
             {"bf16", {.type = NF_TYPE_BF16}},
             {"f16", {.type = NF_TYPE_F16}},
             {"f32", {.type = NF_TYPE_F32}}};
static const size_t row_counts[] = {1, 2, 4, 8, 64, 512};

typedef struct settings {
    int64_t mib, cols, threads, runs;
    const char *type; /* NULL: all */
} settings;

typedef struct timed {
    const nf_kernels *kernels;
    nf_weights w;
    nf_rows in;
    size_t n_tiles, m;
    int repeat;
    float *out; /* [threads, MAX_ROWS * NF_TILE_ROWS] */
} timed;

static void tile_body(void *user, size_t begin, size_t end, int thread) {
    timed *t = user;
    float *out = t->out + (size_t)thread * MAX_ROWS * NF_TILE_ROWS;
    for (size_t i = begin; i < end; i++) t->kernels->tiles(&t->w, i, 1, &t->in, NULL, t->m, out);
}

static void run_timed(nf_worker *worker, void *user) {
    timed *t = user;
    for (int r = 0; r < t->repeat; r++) nf_team_loop(worker, t->n_tiles, 16, tile_body, t);
}

/* GB/s of weights. */
static double time_once(nf_team *team, timed *t) {
    double start = nf_now();
    nf_team_run(team, run_timed, t);
    return (double)t->n_tiles * (double)t->w.tile_stride * t->repeat / (nf_now() - start) / 1e9;
}

/* Input rows with values that no type can make use of. */
static nf_status make_rows(const nf_kernels *kernels, size_t m, size_t k, nf_rows *out, nf_error *err) {
    const size_t kp = (k + NF_GROUP - 1) / NF_GROUP * NF_GROUP;
    *out = (nf_rows){.k = k, .kp = kp};
    out->x = nf_calloc_aligned(64, m * kp, sizeof(float), "input rows", err);
    out->q = nf_calloc_aligned(64, m * kp, 1, "input rows", err);
    out->scale = nf_calloc_aligned(64, m * kp / NF_GROUP, sizeof(float), "input rows", err);
    out->sum = nf_calloc_aligned(64, m * kp / NF_GROUP, sizeof(int32_t), "input rows", err);
    if (!out->x || !out->q || !out->scale || !out->sum) return NF_ERR_MEMORY;
    for (size_t i = 0; i < m * kp; i++)
        out->x[i] = i % kp < k ? (float)((i * 37) % 255) / 100.0f - 1.27f : 0.0f;
    for (size_t j = 0; j < m; j++)
        if (!kernels->quantise_row(out->x + j * kp, kp, out->q + j * kp, out->scale + j * kp / NF_GROUP,
                                   out->sum + j * kp / NF_GROUP))
            return nf_fail(err, NF_ERR_INTERNAL, "an input row is not finite");
    return NF_OK;
}

static void free_rows(nf_rows *rows) {
    free(rows->x), free(rows->q), free(rows->scale), free(rows->sum);
}

/* What all types are measured with. */
typedef struct bench {
    const settings *o;
    nf_team team;
    nf_bench_memory memory;
    timed t;
    float *table;
    json_t *results; /* owned by the report */
} bench;

static nf_status measure_one(bench *b, size_t type, size_t m, nf_bench_report *report, nf_error *err) {
    timed *t = &b->t;
    const size_t cols = t->w.cols, tile = t->w.tile_stride, all = b->memory.n / tile;
    const double fitting = MACS_OF_A_RUN / ((double)m * NF_TILE_ROWS * (double)cols);
    double read[NF_BENCH_MAX_RUNS], cold[NF_BENCH_MAX_RUNS], warm[NF_BENCH_MAX_RUNS];
    t->m = m;
    t->n_tiles = fitting < (double)all ? (size_t)fitting + 1 : all;
    t->repeat = 1;
    const double cold_mib = (double)t->n_tiles * (double)tile / (1 << 20);
    for (int i = 0; i < (int)b->o->runs; i++) { /* reading in between also evicts the weights */
        read[i] = nf_bench_read_gb_s(&b->team, &b->memory);
        cold[i] = time_once(&b->team, t);
    }
    size_t few = (256u << 10) / tile ? (256u << 10) / tile : 1; /* stays in the second-level caches */
    t->repeat = (int)(t->n_tiles / 4 / few) + 1;
    t->n_tiles = few;
    (void)time_once(&b->team, t);
    for (int i = 0; i < (int)b->o->runs; i++) warm[i] = time_once(&b->team, t);
    const nf_summary r = nf_summarise(read, (size_t)b->o->runs), c = nf_summarise(cold, (size_t)b->o->runs),
                     w = nf_summarise(warm, (size_t)b->o->runs);
    const double macs = (double)m * NF_TILE_ROWS * (double)cols / (double)tile; /* of a byte of weights */
    json_t *row =
        json_pack("{s:s, s:i, s:f, s:o, s:o, s:o, s:f, s:f, s:f}", "type", types[type].name, "rows", (int)m,
                  "cold_mib", cold_mib, "read_gb_s", nf_summary_json(r), "cold_gb_s", nf_summary_json(c),
                  "warm_gb_s", nf_summary_json(w), "of_read", c.median / r.median, "cold_gmac_s",
                  c.median * macs, "warm_gmac_s", w.median * macs);
    if (!row || json_array_append_new(b->results, row))
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    fprintf(stderr, "%-6s %4zu rows: %.1f GB/s cold, %.2f of reading\n", types[type].name, m, c.median,
            c.median / r.median);
    return nf_buf_printf(&report->text, err,
                         "| %s | %zu | %.1f / **%.1f** / %.1f | %.1f | %.2f | %.0f | %.1f | %.0f |\n",
                         types[type].name, m, c.min, c.median, c.max, r.median, c.median / r.median,
                         c.median * macs, w.median, w.median * macs);
}

static nf_status measure_type(bench *b, size_t type, nf_bench_report *report, nf_error *err) {
    const size_t cols = (size_t)b->o->cols;
    const size_t tile = (size_t)nf_matrix_tile_bytes(types[type].format, NF_TILE_ROWS, cols);
    if (tile > b->memory.n)
        return nf_fail(err, NF_ERR_ARGUMENT, "one tile of %s has %zu bytes: use a larger --mib",
                       types[type].name, tile);
    b->t.w = (nf_weights){.format = types[type].format,
                          .rows = b->memory.n / tile * NF_TILE_ROWS,
                          .cols = cols,
                          .tiles = b->memory.bytes,
                          .tile_stride = tile,
                          .table = b->table};
    nf_status status = NF_OK;
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts && !status; i++)
        status = measure_one(b, type, row_counts[i], report, err);
    return status;
}

static nf_status prepare(bench *b, nf_error *err) {
    nf_topology topology;
    nf_status status = nf_kernels_get(&b->t.kernels, err);
    if (!status) status = nf_topology_get(&topology, err);
    if (status) return status;
    nf_thread_plan plan = {0};
    status = nf_thread_plan_make(&topology, (int)b->o->threads, NF_PIN_AUTO, &plan, err);
    if (!status) status = nf_team_start(&b->team, &plan, err);
    nf_thread_plan_free(&plan);
    nf_topology_free(&topology);
    if (!status) status = nf_bench_memory_new((size_t)b->o->mib << 20, &b->memory, err);
    if (status) return status;
    b->t.out = nf_calloc_aligned(64, (size_t)b->team.n_threads * MAX_ROWS * NF_TILE_ROWS, sizeof(float),
                                 "results", err);
    /* Of f8: an entry for 128 x 128 bytes, rounded up along both sides. */
    const size_t entries = b->memory.n / (NF_F8_BLOCK * NF_F8_BLOCK) * 2 + (size_t)b->o->cols + 1;
    b->table = nf_alloc(entries, sizeof *b->table, "a table of scales", err);
    for (size_t i = 0; b->table && i < entries; i++) b->table[i] = 0.5f;
    if (!b->t.out || !b->table) return NF_ERR_MEMORY;
    return make_rows(b->t.kernels, MAX_ROWS, (size_t)b->o->cols, &b->t.in, err);
}

static nf_status measure(bench *b, nf_bench_report *report, int argc, char **argv, nf_error *err) {
    nf_status status = prepare(b, err);
    if (!status) status = nf_report_begin(report, "Matrix kernels", argc, argv, b->team.n_threads, err);
    if (status) return status;
    b->results = json_array();
    if (!b->results || json_object_set_new(report->json, "isa", json_string(b->t.kernels->name)) ||
        json_object_set_new(report->json, "results", b->results))
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    status = nf_buf_printf(
        &report->text, err,
        "%s kernels, matrices of %lld columns in %lld MiB, %lld runs. Cold: weights from memory (minimum / "
        "**median** / maximum), in\nalternation with reading that memory; from 64 rows on fewer weights "
        "(some "
        "%.0f GMAC a run). Warm: from the caches.\n\n| type | rows | cold GB/s | read GB/s | of read | cold "
        "GMAC/s | warm GB/s | warm GMAC/s |\n|---|---|---|---|---|---|---|---|\n",
        b->t.kernels->name, (long long)b->o->cols, (long long)b->o->mib, (long long)b->o->runs,
        MACS_OF_A_RUN / 1e9);
    for (size_t k = 0; k < sizeof types / sizeof *types && !status; k++)
        if (!b->o->type || !strcmp(b->o->type, types[k].name)) status = measure_type(b, k, report, err);
    return status ? status : nf_report_end(report, err);
}

int nf_bench_kernels(int argc, char **argv) {
    settings o = {.mib = 1024, .cols = 2048, .runs = 9};
    nf_bench_report report = {0};
    const nf_opt options[] = {{.name = "mib",
                               .kind = NF_OPT_INT,
                               .dst = &o.mib,
                               .value = "N",
                               .min = 16,
                               .max = 1 << 20,
                               .help = "working set in MiB, far beyond the caches (default 1024)"},
                              {.name = "columns",
                               .kind = NF_OPT_INT,
                               .dst = &o.cols,
                               .value = "N",
                               .min = 32,
                               .max = 1 << 17,
                               .help = "columns of the matrices (default 2048)"},
                              {.name = "type",
                               .kind = NF_OPT_TEXT,
                               .dst = &o.type,
                               .value = "TYPE",
                               .help = "one type only, as the report names it (default: all)"},
                              {.name = "threads",
                               .kind = NF_OPT_INT,
                               .dst = &o.threads,
                               .value = "N",
                               .min = 1,
                               .max = 1024,
                               .help = "threads (default: one per core that the process may use)"},
                              {.name = "runs",
                               .kind = NF_OPT_INT,
                               .dst = &o.runs,
                               .value = "N",
                               .min = 1,
                               .max = NF_BENCH_MAX_RUNS,
                               .help = "runs of which the median counts (default 9)"},
                              NF_BENCH_REPORT_OPTIONS(&report),
                              {0}};
    const nf_args_spec spec = {.program = "ninfer-bench kernels",
                               .usage = "[options]",
                               .about = "Times the matrix kernels of each storage type for 1 to 512 input "
                                        "rows beside the\nmemory read bandwidth of the same run.",
                               .options = options};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, NULL, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    bool known = !o.type;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        known |= o.type && !strcmp(o.type, types[k].name);
    if (!known)
        return nf_usage_error(&spec, "--type '%s' is not in the report; leave it out to see all", o.type);
    nf_error err = {0};
    bench *b = nf_calloc_aligned(64, 1, sizeof *b, "a measurement", &err);
    nf_status status = NF_ERR_MEMORY;
    if (b) {
        b->o = &o;
        status = measure(b, &report, argc, argv, &err);
        free_rows(&b->t.in);
        free(b->t.out);
        free(b->table);
        nf_bench_memory_free(&b->memory);
        nf_team_stop(&b->team);
    }
    free(b);
    nf_report_free(&report);
    if (status) fprintf(stderr, "%s: %s\n", spec.program, err.message);
    return status ? 1 : 0;
}
