/* The calibration file; see calibration.h. Figures that come from the file are hostile until checked. */
#include "cpu/calibration.h"

#include "base/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define FORMAT "ninfer-calibration"
#define VERSION 1
#define FILE_LIMIT ((size_t)1 << 20)
#define MOST_RATES 4096
#define MOST 1e9 /* no rate or latency in our units comes near */

void nf_machine_of(const nf_topology *topology, nf_machine *out) {
    struct utsname system;
    *out = (nf_machine){.cores = topology->all_cores,
                        .threads = topology->all_threads,
                        .nodes = topology->n_numa_nodes,
                        .memory_bytes = topology->memory_bytes};
    nf_processor_name(out->processor, sizeof out->processor);
    snprintf(out->kernel, sizeof out->kernel, "%.127s", uname(&system) ? "unknown" : system.release);
}

nf_status nf_rates_add(nf_rates *rates, nf_thread_rate rate, nf_error *err) {
    nf_status status = NF_OK;
    if (rates->n == rates->cap)
        status = nf_grow((void **)&rates->items, &rates->cap, rates->n + 1, sizeof *rates->items, err);
    if (!status) rates->items[rates->n++] = rate;
    return status;
}

void nf_calibration_free(nf_calibration *c) {
    free(c->read.items);
    free(c->node_read.items);
    free(c->f32_dot.items);
    free(c->i8_dot.items);
    free(c->disk_path);
    *c = (nf_calibration){0};
}

nf_status nf_calibration_path(nf_buf *out, nf_error *err) {
    nf_status status = nf_cache_folder(out, err);
    return status ? status : nf_buf_text(out, "/calibration.json", err);
}

/* ---- writing ---- */

static json_t *spread_json(nf_spread s) {
    return json_pack("{s:f, s:f, s:f}", "min", s.min, "median", s.median, "max", s.max);
}

