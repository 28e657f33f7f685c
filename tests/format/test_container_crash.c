/*
 * Crashes, torn writes, lost writes and I/O errors while a container is made or added to. The writer's file
 * operations are recorded; every prefix of the record, with the next write torn at every 512-byte sector, is
 * played into another folder and must open as the old state, the new state, or (for a new container) not at
 * all.
 */
#include "container_fixture.h"

#include <errno.h>

#define MAX_OPS 512
#define MAX_FILES 32
#define SECTOR 512

typedef enum op_kind {
    OP_OPEN,
    OP_PWRITE,
    OP_FTRUNCATE,
    OP_FSYNC,
    OP_CLOSE,
    OP_RENAME,
    OP_UNLINK,
    OP_FSYNC_DIR
} op_kind;

/* A recorded operation. Files are numbered in order of opening, so that renames do not matter to writes. */
typedef struct op {
    op_kind kind;
    int file;
    int flags;
    char name[64], to[64]; /* without the folder */
    uint8_t *bytes;
    size_t n;
    off_t offset;
} op;

static struct {
    op ops[MAX_OPS];
    size_t n;
    int file_of_fd[1024];
    ino_t inode[MAX_FILES];
    int files;
    bool fail_last_sync; /* the sync of a slot fails: the writer stops there, as if killed */
} record;

static const char *base_name(const char *path) {
    return strrchr(path, '/') + 1;
}

static op *new_op(op_kind kind, int fd) {
    assert_true(record.n < MAX_OPS);
    op *o = &record.ops[record.n++];
    *o = (op){.kind = kind, .file = fd >= 0 ? record.file_of_fd[fd] : -1};
    return o;
}

static int record_open(const char *path, int flags, mode_t mode) {
    int fd = open(path, flags, mode);
    if (fd < 0) return fd;
    struct stat info;
    assert_true(fd < 1024 && record.files < MAX_FILES && !fstat(fd, &info));
    int file = 0; /* a file that is opened again keeps its number */
    while (file < record.files && record.inode[file] != info.st_ino) file++;
    if (file == record.files) record.inode[record.files++] = info.st_ino;
    record.file_of_fd[fd] = file;
    op *o = new_op(OP_OPEN, fd);
    o->flags = flags;
    snprintf(o->name, sizeof o->name, "%s", base_name(path));
    return fd;
}

static ssize_t record_pwrite(int fd, const void *bytes, size_t n, off_t offset) {
    op *o = new_op(OP_PWRITE, fd);
    o->bytes = malloc(n);
    assert_non_null(o->bytes);
    memcpy(o->bytes, bytes, n);
    o->n = n;
    o->offset = offset;
    return pwrite(fd, bytes, n, offset);
}

static int record_ftruncate(int fd, off_t length) {
    new_op(OP_FTRUNCATE, fd)->offset = length;
    return ftruncate(fd, length);
}

static int record_fsync(int fd) {
    const op *last = record.n ? &record.ops[record.n - 1] : NULL;
    if (record.fail_last_sync && last->kind == OP_PWRITE && last->offset < (off_t)NF_PART0_DATA &&
        last->file == 0) {
        errno = EIO;
        return -1;
    }
    new_op(OP_FSYNC, fd);
    return 0; /* nothing is lost here: the disk of the test is the record */
}

static int record_close(int fd) {
    new_op(OP_CLOSE, fd);
    return close(fd);
}

static int record_rename(const char *from, const char *to) {
    op *o = new_op(OP_RENAME, -1);
    snprintf(o->name, sizeof o->name, "%s", base_name(from));
    snprintf(o->to, sizeof o->to, "%s", base_name(to));
    return rename(from, to);
}

static int record_unlink(const char *path) {
    op *o = new_op(OP_UNLINK, -1);
    snprintf(o->name, sizeof o->name, "%s", base_name(path));
    return unlink(path);
}

static int record_fsync_dir(const char *path) {
    (void)path;
    new_op(OP_FSYNC_DIR, -1);
    return 0;
}

static const nf_file_ops recorder = {record_open,  record_pwrite, record_ftruncate, record_fsync,
                                     record_close, record_rename, record_unlink,    record_fsync_dir};

static void record_free(void) {
    for (size_t i = 0; i < record.n; i++) free(record.ops[i].bytes);
    memset(&record, 0, sizeof record);
}

/* ---- playing a record ---- */

typedef struct player {
    const char *folder;
    int fd[MAX_FILES];
} player;

