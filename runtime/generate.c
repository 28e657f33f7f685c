/*
 * Generation: reuse what the session has of the prompt, evaluate the rest, then sample, detokenise, look for
 * stop strings and evaluate again, one token at a time.
 */
#include "runtime/session_internal.h"

#include "base/progress.h"
#include "runtime/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

nf_sampling nf_sampling_greedy(void) {
    return (nf_sampling){.top_p = 1.0, .repetition_penalty = 1.0};
}

nf_sampling nf_model_sampling(const nf_model *model) {
    return model->sampling;
}

nf_generate_options nf_generate_defaults(void) {
    return (nf_generate_options){.sampling = nf_sampling_greedy(), .max_tokens = 256};
}

void nf_generation_free(nf_generation *g) {
    free(g->ids);
    free(g->text);
    *g = (nf_generation){0};
}

/* ---- text of the answer ---- */

/* What has been said so far and how much of it the caller has seen. */
typedef struct answer_text {
    const nf_generate_options *options;
    nf_utf8_stream stream;
    nf_buf text;
    size_t emitted;  /* bytes passed to on_text */
    size_t searched; /* no stop string begins before this offset */
    bool refused;    /* on_text returned false */
} answer_text;

static void emit(answer_text *a, size_t end) {
    if (end <= a->emitted) return;
    size_t from = a->emitted;
    a->emitted = end;
    if (a->options->on_text && !a->options->on_text(a->options->user, a->text.data + from, end - from))
        a->refused = true;
}

/* Finds the first stop string at or after a->searched; SIZE_MAX when there is none. */
static size_t find_stop(const answer_text *a) {
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < a->options->n_stop; i++) {
        const char *stop = a->options->stop[i];
        const char *at = a->text.len > a->searched ? memmem(a->text.data + a->searched,
                                                            a->text.len - a->searched, stop, strlen(stop))
                                                   : NULL;
        if (at && (size_t)(at - a->text.data) < best) best = (size_t)(at - a->text.data);
    }
    return best;
}

/* Offset from which the text could still be the beginning of a stop string. */
static size_t possible_stop(const answer_text *a) {
    for (size_t from = a->searched; from < a->text.len; from++)
        for (size_t i = 0; i < a->options->n_stop; i++) {
            size_t left = a->text.len - from;
            if (left < strlen(a->options->stop[i]) && !memcmp(a->text.data + from, a->options->stop[i], left))
                return from;
        }
    return a->text.len;
}

/* Adds bytes of a token (or, with end, finishes the text). Sets *stopped when a stop string appeared; the
 * text is then cut before it. */
static nf_status add_text(answer_text *a, const char *bytes, size_t n, bool end, bool *stopped,
                          nf_error *err) {
    nf_status status = end ? nf_utf8_stream_end(&a->stream, &a->text, err)
                           : nf_utf8_stream_push(&a->stream, bytes, n, &a->text, err);
    if (status) return status;
    size_t stop = find_stop(a);
    if (stop != SIZE_MAX) {
        a->text.len = stop;
        a->text.data[stop] = '\0';
        *stopped = true;
    }
    size_t safe = *stopped || end ? a->text.len : possible_stop(a);
    a->searched = safe;
    emit(a, safe);
    return NF_OK;
}

/* ---- steps ---- */

static nf_status check_request(const nf_session *s, const int32_t *prompt, size_t n_prompt,
                               const nf_generate_options *o, nf_error *err) {
    if (!n_prompt) return nf_fail(err, NF_ERR_ARGUMENT, "the prompt is empty");
    if (n_prompt > s->max_context || (n_prompt == s->max_context && o->max_tokens > 0))
        return nf_fail(err, NF_ERR_LIMIT, "the prompt has %zu tokens, the context holds %u%s", n_prompt,
                       s->max_context, n_prompt == s->max_context ? ": no room for an answer" : "");
    for (size_t i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= s->model->desc.vocab_size)
            return nf_fail(err, NF_ERR_ARGUMENT, "token id %d is outside the vocabulary (0..%u)", prompt[i],
                           s->model->desc.vocab_size - 1);
    for (size_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i]) return nf_fail(err, NF_ERR_ARGUMENT, "a stop string is empty");
    return NF_OK;
}

