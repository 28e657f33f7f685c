/* The checkpoint's side: names, shapes, dtypes, block FP8, packed and single experts; and what nothing used.
 */
#include "converter/convert_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nf_source_name(const nf_conversion *c, const char *source, char *out, size_t n) {
    if (*source == '/')
        snprintf(out, n, "%s", source + 1);
    else
        snprintf(out, n, "%s%s", c->prefix, source);
}

static void mark(nf_conversion *c, const nf_st_tensor *t) {
    c->used[t - nf_safetensors_at(c->st, 0)] = true;
}

static void shape_text(const uint64_t *shape, uint32_t n, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (at < size) snprintf(out + at, size - at, "]");
}

static nf_status check_shape(const nf_st_tensor *t, const uint64_t *shape, uint32_t n_dims, nf_error *err) {
    bool same = t->n_dims == n_dims;
    for (uint32_t i = 0; same && i < n_dims; i++) same = t->shape[i] == shape[i];
    if (same) return NF_OK;
    char have[160], want[160];
    shape_text(t->shape, t->n_dims, have, sizeof have);
    shape_text(shape, n_dims, want, sizeof want);
    return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' has shape %s, the config asks for %s", t->file,
                   t->name, have, want);
}

static nf_status find_scale(nf_conversion *c, const nf_st_tensor *t, nf_source *out, nf_error *err) {
    char name[320];
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const nf_st_tensor *scale = nf_safetensors_find(c->st, name);
    if (!scale)
        return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' is FP8, but its scales '%s' are missing", t->file,
                       t->name, name);
    if (scale->dtype != NF_ST_F32 && scale->dtype != NF_ST_BF16)
        return nf_fail(err, NF_ERR_FORMAT, "%s: scales '%s' have dtype %s, expected F32 or BF16", scale->file,
                       name, nf_st_dtype_name(scale->dtype));
    if (t->n_dims != 2)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: FP8 tensor '%s' does not have two dimensions", t->file,
                       t->name);
    const uint64_t shape[2] = {(t->shape[0] + 127) / 128, (t->shape[1] + 127) / 128};
    nf_status status = check_shape(scale, shape, 2, err);
    if (status) return status;
    out->scale = scale;
    mark(c, scale);
    return NF_OK;
}

nf_status nf_source_find(nf_conversion *c, const char *name, const uint64_t *shape, uint32_t n_dims,
                         nf_source *out, nf_error *err) {
    const nf_st_tensor *t = nf_safetensors_find(c->st, name);
    if (!t) return nf_fail(err, NF_ERR_FORMAT, "%s: tensor '%s' is missing", c->source_dir, name);
    nf_status status = check_shape(t, shape, n_dims, err);
    if (status) return status;
    *out = (nf_source){
        .weight = t, .rows = n_dims > 1 ? shape[0] : 1, .cols = n_dims > 1 ? shape[n_dims - 1] : shape[0]};
    for (uint32_t i = 1; i + 1 < n_dims; i++) out->rows *= shape[i];
    switch (t->dtype) {
    case NF_ST_F32:
    case NF_ST_F16:
    case NF_ST_BF16:
    case NF_ST_F64:
        break;
    case NF_ST_F8_E4M3:
        if ((status = find_scale(c, t, out, err))) return status;
        break;
    default:
        return nf_fail(err, NF_ERR_UNSUPPORTED,
                       "%s: tensor '%s' has dtype %s, expected F32, F16, BF16, F64 or F8_E4M3", t->file, name,
                       nf_st_dtype_name(t->dtype));
    }
    mark(c, t);
    return NF_OK;
}

static nf_status find_packed(nf_conversion *c, const char *stem, const nf_tensor_spec *spec, uint64_t e,
                             nf_source out[3], nf_error *err) {
    const uint64_t E = spec->shape[0], I = spec->shape[1], d = spec->shape[2];
    const uint64_t both[3] = {E, 2 * I, d}, down[3] = {E, d, I};
    char name[320];
    snprintf(name, sizeof name, "%s.gate_up_proj", stem);
    nf_status status = nf_source_find(c, name, both, 3, &out[0], err);
    if (status) return status;
    out[0].rows = I;
    out[0].first = e * 2 * I * d;
    out[1] = out[0];
    out[1].first += I * d; /* gate rows first */
    snprintf(name, sizeof name, "%s.down_proj", stem);
    if ((status = nf_source_find(c, name, down, 3, &out[2], err))) return status;
    out[2].rows = d;
    out[2].first = e * d * I;
    return NF_OK;
}

