/*
 * Written ahead of its implementations: nothing includes it yet.
 *
 * The device interface: memory, streams, events, graphs and the operations that a forward pass is made of.
 * Two implementations: CUDA (gpu/cuda/, where the toolkit was found at build time) and the host device (plain
 * C on the CPU: streams are threads, video memory is a budget), with which all placement logic is tested
 * without a GPU. It knows matrices, rows and heads; it knows nothing of models, files or sequences.
 *
 * Pointers in `args` structs are device addresses unless "mapped" is said (pinned host memory in its device
 * address). On the host device both are plain addresses. Everything that a launch reads or writes must stay
 * until the stream has passed it; a captured launch keeps its arguments, so what changes from step to step
 * (positions, tokens, which expert lies where) is in device memory.
 *
 * Arithmetic: PRODUCTS, EXPERTS, NORM's and GATE's quantisation, SILU and COMBINE follow contract A of
 * docs/arithmetic.md (the same bytes as the CPU kernels); all others follow contract B: a row's value depends
 * neither on n nor on where a chunk begins.
 */
#ifndef NF_GPU_GPU_H
#define NF_GPU_GPU_H

#include "base/status.h"
#include "cpu/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nf_gpu nf_gpu;
typedef struct nf_gpu_stream nf_gpu_stream;
typedef struct nf_gpu_event nf_gpu_event;
typedef struct nf_gpu_graph nf_gpu_graph;

/* ---- devices ---- */

typedef enum nf_gpu_kind { NF_GPU_CUDA, NF_GPU_HOST } nf_gpu_kind;

typedef struct nf_gpu_options {
    nf_gpu_kind kind;
    int index;           /* CUDA device number; 0 for the host device */
    uint64_t vram_limit; /* bytes that this process may allocate; 0: what is free (host device: 1 GiB) */
    /* Host device only: a copy takes at least this long, so that races show. */
    uint64_t copy_delay_us;
    uint64_t copy_bytes_per_second; /* 0: as fast as it goes */
} nf_gpu_options;

typedef struct nf_gpu_info {
    char name[128];
    nf_gpu_kind kind;
    int major, minor;       /* compute capability; 0.0 on the host device */
    int multiprocessors;    /* the host device has 1 */
    uint64_t total, free;   /* bytes of video memory; free never exceeds what vram_limit leaves */
    uint64_t used;          /* bytes allocated through this handle */
    bool kernel_time_limit; /* the driver ends kernels that run for seconds (a display hangs on it) */
} nf_gpu_info;

/* Number of devices of a kind; 0 and a reason in `why` [why_size] (may be NULL) where CUDA was not built in
 * or no driver is present. */
int nf_gpu_count(nf_gpu_kind kind, char *why, size_t why_size);
/* NF_ERR_DEVICE when there is no such device (says which there are) or its driver fails; NF_ERR_MEMORY.
 * Kernels of a CUDA device are loaded here, not at first use. */
nf_status nf_gpu_open(const nf_gpu_options *options, nf_gpu **out, nf_error *err);
/* Waits for all streams; every object made from the handle must have been freed. NULL is allowed. */
void nf_gpu_close(nf_gpu *gpu);
nf_status nf_gpu_get_info(nf_gpu *gpu, nf_gpu_info *info, nf_error *err);

/* ---- memory ---- */

/* Device memory, aligned to 256 bytes, not cleared. `what` names it in the message when it does not fit
 * (NF_ERR_MEMORY: what was asked for, what is free, what the limit is). bytes > 0. */
nf_status nf_gpu_alloc(nf_gpu *gpu, uint64_t bytes, const char *what, void **out, nf_error *err);
void nf_gpu_free(nf_gpu *gpu, void *memory);
/* Pinned host memory that the device can read and write: *host for the CPU, *mapped for launches. Cleared. */
nf_status nf_gpu_alloc_host(nf_gpu *gpu, uint64_t bytes, const char *what, void **host, void **mapped,
                            nf_error *err);
void nf_gpu_free_host(nf_gpu *gpu, void *host);
/* Pins host memory that was allocated elsewhere (page-aligned), so that copies from it are asynchronous.
 * NF_ERR_MEMORY where a limit stops it: the memory can still be copied from, through nf_gpu_copy alone. */
