/* Conversion of a checkpoint folder to a .ninfer container, and inspection of containers. */
#ifndef NF_CONVERTER_CONVERT_H
#define NF_CONVERTER_CONVERT_H

#include "base/buf.h"
#include "format/types.h"

typedef struct nf_convert_options {
    nf_format type;          /* of expert banks, see nf_role for the others; default c4 linear */
    uint64_t max_part_bytes; /* 0: the format's default (32 GB) */
    int n_threads;           /* 0: all allowed cores */
    const char *importance;  /* file of importance statistics (docs/quantisation.md), NULL: none */
    nf_progress_fn progress; /* may be NULL */
    void *progress_user;
    /* Receives one line for each thing worth knowing (a tensor that was left out and why). May be NULL. */
    void (*note)(void *user, const char *line);
    void *note_user;
} nf_convert_options;

/* Converts the folder `source` (config.json, *.safetensors, tokenizer.json, chat_template.jinja or
 * tokenizer_config.json, generation_config.json) to `out_path`. Nothing exists under that name until the
 * container is whole. Peak memory does not depend on the model's size. Every missing, misshapen or unknown
 * tensor is named with its file.
 *
 * Metadata written: "model.config" (config.json as it was), "model.name" (folder name),
 * "model.generation_config" (if present), "model.type" ("c4"), "model.codebook", "model.scale",
 * "converter.version", "converter.sources" (JSON: files, sizes). Blobs: "tokenizer" (compiled),
 * "chat_template" (Jinja text, if any). */
nf_status nf_convert(const char *source, const char *out_path, const nf_convert_options *options,
                     nf_error *err);

/* Bytes of the checkpoint folder's tensors and of the container that conversion would write, from headers
 * alone. */
nf_status nf_convert_estimate(const char *source, const nf_convert_options *options, uint64_t *source_bytes,
                              uint64_t *out_bytes, nf_error *err);

/* Appends a human-readable (or, with json, machine-readable) description of a container to out. */
nf_status nf_inspect(const char *path, bool json, nf_buf *out, nf_error *err);

#endif
