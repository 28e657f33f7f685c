/* Samples of bandwidth, latency and speed; see machine_measure.h. */
#include "bench/machine_measure.h"

#include "base/io.h"
#include "base/progress.h"
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)256 << 10)
#define SECONDS 0.04 /* of a sample */
#define LINE 64
#define DOT_ROWS ((size_t)64)
#define DOT_COLS ((size_t)1024)
#define DOT_BYTES ((size_t)256 << 10)
#define DISK_PIECE ((size_t)4 << 20)
#define DISK_THREADS 4
#define DISK_LEAST ((uint64_t)16 << 20)

/* ---- threads that start together ---- */

typedef struct crew {
    double (*fn)(void *user, double end); /* works until `end`; returns what it got done */
    void *user;
    pthread_mutex_t lock;
    pthread_cond_t go;
    bool open;
} crew;

typedef struct member {
    crew *crew;
    pthread_t thread;
    double done, started, ended;
} member;

static void *member_main(void *user) {
    member *m = user;
    pthread_mutex_lock(&m->crew->lock);
    while (!m->crew->open) pthread_cond_wait(&m->crew->go, &m->crew->lock);
    pthread_mutex_unlock(&m->crew->lock);
    m->started = nf_now();
    m->done = m->crew->fn(m->crew->user, m->started + SECONDS);
    m->ended = nf_now();
    return NULL;
}

/* cpu -1: anywhere. */
static nf_status start(member *m, int cpu, nf_error *err) {
    pthread_attr_t attributes;
    const size_t most = cpu < 0 ? 1 : (size_t)cpu + 1, set_bytes = CPU_ALLOC_SIZE(most);
    cpu_set_t *set = CPU_ALLOC(most);
    int failed = set ? pthread_attr_init(&attributes) : ENOMEM;
    if (!failed) {
        CPU_ZERO_S(set_bytes, set);
        if (cpu >= 0) {
            CPU_SET_S((size_t)cpu, set_bytes, set);
            failed = pthread_attr_setaffinity_np(&attributes, set_bytes, set);
        }
        if (!failed) failed = pthread_create(&m->thread, &attributes, member_main, m);
        pthread_attr_destroy(&attributes);
    }
    CPU_FREE(set);
    return failed ? nf_fail_errno(err, failed, "cannot start a thread on processor %d", cpu) : NF_OK;
}

/* Runs fn on n threads (cpus NULL: anywhere) and gives what all of them did a second. */
static nf_status run_crew(const int *cpus, int n, double (*fn)(void *, double), void *user, double *rate,
                          nf_error *err) {
    crew c = {.fn = fn, .user = user, .lock = PTHREAD_MUTEX_INITIALIZER, .go = PTHREAD_COND_INITIALIZER};
    member *members = nf_calloc((size_t)n, sizeof *members, "threads", err);
    if (!members) return NF_ERR_MEMORY;
    nf_status status = NF_OK;
    int started = 0;
    for (; started < n && !status; started++) {
        members[started].crew = &c;
        status = start(&members[started], cpus ? cpus[started] : -1, err);
    }
    if (status) started--;
    pthread_mutex_lock(&c.lock);
    c.open = true;
    pthread_cond_broadcast(&c.go);
    pthread_mutex_unlock(&c.lock);
    double first = 0, last = 0, done = 0;
    for (int i = 0; i < started; i++) {
        pthread_join(members[i].thread, NULL);
        if (!i || members[i].started < first) first = members[i].started;
        if (!i || members[i].ended > last) last = members[i].ended;
        done += members[i].done;
    }
    free(members);
    *rate = done / (last - first);
    return status;
}

/* ---- bandwidth ---- */

typedef struct stream {
    const nf_memory *from;
    nf_memory *to; /* NULL: only read */
    size_t pieces;
    atomic_size_t next;
    atomic_uint_fast64_t sink; /* so that nothing is optimised away */
} stream;

/* Pieces are taken in turn, so that a core that other programs disturb holds up no other. */
static double stream_pieces(void *user, double end) {
    stream *s = user;
    double done = 0;
    uint64_t sum = 0;
    do {
        const size_t at = atomic_fetch_add(&s->next, 1) % s->pieces * PIECE;
        if (s->to)
            memcpy(s->to->bytes + at, s->from->bytes + at, PIECE);
        else
            sum += nf_bench_sum(s->from->bytes + at, PIECE);
        done += PIECE;
    } while (nf_now() < end);
    atomic_fetch_add(&s->sink, sum);
    return done;
}

nf_status nf_measure_read(nf_cores cores, const nf_memory *memory, double *gb_s, nf_error *err) {
    stream s = {.from = memory, .pieces = memory->n / PIECE};
    nf_status status = run_crew(cores.cpus, cores.n, stream_pieces, &s, gb_s, err);
    *gb_s /= 1e9;
    return status;
}

