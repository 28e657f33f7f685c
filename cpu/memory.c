/* Anonymous memory on huge pages and NUMA nodes; see memory.h. Knows the kernel's calls, nothing of models.
 */
#include "cpu/memory.h"

#include "base/buf.h"

#include <errno.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
/* A transparent huge page where small ones have 4 KiB. Alignment to it is all that is needed elsewhere. */
#define HUGE ((size_t)2 << 20)
#define MAX_NODES 1024
#define LONG_BITS (8 * sizeof(unsigned long))

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* A line of /proc/meminfo, "Hugepagesize:       2048 kB"; 0 when there is none. */
static uint64_t meminfo(const char *name) {
    char line[128];
    const size_t n = strlen(name);
    uint64_t value = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n)) value = strtoull(line + n, NULL, 10);
    if (f) fclose(f);
    return value;
}

uint64_t nf_memory_available(uint64_t limit) {
    const uint64_t available = meminfo("MemAvailable:") << 10;
    return limit && limit < available ? limit : available;
}

/* The pool's default page size; 0: no pool. */
static size_t pool_page_bytes(void) {
    return meminfo("HugePages_Total:") ? (size_t)meminfo("Hugepagesize:") << 10 : 0;
}

/* Takes the pages now: where the pool or a control group's limit on it cannot give them all, writing to them
 * later would kill the process. */
static bool map_pool(size_t n, nf_memory *out) {
    const size_t page = pool_page_bytes();
    if (!page) return false;
    const size_t bytes = round_up(n, page);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (p == MAP_FAILED) return false;
    if (madvise(p, bytes, MADV_POPULATE_WRITE)) {
        munmap(p, bytes);
        return false;
    }
    *out = (nf_memory){.bytes = p, .n = n, .pool = true, .placed = true, .map = p, .map_bytes = bytes};
    return true;
}

/* Inaccessible memory stays in front and behind, so that the kernel never joins this mapping with a neighbour
 * and smaps tells of it alone. */
static nf_status map_pages(size_t n, nf_pages pages, nf_memory *out, nf_error *err) {
    const size_t inner = round_up(n, HUGE), bytes = inner + 3 * HUGE;
    if (inner < n || bytes < inner)
        return nf_fail(err, NF_ERR_MEMORY, "cannot map %zu bytes of memory: too many", n);
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nf_fail_errno(err, errno, "cannot map %zu bytes of memory", n);
    uint8_t *at = (uint8_t *)p + HUGE;
    at += (HUGE - (uintptr_t)at % HUGE) % HUGE;
    if (mprotect(at, inner, PROT_READ | PROT_WRITE)) {
        nf_status status = nf_fail_errno(err, errno, "cannot get %zu bytes of memory", n);
        munmap(p, bytes);
        return status;
    }
    /* Refused where the kernel was built without transparent huge pages: nf_memory_inspect says so. */
    (void)madvise(at, inner, pages == NF_PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    *out = (nf_memory){.bytes = at, .n = n, .placed = true, .map = p, .map_bytes = bytes};
    return NF_OK;
}

/* Containers often forbid this call: the memory is then wherever it was first written. */
static void place(nf_memory *memory, const nf_memory_options *options) {
    unsigned long mask[MAX_NODES / LONG_BITS] = {0};
    for (size_t i = 0; i < options->n_nodes; i++)
        mask[(size_t)options->nodes[i] / LONG_BITS] |= 1ul << ((size_t)options->nodes[i] % LONG_BITS);
    memory->placed = !mbind(memory->bytes, round_up(memory->n, HUGE),
                            options->n_nodes == 1 ? MPOL_BIND : MPOL_INTERLEAVE, mask, MAX_NODES + 1, 0);
}

nf_status nf_memory_new(size_t n, const nf_memory_options *options, nf_memory *out, nf_error *err) {
    const nf_memory_options defaults = {.pages = NF_PAGES_HUGE};
    if (!options) options = &defaults;
    *out = (nf_memory){0};
    if (!n) return nf_fail(err, NF_ERR_ARGUMENT, "cannot map 0 bytes of memory");
    for (size_t i = 0; i < options->n_nodes; i++)
        if (options->nodes[i] < 0 || options->nodes[i] >= MAX_NODES)
            return nf_fail(err, NF_ERR_ARGUMENT, "there is no NUMA node %d", options->nodes[i]);
    /* The pool's pages are taken before a node can be asked for. */
    if (options->pages == NF_PAGES_HUGE && !options->n_nodes && map_pool(n, out)) return NF_OK;
    nf_status status = map_pages(n, options->pages, out, err);
    if (!status && options->n_nodes) place(out, options);
    return status;
}

void nf_memory_free(nf_memory *memory) {
    if (memory->map) munmap(memory->map, memory->map_bytes);
    *memory = (nf_memory){0};
}

/* ---- what was got ---- */

/* "Rss:   123 kB" -> bytes. */
static uint64_t kilobytes(const char *line, const char *name) {
    const size_t n = strlen(name);
    return strncmp(line, name, n) != 0 ? 0 : strtoull(line + n, NULL, 10) << 10;
}

nf_status nf_memory_inspect(const nf_memory *memory, nf_memory_report *out, nf_error *err) {
    *out = (nf_memory_report){0};
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f) return nf_fail_errno(err, errno, "/proc/self/smaps: cannot open");
    const uint64_t first = (uintptr_t)memory->bytes, end = first + memory->n;
    char *line = NULL;
    size_t cap = 0;
    bool ours = false;
    while (getline(&line, &cap, f) >= 0) {
        char *rest;
        const uint64_t from = strtoull(line, &rest, 16);
        if (*rest == '-' && rest != line) { /* the head of a mapping: "7f12-7f34 rw-p ..." */
            const uint64_t to = strtoull(rest + 1, NULL, 16);
            ours = from < end && to > first;
        } else if (ours) {
            const uint64_t pool = kilobytes(line, "Private_Hugetlb:") + kilobytes(line, "Shared_Hugetlb:");
            out->huge_bytes += kilobytes(line, "AnonHugePages:") + pool;
            out->resident_bytes += kilobytes(line, "Rss:") + pool; /* Rss leaves the pool's pages out */
        }
    }
    const bool failed = ferror(f);
    free(line);
    fclose(f);
    return failed ? nf_fail(err, NF_ERR_IO, "/proc/self/smaps: cannot read") : NF_OK;
}
