/* Threads to processors; see thread_plan.h. */
#include "cpu/thread_plan.h"

#include <stdlib.h>
#include <string.h>

static int cores_of_node(const nf_topology *t, int node) {
    int n = 0;
    for (int i = 0; i < t->n_threads; i++) n += t->cpus[i].node == node && !t->cpus[i].sibling;
    return n;
}

/* Threads for each node: one after the other to the node with the smallest share of its cores in use, so that
 * nodes of different size fill up together. */
static nf_status share_out(const nf_topology *t, int n_threads, int *counts, nf_error *err) {
    int *cores = nf_calloc((size_t)t->n_numa_nodes, sizeof *cores, "a thread plan", err);
    if (!cores) return NF_ERR_MEMORY;
    for (int i = 0; i < t->n_numa_nodes; i++) cores[i] = cores_of_node(t, i);
    for (int k = 0; k < n_threads; k++) {
        int best = -1;
        for (int i = 0; i < t->n_numa_nodes; i++)
            if (counts[i] < cores[i] &&
                (best < 0 || (int64_t)counts[i] * cores[best] < (int64_t)counts[best] * cores[i]))
                best = i;
        counts[best]++; /* there are enough cores: the caller looked */
    }
    free(cores);
    return NF_OK;
}

static nf_status choose_cpus(const nf_topology *t, nf_thread_plan *plan, nf_error *err) {
    const size_t n = (size_t)plan->n_threads;
    int *counts = nf_calloc((size_t)t->n_numa_nodes, sizeof *counts, "a thread plan", err);
    plan->cpus = nf_calloc(n, sizeof *plan->cpus, "a thread plan", err);
    plan->nodes = nf_calloc(n, sizeof *plan->nodes, "a thread plan", err);
    nf_status status = counts && plan->cpus && plan->nodes ? NF_OK : NF_ERR_MEMORY;
    if (!status) status = share_out(t, plan->n_threads, counts, err);
    size_t at = 0;
    for (int i = 0; i < t->n_threads && !status && at < n; i++) { /* ordered by node, then core */
        const nf_topology_cpu *cpu = &t->cpus[i];
        if (cpu->sibling || !counts[cpu->node]) continue;
        counts[cpu->node]--;
        plan->cpus[at] = cpu->cpu;
        plan->nodes[at++] = cpu->node;
    }
    free(counts);
    return status;
}

static nf_status read_environment(nf_pin *pin, nf_error *err) {
    const char *text = getenv("NINFER_PIN");
    if (!text || !*text) return NF_OK;
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return nf_fail(err, NF_ERR_ARGUMENT, "NINFER_PIN must be 0 or 1, not '%s'", text);
    *pin = *text == '1' ? NF_PIN_ON : NF_PIN_OFF;
    return NF_OK;
}

/* Whether allowed cores lie on more than one. */
static bool spans_nodes(const nf_topology *t) {
    return t->cpus[0].node != t->cpus[t->n_threads - 1].node; /* ordered by node */
}

static void decide(const nf_topology *t, nf_pin pin, nf_thread_plan *plan) {
    if (pin == NF_PIN_OFF)
        plan->why = "not asked for";
    else if (plan->n_threads > t->n_cores)
        plan->why = "more threads than cores";
    else if (pin == NF_PIN_ON)
        plan->pinned = true, plan->why = "asked for";
    else if (!spans_nodes(t))
        plan->why = "one NUMA node";
    else if (plan->n_threads < t->n_cores)
        plan->why = "not every core is used";
    else
        plan->pinned = true, plan->why = "every allowed core is used";
}

nf_status nf_thread_plan_make(const nf_topology *topology, int n_threads, nf_pin pin, nf_thread_plan *out,
                              nf_error *err) {
    *out = (nf_thread_plan){0};
    if (n_threads < 0 || n_threads > 1024)
        return nf_fail(err, NF_ERR_ARGUMENT, "the number of threads must be between 1 and 1024, not %d",
                       n_threads);
    nf_status status = pin == NF_PIN_AUTO ? read_environment(&pin, err) : NF_OK;
    if (status) return status;
    out->n_threads = n_threads ? n_threads : nf_topology_default_threads(topology);
    decide(topology, pin, out);
    if (out->n_threads <= topology->n_cores) status = choose_cpus(topology, out, err);
    if (status) nf_thread_plan_free(out);
    return status;
}

void nf_thread_plan_free(nf_thread_plan *plan) {
    free(plan->cpus);
    free(plan->nodes);
    *plan = (nf_thread_plan){0};
}
