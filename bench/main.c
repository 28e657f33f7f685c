/*
 * ninfer-bench: measurements. `ninfer-bench kernels` times matrix tiles of each storage type beside the
 * memory read bandwidth of the same run: GB/s of weights, fraction of the read bandwidth, for weights from
 * memory (cold) and from the caches (warm).
 */
#include "base/args.h"
#include "base/buf.h"
#include "base/progress.h"
#include "cpu/kernels.h"
#include "cpu/team.h"
#include "cpu/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- a working set ---- */

typedef struct buffer {
    uint8_t *bytes;
    size_t n;
} buffer;

/* Anonymous memory, on huge pages where the system allows them, written by all threads. */
static nf_status make_buffer(size_t n, buffer *out, nf_error *err) {
    out->n = n;
    out->bytes = mmap(NULL, n + (4u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out->bytes == MAP_FAILED)
        return nf_fail(err, NF_ERR_MEMORY,
                       "cannot allocate %zu bytes for the measurement; use a smaller --mib", n);
    (void)madvise(out->bytes, n, MADV_HUGEPAGE); /* slower without, not wrong */
#pragma omp parallel for schedule(static)
    for (size_t page = 0; page < n; page += 4096) {
        uint64_t x = page * 0x9E3779B97F4A7C15ull + 1;
        for (size_t i = 0; i < 4096 && page + i < n; i += 2) {
            /* Every 16 bits are a small positive f16 (0.0078..0.031): scales are sane wherever they lie,
             * payload is noise in its low bits. */
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            uint16_t h = (uint16_t)(0x2000u | (x >> 53));
            memcpy(out->bytes + page + i, &h, 2);
        }
    }
    return NF_OK;
}

/* ---- what is timed ---- */

typedef struct timed {
    const nf_kernels *kernels; /* NULL: plain reading */
    nf_weights w;
    nf_rows in;
    size_t n_tiles, m;
    int repeat;
    const buffer *memory;
    float *sink; /* [threads], so that nothing is optimised away */
} timed;

static void read_body(void *user, size_t begin, size_t end, int thread) {
    timed *t = user;
    uint64_t sum[8] = {0};
    for (size_t page = begin; page < end; page++) {
        const uint8_t *p = t->memory->bytes + page * 65536;
        for (size_t i = 0; i < 65536; i += 64) {
            uint64_t v[8];
            memcpy(v, p + i, sizeof v);
            for (int k = 0; k < 8; k++) sum[k] += v[k];
        }
    }
    for (int k = 0; k < 8; k++) t->sink[thread] += (float)(sum[k] & 1);
}

static void tile_body(void *user, size_t begin, size_t end, int thread) {
    timed *t = user;
    float out[64 * NF_TILE_ROWS];
    for (size_t i = begin; i < end; i++) {
        t->kernels->tiles(&t->w, i, 1, &t->in, NULL, t->m, out);
        t->sink[thread] += out[0];
    }
}

static void run_timed(nf_worker *worker, void *user) {
    timed *t = user;
    for (int r = 0; r < t->repeat; r++) {
        if (t->kernels)
            nf_team_loop(worker, t->n_tiles, 16, tile_body, t);
        else
            nf_team_loop(worker, t->memory->n / 65536, 8, read_body, t);
    }
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median GB/s over `runs` of reading `bytes` (times repeat). */
static double median_rate(nf_team *team, timed *t, size_t bytes, int runs) {
    double rate[64];
    nf_team_run(team, run_timed, t); /* not counted: threads and caches warm up */
    for (int i = 0; i < runs; i++) {
        double start = nf_now();
        nf_team_run(team, run_timed, t);
        rate[i] = (double)bytes * t->repeat / (nf_now() - start) / 1e9;
    }
    qsort(rate, (size_t)runs, sizeof *rate, compare_doubles);
    return rate[runs / 2];
}

/* ---- kernels ---- */

typedef struct settings {
    int64_t mib, cols, threads, runs;
} settings;

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

/* Input rows with random values. */
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
        kernels->quantise_row(out->x + j * kp, kp, out->q + j * kp, out->scale + j * kp / NF_GROUP,
                              out->sum + j * kp / NF_GROUP);
    return NF_OK;
}

static void free_rows(nf_rows *rows) {
    free(rows->x), free(rows->q), free(rows->scale), free(rows->sum);
}

static nf_status measure_kernels(const settings *o, nf_error *err) {
    const nf_kernels *kernels;
    nf_topology topology;
    buffer memory;
    nf_rows rows = {0};
    nf_status status = nf_kernels_get(&kernels, err);
    if (!status) status = nf_topology_get(&topology, err);
    if (!status) status = make_buffer((size_t)o->mib << 20, &memory, err);
    if (status) return status;
    nf_team team;
    nf_team_init(&team, o->threads ? (int)o->threads : topology.n_cores);
    float *sink = nf_calloc(1025, sizeof *sink, "results", err);
    /* Of f8: an entry for 128 x 128 bytes, rounded up along both sides. */
    const size_t entries = memory.n / (NF_F8_BLOCK * NF_F8_BLOCK) * 2 + (size_t)o->cols + 1;
    float *table = nf_alloc(entries, sizeof *table, "a table of scales", err);
    for (size_t i = 0; table && i < entries; i++) table[i] = 0.5f;
    if (!sink || !table) status = NF_ERR_MEMORY;
    if (!status) status = make_rows(kernels, 8, (size_t)o->cols, &rows, err);
    if (!status) {
        timed t = {.memory = &memory, .sink = sink, .repeat = 1};
        double read = median_rate(&team, &t, memory.n / 65536 * 65536, (int)o->runs);
        printf("%d threads, %s kernels, %lld columns, working set %lld MiB, medians of %lld\nmemory read "
               "%.1f GB/s\n\n",
               team.n_threads, kernels->name, (long long)o->cols, (long long)o->mib, (long long)o->runs,
               read);
        printf("%-6s %5s %12s %10s %12s\n", "type", "rows", "cold GB/s", "of read", "warm GB/s");
        t.kernels = kernels;
        t.in = rows;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            size_t tile = (size_t)nf_matrix_tile_bytes(types[k].format, NF_TILE_ROWS, (uint64_t)o->cols),
                   all = memory.n / tile;
            size_t few = (256u << 10) / tile ? (256u << 10) / tile : 1; /* stays in the second-level caches */
            t.w = (nf_weights){.format = types[k].format,
                               .rows = all * NF_TILE_ROWS,
                               .cols = (size_t)o->cols,
                               .tiles = memory.bytes,
                               .tile_stride = tile,
                               .table = table};
            for (t.m = 1; t.m <= 8; t.m *= 2) {
                t.n_tiles = all;
                t.repeat = 1;
                double cold = median_rate(&team, &t, all * tile, (int)o->runs);
                t.n_tiles = few;
                t.repeat = (int)(memory.n / 4 / (few * tile)) + 1;
                double warm = median_rate(&team, &t, few * tile, (int)o->runs);
                printf("%-6s %5zu %12.1f %10.2f %12.1f\n", types[k].name, t.m, cold, cold / read, warm);
                fflush(stdout);
            }
        }
    }
    free_rows(&rows);
    free(sink);
    free(table);
    munmap(memory.bytes, memory.n + (4u << 20));
    return status;
}

