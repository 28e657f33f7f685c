/* Importance statistics in a conversion: the file against the model, and the weights of a matrix's columns.
 */
#include "converter/convert_internal.h"

#include <stdlib.h>
#include <string.h>

static nf_status check_entry(const nf_conversion *c, const nf_product_input *in, nf_error *err) {
    const nf_importance_entry *e = nf_importance_find(&c->importance, in->name);
    if (!e) return nf_fail(err, NF_ERR_FORMAT, "there are no statistics for '%s'", in->name);
    if (e->experts != in->experts || e->cols != in->cols)
        return nf_fail(err, NF_ERR_FORMAT,
                       "'%s' has statistics of %u experts with %u columns, the model has %llu with %llu",
                       in->name, e->experts, e->cols, (unsigned long long)in->experts,
                       (unsigned long long)in->cols);
    return NF_OK;
}

/* There are more entries than the model has inputs: names one that belongs to no tensor of it. */
static nf_status refuse_unknown(const nf_conversion *c, nf_error *err) {
    for (size_t k = 0; k < c->importance.n; k++) {
        const char *name = c->importance.entries[k].name;
        bool known = false;
        for (size_t i = 0; i < c->n_specs && !known; i++) {
            nf_product_input in[2];
            const size_t n = nf_tensor_inputs(&c->specs[i], in);
            for (size_t j = 0; j < n; j++) known |= !strcmp(in[j].name, name);
        }
        if (!known)
            return nf_fail(err, NF_ERR_FORMAT, "has statistics for '%s', which the model does not have",
                           name);
    }
    return nf_fail(err, NF_ERR_INTERNAL, "has more statistics than the model has matrices");
}

nf_status nf_conversion_importance(nf_conversion *c, nf_error *err) {
    const char *path = c->options->importance;
    if (!path) return NF_OK;
    nf_status status = nf_importance_read(path, &c->importance, err);
    if (status) return status;
    size_t known = 0;
    for (size_t i = 0; i < c->n_specs && !status; i++) {
        nf_product_input in[2];
        const size_t n = nf_tensor_inputs(&c->specs[i], in);
        for (size_t j = 0; j < n && !status; j++, known++) status = check_entry(c, &in[j], err);
    }
    /* Names are distinct on both sides. */
    if (!status && c->importance.n != known) status = refuse_unknown(c, err);
    return status ? nf_context(err, "%s", path) : NF_OK;
}

nf_status nf_conversion_weights(const nf_conversion *c, const nf_tensor_spec *spec, size_t expert, int which,
                                float **out, nf_error *err) {
    nf_product_input in[2];
    *out = NULL;
    if (!c->options->importance || !nf_tensor_inputs(spec, in)) return NF_OK;
    const nf_importance_entry *e = nf_importance_find(&c->importance, in[which == 2].name);
    if (!e) return NF_OK;
    *out = nf_alloc(e->cols, sizeof **out, "importance of columns", err);
    if (!*out) return NF_ERR_MEMORY;
    nf_importance_weights(e, expert, *out);
    return NF_OK;
}
