/*
 * What the control groups of this process allow: processor time, processors and memory. Both hierarchies are
 * read, version 2 and version 1, at their usual places under /sys/fs/cgroup; every group from the process's
 * own up to the visible root counts, because a parent's limit binds too.
 */
#ifndef NF_CPU_CGROUP_H
#define NF_CPU_CGROUP_H

#include "base/status.h"

#include <hwloc.h>
#include <stdint.h>

typedef struct nf_cgroup_limits {
    double cpus; /* processors' worth of time (quota / period), the smallest of all groups; 0: no limit */
    uint64_t memory_bytes; /* the smallest limit; 0: no limit */
} nf_cgroup_limits;

/* Reads the limits of the groups that ROOT/proc/self/cgroup names, from ROOT/sys/fs/cgroup (`root` is "" but
 * in tests). Where `cpus` is not NULL, processors that a cpuset leaves out are removed from it. A system
 * without control groups has no limits. NF_ERR_FORMAT names the file that does not hold what the kernel
 * writes. */
nf_status nf_cgroup_read(const char *root, hwloc_bitmap_t cpus, nf_cgroup_limits *out, nf_error *err);

#endif
