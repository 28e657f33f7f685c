/* What the files of the converter share: one conversion in progress. */
#ifndef NF_CONVERTER_CONVERT_INTERNAL_H
#define NF_CONVERTER_CONVERT_INTERNAL_H

#include "converter/convert.h"

#include "format/container.h"
#include "format/importance.h"
#include "format/safetensors.h"
#include "runtime/family.h"

#include <pthread.h>

/* A checkpoint tensor as f32 rows: plain, or block FP8 with its scales. */
typedef struct nf_source {
    const nf_st_tensor *weight;
    const nf_st_tensor *scale; /* f32 [ceil(rows/128), ceil(cols/128)] or NULL */
    uint64_t first;            /* element of `weight` at which this matrix begins (packed experts) */
    uint64_t rows, cols;
} nf_source;

typedef struct nf_conversion {
    const char *source_dir;
    const nf_convert_options *options;
    nf_safetensors *st;
    nf_model_desc desc;
    nf_tensor_spec *specs;
    size_t n_specs;
    const char *prefix; /* of the text part's names: "model." or "model.language_model." */
    bool *used;         /* [tensors]: has a place in the container (or is known and left out) */
    nf_writer *writer;
    nf_importance importance; /* empty: all columns weigh alike */
    int n_threads;
    uint64_t done, total; /* source bytes */
    uint64_t resident;    /* source bytes read since the mapped pages were last given back */
    pthread_mutex_t lock; /* progress, first error */
    bool cancelled;
} nf_conversion;

/* ---- sources (sources.c) ---- */

/* Full name in the checkpoint of a spec's source name (see nf_tensor_spec.source). */
void nf_source_name(const nf_conversion *c, const char *source, char *out, size_t n);
/* Finds a tensor with exactly this shape and a float (or block FP8) dtype; marks it and its scales as used.
 */
nf_status nf_source_find(nf_conversion *c, const char *name, const uint64_t *shape, uint32_t n_dims,
                         nf_source *out, nf_error *err);
/* The three matrices of an expert (0 gate, 1 up, 2 down), packed or one by one. */
nf_status nf_source_expert(nf_conversion *c, const nf_tensor_spec *spec, uint64_t expert, nf_source out[3],
                           nf_error *err);
/* Rows first..first+n-1 as f32 [n, cols]; NaN and infinity are errors that name the tensor. */
nf_status nf_source_rows(const nf_source *s, uint64_t first, uint64_t n, float *out, nf_error *err);
uint64_t nf_source_bytes(const nf_source *s);
/* Errors for tensors that nothing used, except those known to belong to parts that are left out (reported as
 * notes). */
nf_status nf_source_check_unused(nf_conversion *c, nf_error *err);

/* ---- importance (importance.c) ---- */

/* Reads the statistics named in the options and checks them against the model's tensors: every matrix and
 * bank of the text part must be there with its size, and nothing else. */
nf_status nf_conversion_importance(nf_conversion *c, nf_error *err);
/* *out: weights [cols] (free()) of the columns of a spec's matrix (of a bank: matrix `which`, 0..2, of an
 * expert); NULL without statistics for it. */
nf_status nf_conversion_weights(const nf_conversion *c, const nf_tensor_spec *spec, size_t expert, int which,
                                float **out, nf_error *err);

/* ---- work (convert_tensor.c) ---- */

/* How a spec is stored by the recipe (docs/container.md, "Default recipe"). */
nf_format nf_recipe_format(nf_format type, nf_role role);
/* Fills the object of a spec (without reading anything). */
nf_status nf_recipe_object(const nf_convert_options *options, const nf_tensor_spec *spec, nf_object *out,
                           nf_error *err);
/* Converts one tensor or bank into its reserved object. */
nf_status nf_convert_spec(nf_conversion *c, const nf_tensor_spec *spec, size_t handle, nf_error *err);
/* Adds source bytes to the progress; NF_ERR_CANCELLED when the user asked to stop. */
nf_status nf_conversion_advance(nf_conversion *c, uint64_t bytes, nf_error *err);
void nf_conversion_note(const nf_conversion *c, const char *line);

#endif
