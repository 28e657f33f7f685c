/* The flags of a session, the same in every program that makes one. */
#ifndef NF_RUNNER_SESSION_ARGS_H
#define NF_RUNNER_SESSION_ARGS_H

#include "base/args.h"
#include "cpu/kv.h"

/* Row of an nf_opt table for `dst` (a const char * that is NULL when the flag is not given). */
/* clang-format off */
#define NF_KV_DTYPE_OPTION(dst)                                                                              \
    {"kv-dtype", 0, NF_OPT_TEXT, &(dst), "TYPE",                                                             \
     "type of the KV cache: " NF_KV_TYPE_NAMES " (default f32)", 0, 0, NULL}
/* clang-format on */

/* Finds the type (f32 when name is NULL). Returns 0, or 2 after printing what is wrong. */
int nf_kv_dtype_check(const nf_args_spec *spec, const char *name, nf_kv_type *out);

#endif
