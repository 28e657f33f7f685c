/* The writer's state, shared by container_write.c (objects), container_parts.c (files) and
 * container_publish.c. */
#ifndef NF_FORMAT_CONTAINER_WRITER_INTERNAL_H
#define NF_FORMAT_CONTAINER_WRITER_INTERNAL_H

#include "format/container_internal.h"

#include <stdatomic.h>

typedef struct nf_part_file {
    char *temp, *final; /* temp is NULL once renamed, and for part 0 of an add-on */
    int fd;
    uint64_t end; /* of the last object placed */
} nf_part_file;

/* Progress of one object: checksums as they become known. */
typedef struct nf_object_state {
    XXH128_canonical_t *checks;
    uint64_t n_checks, next_check;
    uint64_t written;   /* front-to-back bytes */
    XXH3_state_t *hash; /* of the chunk in progress */
    uint64_t in_chunk;
    atomic_uchar *experts; /* banks: 1 when claimed by a write */
} nf_object_state;

struct nf_writer {
    char *path;
    uint64_t max_part;
    bool append;
    nf_directory dir;
    size_t first_new_object, first_new_part; /* for an add-on: what was there before */
    nf_part_file *parts; /* [dir.n_parts]; old parts of an add-on have fd -1, except part 0 */
    size_t parts_cap;
    nf_object_state *states; /* [dir.n_objects] */
    size_t states_cap;
    nf_slot keep;       /* add-on: the directory in force, which stays whole until the new one is published */
    int next_slot;      /* the slot that the new directory gets */
    bool committed;     /* add-on: the slot may have been written, so the new parts may be in use */
    atomic_bool failed; /* a call failed: finish refuses, whatever the caller made of the error */
};

/* Writes all n bytes; `name` is for messages. */
nf_status nf_write_full(int fd, const void *bytes, uint64_t n, uint64_t offset, const char *name,
                        nf_error *err);
/* The name a part has now. */
const char *nf_part_name(const nf_part_file *p);
/* Creates the next part under its temporary name and writes its head. */
nf_status nf_writer_new_part(nf_writer *w, nf_error *err);
/* Removes what dead writers left: temporary files, and parts that the directory in force does not name. */
nf_status nf_writer_remove_stale(const nf_writer *w, nf_error *err);
/* Moves the segments of object i (of the old model) to the retired ones and removes it. */
nf_status nf_writer_retire(nf_writer *w, size_t i, nf_error *err);
/* As nf_writer_add_blob, for the writer's own names too. */
nf_status nf_writer_add_own_blob(nf_writer *w, const char *name, const char *component, const void *bytes,
                                 uint64_t n, nf_error *err);
/* Frees w and closes its files; leaves them where they are. */
void nf_writer_free(nf_writer *w);

#endif