nf_status nf_gpu_pin(nf_gpu *gpu, void *host, uint64_t bytes, nf_error *err);
void nf_gpu_unpin(nf_gpu *gpu, void *host);

/* ---- streams, copies, events ---- */

nf_status nf_gpu_stream_new(nf_gpu *gpu, bool high_priority, nf_gpu_stream **out, nf_error *err);
void nf_gpu_stream_free(nf_gpu_stream *stream);
/* Waits for everything in the stream; a failure of anything in it is reported here. */
nf_status nf_gpu_stream_sync(nf_gpu_stream *stream, nf_error *err);

/* In stream order. From or to pinned memory it is asynchronous; pageable memory is allowed and makes it wait.
 */
nf_status nf_gpu_copy(nf_gpu_stream *stream, void *to, const void *from, uint64_t bytes, nf_error *err);
nf_status nf_gpu_clear(nf_gpu_stream *stream, void *to, uint64_t bytes, nf_error *err);

nf_status nf_gpu_event_new(nf_gpu *gpu, nf_gpu_event **out, nf_error *err);
void nf_gpu_event_free(nf_gpu_event *event);
nf_status nf_gpu_event_record(nf_gpu_event *event, nf_gpu_stream *stream, nf_error *err);
/* What comes next in `stream` waits for the event. */
nf_status nf_gpu_event_wait(nf_gpu_event *event, nf_gpu_stream *stream, nf_error *err);
nf_status nf_gpu_event_sync(nf_gpu_event *event, nf_error *err);
/* *done: what was recorded last has happened (true before the first record). */
nf_status nf_gpu_event_done(nf_gpu_event *event, bool *done, nf_error *err);
/* Milliseconds between two recorded events that have happened. */
nf_status nf_gpu_event_elapsed(nf_gpu_event *from, nf_gpu_event *to, double *ms, nf_error *err);

/* ---- graphs: a captured sequence of launches, copies and clears of one stream ---- */

nf_status nf_gpu_capture_begin(nf_gpu_stream *stream, nf_error *err);
/* Ends the capture; on failure nothing is left behind. */
nf_status nf_gpu_capture_end(nf_gpu_stream *stream, nf_gpu_graph **out, nf_error *err);
nf_status nf_gpu_graph_launch(nf_gpu_graph *graph, nf_gpu_stream *stream, nf_error *err);
void nf_gpu_graph_free(nf_gpu_graph *graph);

/* ---- operations ---- */

#define NF_GPU_MAX_PRODUCTS 6
#define NF_GPU_FEW_ROWS 8 /* rows of a step that one graph computes: decode, small batches, verification */
#define NF_GPU_MAX_TOP_K 32
#define NF_GPU_MAX_EXPERTS 1024

/* What changes from step to step. In device memory, written by BEGIN. */
typedef struct nf_gpu_step {
    uint32_t first; /* position of row 0; row i is at first + i */
    uint32_t epoch; /* number of the step, from 1, never repeated within a hand-over area: flags are compared
                       with it */
    /* Bits set by kernels: what went wrong (NF_GPU_FAULT_*). */
    uint32_t faults;
    uint32_t unused;
} nf_gpu_step;

enum {
    NF_GPU_FAULT_NUMERIC = 1, /* NaN or infinity */
    NF_GPU_FAULT_TIMEOUT = 2, /* the CPU did not answer in time */
    NF_GPU_FAULT_ABORT = 4    /* the abort word was set */
};

/* Mapped; the host fills it before each step. */
typedef struct nf_gpu_step_input {
    uint32_t first, epoch;
    uint32_t ids_from_device; /* 1: keep the ids that SAMPLE wrote; 0: take ids below */
    uint32_t unused;
    int32_t ids[NF_GPU_FEW_ROWS];
} nf_gpu_step_input;

/* Copies first and epoch, clears faults; copies n ids. For n > NF_GPU_FEW_ROWS the host has copied the ids
 * itself and ids is NULL. */
typedef struct nf_gpu_begin_args {
    const nf_gpu_step_input *in; /* mapped */
    nf_gpu_step *step;
    int32_t *ids; /* [n] or NULL */
    size_t n;
} nf_gpu_begin_args;

