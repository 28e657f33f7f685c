/* Helpers that the measurements share; see bench.h. */
#include "bench/bench.h"

#include "base/io.h"
#include "base/progress.h"
#include "cpu/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- repeated timings ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

nf_summary nf_summarise(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return (nf_summary){.min = values[0],
                        .median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
                        .max = values[n - 1]};
}

/* ---- memory ---- */

nf_status nf_bench_memory_new(size_t n, nf_bench_memory *out, nf_error *err) {
    *out = (nf_bench_memory){.n = n};
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return nf_fail(err, NF_ERR_MEMORY,
                       "cannot allocate %zu bytes for the measurement; use a smaller --mib", n);
    out->bytes = p;
    (void)madvise(p, n, MADV_HUGEPAGE); /* slower without, not wrong */
#pragma omp parallel for schedule(static)
    for (size_t page = 0; page < n; page += 4096) {
        uint64_t x = page * 0x9E3779B97F4A7C15ull + 1;
        for (size_t i = 0; i + 1 < 4096 && page + i + 1 < n; i += 2) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            uint16_t h = (uint16_t)(0x2000u | (x >> 53)); /* 0.0078..0.031 */
            memcpy(out->bytes + page + i, &h, 2);
        }
    }
    return NF_OK;
}

void nf_bench_memory_free(nf_bench_memory *memory) {
    if (memory->bytes) munmap(memory->bytes, memory->n);
    *memory = (nf_bench_memory){0};
}

#define READ_PIECE ((size_t)65536)

typedef struct reading {
    const nf_bench_memory *memory;
    atomic_uint_fast64_t sink; /* so that nothing is optimised away */
} reading;

/* 16 bytes, the vector that every target has: gcc splits wider ones by way of the stack, and a plain loop
 * over bytes too, which then reads at a fifth of the memory's speed. */
typedef uint64_t read_vector __attribute__((vector_size(16), aligned(16), may_alias));

uint64_t nf_bench_sum(const uint8_t *bytes, size_t n) {
    const read_vector *p = (const read_vector *)(const void *)bytes;
    read_vector a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < n / sizeof *p; i += 4) a += p[i], b += p[i + 1], c += p[i + 2], d += p[i + 3];
    a += b + c + d;
    return a[0] + a[1];
}

static void read_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    reading *r = user;
    const uint64_t sum = nf_bench_sum(r->memory->bytes + begin * READ_PIECE, (end - begin) * READ_PIECE);
    atomic_fetch_add_explicit(&r->sink, sum, memory_order_relaxed);
}

static void read_all(nf_worker *worker, void *user) {
    reading *r = user;
    nf_team_loop(worker, r->memory->n / READ_PIECE, 8, read_body, r);
}

double nf_bench_read_gb_s(nf_team *team, const nf_bench_memory *memory) {
    reading r = {.memory = memory};
    double start = nf_now();
    nf_team_run(team, read_all, &r);
    const size_t whole = memory->n / READ_PIECE * READ_PIECE;
    return (double)whole / (nf_now() - start) / 1e9;
}

/* ---- the report ---- */

nf_status nf_report_begin(nf_bench_report *report, const char *title, int argc, char **argv, int n_threads,
                          nf_error *err) {
    char processor[192];
    double load[1] = {0};
    nf_processor_name(processor, sizeof processor);
    if (getloadavg(load, 1) < 1) load[0] = -1.0;
    nf_buf command = {0};
    nf_status status = nf_buf_text(&command, "ninfer-bench", err);
    for (int i = 0; i < argc && !status; i++) status = nf_buf_printf(&command, err, " %s", argv[i]);
    if (!status) {
        report->json = json_pack("{s:s, s:s, s:s, s:i, s:f}", "version", nf_version(), "command",
                                 command.data, "processor", processor, "threads", n_threads, "load", load[0]);
        if (!report->json)
            status = nf_fail(err, NF_ERR_ARGUMENT,
                             "the command line is not valid UTF-8, or memory for the report is out");
    }
    if (!status)
        status =
            nf_buf_printf(&report->text, err, "# %s\n\n%s, %d threads, load %.2f at the start; `%s`.\n\n",
                          title, processor, n_threads, load[0], command.data);
    nf_buf_free(&command);
    return status;
}

json_t *nf_summary_json(nf_summary s) {
    return json_pack("{s:f, s:f, s:f}", "min", s.min, "median", s.median, "max", s.max);
}

nf_status nf_report_end(nf_bench_report *report, nf_error *err) {
    if (fwrite(report->text.data, 1, report->text.len, stdout) != report->text.len || fflush(stdout))
        return nf_fail(err, NF_ERR_IO, "cannot write the report to standard output");
    nf_status status = NF_OK;
    if (report->markdown_path)
        status = nf_write_file_atomic(report->markdown_path, report->text.data, report->text.len, err);
    if (!status && report->json_path) {
        char *dump = json_dumps(report->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        status = dump ? nf_write_file_atomic(report->json_path, dump, strlen(dump), err)
                      : nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
        free(dump);
    }
    return status;
}

void nf_report_free(nf_bench_report *report) {
    json_decref(report->json);
    report->json = NULL;
    nf_buf_free(&report->text);
}
