/* The dry run; see plan.h. Bytes come from a container's directory, or from the config and the headers of a
 * checkpoint. */
#include "runner/plan.h"

#include "base/buf.h"
#include "base/io.h"
#include "converter/convert.h"
#include "cpu/topology.h"
#include "runner/cache_dir.h"
#include "runner/load.h"
#include "runtime/session_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static void row(FILE *out, const char *what, uint64_t bytes, const char *remark) {
    fprintf(out, "%-24s %16llu bytes%s%s\n", what, (unsigned long long)bytes, *remark ? "  " : "", remark);
}

/* What a session takes beside the weights. */
typedef struct session_bytes {
    uint64_t kv_per_token, state, workspace;
} session_bytes;

/* Prints the memory of a session; adds `weights` up in the sum. */
static nf_status print_session(const nf_plan_options *o, uint32_t limit, uint64_t weights,
                               const session_bytes *b, FILE *out, nf_error *err) {
    char remark[96];
    uint64_t context = o->max_context ? o->max_context : limit, kv = context * b->kv_per_token;
    if (context > limit)
        return nf_fail(err, NF_ERR_ARGUMENT, "--max-context %llu: the model's limit is %u",
                       (unsigned long long)context, limit);
    row(out, "KV cache per token", b->kv_per_token, nf_kv_type_name(o->kv_type));
    snprintf(remark, sizeof remark, "for %llu tokens, taken as the context grows",
             (unsigned long long)context);
    row(out, "KV cache", kv, remark);
    row(out, "recurrent state", b->state, "");
    row(out, "workspace", b->workspace, "at the default prefill chunk");
    row(out, "sum", weights + kv + b->state + b->workspace, "");
    return NF_OK;
}

static nf_status print_container(const char *path, const nf_plan_options *o, FILE *out, nf_error *err) {
    nf_model *model = NULL;
    nf_model_info info;
    nf_load_args load = o->load;
    const char *where = load.weights;
    const bool copied = where && (!strcmp(where, "ram") || !strcmp(where, "auto"));
    if (copied) load.weights = "map"; /* only looked at */
    nf_status status = nf_load_model(path, &load, &model, err);
    if (status) return status;
    nf_model_get_info(model, &info);
    session_bytes bytes;
    nf_session_sizes(model, o->kv_type, NF_DEFAULT_PREFILL_CHUNK, &bytes.kv_per_token, &bytes.state,
                     &bytes.workspace);
    fprintf(out, "%-24s %s (%s, %s), %u layers, %u experts, top-%u\n", "model", info.name, info.architecture,
            info.type, info.n_layers, info.n_experts, info.top_k);
    fprintf(out, "%-24s %s\n", "container", path);
    row(out, "file, all parts", info.file_bytes, "");
    row(out, "weights", info.weight_bytes,
        !copied         ? info.weights
        : *where == 'r' ? "copied to memory"
                        : "copied to memory if that fits and helps");
    row(out, "  of these experts", info.expert_bytes, "");
    status = print_session(o, info.max_context, info.weight_bytes, &bytes, out, err);
    if (!status) fprintf(out, "%-24s %d, %s kernels\n", "threads", info.n_threads, info.isa);
    nf_model_free(model);
    return status;
}

/* Sizes of a session need only the description and the number of threads: a model without weights will do. */
static nf_status measure_session(const nf_model_desc *desc, const nf_plan_options *o, session_bytes *out,
                                 nf_error *err) {
    int n_threads = (int)o->load.threads;
    if (!n_threads) {
        nf_topology topology;
        nf_status status = nf_topology_get(&topology, err);
        if (status) return status;
        n_threads = nf_topology_default_threads(&topology);
        nf_topology_free(&topology);
    }
    nf_model shape = {.desc = *desc};
    shape.team.n_threads = n_threads;
    nf_session_sizes(&shape, o->kv_type, NF_DEFAULT_PREFILL_CHUNK, &out->kv_per_token, &out->state,
                     &out->workspace);
    return NF_OK;
}

/* The memory of a run of a checkpoint that was not converted yet. */
static nf_status print_described(const char *path, const nf_plan_options *o, uint64_t out_bytes, FILE *out,
                                 nf_error *err) {
    nf_buf file = {0}, config = {0};
    nf_model_desc desc = {0};
    session_bytes bytes;
    nf_status status = nf_buf_printf(&file, err, "%s/config.json", path);
    if (!status) status = nf_read_file(file.data, 64 << 20, &config, err);
    if (!status) status = nf_model_desc_parse(config.data, config.len, file.data, &desc, err);
    if (!status) status = measure_session(&desc, o, &bytes, err);
    if (!status) {
        fprintf(out, "%-24s %s, %u layers, %u experts, top-%u\n", "model", desc.architecture, desc.n_layers,
                desc.n_experts, desc.top_k);
        row(out, "weights, at most", out_bytes, "known exactly after the conversion");
        status = print_session(o, desc.max_context, out_bytes, &bytes, out, err);
    }
    nf_model_desc_free(&desc);
    nf_buf_free(&config);
    nf_buf_free(&file);
    return status;
}

static nf_status print_checkpoint(const char *path, const nf_plan_options *o, FILE *out, nf_error *err) {
    nf_buf target = {0};
    bool exists = false;
    uint64_t source_bytes = 0, out_bytes = 0;
    nf_convert_options convert = {.type = o->type, .n_threads = (int)o->load.threads};
    nf_status status = nf_cache_lookup(path, o->type, &target, &exists, err);
    if (!status && !exists) status = nf_convert_estimate(path, &convert, &source_bytes, &out_bytes, err);
    if (!status) fprintf(out, "%-24s %s\n", "checkpoint", path);
    if (!status && exists) {
        fprintf(out, "%-24s already done, nothing to write\n", "conversion");
        status = print_container(target.data, o, out, err);
    } else if (!status) {
        row(out, "tensors of the source", source_bytes, "");
        row(out, "conversion would write", out_bytes, "at most");
        fprintf(out, "%-24s %s\n", "to", target.data);
        status = print_described(path, o, out_bytes, out, err);
    }
    nf_buf_free(&target);
    return status;
}

nf_status nf_plan_print(const char *path, const nf_plan_options *options, FILE *out, nf_error *err) {
    struct stat info;
    if (stat(path, &info)) return nf_fail_errno(err, errno, "%s: cannot open the model", path);
    nf_status status = S_ISDIR(info.st_mode) ? print_checkpoint(path, options, out, err)
                                             : print_container(path, options, out, err);
    if (!status && fflush(out)) status = nf_fail_errno(err, errno, "cannot write the plan");
    return status;
}
