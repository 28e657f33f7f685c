/* One turn of a conversation; see chat.h. */
#include "runner/chat.h"

#include "base/buf.h"
#include "runner/load.h"
#include "runner/terminal.h"
#include "runner/think.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static nf_status no_memory(nf_error *err) {
    return nf_fail(err, NF_ERR_MEMORY, "out of memory for the conversation");
}

nf_status nf_chat_start(nf_chat *chat, nf_error *err) {
    nf_session_reset(chat->session);
    json_decref(chat->messages);
    chat->messages = json_array();
    if (!chat->messages) return no_memory(err);
    if (!chat->system) return NF_OK;
    nf_status status = nf_check_utf8(chat->system, strlen(chat->system), "--system", err);
    if (status) return status;
    json_t *message = json_pack("{s:s,s:s}", "role", "system", "content", chat->system);
    return json_array_append_new(chat->messages, message) ? no_memory(err) : NF_OK;
}

void nf_chat_free(nf_chat *chat) {
    json_decref(chat->messages);
}

/* ---- the prompt ---- */

static nf_status append_message(nf_chat *chat, const char *role, const nf_buf *content, const nf_buf *thought,
                                nf_error *err) {
    json_t *message =
        json_pack("{s:s,s:s%}", "role", role, "content", content->len ? content->data : "", content->len);
    if (message && thought && thought->len &&
        json_object_set_new(message, "reasoning_content", json_stringn(thought->data, thought->len))) {
        json_decref(message);
        message = NULL;
    }
    return json_array_append_new(chat->messages, message) ? no_memory(err) : NF_OK;
}

static nf_status append_user(nf_chat *chat, const char *text, size_t n, nf_error *err) {
    nf_status status = nf_check_utf8(text, n, "the message", err);
    if (!status && memchr(text, 0, n))
        status = nf_fail(err, NF_ERR_ARGUMENT, "the message contains a NUL byte");
    nf_buf content = {0};
    if (!status) status = nf_buf_append(&content, text, n, err);
    if (!status) status = append_message(chat, "user", &content, NULL, err);
    nf_buf_free(&content);
    return status;
}

static nf_status render(const nf_chat *chat, char **prompt, size_t *n, nf_error *err) {
    json_t *root = json_pack("{s:O,s:b}", "messages", chat->messages, "add_generation_prompt", 1);
    if (root && chat->think != NF_THINK_AUTO &&
        json_object_set_new(root, "enable_thinking", json_boolean(chat->think == NF_THINK_ON))) {
        json_decref(root);
        root = NULL;
    }
    char *request = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!request) return no_memory(err);
    nf_status status = nf_chat_prompt(chat->model, request, prompt, n, err);
    free(request);
    return status;
}

/* ---- the answer on the screen ---- */

typedef struct screen {
    nf_think_split split;
    FILE *thought_to; /* thinking */
    bool dim, thought_open, failed;
    char last; /* last byte written to thought_to */
    nf_error err;
} screen;

static void close_thought(screen *s) {
    if (!s->thought_open) return;
    s->thought_open = false;
    fputs(s->dim ? "\033[0m" : "", s->thought_to);
    fputs(s->last == '\n' ? "\n" : "\n\n", s->thought_to);
    fflush(s->thought_to);
}

static bool show(void *user, bool thinking, const char *text, size_t n) {
    screen *s = user;
    if (!thinking) close_thought(s);
    FILE *to = thinking ? s->thought_to : stdout;
    if (thinking && !s->thought_open) {
        s->thought_open = true;
        if (s->dim) fputs("\033[2m", to);
    }
    if (thinking) s->last = text[n - 1];
    s->failed = fwrite(text, 1, n, to) != n || fflush(to) != 0;
    if (s->failed)
        nf_fail_errno(&s->err, errno, "%s: cannot write",
                      to == stdout ? "standard output" : "standard error");
    return !s->failed;
}

static bool on_text(void *user, const char *text, size_t n) {
    screen *s = user;
    bool go_on = true;
    s->failed = nf_think_push(&s->split, text, n, &go_on, &s->err) != NF_OK || s->failed;
    return go_on && !s->failed && !nf_interrupted();
}

