/* Flags of a session; see session_args.h. */
#include "runner/session_args.h"

int nf_kv_dtype_check(const nf_args_spec *spec, const char *name, nf_kv_type *out) {
    *out = NF_KV_F32;
    if (!name || nf_kv_type_by_name(name, out)) return 0;
    return nf_usage_error(spec, "--kv-dtype must be " NF_KV_TYPE_NAMES ", not '%s'", name);
}