static player play_start(const char *folder) {
    player p = {.folder = folder};
    for (int i = 0; i < MAX_FILES; i++) p.fd[i] = -1;
    return p;
}

static void play_end(player *p) {
    for (int i = 0; i < MAX_FILES; i++)
        if (p->fd[i] >= 0) close(p->fd[i]);
}

static void play(player *p, const op *o) {
    switch (o->kind) {
    case OP_OPEN:
        if (p->fd[o->file] >= 0) break;
        p->fd[o->file] = open(fx_path(p->folder, o->name), o->flags & ~O_EXCL, 0666);
        assert_true(p->fd[o->file] >= 0);
        break;
    case OP_PWRITE:
        assert_int_equal(pwrite(p->fd[o->file], o->bytes, o->n, o->offset), (ssize_t)o->n);
        break;
    case OP_FTRUNCATE:
        assert_int_equal(ftruncate(p->fd[o->file], o->offset), 0);
        break;
    case OP_RENAME:
        assert_int_equal(rename(fx_path(p->folder, o->name), fx_path(p->folder, o->to)), 0);
        break;
    case OP_UNLINK:
        (void)unlink(fx_path(p->folder, o->name));
        break;     /* may not exist when others were lost */
    case OP_CLOSE: /* the player keeps files open: an aborted writer's last operations come after */
    case OP_FSYNC:
    case OP_FSYNC_DIR:
        break;
    }
}

/* What a state may be: the digests of the old and the new model (0: does not open). */
typedef struct expectation {
    const char *path;
    uint64_t old_digest, new_digest, other_digest; /* other: 0 but where a third state exists */
    unsigned long states, saw_old, saw_new, saw_other;
} expectation;

static void keep_errors(void *user, nf_finding_level level, const char *message) {
    if (level == NF_FINDING_ERROR) snprintf(user, NF_ERROR_MESSAGE_MAX, "%s", message);
}

/* Verification is slow; `thorough` states get it. */
static void expect_state(expectation *e, bool may_be_new, bool thorough, const char *where) {
    nf_error err = {0};
    bool exists = !access(e->path, F_OK);
    uint64_t digest = exists ? fx_digest(e->path, &err) : 0;
    e->states++;
    /* Nothing stands under the final name until it is whole. */
    if (exists && !digest) fail_msg("%s: is there and does not open (%s)", where, err.message);
    if (digest == e->old_digest)
        e->saw_old++;
    else if (may_be_new && digest == e->new_digest)
        e->saw_new++;
    else if (may_be_new && digest == e->other_digest)
        e->saw_other++;
    else
        fail_msg("%s: opens as neither the old nor the new model (%s)", where,
                 digest ? "damaged" : err.message);
    if (!digest || !thorough) return;
    char error[NF_ERROR_MESSAGE_MAX] = "";
    if (nf_container_verify(e->path, 1, keep_errors, error, NULL, NULL, &err))
        fail_msg("%s: verify: %s", where, error);
}

/* Writes sectors [from, to) of o (and nothing else of it), checks, and restores the file. */
static void tear(player *p, const op *o, size_t from, size_t to, expectation *e, bool may_be_new,
                 const char *where) {
    uint8_t *saved = malloc(o->n + 1);
    assert_non_null(saved);
    int fd = p->fd[o->file];
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    memset(saved, 0, o->n);
    ssize_t had = pread(fd, saved, o->n, o->offset);
    assert_true(had >= 0);
    assert_int_equal(pwrite(fd, o->bytes + from, to - from, o->offset + (off_t)from), (ssize_t)(to - from));
    expect_state(e, may_be_new, false, where);
    if (had > 0) assert_int_equal(pwrite(fd, saved, (size_t)had, o->offset), had);
    assert_int_equal(ftruncate(fd, info.st_size), 0);
    free(saved);
}

/* Index of the write that makes the new model visible: the rename of part 0, or the last write into a slot.
 */
static size_t publishing_op(bool append) {
    size_t at = record.n;
    for (size_t i = 0; i < record.n; i++) {
        const op *o = &record.ops[i];
        if (append ? o->kind == OP_PWRITE && o->file == 0 && o->offset < (off_t)NF_PART0_DATA
                   : o->kind == OP_RENAME && !strcmp(o->to, "m.ninfer"))
            at = i;
    }
    assert_true(at < record.n);
    return at;
}

