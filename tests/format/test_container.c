/* Round trips, verification, hostile bytes. Crashes are in test_container_crash.c. */
#include "tests/format/container_fixture.h"

#include "base/io.h"
#include "format/container_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t part_sizes[] = {0, 2120000, 2101248 + 4096};

static void test_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        nf_error err = {0};
        char name[32];
        snprintf(name, sizeof name, "round-%d.ninfer", i);
        const char *path = temp_path(name);
        OK(write_model(path, part_sizes[i], &err));
        nf_container *c;
        OK(nf_container_open(path, &c, &err));
        if (i) assert_true(nf_container_part_count(c) > (size_t)i);
        else assert_int_equal(nf_container_part_count(c), 1);
        expect_model(c, 0);
        assert_int_equal(nf_container_generation(c), 1);
        assert_int_equal(nf_container_find(c, "bank.0")->segments[0].offset % (2 << 20), 0);
        nf_container_close(c);
        OK(nf_container_verify(path, 2, NULL, NULL, NULL, NULL, &err));
        for (uint64_t seed = 1000; seed < 5000; seed += 1000) { /* several add-ons on top of each other */
            OK(write_addon(path, part_sizes[i], seed, &err));
            OK(nf_container_open(path, &c, &err));
            expect_model(c, seed);
            assert_int_equal(nf_container_generation(c), 1 + seed / 1000);
            nf_container_close(c);
            OK(nf_container_verify(path, 2, NULL, NULL, NULL, NULL, &err));
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    nf_error err = {0};
    nf_writer *w;
    const char *path = temp_path("refuse.ninfer");
    assert_int_equal(nf_writer_create(temp_path("x.bin"), NULL, &w, &err), NF_ERR_ARGUMENT);
    OK(write_model(path, 0, &err));
    assert_int_equal(nf_writer_create(path, NULL, &w, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "exists already"));
    assert_int_equal(write_model(temp_path("small.ninfer"), 100000, &err), NF_ERR_LIMIT);
    assert_non_null(strstr(err.message, "must have at least"));
    assert_int_equal(access(temp_path("small.ninfer.tmp"), F_OK), -1);
    /* Two at once: the second is told so, the first is not disturbed. */
    nf_writer *first;
    OK(nf_writer_append(path, NULL, &first, &err));
    assert_int_equal(nf_writer_append(path, NULL, &w, &err), NF_ERR_BUSY);
    OK(nf_writer_finish(first, &err));
    OK(nf_writer_create(temp_path("two.ninfer"), NULL, &first, &err));
    assert_int_equal(nf_writer_create(temp_path("two.ninfer"), NULL, &w, &err), NF_ERR_BUSY);
    OK(nf_writer_finish(first, &err));
    /* What was reserved must be written. */
    nf_object o = {.name = "t", .component = "text", .format = {NF_TYPE_U8, 0}, .n_dims = 1, .shape = {10}, .bytes = 10};
    size_t handle;
    OK(nf_writer_create(temp_path("half.ninfer"), NULL, &w, &err));
    OK(nf_writer_add(w, &o, &handle, &err));
    assert_int_equal(nf_writer_add(w, &o, &handle, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_writer_finish(w, &err), NF_ERR_INTERNAL);
    assert_int_equal(access(temp_path("half.ninfer"), F_OK), -1);
}

static void test_parts_of_another_addon_are_refused(void **state) {
    (void)state;
    nf_error err = {0};
    const char *a = temp_path("a.ninfer"), *b = temp_path("b.ninfer");
    nf_buf bytes = {0};
    OK(write_model(a, 0, &err));
    OK(nf_read_file(a, 1u << 30, &bytes, &err));
    OK(nf_write_file_atomic(b, bytes.data, bytes.len, &err)); /* a copy of the model, then different add-ons */
    nf_buf_free(&bytes);
    OK(write_addon(a, 0, 1000, &err));
    OK(write_addon(b, 0, 2000, &err));
    assert_int_equal(rename(temp_path("b.ninfer.part-0001"), temp_path("a.ninfer.part-0001")), 0);
    nf_container *c;
    assert_int_equal(nf_container_open(a, &c, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "a.ninfer.part-0001"));
    assert_non_null(strstr(err.message, "another add-on"));
    assert_int_equal(nf_container_open(b, &c, &err), NF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "b.ninfer.part-0001"));
}

