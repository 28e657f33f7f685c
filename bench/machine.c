/*
 * ninfer-bench machine: what this machine is and how fast its memory, caches, cores and disk are. The figures
 * are printed and saved as the calibration that plans are made with (cpu/calibration.h).
 */
#include "base/io.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "bench/machine_measure.h"
#include "cpu/calibration.h"
#include "cpu/thread_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct settings {
    int64_t mib, latency_mib, disk_mib, threads, runs;
    const char *disk, *save;
    bool no_save;
} settings;

typedef struct bench {
    const settings *o;
    nf_topology topology;
    int n_threads;
    const nf_kernels *kernels;
    nf_memory huge, small, other; /* read from, read from, copied to */
    nf_memory chase_small, chase_huge;
    nf_dot_work f32, i8;
    nf_disk disk;
    nf_calibration c;
    nf_progress bar;
    uint64_t done, total; /* samples */
} bench;

/* ---- samples ---- */

/* What a figure is measured with; the functions below take what they need of it. */
typedef struct subject {
    bench *b;
    nf_cores cores;
    const nf_memory *memory;
    const nf_dot_work *work;
} subject;

static nf_status sample_read(const subject *s, double *x, nf_error *err) {
    return nf_measure_read(s->cores, s->memory, x, err);
}

static nf_status sample_copy(const subject *s, double *x, nf_error *err) {
    return nf_measure_copy(s->cores, s->memory, &s->b->other, x, err);
}

static nf_status sample_chase(const subject *s, double *x, nf_error *err) {
    return nf_measure_chase(s->cores.cpus[0], s->memory, x, err);
}

static nf_status sample_dot(const subject *s, double *x, nf_error *err) {
    return nf_measure_dot(s->cores, s->work, x, err);
}

static nf_status sample_disk(const subject *s, double *x, nf_error *err) {
    return nf_measure_disk(&s->b->disk, (uint64_t)s->b->o->disk_mib << 20, x, err);
}

/* Samples of both subjects in alternation, so that what else the machine does meets both; `other` may be
 * NULL.
 */
static nf_status measure(const subject *s, nf_spread *out, const subject *other, nf_spread *other_out,
                         nf_status (*sample)(const subject *, double *, nf_error *), nf_error *err) {
    double x[NF_BENCH_MAX_RUNS], y[NF_BENCH_MAX_RUNS];
    bench *b = s->b;
    const size_t runs = (size_t)b->o->runs;
    for (size_t i = 0; i < runs; i++) {
        nf_status status = sample(s, &x[i], err);
        if (!status && other) status = sample(other, &y[i], err);
        if (status) return status;
        b->done += other ? 2 : 1;
        nf_progress_bar(&b->bar, "measure", b->done, b->total);
    }
    const nf_summary sum = nf_summarise(x, runs);
    *out = (nf_spread){sum.min, sum.median, sum.max};
    if (!other) return NF_OK;
    const nf_summary sum_y = nf_summarise(y, runs);
    *other_out = (nf_spread){sum_y.min, sum_y.median, sum_y.max};
    return NF_OK;
}

/* ---- which cores ---- */

/* 1, 2, 3, 4, 6, 8, 12, 16, ... and all. */
static int next_count(int n, int all) {
    if (n >= all) return all + 1;
    const int next = n < 2 ? n + 1 : n & (n - 1) ? n / 3 * 4 : n / 2 * 3;
    return next < all ? next : all;
}

/* The first core of each of n threads; the caller frees plan. */
static nf_status cores_for(const bench *b, int n, nf_thread_plan *plan, nf_cores *out, nf_error *err) {
    nf_status status = nf_thread_plan_make(&b->topology, n, NF_PIN_OFF, plan, err);
    if (!status && !plan->cpus) {
        nf_thread_plan_free(plan);
        status =
            nf_fail(err, NF_ERR_ARGUMENT, "%d threads, but only %d cores are allowed: use fewer --threads", n,
                    b->topology.n_cores);
    }
    *out = (nf_cores){plan->cpus, n};
    return status;
}

/* Products out of the caches. */
static nf_status rates_of_products(bench *b, nf_cores cores, nf_error *err) {
    nf_thread_rate rate = {.threads = cores.n, .node = -1};
    const subject f32 = {.b = b, .cores = cores, .work = &b->f32},
                  i8 = {.b = b, .cores = cores, .work = &b->i8};
    nf_status status = measure(&f32, &rate.rate, NULL, NULL, sample_dot, err);
    if (!status) status = nf_rates_add(&b->c.f32_dot, rate, err);
    if (!status) status = measure(&i8, &rate.rate, NULL, NULL, sample_dot, err);
    return status ? status : nf_rates_add(&b->c.i8_dot, rate, err);
}