/* x [n, cols of w] = rows ids[i] of the matrix w (any type). */
typedef struct nf_gpu_embed_args {
    nf_weights w;
    const int32_t *ids;
    size_t n;
    float *x;
} nf_gpu_embed_args;

/* y = x / sqrt(mean(x^2) + eps) * w for rows x [n, d]; with `quantise` y's groups too (contract A step 1).
 * Columns d .. out.kp - 1 are zero. NaN and infinity set NF_GPU_FAULT_NUMERIC. */
typedef struct nf_gpu_norm_args {
    const float *x; /* [n, d] */
    const float *w; /* [d] */
    float eps;
    size_t n, d;
    nf_rows out;
    bool quantise;
    nf_gpu_step *step;
} nf_gpu_norm_args;

typedef struct nf_gpu_product {
    nf_weights w;
    float *out; /* [n, out_stride] */
    size_t out_stride;
    bool add; /* out += */
} nf_gpu_product;

/* Products of the same n input rows with up to NF_GPU_MAX_PRODUCTS matrices, one launch. */
typedef struct nf_gpu_products_args {
    nf_gpu_product products[NF_GPU_MAX_PRODUCTS];
    size_t n_products;
    nf_rows in;
    size_t n;
} nf_gpu_products_args;

/* act = silu(gate . in) * (up . in), quantised: the first half of a dense or shared expert. */
typedef struct nf_gpu_gated_args {
    nf_weights gate, up;
    nf_rows in, act;
    size_t n;
    bool quantise; /* the next matrix has an integer-dot type */
    nf_gpu_step *step;
} nf_gpu_gated_args;

typedef enum nf_gpu_kv_type { NF_GPU_KV_BF16, NF_GPU_KV_FP8, NF_GPU_KV_Q8 } nf_gpu_kv_type;

/* Keys and values of one layer: [kv_heads, capacity, dim] elements. fp8 (e4m3): scale [kv_heads, capacity];
 * q8 (int8): scale [kv_heads, capacity, dim / 32]. capacity is a multiple of NF_ATTENTION_BLOCK. */
typedef struct nf_gpu_kv {
    nf_gpu_kv_type type;
    void *k, *v;
    float *k_scale, *v_scale;
    size_t capacity, kv_heads, dim;
} nf_gpu_kv;

/* Norm (weights [dim], NULL: none) and rotary embedding (halves convention, first rope_dim elements) of q in
 * place and of k; k and v are stored in the cache at their positions. */
typedef struct nf_gpu_attention_prepare_args {
    float *q; /* [n, heads, q_head_stride]; q_head_stride is 2 dim where a gate follows each query */
    size_t q_head_stride, heads;
    const float *k, *v; /* [n, kv_heads, dim] */
    const float *q_norm, *k_norm;
    float eps;
    const float *rope; /* [capacity, rope_dim]: cos [rope_dim / 2], then sin, of every position */
    size_t rope_dim, n;
    nf_gpu_kv kv;
    nf_gpu_step *step;
} nf_gpu_attention_prepare_args;

/* softmax(q K^T * scale) V over keys 0 .. first + i for each row i and head; blocks of NF_ATTENTION_BLOCK
 * keys combined in order. Then, with `gated`, times sigmoid of the gate behind each query; quantised where
 * asked. */
typedef struct nf_gpu_attention_args {
    const float *q;
    size_t q_head_stride, heads, n;
    float scale;
    bool gated, quantise;
    nf_gpu_kv kv;
    nf_gpu_step *step;
    nf_rows out; /* n rows of heads * dim */
    /* Scratch of nf_gpu_attention_scratch floats. */
    float *scratch;
} nf_gpu_attention_args;

/* Floats of scratch for up to n rows (n <= NF_GPU_FEW_ROWS splits the context; more rows need none: 0 is
 * possible). */
size_t nf_gpu_attention_scratch(size_t n, size_t heads, size_t dim, size_t capacity);

/* Gated DeltaNet, first part: depthwise causal convolution over time and SiLU of conv_in [n, channels], q and
 * k normalised by head (q also times 1/sqrt(dk)), beta = sigmoid(b), decay = exp(-decay_rate * softplus(a +
 * dt_bias)). The last taps - 1 rows stay in `past`. */
