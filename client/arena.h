/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_ARENA_H
#define KVD_CLIENT_ARENA_H

/*
 * Which parts of a ring's arena are in use. Offsets only: the output arena is read-only here.
 * Never short of memory after arena_init(). Belongs to the ring and its thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define ARENA_ALIGN 64u

struct arena_extent {
	uint64_t off;
	uint64_t len;
};

/* Free parts of [0, size): n of n_max extents, disjoint, never adjacent, sorted by offset. */
struct arena {
	uint64_t size;
	struct arena_extent *extents;
	uint32_t n;
	uint32_t n_max;
};

/* @n_allocs: at a time, at most. Return: 0, -ENOMEM. */
int arena_init(struct arena *a, uint64_t size, uint32_t n_allocs);
void arena_deinit(struct arena *a);

/* Return: true, with a multiple of ARENA_ALIGN; false: no extent is that long. */
bool arena_alloc(struct arena *a, uint64_t len, uint64_t *ret_off);

/* What arena_alloc() returned for the same @len. */
void arena_free(struct arena *a, uint64_t off, uint64_t len);

#endif
