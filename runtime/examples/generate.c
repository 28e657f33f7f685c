/*
 * A complete program that embeds NInfer: opens a model, turns a prompt into tokens, generates, prints the
 * text as it comes.
 *
 * In the source tree:    make && build/example-generate build/tiny-moe.ninfer "Debian is"
 * With an installation:  cc generate.c $(pkg-config --cflags --libs ninfer)   (and #include <ninfer.h> below)
 */
#include "runtime/ninfer.h"

#include <stdio.h>
#include <string.h>

/* Called with each piece of the answer as soon as it is certain: always whole UTF-8 characters. */
static bool print_piece(void *user, const char *text, size_t n_bytes) {
    FILE *out = user;
    /* Returning false ends the answer: here when the reader of our output is gone. */
    return fwrite(text, 1, n_bytes, out) == n_bytes && fflush(out) == 0;
}

static const char *finish_text(nf_finish finish) {
    switch (finish) {
    case NF_FINISH_STOP_TOKEN:
        return "the model ended its answer";
    case NF_FINISH_STOP_STRING:
        return "a stop string appeared";
    case NF_FINISH_LENGTH:
        return "the answer reached max_tokens";
    case NF_FINISH_CONTEXT:
        return "the context is full";
    case NF_FINISH_CANCELLED:
        return "the program stopped it";
    }
    return "unknown";
}

/* Answers `prompt`, a text to continue. Every call returns a status and, when it fails, says why in *err. */
static nf_status generate(nf_model *model, const char *prompt, nf_error *err) {
    /* A session holds the state of one sequence. Default options: the model's whole context. */
    nf_session *session = NULL;
    nf_status status = nf_session_new(model, NULL, &session, err);
    if (status) return status;

    /* For a chat, build the text with nf_chat_prompt first. The ids belong to us: nf_free releases them. */
    int32_t *ids = NULL;
    size_t n_ids = 0;
    status = nf_tokenize(model, prompt, strlen(prompt), true, &ids, &n_ids, err);

    if (!status) {
        nf_generate_options options = nf_generate_defaults(); /* greedy, 256 tokens */
        options.max_tokens = 64;
        options.on_text = print_piece;
        options.user = stdout;
        /* To sample instead: options.sampling = nf_model_sampling(model); options.sampling.seed = 1; */

        nf_generation answer;
        status = nf_session_generate(session, ids, n_ids, &options, &answer, err);
        if (!status) {
            /* The whole answer is in answer.text and answer.ids too, until nf_generation_free. */
            printf("\n[%zu tokens after a prompt of %u: %s]\n", answer.n_ids, answer.prompt_tokens,
                   finish_text(answer.finish));
            nf_generation_free(&answer);
        }
    }
    nf_free(ids);
    nf_session_free(session);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.ninfer PROMPT\n", argv[0]);
        return 2;
    }
    nf_error err = {0};
    nf_model *model = NULL;
    nf_status status = nf_model_open(argv[1], NULL, &model, &err);
    if (!status) status = generate(model, argv[2], &err);
    nf_model_free(model); /* after its sessions; accepts NULL */
    if (status) {
        fprintf(stderr, "%s: %s\n", argv[0], err.message);
        return 1;
    }
    return 0;
}
