/* What an implementation of gpu.h provides; only gpu/ includes this. gpu.c checks arguments common to both
 * and dispatches. Every object begins with its backend. */
#ifndef NF_GPU_BACKEND_H
#define NF_GPU_BACKEND_H

#include "gpu/gpu.h"

typedef struct nf_gpu_backend {
    int (*count)(char *why, size_t why_size);
    nf_status (*open)(const nf_gpu_options *options, nf_gpu **out, nf_error *err);
    void (*close)(nf_gpu *gpu);
    nf_status (*get_info)(nf_gpu *gpu, nf_gpu_info *info, nf_error *err);
    nf_status (*alloc)(nf_gpu *gpu, uint64_t bytes, const char *what, void **out, nf_error *err);
    void (*free)(nf_gpu *gpu, void *memory);
    nf_status (*alloc_host)(nf_gpu *gpu, uint64_t bytes, const char *what, void **host, void **mapped,
                            nf_error *err);
    void (*free_host)(nf_gpu *gpu, void *host);
    nf_status (*pin)(nf_gpu *gpu, void *host, uint64_t bytes, nf_error *err);
    void (*unpin)(nf_gpu *gpu, void *host);
    nf_status (*stream_new)(nf_gpu *gpu, bool high_priority, nf_gpu_stream **out, nf_error *err);
    void (*stream_free)(nf_gpu_stream *stream);
    nf_status (*stream_sync)(nf_gpu_stream *stream, nf_error *err);
    nf_status (*copy)(nf_gpu_stream *stream, void *to, const void *from, uint64_t bytes, nf_error *err);
    nf_status (*clear)(nf_gpu_stream *stream, void *to, uint64_t bytes, nf_error *err);
    nf_status (*event_new)(nf_gpu *gpu, nf_gpu_event **out, nf_error *err);
    void (*event_free)(nf_gpu_event *event);
    nf_status (*event_record)(nf_gpu_event *event, nf_gpu_stream *stream, nf_error *err);
    nf_status (*event_wait)(nf_gpu_event *event, nf_gpu_stream *stream, nf_error *err);
    nf_status (*event_sync)(nf_gpu_event *event, nf_error *err);
    nf_status (*event_done)(nf_gpu_event *event, bool *done, nf_error *err);
    nf_status (*event_elapsed)(nf_gpu_event *from, nf_gpu_event *to, double *ms, nf_error *err);
    nf_status (*capture_begin)(nf_gpu_stream *stream, nf_error *err);
    nf_status (*capture_end)(nf_gpu_stream *stream, nf_gpu_graph **out, nf_error *err);
    nf_status (*graph_launch)(nf_gpu_graph *graph, nf_gpu_stream *stream, nf_error *err);
    void (*graph_free)(nf_gpu_graph *graph);
#define NF_GPU_MEMBER(name)                                                                                  \
    nf_status (*name)(nf_gpu_stream * stream, const nf_gpu_##name##_args *args, nf_error *err);
    NF_GPU_OPERATIONS(NF_GPU_MEMBER)
#undef NF_GPU_MEMBER
} nf_gpu_backend;

/* First member of each implementation's struct. */
struct nf_gpu {
    const nf_gpu_backend *backend;
};
struct nf_gpu_stream {
    const nf_gpu_backend *backend;
};
struct nf_gpu_event {
    const nf_gpu_backend *backend;
};
struct nf_gpu_graph {
    const nf_gpu_backend *backend;
};

extern const nf_gpu_backend nf_gpu_host_backend;
#ifdef NF_WITH_CUDA
extern const nf_gpu_backend nf_gpu_cuda_backend;
#endif

#endif
