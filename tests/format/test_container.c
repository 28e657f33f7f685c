/* The container: round trips, add-ons, parts, what verify finds, and what the writer and the reader refuse.
 */
#include "container_fixture.h"

#include <omp.h>

#define SMALL_PARTS 2200000u

static void expect_clean(const char *path) {
    fx_findings f = fx_verify(path);
    if (f.errors || f.warnings || f.notes) fail_msg("verify: %s", f.all);
}

static void expect_all(const char *path, uint64_t seed) {
    nf_object objects[FX_OBJECTS];
    nf_container *c;
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(nf_container_open(path, &c, &err), &err);
    assert_int_equal(nf_container_object_count(c), FX_OBJECTS + 1);
    for (size_t i = 0; i < FX_OBJECTS; i++) fx_expect(c, &objects[i], seed);
    assert_string_equal(nf_container_meta(c, "model.name"), "Prüfmodell");
    assert_null(nf_container_meta(c, "model"));
    assert_null(nf_container_find(c, "wide"));
    nf_container_close(c);
}

/* ---- round trips ---- */

static void one_part(void **state) {
    (void)state;
    nf_file_ops_in_use = &nf_posix_file_ops; /* once as users run it */
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 1, &err), &err);
    assert_int_equal(fx_count(folder, ""), 1);
    expect_all(path, 1);
    expect_clean(path);
    fx_remove_folder(folder);
    fx_use_quick_ops();
}