static void prefixes_and_tears(const char *folder, expectation *e, bool append) {
    player p = play_start(folder);
    size_t publish = publishing_op(append), tears = 0;
    char where[128];
    for (size_t i = 0; i <= record.n; i++) {
        snprintf(where, sizeof where, "the first %zu of %zu operations", i, record.n);
        expect_state(e, i > publish, true, where);
        if (i == record.n) break;
        const op *o = &record.ops[i];
        for (size_t cut = SECTOR; o->kind == OP_PWRITE && cut < o->n; cut += SECTOR, tears++) {
            /* Large writes of data: the first and last sectors and every 4096th byte between. */
            if (cut > 16 * SECTOR && cut + 16 * SECTOR < o->n && cut % 4096) continue;
            snprintf(where, sizeof where, "operation %zu torn at byte %zu", i, cut);
            tear(&p, o, 0, cut, e, i >= publish, where);    /* the first sectors arrived */
            tear(&p, o, cut, o->n, e, i >= publish, where); /* the last sectors arrived */
            tear(&p, o, cut, cut + SECTOR < o->n ? cut + SECTOR : o->n, e, i >= publish,
                 where); /* one alone */
        }
        play(&p, o);
    }
    play_end(&p);
    assert_true(tears >= 14); /* at the very least those of a directory and of a slot */
}

/* Whether operation j is on disk for certain when the crash comes before operation n. */
static bool is_durable(size_t j, size_t n) {
    const op *o = &record.ops[j];
    for (size_t k = j + 1; k < n; k++) {
        const op *s = &record.ops[k];
        if ((o->kind == OP_RENAME || o->kind == OP_UNLINK) ? s->kind == OP_FSYNC_DIR
                                                           : s->kind == OP_FSYNC && s->file == o->file)
            return true;
    }
    return false;
}

/* Loses a random choice of what is not synced: whole operations, and sectors of writes. */
static void lose_unsynced(const char *start, const char *folder, expectation *e, size_t publish, int rounds) {
    uint64_t random = 0x2545F4914F6CDD1Dull;
    unsigned long lost = 0;
    for (int round = 0; round < rounds; round++) {
        fx_empty(folder);
        if (start) fx_copy_folder(start, folder);
        size_t n = 1 + fx_random(&random) % record.n;
        unsigned keep_of_8 = (unsigned)(fx_random(&random) % 8);
        player p = play_start(folder);
        for (size_t j = 0; j < n; j++) {
            op o = record.ops[j];
            bool can_be_lost =
                o.kind == OP_PWRITE || o.kind == OP_FTRUNCATE || o.kind == OP_RENAME || o.kind == OP_UNLINK;
            if (!can_be_lost || is_durable(j, n)) {
                play(&p, &o);
            } else if (o.kind != OP_PWRITE) {
                if (fx_random(&random) % 8 < keep_of_8)
                    play(&p, &o);
                else
                    lost++;
            } else {
                for (size_t at = 0; at < o.n; at += SECTOR) {
                    size_t bytes = o.n - at < SECTOR ? o.n - at : SECTOR;
                    if (fx_random(&random) % 8 >= keep_of_8)
                        lost++;
                    else
                        assert_int_equal(pwrite(p.fd[o.file], o.bytes + at, bytes, o.offset + (off_t)at),
                                         (ssize_t)bytes);
                }
            }
        }
        play_end(&p);
        char where[128];
        snprintf(where, sizeof where, "round %d, crash before operation %zu", round, n);
        expect_state(e, n > publish, true, where);
    }
    assert_true(lost > (unsigned long)rounds / 4);
}

/* ---- models ---- */

#define N_BASE 5
#define N_MORE 3

/* Small, but with a divided bank, a divided tensor and blobs. */
static uint64_t small_model(nf_object base[N_BASE], nf_object more[N_MORE]) {
    base[0] = fx_matrix("a", NF_TYPE_I8, NF_CODEBOOK_NONE, 40, 300);
    base[1] = fx_bank("bank", NF_TYPE_C4, NF_CODEBOOK_NL, 5, 32, 64);
    base[2] = (nf_object){.name = "text", .component = "tokenizer", .kind = NF_OBJECT_BLOB, .bytes = 3000};
    base[3] = fx_matrix("b", NF_TYPE_F32, NF_CODEBOOK_NONE, 16, 70);
    base[4] = fx_bank("bank2", NF_TYPE_C4, NF_CODEBOOK_NL, 4, 32, 64);
    more[0] = fx_bank("bank", NF_TYPE_I8, NF_CODEBOOK_NONE, 4, 32, 64);
    more[1] = fx_matrix("c", NF_TYPE_F32, NF_CODEBOOK_NONE, 16, 70);
    more[2] = (nf_object){.name = "text", .component = "tokenizer", .kind = NF_OBJECT_BLOB, .bytes = 2000};
    return (2u << 20) + 3 * base[1].expert_stride;
}

