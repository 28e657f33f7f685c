/*
 * Damaged and hostile containers: truncated files, forged directories with valid checksums, zstd bombs,
 * random damage. The reader refuses them with a message and never crashes (run with sanitizers).
 */
#include "container_fixture.h"

#include <zstd.h>

#define SMALL_PARTS 2200000u

/* ---- what the reader refuses ---- */

static void truncated_files_do_not_open(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, SMALL_PARTS, objects, FX_OBJECTS, 1, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    uint64_t directory_end = c->slot[0].offset + c->slot[0].stored, part1 = c->dir.parts[1].length;
    nf_container_close(c);
    char part[FX_PATH + 64];
    snprintf(part, sizeof part, "%s", fx_path(folder, "m.ninfer.part-0001"));
    nf_buf one = {0};
    fx_ok(nf_read_file(part, SIZE_MAX / 2, &one, &err), &err);
    for (uint64_t n = part1; n-- > 0; n = n > 20000 ? n - 9973 : n > 300 ? n - 299 : n) {
        assert_int_equal(truncate(part, (off_t)n), 0);
        assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
        assert_non_null(strstr(err.message, "part-0001"));
    }
    fx_ok(nf_write_file_atomic(part, one.data, one.len, &err), &err);
    nf_buf_free(&one);
    for (uint64_t n = directory_end; n-- > 0; n = n > 20000 ? n - 9973 : n > 300 ? n - 299 : n) {
        assert_int_equal(truncate(path, (off_t)n), 0);
        assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
        assert_true(fx_verify(path).errors > 0);
    }
    fx_remove_folder(folder);
}

/* Rewrites directory and slot A of a one-directory container with valid checksums: hostile, not merely
 * damaged. */
static void forge(const char *path, const uint8_t *raw, size_t n, uint64_t claimed_raw, const uint8_t *frame,
                  size_t frame_bytes) {
    nf_container *c;
    nf_error err = {0};
    fx_ok(nf_container_open_parts(path, NULL, NULL, &c, &err), &err);
    nf_slot slot = c->slot[0];
    nf_id uuid = c->dir.uuid;
    nf_container_close(c);
    uint8_t *packed = malloc(ZSTD_compressBound(n) + frame_bytes + 1), block[NF_BLOCK];
    assert_non_null(packed);
    slot.stored = frame ? frame_bytes : ZSTD_compress(packed, ZSTD_compressBound(n), raw, n, 1);
    if (frame) memcpy(packed, frame, frame_bytes);
    slot.raw = claimed_raw;
    slot.hash = nf_hash(packed, slot.stored);
    nf_slot_encode(&slot, &uuid, block);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, packed, slot.stored, (off_t)slot.offset), (ssize_t)slot.stored);
    assert_int_equal(pwrite(fd, block, NF_BLOCK, NF_SLOT_A), NF_BLOCK);
    close(fd);
    free(packed);
}

static nf_buf directory_bytes(const char *path) {
    nf_container *c;
    nf_error err = {0};
    nf_buf raw = {0};
    fx_ok(nf_container_open_parts(path, NULL, NULL, &c, &err), &err);
    fx_ok(nf_directory_encode(&c->dir, &raw, &err), &err);
    nf_container_close(c);
    return raw;
}

static void zstd_bombs_are_refused(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64], copy[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    snprintf(copy, sizeof copy, "%s", fx_path(folder, "copy.ninfer"));
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_error err = {0};
    nf_container *c;
    fx_ok(fx_create(path, 0, &tensor, 1, 1, &err), &err);
    size_t n = 80u << 20;
    uint8_t *zeros = calloc(1, n), *frame = malloc(ZSTD_compressBound(n));
    assert_true(zeros && frame);
    size_t frame_bytes = ZSTD_compress(frame, ZSTD_compressBound(n), zeros, n, 1);
    const uint64_t claims[] = {n, 1000, 64u << 20, UINT64_MAX, 0};
    for (int i = 0; i < 5; i++) {
        fx_copy_file(path, copy);
        forge(copy, NULL, 0, claims[i], frame, frame_bytes);
        assert_int_equal(nf_container_open(copy, &c, &err), NF_ERR_FORMAT);
    }
    free(zeros);
    free(frame);
    fx_remove_folder(folder);
}