static void many_parts(void **state) {
    (void)state;
    char *folder = fx_folder();
    char path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    objects[2] =
        fx_matrix("wide.i8", NF_TYPE_I8, NF_CODEBOOK_NONE, 3000, 3000); /* 9.6 MB: spans parts by itself */
    fx_ok(fx_create(path, SMALL_PARTS, objects, FX_OBJECTS, 2, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    assert_true(nf_container_part_count(c) >= 5);
    assert_int_equal(fx_count(folder, ""), (int)nf_container_part_count(c));
    size_t banks_divided = 0;
    for (size_t i = 0; i < nf_container_object_count(c); i++) {
        const nf_object *o = nf_container_object(c, i);
        for (size_t s = 0; s < o->n_segments; s++) {
            assert_int_equal(o->segments[s].offset % 4096, 0);
            if (o->kind == NF_OBJECT_BANK) assert_int_equal(o->segments[s].length % o->expert_stride, 0);
        }
        if (o->kind == NF_OBJECT_BANK) assert_int_equal(o->segments[0].offset % (2u << 20), 0);
        banks_divided += o->kind == NF_OBJECT_BANK && o->n_segments > 1;
    }
    assert_true(banks_divided > 0);
    for (size_t i = 0; i < nf_container_part_count(c); i++) {
        uint64_t length;
        const char *part_path;
        nf_container_part(c, i, &part_path, &length, NULL);
        assert_true(length <= SMALL_PARTS);
        if (i) assert_int_equal(fx_size(part_path), length);
    }
    for (size_t i = 0; i < FX_OBJECTS; i++) fx_expect(c, &objects[i], 2);
    nf_container_close(c);
    expect_clean(path);
    fx_remove_folder(folder);
}

static void experts_are_written_by_many_threads(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object bank = fx_bank("bank", NF_TYPE_I8, NF_CODEBOOK_NONE, 64, 64, 128);
    uint8_t *bytes = fx_content("bank", 5, bank.bytes);
    nf_writer *w;
    nf_error err = {0};
    size_t handle;
    fx_ok(nf_writer_create(path, &(nf_writer_options){(2u << 20) + 3 * bank.expert_stride}, &w, &err), &err);
    fx_ok(nf_writer_add(w, &bank, &handle, &err), &err);
    int failures = 0;
#pragma omp parallel for num_threads(7) reduction(+ : failures)
    for (uint64_t e = 0; e < 64; e++)
        failures += nf_writer_write_expert(w, handle, e, bytes + e * bank.expert_stride, NULL) != NF_OK;
    assert_int_equal(failures, 0);
    fx_ok(nf_writer_finish(w, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    fx_expect(c, &bank, 5);
    for (uint64_t e = 0; e < 64; e++)
        fx_ok(nf_container_check(c, nf_container_find(c, "bank"), e, &err), &err);
    assert_int_equal(nf_container_check(c, nf_container_find(c, "bank"), 64, &err), NF_ERR_ARGUMENT);
    nf_container_close(c);
    free(bytes);
    fx_remove_folder(folder);
}

static void row_offsets_never_cross_a_block(void **state) {
    (void)state;
    nf_object t = fx_rows("t", NF_TYPE_I8, 1000, 128, 192, 8);
    assert_int_equal(nf_row_table_offset(&t, 0), 0);
    assert_int_equal(nf_row_table_offset(&t, 20), 20 * 192);
    assert_int_equal(nf_row_table_offset(&t, 21), 4096); /* 21 x 192 = 4032, the next would end at 4224 */
    for (uint64_t r = 0; r < 1000; r++) {
        uint64_t at = nf_row_table_offset(&t, r);
        assert_int_equal(at / 4096, (at + 191) / 4096);
        assert_true(at + 192 <= t.bytes);
    }
    nf_object longer = fx_rows("t", NF_TYPE_F32, 3, 1500, 6016, 0);
    assert_int_equal(nf_row_table_offset(&longer, 2), 12032);
}

static void bank_layout_alternates_gate_and_up(void **state) {
    (void)state;
    nf_object b = fx_bank("b", NF_TYPE_F8, NF_CODEBOOK_NONE, 2, 24, 40);
    /* Gate and up: 24 x 40, 3 tiles of 2 blocks of 256 bytes; down: 40 x 24, 5 tiles of 1 block. */
    assert_int_equal(b.matrix[0].offset, 0);
    assert_int_equal(b.matrix[1].offset, 512);
    assert_int_equal(b.matrix[0].tile_stride, 1024);
    assert_int_equal(b.matrix[2].offset, 3072);
    assert_int_equal(b.matrix[2].tile_stride, 256);
    assert_int_equal(b.matrix[0].scale_offset, 4352); /* 3072 + 5 x 256 = 4352 is a multiple of 64 */
    assert_int_equal(b.matrix[1].scale_offset, 4416);
    assert_int_equal(b.matrix[2].scale_offset, 4480);
    assert_int_equal(b.expert_stride, 8192);
    b.matrix[1].cols = 41;
    assert_int_equal(nf_bank_layout(&b, NULL), NF_ERR_ARGUMENT);
    b = (nf_object){.name = "b", .n_experts = 1ull << 40};
    for (int m = 0; m < 3; m++)
        b.matrix[m] = (nf_bank_matrix){.format = {NF_TYPE_I8, 0}, .rows = 1ull << 20, .cols = 1ull << 20};
    assert_int_equal(nf_bank_layout(&b, NULL), NF_ERR_LIMIT);
}

/* ---- add-ons ---- */

static void append_adds_and_replaces(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, SMALL_PARTS, objects, FX_OBJECTS, 1, &err), &err);
    nf_container *before;
    fx_ok(nf_container_open(path, &before, &err), &err);
    size_t old_parts = nf_container_part_count(before);
    XXH128_canonical_t old_hash[64];
    for (size_t i = 1; i < old_parts; i++) {
        nf_buf bytes = {0};
        fx_ok(nf_read_file(before->parts[i].path, SIZE_MAX / 2, &bytes, &err), &err);
        old_hash[i] = nf_hash(bytes.data, bytes.len);
        nf_buf_free(&bytes);
    }
    /* Replaces a bank, a tensor and a blob, adds a component; several generations, so that slots alternate.
     */
    nf_object more[4] = {objects[5], objects[3], objects[8], fx_bank("mtp.bank", NF_TYPE_I8, 0, 6, 32, 64)};
    more[3].component = "mtp";
    for (uint64_t seed = 10; seed < 15; seed++) {
        fx_ok(fx_append(path, SMALL_PARTS, more, 4, seed, &err), &err);
        nf_container *c;
        fx_ok(nf_container_open(path, &c, &err), &err);
        assert_int_equal(nf_container_generation(c), seed - 8);
        assert_string_equal(nf_container_uuid(c), nf_container_uuid(before));
        for (size_t i = 0; i < FX_OBJECTS; i++)
            fx_expect(c, &objects[i], i == 5 || i == 3 || i == 8 ? seed : 1);
        fx_expect(c, &more[3], seed);
        nf_container_close(c);
        fx_findings f = fx_verify(path);
        if (f.errors || f.warnings) fail_msg("verify: %s", f.all);
        assert_non_null(strstr(f.all, "replaced objects"));
    }
    /* A model that was open all the while still reads its own bytes. */
    for (size_t i = 0; i < FX_OBJECTS; i++) fx_expect(before, &objects[i], 1);
    for (size_t i = 1; i < old_parts; i++) {
        nf_buf bytes = {0};
        fx_ok(nf_read_file(before->parts[i].path, SIZE_MAX / 2, &bytes, &err), &err);
        XXH128_canonical_t now = nf_hash(bytes.data, bytes.len);
        assert_true(nf_hash_equal(&now, &old_hash[i]));
        nf_buf_free(&bytes);
    }
    nf_container_close(before);
    fx_remove_folder(folder);
}

static void append_of_metadata_alone_makes_no_part(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 1, &err), &err);
    uint64_t size = fx_size(path);
    for (uint64_t seed = 0; seed < 6; seed++) fx_ok(fx_append(path, 0, NULL, 0, seed, &err), &err);
    assert_int_equal(fx_count(folder, ""), 1);
    assert_true(fx_size(path) <= size + 2 * 8192); /* the tail is reclaimed: two directories, not seven */
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    assert_string_equal(nf_container_meta(c, "seed"), "seed 5");
    nf_container_close(c);
    fx_remove_folder(folder);
}