nf_status nf_source_expert(nf_conversion *c, const nf_tensor_spec *spec, uint64_t e, nf_source out[3],
                           nf_error *err) {
    char stem[200], name[320];
    nf_source_name(c, spec->source, stem, sizeof stem);
    snprintf(name, sizeof name, "%s.gate_up_proj", stem);
    if (nf_safetensors_find(c->st, name)) return find_packed(c, stem, spec, e, out, err);
    static const char *const part[3] = {"gate_proj", "up_proj", "down_proj"};
    for (int p = 0; p < 3; p++) {
        const uint64_t shape[2] = {p == 2 ? spec->shape[2] : spec->shape[1],
                                   p == 2 ? spec->shape[1] : spec->shape[2]};
        snprintf(name, sizeof name, "%s.%llu.%s.weight", stem, (unsigned long long)e, part[p]);
        nf_status status = nf_source_find(c, name, shape, 2, &out[p], err);
        if (status) return status;
    }
    return NF_OK;
}

nf_status nf_source_rows(const nf_source *s, uint64_t first, uint64_t n, float *out, nf_error *err) {
    nf_status status = nf_st_to_f32(s->weight, s->first + first * s->cols, n * s->cols, out, err);
    if (status) return status;
    const uint64_t across = (s->cols + 127) / 128;
    for (uint64_t r = 0; s->scale && r < n; r++)
        for (uint64_t b = 0; b < across; b++) {
            float scale;
            if ((status = nf_st_to_f32(s->scale, (first + r) / 128 * across + b, 1, &scale, err)))
                return status;
            uint64_t end = (b + 1) * 128 < s->cols ? (b + 1) * 128 : s->cols;
            for (uint64_t i = b * 128; i < end; i++) out[r * s->cols + i] *= scale;
        }
    for (uint64_t i = 0; i < n * s->cols; i++)
        if (!isfinite(out[i]))
            return nf_fail(err, NF_ERR_NUMERIC,
                           "%s: tensor '%s' holds a NaN or infinity at row %llu, column %llu",
                           s->weight->file, s->weight->name, (unsigned long long)(first + i / s->cols),
                           (unsigned long long)(i % s->cols));
    return NF_OK;
}

uint64_t nf_source_bytes(const nf_source *s) {
    return s->rows * s->cols * nf_st_dtype_size(s->weight->dtype);
}

/* Parts of multimodal checkpoints that a text model does not use, and buffers that are computed. */
static bool known_unused(const char *name) {
    static const char *const prefixes[] = {"model.visual.", "visual.", "model.audio_tower.", "audio_tower.",
                                           "model.vision_tower."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
    size_t n = strlen(name);
    return n > 9 && !strcmp(name + n - 9, ".inv_freq");
}

nf_status nf_source_check_unused(nf_conversion *c, nf_error *err) {
    uint64_t left_out = 0, left_out_bytes = 0, unknown = 0;
    nf_buf list = {0};
    nf_status status = NF_OK;
    for (size_t i = 0; i < nf_safetensors_count(c->st) && !status; i++) {
        const nf_st_tensor *t = nf_safetensors_at(c->st, i);
        /* A checkpoint of a model with a tied embedding may store the head once more. */
        bool tied = c->desc.tied_embedding && !strcmp(t->name, "lm_head.weight");
        if (c->used[i]) continue;
        if (known_unused(t->name) || tied) {
            left_out++;
            left_out_bytes += t->bytes;
        } else if (unknown++ < 5) {
            status = nf_buf_printf(&list, err, "%s'%s' in %s", list.len ? ", " : "", t->name, t->file);
        }
    }
    if (!status && unknown)
        status = nf_fail(err, NF_ERR_UNSUPPORTED,
                         "%llu tensor%s of the checkpoint %s no place in a model of type %s: %s%s",
                         (unsigned long long)unknown, unknown > 1 ? "s" : "", unknown > 1 ? "have" : "has",
                         c->desc.architecture, list.data, unknown > 5 ? ", ..." : "");
    if (!status && left_out) {
        char line[200];
        snprintf(line, sizeof line,
                 "left out %llu tensors (%.1f MB) that the text model does not use (vision, audio, tied "
                 "head, buffers)",
                 (unsigned long long)left_out, (double)left_out_bytes / 1e6);
        nf_conversion_note(c, line);
    }
    nf_buf_free(&list);
    return status;
}