static int kernels_main(int argc, char **argv) {
    settings o = {.mib = 1024, .cols = 2048, .runs = 9};
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
                              {.name = "threads",
                               .kind = NF_OPT_INT,
                               .dst = &o.threads,
                               .value = "N",
                               .min = 1,
                               .max = 1024,
                               .help = "threads (default: one a core)"},
                              {.name = "runs",
                               .kind = NF_OPT_INT,
                               .dst = &o.runs,
                               .value = "N",
                               .min = 1,
                               .max = 63,
                               .help = "runs of which the median counts (default 9)"},
                              {0}};
    const nf_args_spec spec = {.program = "ninfer-bench kernels",
                               .usage = "[options]",
                               .about = "Times the matrix kernels of each storage type for 1, 2, 4 and 8 "
                                        "input rows beside the\nmemory read bandwidth of the same run.",
                               .options = options};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, NULL, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_error err = {0};
    if (!measure_kernels(&o, &err)) return fflush(stdout) ? 1 : 0;
    fprintf(stderr, "ninfer-bench kernels: %s\n", err.message);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "kernels")) return kernels_main(argc - 1, argv + 1);
    const nf_opt none[] = {{0}};
    const nf_args_spec spec = {.program = "ninfer-bench",
                               .usage = "kernels [options]",
                               .about = "Measurements. `ninfer-bench kernels --help` says more; whole models "
                                        "are measured by bench/embedded.py.",
                               .options = none,
                               .max_positional = 1};
    const char *word;
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &word, &n);
    if (parsed == NF_ARGS_DONE) return 0;
    return parsed == NF_ARGS_RUN
               ? nf_usage_error(&spec, n ? "unknown measurement '%s'" : "name a measurement: kernels",
                                n ? word : "")
               : 2;
}
