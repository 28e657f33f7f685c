/*
 * Crashes: the write log of a conversion and of an add-on is recorded; every prefix of it, every tear of a write at 512 and 4096 bytes,
 * and writes lost because no fsync had come yet, must open as the old state or (for a new container) not at all. Failing operations
 * must leave nothing behind.
 */
#include "tests/format/container_fixture.h"

#include "base/io.h"
#include "format/container_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum op_kind { OP_CREATE, OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_RENAME, OP_UNLINK, OP_SYNC_DIR } op_kind;

typedef struct op {
    op_kind kind;
    char name[64], to[64]; /* base names */
    uint64_t offset, n;
    uint8_t *bytes;
} op;

static op ops[4096];
static size_t n_ops;
static int fail_at = -1, fail_errno, calls; /* the call that fails, counted from 0 */
static char fd_name[256][64];

static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static op *record(op_kind kind, const char *name) {
    assert_true(n_ops < 4096);
    op *o = &ops[n_ops++];
    *o = (op){.kind = kind};
    snprintf(o->name, sizeof o->name, "%s", name);
    return o;
}

static bool fails(void) {
    if (calls++ != fail_at) return false;
    errno = fail_errno;
    return true;
}

static int rec_open(const char *path, int flags, mode_t mode) {
    if (fails()) return -1;
    int fd = open(path, flags, mode);
    if (fd >= 0 && fd < 256) snprintf(fd_name[fd], sizeof fd_name[fd], "%s", base(path));
    if (fd >= 0 && (flags & O_CREAT)) record(OP_CREATE, base(path));
    return fd;
}
static ssize_t rec_pwrite(int fd, const void *bytes, size_t n, off_t offset) {
    if (fails()) return -1;
    if (n > 9000) n = 9000; /* short writes are legal and must be continued */
    op *o = record(OP_WRITE, fd_name[fd]);
    o->offset = (uint64_t)offset;
    o->n = n;
    o->bytes = malloc(n);
    memcpy(o->bytes, bytes, n);
    return pwrite(fd, bytes, n, offset);
}
static int rec_ftruncate(int fd, off_t n) {
    if (fails()) return -1;
    record(OP_TRUNCATE, fd_name[fd])->n = (uint64_t)n;
    return ftruncate(fd, n);
}
static int rec_fsync(int fd) {
    if (fails()) return -1;
    record(OP_SYNC, fd_name[fd]);
    return 0;
}
static int rec_rename(const char *from, const char *to) {
    if (fails()) return -1;
    op *o = record(OP_RENAME, base(from));
    snprintf(o->to, sizeof o->to, "%s", base(to));
    return rename(from, to);
}
static int rec_unlink(const char *path) {
    record(OP_UNLINK, base(path));
    return unlink(path);
}
static int rec_fsync_dir(const char *path) {
    if (fails()) return -1;
    record(OP_SYNC_DIR, base(path));
    return 0;
}
static const nf_file_ops recorder = {rec_open, rec_pwrite, rec_ftruncate, rec_fsync, rec_rename, rec_unlink, rec_fsync_dir};

static void clear_log(void) {
    for (size_t i = 0; i < n_ops; i++) free(ops[i].bytes);
    n_ops = 0;
    calls = 0;
    fail_at = -1;
}

/* ---- replay ---------------------------------------------------------------------------------------------------------------------- */

static char replay_dir[300];

static void in_dir(const char *name, char out[400]) { snprintf(out, 400, "%s/%s", replay_dir, name); }

static void shell(const char *command) {
    if (system(command)) fail_msg("%s", command);
}

static void fresh_dir(const char *from) {
    char command[1000];
    snprintf(replay_dir, sizeof replay_dir, "%s/replay", temp_dir());
    snprintf(command, sizeof command, from ? "rm -rf '%s' && cp -r --sparse=always '%s' '%s'" : "rm -rf '%s' && mkdir '%s'", replay_dir, from ? from : replay_dir, replay_dir);
    shell(command);
}

/* Whether the effect of op i was certainly on disk when the log was cut at `end`. */
static bool durable(size_t i, size_t end) {
    const op *o = &ops[i];
    if (o->kind == OP_RENAME || o->kind == OP_CREATE || o->kind == OP_UNLINK) {
        for (size_t k = i + 1; k < end; k++)
            if (ops[k].kind == OP_SYNC_DIR) return true;
        return false;
    }
    const char *name = o->name;
    for (size_t k = i + 1; k < end; k++) {
        if (ops[k].kind == OP_SYNC && !strcmp(ops[k].name, name)) return true;
    }
    return false;
}

typedef enum loss { LOSE_NOTHING, LOSE_ALL, LOSE_SOME } loss;

/* Applies ops[0..end), the last write only up to `torn` bytes; drops what was not durable according to `how`. */
static void replay(size_t end, uint64_t torn, loss how, uint64_t seed) {
    char path[400], to[400];
    for (size_t i = 0; i < end; i++) {
        const op *o = &ops[i];
        /* A created file that was written to stays: file systems order that. Renames and data may be lost. */
        if (how != LOSE_NOTHING && o->kind != OP_CREATE && !durable(i, end) && (how == LOSE_ALL || next_random(&seed) % 2)) continue;
        in_dir(o->name, path);
        if (o->kind == OP_CREATE) close(open(path, O_CREAT | O_RDWR, 0666));
        if (o->kind == OP_TRUNCATE) (void)!truncate(path, (off_t)o->n);
        if (o->kind == OP_UNLINK) unlink(path);
        if (o->kind == OP_RENAME) {
            in_dir(o->to, to);
            rename(path, to);
        }
        if (o->kind == OP_WRITE) {
            int fd = open(path, O_WRONLY);
            if (fd < 0) continue; /* its file went with a lost rename */
            uint64_t n = i + 1 == end && torn < o->n ? torn : o->n;
            assert_int_equal(pwrite(fd, o->bytes, n, (off_t)o->offset), n);
            close(fd);
        }
    }
}

