/*
 * ninfer-run: from a model (a container, a checkpoint folder, or the embedded one) to a chat in one command.
 * Answers go to standard output, everything else to standard error.
 */
#include "base/args.h"
#include "base/buf.h"
#include "base/progress.h"
#include "converter/convert.h"
#include "runner/cache_dir.h"
#include "runner/chat.h"
#include "runner/embedded.h"
#include "runner/lines.h"
#include "runner/load.h"
#include "runner/plan.h"
#include "runner/sampling_args.h"
#include "runner/session_args.h"
#include "runner/terminal.h"
#include "runtime/ninfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "ninfer-run"

static struct {
    const char *prompt, *system, *type, *think, *kv_dtype;
    bool has_prompt, dry_run;
    int64_t max_tokens, max_context;
    nf_load_args load;
    nf_sampling_args sampling;
} args = {.type = "c4", .think = "auto"};

static const nf_opt options[] = {
    {"prompt", 0, NF_OPT_TEXT, &args.prompt, "TEXT", "answer once and exit", 0, 0, &args.has_prompt},
    {"dry-run", 0, NF_OPT_FLAG, &args.dry_run, NULL,
     "print what would be loaded and converted, in bytes, and exit", 0, 0, NULL},
    {"system", 0, NF_OPT_TEXT, &args.system, "TEXT", "system message", 0, 0, NULL},
    {"think", 0, NF_OPT_TEXT, &args.think, "MODE", "on, off or auto, as /think in the chat (default auto)", 0,
     0, NULL},
    {"type", 0, NF_OPT_TEXT, &args.type, "TYPE",
     "storage type of a conversion: c4, i8, bf16, f16, f32 (default c4)", 0, 0, NULL},
    {"max-tokens", 'n', NF_OPT_INT, &args.max_tokens, "N",
     "longest answer in tokens (default: what the context holds)", 1, INT32_MAX, NULL},
    {"max-context", 0, NF_OPT_INT, &args.max_context, "N",
     "tokens of the conversation (default: the model's limit)", 1, INT32_MAX, NULL},
    NF_SAMPLING_OPTIONS(args.sampling, "the model's"),
    {"seed", 0, NF_OPT_INT, &args.sampling.seed, "N",
     "of sampling (default 0; random in a chat on a terminal)", 0, 9e18, &args.sampling.has_seed},
    NF_KV_DTYPE_OPTION(args.kv_dtype),
    NF_LOAD_OPTIONS(args.load),
    {0}};

static const nf_args_spec spec = {
    .program = PROGRAM,
    .usage = "[MODEL] [options]",
    .about =
        "Chats with a model. MODEL is a .ninfer container or a checkpoint folder (config.json,\n"
        "*.safetensors), which is converted once into $XDG_CACHE_HOME/ninfer (default ~/.cache/ninfer).\n"
        "Without MODEL it is the embedded one. Lines from a pipe are messages, one each.",
    .options = options,
    .footer = "examples:\n"
              "  ninfer-run\n"
              "  ninfer-run ~/models/Qwen3.6-35B-A3B --dry-run\n"
              "  ninfer-run tiny-moe.ninfer --prompt 'What is 23 + 19?'\n\n"
              "exit status: 0, 1 after an error, 2 after a usage error",
    .min_positional = 0,
    .max_positional = 1,
};

/* ---- the model ---- */

static void print_note(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
}

/* The container to open, in `path`: the one that was named, or the conversion of a folder. */
static nf_status find_container(const char *model, nf_format type, nf_buf *path, nf_error *err) {
    struct stat info;
    if (stat(model, &info)) {
        int why = errno;
        if (why == ENOENT)
            return nf_fail(err, NF_ERR_NOT_FOUND,
                           "%s: no such file or folder; MODEL is a .ninfer file or a checkpoint folder",
                           model);
        return nf_fail_errno(err, why, "%s: cannot open the model", model);
    }
    if (!S_ISDIR(info.st_mode)) return nf_buf_text(path, model, err);
    nf_progress bar = {.out = stderr, .cancel = nf_interrupt_flag()};
    nf_convert_options convert = {.type = type,
                                  .n_threads = (int)args.load.threads,
                                  .progress = nf_progress_bar,
                                  .progress_user = &bar,
                                  .note = print_note};
    return nf_cache_convert(model, &convert, nf_interrupt_flag(), path, err);
}

/* ---- the chat ---- */

static void report_turn(const nf_error *err) {
    nf_report(PROGRAM, err);
    if (err->status == NF_ERR_LIMIT)
        fprintf(stderr, "the conversation does not fit; nothing was forgotten: /reset starts a new one\n");
}

static void say_hello(const nf_chat *chat) {
    nf_model_info info;
    nf_model_get_info(chat->model, &info);
    nf_dim_line(
        stderr,
        "%s (%s, %s, %.1f MB), context %u tokens, %d threads. /help lists the commands, Ctrl-D leaves.",
        info.name, info.architecture, info.type, (double)info.file_bytes / 1e6, chat->max_context,
        info.n_threads);
}

