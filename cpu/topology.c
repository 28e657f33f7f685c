/* The machine through hwloc; see topology.h. */
#include "cpu/topology.h"

#include "cpu/cgroup.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
    int n = hwloc_get_nbobjs_by_type(topology, type);
    return n > 0 ? n : 0;
}

/* ---- what is allowed ---- */

static nf_status load(hwloc_topology_t topology, const nf_topology_source *source, nf_error *err) {
    if (source->synthetic && hwloc_topology_set_synthetic(topology, source->synthetic))
        return nf_fail(err, NF_ERR_ARGUMENT, "hwloc does not understand the machine '%s'", source->synthetic);
    if (hwloc_topology_load(topology))
        return nf_fail(err, NF_ERR_IO, "hwloc: cannot read the processor topology");
    return NF_OK;
}

static nf_status find_allowed(hwloc_topology_t topology, const nf_topology_source *source,
                              hwloc_bitmap_t allowed, nf_topology *out, nf_error *err) {
    nf_cgroup_limits limits = {0};
    hwloc_const_bitmap_t all = hwloc_topology_get_allowed_cpuset(topology);
    if (source->mask) {
        if (strspn(source->mask, "0123456789,-") != strlen(source->mask) ||
            hwloc_bitmap_list_sscanf(allowed, source->mask) < 0)
            return nf_fail(err, NF_ERR_ARGUMENT, "'%s' is not a list of processors such as 0-3,8",
                           source->mask);
    } else if (source->synthetic || hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) < 0) {
        hwloc_bitmap_copy(allowed, all);
    }
    hwloc_bitmap_and(allowed, allowed, all);
    if (!source->synthetic || source->cgroup_root) {
        nf_status status =
            nf_cgroup_read(source->cgroup_root ? source->cgroup_root : "", allowed, &limits, err);
        if (status) return status;
    }
    out->quota_cpus = limits.cpus;
    out->memory_limit = limits.memory_bytes;
    return NF_OK;
}

/* ---- what is there ---- */

static nf_status read_nodes(hwloc_topology_t topology, nf_topology *out, nf_error *err) {
    out->n_numa_nodes = count_of(topology, HWLOC_OBJ_NUMANODE);
    if (out->n_numa_nodes < 1) out->n_numa_nodes = 1; /* hwloc always has one; without, memory is unknown */
    out->nodes = nf_calloc((size_t)out->n_numa_nodes, sizeof *out->nodes, "NUMA nodes", err);
    if (!out->nodes) return NF_ERR_MEMORY;
    for (int i = 0; i < out->n_numa_nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        if (!node) continue;
        out->nodes[i] = (nf_topology_node){(int)node->os_index, node->attr->numanode.local_memory};
        out->memory_bytes += node->attr->numanode.local_memory;
    }
    return NF_OK;
}

static int node_of(hwloc_topology_t topology, hwloc_obj_t pu, int n_nodes) {
    for (int i = 0; i < n_nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        if (node && hwloc_bitmap_isset(node->cpuset, pu->os_index)) return i;
    }
    return 0; /* a processor without memory of its own */
}

static int compare_cpus(const void *a, const void *b) {
    const nf_topology_cpu *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return (x->sibling > y->sibling) - (x->sibling < y->sibling);
}

/* Numbers the allowed threads in hwloc's order, in which the threads of a core follow each other. Some
 * virtual machines report no cores: each thread counts as one. */
static nf_status read_cpus(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, nf_topology *out,
                           nf_error *err) {
    out->all_threads = count_of(topology, HWLOC_OBJ_PU);
    out->all_cores = count_of(topology, HWLOC_OBJ_CORE);
    if (!out->all_cores) out->all_cores = out->all_threads;
    out->cpus = nf_calloc((size_t)out->all_threads + 1, sizeof *out->cpus, "processors", err);
    if (!out->cpus) return NF_ERR_MEMORY;
    hwloc_obj_t last_core = NULL;
    int sibling = 0;
    for (int i = 0; i < out->all_threads; i++) {
        hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
        if (!pu || !hwloc_bitmap_isset(allowed, pu->os_index)) continue;
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
        hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, pu);
        if (!core) core = pu;
        sibling = core == last_core ? sibling + 1 : 0;
        if (!sibling) out->n_cores++;
        last_core = core;
        out->cpus[out->n_threads++] = (nf_topology_cpu){
            .cpu = (int)pu->os_index,
            .core = out->n_cores - 1,
            .sibling = sibling,
            .package = package ? (int)package->logical_index : 0,
            .node = node_of(topology, pu, out->n_numa_nodes),
        };
    }
    if (!out->n_threads)
        return nf_fail(err, NF_ERR_ARGUMENT, "the affinity mask and the control groups leave no processor");
    qsort(out->cpus, (size_t)out->n_threads, sizeof *out->cpus, compare_cpus);
    return NF_OK;
}

