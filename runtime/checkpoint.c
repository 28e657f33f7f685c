/*
 * Checkpoints (docs/architecture.md, "State"): KV entries stay valid for a prefix, recurrent states do not,
 * so a sequence can only be resumed where a copy of the recurrent state was kept.
 */
#include "runtime/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

static void drop(nf_checkpoint *c) {
    free(c->state);
    free(c->logits);
    *c = (nf_checkpoint){0};
}

void nf_checkpoints_clear(nf_session *s) {
    for (int i = 0; i < NF_MAX_CHECKPOINTS; i++) drop(&s->checkpoints[i]);
}

/* The slot at this position, else a free one, else the least recently used. */
static nf_checkpoint *choose_slot(nf_session *s) {
    nf_checkpoint *best = &s->checkpoints[0];
    for (int i = 0; i < NF_MAX_CHECKPOINTS; i++) {
        nf_checkpoint *c = &s->checkpoints[i];
        if (c->state && c->position == s->position) return c;
        if (!c->state && best->state)
            best = c;
        else if (c->state && best->state && c->used < best->used)
            best = c;
    }
    return best;
}

nf_status nf_checkpoint_take(nf_session *s, bool with_logits, nf_error *err) {
    const size_t vocab = s->model->desc.vocab_size;
    nf_checkpoint *slot = choose_slot(s);
    drop(slot);
    /* A model without linear layers has no state to copy; one float marks the slot as taken. */
    size_t n = s->state_floats ? s->state_floats : 1;
    slot->state = nf_alloc(n, sizeof(float), "a checkpoint of the recurrent state", err);
    if (!slot->state) return NF_ERR_MEMORY;
    memcpy(slot->state, s->state, s->state_floats * sizeof(float));
    if (with_logits && s->has_logits) {
        slot->logits = nf_alloc(vocab, sizeof(float), "the logits of a checkpoint", err);
        if (!slot->logits) {
            drop(slot);
            return NF_ERR_MEMORY;
        }
        memcpy(slot->logits, s->logits, vocab * sizeof(float));
    }
    slot->position = s->position;
    slot->used = ++s->clock;
    return NF_OK;
}

uint32_t nf_checkpoint_resume(nf_session *s, uint32_t common, bool need_logits) {
    if (s->position < common || (s->position == common && (s->has_logits || !need_logits)))
        return s->position;
    nf_checkpoint *best = NULL;
    for (int i = 0; i < NF_MAX_CHECKPOINTS; i++) {
        nf_checkpoint *c = &s->checkpoints[i];
        if (!c->state) continue;
        if (c->position > common) {
            drop(c); /* what it continued is being replaced */
            continue;
        }
        if (c->position == common && need_logits && !c->logits) continue;
        if (!best || c->position > best->position) best = c;
    }
    s->has_logits = false;
    if (!best) {
        memset(s->state, 0, s->state_floats * sizeof(float));
        s->position = 0;
        return 0;
    }
    memcpy(s->state, best->state, s->state_floats * sizeof(float));
    s->position = best->position;
    best->used = ++s->clock;
    if (best->logits) {
        memcpy(s->logits, best->logits, s->model->desc.vocab_size * sizeof(float));
        s->has_logits = true;
    }
    return s->position;
}