static void forged_directories_are_refused(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64], copy[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    snprintf(copy, sizeof copy, "%s", fx_path(folder, "copy.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    nf_container *c, *good;
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 1, &err), &err);
    fx_ok(nf_container_open(path, &good, &err), &err);
    static const char *const expect[] = {
        "misplaced",      "misplaced",    "misplaced",    "misplaced",    "overlap",
        "used twice",     "do not agree", "do not agree", "do not agree", "checksum table",
        "checksum table", "impossible",   "do not agree", "misplaced",    "overlaps an object"};
    for (int k = 0; k < 15; k++) {
        nf_entry *o = good->dir.objects, saved[4] = {o[0], o[2], o[5], o[8]};
        nf_segment s0 = o[0].segments[0], s5 = o[5].segments[0];
        nf_part_entry part = good->dir.parts[0];
        switch (k) {
        case 0:
            o[0].segments[0].offset = 1ull << 40;
            break;
        case 1:
            o[0].segments[0].offset += 512;
            break;
        case 2:
            o[0].segments[0].offset = 8192;
            break; /* on slot B */
        case 3:
            o[5].segments[0].offset += 4096;
            break; /* a bank off its alignment */
        case 4:
            o[0].segments[0].offset = o[2].segments[0].offset;
            break;
        case 5:
            o[0].pub.name = "wide.i8";
            break;
        case 6:
            o[0].pub.shape[0] = UINT64_MAX;
            break;
        case 7:
            o[5].pub.matrix[2].offset += 64;
            break;
        case 8:
            o[8].pub.raw_bytes = UINT64_MAX;
            break;
        case 9:
            o[5].checks_first = UINT64_MAX - 3;
            break;
        case 10:
            o[5].checks_object = 0;
            break;
        case 11:
            good->dir.parts[0].length = 1ull << 60;
            break;
        case 12:
            o[2].pub.shape[0] = 1ull << 62, o[2].pub.shape[1] = 1ull << 62;
            break;
        case 13:
            o[0].segments[0].part = 4095;
            break;
        case 14:
            good->dir.parts[0].length += 4096;
            break;
        }
        nf_buf raw = {0};
        fx_ok(nf_directory_encode(&good->dir, &raw, &err), &err);
        o[0] = saved[0], o[2] = saved[1], o[5] = saved[2], o[8] = saved[3];
        o[0].segments[0] = s0, o[5].segments[0] = s5;
        good->dir.parts[0] = part;
        fx_copy_file(path, copy);
        forge(copy, (const uint8_t *)raw.data, raw.len, raw.len, NULL, 0);
        assert_int_equal(nf_container_open(copy, &c, &err), NF_ERR_FORMAT);
        if (!strstr(err.message, expect[k])) fail_msg("case %d: %s", k, err.message);
        nf_buf_free(&raw);
    }
    nf_container_close(good);
    fx_remove_folder(folder);
}

/* Appends an item to a raw directory and opens the result. */
static nf_status open_with_item(const char *folder, uint32_t key, const void *payload, size_t n,
                                nf_error *err) {
    const char *path = fx_path(folder, "m.ninfer"), *copy = fx_path(folder, "copy.ninfer");
    nf_buf raw = directory_bytes(path);
    fx_ok(nf_buf_u32(&raw, key, err), err);
    fx_ok(nf_buf_u32(&raw, (uint32_t)n, err), err);
    fx_ok(nf_buf_append(&raw, payload, n, err), err);
    fx_copy_file(path, copy);
    forge(copy, (const uint8_t *)raw.data, raw.len, raw.len, NULL, 0);
    nf_buf_free(&raw);
    nf_container *c;
    nf_status status = nf_container_open(copy, &c, err);
    if (!status) nf_container_close(c);
    return status;
}

