/*
 * What the files of the container share: block formats, the decoded directory, the open container and the
 * table of file operations. Byte layouts are specified in docs/container.md.
 */
#ifndef NF_FORMAT_CONTAINER_INTERNAL_H
#define NF_FORMAT_CONTAINER_INTERNAL_H

#include "format/container.h"

#include <pthread.h>
#include <sys/types.h>
#include <xxhash.h>

#define NF_BLOCK 4096u
#define NF_BANK_ALIGN (2u << 20)
#define NF_SLOT_A 4096u
#define NF_SLOT_B 8192u
#define NF_PART0_DATA 12288u /* first byte that objects of part 0 may use */
#define NF_PARTN_DATA 4096u
#define NF_FORMAT_MAJOR 1
#define NF_FORMAT_MINOR 0
#define NF_NO_CHECKS UINT32_MAX
#define NF_MAX_BLOB_BYTES (1ull << 30)
#define NF_MAX_TEXT_BYTES (16u << 20) /* a metadata value */
#define NF_MAX_COMPONENTS 1024
#define NF_MAX_META 65536
#define NF_MAX_PART_LENGTH (1ull << 46)
#define NF_CHECKS_COMPONENT "checksums" /* the writer's own blobs; names "checksums.GENERATION" */

typedef struct nf_id {
    uint8_t bytes[16];
} nf_id;

typedef struct nf_head {
    nf_id uuid, part_id;
    uint32_t part;
} nf_head;

typedef struct nf_slot {
    bool empty; /* all bytes zero: never used */
    uint64_t generation, offset, stored, raw;
    XXH128_canonical_t hash;
} nf_slot;

typedef struct nf_part_entry {
    nf_id id;
    uint64_t length; /* bytes up to the end of its last object */
} nf_part_entry;

/* An object with what only the container knows. `pub` is first: pointers convert. */
typedef struct nf_entry {
    nf_object pub;
    uint32_t component;
    XXH128_canonical_t hash; /* blobs: of the stored bytes */
    uint32_t checks_object;  /* index of the checksum blob, or NF_NO_CHECKS */
    uint64_t checks_first, checks_count;
    nf_segment *segments; /* owned; pub.segments points here */
} nf_entry;

typedef struct nf_meta_entry {
    char *key, *value;
} nf_meta_entry;

typedef struct nf_directory {
    uint64_t generation;
    nf_id uuid;
    nf_part_entry *parts;
    size_t n_parts, parts_cap;
    char **components;
    size_t n_components, components_cap;
    nf_entry *objects;
    size_t n_objects, objects_cap;
    nf_meta_entry *meta;
    size_t n_meta, meta_cap;
    nf_segment *retired; /* bytes of replaced objects: neither live nor zero */
    size_t n_retired, retired_cap;
} nf_directory;

/* ---- heads and slots (container_head.c) ---- */

void nf_head_encode(const nf_head *head, uint8_t block[NF_BLOCK]);
/* Checks magic, checksum and version; `path` is for messages. */
nf_status nf_head_decode(const uint8_t block[NF_BLOCK], const char *path, nf_head *out, nf_error *err);
void nf_slot_encode(const nf_slot *slot, const nf_id *uuid, uint8_t block[NF_BLOCK]);
/* False when the block is neither empty nor a valid slot of this set. */
bool nf_slot_decode(const uint8_t block[NF_BLOCK], const nf_id *uuid, nf_slot *out);
/* 32 hex digits and NUL. */
void nf_id_text(const nf_id *id, char out[33]);
nf_status nf_id_random(nf_id *out, nf_error *err);
/* Final and temporary names of a part: NAME.ninfer, NAME.ninfer.part-0001; NAME.ninfer.tmp-0000. The caller
 * frees. */
char *nf_part_path(const char *path, size_t part, nf_error *err);
char *nf_temp_path(const char *path, size_t part, nf_error *err);
XXH128_canonical_t nf_hash(const void *bytes, size_t n);
bool nf_hash_equal(const XXH128_canonical_t *a, const XXH128_canonical_t *b);
uint64_t nf_block_up(uint64_t n); /* to a multiple of 4096; n is far below 2^64 */

/* ---- directory (container_directory.c, container_check.c) ---- */

nf_status nf_directory_encode(const nf_directory *d, nf_buf *out, nf_error *err);
/* Decodes and validates all that can be checked without the parts' bytes. Free with nf_directory_free. */
nf_status nf_directory_decode(const uint8_t *bytes, size_t n, const char *path, nf_directory *out,
                              nf_error *err);