typedef struct folders {
    char *work, *start, *replay;
    char path[FX_PATH + 64], replay_path[FX_PATH + 64], start_path[FX_PATH + 64];
} folders;

static folders make_folders(void) {
    record_free(); /* of a test that failed */
    folders f = {fx_folder(), fx_folder(), fx_folder(), "", "", ""};
    snprintf(f.path, sizeof f.path, "%s", fx_path(f.work, "m.ninfer"));
    snprintf(f.start_path, sizeof f.start_path, "%s", fx_path(f.start, "m.ninfer"));
    snprintf(f.replay_path, sizeof f.replay_path, "%s", fx_path(f.replay, "m.ninfer"));
    return f;
}

static void remove_folders(folders *f) {
    fx_use_quick_ops();
    record_free();
    fx_remove_folder(f->work);
    fx_remove_folder(f->start);
    fx_remove_folder(f->replay);
}

static uint64_t digest_of(const char *path) {
    nf_error err = {0};
    uint64_t digest = fx_digest(path, &err);
    if (!digest) fail_msg("%s", err.message);
    return digest;
}

/* ---- crashes ---- */

static void crash_while_creating(void **state) {
    (void)state;
    folders f = make_folders();
    nf_object base[N_BASE], more[N_MORE];
    nf_error err = {0};
    uint64_t part = small_model(base, more);
    nf_file_ops_in_use = &recorder;
    fx_ok(fx_create(f.path, part, base, N_BASE, 1, &err), &err);
    fx_use_quick_ops();
    assert_true(fx_count(f.work, "") >= 3);
    expectation e = {.path = f.replay_path, .new_digest = digest_of(f.path)};
    prefixes_and_tears(f.replay, &e, false);
    assert_true(e.saw_new >= 1);
    unsigned long prefixes = e.states;
    lose_unsynced(NULL, f.replay, &e, publishing_op(false), 300);
    print_message("%zu operations, %lu torn states, %lu with lost writes: %lu do not open, %lu whole\n",
                  record.n, prefixes, e.states - prefixes, e.saw_old, e.saw_new);
    /* The next conversion cleans up what the dead one left. */
    fx_empty(f.replay);
    player p = play_start(f.replay);
    for (size_t i = 0; i < publishing_op(false); i++) play(&p, &record.ops[i]);
    play_end(&p);
    assert_true(fx_count(f.replay, "") >= 3);
    fx_ok(fx_create(f.replay_path, 0, base, N_BASE, 1, &err), &err);
    assert_int_equal(fx_count(f.replay, ""), 1);
    remove_folders(&f);
}

static void crash_while_appending(void **state) {
    (void)state;
    folders f = make_folders();
    nf_object base[N_BASE], more[N_MORE];
    nf_error err = {0};
    uint64_t part = small_model(base, more);
    fx_ok(fx_create(f.start_path, part, base, N_BASE, 1, &err), &err);
    /* Generation 2 to 4: from slot A to B, to A over an old one, and again; directories change places. */
    for (uint64_t round = 0; round < 3; round++) {
        fx_empty(f.work);
        fx_empty(f.replay);
        fx_copy_folder(f.start, f.work);
        fx_copy_folder(f.start, f.replay);
        uint64_t old = digest_of(f.path);
        nf_file_ops_in_use = &recorder;
        fx_ok(fx_append(f.path, part, more, round == 1 ? 0 : N_MORE, 10 + round, &err), &err);
        fx_use_quick_ops();
        expectation e = {.path = f.replay_path, .old_digest = old, .new_digest = digest_of(f.path)};
        assert_true(e.old_digest != e.new_digest);
        prefixes_and_tears(f.replay, &e, true);
        unsigned long prefixes = e.states;
        lose_unsynced(f.start, f.replay, &e, publishing_op(true), 150);
        print_message(
            "generation %d: %zu operations, %lu torn states, %lu with lost writes: %lu old, %lu new\n",
            (int)round + 2, record.n, prefixes, e.states - prefixes, e.saw_old, e.saw_new);
        assert_true(e.saw_old > 50 && e.saw_new >= 2);
        /* After a crash anywhere, another add-on works and leaves nothing behind. */
        for (size_t cut = 0; cut < record.n; cut += 3) {
            fx_empty(f.replay);
            fx_copy_folder(f.start, f.replay);
            player p = play_start(f.replay);
            for (size_t i = 0; i < cut; i++) play(&p, &record.ops[i]);
            play_end(&p);
            fx_ok(fx_append(f.replay_path, part, more, N_MORE, 99, &err), &err);
            nf_container *c;
            fx_ok(nf_container_open(f.replay_path, &c, &err), &err);
            for (int i = 0; i < N_MORE; i++) fx_expect(c, &more[i], 99);
            fx_expect(c, &base[0], 1);
            assert_int_equal(fx_count(f.replay, ""), (int)nf_container_part_count(c));
            nf_container_close(c);
            fx_ok(nf_container_verify(f.replay_path, 1, NULL, NULL, NULL, NULL, &err), &err);
        }
        record_free();
        fx_empty(f.start);
        fx_copy_folder(f.work, f.start);
    }
    remove_folders(&f);
}

