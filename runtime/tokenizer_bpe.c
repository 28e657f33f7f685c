/*
 * Byte-pair merges of one piece. The next merge is always the one of the lowest rank, leftmost first: found
 * by a scan in short pieces and by a heap in long ones, so that a piece of a million bytes takes O(n log n).
 */
#include "runtime/tokenizer_internal.h"

#include <string.h>

enum { SHORT_PIECE = 48 };

#define NO_RANK 0xffffffffu
#define NO_SYMBOL 0xffffffffu

typedef struct nf_tok_merge {
    uint32_t rank, at, id;
} nf_tok_merge;

/* Rank of the merge of a and b, NO_RANK when there is none; *id is the result. */
static inline uint32_t find_merge(const nf_tokenizer *t, uint32_t a, uint32_t b, uint32_t *id) {
    uint32_t slot = nf_tok_hash_pair(a, b) & t->merge_mask;
    for (uint32_t probe = 0; probe <= t->merge_probe; probe++, slot = (slot + 1) & t->merge_mask) {
        const unsigned char *r = t->merges + (size_t)slot * 16;
        uint32_t left = nf_tok_u32(r);
        if (left == NF_TOK_EMPTY) return NO_RANK;
        if (left != a || nf_tok_u32(r + 4) != b) continue;
        *id = nf_tok_u32(r + 12);
        return nf_tok_u32(r + 8);
    }
    return NO_RANK;
}

/* Ids of single bytes; bytes without a token become the unknown token or vanish, as in the reference. */
static size_t first_symbols(const nf_tokenizer *t, const unsigned char *piece, size_t n, uint32_t *symbols) {
    size_t count = 0;
    bool after_unknown = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = nf_tok_u32(t->byte_ids + (size_t)piece[i] * 4);
        bool unknown = id == 0;
        if (unknown) id = after_unknown && (t->flags & NF_TOK_FUSE_UNKNOWN) ? 0 : t->unknown;
        if (id) symbols[count++] = id - 1;
        after_unknown = unknown;
    }
    return count;
}

static size_t merge_short(const nf_tokenizer *t, uint32_t *symbols, size_t n) {
    uint32_t ranks[SHORT_PIECE], merged[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = find_merge(t, symbols[i], symbols[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        symbols[best] = merged[best];
        n--;
        size_t rest = n - best - 1;
        memmove(symbols + best + 1, symbols + best + 2, rest * sizeof *symbols);
        if (rest) {
            memmove(ranks + best + 1, ranks + best + 2, (rest - 1) * sizeof *ranks);
            memmove(merged + best + 1, merged + best + 2, (rest - 1) * sizeof *merged);
        }
        if (best > 0) ranks[best - 1] = find_merge(t, symbols[best - 1], symbols[best], &merged[best - 1]);
        if (rest) ranks[best] = find_merge(t, symbols[best], symbols[best + 1], &merged[best]);
    }
    return n;
}

static inline bool is_before(const nf_tok_merge *a, const nf_tok_merge *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static nf_status heap_push(nf_tok_scratch *s, size_t *n, nf_tok_merge merge, nf_error *err) {
    if (*n == s->heap_cap && nf_grow((void **)&s->heap, &s->heap_cap, *n + 1, sizeof *s->heap, err))
        return NF_ERR_MEMORY;
    size_t i = (*n)++;
    for (; i && is_before(&merge, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = merge;
    return NF_OK;
}

static nf_tok_merge heap_pop(nf_tok_scratch *s, size_t *n) {
    nf_tok_merge top = s->heap[0], last = s->heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && is_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!is_before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static nf_status push_pair(nf_tok_scratch *s, size_t *heap, uint32_t at, uint32_t a, uint32_t b,
                           nf_error *err) {
    nf_tok_merge merge = {.at = at};
    merge.rank = find_merge(s->t, a, b, &merge.id);
    return merge.rank == NO_RANK ? NF_OK : heap_push(s, heap, merge, err);
}

/* symbols[0..n), then room for the links: next[0..n), previous[0..n). */
static nf_status merge_long(nf_tok_scratch *s, size_t *n_symbols, nf_error *err) {
    size_t n = *n_symbols, heap = 0;
    uint32_t *symbols = s->symbols, *next = symbols + n, *previous = next + n;
    nf_status status = NF_OK;
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1; /* of the first: wraps to a position that does not exist */
    }
    for (size_t i = 0; i + 1 < n && !status; i++)
        status = push_pair(s, &heap, (uint32_t)i, symbols[i], symbols[i + 1], err);
    while (heap && !status) {
        nf_tok_merge top = heap_pop(s, &heap);
        uint32_t at = top.at, right = next[at], id;
        /* Entries of pairs that are gone stay in the heap until they come up. */
        if (symbols[at] == NO_SYMBOL || right >= n) continue;
        if (find_merge(s->t, symbols[at], symbols[right], &id) == NO_RANK || id != top.id) continue;
        symbols[at] = id;
        symbols[right] = NO_SYMBOL;
        next[at] = next[right];
        if (next[at] < n) previous[next[at]] = at;
        if (previous[at] < n) status = push_pair(s, &heap, previous[at], symbols[previous[at]], id, err);
        if (!status && next[at] < n) status = push_pair(s, &heap, at, id, symbols[next[at]], err);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (symbols[i] != NO_SYMBOL) symbols[kept++] = symbols[i];
    *n_symbols = kept;
    return status;
}

nf_status nf_tok_bpe(nf_tok_scratch *s, const unsigned char *piece, size_t n, nf_error *err) {
    const nf_tokenizer *t = s->t;
    if (t->flags & NF_TOK_IGNORE_MERGES) {
        int32_t id = nf_tok_vocabulary_id(t, piece, n);
        if (id >= 0) return nf_tok_emit(s, id, err);
    }
    if (nf_grow((void **)&s->symbols, &s->symbols_cap, 3 * n, sizeof *s->symbols, err)) return NF_ERR_MEMORY;
    size_t count = first_symbols(t, piece, n, s->symbols);
    nf_status status = NF_OK;
    if (count <= SHORT_PIECE)
        count = merge_short(t, s->symbols, count);
    else
        status = merge_long(s, &count, err);
    for (size_t i = 0; i < count && !status; i++) status = nf_tok_emit(s, (int32_t)s->symbols[i], err);
    return status;
}
