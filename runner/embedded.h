/* Finds the model that comes with the program. */
#ifndef NF_RUNNER_EMBEDDED_H
#define NF_RUNNER_EMBEDDED_H

#include "base/buf.h"

/* Appends the path of the embedded model: a container or a checkpoint folder. Looked for, in this order, in
 * $NINFER_SHARE, in models/tiny-moe beside the build folder that holds the program, and in share/ninfer
 * beside the bin folder that holds it. NF_ERR_NOT_FOUND lists these places. */
nf_status nf_embedded_model(nf_buf *path, nf_error *err);

#endif