/* A writer that was killed between writing a slot and syncing it leaves a directory in force that is not on
 * disk. The next one must not overwrite what the slot before it refers to until that is settled. */
static void killed_before_the_last_sync(void **state) {
    (void)state;
    folders f = make_folders();
    nf_object base[N_BASE], more[N_MORE];
    nf_error err = {0};
    uint64_t part = small_model(base, more);
    fx_ok(fx_create(f.start_path, part, base, N_BASE, 1, &err), &err);
    fx_copy_folder(f.start, f.work);
    expectation e = {.path = f.replay_path, .old_digest = digest_of(f.path)};
    nf_file_ops_in_use = &recorder;
    record.fail_last_sync = true;
    assert_int_equal(fx_append(f.path, part, more, N_MORE, 10, &err), NF_ERR_IO);
    record.fail_last_sync = false;
    e.other_digest = digest_of(f.path);
    assert_true(e.other_digest != e.old_digest);
    size_t first = record.n;
    fx_ok(fx_append(f.path, part, more, 1, 11, &err), &err);
    fx_use_quick_ops();
    e.new_digest = digest_of(f.path);
    lose_unsynced(f.start, f.replay, &e, 0, 400);
    print_message("%zu + %zu operations, %lu with lost writes: %lu old, %lu of the killed writer, %lu new\n",
                  first, record.n - first, e.states, e.saw_old, e.saw_other, e.saw_new);
    assert_true(e.saw_old && e.saw_other && e.saw_new);
    remove_folders(&f);
}

/* ---- errors ---- */

/* Operation number `at` fails; with `for_good`, so do all later ones that need space. */
static struct {
    long count, at;
    int error;
    bool for_good, short_write;
} fault;

static bool faulty(void) {
    long n = fault.count++;
    if (n != fault.at && !(fault.for_good && n > fault.at)) return false;
    errno = fault.error;
    return true;
}

static int fault_open(const char *path, int flags, mode_t mode) {
    return faulty() ? -1 : open(path, flags, mode);
}
static ssize_t fault_pwrite(int fd, const void *bytes, size_t n, off_t offset) {
    if (!faulty()) return pwrite(fd, bytes, n, offset);
    if (fault.short_write && fault.count == fault.at + 1)
        return pwrite(fd, bytes, n / 2, offset); /* the next one fails */
    return -1;
}
static int fault_ftruncate(int fd, off_t length) {
    return faulty() ? -1 : ftruncate(fd, length);
}
static int fault_fsync(int fd) {
    (void)fd;
    return faulty() ? -1 : 0;
}
static int fault_rename(const char *from, const char *to) {
    return faulty() ? -1 : rename(from, to);
}
static int fault_fsync_dir(const char *path) {
    (void)path;
    return faulty() ? -1 : 0;
}
static const nf_file_ops faults = {fault_open, fault_pwrite, fault_ftruncate, fault_fsync,
                                   close,      fault_rename, unlink,          fault_fsync_dir};

typedef struct fault_kind {
    int error;
    bool for_good, short_write;
    nf_status status;
} fault_kind;

static const fault_kind fault_kinds[] = {{ENOSPC, true, false, NF_ERR_NO_SPACE},
                                         {ENOSPC, true, true, NF_ERR_NO_SPACE},
                                         {EIO, false, false, NF_ERR_IO}};

static void arm(const fault_kind *kind, long at) {
    fault.count = 0;
    fault.at = at;
    fault.error = kind->error;
    fault.for_good = kind->for_good;
    fault.short_write = kind->short_write;
    nf_file_ops_in_use = &faults;
}

