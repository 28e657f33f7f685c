/*
 * Matrix products of a step, several in one loop of the team: plain ones, and the gated first half of an
 * expert. Work is handed out in whole units of outputs (a tile of 8 rows; for a gated product the 32
 * activations of a group), so that no value depends on who computes it.
 */
#include "runtime/recorder_internal.h"

#include <string.h>

enum {
    GROUP_TILES = NF_GROUP / NF_TILE_ROWS,
    /* Input rows and outputs that one call of a kernel takes: its results wait on the stack. */
    FEW_ROWS = 8,
    MANY_ROWS = 64,
    RESULTS = 4096,
    GATED_ROWS = RESULTS / (2 * NF_GROUP),
    PIECE_BYTES = 256 << 10
};

typedef struct product_loop {
    const nf_product *products;
    size_t n;
    const nf_kernels *kernels;
} product_loop;

static size_t tiles_in(const nf_weights *w) {
    return (w->rows + NF_TILE_ROWS - 1) / NF_TILE_ROWS;
}

static size_t units_of(const nf_product *p) {
    const size_t tiles = p->n ? tiles_in(&p->w) : 0;
    return p->act ? (tiles + GROUP_TILES - 1) / GROUP_TILES : tiles;
}

static size_t tile_bytes(const nf_weights *w) {
    return (size_t)nf_matrix_tile_bytes(w->format, NF_TILE_ROWS, w->cols);
}

/* Input rows j.. of the product; with an index all of them (the index is moved instead). */
static nf_rows rows_from(const nf_product *p, size_t j) {
    return p->index ? *p->in : nf_rows_from(p->in, p->first + j);
}

/* ---- plain: out = w . in ---- */

/* Stores n rows of a run of tiles; rows of the last tile that are padding stay away. */
static void store_results(const nf_product *p, size_t first_tile, size_t n_tiles, size_t j, size_t n,
                          const float *from) {
    const size_t row = first_tile * NF_TILE_ROWS, width = n_tiles * NF_TILE_ROWS,
                 rows = p->w.rows - row < width ? p->w.rows - row : width;
    for (size_t i = 0; i < n; i++, from += width) {
        float *y = p->out + (j + i) * p->out_stride + row;
        if (p->add)
            for (size_t r = 0; r < rows; r++) y[r] += from[r];
        else
            memcpy(y, from, rows * sizeof *y);
    }
}

static void plain_units(const nf_kernels *kernels, const nf_product *p, size_t first, size_t count) {
    float out[RESULTS];
    const size_t most_rows = p->n <= FEW_ROWS ? FEW_ROWS : MANY_ROWS,
                 most_tiles = RESULTS / NF_TILE_ROWS / most_rows;
    for (size_t t = 0; t < count; t += most_tiles) {
        const size_t n_tiles = count - t < most_tiles ? count - t : most_tiles;
        for (size_t j = 0; j < p->n; j += most_rows) {
            const size_t n = p->n - j < most_rows ? p->n - j : most_rows;
            const nf_rows in = rows_from(p, j);
            kernels->tiles(&p->w, first + t, n_tiles, &in, p->index ? p->index + j : NULL, n, out);
            store_results(p, first + t, n_tiles, j, n, out);
        }
    }
}

/* ---- gated: act = silu(w . in) * (up . in), quantised ---- */

/* In a bank the tiles of gate and up alternate: one matrix of twice the rows, which the memory brings as one
 * stream. Not when they have tables of scales, which are looked up by row. */
static bool alternate(const nf_weights *gate, const nf_weights *up, nf_weights *both) {
    const size_t tile = tile_bytes(gate);
    if (gate->table || up->table || memcmp(&gate->format, &up->format, sizeof gate->format) != 0 ||
        gate->tile_stride != 2 * tile || up->tile_stride != 2 * tile || up->tiles != gate->tiles + tile)
        return false;
    *both = *gate;
    both->rows = 2 * tiles_in(gate) * NF_TILE_ROWS;
    both->tile_stride = tile;
    return true;
}

/* Activations 32 g .. of row `row` from the results: `step` floats from one tile's 8 to the next. */
static void activate(const nf_kernels *kernels, const nf_product *p, size_t g, size_t row,
                     const float *gate_results, const float *up_results, size_t step) {
    const size_t at = g * NF_GROUP, left = p->w.rows - at, n = left < NF_GROUP ? left : NF_GROUP;
    float gate[NF_GROUP], up[NF_GROUP];
    nf_rows *act = p->act;
    float *y = act->x + row * act->kp + at;
    for (size_t t = 0; t * NF_TILE_ROWS < n; t++) {
        memcpy(gate + t * NF_TILE_ROWS, gate_results + t * step, NF_TILE_ROWS * sizeof *gate);
        memcpy(up + t * NF_TILE_ROWS, up_results + t * step, NF_TILE_ROWS * sizeof *up);
    }
    kernels->silu_mul(gate, up, y, n);
    if (!p->numeric_error) return;
    const size_t groups = act->kp / NF_GROUP;
    if (!kernels->quantise_row(y, NF_GROUP, act->q + row * act->kp + at, act->scale + row * groups + g,
                               act->sum + row * groups + g))
        atomic_store_explicit(p->numeric_error, true, memory_order_relaxed);
}

