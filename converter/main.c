/* ninfer-convert: checkpoints to containers, and looking at containers. */
#include "base/args.h"
#include "base/buf.h"
#include "base/progress.h"
#include "converter/convert.h"
#include "format/container.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

/* Ctrl-C and a polite kill stop the work between two pieces, so that temporary files are removed. A second
 * one kills. */
static void catch_interrupts(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int fail(const char *program, const nf_error *err) {
    fprintf(stderr, "%s: %s\n", program, err->message);
    return 1;
}

static void print_note(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "note: %s\n", line);
}

static int convert_main(int argc, char **argv) {
    const char *type = "c4", *codebook = "linear", *scale = "f16", *importance = NULL, *positional[2];
    double max_gb = 0;
    int64_t threads = 0;
    bool codebook_given = false, scale_given = false;
    const nf_opt options[] = {
        {.name = "type",
         .letter = 't',
         .kind = NF_OPT_TEXT,
         .dst = &type,
         .value = "TYPE",
         .help = "storage of the experts: c4, z4, a4 (4 bits; c4 is the default), s5,\ns6, i8, f8, bf16, f16 "
                 "or f32; dense matrices get i8 when TYPE is\nsmaller, else TYPE"},
        {.name = "codebook",
         .kind = NF_OPT_TEXT,
         .dst = &codebook,
         .value = "NAME",
         .given = &codebook_given,
         .help = "values of c4: linear (default), nl (non-linear: a little more exact, a\nlittle slower on "
                 "CPUs without VNNI) or e2m1 (as MXFP4 and NVFP4)"},
        {.name = "scale",
         .kind = NF_OPT_TEXT,
         .dst = &scale,
         .value = "KIND",
         .given = &scale_given,
         .help = "scales of c4: f16 (default), e8m0 (powers of two, as MXFP4) or e4m3\n(one for 16 "
                 "weights, as NVFP4)"},
        {.name = "imatrix",
         .kind = NF_OPT_TEXT,
         .dst = &importance,
         .value = "FILE",
         .help = "importance statistics of ninfer-perplexity --record-imatrix: errors in\ncolumns with large "
                 "inputs weigh more"},
        {.name = "max-file-gb",
         .kind = NF_OPT_REAL,
         .dst = &max_gb,
         .value = "X",
         .min = 0.0001,
         .max = 1e6,
         .help = "largest part in GB of 10^9 bytes (default 32)"},
        {.name = "threads",
         .kind = NF_OPT_INT,
         .dst = &threads,
         .value = "N",
         .min = 1,
         .max = 1024,
         .help = "threads (default: all)"},
        {0}};
    const nf_args_spec spec = {
        .program = "ninfer-convert",
        .usage = "SRC_DIR OUT.ninfer [options]",
        .about = "Converts a checkpoint folder (config.json, *.safetensors, tokenizer.json) to a\n.ninfer "
                 "container. Nothing exists under the output's name until it is whole.\n\n"
                 "other uses:\n  ninfer-convert inspect FILE.ninfer [--json]    what a container holds\n"
                 "  ninfer-convert verify FILE.ninfer              check every byte of it",
        .options = options,
        .footer = "example:\n  ninfer-convert models/tiny-moe tiny-moe.ninfer --type c4",
        .min_positional = 2,
        .max_positional = 2};
    size_t n;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, positional, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_progress bar = {.out = stderr, .cancel = &interrupted};
    nf_convert_options o = {.max_part_bytes = (uint64_t)(max_gb * 1e9),
                            .n_threads = (int)threads,
                            .importance = importance,
                            .progress = nf_progress_bar,
                            .progress_user = &bar,
                            .note = print_note};
    if (!nf_type_by_name(type, &o.type.type) || o.type.type == NF_TYPE_U8)
        return nf_usage_error(&spec, "--type must be c4, z4, a4, s5, s6, i8, f8, bf16, f16 or f32, not '%s'",
                              type);
    nf_codebook values;
    nf_scale kind;
    if (!nf_codebook_by_name(codebook, &values))
        return nf_usage_error(&spec, "--codebook must be linear, nl or e2m1, not '%s'", codebook);
    if (!nf_scale_by_name(scale, &kind))
        return nf_usage_error(&spec, "--scale must be f16, e8m0 or e4m3, not '%s'", scale);
    if ((codebook_given || scale_given) && o.type.type != NF_TYPE_C4)
        return nf_usage_error(&spec, "--%s goes with --type c4", codebook_given ? "codebook" : "scale");
    if (o.type.type == NF_TYPE_C4) {
        o.type.codebook = values;
        o.type.scale = kind;
    }
    catch_interrupts();
    nf_error err = {0};
    if (nf_convert(positional[0], positional[1], &o, &err)) {
        if (bar.active && bar.is_terminal) fputc('\n', stderr);
        return fail("ninfer-convert", &err);
    }
    fprintf(stderr, "wrote %s\n", positional[1]);
    return 0;
}

static int inspect_main(int argc, char **argv) {
    bool json = false;
    const char *path;
    size_t n;
    const nf_opt options[] = {
        {.name = "json", .kind = NF_OPT_FLAG, .dst = &json, .help = "everything, as one JSON object"}, {0}};
    const nf_args_spec spec = {.program = "ninfer-convert inspect",
                               .usage = "FILE.ninfer [--json]",
                               .about =
                                   "Prints what a container holds. Heads, directory and blobs are checked.",
                               .options = options,
                               .min_positional = 1,
                               .max_positional = 1};
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &path, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_buf out = {0};
    nf_error err = {0};
    if (nf_inspect(path, json, &out, &err)) {
        nf_buf_free(&out);
        return fail(spec.program, &err);
    }
    fwrite(out.data, 1, out.len, stdout);
    nf_buf_free(&out);
    return fflush(stdout) ? 1 : 0;
}

static void print_finding(void *user, nf_finding_level level, const char *message) {
    static const char *const names[] = {"note", "warning", "error"};
    (void)user;
    printf("%s: %s\n", names[level], message);
}

static int verify_main(int argc, char **argv) {
    int64_t threads = 0;
    const char *path;
    size_t n;
    const nf_opt options[] = {{.name = "threads",
                               .kind = NF_OPT_INT,
                               .dst = &threads,
                               .value = "N",
                               .min = 1,
                               .max = 1024,
                               .help = "threads (default: all)"},
                              {0}};
    const nf_args_spec spec = {.program = "ninfer-convert verify",
                               .usage = "FILE.ninfer [--threads N]",
                               .about = "Checks every byte of a container and its parts: heads, directory, "
                                        "every checksum,\nall padding. Exit status 1 when anything is wrong.",
                               .options = options,
                               .min_positional = 1,
                               .max_positional = 1};
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &path, &n);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    catch_interrupts();
    nf_progress bar = {.out = stderr, .cancel = &interrupted};
    nf_error err = {0};
    nf_status status =
        nf_container_verify(path, (int)threads, print_finding, NULL, nf_progress_bar, &bar, &err);
    if (status == NF_ERR_CANCELLED) return fail(spec.program, &err);
    printf("%s: %s\n", path, status ? "DAMAGED" : "ok");
    return status ? 1 : 0;
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is then an error of write, with a message */
    if (argc > 1 && !strcmp(argv[1], "inspect")) return inspect_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "verify")) return verify_main(argc - 1, argv + 1);
    return convert_main(argc, argv);
}