static void read_caches(hwloc_topology_t topology, nf_topology *out) {
    static const hwloc_obj_type_t types[NF_CACHE_LEVELS] = {
        HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L5CACHE};
    for (int i = 0; i < NF_CACHE_LEVELS; i++) {
        hwloc_obj_t cache = hwloc_get_obj_by_type(topology, types[i], 0);
        if (!cache) continue;
        out->caches[out->n_caches++] = (nf_topology_cache){
            .level = i + 1,
            .count = count_of(topology, types[i]),
            .bytes = cache->attr->cache.size,
            .line_bytes = (int)cache->attr->cache.linesize,
            .shared_by = hwloc_bitmap_weight(cache->cpuset),
        };
    }
}

nf_status nf_topology_read(const nf_topology_source *source, nf_topology *out, nf_error *err) {
    hwloc_topology_t topology;
    *out = (nf_topology){0};
    if (hwloc_topology_init(&topology)) return nf_fail(err, NF_ERR_MEMORY, "hwloc: cannot initialise");
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    nf_status status = allowed ? NF_OK : nf_fail(err, NF_ERR_MEMORY, "hwloc: out of memory");
    if (!status) status = load(topology, source, err);
    if (!status) status = find_allowed(topology, source, allowed, out, err);
    if (!status) status = read_nodes(topology, out, err);
    if (!status) status = read_cpus(topology, allowed, out, err);
    if (!status) {
        out->n_packages = count_of(topology, HWLOC_OBJ_PACKAGE);
        if (out->n_packages < 1) out->n_packages = 1;
        read_caches(topology, out);
    }
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    if (status) nf_topology_free(out);
    return status;
}

nf_status nf_topology_get(nf_topology *out, nf_error *err) {
    return nf_topology_read(&(nf_topology_source){0}, out, err);
}

void nf_topology_free(nf_topology *topology) {
    free(topology->cpus);
    free(topology->nodes);
    *topology = (nf_topology){0};
}

int nf_topology_default_threads(const nf_topology *topology) {
    int n = topology->n_cores;
    if (topology->quota_cpus > 0 && topology->quota_cpus < n) n = (int)topology->quota_cpus;
    return n < 1 ? 1 : n;
}

/* ---- for people ---- */

void nf_processor_name(char *out, size_t n) {
    snprintf(out, n, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(out, n, "%s", strchr(line, ':') + 2);
            out[strcspn(out, "\n")] = 0;
            break;
        }
    if (f) fclose(f);
}

static double gib(uint64_t bytes) {
    return (double)bytes / (double)(UINT64_C(1) << 30);
}

nf_status nf_topology_describe(const nf_topology *t, nf_buf *out, nf_error *err) {
    nf_status status = nf_buf_printf(
        out, err, "packages %d, NUMA nodes %d\ncores    %d of %d allowed, hardware threads %d of %d\n",
        t->n_packages, t->n_numa_nodes, t->n_cores, t->all_cores, t->n_threads, t->all_threads);
    for (int i = 0; i < t->n_numa_nodes && !status; i++) {
        status = nf_buf_printf(out, err, "node %-3d %.1f GiB, processors", t->nodes[i].os_node,
                               gib(t->nodes[i].memory_bytes));
        for (int k = 0; k < t->n_threads && !status; k++)
            if (t->cpus[k].node == i)
                status = nf_buf_printf(out, err, t->cpus[k].sibling ? "+%d" : " %d", t->cpus[k].cpu);
        if (!status) status = nf_buf_byte(out, '\n', err);
    }
    for (size_t i = 0; i < t->n_caches && !status; i++) {
        const nf_topology_cache *c = &t->caches[i];
        status = nf_buf_printf(out, err, "L%d       %d x %llu KiB, each for %d hardware threads\n", c->level,
                               c->count, (unsigned long long)(c->bytes >> 10), c->shared_by);
    }
    if (!status && t->quota_cpus > 0)
        status = nf_buf_printf(out, err, "quota    %.2f processors (control group)\n", t->quota_cpus);
    if (!status && t->memory_limit)
        status =
            nf_buf_printf(out, err, "memory   limited to %.1f GiB (control group)\n", gib(t->memory_limit));
    return status;
}
