/* Limits of control groups; see cgroup.h. Knows files of the kernel, nothing of threads. */
#include "cpu/cgroup.h"

#include "base/io.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT 65536
/* Version 1 writes "no limit" as the largest number of whole pages. */
#define NO_MEMORY_LIMIT (UINT64_C(1) << 62)

typedef struct reader {
    const char *root;
    hwloc_bitmap_t cpus; /* may be NULL */
    nf_cgroup_limits *out;
} reader;

/* Reads a small file without its last newline. A file that is not there, or that this process may not see, is
 * no limit: *found is false. */
static nf_status read_value(const char *folder, const char *name, nf_buf *out, bool *found, nf_error *err) {
    char path[PATH_MAX];
    out->len = 0;
    *found = false;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return nf_fail(err, NF_ERR_LIMIT, "%s/%s: the path is too long", folder, name);
    nf_error local = {0};
    nf_status status = nf_read_file(path, FILE_LIMIT, out, &local);
    if (status == NF_ERR_NOT_FOUND || status == NF_ERR_IO) return NF_OK;
    if (status) {
        if (err) *err = local;
        return status;
    }
    while (out->len && (out->data[out->len - 1] == '\n' || out->data[out->len - 1] == ' '))
        out->data[--out->len] = '\0';
    *found = out->len > 0;
    return NF_OK;
}

static nf_status not_understood(const char *folder, const char *name, const char *text, nf_error *err) {
    return nf_fail(err, NF_ERR_FORMAT, "%s/%s: '%.40s' is not understood", folder, name, text);
}

/* A decimal number that ends at `*end`. */
static bool parse_number(const char *text, uint64_t *out, const char **end) {
    char *stop;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &stop, 10);
    *end = stop;
    return !errno;
}

static void lower_cpus(reader *r, uint64_t quota, uint64_t period) {
    double cpus = (double)quota / (double)period;
    if (!r->out->cpus || cpus < r->out->cpus) r->out->cpus = cpus;
}

static nf_status read_memory(reader *r, const char *folder, const char *name, nf_error *err) {
    nf_buf text = {0};
    bool found;
    uint64_t bytes;
    const char *end;
    nf_status status = read_value(folder, name, &text, &found, err);
    if (!status && found && strcmp(text.data, "max") != 0) {
        if (!parse_number(text.data, &bytes, &end) || *end)
            status = not_understood(folder, name, text.data, err);
        else if (bytes < NO_MEMORY_LIMIT && (!r->out->memory_bytes || bytes < r->out->memory_bytes))
            r->out->memory_bytes = bytes;
    }
    nf_buf_free(&text);
    return status;
}

static nf_status read_cpuset(reader *r, const char *folder, const char *name, nf_error *err) {
    nf_buf text = {0};
    bool found;
    nf_status status = read_value(folder, name, &text, &found, err);
    if (!status && found && r->cpus) {
        hwloc_bitmap_t set = hwloc_bitmap_alloc();
        /* hwloc takes any text that begins with a digit; the kernel writes digits, commas and dashes. */
        if (!set)
            status = nf_fail(err, NF_ERR_MEMORY, "out of memory for a set of processors");
        else if (strspn(text.data, "0123456789,-") != text.len ||
                 hwloc_bitmap_list_sscanf(set, text.data) < 0 || hwloc_bitmap_weight(set) < 1)
            status = not_understood(folder, name, text.data, err);
        else
            hwloc_bitmap_and(r->cpus, r->cpus, set);
        hwloc_bitmap_free(set);
    }
    nf_buf_free(&text);
    return status;
}

/* Version 2: "max 100000" or "150000 100000". */
static nf_status read_cpu_max(reader *r, const char *folder, nf_error *err) {
    nf_buf text = {0};
    bool found;
    uint64_t quota, period;
    const char *end;
    nf_status status = read_value(folder, "cpu.max", &text, &found, err);
    if (!status && found && strncmp(text.data, "max", 3) != 0) {
        if (!parse_number(text.data, &quota, &end) || *end != ' ' || !parse_number(end + 1, &period, &end) ||
            *end || !quota || !period)
            status = not_understood(folder, "cpu.max", text.data, err);
        else
            lower_cpus(r, quota, period);
    }
    nf_buf_free(&text);
    return status;
}

