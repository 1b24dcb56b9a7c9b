/* SPDX-License-Identifier: MIT */
/* First fit. As free extents are never adjacent, there are at most as many as allocations plus
 * one: the list is allocated once, and neither giving nor taking can fail for want of memory. */
#include "client/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"

int arena_init(struct arena *a, uint64_t size, uint32_t n_allocs)
{
	*a = (struct arena){.size = size, .n_max = n_allocs + 1};
	a->extents = calloc(a->n_max, sizeof(*a->extents));
	if (!a->extents)
		return -ENOMEM;
	if (size > 0)
		a->extents[a->n++] = (struct arena_extent){.off = 0, .len = size};
	return 0;
}

void arena_deinit(struct arena *a)
{
	free(a->extents);
	*a = (struct arena){0};
}

static void remove_extent(struct arena *a, uint32_t i)
{
	a->n--;
	memmove(&a->extents[i], &a->extents[i + 1], (a->n - i) * sizeof(*a->extents));
}

bool arena_alloc(struct arena *a, uint64_t len, uint64_t *ret_off)
{
	struct arena_extent *e;
	uint32_t i;

	if (len == 0 || len > a->size)
		return false;
	len = align_up(len, ARENA_ALIGN);
	for (i = 0; i < a->n; i++) {
		e = &a->extents[i];
		if (e->len < len)
			continue;
		*ret_off = e->off;
		e->off += len;
		e->len -= len;
		if (e->len == 0)
			remove_extent(a, i);
		return true;
	}
	return false;
}

void arena_free(struct arena *a, uint64_t off, uint64_t len)
{
	struct arena_extent *e = a->extents;
	bool joins_prev, joins_next;
	uint32_t i = 0;

	len = align_up(len, ARENA_ALIGN);
	while (i < a->n && e[i].off < off)
		i++;
	joins_prev = i > 0 && e[i - 1].off + e[i - 1].len == off;
	joins_next = i < a->n && off + len == e[i].off;

	if (joins_prev && joins_next) {
		e[i - 1].len += len + e[i].len;
		remove_extent(a, i);
	} else if (joins_prev) {
		e[i - 1].len += len;
	} else if (joins_next) {
		e[i].off = off;
		e[i].len += len;
	} else {
		assert(a->n < a->n_max);
		memmove(&e[i + 1], &e[i], (a->n - i) * sizeof(*e));
		e[i] = (struct arena_extent){.off = off, .len = len};
		a->n++;
	}
}