static void gated_units(const nf_kernels *kernels, const nf_product *p, size_t first, size_t count) {
    float out[RESULTS];
    const size_t tiles = tiles_in(&p->w);
    nf_weights both;
    const bool one_stream = alternate(&p->w, &p->up, &both);
    for (size_t g = first; g < first + count; g++) {
        const size_t t = g * GROUP_TILES, n_tiles = tiles - t < GROUP_TILES ? tiles - t : GROUP_TILES,
                     width = n_tiles * NF_TILE_ROWS;
        for (size_t j = 0; j < p->n; j += GATED_ROWS) {
            const size_t n = p->n - j < GATED_ROWS ? p->n - j : GATED_ROWS;
            const nf_rows in = rows_from(p, j);
            const uint32_t *index = p->index ? p->index + j : NULL;
            if (one_stream) {
                kernels->tiles(&both, 2 * t, 2 * n_tiles, &in, index, n, out);
                for (size_t i = 0; i < n; i++)
                    activate(kernels, p, g, p->act_first + j + i, out + 2 * width * i,
                             out + 2 * width * i + NF_TILE_ROWS, 2 * NF_TILE_ROWS);
            } else {
                kernels->tiles(&p->w, t, n_tiles, &in, index, n, out);
                kernels->tiles(&p->up, t, n_tiles, &in, index, n, out + n * width);
                for (size_t i = 0; i < n; i++)
                    activate(kernels, p, g, p->act_first + j + i, out + width * i, out + width * (n + i),
                             NF_TILE_ROWS);
            }
        }
    }
}

/* ---- the loop ---- */

static void product_body(void *user, size_t begin, size_t end, int thread) {
    (void)thread;
    const product_loop *loop = user;
    const nf_product *p = loop->products;
    size_t before = 0;
    while (begin < end) {
        while (begin >= before + units_of(p)) before += units_of(p++);
        const size_t left = before + units_of(p) - begin, count = end - begin < left ? end - begin : left;
        if (p->act)
            gated_units(loop->kernels, p, begin - before, count);
        else
            plain_units(loop->kernels, p, begin - before, count);
        begin += count;
    }
}

/* Units in a piece: about 256 KiB of weights, the length at which a stream that starts anew with each piece
 * still reads at the memory's speed; less where a thread would get fewer than four pieces, so that they share
 * evenly, but no less than is worth a hand-over; an even number of tiles (most kernels take two at a time).
 */
static size_t product_grain(const nf_product *products, size_t n, size_t units, int n_threads) {
    size_t bytes = 0, work = 0;
    for (size_t i = 0; i < n; i++) {
        if (!products[i].n) continue;
        const nf_weights *w = &products[i].w;
        const size_t size = (products[i].act ? 2 : 1) * tiles_in(w) * tile_bytes(w),
                     macs = (products[i].act ? 2 : 1) * w->rows * w->cols * products[i].n;
        bytes += size;
        work += size > macs / 2 ? size : macs / 2; /* integer products go twice as fast as others */
    }
    const size_t unit = bytes / units ? bytes / units : 1, unit_work = work / units ? work / units : 1,
                 least = (NF_TEAM_LEAST_WORK + unit_work - 1) / unit_work, most = PIECE_BYTES / unit,
                 even = units / ((size_t)n_threads * 4), some = even < most ? even : most,
                 grain = some < least ? least : some;
    if (products[0].act) return grain < 1 ? 1 : grain;
    return grain < 2 ? 2 : (grain + 1) / 2 * 2;
}

void nf_run_products(nf_worker *worker, const nf_product *products, size_t n) {
    /* The team is a member of its model, so the kernels are at hand. */
    const nf_model *model = (const nf_model *)((const char *)worker->team - offsetof(nf_model, team));
    product_loop loop = {products, n, model->kernels};
    size_t units = 0;
    for (size_t i = 0; i < n; i++) units += units_of(&products[i]);
    if (!units) return;
    if (model->recorder) nf_recorder_products(worker, model->recorder, products, n);
    nf_team_loop(worker, units, product_grain(products, n, units, worker->team->n_threads), product_body,
                 &loop);
}
