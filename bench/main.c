/* ninfer-bench: one program for all measurements. A subcommand is a file of this folder, its function in
 * bench.h and a line of the table below. */
#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"kernels", "matrix kernels of each storage type beside the memory read bandwidth", nf_bench_kernels},
    {"attention", "attention over a KV cache of each type beside the memory read bandwidth",
     nf_bench_attention},
    {"model", "prefill and decode of a container beside the memory read bandwidth", nf_bench_model},
    {"machine", "processors, memory, caches and disk: what plans are made with", nf_bench_machine},
    {"make-model", "a container with the shapes of a published model and random weights",
     nf_bench_make_model},
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

int main(int argc, char **argv) {
    for (size_t i = 0; i < N_COMMANDS && argc > 1; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    nf_buf about = {0};
    nf_error err = {0};
    nf_status status = nf_buf_text(&about, "Measurements, each with its own --help:", &err);
    for (size_t i = 0; i < N_COMMANDS && !status; i++)
        status = nf_buf_printf(&about, &err, "\n  %-11s %s", commands[i].name, commands[i].about);
    if (status) {
        fprintf(stderr, "ninfer-bench: %s\n", err.message);
        nf_buf_free(&about);
        return 1;
    }
    const nf_opt none[] = {{0}};
    const nf_args_spec spec = {.program = "ninfer-bench",
                               .usage = "MEASUREMENT [options]",
                               .about = about.data,
                               .options = none,
                               .max_positional = 1};
    const char *word;
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &word, &n);
    int exit_status = parsed == NF_ARGS_DONE ? 0 : 2;
    if (parsed == NF_ARGS_RUN)
        exit_status = n ? nf_usage_error(&spec, "unknown measurement '%s'", word)
                        : nf_usage_error(&spec, "name a measurement: see --help");
    nf_buf_free(&about);
    return exit_status;
}
