/* Sampling flags; see sampling_args.h. */
#include "runner/sampling_args.h"

#include <stddef.h>

void nf_sampling_args_apply(const nf_sampling_args *a, nf_sampling *s) {
    if (a->has_temperature) s->temperature = a->temperature;
    if (a->has_top_k) s->top_k = (int32_t)a->top_k;
    if (a->has_top_p) s->top_p = a->top_p;
    if (a->has_min_p) s->min_p = a->min_p;
    if (a->has_repetition) s->repetition_penalty = a->repetition_penalty;
    if (a->has_presence) s->presence_penalty = a->presence_penalty;
    if (a->has_frequency) s->frequency_penalty = a->frequency_penalty;
    if (a->has_seed) s->seed = (uint64_t)a->seed;
}

const char *nf_sampling_args_unused(const nf_sampling_args *a, const nf_sampling *s) {
    if (s->temperature > 0) return NULL;
    if (a->has_top_k) return "--top-k";
    if (a->has_top_p) return "--top-p";
    if (a->has_min_p) return "--min-p";
    return a->has_seed ? "--seed" : NULL;
}
