/*
 * ninfer-bench: what its measurements share. A measurement is one file with one function, listed in the table
 * of main.c; it uses the project's libraries and the helpers below: summaries of repeated timings, memory far
 * beyond the caches with the read bandwidth that every figure is held against, and one report that is printed
 * and saved as JSON and Markdown.
 */
#ifndef NF_BENCH_H
#define NF_BENCH_H

#include "base/args.h"
#include "base/buf.h"
#include "cpu/team.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define NF_BENCH_MAX_RUNS 63

/* ---- the measurements: argv[0] is the subcommand's name; each returns the exit status ---- */

int nf_bench_attention(int argc, char **argv);
int nf_bench_kernels(int argc, char **argv);
int nf_bench_machine(int argc, char **argv);
int nf_bench_make_model(int argc, char **argv);
int nf_bench_model(int argc, char **argv);

/* ---- repeated timings ---- */

typedef struct nf_summary {
    double min, median, max;
} nf_summary;

/* Sorts values [n], n >= 1 (the mean of the middle two when n is even). */
nf_summary nf_summarise(double *values, size_t n);

/* ---- memory and its read bandwidth ---- */

typedef struct nf_bench_memory {
    uint8_t *bytes; /* page-aligned; NULL: none */
    size_t n;
} nf_bench_memory;

/* Anonymous memory of n bytes (n > 0), on huge pages where the system allows them, filled by all threads with
 * noise of which every 16 bits are a small positive f16, so that scales are sane wherever they lie. */
nf_status nf_bench_memory_new(size_t n, nf_bench_memory *out, nf_error *err);
/* Accepts zeroed memory. */
void nf_bench_memory_free(nf_bench_memory *memory);
/* Reads n bytes (a multiple of 64, aligned to 16) as fast as a core can; a sum over them. */
uint64_t nf_bench_sum(const uint8_t *bytes, size_t n);
/* Reads all of it (whole pieces of 64 KiB) once with the team; GB/s. */
double nf_bench_read_gb_s(nf_team *team, const nf_bench_memory *memory);

/* ---- the report ---- */

/* One report: `json` grows to what --json saves, `text` to the Markdown that is printed and that --markdown
 * saves. Zero-initialise, then nf_report_begin; free with nf_report_free. */
typedef struct nf_bench_report {
    json_t *json;
    nf_buf text;
    const char *json_path, *markdown_path; /* options of the measurement; NULL: not saved */
} nf_bench_report;

/* The two options of every measurement, for its table. */
#define NF_BENCH_REPORT_OPTIONS(report)                                                                      \
    {.name = "json",                                                                                         \
     .kind = NF_OPT_TEXT,                                                                                    \
     .dst = &(report)->json_path,                                                                            \
     .value = "FILE",                                                                                        \
     .help = "save the figures as JSON"},                                                                    \
    {                                                                                                        \
        .name = "markdown", .kind = NF_OPT_TEXT, .dst = &(report)->markdown_path, .value = "FILE",           \
        .help = "save the printed report"                                                                    \
    }

/* Starts the report: title, command line, processor, threads, load. */
nf_status nf_report_begin(nf_bench_report *report, const char *title, int argc, char **argv, int n_threads,
                          nf_error *err);
/* {"min":, "median":, "max":} as a new reference; NULL when memory is out. */
json_t *nf_summary_json(nf_summary s);
/* Prints the text and writes the files asked for. */
nf_status nf_report_end(nf_bench_report *report, nf_error *err);
void nf_report_free(nf_bench_report *report);

#endif