static void writers_exclude_each_other(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_writer *a, *b;
    nf_error err = {0};
    fx_ok(nf_writer_create(path, NULL, &a, &err), &err);
    assert_int_equal(nf_writer_create(path, NULL, &b, &err), NF_ERR_BUSY);
    assert_int_equal(fx_count(folder, ".tmp-"), 1); /* the loser has not removed the winner's file */
    fx_ok(fx_write_all(a, &tensor, 1, 1, &err), &err);
    assert_int_equal(nf_writer_create(path, NULL, &b, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "exists already"));
    fx_ok(nf_writer_append(path, NULL, &a, &err), &err);
    assert_int_equal(nf_writer_append(path, NULL, &b, &err), NF_ERR_BUSY);
    nf_writer_abort(a);
    fx_ok(nf_writer_append(path, NULL, &a, &err), &err);
    fx_ok(nf_writer_finish(a, &err), &err);
    fx_remove_folder(folder);
}

static void leftovers_of_dead_writers_are_removed(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    static const char *const stale[] = {"m.ninfer.part-0001", "m.ninfer.part-0007", "m.ninfer.tmp-0000",
                                        "m.ninfer.tmp-0003"};
    static const char *const other[] = {"m.ninfer.part-1", "m.ninfer.part-00010", "x.ninfer.part-0001",
                                        "m.ninfer.tmp-000a"};
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_error err = {0};
    for (int i = 0; i < 4; i++) {
        fx_ok(nf_write_file_atomic(fx_path(folder, stale[i]), "old", 3, &err), &err);
        fx_ok(nf_write_file_atomic(fx_path(folder, other[i]), "mine", 4, &err), &err);
    }
    fx_ok(fx_create(path, 0, &tensor, 1, 1, &err), &err);
    assert_int_equal(fx_count(folder, ""), 5);
    fx_ok(nf_write_file_atomic(fx_path(folder, "m.ninfer.part-0001"), "old", 3, &err), &err);
    fx_ok(nf_write_file_atomic(fx_path(folder, "m.ninfer.part-0002"), "old", 3, &err), &err);
    fx_ok(fx_append(path, 0, &tensor, 1, 2, &err), &err);
    assert_int_equal(fx_count(folder, ""), 6);
    assert_int_equal(fx_verify(path).errors, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(fx_size(fx_path(folder, other[i])), 4);
    fx_remove_folder(folder);
}

static void part_of_another_addon_is_refused(void **state) {
    (void)state;
    char *one = fx_folder(), *two = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(one, "m.ninfer"));
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 64, 64), extra = fx_matrix("u", NF_TYPE_I8, 0, 64, 64);
    nf_error err = {0};
    fx_ok(fx_create(path, 0, &tensor, 1, 1, &err), &err);
    fx_copy_folder(one, two);
    fx_ok(fx_append(path, 0, &extra, 1, 2, &err), &err);
    fx_ok(fx_append(fx_path(two, "m.ninfer"), 0, &extra, 1, 2, &err), &err);
    assert_int_equal(fx_verify(path).errors, 0);
    /* Equal bytes but for the part id. */
    fx_copy_file(fx_path(two, "m.ninfer.part-0001"), fx_path(one, "m.ninfer.part-0001"));
    nf_container *c;
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "m.ninfer.part-0001"));
    assert_non_null(strstr(err.message, "another add-on"));
    assert_true(fx_verify(path).errors > 0);
    /* A part of another model, a part under a wrong number, no part. */
    fx_ok(fx_create(fx_path(two, "n.ninfer"), 0, &tensor, 1, 1, &err), &err);
    fx_ok(fx_append(fx_path(two, "n.ninfer"), 0, &extra, 1, 1, &err), &err);
    fx_copy_file(fx_path(two, "n.ninfer.part-0001"), fx_path(one, "m.ninfer.part-0001"));
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "another model"));
    fx_copy_file(path, fx_path(one, "m.ninfer.part-0001"));
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "part 0 of a model"));
    assert_int_equal(unlink(fx_path(one, "m.ninfer.part-0001")), 0);
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "m.ninfer.part-0001"));
    fx_remove_folder(one);
    fx_remove_folder(two);
}

