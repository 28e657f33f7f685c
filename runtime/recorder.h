/* Records importance statistics (format/importance.h) while sessions of a model compute. */
#ifndef NF_RUNTIME_RECORDER_H
#define NF_RUNTIME_RECORDER_H

#include "runtime/ninfer.h"

typedef struct nf_recorder nf_recorder;

/* Starts recording for all sessions of the model, one recorder at a time (NF_ERR_ARGUMENT for a second one).
 * Results do not change; what is recorded does not depend on threads or chunks. No session may compute
 * during this call and nf_recorder_free. */
nf_status nf_recorder_new(nf_model *model, nf_recorder **out, nf_error *err);
/* Writes what was recorded so far. NF_ERR_NUMERIC when a sum is beyond f32. */
nf_status nf_recorder_write(const nf_recorder *recorder, const char *path, nf_error *err);
/* Stops recording. Accepts NULL. */
void nf_recorder_free(nf_recorder *recorder);

#endif