/* Evaluates what the session lacks of the prompt; its logits are current afterwards. */
static nf_status eval_prompt(nf_session *s, const int32_t *prompt, size_t n_prompt, nf_generation *out,
                             nf_error *err) {
    uint32_t common = 0;
    while (common < s->position && common < n_prompt && s->ids[common] == prompt[common]) common++;
    out->prompt_tokens = (uint32_t)n_prompt;
    out->reused_tokens = nf_checkpoint_resume(s, common, common == n_prompt);
    double start = nf_now();
    nf_status status = NF_OK;
    if (out->reused_tokens < n_prompt)
        status = nf_session_eval_step(s, prompt + out->reused_tokens, n_prompt - out->reused_tokens, NULL,
                                      NULL, err);
    out->prefill_s = nf_now() - start;
    /* So that another answer to the same prompt, or a prompt that differs only behind it, starts here. */
    return status ? status : nf_checkpoint_take(s, true, err);
}

static bool is_stop_id(const nf_model *model, int32_t id) {
    for (size_t i = 0; i < model->n_stop_ids; i++)
        if (model->stop_ids[i] == id) return true;
    return false;
}

/* Samples until something ends the answer; out->finish says what. */
static nf_status run_answer(nf_session *s, nf_sampler *sampler, answer_text *text, nf_generation *out,
                            nf_error *err) {
    const nf_generate_options *o = text->options;
    size_t cap = 0;
    double first_token_at = 0;
    nf_status status = NF_OK;
    for (;;) {
        out->finish = NF_FINISH_LENGTH;
        if (out->n_ids == o->max_tokens) break;
        out->finish = NF_FINISH_CANCELLED;
        if (s->cancelled || text->refused) break;
        int32_t id;
        if ((status = nf_sampler_pick(sampler, s->logits, (uint32_t)out->n_ids, &id, err))) break;
        if (!out->n_ids) first_token_at = nf_now();
        out->finish = NF_FINISH_STOP_TOKEN;
        if (!o->ignore_eos && is_stop_id(s->model, id)) break;
        if ((status = nf_grow((void **)&out->ids, &cap, out->n_ids + 1, sizeof *out->ids, err))) break;
        out->ids[out->n_ids++] = id;
        bool stopped = false;
        size_t n_bytes = 0;
        const char *bytes = nf_tokenizer_bytes(s->model->tokenizer, id, &n_bytes);
        if (o->keep_special || !nf_tokenizer_is_special(s->model->tokenizer, id))
            status = add_text(text, bytes, n_bytes, false, &stopped, err);
        out->finish = NF_FINISH_STOP_STRING;
        if (status || stopped) break;
        out->finish = NF_FINISH_LENGTH;
        if (out->n_ids == o->max_tokens) break;
        out->finish = NF_FINISH_CONTEXT;
        if (s->position == s->max_context) break;
        status = nf_session_eval_step(s, &id, 1, NULL, NULL, err);
        if (status == NF_ERR_CANCELLED) {
            out->finish = NF_FINISH_CANCELLED;
            status = NF_OK;
            break;
        }
        if (status) break;
    }
    out->decode_s = out->n_ids ? nf_now() - first_token_at : 0;
    return status;
}

nf_status nf_session_generate(nf_session *s, const int32_t *prompt, size_t n_prompt,
                              const nf_generate_options *options, nf_generation *out, nf_error *err) {
    *out = (nf_generation){0};
    s->cancelled = 0;
    nf_sampler *sampler = NULL;
    answer_text text = {.options = options};
    nf_status status = check_request(s, prompt, n_prompt, options, err);
    if (!status) status = nf_sampler_new(&options->sampling, s->model->desc.vocab_size, &sampler, err);
    if (!status) status = nf_buf_append(&text.text, NULL, 0, err);
    if (!status) status = eval_prompt(s, prompt, n_prompt, out, err);
    if (!status) {
        for (size_t i = 0; i < n_prompt; i++) nf_sampler_see_prompt(sampler, prompt[i]);
        status = run_answer(s, sampler, &text, out, err);
        bool stopped = out->finish == NF_FINISH_STOP_STRING;
        if (!status && !stopped) status = add_text(&text, NULL, 0, true, &stopped, err);
    } else if (status == NF_ERR_CANCELLED) {
        out->finish = NF_FINISH_CANCELLED;
        status = NF_OK;
    }
    nf_sampler_free(sampler);
    if (status) {
        nf_buf_free(&text.text);
        nf_generation_free(out);
        return status;
    }
    out->text_bytes = text.text.len;
    out->text = nf_buf_take(&text.text);
    return NF_OK;
}