static nf_status rates_of_count(bench *b, nf_cores cores, nf_error *err) {
    const bool all = cores.n == b->n_threads;
    const subject huge = {.b = b, .cores = cores, .memory = &b->huge},
                  small = {.b = b, .cores = cores, .memory = &b->small};
    nf_thread_rate rate = {.threads = cores.n, .node = -1};
    nf_status status =
        measure(&huge, &rate.rate, all ? &small : NULL, &b->c.read_small_pages, sample_read, err);
    if (!status) status = nf_rates_add(&b->c.read, rate, err);
    if (!status && all) status = measure(&huge, &b->c.copy, NULL, NULL, sample_copy, err);
    return status || (cores.n > 1 && !all) ? status : rates_of_products(b, cores, err);
}

static nf_status rates_of_all_counts(bench *b, nf_error *err) {
    nf_status status = NF_OK;
    for (int n = 1; n <= b->n_threads && !status; n = next_count(n, b->n_threads)) {
        nf_thread_plan plan;
        nf_cores cores;
        status = cores_for(b, n, &plan, &cores, err);
        if (!status) status = rates_of_count(b, cores, err);
        nf_thread_plan_free(&plan);
    }
    return status;
}

static nf_status rate_of_node(bench *b, int node, nf_error *err) {
    const nf_topology *t = &b->topology;
    nf_memory memory = {0};
    int n = 0, *cpus = nf_calloc((size_t)t->n_threads, sizeof *cpus, "processors", err);
    if (!cpus) return NF_ERR_MEMORY;
    for (int i = 0; i < t->n_threads; i++)
        if (t->cpus[i].node == node && !t->cpus[i].sibling) cpus[n++] = t->cpus[i].cpu;
    nf_status status = NF_OK;
    if (n) { /* a node without allowed cores is not ours to use */
        const nf_memory_options options = {.nodes = &t->nodes[node].os_node, .n_nodes = 1};
        const subject s = {.b = b, .cores = {cpus, n}, .memory = &memory};
        nf_thread_rate rate = {.threads = n, .node = t->nodes[node].os_node};
        status = nf_memory_new(b->huge.n, &options, &memory, err);
        if (!status && !memory.placed)
            status = nf_fail(err, NF_ERR_IO,
                             "the system does not let this process choose NUMA nodes (mbind): cannot "
                             "measure node %d",
                             rate.node);
        if (!status) {
            memset(memory.bytes, 1, memory.n);
            status = measure(&s, &rate.rate, NULL, NULL, sample_read, err);
        }
        if (!status) status = nf_rates_add(&b->c.node_read, rate, err);
        nf_memory_free(&memory);
    }
    free(cpus);
    return status;
}

static nf_status measure_latency(bench *b, nf_error *err) {
    nf_memory_report got;
    const nf_cores first = {&b->topology.cpus[0].cpu, 1};
    const subject small = {.b = b, .cores = first, .memory = &b->chase_small},
                  huge = {.b = b, .cores = first, .memory = &b->chase_huge};
    nf_status status =
        measure(&small, &b->c.latency_small_ns, &huge, &b->c.latency_huge_ns, sample_chase, err);
    if (!status) status = nf_memory_inspect(&b->chase_huge, &got, err);
    if (status) return status;
    b->c.latency_bytes = b->chase_huge.n;
    b->c.huge_fraction = got.resident_bytes ? (double)got.huge_bytes / (double)got.resident_bytes : 0;
    return NF_OK;
}

/* ---- the whole ---- */

static nf_status filled(size_t n, nf_pages pages, bench *b, nf_memory *out, nf_error *err) {
    const nf_topology *t = &b->topology;
    int *nodes = nf_calloc((size_t)t->n_numa_nodes, sizeof *nodes, "NUMA nodes", err);
    if (!nodes) return NF_ERR_MEMORY;
    for (int i = 0; i < t->n_numa_nodes; i++) nodes[i] = t->nodes[i].os_node;
    const nf_memory_options options = {
        .pages = pages, .nodes = nodes, .n_nodes = t->n_numa_nodes > 1 ? (size_t)t->n_numa_nodes : 0};
    nf_status status = nf_memory_new(n, &options, out, err);
    if (!status) memset(out->bytes, 1, n);
    free(nodes);
    return status;
}

/* Whether this process may use one of the node's. */
static bool has_cores(const nf_topology *t, int node) {
    bool found = false;
    for (int i = 0; i < t->n_threads; i++) found |= t->cpus[i].node == node;
    return found;
}

