/* Importance statistics in a conversion: the file against the model, and the weights of a matrix's columns.
 */
#include "converter/convert_internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_recorded(const nf_tensor_spec *spec) {
    return !strcmp(spec->component, "text") && (spec->role == NF_ROLE_MATRIX || spec->role == NF_ROLE_BANK);
}

/* Name of the statistics of matrix `which` of a spec. */
static void entry_name(const nf_tensor_spec *spec, int which, char *out, size_t n) {
    const char *part = spec->role != NF_ROLE_BANK ? "" : which == 2 ? ".down_proj" : ".gate_up_proj";
    snprintf(out, n, "%s%s", spec->name, part);
}

static nf_status check_entry(const nf_conversion *c, const nf_tensor_spec *spec, int which, nf_error *err) {
    const bool bank = spec->role == NF_ROLE_BANK;
    const uint64_t experts = bank ? spec->shape[0] : 1, cols = spec->shape[bank && which == 0 ? 2 : 1];
    char name[128];
    entry_name(spec, which, name, sizeof name);
    const nf_importance_entry *e = nf_importance_find(&c->importance, name);
    if (!e) return nf_fail(err, NF_ERR_FORMAT, "there are no statistics for '%s'", name);
    if (e->experts != experts || e->cols != cols)
        return nf_fail(err, NF_ERR_FORMAT,
                       "'%s' has statistics of %u experts with %u columns, the model has %llu with %llu",
                       name, e->experts, e->cols, (unsigned long long)experts, (unsigned long long)cols);
    return NF_OK;
}

/* An entry that belongs to no tensor of the model. */
static nf_status check_known(const nf_conversion *c, const nf_importance_entry *e, nf_error *err) {
    char name[128];
    for (size_t i = 0; i < c->n_specs; i++)
        for (int which = 0; which <= 2; which += 2) {
            entry_name(&c->specs[i], which, name, sizeof name);
            if (is_recorded(&c->specs[i]) && !strcmp(name, e->name)) return NF_OK;
        }
    return nf_fail(err, NF_ERR_FORMAT, "has statistics for '%s', which the model does not have", e->name);
}

nf_status nf_conversion_importance(nf_conversion *c, nf_error *err) {
    const char *path = c->options->importance;
    if (!path) return NF_OK;
    nf_status status = nf_importance_read(path, &c->importance, err);
    if (status) return status;
    for (size_t i = 0; i < c->n_specs && !status; i++) {
        if (!is_recorded(&c->specs[i])) continue;
        status = check_entry(c, &c->specs[i], 0, err);
        if (!status && c->specs[i].role == NF_ROLE_BANK) status = check_entry(c, &c->specs[i], 2, err);
    }
    for (size_t i = 0; i < c->importance.n && !status; i++)
        status = check_known(c, &c->importance.entries[i], err);
    return status ? nf_context(err, "%s", path) : NF_OK;
}

nf_status nf_conversion_weights(const nf_conversion *c, const nf_tensor_spec *spec, size_t expert, int which,
                                float **out, nf_error *err) {
    char name[128];
    *out = NULL;
    entry_name(spec, which, name, sizeof name);
    const nf_importance_entry *e = c->options->importance ? nf_importance_find(&c->importance, name) : NULL;
    if (!e) return NF_OK;
    *out = nf_alloc(e->cols, sizeof **out, "importance of columns", err);
    if (!*out) return NF_ERR_MEMORY;
    nf_importance_weights(e, expert, *out);
    return NF_OK;
}