static void flip(const char *path, uint64_t at) {
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void count_findings(void *user, nf_finding_level level, const char *message) {
    int *n = user;
    assert_non_null(message);
    n[level]++;
}

/* One flipped byte in every region of every part: objects (first, middle, last byte of each segment), all padding (first and last
 * byte of each gap), heads, slots, directory. */
static void test_every_flip_is_found(void **state) {
    (void)state;
    nf_error err = {0};
    const char *path = temp_path("flip.ninfer");
    OK(write_model(path, part_sizes[1], &err));
    OK(write_addon(path, part_sizes[1], 1000, &err));
    nf_container *c;
    OK(nf_container_open(path, &c, &err));
    struct {
        size_t part;
        uint64_t at;
    } spots[4096];
    size_t n = 0;
    for (size_t p = 0; p < nf_container_part_count(c); p++) {
        uint64_t length, end = p ? NF_PARTN_DATA : NF_PART0_DATA;
        nf_container_part(c, p, NULL, &length, NULL);
        spots[n].part = p, spots[n++].at = 0;
        spots[n].part = p, spots[n++].at = 4095;
        spots[n].part = p, spots[n++].at = 2000;
        for (;;) { /* segments of this part in order, and the gaps before them */
            const nf_segment *next = NULL;
            for (size_t i = 0; i < nf_container_object_count(c); i++)
                for (size_t s = 0; s < nf_container_object(c, i)->n_segments; s++) {
                    const nf_segment *x = &nf_container_object(c, i)->segments[s];
                    if (x->part == p && x->offset >= end && (!next || x->offset < next->offset)) next = x;
                }
            if (!next) break;
            if (next->offset > end) {
                spots[n].part = p, spots[n++].at = end;
                spots[n].part = p, spots[n++].at = next->offset - 1;
            }
            spots[n].part = p, spots[n++].at = next->offset;
            spots[n].part = p, spots[n++].at = next->offset + next->length / 2;
            spots[n].part = p, spots[n++].at = next->offset + next->length - 1;
            end = next->offset + next->length;
        }
        if (!p && length % 4096) spots[n].part = 0, spots[n++].at = length;
    }
    const nf_slot in_force = c->slot[c->slot_in_force];
    const uint64_t slot_at = c->slot_in_force ? NF_SLOT_B : NF_SLOT_A, other_at = c->slot_in_force ? NF_SLOT_A : NF_SLOT_B;
    spots[n].part = 0, spots[n++].at = in_force.offset;
    spots[n].part = 0, spots[n++].at = in_force.offset + in_force.stored - 1;
    char *part_path[16];
    size_t n_parts = nf_container_part_count(c);
    assert_true(n_parts >= 3 && n_parts < 16);
    for (size_t p = 0; p < n_parts; p++) {
        const char *name;
        nf_container_part(c, p, &name, NULL, NULL);
        part_path[p] = strdup(name);
    }
    nf_container_close(c);
    assert_true(n > 30);
    for (size_t i = 0; i < n; i++) {
        int found[3] = {0};
        flip(part_path[spots[i].part], spots[i].at);
        nf_status status = nf_container_verify(path, 2, count_findings, found, NULL, NULL, &err);
        if (!status || !found[NF_FINDING_ERROR]) fail_msg("a flipped byte %llu of part %zu was not found", (unsigned long long)spots[i].at, spots[i].part);
        flip(part_path[spots[i].part], spots[i].at);
    }
    int found[3] = {0};
    OK(nf_container_verify(path, 2, count_findings, found, NULL, NULL, &err));
    assert_int_equal(found[NF_FINDING_ERROR] + found[NF_FINDING_WARNING], 0);
    /* A broken stale slot is a warning; a broken slot in force gives the state before, which is whole. */
    flip(part_path[0], other_at + 100);
    OK(nf_container_verify(path, 2, count_findings, found, NULL, NULL, &err));
    assert_int_equal(found[NF_FINDING_WARNING], 1);
    flip(part_path[0], other_at + 100);
    flip(part_path[0], slot_at + 100);
    OK(nf_container_open(path, &c, &err));
    expect_model(c, 0);
    nf_container_close(c);
    for (size_t p = 0; p < n_parts; p++) free(part_path[p]);
}

static void test_unused_tail_is_a_note(void **state) {
    (void)state;
    nf_error err = {0};
    const char *path = temp_path("tail.ninfer");
    int found[3] = {0};
    OK(write_model(path, 0, &err));
    FILE *f = fopen(path, "ab");
    for (int i = 0; i < 10000; i++) fputc('x', f);
    fclose(f);
    OK(nf_container_verify(path, 1, count_findings, found, NULL, NULL, &err));
    assert_int_equal(found[NF_FINDING_NOTE], 1);
    OK(write_addon(path, 0, 1000, &err)); /* reclaims it */
    nf_container *c;
    OK(nf_container_open(path, &c, &err));
    expect_model(c, 1000);
    nf_container_close(c);
}

/* Opens damaged bytes; whatever happens, it must not crash, and what opens must be checkable. */
static void try_open(const char *path, const uint8_t *bytes, size_t n) {
    nf_error err = {0};
    nf_container *c = NULL;
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    if (nf_container_open(path, &c, &err)) {
        assert_true(strlen(err.message) > 10);
        return;
    }
    for (size_t i = 0; i < nf_container_object_count(c); i++) nf_container_check(c, nf_container_object(c, i), UINT64_MAX, &err);
    nf_container_close(c);
}

static void test_hostile_bytes(void **state) {
    (void)state;
    nf_error err = {0};
    const char *good = temp_path("good.ninfer"), *bad = temp_path("bad.ninfer");
    /* Small: no bank, so that no 2 MiB gap slows the test. */
    nf_writer *w;
    OK(nf_writer_create(good, NULL, &w, &err));
    OK(nf_writer_meta(w, "k", "v", &err));
    OK(add_tensor(w, "tensor.a", "text", 3000, 1, &err));
    OK(add_rows(w, "rows", 7, &err));
    OK(nf_writer_add_blob(w, "blob", "text", text_blob, sizeof text_blob, &err));
    OK(nf_writer_finish(w, &err));
    nf_buf bytes = {0};
    OK(nf_read_file(good, 1u << 30, &bytes, &err));
    for (size_t n = 0; n < bytes.len; n += n < 200 ? 1 : 509) try_open(bad, (uint8_t *)bytes.data, n);
    /* Flips in the directory alone are caught by its checksum; with checksums made good again the decoder itself is tested. */
    uint64_t seed = 99;
    nf_container *c;
    OK(nf_container_open(good, &c, &err));
    nf_slot slot = c->slot[0];
    nf_id uuid = c->dir.uuid;
    nf_buf raw = {0};
    OK(nf_directory_encode(&c->dir, &raw, &err));
    nf_container_close(c);
    uint8_t *copy = malloc(bytes.len + raw.len + 65536);
    for (int round = 0; round < 4000; round++) {
        memcpy(copy, bytes.data, bytes.len);
        nf_buf damaged = {0};
        OK(nf_buf_append(&damaged, raw.data, raw.len, &err));
        for (int k = 0; k < 1 + round % 4; k++) {
            size_t at = next_random(&seed) % raw.len;
            damaged.data[at] = (char)(round % 2 ? next_random(&seed) : (uint64_t)(damaged.data[at] ^ (1 << next_random(&seed) % 8)));
        }
        if (round % 7 == 0) damaged.len = next_random(&seed) % raw.len;
        nf_directory decoded;
        if (!nf_directory_decode((uint8_t *)damaged.data, damaged.len, "x", &decoded, &err)) nf_directory_free(&decoded);
        /* and through the file: as a zstd frame of one raw block, with slot and checksums made good */
        size_t at = (bytes.len + 4095) / 4096 * 4096, n = damaged.len;
        uint8_t frame[] = {0x28, 0xB5, 0x2F, 0xFD, 0xA0, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), 0, (uint8_t)(1 | n << 3), (uint8_t)(n >> 5), (uint8_t)(n >> 13)};
        memset(copy + bytes.len, 0, at - bytes.len);
        memcpy(copy + at, frame, sizeof frame);
        memcpy(copy + at + sizeof frame, damaged.data, n);
        slot.offset = at;
        slot.stored = sizeof frame + n;
        slot.raw = round % 13 ? n : next_random(&seed) % (1u << 28);
        slot.hash = nf_hash(copy + at, slot.stored);
        nf_slot_encode(&slot, &uuid, copy + NF_SLOT_A);
        if (round % 8 == 0) try_open(bad, copy, at + slot.stored);
        nf_buf_free(&damaged);
    }
    free(copy);
    nf_buf_free(&raw);
    nf_buf_free(&bytes);
}

static void test_newer_versions_are_refused(void **state) {
    (void)state;
    nf_error err = {0};
    const char *path = temp_path("new.ninfer");
    nf_container *c;
    OK(write_model(path, 0, &err));
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "\x02", 1, 8), 1);
    close(fd);
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "version 2.0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refusals), cmocka_unit_test(test_parts_of_another_addon_are_refused),
        cmocka_unit_test(test_every_flip_is_found), cmocka_unit_test(test_unused_tail_is_a_note), cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_newer_versions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
