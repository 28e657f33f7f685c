/*
 * Sampler: penalties, temperature, top-k, top-p, min-p, then Gumbel-max. The noise of a token is a hash of
 * (seed, position in the answer, token id), so the same logits give the same token whatever was computed
 * before or beside them. All in double; ties go to the lower id. Gumbel-max: argmax(log p_i + g_i) with g_i =
 * -log(-log u_i) is a sample from p (Gumbel, 1954).
 */
#include "runtime/session_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    double logit;
    int32_t id;
} candidate;

struct nf_sampler {
    nf_sampling params;
    uint32_t vocab;
    bool has_penalty;
    uint32_t *in_answer;   /* [vocab]: times seen in the answer */
    bool *seen;            /* [vocab]: seen in prompt or answer */
    candidate *candidates; /* [vocab] */
};

static nf_status check(const nf_sampling *p, nf_error *err) {
    const struct {
        const char *name;
        double value, min, max;
    } limits[] = {
        {"temperature", p->temperature, 0, 100},
        {"top-k", (double)p->top_k, 0, 2147483647},
        {"top-p", p->top_p, 0, 1},
        {"min-p", p->min_p, 0, 1},
        {"repetition penalty", p->repetition_penalty, 0.01, 100},
        {"presence penalty", p->presence_penalty, -100, 100},
        {"frequency penalty", p->frequency_penalty, -100, 100},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (!(limits[i].value >= limits[i].min && limits[i].value <= limits[i].max))
            return nf_fail(err, NF_ERR_ARGUMENT, "%s must be between %g and %g, not %g", limits[i].name,
                           limits[i].min, limits[i].max, limits[i].value);
    return NF_OK;
}

nf_status nf_sampler_new(const nf_sampling *sampling, uint32_t vocab, nf_sampler **out, nf_error *err) {
    *out = NULL;
    nf_status status = check(sampling, err);
    if (status) return status;
    nf_sampler *s = nf_calloc(1, sizeof *s, "a sampler", err);
    if (!s) return NF_ERR_MEMORY;
    s->params = *sampling;
    s->vocab = vocab;
    s->has_penalty = sampling->repetition_penalty != 1.0 || sampling->presence_penalty != 0.0 ||
                     sampling->frequency_penalty != 0.0;
    s->in_answer = nf_calloc(vocab, sizeof *s->in_answer, "token counts", err);
    s->seen = nf_calloc(vocab, sizeof *s->seen, "token marks", err);
    s->candidates = nf_alloc(vocab, sizeof *s->candidates, "sampling candidates", err);
    if (!s->in_answer || !s->seen || !s->candidates) {
        nf_sampler_free(s);
        return NF_ERR_MEMORY;
    }
    *out = s;
    return NF_OK;
}

void nf_sampler_free(nf_sampler *s) {
    if (!s) return;
    free(s->in_answer);
    free(s->seen);
    free(s->candidates);
    free(s);
}

void nf_sampler_see_prompt(nf_sampler *s, int32_t id) {
    s->seen[id] = true;
}

/* Larger logit first, then lower id. */
static bool before(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *a, const void *b) {
    return before(*(const candidate *)a, *(const candidate *)b) ? -1 : 1; /* ids differ: never equal */
}

/* Partitions so that the first k of n candidates are the k best (in any order). Quickselect, median of three.
 */
static void select_best(candidate *c, size_t n, size_t k) {
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        candidate a = c[lo], b = c[lo + (hi - lo) / 2], d = c[hi - 1];
        candidate pivot = before(a, b) ? (before(b, d)   ? b
                                          : before(a, d) ? d
                                                         : a)
                                       : (before(a, d)   ? a
                                          : before(b, d) ? d
                                                         : b);
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (before(c[i], pivot)) i++;
            while (before(pivot, c[j])) j--;
            if (i >= j) break;
            candidate t = c[i];
            c[i++] = c[j];
            c[j--] = t;
        }
        /* [lo, i) is not behind the pivot, [i, hi) not before it. The pivot itself keeps both sides from
         * being empty. */
        size_t split = i > lo ? i : lo + 1;
        if (k <= split)
            hi = split;
        else
            lo = split;
    }
}

