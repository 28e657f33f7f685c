/*
 * The 32 lanes of contract A, eight rows at a time: group g adds to lane g mod 32, and the lanes are added by
 * the tree 16, 8, 4, 2, 1 (docs/arithmetic.md, steps 3 and 4).
 */
#ifndef NF_CPU_LANES_H
#define NF_CPU_LANES_H

#include "cpu/vec8.h"

#define NF_LANES 32

/* Lanes that lane_tree reads when `groups` groups were added. */
static inline size_t lanes_in_use(size_t groups) {
    return groups <= 8 ? 8 : groups <= 16 ? 16 : NF_LANES;
}

/* Adds the 32 lanes of acc by the tree 16, 8, 4, 2, 1. Lanes from n_used on are +0, so levels that only add
 * them are replaced by one addition of +0 (which turns -0 into +0 as they would). */
static inline vec8 lane_tree(vec8 *acc, size_t n_used) {
    int top = 16;
    while (top && (size_t)top >= n_used) top /= 2;
    for (int s = top; s; s /= 2)
        for (int i = 0; i < s; i++) acc[i] = v8_add(acc[i], acc[i + s]);
    return top == 16 ? acc[0] : v8_add(acc[0], v8_zero());
}

#endif