/* Version 1: two files; a quota of -1 is no limit. */
static nf_status read_cfs(reader *r, const char *folder, nf_error *err) {
    nf_buf text = {0};
    bool found;
    uint64_t quota = 0, period;
    const char *end;
    nf_status status = read_value(folder, "cpu.cfs_quota_us", &text, &found, err);
    bool limited = !status && found && text.data[0] != '-';
    if (limited && (!parse_number(text.data, &quota, &end) || *end || !quota))
        status = not_understood(folder, "cpu.cfs_quota_us", text.data, err);
    if (!status && limited) status = read_value(folder, "cpu.cfs_period_us", &text, &found, err);
    if (!status && limited && found) {
        if (!parse_number(text.data, &period, &end) || *end || !period)
            status = not_understood(folder, "cpu.cfs_period_us", text.data, err);
        else
            lower_cpus(r, quota, period);
    }
    nf_buf_free(&text);
    return status;
}

static nf_status read_group_v2(reader *r, const char *folder, nf_error *err) {
    nf_status status = read_cpu_max(r, folder, err);
    if (!status) status = read_memory(r, folder, "memory.max", err);
    return status ? status : read_cpuset(r, folder, "cpuset.cpus.effective", err);
}

static nf_status read_group_cpu(reader *r, const char *folder, nf_error *err) {
    return read_cfs(r, folder, err);
}

static nf_status read_group_memory(reader *r, const char *folder, nf_error *err) {
    return read_memory(r, folder, "memory.limit_in_bytes", err);
}

static nf_status read_group_cpuset(reader *r, const char *folder, nf_error *err) {
    return read_cpuset(r, folder, "cpuset.effective_cpus", err);
}

/* Calls `read` for the group and each of its parents. In a container the path may name folders that only the
 * host sees, and the visible root is the container's own group: missing folders are passed over. */
static nf_status walk_up(reader *r, const char *mount, const char *group,
                         nf_status (*read)(reader *, const char *, nf_error *), nf_error *err) {
    char folder[PATH_MAX];
    int prefix = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", r->root, mount);
    if (prefix < 0 || (size_t)prefix >= sizeof folder)
        return nf_fail(err, NF_ERR_LIMIT, "%s: the path is too long", r->root);
    /* "/../.." names a group outside of this process's view. */
    if (!strstr(group, "..") && strcmp(group, "/") != 0 &&
        (size_t)snprintf(folder + prefix, sizeof folder - (size_t)prefix, "%s", group) >=
            sizeof folder - (size_t)prefix)
        return nf_fail(err, NF_ERR_LIMIT, "%s/proc/self/cgroup: the path of a group is too long", r->root);
    for (;;) {
        nf_status status = read(r, folder, err);
        if (status || strlen(folder) <= (size_t)prefix) return status;
        *strrchr(folder, '/') = '\0';
    }
}

static bool has_controller(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ',')) return true;
    return false;
}

/* One line: "0::/group" (version 2) or "4:cpu,cpuacct:/group". */
static nf_status read_line(reader *r, char *line, nf_error *err) {
    static const struct {
        const char *name;
        nf_status (*read)(reader *, const char *, nf_error *);
    } controllers[] = {{"cpu", read_group_cpu}, {"memory", read_group_memory}, {"cpuset", read_group_cpuset}};
    char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
    if (!group || group[1] != '/')
        return nf_fail(err, NF_ERR_FORMAT, "%s/proc/self/cgroup: '%.40s' is not understood", r->root, line);
    list++;
    *group++ = '\0';
    nf_status status = NF_OK;
    if (!*list) {
        status = walk_up(r, "", group, read_group_v2, err);
        return status ? status : walk_up(r, "/unified", group, read_group_v2, err);
    }
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers && !status; i++) {
        char mount[64];
        if (!has_controller(list, controllers[i].name)) continue;
        snprintf(mount, sizeof mount, "/%s", controllers[i].name);
        status = walk_up(r, mount, group, controllers[i].read, err);
        if (status || !strchr(list, ',')) continue; /* mounted together: "cpu,cpuacct" */
        if ((size_t)snprintf(mount, sizeof mount, "/%s", list) < sizeof mount)
            status = walk_up(r, mount, group, controllers[i].read, err);
    }
    return status;
}

nf_status nf_cgroup_read(const char *root, hwloc_bitmap_t cpus, nf_cgroup_limits *out, nf_error *err) {
    *out = (nf_cgroup_limits){0};
    reader r = {.root = root, .cpus = cpus, .out = out};
    nf_buf text = {0};
    bool found;
    nf_status status = read_value(root, "proc/self/cgroup", &text, &found, err);
    char *rest = NULL;
    if (!status && found)
        for (char *line = strtok_r(text.data, "\n", &rest); line && !status;
             line = strtok_r(NULL, "\n", &rest))
            status = read_line(&r, line, err);
    nf_buf_free(&text);
    return status;
}
