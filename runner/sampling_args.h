/* The sampling flags, the same in every program that generates: one set of table rows, one place that applies
 * them to the model's defaults. */
#ifndef NF_RUNNER_SAMPLING_ARGS_H
#define NF_RUNNER_SAMPLING_ARGS_H

#include "base/args.h"
#include "runtime/ninfer.h"

/* Zero-initialise. */
typedef struct nf_sampling_args {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed;
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_repetition, has_presence, has_frequency,
        has_seed;
} nf_sampling_args;

/* Rows of an nf_opt table for `a` (an nf_sampling_args variable). */
/* clang-format off */
#define NF_SAMPLING_OPTIONS(a, defaults)                                                                     \
    {"temperature", 0, NF_OPT_REAL, &(a).temperature, "T",                                                   \
     "0 is greedy (default: " defaults ")", 0, 100, &(a).has_temperature},                                   \
    {"top-k", 0, NF_OPT_INT, &(a).top_k, "N",                                                                \
     "sample among the N likeliest tokens; 0: off", 0, 1e9, &(a).has_top_k},                                 \
    {"top-p", 0, NF_OPT_REAL, &(a).top_p, "P",                                                               \
     "sample among the likeliest tokens of total probability P", 1e-9, 1, &(a).has_top_p},                   \
    {"min-p", 0, NF_OPT_REAL, &(a).min_p, "P",                                                               \
     "drop tokens below P times the best one's probability", 0, 1, &(a).has_min_p},                          \
    {"repetition-penalty", 0, NF_OPT_REAL, &(a).repetition_penalty, "R",                                     \
     "divide logits of tokens seen in prompt and answer; 1: off", 0.01, 100, &(a).has_repetition},           \
    {"presence-penalty", 0, NF_OPT_REAL, &(a).presence_penalty, "R",                                         \
     "subtract R from logits of tokens in the answer", -100, 100, &(a).has_presence},                        \
    {"frequency-penalty", 0, NF_OPT_REAL, &(a).frequency_penalty, "R",                                       \
     "subtract R for each time a token is in the answer", -100, 100, &(a).has_frequency}
/* clang-format on */

/* Replaces the fields of *s whose flags were given. */
void nf_sampling_args_apply(const nf_sampling_args *a, nf_sampling *s);
/* Name of a given flag that has no effect because *s is greedy, or NULL. */
const char *nf_sampling_args_unused(const nf_sampling_args *a, const nf_sampling *s);

#endif
