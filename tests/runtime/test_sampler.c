/* The sampler against plain definitions: filters keep exactly the right tokens, samples follow the
 * distribution, penalties, noise. */
#include "tests/support/support.h"

#include "runtime/session_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t pick(const nf_sampling *p, const float *logits, uint32_t vocab, uint32_t position) {
    nf_error err = {0};
    nf_sampler *s;
    int32_t id;
    OK(nf_sampler_new(p, vocab, &s, &err));
    OK(nf_sampler_pick(s, logits, position, &id, &err));
    nf_sampler_free(s);
    return id;
}

static void test_greedy(void **state) {
    (void)state;
    nf_sampling p = nf_sampling_greedy();
    const float logits[5] = {1, 3, -2, 3, 0};
    assert_int_equal(pick(&p, logits, 5, 0), 1); /* the lower id among equals */
}

typedef struct ranked {
    double logit;
    int32_t id;
} ranked;

static int by_logit(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id - y->id;
}

/* Which tokens may be sampled, by definition: sort, cut. */
static void allowed(const nf_sampling *p, const float *logits, uint32_t n, bool *out) {
    ranked *r = calloc(n, sizeof *r);
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) r[i] = (ranked){logits[i] / p->temperature, (int32_t)i};
    qsort(r, n, sizeof *r, by_logit);
    uint32_t keep = p->top_k && (uint32_t)p->top_k < n ? (uint32_t)p->top_k : n;
    for (uint32_t i = 0; i < keep; i++) total += exp(r[i].logit - r[0].logit);
    memset(out, 0, n);
    for (uint32_t i = 0; i < keep; i++) {
        double q = exp(r[i].logit - r[0].logit);
        if (q >= p->min_p) out[r[i].id] = true;
        sum += q;
        if (p->top_p < 1 && sum >= p->top_p * total) break;
    }
    free(r);
}

static void test_filters(void **state) {
    (void)state;
    enum { V = 3000 };
    static float logits[V];
    static bool may[V], seen[V];
    uint64_t seed = 5;
    for (int round = 0; round < 12; round++) {
        nf_sampling p = nf_sampling_greedy();
        p.temperature = round % 3 ? 0.7 : 8.0; /* flat: many tokens in the nucleus */
        p.top_k = round % 2 ? 40 : 0;
        p.top_p = round % 4 < 2 ? 0.9 : 1.0;
        p.min_p = round % 5 == 0 ? 0.02 : 0.0;
        for (int i = 0; i < V; i++) logits[i] = next_float(&seed) * 6 + (float)(i % 7 == 0);
        for (int i = 0; i < 50; i++) logits[next_random(&seed) % V] = 3.25f; /* ties */
        allowed(&p, logits, V, may);
        memset(seen, 0, sizeof seen);
        nf_error err = {0};
        nf_sampler *s;
        OK(nf_sampler_new(&p, V, &s, &err));
        int distinct = 0;
        for (uint32_t k = 0; k < 1500; k++) {
            int32_t id;
            OK(nf_sampler_pick(s, logits, k, &id, &err));
            if (!may[id]) fail_msg("round %d: token %d is outside the filters", round, id);
            distinct += !seen[id];
            seen[id] = true;
        }
        assert_true(distinct > 5);
        nf_sampler_free(s);
    }
}

/* Frequencies of 40,000 samples against the probabilities (chi-squared, 7 degrees of freedom: 30 has p <
 * 1e-4). */
static void test_distribution(void **state) {
    (void)state;
    const float logits[8] = {0, 1, 2, 0.5f, -1, 1.5f, -3, 0};
    nf_sampling p = nf_sampling_greedy();
    p.temperature = 1.0;
    double total = 0, chi = 0;
    int count[8] = {0};
    for (int i = 0; i < 8; i++) total += exp(logits[i]);
    for (uint64_t seed = 0; seed < 4; seed++)
        for (uint32_t k = 0; k < 10000; k++) {
            p.seed = seed;
            count[pick(&p, logits, 8, k)]++;
        }
    for (int i = 0; i < 8; i++) {
        double want = 40000 * exp(logits[i]) / total;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < 30);
}

static void test_noise_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    float logits[100] = {0};
    nf_sampling p = nf_sampling_greedy();
    p.temperature = 1.0;
    p.seed = 7;
    int32_t a = pick(&p, logits, 100, 3);
    assert_int_equal(pick(&p, logits, 100, 3), a);
    int differ = 0;
    for (uint32_t k = 0; k < 50; k++) differ += pick(&p, logits, 100, k) != a;
    assert_true(differ > 40);
}

static void test_penalties(void **state) {
    (void)state;
    nf_error err = {0};
    nf_sampling p = nf_sampling_greedy();
    nf_sampler *s;
    int32_t id;
    const float logits[3] = {2.0f, 1.5f, -1.0f};
    p.presence_penalty = 0.6; /* 2.0 once, then 1.4 < 1.5, then both are penalised: 1.4 > 0.9 */
    OK(nf_sampler_new(&p, 3, &s, &err));
    const int32_t want[] = {0, 1, 0, 0};
    for (uint32_t k = 0; k < 4; k++) {
        OK(nf_sampler_pick(s, logits, k, &id, &err));
        assert_int_equal(id, want[k]);
    }
    nf_sampler_free(s);
    p = nf_sampling_greedy();
    p.frequency_penalty = 0.3; /* 2.0, 1.7, 1.4 < 1.5, 1.4 > 1.2 */
    OK(nf_sampler_new(&p, 3, &s, &err));
    const int32_t want_frequency[] = {0, 0, 1, 0, 1};
    for (uint32_t k = 0; k < 5; k++) {
        OK(nf_sampler_pick(s, logits, k, &id, &err));
        assert_int_equal(id, want_frequency[k]);
    }
    nf_sampler_free(s);
    p = nf_sampling_greedy();
    p.repetition_penalty = 2.0; /* counts the prompt too */
    OK(nf_sampler_new(&p, 3, &s, &err));
    nf_sampler_see_prompt(s, 0);
    OK(nf_sampler_pick(s, logits, 0, &id, &err));
    assert_int_equal(id, 1);
    nf_sampler_free(s);
}

static void test_errors(void **state) {
    (void)state;
    nf_error err = {0};
    nf_sampler *s;
    int32_t id;
    nf_sampling p = nf_sampling_greedy();
    const float bad[2] = {0, NAN};
    OK(nf_sampler_new(&p, 2, &s, &err));
    assert_int_equal(nf_sampler_pick(s, bad, 0, &id, &err), NF_ERR_NUMERIC);
    nf_sampler_free(s);
    p.top_p = 1.5;
    assert_int_equal(nf_sampler_new(&p, 2, &s, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "top-p"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),       cmocka_unit_test(test_filters),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_noise_depends_on_seed_and_position_alone),
        cmocka_unit_test(test_penalties),    cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