nf_status nf_measure_copy(nf_cores cores, const nf_memory *from, nf_memory *to, double *gb_s, nf_error *err) {
    stream s = {.from = from, .to = to, .pieces = from->n / PIECE};
    nf_status status = run_crew(cores.cpus, cores.n, stream_pieces, &s, gb_s, err);
    *gb_s /= 1e9;
    return status;
}

/* ---- latency ---- */

nf_status nf_make_chase(nf_memory *memory, nf_error *err) {
    const size_t n = memory->n / LINE;
    uint32_t *order = nf_alloc(n, sizeof *order, "the order of a pointer chase", err);
    if (!order) return NF_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    uint64_t x = 1;
    for (size_t i = n - 1; i > 0; i--) { /* Sattolo: a permutation of one cycle */
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        const size_t j = (size_t)((x >> 32) * (uint64_t)i >> 32);
        const uint32_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
    for (size_t i = 0; i < n; i++) {
        void *next = memory->bytes + (size_t)order[i] * LINE;
        memcpy(memory->bytes + i * LINE, &next, sizeof next);
    }
    free(order);
    return NF_OK;
}

typedef struct chase {
    void *at;
} chase;

static double walk(void *user, double end) {
    chase *c = user;
    void **p = c->at;
    double steps = 0;
    do {
        for (int i = 0; i < 10000; i++) p = *p;
        steps += 10000;
    } while (nf_now() < end);
    c->at = p; /* the next reader of it keeps the loop alive */
    return steps;
}

nf_status nf_measure_chase(int cpu, const nf_memory *memory, double *ns, nf_error *err) {
    chase c = {memory->bytes};
    double rate;
    nf_status status = run_crew(&cpu, 1, walk, &c, &rate, err);
    *ns = c.at ? 1e9 / rate : 0;
    return status;
}

/* ---- products in cache ---- */

nf_status nf_dot_new(const nf_kernels *kernels, nf_type type, nf_dot_work *out, nf_error *err) {
    const nf_format format = {.type = type};
    const size_t tile = (size_t)nf_matrix_tile_bytes(format, NF_TILE_ROWS, DOT_COLS), n = DOT_BYTES / tile,
                 groups = DOT_ROWS * DOT_COLS / NF_GROUP;
    uint8_t *tiles = nf_calloc_aligned(64, n, tile, "weights", err);
    *out = (nf_dot_work){.kernels = kernels,
                         .w = {.format = format,
                               .rows = n * NF_TILE_ROWS,
                               .cols = DOT_COLS,
                               .tiles = tiles,
                               .tile_stride = tile},
                         .in = {.k = DOT_COLS, .kp = DOT_COLS}};
    out->in.x = nf_calloc_aligned(64, DOT_ROWS * DOT_COLS, sizeof(float), "input rows", err);
    out->in.q = nf_calloc_aligned(64, DOT_ROWS * DOT_COLS, 1, "input rows", err);
    out->in.scale = nf_calloc_aligned(64, groups, sizeof(float), "input rows", err);
    out->in.sum = nf_calloc_aligned(64, groups, sizeof(int32_t), "input rows", err);
    if (!tiles || !out->in.x || !out->in.q || !out->in.scale || !out->in.sum) return NF_ERR_MEMORY;
    float rows[NF_TILE_ROWS * DOT_COLS];
    for (size_t i = 0; i < NF_TILE_ROWS * DOT_COLS; i++) rows[i] = (float)(i * 29 % 251) / 100.0f - 1.25f;
    for (size_t i = 0; i < DOT_ROWS * DOT_COLS; i++) out->in.x[i] = (float)(i * 37 % 255) / 100.0f - 1.27f;
    nf_status status = NF_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = nf_quantise_tile(format, rows, DOT_COLS, NF_TILE_ROWS, DOT_COLS, NULL, NULL,
                                  tiles + i * tile, err);
    for (size_t j = 0; j < DOT_ROWS && !status; j++) {
        const nf_rows row = nf_rows_from(&out->in, j);
        if (!kernels->quantise_row(row.x, row.kp, row.q, row.scale, row.sum))
            status = nf_fail(err, NF_ERR_INTERNAL, "an input row is not finite");
    }
    return status;
}

void nf_dot_free(nf_dot_work *work) {
    free((void *)(uintptr_t)work->w.tiles);
    free(work->in.x), free(work->in.q), free(work->in.scale), free(work->in.sum);
    *work = (nf_dot_work){0};
}

static double multiply(void *user, double end) {
    const nf_dot_work *w = user;
    const size_t tiles = w->w.rows / NF_TILE_ROWS, step = 8;
    float out[DOT_ROWS * 8 * NF_TILE_ROWS];
    double macs = 0;
    do {
        for (size_t t = 0; t + step <= tiles; t += step) {
            w->kernels->tiles(&w->w, t, step, &w->in, NULL, DOT_ROWS, out);
            macs += (double)(DOT_ROWS * step * NF_TILE_ROWS * DOT_COLS);
        }
    } while (nf_now() < end);
    return macs;
}

nf_status nf_measure_dot(nf_cores cores, const nf_dot_work *work, double *gmac_s, nf_error *err) {
    nf_dot_work copy = *work;
    nf_status status = run_crew(cores.cpus, cores.n, multiply, &copy, gmac_s, err);
    *gmac_s /= 1e9;
    return status;
}

/* ---- disk ---- */

/* A file without a name in the folder. */
static nf_status make_file(const char *folder, uint64_t n, int *fd, nf_error *err) {
    nf_buf path = {0};
    nf_status status = nf_buf_printf(&path, err, "%s/ninfer-bench-XXXXXX", folder);
    if (status) return status;
    *fd = mkostemp(path.data, O_CLOEXEC);
    if (*fd < 0) {
        status = nf_fail_errno(err, errno, "%s: cannot create a file to measure the disk with", folder);
        nf_buf_free(&path);
        return status;
    }
    unlink(path.data);
    nf_buf_free(&path);
    nf_bench_memory noise;
    status = nf_bench_memory_new(DISK_PIECE, &noise, err);
    for (uint64_t at = 0; at < n && !status; at += DISK_PIECE) {
        memcpy(noise.bytes, &at, sizeof at); /* no two pieces alike: some disks store those once */
        status = nf_pwrite_full(*fd, noise.bytes, DISK_PIECE, at, folder, err);
    }
    if (!status && fsync(*fd)) status = nf_fail_errno(err, errno, "%s: cannot sync", folder);
    nf_bench_memory_free(&noise);
    return status;
}

nf_status nf_disk_open(const char *path, uint64_t n_bytes, nf_disk *out, nf_error *err) {
    struct stat info;
    nf_status status = NF_OK;
    *out = (nf_disk){.fd = -1, .path = path};
    if (stat(path, &info)) return nf_fail_errno(err, errno, "%s: cannot open", path);
    if (S_ISDIR(info.st_mode)) {
        status = make_file(path, n_bytes / DISK_PIECE * DISK_PIECE, &out->fd, err);
        if (!status && fstat(out->fd, &info)) status = nf_fail_errno(err, errno, "%s: cannot look at", path);
    } else if (!S_ISREG(info.st_mode)) {
        return nf_fail(err, NF_ERR_ARGUMENT, "%s: is neither a file nor a folder", path);
    } else {
        out->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (out->fd < 0) status = nf_fail_errno(err, errno, "%s: cannot open", path);
    }
    if (!status) {
        out->bytes = (uint64_t)info.st_size / DISK_PIECE * DISK_PIECE;
        (void)posix_fadvise(out->fd, 0, 0, POSIX_FADV_DONTNEED);
        if (out->bytes < DISK_LEAST)
            status =
                nf_fail(err, NF_ERR_ARGUMENT, "%s: too small to measure a disk with, 16 MiB at least", path);
        else if (fcntl(out->fd, F_SETFL, O_DIRECT))
            status = nf_fail(err, NF_ERR_UNSUPPORTED,
                             "%s: this file system cannot read past the page cache (O_DIRECT)", path);
    }
    if (status) nf_disk_close(out);
    return status;
}

void nf_disk_close(nf_disk *disk) {
    if (disk->fd >= 0) close(disk->fd);
    disk->fd = -1;
}

typedef struct disk_read {
    const nf_disk *disk;
    uint64_t n;
    atomic_uint_fast64_t next;
    atomic_bool failed;
    nf_error err; /* of the first thread that failed */
} disk_read;

static double read_disk(void *user, double end) {
    disk_read *r = user;
    (void)end; /* as long as it takes */
    nf_error err = {0};
    double done = 0;
    void *buffer = nf_calloc_aligned(4096, 1, DISK_PIECE, "a buffer", &err);
    nf_status status = buffer ? NF_OK : NF_ERR_MEMORY;
    while (!status && !atomic_load(&r->failed)) {
        const uint64_t at = atomic_fetch_add(&r->next, DISK_PIECE);
        if (at >= r->n) break;
        const uint64_t from = (r->disk->at + at) % r->disk->bytes;
        status = nf_pread_full(r->disk->fd, buffer, DISK_PIECE, from, r->disk->path, &err);
        done += DISK_PIECE;
    }
    free(buffer);
    if (status && !atomic_exchange(&r->failed, true)) r->err = err;
    return done;
}

nf_status nf_measure_disk(nf_disk *disk, uint64_t n_bytes, double *gb_s, nf_error *err) {
    disk_read r = {.disk = disk, .n = n_bytes < disk->bytes ? n_bytes : disk->bytes};
    nf_status status = run_crew(NULL, DISK_THREADS, read_disk, &r, gb_s, err);
    *gb_s /= 1e9;
    disk->at = (disk->at + r.n / DISK_PIECE * DISK_PIECE) % disk->bytes;
    if (status || !atomic_load(&r.failed)) return status;
    if (err) *err = r.err;
    return r.err.status;
}