/* Leaves the shortest prefix (best first) whose probability reaches p; returns its length. The sum over all
 * candidates is known, so only as many as needed are sorted. */
static size_t top_p(candidate *c, size_t n, double p) {
    double max = -INFINITY, total = 0.0;
    for (size_t i = 0; i < n; i++) max = fmax(max, c[i].logit);
    for (size_t i = 0; i < n; i++) total += exp(c[i].logit - max);
    double sum = 0.0;
    size_t sorted = 0;
    for (size_t window = 256; sorted < n; window *= 8) {
        size_t end = window < n ? window : n;
        if (end < n) select_best(c + sorted, n - sorted, end - sorted);
        qsort(c + sorted, end - sorted, sizeof *c, compare);
        for (; sorted < end; sorted++) {
            sum += exp(c[sorted].logit - max);
            if (sum >= p * total) return sorted + 1;
        }
    }
    return n;
}

static size_t min_p(candidate *c, size_t n, double p) {
    double max = -INFINITY;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) max = fmax(max, c[i].logit);
    for (size_t i = 0; i < n; i++)
        if (exp(c[i].logit - max) >= p) c[kept++] = c[i];
    return kept;
}

/* SplitMix64's output function (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static double gumbel(uint64_t seed, uint32_t position, int32_t id) {
    const uint64_t gamma = 0x9E3779B97F4A7C15ull;
    uint64_t h =
        mix(mix(mix(seed + gamma) + gamma * ((uint64_t)position + 1)) + gamma * ((uint64_t)(uint32_t)id + 1));
    double u = ((double)(h >> 11) + 0.5) * 0x1p-53; /* in (0, 1) */
    return -log(-log(u));
}

static double penalised(const nf_sampler *s, double logit, size_t id) {
    const nf_sampling *p = &s->params;
    if (s->seen[id]) logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    if (s->in_answer[id]) logit -= p->presence_penalty + p->frequency_penalty * (double)s->in_answer[id];
    return logit;
}

static int32_t pick_greedy(const nf_sampler *s) {
    candidate best = s->candidates[0];
    for (uint32_t i = 1; i < s->vocab; i++)
        if (before(s->candidates[i], best)) best = s->candidates[i];
    return best.id;
}

static int32_t pick_random(const nf_sampler *s, uint32_t position) {
    const nf_sampling *p = &s->params;
    candidate *c = s->candidates;
    size_t n = s->vocab;
    for (size_t i = 0; i < n; i++) c[i].logit /= p->temperature;
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        select_best(c, n, (size_t)p->top_k);
        n = (size_t)p->top_k;
    }
    if (p->top_p < 1.0) n = top_p(c, n, p->top_p);
    if (p->min_p > 0.0) n = min_p(c, n, p->min_p);
    candidate best = {.id = -1};
    for (size_t i = 0; i < n; i++) {
        candidate noisy = {c[i].logit + gumbel(p->seed, position, c[i].id), c[i].id};
        if (best.id < 0 || before(noisy, best)) best = noisy;
    }
    return best.id;
}

nf_status nf_sampler_pick(nf_sampler *s, const float *logits, uint32_t position, int32_t *id, nf_error *err) {
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (!isfinite(logits[i]))
            return nf_fail(err, NF_ERR_NUMERIC, "the logit of token %u is not a finite number", i);
        s->candidates[i] =
            (candidate){s->has_penalty ? penalised(s, (double)logits[i], i) : (double)logits[i], (int32_t)i};
    }
    *id = s->params.temperature > 0 ? pick_random(s, position) : pick_greedy(s);
    s->in_answer[*id]++;
    s->seen[*id] = true;
    return NF_OK;
}
