/* `--dry-run`: what a run would load and, for a checkpoint folder, what conversion would write. */
#ifndef NF_RUNNER_PLAN_H
#define NF_RUNNER_PLAN_H

#include "cpu/kv.h"
#include "format/types.h"
#include "runner/load.h"

#include <stdint.h>
#include <stdio.h>

typedef struct nf_plan_options {
    nf_format type;       /* of a conversion */
    nf_kv_type kv_type;   /* of a session */
    uint32_t max_context; /* 0: the model's */
    nf_load_args load;    /* as for the run */
} nf_plan_options;

/* Prints the table for a container or a checkpoint folder; writes nothing to disk. */
nf_status nf_plan_print(const char *path, const nf_plan_options *options, FILE *out, nf_error *err);

#endif
