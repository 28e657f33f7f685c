/* A conversation with a model: its history, one turn after the other, and the commands that begin with '/'.
 */
#ifndef NF_RUNNER_CHAT_H
#define NF_RUNNER_CHAT_H

#include "runtime/ninfer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum nf_think_mode {
    NF_THINK_AUTO, /* what the template does when enable_thinking is not defined */
    NF_THINK_ON,
    NF_THINK_OFF
} nf_think_mode;

/* Zero-initialise, set the fields of the first group, then nf_chat_start. Free with nf_chat_free. */
typedef struct nf_chat {
    nf_model *model;     /* borrowed */
    nf_session *session; /* borrowed */
    const char *system;  /* system message or NULL */
    nf_sampling sampling;
    uint32_t max_tokens, max_context;
    nf_think_mode think;

    json_t *messages; /* as the template sees them */
    uint64_t answers, prompt_tokens, computed_tokens, answer_tokens, decode_steps;
    double prefill_s, decode_s;
} nf_chat;

nf_status nf_chat_start(nf_chat *chat, nf_error *err);
void nf_chat_free(nf_chat *chat);
/* Answers one message: the text to standard output as it comes, thinking dim on a terminal (to standard error
 * when standard output is none), one line of numbers to standard error. Ctrl-C ends the answer; what was said
 * stays in the history. When an error is returned, the history is as it was before. NF_ERR_LIMIT: the context
 * does not hold the conversation. */
nf_status nf_chat_turn(nf_chat *chat, const char *text, size_t n, nf_error *err);

typedef enum nf_command_result {
    NF_COMMAND_NONE, /* not a command: a message */
    NF_COMMAND_DONE,
    NF_COMMAND_BAD, /* unknown or misused; a line on standard error said so */
    NF_COMMAND_EXIT
} nf_command_result;

/* Carries out a line that begins with '/'. */
nf_command_result nf_chat_command(nf_chat *chat, const char *line);

#endif