/* ---- verify ---- */

/* Flips a byte, expects a finding that names the file and `what`, flips it back. */
static void expect_found(const char *path, const char *file, uint64_t offset, const char *what,
                         bool warning) {
    fx_flip(file, offset, 0x20);
    fx_findings f = fx_verify(path);
    fx_flip(file, offset, 0x20);
    if (warning ? !f.warnings || f.errors : !f.errors)
        fail_msg("%s: byte %llu: not found", file, (unsigned long long)offset);
    if (!strstr(f.all, file) || !strstr(f.all, what))
        fail_msg("%s: byte %llu: expected '%s' in: %s", file, (unsigned long long)offset, what, f.all);
}

static void verify_finds_a_flipped_byte_everywhere(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS], extra = fx_matrix("extra", NF_TYPE_I8, 0, 100, 200);
    nf_error err = {0};
    fx_objects(objects);
    objects[2] = fx_matrix("wide.i8", NF_TYPE_I8, NF_CODEBOOK_NONE, 2000, 3000);
    fx_ok(fx_create(path, SMALL_PARTS, objects, FX_OBJECTS, 3, &err), &err);
    fx_ok(fx_append(path, SMALL_PARTS, &extra, 1, 4, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    int regions = 0;
    /* Heads, slots and the directory. */
    for (size_t i = 0; i < c->dir.n_parts; i++)
        for (uint64_t at = 0; at < 4096; at += i ? 4095 : 585, regions++)
            expect_found(path, c->parts[i].path, at, at < 6 ? "magic" : at < 8 ? "early" : "damaged", false);
    const nf_slot *slot = &c->slot[c->slot_in_force];
    assert_int_equal(c->slot_in_force, 1);
    for (uint64_t at = 0; at < 4096; at += 585, regions += 2) {
        expect_found(path, path, NF_SLOT_A + at, "slot A", true);
        expect_found(path, path, NF_SLOT_B + at, "slot B",
                     true); /* falls back to the model before, and says so */
    }
    for (uint64_t at = 0; at < slot->stored; at += 97, regions++)
        expect_found(path, path, slot->offset + at, "directory", false);
    /* First, middle and last byte of every segment, and of every expert. */
    for (size_t i = 0; i < c->dir.n_objects; i++) {
        const nf_object *o = &c->dir.objects[i].pub;
        for (size_t s = 0; s < o->n_segments; s++) {
            uint64_t length = o->segments[s].length,
                     step = o->kind == NF_OBJECT_BANK ? o->expert_stride : length;
            for (uint64_t from = 0; from < length; from += step) {
                const uint64_t at[3] = {0, step / 2, step - 1};
                for (int k = 0; k < 3; k++, regions++)
                    expect_found(path, c->parts[o->segments[s].part].path,
                                 o->segments[s].offset + from + at[k], o->name, false);
            }
        }
    }
    /* Every padding: between objects, behind the last one of each part, behind the directory. */
    nf_placed *all;
    size_t n, at = 0, paddings = 0;
    fx_ok(nf_directory_placed(&c->dir, &all, &n, &err), &err);
    for (uint32_t part = 0; part < c->dir.n_parts; part++) {
        uint64_t end = part ? NF_PARTN_DATA : NF_PART0_DATA;
        for (; at < n && all[at].segment.part == part; at++) {
            uint64_t next = all[at].segment.offset;
            for (int k = 0; k < 3 && next > end; k++, paddings++) {
                const uint64_t where[3] = {end, end + (next - end) / 2, next - 1};
                expect_found(path, c->parts[part].path, where[k], "padding", false);
            }
            end = next + all[at].segment.length;
        }
    }
    uint64_t end = slot->offset + slot->stored;
    assert_true(end % 4096 != 0);
    expect_found(path, path, end, "padding", false);
    expect_found(path, path, nf_block_up(end) - 1, "padding", false);
    end = c->dir.parts[0].length;
    if (end % 4096) expect_found(path, path, nf_block_up(end) - 1, "padding", false);
    print_message("%d live places and %zu padding places flipped\n", regions, paddings);
    assert_true(c->dir.n_parts >= 5 && paddings >= 20 && regions >= 200);
    free(all);
    nf_container_close(c);
    assert_int_equal(fx_verify(path).errors, 0);
    fx_remove_folder(folder);
}

static void verify_goes_on_after_errors(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, SMALL_PARTS, objects, FX_OBJECTS, 3, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    static const char *const broken[] = {"wide.i8", "noise", "some.text"};
    for (int i = 0; i < 3; i++) {
        const nf_segment *s = &nf_container_find(c, broken[i])->segments[0];
        fx_flip(c->parts[s->part].path, s->offset + 100, 1);
    }
    nf_container_close(c);
    fx_findings f = fx_verify(path);
    assert_int_equal(f.errors, 3);
    for (int i = 0; i < 3; i++) assert_non_null(strstr(f.all, broken[i]));
    /* A whole part that cannot be used, with the checksum table in it: what can be checked still is. */
    fx_flip(fx_path(folder, "m.ninfer.part-0001"), 16, 1);
    fx_flip(path, NF_PART0_DATA + 420, 1); /* padding behind "norm" */
    f = fx_verify(path);
    assert_int_equal(f.errors, 3);
    assert_non_null(strstr(f.all, "part-0001"));
    assert_non_null(strstr(f.all, "cannot be checked"));
    assert_non_null(strstr(f.all, "padding byte 12708"));
    fx_remove_folder(folder);
}

static void damaged_checksum_table_is_one_finding(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 3, &err), &err);
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    fx_flip(path, nf_container_find(c, "checksums.1")->segments[0].offset, 1);
    nf_container_close(c);
    assert_int_equal(nf_container_open(path, &c, &err), NF_ERR_FORMAT);
    fx_findings f = fx_verify(path);
    assert_true(f.errors == 2); /* the table, and what cannot be checked */
    assert_non_null(strstr(f.all, "cannot be checked"));
    fx_remove_folder(folder);
}