static nf_status prepare(bench *b, nf_error *err) {
    const size_t n = (size_t)b->o->mib << 20, latency = (size_t)b->o->latency_mib << 20;
    nf_status status = nf_topology_get(&b->topology, err);
    if (status) return status;
    b->n_threads = b->o->threads ? (int)b->o->threads : nf_topology_default_threads(&b->topology);
    int counts = 0;
    for (int k = 1; k <= b->n_threads; k = next_count(k, b->n_threads)) counts++;
    int nodes = 0;
    for (int i = 0; i < b->topology.n_numa_nodes; i++) nodes += has_cores(&b->topology, i);
    /* Reads, small pages and copy; products of two types with one and with all threads; nodes; latency twice.
     */
    const int figures = counts + 2 + (b->n_threads > 1 ? 4 : 2) + nodes + 2 + (b->o->disk != NULL);
    b->total = (uint64_t)b->o->runs * (uint64_t)figures;
    status = nf_kernels_get(&b->kernels, err);
    if (!status && b->o->disk)
        status = nf_disk_open(b->o->disk, (uint64_t)b->o->disk_mib << 20, &b->disk, err);
    if (!status) status = filled(n, NF_PAGES_HUGE, b, &b->huge, err);
    if (!status) status = filled(n, NF_PAGES_SMALL, b, &b->small, err);
    if (!status) status = filled(n, NF_PAGES_HUGE, b, &b->other, err);
    if (!status) status = filled(latency, NF_PAGES_SMALL, b, &b->chase_small, err);
    if (!status) status = filled(latency, NF_PAGES_HUGE, b, &b->chase_huge, err);
    if (!status) status = nf_make_chase(&b->chase_small, err);
    if (!status) status = nf_make_chase(&b->chase_huge, err);
    if (!status) status = nf_dot_new(b->kernels, NF_TYPE_F32, &b->f32, err);
    return status ? status : nf_dot_new(b->kernels, NF_TYPE_I8, &b->i8, err);
}

static nf_status measure_all(bench *b, nf_error *err) {
    nf_status status = rates_of_all_counts(b, err);
    for (int i = 0; i < b->topology.n_numa_nodes && !status; i++) status = rate_of_node(b, i, err);
    if (!status) status = measure_latency(b, err);
    if (!status && b->o->disk) {
        const subject s = {.b = b};
        status = measure(&s, &b->c.disk, NULL, NULL, sample_disk, err);
        b->c.has_disk = true;
        b->c.disk_path = status ? NULL : nf_strdup(b->o->disk, err);
        if (!status && !b->c.disk_path) status = NF_ERR_MEMORY;
    }
    nf_machine_of(&b->topology, &b->c.machine);
    b->c.created = (int64_t)time(NULL);
    snprintf(b->c.isa, sizeof b->c.isa, "%s", b->kernels->name);
    return status;
}

static void release(bench *b) {
    nf_memory_free(&b->huge);
    nf_memory_free(&b->small);
    nf_memory_free(&b->other);
    nf_memory_free(&b->chase_small);
    nf_memory_free(&b->chase_huge);
    nf_dot_free(&b->f32);
    nf_dot_free(&b->i8);
    nf_disk_close(&b->disk);
    nf_calibration_free(&b->c);
    nf_topology_free(&b->topology);
}

/* ---- the report ---- */

static nf_status write_row(nf_buf *out, const char *what, const char *unit, nf_spread s, nf_error *err) {
    return nf_buf_printf(out, err, "| %s | %.4g | **%.4g** | %.4g | %s |\n", what, s.min, s.median, s.max,
                         unit);
}

static nf_status write_rates(nf_buf *out, const char *what, const char *unit, const nf_rates *rates,
                             nf_error *err) {
    nf_status status = NF_OK;
    for (size_t i = 0; i < rates->n && !status; i++) {
        const nf_thread_rate *r = &rates->items[i];
        char name[96];
        int n = snprintf(name, sizeof name, "%s, %d thread%s", what, r->threads, r->threads > 1 ? "s" : "");
        if (r->node >= 0) snprintf(name + n, sizeof name - (size_t)n, " of node %d", r->node);
        status = write_row(out, name, unit, r->rate, err);
    }
    return status;
}