void nf_directory_free(nf_directory *d);
void nf_entry_free(nf_entry *e);
/* Geometry of objects, segments inside parts, no overlaps, unique names, checksum tables of the right size.
 */
nf_status nf_directory_check(const nf_directory *d, const char *path, nf_error *err);
bool nf_directory_text_valid(const char *text, size_t n);
/* Finds or adds a component; its index in *out. */
nf_status nf_directory_component(nf_directory *d, const char *name, uint32_t *out, nf_error *err);
nf_status nf_directory_set_meta(nf_directory *d, const char *key, const char *value, nf_error *err);
/* All segments, live and retired, by part and offset; *objects[i] is NULL for retired ones. The caller frees
 * both. */
typedef struct nf_placed {
    nf_segment segment;
    const nf_object *object; /* NULL: retired */
} nf_placed;
nf_status nf_directory_placed(const nf_directory *d, nf_placed **out, size_t *n, nf_error *err);

/* ---- layout (container_layout.c) ---- */

/* Number of checksums that an object has: experts of a bank, chunks of its segments, none for blobs. */
uint64_t nf_checks_needed(const nf_object *object);
/* Part and file offset of byte `offset` of an object, and how many bytes follow in that segment. */
typedef struct nf_place {
    uint32_t part;
    uint64_t at, left;
} nf_place;
nf_place nf_locate(const nf_object *object, uint64_t offset);

/* ---- reader (container_read.c, container_map.c) ---- */

typedef struct nf_open_part {
    char *path;
    int fd; /* -1: could not be used (only while verifying) */
    uint64_t file_bytes;
    char id_text[33];
} nf_open_part;

struct nf_container {
    char *path;
    char uuid_text[33];
    nf_directory dir;
    nf_open_part *parts;
    size_t n_open;
    uint32_t *by_name;      /* object indices sorted by name */
    const uint8_t **mapped; /* [n_objects] */
    nf_buf *checks;         /* [n_objects]: checksum blobs, empty until needed; under lock */
    pthread_mutex_t lock;
    nf_slot slot[2];
    bool slot_valid[2];
    int slot_in_force;
};

/* Called for each part that cannot be used. */
typedef void (*nf_problem_fn)(void *user, const nf_error *what);
/* As nf_container_open without the blobs' checksums. With `problem`, damaged or missing parts other than part
 * 0 are reported and left out (fd -1) instead of failing. */
nf_status nf_container_open_parts(const char *path, nf_problem_fn problem, void *user, nf_container **out,
                                  nf_error *err);
/* Checks the stored bytes of a blob against its checksum, and a frame's header against the directory. */
nf_status nf_container_check_blob(const nf_container *c, const nf_entry *e, nf_error *err);
/* The stored checksum of chunk or expert i of an object, loading the table when needed; NULL with err on
 * failure. */
const XXH128_canonical_t *nf_stored_check(nf_container *c, const nf_entry *e, uint64_t i, nf_error *err);
/* A range of one part that has one checksum. */
typedef struct nf_check_range {
    uint64_t index; /* expert or chunk */
    uint32_t part;
    uint64_t offset, bytes; /* in the part's file */
} nf_check_range;
/* Range i of an object; ranges are walked in order with a cursor that starts zeroed. */
typedef struct nf_range_cursor {
    size_t segment;
    uint64_t done, index;
} nf_range_cursor;
bool nf_next_range(const nf_object *object, nf_range_cursor *at, nf_check_range *out);
/* Reads a range and compares its checksum. */
nf_status nf_check_range_bytes(nf_container *c, const nf_entry *e, const nf_check_range *range,
                               nf_error *err);

/* ---- file operations (container_parts.c) ---- */

/* Everything that changes files goes through this table, so that a test can record or break it. Semantics of
 * the POSIX calls of the same names (-1 and errno); pwrite may write less. */
typedef struct nf_file_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*pwrite)(int fd, const void *bytes, size_t n, off_t offset);
    int (*ftruncate)(int fd, off_t length);
    int (*fsync)(int fd);
    int (*close)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*fsync_dir)(const char *path); /* the folder that holds path */
} nf_file_ops;

extern const nf_file_ops nf_posix_file_ops;
/* The table in use; only tests change it. */
extern const nf_file_ops *nf_file_ops_in_use;

#endif