static json_t *rates_json(const nf_rates *rates) {
    json_t *list = json_array();
    for (size_t i = 0; i < rates->n && list; i++) {
        const nf_thread_rate *r = &rates->items[i];
        json_t *item = spread_json(r->rate);
        if (!item || json_object_set_new(item, "threads", json_integer(r->threads)) ||
            (r->node >= 0 && json_object_set_new(item, "node", json_integer(r->node)))) {
            json_decref(item);
            json_decref(list);
            return NULL;
        }
        if (json_array_append_new(list, item)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *nf_calibration_json(const nf_calibration *c) {
    const nf_machine *m = &c->machine;
    json_t *root = json_pack(
        "{s:s, s:i, s:I, s:{s:s, s:s, s:i, s:i, s:i, s:I}, s:{s:o, s:o, s:o, s:o, s:{s:I, s:o, s:o, s:f}},"
        " s:{s:s, s:o, s:o}}",
        "format", FORMAT, "version", VERSION, "created", (json_int_t)c->created, "machine", "processor",
        m->processor, "kernel", m->kernel, "cores", m->cores, "threads", m->threads, "nodes", m->nodes,
        "memory_bytes", (json_int_t)m->memory_bytes, "memory", "read_gb_s", rates_json(&c->read),
        "node_read_gb_s", rates_json(&c->node_read), "read_small_pages_gb_s",
        spread_json(c->read_small_pages), "copy_gb_s", spread_json(c->copy), "latency", "bytes",
        (json_int_t)c->latency_bytes, "small_pages_ns", spread_json(c->latency_small_ns), "huge_pages_ns",
        spread_json(c->latency_huge_ns), "huge_fraction", c->huge_fraction, "compute", "isa", c->isa,
        "f32_gmac_s", rates_json(&c->f32_dot), "i8_gmac_s", rates_json(&c->i8_dot));
    if (!root || !c->has_disk) return root;
    json_t *disk = json_pack("{s:s, s:o}", "path", c->disk_path, "read_gb_s", spread_json(c->disk));
    if (!disk || json_object_set_new(root, "disk", disk)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static nf_status make_folder_of(const char *path, nf_error *err) {
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NF_OK;
    char *folder = nf_strndup(path, (size_t)(slash - path), err);
    if (!folder) return NF_ERR_MEMORY;
    nf_status status = nf_make_dirs(folder, err);
    free(folder);
    return status;
}

nf_status nf_calibration_save(const nf_calibration *c, const char *path, nf_error *err) {
    json_t *root = nf_calibration_json(c);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(root);
    if (!text)
        return nf_fail(err, NF_ERR_MEMORY, "%s: out of memory, or a name in it is not valid UTF-8", path);
    nf_status status = make_folder_of(path, err);
    if (!status) status = nf_write_file_atomic(path, text, strlen(text), err);
    free(text);
    return status;
}

/* ---- reading ---- */

/* A walk through the file: the first thing that is wrong ends it. `status` and `err` belong to the reader, so
 * that the lists below stay readable. */
typedef struct reader {
    const char *path;
    nf_status status;
    nf_error *err;
} reader;

__attribute__((format(printf, 2, 3))) static void wrong(reader *r, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!r->status)
        r->status = nf_fail(r->err, NF_ERR_FORMAT, "%s: %s; measure again with 'ninfer-bench machine'",
                            r->path, what);
}

static json_t *member(reader *r, json_t *object, const char *name, json_type type) {
    json_t *v = json_object_get(object, name);
    if (v && json_typeof(v) == type) return v;
    wrong(r, "'%s' is missing or of the wrong type", name);
    return NULL;
}

static int64_t whole(reader *r, json_t *object, const char *name, int64_t least, int64_t most) {
    json_t *v = member(r, object, name, JSON_INTEGER);
    const int64_t x = v ? json_integer_value(v) : least;
    if (v && (x < least || x > most)) wrong(r, "'%s' is out of range", name);
    return x;
}

static double number(reader *r, json_t *object, const char *name, double most) {
    json_t *v = json_object_get(object, name);
    if (!json_is_number(v)) {
        wrong(r, "'%s' is missing or not a number", name);
        return 0;
    }
    const double x = json_number_value(v);
    if (!(x >= 0 && x <= most)) wrong(r, "'%s' is out of range", name);
    return x;
}

static void text(reader *r, json_t *object, const char *name, char *out, size_t n) {
    json_t *v = member(r, object, name, JSON_STRING);
    if (!v) return;
    if (json_string_length(v) >= n || strlen(json_string_value(v)) != json_string_length(v))
        wrong(r, "'%s' is too long", name);
    else
        memcpy(out, json_string_value(v), json_string_length(v) + 1);
}

/* `name` is for messages; object may be NULL when something was wrong before. */
static nf_spread spread(reader *r, json_t *object, const char *name) {
    if (!json_is_object(object)) {
        wrong(r, "'%s' is missing or of the wrong type", name);
        return (nf_spread){0};
    }
    nf_spread s = {number(r, object, "min", MOST), number(r, object, "median", MOST),
                   number(r, object, "max", MOST)};
    if (!(s.median > 0 && s.min <= s.median && s.median <= s.max))
        wrong(r, "'%s' is not a minimum, median and maximum above zero", name);
    return s;
}

static nf_spread spread_member(reader *r, json_t *object, const char *name) {
    return spread(r, json_object_get(object, name), name);
}

static void rates(reader *r, json_t *object, const char *name, nf_rates *out) {
    json_t *list = member(r, object, name, JSON_ARRAY);
    if (json_array_size(list) > MOST_RATES) wrong(r, "'%s' is too long", name);
    for (size_t i = 0; i < json_array_size(list) && !r->status; i++) {
        json_t *item = json_array_get(list, i);
        nf_thread_rate rate = {.node = -1, .rate = spread(r, item, name)};
        rate.threads = (int)whole(r, item, "threads", 1, 1 << 20);
        if (json_object_get(item, "node")) rate.node = (int)whole(r, item, "node", 0, 1 << 20);
        if (!r->status) r->status = nf_rates_add(out, rate, r->err);
    }
}

/* Rates of a rising number of threads, which a planner interpolates. */
static void rising_rates(reader *r, json_t *object, const char *name, nf_rates *out) {
    rates(r, object, name, out);
    if (!r->status && !out->n) wrong(r, "'%s' is empty", name);
    for (size_t i = 1; i < out->n; i++)
        if (out->items[i].threads <= out->items[i - 1].threads)
            wrong(r, "'%s' is not in order of the number of threads", name);
}

static void read_machine(reader *r, json_t *root, nf_machine *out) {
    json_t *m = member(r, root, "machine", JSON_OBJECT);
    text(r, m, "processor", out->processor, sizeof out->processor);
    text(r, m, "kernel", out->kernel, sizeof out->kernel);
    out->cores = (int)whole(r, m, "cores", 1, 1 << 20);
    out->threads = (int)whole(r, m, "threads", 1, 1 << 20);
    out->nodes = (int)whole(r, m, "nodes", 1, 1 << 20);
    out->memory_bytes = (uint64_t)whole(r, m, "memory_bytes", 0, INT64_MAX);
}

static void read_disk(reader *r, json_t *root, nf_calibration *out) {
    if (!json_object_get(root, "disk")) return;
    json_t *disk = member(r, root, "disk", JSON_OBJECT), *path = member(r, disk, "path", JSON_STRING);
    out->disk = spread_member(r, disk, "read_gb_s");
    if (r->status) return;
    out->disk_path = nf_strdup(json_string_value(path), r->err);
    if (!out->disk_path) r->status = NF_ERR_MEMORY;
    out->has_disk = true;
}

static void read_figures(reader *r, json_t *root, nf_calibration *out) {
    out->created = whole(r, root, "created", 0, INT64_MAX);
    read_machine(r, root, &out->machine);
    json_t *memory = member(r, root, "memory", JSON_OBJECT);
    rising_rates(r, memory, "read_gb_s", &out->read);
    rates(r, memory, "node_read_gb_s", &out->node_read);
    out->read_small_pages = spread_member(r, memory, "read_small_pages_gb_s");
    out->copy = spread_member(r, memory, "copy_gb_s");
    json_t *latency = member(r, memory, "latency", JSON_OBJECT);
    out->latency_bytes = (uint64_t)whole(r, latency, "bytes", 1, INT64_MAX);
    out->latency_small_ns = spread_member(r, latency, "small_pages_ns");
    out->latency_huge_ns = spread_member(r, latency, "huge_pages_ns");
    out->huge_fraction = number(r, latency, "huge_fraction", 1);
    json_t *compute = member(r, root, "compute", JSON_OBJECT);
    text(r, compute, "isa", out->isa, sizeof out->isa);
    rising_rates(r, compute, "f32_gmac_s", &out->f32_dot);
    rising_rates(r, compute, "i8_gmac_s", &out->i8_dot);
    read_disk(r, root, out);
}

static void read_root(reader *r, json_t *root, nf_calibration *out) {
    json_t *format = json_object_get(root, "format");
    if (!json_is_string(format) || strcmp(json_string_value(format), FORMAT) != 0) {
        wrong(r, "is not a calibration");
        return;
    }
    const int64_t version = whole(r, root, "version", 1, INT64_MAX);
    if (!r->status && version > VERSION)
        r->status = nf_fail(r->err, NF_ERR_UNSUPPORTED,
                            "%s: is of version %lld, this program knows %d; measure again with "
                            "'ninfer-bench machine'",
                            r->path, (long long)version, VERSION);
    if (!r->status) read_figures(r, root, out);
}

nf_status nf_calibration_load(const char *path, nf_calibration *out, nf_error *err) {
    nf_buf bytes = {0};
    json_error_t where;
    reader r = {.path = path, .err = err};
    *out = (nf_calibration){0};
    r.status = nf_read_file(path, FILE_LIMIT, &bytes, err);
    json_t *root = r.status ? NULL : json_loadb(bytes.data, bytes.len, JSON_REJECT_DUPLICATES, &where);
    nf_buf_free(&bytes);
    if (!r.status && !json_is_object(root))
        wrong(&r, "is not a JSON object: line %d: %s", root ? 1 : where.line,
              root ? "another type" : where.text);
    if (!r.status) read_root(&r, root, out);
    json_decref(root);
    if (r.status) nf_calibration_free(out);
    return r.status;
}

/* ---- stale ---- */

bool nf_calibration_stale(const nf_calibration *c, const nf_machine *m, int64_t now, char *why,
                          size_t why_bytes) {
    const nf_machine *was = &c->machine;
    const double memory = (double)m->memory_bytes, before = (double)was->memory_bytes;
    if (strcmp(was->processor, m->processor) != 0)
        snprintf(why, why_bytes, "measured on another processor, %s", was->processor);
    else if (was->cores != m->cores || was->threads != m->threads || was->nodes != m->nodes)
        snprintf(why, why_bytes, "measured with %d cores, %d hardware threads and %d NUMA nodes", was->cores,
                 was->threads, was->nodes);
    else if (fabs(memory - before) > before / 16)
        snprintf(why, why_bytes, "measured with %.1f GB of memory", before / 1e9);
    else if (strcmp(was->kernel, m->kernel) != 0)
        snprintf(why, why_bytes, "measured under another kernel, %s", was->kernel);
    else if (c->created > now + 86400) /* a day: time zones and clocks that run ahead */
        snprintf(why, why_bytes, "measured in the future: the clock is wrong, or was");
    else if (now - c->created > (int64_t)NF_CALIBRATION_DAYS * 86400)
        snprintf(why, why_bytes, "measured %lld days ago", (long long)((now - c->created) / 86400));
    else
        return false;
    return true;
}