static nf_status write_text(const bench *b, nf_buf *out, nf_error *err) {
    const nf_calibration *c = &b->c;
    nf_status status = nf_buf_text(out, "```\n", err);
    if (!status) status = nf_topology_describe(&b->topology, out, err);
    if (!status)
        status = nf_buf_printf(out, err,
                               "```\n\n%lld samples of each figure; %lld MiB of memory, %lld MiB for the "
                               "latency (%.0f%% of it on huge pages where meant to be).\n\n"
                               "| | minimum | median | maximum | |\n|---|---|---|---|---|\n",
                               (long long)b->o->runs, (long long)b->o->mib, (long long)b->o->latency_mib,
                               100 * c->huge_fraction);
    if (!status) status = write_rates(out, "memory read", "GB/s", &c->read, err);
    if (!status) status = write_rates(out, "memory read", "GB/s", &c->node_read, err);
    if (!status)
        status = write_row(out, "memory read on small pages, all threads", "GB/s", c->read_small_pages, err);
    if (!status) status = write_row(out, "memory copied, all threads", "GB/s", c->copy, err);
    if (!status) status = write_row(out, "latency on small pages", "ns", c->latency_small_ns, err);
    if (!status) status = write_row(out, "latency on huge pages", "ns", c->latency_huge_ns, err);
    if (!status) status = write_rates(out, "f32 products in cache", "GMAC/s", &c->f32_dot, err);
    if (!status) status = write_rates(out, "i8 products in cache", "GMAC/s", &c->i8_dot, err);
    if (!status && c->has_disk) status = write_row(out, "disk read", "GB/s", c->disk, err);
    return status;
}

static nf_status report(bench *b, nf_bench_report *out, int argc, char **argv, nf_error *err) {
    nf_status status = nf_report_begin(out, "The machine", argc, argv, b->n_threads, err);
    if (!status) status = write_text(b, &out->text, err);
    if (status) return status;
    json_t *calibration = nf_calibration_json(&b->c);
    if (!calibration || json_object_set_new(out->json, "calibration", calibration))
        return nf_fail(err, NF_ERR_MEMORY, "out of memory for the report");
    status = nf_report_end(out, err);
    if (status || b->o->no_save) return status;
    nf_buf path = {0};
    status = b->o->save ? nf_buf_text(&path, b->o->save, err) : nf_calibration_path(&path, err);
    if (!status) status = nf_calibration_save(&b->c, path.data, err);
    if (!status) fprintf(stderr, "calibration saved to %s\n", path.data);
    nf_buf_free(&path);
    return status;
}

int nf_bench_machine(int argc, char **argv) {
    settings o = {.mib = 512, .latency_mib = 256, .disk_mib = 256, .runs = 9};
    nf_bench_report out = {0};
    const nf_opt options[] = {
        {.name = "file",
         .kind = NF_OPT_TEXT,
         .dst = &o.disk,
         .value = "PATH",
         .help = "measure the disk of this file, or of this folder by a file that\nis written there (without "
                 "it no disk is measured)"},
        {.name = "save",
         .kind = NF_OPT_TEXT,
         .dst = &o.save,
         .value = "FILE",
         .help = "where the calibration goes\n(default: ~/.cache/ninfer/calibration.json)"},
        {.name = "no-save", .kind = NF_OPT_FLAG, .dst = &o.no_save, .help = "keep no calibration"},
        {.name = "threads",
         .kind = NF_OPT_INT,
         .dst = &o.threads,
         .value = "N",
         .min = 1,
         .max = 1024,
         .help = "most threads to measure, each on its own core (default: as a model would)"},
        {.name = "runs",
         .kind = NF_OPT_INT,
         .dst = &o.runs,
         .value = "N",
         .min = 1,
         .max = NF_BENCH_MAX_RUNS,
         .help = "samples of which the median counts (default 9)"},
        {.name = "mib",
         .kind = NF_OPT_INT,
         .dst = &o.mib,
         .value = "N",
         .min = 16,
         .max = 1 << 20,
         .help = "memory for the bandwidths in MiB, three times over (default 512)"},
        {.name = "latency-mib",
         .kind = NF_OPT_INT,
         .dst = &o.latency_mib,
         .value = "N",
         .min = 1,
         .max = 65536,
         .help = "memory for the latency in MiB, twice over (default 256)"},
        {.name = "disk-mib",
         .kind = NF_OPT_INT,
         .dst = &o.disk_mib,
         .value = "N",
         .min = 16,
         .max = 1 << 20,
         .help = "bytes of one sample of the disk in MiB (default 256)"},
        NF_BENCH_REPORT_OPTIONS(&out),
        {0}};
    const nf_args_spec spec = {
        .program = "ninfer-bench machine",
        .usage = "[options]",
        .about =
            "Describes processors, caches and memory, measures bandwidths, latency, speed of products and "
            "disk, and saves\nthe figures as the calibration that plans are made with.",
        .options = options};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, NULL, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    if (o.save && o.no_save) return nf_usage_error(&spec, "--save and --no-save exclude each other");
    nf_error err = {0};
    bench b = {.o = &o, .disk = {.fd = -1}, .bar = {.out = stderr, .unit = "samples"}};
    nf_status status = prepare(&b, &err);
    if (!status) status = measure_all(&b, &err);
    if (!status) status = report(&b, &out, argc, argv, &err);
    release(&b);
    nf_report_free(&out);
    if (status) fprintf(stderr, "%s: %s\n", spec.program, err.message);
    return status ? 1 : 0;
}
