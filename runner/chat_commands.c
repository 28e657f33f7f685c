/* The commands of a conversation; see chat.h. */
#include "runner/chat.h"

#include <stdio.h>
#include <string.h>

static const char help_text[] =
    "/think on|off|auto  let the model think before it answers; auto: as its template does\n"
    "/reset              forget the conversation\n"
    "/stats              tokens, speed and settings so far\n"
    "/help               this list\n"
    "/exit               leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A message that begins with '/' is written with a space in front.\n";

static const char *think_name(nf_think_mode mode) {
    return mode == NF_THINK_ON ? "on" : mode == NF_THINK_OFF ? "off" : "auto";
}

static nf_command_result set_think(nf_chat *chat, const char *value) {
    if (!strcmp(value, "on"))
        chat->think = NF_THINK_ON;
    else if (!strcmp(value, "off"))
        chat->think = NF_THINK_OFF;
    else if (!strcmp(value, "auto"))
        chat->think = NF_THINK_AUTO;
    else if (*value) {
        fprintf(stderr, "/think wants on, off or auto, not '%s'\n", value);
        return NF_COMMAND_BAD;
    }
    fprintf(stderr, "thinking: %s\n", think_name(chat->think));
    return NF_COMMAND_DONE;
}

static void print_stats(const nf_chat *chat) {
    nf_model_info info;
    nf_model_get_info(chat->model, &info);
    nf_session_info session;
    nf_session_get_info(chat->session, &session);
    uint32_t position = nf_session_position(chat->session);
    fprintf(stderr, "model    %s (%s, %s), %s kernels\n", info.name, info.architecture, info.type, info.isa);
    fprintf(stderr, "weights  %s\n", info.weights);
    fprintf(stderr, "threads  %d, %spinned: %s\n", info.n_threads, info.pinned ? "" : "not ", info.pinning);
    fprintf(stderr, "context  %u of %u tokens, %llu bytes of KV (%s, %llu a token), %llu of state\n",
            position, chat->max_context, (unsigned long long)session.kv_bytes, session.kv_dtype,
            (unsigned long long)session.kv_bytes_per_token, (unsigned long long)session.state_bytes);
    fprintf(stderr, "answers  %llu, %llu tokens, decode %.0f tok/s\n", (unsigned long long)chat->answers,
            (unsigned long long)chat->answer_tokens,
            chat->decode_s > 0 ? (double)chat->decode_steps / chat->decode_s : 0);
    fprintf(stderr, "prompts  %llu tokens, %llu of them computed, prefill %.0f tok/s\n",
            (unsigned long long)chat->prompt_tokens, (unsigned long long)chat->computed_tokens,
            chat->prefill_s > 0 ? (double)chat->computed_tokens / chat->prefill_s : 0);
    const nf_sampling *s = &chat->sampling;
    fprintf(stderr, "sampling temperature %g, top-k %d, top-p %g, min-p %g, seed %llu; thinking %s\n",
            s->temperature, s->top_k, s->top_p, s->min_p, (unsigned long long)s->seed,
            think_name(chat->think));
}

static nf_command_result reset(nf_chat *chat) {
    nf_error err = {0};
    if (nf_chat_start(chat, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return NF_COMMAND_BAD;
    }
    fprintf(stderr, "the conversation is forgotten\n");
    return NF_COMMAND_DONE;
}

nf_command_result nf_chat_command(nf_chat *chat, const char *line) {
    static const char *const names[] = {"/think", "/reset", "/stats", "/help", "/exit"};
    enum { THINK, RESET, STATS, HELP, EXIT, UNKNOWN } command = THINK;
    char value[32];
    if (line[0] != '/') return NF_COMMAND_NONE;
    size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    size_t n_value = strcspn(rest, " \t");
    snprintf(value, sizeof value, "%.*s", (int)(n_value < sizeof value ? n_value : sizeof value - 1), rest);
    while (command < UNKNOWN && (strlen(names[command]) != n || memcmp(names[command], line, n) != 0))
        command++;
    if (command == UNKNOWN) {
        fprintf(stderr, "unknown command '%.*s'; /help lists the commands\n", (int)n, line);
        return NF_COMMAND_BAD;
    }
    if (command != THINK && *value) {
        fprintf(stderr, "%s takes no argument\n", names[command]);
        return NF_COMMAND_BAD;
    }
    switch (command) {
    case THINK:
        return set_think(chat, value);
    case RESET:
        return reset(chat);
    case STATS:
        print_stats(chat);
        break;
    case HELP:
        fputs(help_text, stderr);
        break;
    default:
        return NF_COMMAND_EXIT;
    }
    return NF_COMMAND_DONE;
}
