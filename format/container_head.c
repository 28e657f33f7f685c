/* Head and slot blocks, ids and names of parts. */
#include "format/container_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char head_magic[8] = {'N', 'I', 'N', 'F', 'E', 'R', '\r', '\n'};
static const char slot_magic[8] = {'N', 'F', 'S', 'L', 'O', 'T', '\r', '\n'};
#define CHECKED (NF_BLOCK - 16) /* bytes of a block that its checksum covers; the checksum follows */

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

bool nf_hash_equal(const XXH128_canonical_t *a, const XXH128_canonical_t *b) { return !memcmp(a, b, sizeof *a); }

static void seal(uint8_t block[NF_BLOCK]) {
    XXH128_canonical_t hash = nf_hash(block, CHECKED);
    memcpy(block + CHECKED, &hash, 16);
}

static bool sealed(const uint8_t block[NF_BLOCK]) {
    XXH128_canonical_t hash = nf_hash(block, CHECKED);
    return !memcmp(block + CHECKED, &hash, 16);
}

void nf_head_encode(const nf_id *uuid, uint32_t part, const nf_id *id, uint8_t block[NF_BLOCK]) {
    memset(block, 0, NF_BLOCK);
    memcpy(block, head_magic, 8);
    put(block + 8, NF_FORMAT_MAJOR, 2);
    put(block + 10, NF_FORMAT_MINOR, 2);
    put(block + 12, part, 4);
    memcpy(block + 16, uuid->bytes, 16);
    memcpy(block + 32, id->bytes, 16);
    seal(block);
}

nf_status nf_head_decode(const uint8_t block[NF_BLOCK], const char *path, nf_id *uuid, uint32_t *part, nf_id *id, nf_error *err) {
    if (memcmp(block, head_magic, 8) != 0)
        return nf_fail(err, NF_ERR_FORMAT, "%s: is not a .ninfer container (no NINFER magic)%s", path,
                       !memcmp(block, "NINFER\0\1", 8) ? "; it is a file of an older format: convert the model again" : "");
    if (get(block + 8, 2) > NF_FORMAT_MAJOR)
        return nf_fail(err, NF_ERR_UNSUPPORTED, "%s: container format version %u.%u needs a newer program; this one (%s) reads version %d",
                       path, (unsigned)get(block + 8, 2), (unsigned)get(block + 10, 2), nf_version(), NF_FORMAT_MAJOR);
    if (!sealed(block)) return nf_fail(err, NF_ERR_FORMAT, "%s: the head block is damaged (checksum differs)", path);
    memcpy(uuid->bytes, block + 16, 16);
    memcpy(id->bytes, block + 32, 16);
    *part = (uint32_t)get(block + 12, 4);
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
    if (memcmp(block, slot_magic, 8) != 0 || !sealed(block) || memcmp(block + 56, uuid->bytes, 16) != 0) return false;
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
    if (getrandom(out->bytes, sizeof out->bytes, 0) != (ssize_t)sizeof out->bytes)
        return nf_fail_errno(err, errno, "cannot get random bytes");
    return NF_OK;
}

char *nf_part_path(const char *path, size_t part, const char *suffix, nf_error *err) {
    nf_buf name = {0};
    nf_status status = part ? nf_buf_printf(&name, err, "%s.part-%04zu%s", path, part, suffix)
                            : nf_buf_printf(&name, err, "%s%s", path, suffix);
    if (status) nf_buf_free(&name);
    return nf_buf_take(&name);
}
