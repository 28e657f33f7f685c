/* Processor topology through hwloc. */
#include "cpu/topology.h"

#include <hwloc.h>

nf_status nf_topology_get(nf_topology *out, nf_error *err) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return nf_fail(err, NF_ERR_MEMORY, "hwloc: cannot initialise");
    nf_status status = NF_OK;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (!allowed || hwloc_topology_load(topology)) {
        status = nf_fail(err, NF_ERR_IO, "hwloc: cannot read the processor topology");
        goto done;
    }
    if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) < 0)
        hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
    out->n_packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
    out->n_numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    out->n_threads = hwloc_get_nbobjs_inside_cpuset_by_type(topology, allowed, HWLOC_OBJ_PU);
    out->n_cores = 0;
    int n = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i);
        if (core && hwloc_bitmap_intersects(core->cpuset, allowed)) out->n_cores++;
    }
    if (out->n_threads < 1) out->n_threads = 1;
    /* Some virtual machines and containers report no cores. */
    if (out->n_cores < 1) out->n_cores = out->n_threads;
done:
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return status;
}