/* Reads messages until the end. Returns the exit status: on a terminal errors were seen and do not count. */
static int chat_loop(nf_chat *chat, nf_lines *lines) {
    const bool terminal = nf_lines_is_terminal(lines);
    int exit_status = 0;
    if (terminal) say_hello(chat);
    for (;;) {
        const char *line = NULL;
        size_t n = 0;
        nf_error err = {0};
        nf_interrupt_clear();
        nf_line_result got = nf_lines_next(lines, "> ", &line, &n, &err);
        if (got == NF_LINE_END) return exit_status;
        if (got == NF_LINE_ERROR) return nf_report(PROGRAM, &err);
        if (got == NF_LINE_INTERRUPT && !terminal) nf_interrupt_exit();
        if (got == NF_LINE_INTERRUPT) {
            nf_dim_line(stderr, "(Ctrl-D or /exit leaves)");
            continue;
        }
        char *text =
            nf_strndup(line, n, &err); /* the editor's line is not NUL-terminated where the message ends */
        nf_command_result command = text ? nf_chat_command(chat, text) : NF_COMMAND_BAD;
        free(text);
        if (command == NF_COMMAND_EXIT) return exit_status;
        if (command == NF_COMMAND_BAD && !terminal) exit_status = 1;
        if (command != NF_COMMAND_NONE || !n || strspn(line, " \t") >= n) continue;
        size_t skip = line[0] == ' ' && n > 1 && line[1] == '/'; /* the space that makes "/word" a message */
        if (nf_chat_turn(chat, line + skip, n - skip, &err)) {
            report_turn(&err);
            if (!terminal) exit_status = 1;
        }
    }
}

static uint64_t random_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) % 1000000000u;
}

static int converse(nf_chat *chat) {
    nf_error err = {0};
    nf_lines *lines = NULL;
    int exit_status = 0;
    if (args.has_prompt) {
        if (!nf_chat_turn(chat, args.prompt, strlen(args.prompt), &err)) return 0;
        return nf_report(PROGRAM, &err);
    }
    if (nf_lines_open(&lines, &err)) return nf_report(PROGRAM, &err);
    if (nf_lines_is_terminal(lines) && !args.sampling.has_seed) chat->sampling.seed = random_seed();
    exit_status = chat_loop(chat, lines);
    nf_lines_close(lines);
    return exit_status;
}

static int run(const char *path, nf_think_mode think) {
    nf_error err = {0};
    nf_model *model = NULL;
    nf_session *session = NULL;
    nf_model_info info = {0};
    nf_session_options session_options = {.max_context = (uint32_t)args.max_context,
                                          .kv_dtype = args.kv_dtype};
    nf_status status = nf_load_model(path, &args.load, &model, &err);
    if (!status) nf_model_get_info(model, &info);
    if (!status && !info.has_chat_template)
        status =
            nf_fail(&err, NF_ERR_UNSUPPORTED,
                    "%s: the model has no chat template; 'ninfer %s -p TEXT' continues a text", path, path);
    if (!status && (status = nf_session_new(model, &session_options, &session, &err)) == NF_ERR_ARGUMENT)
        nf_context(&err, "--max-context");
    nf_chat chat = {.model = model,
                    .session = session,
                    .system = args.system,
                    .max_tokens = (uint32_t)args.max_tokens,
                    .max_context = args.max_context ? (uint32_t)args.max_context : info.max_context,
                    .think = think};
    if (!status) {
        chat.sampling = nf_model_sampling(model);
        nf_sampling_args_apply(&args.sampling, &chat.sampling);
        status = nf_chat_start(&chat, &err);
    }
    int exit_status = status ? nf_report(PROGRAM, &err) : converse(&chat);
    nf_chat_free(&chat);
    nf_session_free(session);
    nf_model_free(model);
    return exit_status;
}

/* ---- the whole ---- */

static int check_usage(nf_format *type, nf_think_mode *think, nf_kv_type *kv_type) {
    *type = (nf_format){0};
    if (!nf_type_by_name(args.type, &type->type) || type->type == NF_TYPE_U8)
        return nf_usage_error(&spec, "--type must be c4, z4, a4, s5, s6, i8, f8, bf16, f16 or f32, not '%s'",
                              args.type);
    type->codebook = type->type == NF_TYPE_C4 ? NF_CODEBOOK_LINEAR : NF_CODEBOOK_NONE;
    if (!strcmp(args.think, "on"))
        *think = NF_THINK_ON;
    else if (!strcmp(args.think, "off"))
        *think = NF_THINK_OFF;
    else if (!strcmp(args.think, "auto"))
        *think = NF_THINK_AUTO;
    else
        return nf_usage_error(&spec, "--think must be on, off or auto, not '%s'", args.think);
    return nf_kv_dtype_check(&spec, args.kv_dtype, kv_type);
}

int main(int argc, char **argv) {
    const char *model = NULL;
    size_t n_positional;
    nf_args_result parsed = nf_args_parse(&spec, argc, argv, &model, &n_positional);
    if (parsed != NF_ARGS_RUN) return parsed == NF_ARGS_DONE ? 0 : 2;
    nf_format type;
    nf_think_mode think = NF_THINK_AUTO;
    nf_kv_type kv_type = NF_KV_F32;
    int exit_status = check_usage(&type, &think, &kv_type);
    if (exit_status) return exit_status;
    nf_interrupt_setup();
    nf_error err = {0};
    nf_buf embedded = {0}, container = {0};
    nf_status status = NF_OK;
    if (args.has_prompt && !args.prompt[0])
        status = nf_fail(&err, NF_ERR_ARGUMENT, "--prompt: the prompt is empty");
    if (!status && !model && !(status = nf_embedded_model(&embedded, &err))) model = embedded.data;
    nf_plan_options plan = {
        .type = type, .kv_type = kv_type, .max_context = (uint32_t)args.max_context, .load = args.load};
    if (!status && args.dry_run)
        status = nf_plan_print(model, &plan, stdout, &err);
    else if (!status)
        status = find_container(model, type, &container, &err);
    if (status)
        exit_status = nf_report(PROGRAM, &err);
    else if (!args.dry_run)
        exit_status = run(container.data, think);
    nf_buf_free(&embedded);
    nf_buf_free(&container);
    if (nf_interrupted() && (status == NF_ERR_CANCELLED || args.has_prompt)) nf_interrupt_exit();
    return exit_status;
}
