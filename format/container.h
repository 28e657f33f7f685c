/*
 * The .ninfer container, version 1: reader, writer and verification. docs/container.md specifies every byte;
 * docs/architecture.md says why. Nothing here knows of models: objects have names, kinds and shapes.
 */
#ifndef NF_FORMAT_CONTAINER_H
#define NF_FORMAT_CONTAINER_H

#include "base/buf.h"
#include "base/progress.h"
#include "format/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NF_MAX_NAME 512
#define NF_MAX_DIMS 8
#define NF_MAX_OBJECTS (1u << 20)
#define NF_MAX_PARTS 4096
#define NF_MAX_DIRECTORY_BYTES (64u << 20)
#define NF_CHUNK_BYTES (64u << 20)
#define NF_DEFAULT_PART_BYTES 32000000000ull

/* Numbers are part of the format. */
typedef enum nf_object_kind {
    NF_OBJECT_TENSOR = 0,    /* a matrix in tiles (+ f8 scale table), or plain elements (`tiled` false) */
    NF_OBJECT_BANK = 1,      /* expert bank: n_experts blobs of equal stride */
    NF_OBJECT_ROW_TABLE = 2, /* rows read one at a time */
    NF_OBJECT_BLOB = 3       /* bytes, possibly zstd-compressed */
} nf_object_kind;

/* One of the three matrices of an expert (0 gate, 1 up, 2 down) inside its blob. */
typedef struct nf_bank_matrix {
    nf_format format;
    uint64_t rows, cols;
    uint64_t offset;       /* of tile 0 in the expert blob */
    uint64_t tile_stride;  /* bytes from one tile to the next: gate and up tiles alternate */
    uint64_t scale_offset; /* f32 table in the blob (nf_matrix_table_bytes); 0 when there is none */
} nf_bank_matrix;

typedef struct nf_segment {
    uint32_t part;
    uint64_t offset, length;
} nf_segment;

/* An object of the directory. Owned by the container (reader) or by the caller (writer: desc is copied). */
typedef struct nf_object {
    const char *name;
    const char *component; /* "text", "mtp", "tokenizer", ... */
    nf_object_kind kind;
    nf_format
        format; /* element type of tensors, row tables; NF_TYPE_U8 for blobs; of the gate matrix for banks */
    bool tiled; /* tensors: in tile layout */
    uint32_t n_dims;
    uint64_t shape[NF_MAX_DIMS]; /* logical shape; banks: [E, I, d] */
    uint64_t bytes;              /* stored bytes = sum of segment lengths */
    uint64_t raw_bytes;          /* blobs: bytes after decompression; others: = bytes */
    bool compressed;             /* blobs: zstd frame */
    /* Banks only. */
    uint64_t n_experts, expert_stride;
    nf_bank_matrix matrix[3];
    /* Row tables only: bytes from a row to the next, and of the scales in front of each row. */
    uint64_t row_stride, row_scale_bytes;
    const char *metadata; /* JSON text of the object's own metadata, or NULL */
    /* Filled by the reader. */
    const nf_segment *segments;
    size_t n_segments;
} nf_object;

/* ---- layout helpers ---- */

/* Fills offsets, strides and expert_stride of a bank from the formats, rows and cols of its matrices and
 * n_experts (docs/container.md, "Expert blob"): [gate tile i, up tile i]*, down tiles, f8 scale tables on 64
 * bytes, padded to 4096. Also sets bytes, raw_bytes, shape. NF_ERR_LIMIT on overflow, NF_ERR_ARGUMENT when
 * gate and up differ in shape or format. */
nf_status nf_bank_layout(nf_object *bank, nf_error *err);
/* Fills bytes of a row table from shape [rows, columns], row_stride and row_scale_bytes. Rows shorter than
 * 4096 bytes never cross a multiple of 4096. */
nf_status nf_row_table_layout(nf_object *table, nf_error *err);
/* Byte offset of a row inside a row table. */
uint64_t nf_row_table_offset(const nf_object *table, uint64_t row);

/* ---- reader ---- */

typedef struct nf_container nf_container;

/* Opens NAME.ninfer and its parts read-only; checks heads, slots, directory, part ids and lengths, object
 * geometry, and the checksums of all blobs. Nothing else is read. */
nf_status nf_container_open(const char *path, nf_container **out, nf_error *err);
/* Unmaps and closes. Accepts NULL. Pointers obtained from it die. */
void nf_container_close(nf_container *c);

const char *nf_container_path(const nf_container *c);
/* 32 hex digits. */
const char *nf_container_uuid(const nf_container *c);
uint64_t nf_container_generation(const nf_container *c);
size_t nf_container_part_count(const nf_container *c);
/* Path, length and (32 hex digits) id of part i; any out pointer may be NULL. */
void nf_container_part(const nf_container *c, size_t i, const char **path, uint64_t *length, const char **id);
/* Bytes of all files of the model, with heads, directories and unused tails. */
uint64_t nf_container_file_bytes(const nf_container *c);
size_t nf_container_object_count(const nf_container *c);
/* In directory order. */
const nf_object *nf_container_object(const nf_container *c, size_t i);
/* NULL when there is none. */
const nf_object *nf_container_find(const nf_container *c, const char *name);
/* Key-value metadata of the directory; NULL when the key does not exist. Values are UTF-8 text (often JSON).
 */
