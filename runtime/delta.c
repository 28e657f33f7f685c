/*
 * Gated DeltaNet (docs/models.md; Yang et al., "Gated Delta Networks", 2024): causal convolution, normalised
 * q and k, the delta rule on a state matrix per value head evaluated token by token, gated norm, out_proj.
 */
#include "runtime/session_internal.h"

#include <math.h>
#include <string.h>

typedef struct delta_step {
    nf_session *s;
    uint32_t layer;
    size_t channels; /* C = 2 * key heads * dk + value heads * dv */
} delta_step;

/* Row r of the convolution's input: the taps - 1 rows before the chunk (kept in the state), then the chunk's.
 */
static float *conv_row(const delta_step *step, size_t r) {
    nf_session *s = step->s;
    const size_t past = s->model->desc.conv_width - 1;
    return r < past ? s->state + s->conv_at[step->layer] + r * step->channels
                    : s->conv_in + (r - past) * step->channels;
}

static double softplus(double x) {
    return x > 30 ? x : log1p(exp(x));
}

/* x / sqrt(sum x^2 + 1e-6) * scale, in place. */
static void l2_normalise(const nf_kernels *kernels, float *x, size_t n, float scale) {
    float inverse = 1.0f / sqrtf(kernels->sum_squares(x, n) + 1e-6f);
    kernels->scale_rows(x, inverse * scale, NULL, x, n);
}

/* Items: (token, slot): key heads of q, key heads of k, value heads. Convolution and SiLU of the slot's
 * channels; q and k are normalised; a value slot also turns b and a into beta and decay. */
static void conv_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const delta_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const nf_kernels *kernels = s->model->kernels;
    const nf_delta_weights *w = &s->model->layers[step->layer].delta;
    const size_t K = d->lin_k_heads, V = d->lin_v_heads, dk = d->lin_k_dim, dv = d->lin_v_dim,
                 C = step->channels;
    for (size_t i = begin; i < end; i++) {
        size_t t = i / (2 * K + V), slot = i % (2 * K + V);
        size_t channel = slot < 2 * K ? slot * dk : 2 * K * dk + (slot - 2 * K) * dv,
               n = slot < 2 * K ? dk : dv;
        const float *rows[NF_MAX_CONV_TAPS];
        for (size_t tap = 0; tap < d->conv_width; tap++) rows[tap] = conv_row(step, t + tap) + channel;
        float *y = s->conv_out + t * C + channel;
        kernels->conv_silu(rows, w->conv + channel, C, d->conv_width, y, n);
        if (slot < K)
            l2_normalise(kernels, y, n, 1.0f / sqrtf((float)dk));
        else if (slot < 2 * K)
            l2_normalise(kernels, y, n, 1.0f);
        else {
            size_t head = slot - 2 * K;
            float *b = s->ba + t * 2 * V + head, *a = b + V;
            *b = 1.0f / (1.0f + kernels->exp(-*b));
            /* In double: the decay enters a product over the whole text. */
            *a = (float)exp(-(double)w->decay_rate[head] * softplus((double)*a + (double)w->dt_bias[head]));
        }
    }
}

/* The last rows of the chunk become the past of the next one. In increasing order, since a short chunk leaves
 * some of the old ones. */
static void save_past(const delta_step *step) {
    for (size_t r = 0; r + 1 < step->s->model->desc.conv_width; r++)
        memmove(conv_row(step, r), conv_row(step, step->s->n + r), step->channels * sizeof(float));
}

/* Items: (value head, block of columns of its state), and one more that keeps the convolution's past. */
static void rule_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const delta_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const size_t K = d->lin_k_heads, V = d->lin_v_heads, dk = d->lin_k_dim, dv = d->lin_v_dim,
                 C = step->channels;
    const size_t blocks = (dv + NF_DELTA_COLUMNS - 1) / NF_DELTA_COLUMNS;
    for (size_t i = begin; i < end; i++) {
        if (i == V * blocks) {
            save_past(step);
            continue;
        }
        const size_t head = i / blocks, column = i % blocks * NF_DELTA_COLUMNS, key_head = head / (V / K);
        const nf_delta_block block = {
            .s = s->state + s->state_at[step->layer] + i * dk * NF_DELTA_COLUMNS,
            .dk = dk,
            .n_cols = dv - column < NF_DELTA_COLUMNS ? dv - column : NF_DELTA_COLUMNS,
            .n_tokens = s->n,
            .q = s->conv_out + key_head * dk,
            .k = s->conv_out + (K + key_head) * dk,
            .qk_stride = C,
            .v = s->conv_out + 2 * K * dk + head * dv + column,
            .v_stride = C,
            .decay = s->ba + V + head,
            .beta = s->ba + head,
            .gate_stride = 2 * V,
            .o = s->mixed.x + head * dv + column,
            .o_stride = s->mixed.kp,
        };
        s->model->kernels->delta_rule(&block);
    }
}

/* Items: tokens. o = norm(o; w) * silu(z) per head, then the row is ready for out_proj. */
static void gate_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const delta_step *step = user;
    nf_session *s = step->s;
    const nf_model_desc *d = &s->model->desc;
    const nf_delta_weights *w = &s->model->layers[step->layer].delta;
    const size_t V = d->lin_v_heads, dv = d->lin_v_dim;
    for (size_t t = begin; t < end; t++) {
        for (size_t head = 0; head < V; head++) {
            float *o = s->mixed.x + t * s->mixed.kp + head * dv;
            nf_norm_row(s, o, w->norm, dv, o);
            s->model->kernels->silu_mul(s->z + (t * V + head) * dv, o, o, dv);
        }
        nf_prepare_row(s, &w->out, &s->mixed, t);
    }
}

void nf_delta_layer(nf_worker *worker, nf_session *s, uint32_t layer) {
    const nf_model_desc *d = &s->model->desc;
    const nf_delta_weights *w = &s->model->layers[layer].delta;
    const size_t K = d->lin_k_heads, V = d->lin_v_heads, dv = d->lin_v_dim;
    delta_step step = {s, layer, 2 * K * d->lin_k_dim + V * dv};
    const size_t C = step.channels;
    nf_product inputs[4] = {
        {.w = w->qkv, .in = &s->h, .n = s->n, .out = s->conv_in, .out_stride = C},
        {.w = w->z, .in = &s->h, .n = s->n, .out = s->z, .out_stride = V * dv},
        {.w = w->b, .in = &s->h, .n = s->n, .out = s->ba, .out_stride = 2 * V},
        {.w = w->a, .in = &s->h, .n = s->n, .out = s->ba + V, .out_stride = 2 * V},
    };
    nf_run_products(worker, inputs, 4);
    const size_t convs = s->n * (2 * K + V),
                 blocks = V * ((dv + NF_DELTA_COLUMNS - 1) / NF_DELTA_COLUMNS) + 1,
                 work = 4 * s->n * d->lin_k_dim * NF_DELTA_COLUMNS;
    nf_team_loop(worker, convs, nf_team_grain(worker, convs, 64 * dv), conv_body, &step);
    nf_team_loop(worker, blocks, nf_team_grain(worker, blocks, work), rule_body, &step);
    nf_team_loop(worker, s->n, nf_team_grain(worker, s->n, 64 * V * dv), gate_body, &step);
    nf_product output = {
        .w = w->out, .in = &s->mixed, .n = s->n, .out = s->x, .out_stride = d->hidden, .add = true};
    nf_run_products(worker, &output, 1);
}