static void unknown_items_follow_the_version_policy(void **state) {
    (void)state;
    char *folder = fx_folder();
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_error err = {0};
    nf_container *c;
    fx_ok(fx_create(fx_path(folder, "m.ninfer"), 0, &tensor, 1, 1, &err), &err);
    fx_ok(open_with_item(folder, 77, "future", 6, &err), &err);
    assert_int_equal(open_with_item(folder, 0x80000000u | 77, "future", 6, &err), NF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "newer NInfer"));
    /* Metadata with bad UTF-8, a NUL, a key that is there already, no value. */
    static const char bad_utf8[] = "\1\0\0\0\1\0\0\0k\2\0\0\0\1\0\0\0\xff",
                      with_nul[] = "\1\0\0\0\2\0\0\0k\0\2\0\0\0\0\0\0\0";
    static const char twice[] = "\1\0\0\0\4\0\0\0seed\2\0\0\0\1\0\0\0v", no_value[] = "\1\0\0\0\1\0\0\0k";
    static const char fine[] = "\1\0\0\0\1\0\0\0k\2\0\0\0\1\0\0\0v\11\0\0\0\1\0\0\0?";
    fx_ok(open_with_item(folder, 5, fine, sizeof fine - 1, &err), &err);
    assert_int_equal(open_with_item(folder, 5, bad_utf8, sizeof bad_utf8 - 1, &err), NF_ERR_FORMAT);
    assert_int_equal(open_with_item(folder, 5, with_nul, sizeof with_nul - 1, &err), NF_ERR_FORMAT);
    assert_int_equal(open_with_item(folder, 5, twice, sizeof twice - 1, &err), NF_ERR_FORMAT);
    assert_int_equal(open_with_item(folder, 5, no_value, sizeof no_value - 1, &err), NF_ERR_FORMAT);
    /* A newer major version. */
    const char *path = fx_path(folder, "m.ninfer");
    uint8_t block[NF_BLOCK];
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, block, NF_BLOCK, 0), NF_BLOCK);
    block[8] = 2;
    memcpy(block + 48, "9.8.7", 6);
    XXH128_canonical_t hash = nf_hash(block, NF_BLOCK - 16);
    memcpy(block + NF_BLOCK - 16, &hash, 16);
    assert_int_equal(pwrite(fd, block, NF_BLOCK, 0), NF_BLOCK);
    close(fd);
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "use version 9.8.7 or newer"));
    fx_remove_folder(folder);
}

static void too_many_of_anything_is_refused(void **state) {
    (void)state;
    nf_error err = {0};
    nf_directory d;
    /* 4097 parts, 1025 components, a segment list of 4097. */
    nf_buf raw = {0};
    for (int i = 0; i < 4097; i++) {
        fx_ok(nf_buf_append(&raw, "\2\0\0\0\30\0\0\0", 8, &err), &err);
        fx_ok(nf_buf_append(&raw, "0123456789abcdef\0\0\0\1\0\0\0\0", 24, &err), &err);
    }
    assert_int_equal(nf_directory_decode((uint8_t *)raw.data, raw.len, "x", &d, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "more than 4096 parts"));
    raw.len = 0;
    for (int i = 0; i < 1025; i++)
        fx_ok(nf_buf_append(&raw, "\3\0\0\0\11\0\0\0\1\0\0\0\1\0\0\0c", 17, &err), &err);
    assert_int_equal(nf_directory_decode((uint8_t *)raw.data, raw.len, "x", &d, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "more than 1024 components"));
    raw.len = 0;
    const uint32_t segments = 4097 * 24;
    fx_ok(nf_buf_u32(&raw, 4, &err), &err);
    fx_ok(nf_buf_u32(&raw, segments + 8, &err), &err);
    fx_ok(nf_buf_u32(&raw, 6, &err), &err);
    fx_ok(nf_buf_u32(&raw, segments, &err), &err);
    fx_ok(nf_buf_reserve(&raw, segments, &err), &err);
    memset(raw.data + raw.len, 0, segments);
    raw.len += segments;
    assert_int_equal(nf_directory_decode((uint8_t *)raw.data, raw.len, "x", &d, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "segments"));
    nf_buf_free(&raw);
}

