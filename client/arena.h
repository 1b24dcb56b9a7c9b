/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_ARENA_H
#define KVD_CLIENT_ARENA_H

/*
 * Which parts of a ring's arena are in use. Offsets only; the memory itself is
 * never touched, since the output arena is read-only here. First fit over a
 * sorted list of free extents that is allocated once, so that neither giving nor
 * taking can fail for want of memory. Belongs to the ring and its thread.
 *
 * Free extents are disjoint, never adjacent, sorted by offset; so there are at
 * most as many as allocations plus one.
 */

#include <stdbool.h>
#include <stdint.h>

#define ARENA_ALIGN 64u

struct arena_extent {
	uint64_t off;
	uint64_t len;
};

/**
 * struct arena - free parts of [0, size)
 * @extents: [n_max]
 */
struct arena {
	uint64_t size;
	struct arena_extent *extents;
	uint32_t n;
	uint32_t n_max;
};

/* @n_allocs: allocations at once, at most. Return: 0, -ENOMEM. */
int arena_init(struct arena *a, uint64_t size, uint32_t n_allocs);
void arena_deinit(struct arena *a);

/* Return: true and a multiple of ARENA_ALIGN; false: no extent is that long. */
bool arena_alloc(struct arena *a, uint64_t len, uint64_t *ret_off);

/* Give back what arena_alloc() gave for the same @len. */
void arena_free(struct arena *a, uint64_t off, uint64_t len);

#endif
