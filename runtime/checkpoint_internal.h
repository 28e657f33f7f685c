/* Checkpoints of a session: saved recurrent states at which the sequence can be resumed. */
#ifndef NF_RUNTIME_CHECKPOINT_INTERNAL_H
#define NF_RUNTIME_CHECKPOINT_INTERNAL_H

#include "runtime/session_internal.h"

/* Saves the state at the current position (with the logits when asked and known); replaces one at the same
 * position, else the least recently used slot. NF_ERR_MEMORY leaves the session as it was. */
nf_status nf_checkpoint_take(nf_session *s, bool with_logits, nf_error *err);

/* Goes back to the furthest point that is at most `common` tokens into the sequence: the current position
 * when common reaches it, else the last checkpoint before (its logits become current if it has them), else
 * the start. Checkpoints beyond are dropped. Returns the new position; with need_logits, a point without
 * logits at exactly `common` is not used. */
uint32_t nf_checkpoint_resume(nf_session *s, uint32_t common, bool need_logits);

/* Frees all checkpoints. */
void nf_checkpoints_clear(nf_session *s);

#endif