static void random_damage_never_crashes(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 1, &err), &err);
    nf_buf raw = directory_bytes(path);
    uint64_t random = 88172645463325252ull, opened = 0, refused = 0;
    uint8_t *mutant = malloc(raw.len + 64);
    assert_non_null(mutant);
    /* The decoder alone: flips, overwritten lengths, cuts. */
    for (int round = 0; round < 30000; round++) {
        size_t n = raw.len;
        memcpy(mutant, raw.data, n);
        for (uint64_t k = fx_random(&random) % 4; k-- > 0;) {
            size_t at = fx_random(&random) % n;
            static const uint8_t edge[] = {0, 1, 0x7f, 0x80, 0xff};
            if (fx_random(&random) % 2)
                mutant[at] ^= (uint8_t)(1u << fx_random(&random) % 8);
            else
                memset(mutant + at, edge[fx_random(&random) % 5],
                       n - at < 8 ? n - at : fx_random(&random) % 8);
        }
        if (fx_random(&random) % 8 == 0) n = fx_random(&random) % n;
        nf_directory d;
        /* An exact copy, so that a sanitizer sees a read behind the end. */
        uint8_t *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, mutant, n);
        if (nf_directory_decode(exact, n, "fuzz", &d, NULL))
            refused++;
        else {
            opened++;
            nf_directory_free(&d);
        }
        free(exact);
    }
    assert_true(opened > 1000 && refused > 10000);
    /* Whole files with valid checksums around damaged directories; what opens must be readable without a
     * fault. */
    opened = 0;
    for (int round = 0; round < 300; round++) {
        const char *copy = fx_path(folder, "copy.ninfer");
        if (round % 50 == 0) fx_copy_file(path, copy);
        memcpy(mutant, raw.data, raw.len);
        mutant[fx_random(&random) % raw.len] ^= (uint8_t)(1u << fx_random(&random) % 8);
        forge(copy, mutant, raw.len, raw.len, NULL, 0);
        nf_container *c;
        if (!nf_container_open(copy, &c, &err)) {
            opened++;
            for (size_t i = 0; i < nf_container_object_count(c); i++) {
                const nf_object *o = nf_container_object(c, i);
                nf_buf blob = {0};
                if (o->kind == NF_OBJECT_BLOB) (void)nf_container_read_blob(c, o, &blob, NULL);
                nf_buf_free(&blob);
                (void)nf_container_check(c, o, UINT64_MAX, NULL);
            }
            nf_container_close(c);
        }
        (void)nf_container_verify(copy, 2, NULL, NULL, NULL, NULL, NULL);
        /* forge() reads the file it changes: start again from one that opens. */
        fx_copy_file(path, copy);
    }
    assert_true(opened > 10);
    free(mutant);
    nf_buf_free(&raw);
    fx_remove_folder(folder);
}

static void utf8_is_checked(void **state) {
    (void)state;
    static const char *const good[] = {
        "", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "\xEF\xBF\xBF"};
    static const char *const bad[] = {"\x80",
                                      "\xC3",
                                      "\xC0\xAF",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xE2\x82",
                                      "\xF0\x8F\xBF\xBF",
                                      "a\xFF"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(nf_directory_text_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(nf_directory_text_valid(bad[i], strlen(bad[i])));
}

static void odd_paths_get_clear_errors(void **state) {
    (void)state;
    char *folder = fx_folder();
    nf_container *c;
    nf_error err = {0};
    assert_int_equal(nf_container_open(fx_path(folder, "none.ninfer"), &c, &err), NF_ERR_NOT_FOUND);
    assert_int_equal(nf_container_open(folder, &c, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "not a regular file"));
    fx_ok(nf_write_file_atomic(fx_path(folder, "a.ninfer"), "", 0, &err), &err);
    assert_int_equal(nf_container_open(fx_path(folder, "a.ninfer"), &c, &err), NF_ERR_FORMAT);
    assert_int_equal(mkfifo(fx_path(folder, "b.ninfer"), 0600), 0);
    assert_int_equal(nf_container_open(fx_path(folder, "b.ninfer"), &c, &err), NF_ERR_FORMAT);
    fx_remove_folder(folder);
}

int main(void) {
    fx_use_quick_ops();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_files_do_not_open),
        cmocka_unit_test(zstd_bombs_are_refused),
        cmocka_unit_test(forged_directories_are_refused),
        cmocka_unit_test(unknown_items_follow_the_version_policy),
        cmocka_unit_test(too_many_of_anything_is_refused),
        cmocka_unit_test(random_damage_never_crashes),
        cmocka_unit_test(utf8_is_checked),
        cmocka_unit_test(odd_paths_get_clear_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
