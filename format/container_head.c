/* Head and slot blocks, ids, checksums and names of parts. */
#include "format/container_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char head_magic[8] = {'N', 'I', 'N', 'F', 'E', 'R', '\r', '\n'};
static const char slot_magic[8] = {'N', 'F', 'S', 'L', 'O', 'T', '\r', '\n'};
#define CHECKED (NF_BLOCK - 16) /* bytes of a block that its checksum covers; the checksum follows */
#define PROGRAM_AT 48
#define PROGRAM_BYTES 32

static void put(uint8_t *to, uint64_t value, int n) {
    for (int i = 0; i < n; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *from, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

XXH128_canonical_t nf_hash(const void *bytes, size_t n) {
    XXH128_canonical_t out;
    XXH128_canonicalFromHash(&out, XXH3_128bits(bytes, n));
    return out;
}

bool nf_hash_equal(const XXH128_canonical_t *a, const XXH128_canonical_t *b) {
    return !memcmp(a, b, sizeof *a);
}

uint64_t nf_block_up(uint64_t n) {
    return (n + NF_BLOCK - 1) / NF_BLOCK * NF_BLOCK;
}

static void seal(uint8_t block[NF_BLOCK]) {
    XXH128_canonical_t hash = nf_hash(block, CHECKED);
    memcpy(block + CHECKED, &hash, 16);
}

static bool sealed(const uint8_t block[NF_BLOCK]) {
    XXH128_canonical_t hash = nf_hash(block, CHECKED);
    return !memcmp(block + CHECKED, &hash, 16);
}

void nf_head_encode(const nf_head *head, uint8_t block[NF_BLOCK]) {
    memset(block, 0, NF_BLOCK);
    memcpy(block, head_magic, 8);
    put(block + 8, NF_FORMAT_MAJOR, 2);
    put(block + 10, NF_FORMAT_MINOR, 2);
    put(block + 12, head->part, 4);
    memcpy(block + 16, head->uuid.bytes, 16);
    memcpy(block + 32, head->part_id.bytes, 16);
    snprintf((char *)block + PROGRAM_AT, PROGRAM_BYTES, "%s", nf_version());
    seal(block);
}

/* The version text of the program that wrote the head, made safe to print. */
static void program_text(const uint8_t block[NF_BLOCK], char out[PROGRAM_BYTES]) {
    memcpy(out, block + PROGRAM_AT, PROGRAM_BYTES);
    out[PROGRAM_BYTES - 1] = '\0';
    for (char *p = out; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
}

nf_status nf_head_decode(const uint8_t block[NF_BLOCK], const char *path, nf_head *out, nf_error *err) {
    if (memcmp(block, head_magic, 8) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "%s: is not a .ninfer container (no NINFER magic)%s", path,
                       memcmp(block, "NINFER", 6)
                           ? ""
                           : "; it may have been written by an early version: convert again");
    /* Every version keeps magic, version, program and checksum where they are, so damage is told from age. */
    if (!sealed(block))
        return nf_fail(err, NF_ERR_FORMAT, "%s: the head block is damaged (checksum differs)", path);
    unsigned major = (unsigned)get(block + 8, 2), minor = (unsigned)get(block + 10, 2);
    if (major != NF_FORMAT_MAJOR) {
        char program[PROGRAM_BYTES];
        program_text(block, program);
        return nf_fail(err, major > NF_FORMAT_MAJOR ? NF_ERR_UNSUPPORTED : NF_ERR_FORMAT,
                       "%s: container format version %u.%u, written by NInfer %s; this is NInfer %s, which "
                       "reads version %d: "
                       "use version %s or newer",
                       path, major, minor, program, nf_version(), NF_FORMAT_MAJOR, program);
    }
    out->part = (uint32_t)get(block + 12, 4);
    memcpy(out->uuid.bytes, block + 16, 16);
    memcpy(out->part_id.bytes, block + 32, 16);
    return NF_OK;
}

void nf_slot_encode(const nf_slot *slot, const nf_id *uuid, uint8_t block[NF_BLOCK]) {
    memset(block, 0, NF_BLOCK);
    memcpy(block, slot_magic, 8);
    put(block + 8, slot->generation, 8);
    put(block + 16, slot->offset, 8);
    put(block + 24, slot->stored, 8);
    put(block + 32, slot->raw, 8);
    memcpy(block + 40, &slot->hash, 16);
    memcpy(block + 56, uuid->bytes, 16);
    seal(block);
}

bool nf_slot_decode(const uint8_t block[NF_BLOCK], const nf_id *uuid, nf_slot *out) {
    static const uint8_t zero[NF_BLOCK];
    *out = (nf_slot){.empty = !memcmp(block, zero, NF_BLOCK)};
    if (out->empty) return true;
    if (memcmp(block, slot_magic, 8) != 0 || !sealed(block) || memcmp(block + 56, uuid->bytes, 16) != 0)
        return false;
    out->generation = get(block + 8, 8);
    out->offset = get(block + 16, 8);
    out->stored = get(block + 24, 8);
    out->raw = get(block + 32, 8);
    memcpy(&out->hash, block + 40, 16);
    return true;
}

void nf_id_text(const nf_id *id, char out[33]) {
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", id->bytes[i]);
}

nf_status nf_id_random(nf_id *out, nf_error *err) {
    /* Requests of at most 256 bytes are never cut short; only a signal before the pool is ready interrupts
     * them. */
    ssize_t got;
    do got = getrandom(out->bytes, sizeof out->bytes, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof out->bytes) return nf_fail_errno(err, errno, "cannot get random bytes");
    return NF_OK;
}

static char *numbered(const char *path, const char *what, size_t part, nf_error *err) {
    nf_buf name = {0};
    if (nf_buf_printf(&name, err, "%s.%s-%04zu", path, what, part)) nf_buf_free(&name);
    return nf_buf_take(&name);
}

char *nf_part_path(const char *path, size_t part, nf_error *err) {
    return part ? numbered(path, "part", part, err) : nf_strdup(path, err);
}

char *nf_temp_path(const char *path, size_t part, nf_error *err) {
    return numbered(path, "tmp", part, err);
}