static void errors_while_creating(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object base[N_BASE], more[N_MORE];
    uint64_t part = small_model(base, more);
    nf_error err = {0};
    for (size_t k = 0; k < 3; k++) {
        long at = 0;
        for (;; at++) {
            arm(&fault_kinds[k], at);
            nf_status status = fx_create(path, part, base, N_BASE, 1, &err);
            fx_use_quick_ops();
            if (fault.count <= at) {
                fx_ok(status, &err); /* the step does not exist: nothing failed */
                break;
            }
            if (fault_kinds[k].short_write && !status) break; /* the very last operation was no write */
            assert_int_equal(status, fault_kinds[k].status);
            assert_non_null(strstr(err.message, folder));
            assert_int_equal(fx_count(folder, ""), 0);
        }
        assert_true(at > 20);
        fx_empty(folder);
    }
    fx_remove_folder(folder);
}

static void errors_while_appending(void **state) {
    (void)state;
    folders f = make_folders();
    nf_object base[N_BASE], more[N_MORE];
    nf_error err = {0};
    uint64_t part = small_model(base, more);
    fx_ok(fx_create(f.start_path, part, base, N_BASE, 1, &err), &err);
    fx_ok(fx_append(f.start_path, part, more, N_MORE, 2, &err), &err);
    uint64_t old = digest_of(f.start_path);
    int files = fx_count(f.start, "");
    fx_copy_folder(f.start, f.work);
    fx_ok(fx_append(f.path, part, more, N_MORE, 3, &err), &err);
    uint64_t new = digest_of(f.path);
    for (size_t k = 0; k < 3; k++) {
        long at = 0;
        for (;; at++) {
            fx_empty(f.work);
            fx_copy_folder(f.start, f.work);
            arm(&fault_kinds[k], at);
            nf_status status = fx_append(f.path, part, more, N_MORE, 3, &err);
            fx_use_quick_ops();
            if (fault.count <= at) {
                fx_ok(status, &err);
                break;
            }
            if (!fault_kinds[k].short_write) assert_int_equal(status, fault_kinds[k].status);
            /* A failed sync of the slot leaves it written: then the new model is the one that opens. Before
             * the slot (the last one or two operations), the old one is in force and the new parts are gone.
             */
            uint64_t now = digest_of(f.path);
            assert_true(now == old || now == new);
            assert_int_equal(fx_count(f.work, ".tmp-"), 0);
            if (status && at < fault.count - 2) assert_true(now == old && fx_count(f.work, "") == files);
            fx_ok(nf_container_verify(f.path, 1, NULL, NULL, NULL, NULL, &err), &err);
            fx_ok(fx_append(f.path, part, more, N_MORE, 3, &err), &err);
            if (now == old) assert_true(digest_of(f.path) == new);
            fx_ok(nf_container_verify(f.path, 1, NULL, NULL, NULL, NULL, &err), &err);
        }
        assert_true(at > 15);
    }
    remove_folders(&f);
}

static int trickle_calls;
static ssize_t trickle_pwrite(int fd, const void *bytes, size_t n, off_t offset) {
    if (trickle_calls++ % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return pwrite(fd, bytes, n > 1000 ? 1000 : n, offset);
}

static void short_writes_and_signals_do_not_matter(void **state) {
    (void)state;
    char *folder = fx_folder(), path[FX_PATH + 64];
    snprintf(path, sizeof path, "%s", fx_path(folder, "m.ninfer"));
    nf_object base[N_BASE], more[N_MORE];
    uint64_t part = small_model(base, more);
    nf_error err = {0};
    nf_file_ops trickle = fx_quick_ops;
    trickle.pwrite = trickle_pwrite;
    nf_file_ops_in_use = &trickle;
    fx_ok(fx_create(path, part, base, N_BASE, 1, &err), &err);
    fx_use_quick_ops();
    nf_container *c;
    fx_ok(nf_container_open(path, &c, &err), &err);
    for (int i = 0; i < N_BASE; i++) fx_expect(c, &base[i], 1);
    nf_container_close(c);
    assert_true(trickle_calls > 50);
    fx_remove_folder(folder);
}

int main(void) {
    fx_use_quick_ops();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crash_while_creating),
        cmocka_unit_test(crash_while_appending),
        cmocka_unit_test(killed_before_the_last_sync),
        cmocka_unit_test(errors_while_creating),
        cmocka_unit_test(errors_while_appending),
        cmocka_unit_test(short_writes_and_signals_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