typedef struct nf_gpu_conv_args {
    const float *in;    /* [n, channels]; channels = 2 * k_heads * dk + v_heads * dv */
    float *past;        /* [taps - 1, channels], oldest first */
    const float *w;     /* [taps, channels], oldest tap first */
    float *out;         /* [n, channels] */
    const float *b, *a; /* [n, v_heads] each, gate_stride floats from row to row */
    size_t gate_stride;
    const float *decay_rate, *dt_bias; /* [v_heads] */
    float *beta, *decay;               /* [n, v_heads] */
    size_t taps, n, k_heads, v_heads, dk, dv;
} nf_gpu_conv_args;

/* The delta rule token by token, see nf_kernels.delta_rule; state [v_heads, dk, dv], out [n, v_heads * dv].
 */
typedef struct nf_gpu_delta_args {
    float *state;
    const float *conv;         /* [n, channels]: q, k, v as CONV left them */
    const float *beta, *decay; /* [n, v_heads] */
    float *out;
    size_t n, k_heads, v_heads, dk, dv;
} nf_gpu_delta_args;

/* out = norm(o; w per head) * silu(z), quantised where asked. */
typedef struct nf_gpu_delta_gate_args {
    const float *o, *z; /* [n, v_heads, dv] */
    const float *w;     /* [dv] */
    float eps;
    size_t n, v_heads, dv;
    nf_rows out; /* n rows of v_heads * dv */
    bool quantise;
    nf_gpu_step *step;
} nf_gpu_delta_gate_args;

/* Router: softmax of logits [n, experts], the top_k largest (lower index first among equals), their weights,
 * divided by their sum with norm_topk. */
typedef struct nf_gpu_route_args {
    const float *logits;
    size_t n, experts, top_k;
    bool norm_topk;
    int32_t *ids;   /* [n, top_k] */
    float *weights; /* [n, top_k] */
    nf_gpu_step *step;
} nf_gpu_route_args;

/* Where a layer's experts are: blob[e] is expert e's blob in device memory, NULL: the CPU has it. In device
 * memory, written by the host between steps only. */
typedef const uint8_t *const *nf_gpu_blobs;

/* The hand-over area of one layer, mapped; each flag is alone in 64 bytes. */
typedef struct nf_gpu_request {
    uint32_t *flag;     /* becomes the epoch when all below is there */
    uint32_t *n_misses; /* pairs for the CPU */
    uint32_t *pair;     /* [n * top_k]: pair = row * top_k + rank, increasing */
    int32_t *expert;    /* [n * top_k]: its expert */
    nf_rows rows;       /* n input rows: q, scale, sum, or x for experts of a float type */
} nf_gpu_request;

/* Posts the pairs whose expert is not on the device, and the input rows when there is any. */
typedef struct nf_gpu_post_args {
    const int32_t *ids; /* [n, top_k] */
    size_t n, top_k;
    nf_gpu_blobs blobs;
    nf_rows in;
    bool quantised; /* experts read q, scale and sum; otherwise x */
    nf_gpu_request request;
    nf_gpu_step *step;
} nf_gpu_post_args;

/* The matrices inside an expert blob; gate and up tiles alternate. Offsets in bytes. */
typedef struct nf_gpu_expert_layout {
    nf_format gate, up, down;
    size_t hidden, expert_hidden; /* d and I */
    size_t gate_tiles, up_tiles, down_tiles, gate_stride, up_stride, down_stride;
    size_t gate_table, up_table, down_table; /* 0: none */
} nf_gpu_expert_layout;

/* EXPERTS, few rows: pair p = row * top_k + rank. IN: act row p = silu(gate . in row) * (up . in row),
 * quantised where down has an integer-dot type; DOWN: out row p = down . act row p. Pairs whose blob is NULL
 * are left alone. n <= NF_GPU_FEW_ROWS. */
typedef struct nf_gpu_experts_args {
    nf_gpu_expert_layout layout;
    nf_gpu_blobs blobs;
    const int32_t *ids;
    size_t n, top_k;
    nf_rows in, act; /* act: n * top_k rows of I */
    float *out;      /* [n * top_k, d] */
    nf_gpu_step *step;
} nf_gpu_experts_args;

/* Sorts the pairs by expert: those of expert e are places begin[e] .. begin[e+1]-1; token[place] is the row,
 * place[pair] the place. */