static const char *ending(const nf_chat *chat, nf_finish finish) {
    if (finish == NF_FINISH_CANCELLED) return "; stopped";
    if (finish == NF_FINISH_CONTEXT) return "; cut, the context is full: /reset starts a new conversation";
    return finish == NF_FINISH_LENGTH && chat->max_tokens ? "; cut at --max-tokens" : "";
}

static void print_numbers(nf_chat *chat, const nf_generation *g) {
    uint64_t computed = g->prompt_tokens - g->reused_tokens, steps = g->n_ids > 1 ? g->n_ids - 1 : 0;
    chat->answers++;
    chat->prompt_tokens += g->prompt_tokens;
    chat->computed_tokens += computed;
    chat->answer_tokens += g->n_ids;
    chat->decode_steps += steps;
    chat->prefill_s += g->prefill_s;
    chat->decode_s += g->decode_s;
    nf_dim_line(stderr, "[%zu tokens; prefill %.0f tok/s (%llu new of %u); decode %.0f tok/s%s]", g->n_ids,
                g->prefill_s > 0 ? (double)computed / g->prefill_s : 0, (unsigned long long)computed,
                g->prompt_tokens, g->decode_s > 0 ? (double)steps / g->decode_s : 0, ending(chat, g->finish));
}

/* ---- a turn ---- */

static nf_status generate(nf_chat *chat, const int32_t *ids, size_t n_ids, screen *s, nf_generation *g,
                          nf_error *err) {
    nf_generate_options o = nf_generate_defaults();
    o.sampling = chat->sampling;
    o.sampling.seed += chat->answers; /* the same question twice may get another answer */
    o.max_tokens = chat->max_tokens ? chat->max_tokens : UINT32_MAX;
    o.on_text = on_text;
    o.user = s;
    nf_interrupt_target(chat->session);
    nf_status status = nf_session_generate(chat->session, ids, n_ids, &o, g, err);
    nf_interrupt_target(NULL);
    bool go_on = true;
    if (!status && !s->failed) status = nf_think_end(&s->split, &go_on, err);
    close_thought(s);
    if (!status && s->split.said.len) putchar('\n');
    if (!status && fflush(stdout) && !s->failed)
        status = nf_fail_errno(err, errno, "standard output: cannot write");
    if (!status && s->failed) {
        if (err) *err = s->err;
        status = s->err.status;
    }
    return status;
}

static nf_status answer(nf_chat *chat, nf_error *err) {
    char *prompt = NULL;
    size_t n = 0, n_ids = 0;
    int32_t *ids = NULL;
    nf_generation g = {0};
    screen s = {.thought_to = nf_terminal_styled(stdout) ? stdout : stderr};
    s.dim = nf_terminal_styled(s.thought_to);
    s.split.emit = show;
    s.split.user = &s;
    nf_status status = render(chat, &prompt, &n, err);
    if (!status) status = nf_tokenize(chat->model, prompt, n, true, &ids, &n_ids, err);
    if (!status) {
        s.split.thinking = nf_think_is_open(prompt, n);
        status = generate(chat, ids, n_ids, &s, &g, err);
    }
    if (!status) {
        print_numbers(chat, &g);
        bool nothing = g.finish == NF_FINISH_CANCELLED && !g.n_ids;
        status = nothing ? NF_ERR_CANCELLED
                         : append_message(chat, "assistant", &s.split.said, &s.split.thought, err);
    }
    nf_think_split_free(&s.split);
    nf_generation_free(&g);
    nf_free(ids);
    nf_free(prompt);
    return status;
}

nf_status nf_chat_turn(nf_chat *chat, const char *text, size_t n, nf_error *err) {
    size_t before = json_array_size(chat->messages);
    nf_status status = append_user(chat, text, n, err);
    if (!status) status = answer(chat, err);
    if (status)
        while (json_array_size(chat->messages) > before) json_array_remove(chat->messages, before);
    /* Stopped before the first token: nothing was said, nothing is remembered. That is no error. */
    return status == NF_ERR_CANCELLED ? NF_OK : status;
}
