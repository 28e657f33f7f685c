/* Description of a container for people and for programs. */
#include "converter/convert.h"

#include "format/container.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(nf_object_kind kind) {
    static const char *const names[] = {"tensor", "bank", "rows", "blob"};
    return names[kind];
}

static json_t *object_json(const nf_object *o) {
    const char *type = nf_format_name(o->format);
    json_t *shape = json_array(), *segments = json_array();
    for (uint32_t i = 0; i < o->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)o->shape[i]));
    for (size_t i = 0; i < o->n_segments; i++)
        json_array_append_new(segments, json_pack("{s:i, s:I, s:I}", "part", (int)o->segments[i].part,
                                                  "offset", (json_int_t)o->segments[i].offset, "length",
                                                  (json_int_t)o->segments[i].length));
    json_t *out =
        json_pack("{s:s, s:s, s:s, s:s, s:b, s:o, s:I, s:I, s:o}", "name", o->name, "component", o->component,
                  "kind", kind_name(o->kind), "type", type, "tiled", o->tiled, "shape", shape, "bytes",
                  (json_int_t)o->bytes, "raw_bytes", (json_int_t)o->raw_bytes, "segments", segments);
    if (out && o->kind == NF_OBJECT_BANK) {
        json_object_set_new(out, "experts", json_integer((json_int_t)o->n_experts));
        json_object_set_new(out, "expert_stride", json_integer((json_int_t)o->expert_stride));
    }
    return out;
}

static nf_status inspect_json(const nf_container *c, nf_buf *out, nf_error *err) {
    json_t *parts = json_array(), *objects = json_array(), *meta = json_object();
    for (size_t i = 0; i < nf_container_part_count(c); i++) {
        const char *path, *id;
        uint64_t length;
        nf_container_part(c, i, &path, &length, &id);
        json_array_append_new(
            parts, json_pack("{s:s, s:I, s:s}", "path", path, "length", (json_int_t)length, "id", id));
    }
    for (size_t i = 0; i < nf_container_object_count(c); i++)
        json_array_append_new(objects, object_json(nf_container_object(c, i)));
    for (size_t i = 0; i < nf_container_meta_count(c); i++) {
        const char *key, *value;
        nf_container_meta_at(c, i, &key, &value);
        json_object_set_new(meta, key, json_string(value));
    }
    json_t *root = json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "path", nf_container_path(c), "uuid",
                             nf_container_uuid(c), "generation", (json_int_t)nf_container_generation(c),
                             "parts", parts, "metadata", meta, "objects", objects);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    nf_status status =
        text ? nf_buf_printf(out, err, "%s\n", text) : nf_fail(err, NF_ERR_MEMORY, "out of memory");
    free(text);
    return status;
}

/* Bytes of the objects of each component, in order of appearance. */
static nf_status component_lines(const nf_container *c, nf_buf *out, nf_error *err) {
    size_t n = nf_container_object_count(c);
    nf_status status = NF_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const char *name = nf_container_object(c, i)->component;
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++) seen = !strcmp(nf_container_object(c, k)->component, name);
        if (seen) continue;
        uint64_t bytes = 0;
        size_t count = 0;
        for (size_t k = i; k < n; k++)
            if (!strcmp(nf_container_object(c, k)->component, name))
                bytes += nf_container_object(c, k)->bytes, count++;
        status = nf_buf_printf(out, err, "component %-10s %6zu objects %14llu bytes\n", name, count,
                               (unsigned long long)bytes);
    }
    return status;
}

static nf_status inspect_text(const nf_container *c, nf_buf *out, nf_error *err) {
    const char *name = nf_container_meta(c, "model.name"), *type = nf_container_meta(c, "model.type");
    nf_status status = nf_buf_printf(out, err, "model      %s, type %s\nset id     %s, generation %llu\n",
                                     name ? name : "?", type ? type : "?", nf_container_uuid(c),
                                     (unsigned long long)nf_container_generation(c));
    uint64_t total = 0;
    for (size_t i = 0; i < nf_container_part_count(c) && !status; i++) {
        const char *path, *id;
        uint64_t length;
        nf_container_part(c, i, &path, &length, &id);
        total += length;
        status = nf_buf_printf(out, err, "part %-5zu %s  %llu bytes\n", i, path, (unsigned long long)length);
    }
    if (!status) status = component_lines(c, out, err);
    for (size_t i = 0; i < nf_container_object_count(c) && !status; i++) {
        const nf_object *o = nf_container_object(c, i);
        char shape[160] = "";
        const char *type_name = nf_format_name(o->format);
        for (uint32_t k = 0; k < o->n_dims; k++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%llu", k ? " x " : "",
                     (unsigned long long)o->shape[k]);
        status = nf_buf_printf(out, err, "%-7s %-52s %-10s %-22s %12llu bytes\n", kind_name(o->kind), o->name,
                               type_name, shape, (unsigned long long)o->bytes);
    }
    if (!status)
        status = nf_buf_printf(out, err, "total      %llu bytes in %zu part%s\n", (unsigned long long)total,
                               nf_container_part_count(c), nf_container_part_count(c) > 1 ? "s" : "");
    return status;
}

nf_status nf_inspect(const char *path, bool json, nf_buf *out, nf_error *err) {
    nf_container *c;
    nf_status status = nf_container_open(path, &c, err);
    if (status) return status;
    status = json ? inspect_json(c, out, err) : inspect_text(c, out, err);
    nf_container_close(c);
    return status;
}