/* Old state, new state or (when there is no old one) nothing. */
static bool expect_old_or_new(bool has_old, uint64_t new_seed) {
    char path[400];
    nf_error err = {0};
    nf_container *c;
    in_dir("m.ninfer", path);
    if (nf_container_open(path, &c, &err)) {
        if (has_old) fail_msg("the old state is gone: %s", err.message);
        return false;
    }
    bool is_new = !has_old || nf_container_generation(c) == 2;
    if (!has_old) expect_model(c, 0);
    else expect_model(c, is_new ? new_seed : 0);
    nf_container_close(c);
    OK(nf_container_verify(path, 1, NULL, NULL, NULL, NULL, &err));
    return is_new;
}

static void check_all_cuts(const char *old_dir, uint64_t new_seed) {
    bool was_new = false;
    for (size_t end = 0; end <= n_ops; end++) {
        for (int variant = 0; variant < 4; variant++) {
            fresh_dir(old_dir);
            replay(end, UINT64_MAX, variant == 0 ? LOSE_NOTHING : variant == 1 ? LOSE_ALL : LOSE_SOME, end * 8 + (uint64_t)variant + 1);
            bool is_new = expect_old_or_new(old_dir != NULL, new_seed);
            if (!variant && was_new) assert_true(is_new); /* once published it stays */
            if (!variant) was_new = is_new;
        }
        if (!end || ops[end - 1].kind != OP_WRITE) continue;
        uint64_t n = ops[end - 1].n;
        for (uint64_t torn = 512; torn < n; torn += n > 4096 ? 4096 : 512) {
            fresh_dir(old_dir);
            replay(end, torn, LOSE_NOTHING, 0);
            expect_old_or_new(old_dir != NULL, new_seed);
        }
    }
    assert_true(was_new);
}

static void test_crash_while_creating(void **state) {
    (void)state;
    nf_error err = {0};
    clear_log();
    nf_file_ops_in_use = &recorder;
    OK(write_model(temp_path("m.ninfer"), 2120000, &err));
    nf_file_ops_in_use = &nf_posix_file_ops;
    assert_true(n_ops > 20);
    check_all_cuts(NULL, 0);
    char command[600];
    snprintf(command, sizeof command, "rm -f '%s'/m.ninfer*", temp_dir());
    shell(command);
}

static void test_crash_while_adding(void **state) {
    (void)state;
    nf_error err = {0};
    char old_dir[300], work[300], path[400], command[800];
    snprintf(old_dir, sizeof old_dir, "%s/old", temp_dir());
    snprintf(work, sizeof work, "%s/work", temp_dir());
    mkdir(old_dir, 0777);
    snprintf(path, sizeof path, "%s/m.ninfer", old_dir);
    OK(write_model(path, 2120000, &err));
    snprintf(command, sizeof command, "cp -r '%s' '%s'", old_dir, work);
    shell(command);
    snprintf(path, sizeof path, "%s/m.ninfer", work);
    clear_log();
    nf_file_ops_in_use = &recorder;
    OK(write_addon(path, 2120000, 1000, &err));
    nf_file_ops_in_use = &nf_posix_file_ops;
    check_all_cuts(old_dir, 1000);
    /* What a crashed add-on left does not hinder the next one. */
    fresh_dir(old_dir);
    replay(n_ops - 3, UINT64_MAX, LOSE_NOTHING, 0);
    in_dir("m.ninfer", path);
    OK(write_addon(path, 2120000, 3000, &err));
    nf_container *c;
    OK(nf_container_open(path, &c, &err));
    expect_model(c, 3000);
    nf_container_close(c);
}

/* Every operation fails once, with a full disk and with an I/O error: the status says so, nothing opens, nothing is left. */
static void test_failing_operations(void **state) {
    (void)state;
    static const int codes[] = {ENOSPC, EIO};
    for (int k = 0; k < 2; k++) {
        bool failed = true;
        for (int at = 0; failed; at++) {
            nf_error err = {0};
            fresh_dir(NULL);
            char path[400], left[500];
            in_dir("m.ninfer", path);
            clear_log();
            fail_at = at;
            fail_errno = codes[k];
            nf_file_ops_in_use = &recorder;
            nf_status status = write_model(path, 2120000, &err);
            nf_file_ops_in_use = &nf_posix_file_ops;
            failed = at < calls;
            if (!failed) {
                assert_int_equal(status, NF_OK);
                break;
            }
            assert_int_equal(status, codes[k] == ENOSPC ? NF_ERR_NO_SPACE : NF_ERR_IO);
            snprintf(left, sizeof left, "test -z \"$(ls -A '%s')\"", replay_dir);
            if (system(left)) fail_msg("operation %d failing left files behind", at);
        }
    }
    /* The same for an add-on: the old state, or the new one when only the last sync failed. */
    nf_error err = {0};
    bool failed = true;
    for (int at = 0; failed; at++) {
        fresh_dir(NULL);
        char path[400];
        in_dir("m.ninfer", path);
        OK(write_model(path, 0, &err));
        clear_log();
        fail_at = at;
        fail_errno = ENOSPC;
        nf_file_ops_in_use = &recorder;
        nf_status status = write_addon(path, 2120000, 1000, &err);
        nf_file_ops_in_use = &nf_posix_file_ops;
        failed = at < calls;
        if (failed) assert_int_equal(status, NF_ERR_NO_SPACE);
        expect_old_or_new(true, 1000);
    }
    clear_log();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crash_while_creating),
        cmocka_unit_test(test_crash_while_adding),
        cmocka_unit_test(test_failing_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
