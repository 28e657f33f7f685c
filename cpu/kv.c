/* Layout and quantisation of the KV cache; see kv.h. */
#include "cpu/kv.h"

#include "format/numeric.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

static const struct {
    const char *name;
    size_t element; /* bytes */
    size_t group;   /* columns of a scale; 0: all of a position */
    bool scaled;
    float top;      /* what the largest magnitude of a group becomes when it is rounded */
    float read_top; /* and what cpu/kv_load.h reads then */
} traits[NF_KV_N_TYPES] = {
    [NF_KV_F32] = {.name = "f32", .element = 4},
    [NF_KV_BF16] = {.name = "bf16", .element = 2},
    /* A code is read as e4m3 / 256. */
    [NF_KV_FP8] = {.name = "fp8", .element = 1, .scaled = true, .top = 448.0f, .read_top = 1.75f},
    [NF_KV_Q8] = {.name = "q8", .element = 1, .scaled = true, .group = 32, .top = 127.0f, .read_top = 127.0f},
};

nf_kv_layout nf_kv_layout_get(nf_kv_type type, size_t dim) {
    nf_kv_layout l = {.type = type, .dim = dim, .group = traits[type].group ? traits[type].group : dim};
    if (traits[type].scaled) l.n_scales = (dim + l.group - 1) / l.group;
    l.v = NF_ATTENTION_BLOCK * dim * traits[type].element;
    l.k_scales = l.v + NF_ATTENTION_BLOCK * ((dim + 15) / 16 * 16) * traits[type].element;
    l.v_scales = l.k_scales + NF_ATTENTION_BLOCK * l.n_scales * sizeof(float);
    l.bytes = l.v_scales + NF_ATTENTION_BLOCK * l.n_scales * sizeof(float);
    return l;
}

bool nf_kv_type_by_name(const char *name, nf_kv_type *out) {
    for (int t = 0; t < NF_KV_N_TYPES; t++)
        if (!strcmp(name, traits[t].name)) {
            *out = (nf_kv_type)t;
            return true;
        }
    return false;
}

const char *nf_kv_type_name(nf_kv_type type) {
    return traits[type].name;
}

/* ---- storing a position ---- */

/* Element i of the elements at `at` becomes x; false when what is stored is not finite. */
static ALWAYS_INLINE bool put(nf_kv_type type, uint8_t *at, size_t i, float x) {
    if (type == NF_KV_F32) {
        memcpy(at + 4 * i, &x, sizeof x);
        return isfinite(x);
    }
    if (type == NF_KV_BF16) {
        const uint16_t h = nf_f32_to_bf16(x);
        memcpy(at + 2 * i, &h, sizeof h);
        return isfinite(nf_bf16_to_f32(h));
    }
    at[i] = type == NF_KV_FP8 ? nf_f32_to_e4m3(x) : (uint8_t)(int8_t)rintf(x);
    return true;
}

/* What the values are multiplied with before they are rounded; *scale undoes it. False for NaN and infinity.
 * As in contract A, groups below 2^-100 are zeros. */
static bool choose_scale(nf_kv_type type, const float *x, size_t n, float *inverse, float *scale) {
    float absmax = 0.0f, zero = 0.0f;
    for (size_t i = 0; i < n; i++) {
        absmax = fabsf(x[i]) > absmax ? fabsf(x[i]) : absmax;
        zero += x[i] - x[i]; /* NaN for NaN and infinity */
    }
    const bool some = absmax >= 0x1p-100f && zero == 0.0f;
    *inverse = some ? traits[type].top / absmax : 0.0f;
    *scale = some ? absmax / traits[type].read_top : 0.0f;
    return zero == 0.0f;
}

static ALWAYS_INLINE bool store(nf_kv_type type, const nf_kv_layout *l, uint8_t *block, size_t slot,
                                const float *k, const float *v) {
    const size_t k_at = slot / 16 * 16 * l->dim + slot % 16;
    float *k_scales = (float *)(void *)(block + l->k_scales) + slot / 16 * 16 * l->n_scales + slot % 16,
          *v_scales = (float *)(void *)(block + l->v_scales) + slot;
    uint8_t *values = block + l->v;
    bool finite = true;
    for (size_t g = 0, c = 0; c < l->dim; g++, c += l->group) {
        const size_t n = l->dim - c < l->group ? l->dim - c : l->group;
        float k_inverse = 1.0f, v_inverse = 1.0f;
        if (l->n_scales && !(choose_scale(type, k + c, n, &k_inverse, k_scales + 16 * g) &
                             choose_scale(type, v + c, n, &v_inverse, v_scales + NF_ATTENTION_BLOCK * g)))
            return false;
        for (size_t i = c; i < c + n; i++) {
            finite &= put(type, block, k_at + 16 * i, k[i] * k_inverse);
            finite &= put(type, values, 16 * (i / 16 * NF_ATTENTION_BLOCK + slot) + i % 16, v[i] * v_inverse);
        }
    }
    return finite;
}

bool nf_kv_store(const nf_kv_layout *l, void *block, size_t slot, const float *k, const float *v) {
    switch (l->type) {
    case NF_KV_F32:
        return store(NF_KV_F32, l, block, slot, k, v);
    case NF_KV_BF16:
        return store(NF_KV_BF16, l, block, slot, k, v);
    case NF_KV_FP8:
        return store(NF_KV_FP8, l, block, slot, k, v);
    default:
        return store(NF_KV_Q8, l, block, slot, k, v);
    }
}