typedef struct nf_gpu_group_args {
    const int32_t *ids;
    size_t n, top_k, experts;
    uint32_t *begin; /* [experts + 1] */
    uint32_t *token; /* [n * top_k] */
    uint32_t *place; /* [n * top_k] */
} nf_gpu_group_args;

/* EXPERTS, many rows: as above with rows sorted by expert: act and out rows are places. Experts first_expert
 * .. + n_experts - 1 only (a layer is streamed in parts); those whose blob is NULL are left alone. */
typedef struct nf_gpu_grouped_args {
    nf_gpu_expert_layout layout;
    nf_gpu_blobs blobs;
    const uint32_t *begin, *token;
    size_t n_pairs;
    size_t first_expert, n_experts;
    nf_rows in, act;
    float *out; /* [n_pairs, d] */
    nf_gpu_step *step;
} nf_gpu_grouped_args;

/* Waits until *flag (mapped) is the step's epoch. Gives up after timeout_ms, or when *abort (mapped) is not
 * 0: sets a fault. Returns at once when *n_misses (mapped, written by POST) is 0 or the step has already
 * failed. */
typedef struct nf_gpu_wait_args {
    const uint32_t *flag, *abort, *n_misses;
    uint32_t timeout_ms;
    nf_gpu_step *step;
} nf_gpu_wait_args;

/* x [n, d] += y, y = fma(w_r, e_r, y) for r = 0 .. top_k-1 from +0, then y = fma(sigmoid(gate_logit), shared,
 * y) where shared is not NULL. The row e_r of a pair: out at its place (place NULL: at the pair), or
 * `response` at the pair when its blob is NULL and response is not. */
typedef struct nf_gpu_combine_args {
    const int32_t *ids;
    const float *weights;
    size_t n, top_k, d;
    nf_gpu_blobs blobs;
    const uint32_t *place;
    const float *out;                 /* [n * top_k, d] */
    const float *response;            /* mapped [n * top_k, d] or NULL */
    const float *shared, *gate_logit; /* [n, d], [n] or NULL */
    float *x;
    nf_gpu_step *step;
} nf_gpu_combine_args;

/* Index of the largest of logits [n, vocab] of each row (the lowest among equals) to ids[i], and to `report`
 * (mapped) with the faults: report[0 .. n-1] = id, report[n] = faults, then report[n + 1] = epoch. NaN sets a
 * fault. */
typedef struct nf_gpu_argmax_args {
    const float *logits;
    size_t n, vocab;
    int32_t *ids;
    uint32_t *report; /* mapped [n + 2] */
    nf_gpu_step *step;
} nf_gpu_argmax_args;

#define NF_GPU_OPERATIONS(X)                                                                                 \
    X(begin)                                                                                                 \
    X(embed)                                                                                                 \
    X(norm)                                                                                                  \
    X(products)                                                                                              \
    X(gated)                                                                                                 \
    X(attention_prepare)                                                                                     \
    X(attention)                                                                                             \
    X(conv)                                                                                                  \
    X(delta)                                                                                                 \
    X(delta_gate)                                                                                            \
    X(route)                                                                                                 \
    X(post)                                                                                                  \
    X(experts_in)                                                                                            \
    X(experts_down)                                                                                          \
    X(group)                                                                                                 \
    X(grouped_in)                                                                                            \
    X(grouped_down)                                                                                          \
    X(wait)                                                                                                  \
    X(combine)                                                                                               \
    X(argmax)

typedef nf_gpu_experts_args nf_gpu_experts_in_args;
typedef nf_gpu_experts_args nf_gpu_experts_down_args;
typedef nf_gpu_grouped_args nf_gpu_grouped_in_args;
typedef nf_gpu_grouped_args nf_gpu_grouped_down_args;

/* nf_gpu_norm(stream, &args, err) and so on: enqueue one operation. NF_ERR_DEVICE when the launch is refused;
 * NF_ERR_UNSUPPORTED when the shape or type has no kernel. */
#define NF_GPU_DECLARE(name)                                                                                 \
    nf_status nf_gpu_##name(nf_gpu_stream *stream, const nf_gpu_##name##_args *args, nf_error *err);
NF_GPU_OPERATIONS(NF_GPU_DECLARE)
#undef NF_GPU_DECLARE

#endif