static void unused_tail_is_a_note_and_is_reclaimed(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_error err = {0};
    fx_ok(fx_create(path, 0, &tensor, 1, 1, &err), &err);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    uint64_t size = fx_size(path);
    char junk[10000];
    memset(junk, 'x', sizeof junk);
    assert_int_equal(pwrite(fd, junk, sizeof junk, (off_t)size), sizeof junk);
    close(fd);
    fx_findings f = fx_verify(path);
    assert_int_equal(f.errors + f.warnings, 0);
    assert_int_equal(f.notes, 1);
    assert_non_null(strstr(f.all, "10000 bytes are unused tail"));
    fx_ok(fx_append(path, 0, NULL, 0, 1, &err), &err);
    assert_true(fx_size(path) <= size + 4096);
    assert_int_equal(fx_verify(path).errors, 0);
    fx_remove_folder(folder);
}

static bool cancel_at_once(void *user, const char *phase, uint64_t done, uint64_t total) {
    assert_string_equal(phase, "verify");
    assert_true(done <= total);
    ++*(int *)user;
    return false;
}

static bool count_to_the_end(void *user, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    *(bool *)user = done == total;
    return true;
}

static void verify_reports_progress_and_can_be_cancelled(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object objects[FX_OBJECTS];
    nf_error err = {0};
    fx_objects(objects);
    fx_ok(fx_create(path, 0, objects, FX_OBJECTS, 1, &err), &err);
    int calls = 0;
    bool ended = false;
    assert_int_equal(nf_container_verify(path, 1, NULL, NULL, cancel_at_once, &calls, &err),
                     NF_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    fx_ok(nf_container_verify(path, 2, NULL, NULL, count_to_the_end, &ended, &err), &err);
    assert_true(ended);
    fx_remove_folder(folder);
}

/* ---- what the writer refuses ---- */

static nf_status finish_with(const char *path, const nf_object *o, nf_error *err) {
    nf_writer *w;
    size_t handle;
    fx_ok(nf_writer_create(path, NULL, &w, err), err);
    nf_status status = nf_writer_add(w, o, &handle, err);
    if (!status) {
        uint8_t *bytes = calloc(1, o->bytes + 1);
        assert_non_null(bytes);
        status = nf_writer_write(w, handle, 0, bytes, o->bytes, err);
        free(bytes);
    }
    if (status)
        nf_writer_abort(w);
    else
        status = nf_writer_finish(w, err);
    assert_int_equal(status != NF_OK, access(path, F_OK) != 0);
    return status;
}

static void writer_refuses_what_readers_would(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_error err = {0};
    nf_writer *w;
    char long_name[NF_MAX_NAME + 2];
    memset(long_name, 'n', sizeof long_name);
    long_name[NF_MAX_NAME + 1] = '\0';
    const nf_object good = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    nf_object bad[8];
    for (int i = 0; i < 8; i++) bad[i] = good;
    bad[0].bytes++;
    bad[1].name = "";
    bad[2].name = long_name;
    bad[3].name = "bad \xC0\x80 name";
    bad[4].format.type = NF_TYPE_U8;
    bad[5].component = "checksums";
    bad[6].name = "checksums.1";
    bad[7].metadata = "\xff";
    for (int i = 0; i < 8; i++) {
        assert_int_not_equal(finish_with(path, &bad[i], &err), NF_OK);
        assert_int_equal(fx_count(folder, ""), 0);
    }
    assert_int_equal(nf_writer_create(fx_path(folder, "m.bin"), NULL, &w, &err), NF_ERR_ARGUMENT);
    assert_int_equal(nf_writer_create("/nonexistent/folder/m.ninfer", NULL, &w, &err), NF_ERR_NOT_FOUND);
    assert_int_equal(nf_writer_append(fx_path(folder, "none.ninfer"), NULL, &w, &err), NF_ERR_NOT_FOUND);
    fx_ok(finish_with(path, &good, &err), &err);
    fx_remove_folder(folder);
}

static void unfinished_objects_do_not_publish(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object bank = fx_bank("bank", NF_TYPE_I8, 0, 3, 16, 32), tensor = fx_matrix("t", NF_TYPE_I8, 0, 8, 32);
    uint8_t *bytes = fx_content("bank", 1, bank.bytes);
    nf_error err = {0};
    nf_writer *w;
    size_t b, t;
    for (int kind = 0; kind < 4; kind++) {
        fx_ok(nf_writer_create(path, NULL, &w, &err), &err);
        fx_ok(nf_writer_add(w, &bank, &b, &err), &err);
        fx_ok(nf_writer_add(w, &tensor, &t, &err), &err);
        for (uint64_t e = 0; e < (kind == 0 ? 2 : 3); e++)
            fx_ok(nf_writer_write_expert(w, b, e, bytes + e * bank.expert_stride, &err), &err);
        fx_ok(nf_writer_write(w, t, 0, bytes, kind == 1 ? tensor.bytes - 1 : tensor.bytes, &err), &err);
        if (kind == 2)
            assert_int_equal(nf_writer_write_expert(w, b, 1, bytes, &err), NF_ERR_INTERNAL); /* twice */
        if (kind == 3) assert_int_equal(nf_writer_write(w, t, 5, bytes, 1, &err), NF_ERR_INTERNAL);
        assert_int_equal(nf_writer_finish(w, &err), NF_ERR_INTERNAL);
        assert_int_equal(fx_count(folder, ""), 0);
    }
    free(bytes);
    fx_remove_folder(folder);
}

static void too_small_parts_say_the_minimum(void **state) {
    (void)state;
    char *folder = fx_folder();
    const char *path = fx_path(folder, "m.ninfer");
    nf_object bank = fx_bank("bank", NF_TYPE_I8, 0, 3, 64, 512);
    char minimum[64];
    snprintf(minimum, sizeof minimum, "at least %llu bytes",
             (unsigned long long)((2u << 20) + bank.expert_stride));
    nf_error err = {0};
    assert_int_equal(fx_create(path, (2u << 20) + bank.expert_stride - 1, &bank, 1, 1, &err), NF_ERR_LIMIT);
    assert_non_null(strstr(err.message, minimum));
    assert_int_equal(fx_count(folder, ""), 0);
    fx_ok(fx_create(path, (2u << 20) + bank.expert_stride, &bank, 1, 1, &err), &err);
    expect_clean(path);
    fx_remove_folder(folder);
}

int main(void) {
    fx_use_quick_ops();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_part),
        cmocka_unit_test(many_parts),
        cmocka_unit_test(experts_are_written_by_many_threads),
        cmocka_unit_test(row_offsets_never_cross_a_block),
        cmocka_unit_test(bank_layout_alternates_gate_and_up),
        cmocka_unit_test(append_adds_and_replaces),
        cmocka_unit_test(append_of_metadata_alone_makes_no_part),
        cmocka_unit_test(writers_exclude_each_other),
        cmocka_unit_test(leftovers_of_dead_writers_are_removed),
        cmocka_unit_test(part_of_another_addon_is_refused),
        cmocka_unit_test(verify_finds_a_flipped_byte_everywhere),
        cmocka_unit_test(verify_goes_on_after_errors),
        cmocka_unit_test(damaged_checksum_table_is_one_finding),
        cmocka_unit_test(unused_tail_is_a_note_and_is_reclaimed),
        cmocka_unit_test(verify_reports_progress_and_can_be_cancelled),
        cmocka_unit_test(writer_refuses_what_readers_would),
        cmocka_unit_test(unfinished_objects_do_not_publish),
        cmocka_unit_test(too_small_parts_say_the_minimum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