const char *nf_container_meta(const nf_container *c, const char *key);
size_t nf_container_meta_count(const nf_container *c);
void nf_container_meta_at(const nf_container *c, size_t i, const char **key, const char **value);

/* Maps an object as one contiguous read-only range (segments of several parts are joined with MAP_FIXED); the
 * first call maps, later calls return the same pointer; thread-safe. Lives until nf_container_close. */
nf_status nf_container_map(nf_container *c, const nf_object *object, const uint8_t **out, nf_error *err);
/* Copies n stored bytes of an object from `offset` on (offset + n <= object->bytes) without mapping it or
 * checking them; thread-safe. */
nf_status nf_container_read(const nf_container *c, const nf_object *object, uint64_t offset, void *out,
                            size_t n, nf_error *err);
/* Reads and, if needed, decompresses a blob into out (appended). Checks the checksum. */
nf_status nf_container_read_blob(nf_container *c, const nf_object *object, nf_buf *out, nf_error *err);
/* Checks one expert blob or (expert = UINT64_MAX) all chunks of an object against the stored checksums. */
nf_status nf_container_check(nf_container *c, const nf_object *object, uint64_t expert, nf_error *err);

/* ---- verify ---- */

typedef enum nf_finding_level { NF_FINDING_NOTE, NF_FINDING_WARNING, NF_FINDING_ERROR } nf_finding_level;
/* One finding of verify ("part 2 (x.ninfer.part-0002): object 'layers.3.experts', expert 17: checksum
 * differs"). */
typedef void (*nf_finding_fn)(void *user, nf_finding_level level, const char *message);

/* Checks heads, slots, directory, every chunk, every expert and every padding byte of every part, with
 * n_threads threads (0: all allowed cores). Calls `finding` (never concurrently) for each problem; goes on
 * after errors. Returns NF_OK when there was no error-level finding, NF_ERR_FORMAT otherwise (err names the
 * first). */
nf_status nf_container_verify(const char *path, int n_threads, nf_finding_fn finding, void *user,
                              nf_progress_fn progress, void *progress_user, nf_error *err);

/* ---- writer ---- */

typedef struct nf_writer nf_writer;

typedef struct nf_writer_options {
    uint64_t max_part_bytes; /* 0: NF_DEFAULT_PART_BYTES */
} nf_writer_options;

/* Starts a new container. `path` must end in ".ninfer" and must not exist (NF_ERR_ARGUMENT, with advice);
 * stale temporary files of a dead conversion to the same name are removed. Parts are written under temporary
 * names until nf_writer_finish. */
nf_status nf_writer_create(const char *path, const nf_writer_options *options, nf_writer **out,
                           nf_error *err);
/* Starts an add-on to an existing container: existing objects stay, new ones go to new parts, and finish
 * publishes a new directory in the older slot. Takes the lock (NF_ERR_BUSY). Replacing an object = adding one
 * of the same name. */
nf_status nf_writer_append(const char *path, const nf_writer_options *options, nf_writer **out,
                           nf_error *err);

/* Sets (replaces) key-value metadata. */
nf_status nf_writer_meta(nf_writer *w, const char *key, const char *value, nf_error *err);

/* Reserves space for an object (name, component, kind, format, shape, bytes... as in nf_object) and returns
 * its handle. `bytes` must be final. Not thread-safe. */
nf_status nf_writer_add(nf_writer *w, const nf_object *object, size_t *handle, nf_error *err);
/* Writes bytes of a tensor or row table, front to back: `offset` is where the previous call for this object
 * ended. Different objects may be written concurrently. */
nf_status nf_writer_write(nf_writer *w, size_t handle, uint64_t offset, const void *bytes, uint64_t n,
                          nf_error *err);
/* Writes expert e of a bank (expert_stride bytes) and stores its checksum. Thread-safe for different experts.
 */
nf_status nf_writer_write_expert(nf_writer *w, size_t handle, uint64_t expert, const void *bytes,
                                 nf_error *err);
/* Adds a blob in one step; compressed when that makes it smaller. */
nf_status nf_writer_add_blob(nf_writer *w, const char *name, const char *component, const void *bytes,
                             uint64_t n, nf_error *err);
/* Checks that everything reserved was written, writes the directory, syncs, renames, publishes. Frees w in
 * any case. */
nf_status nf_writer_finish(nf_writer *w, nf_error *err);
/* Drops everything written so far, removes temporary files, frees w. Accepts NULL. */
void nf_writer_abort(nf_writer *w);

#endif
