/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20 };

void *memory_alloc(size_t size)
{
	uint8_t *map, *mem;
	size_t round, head;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	if (size < HUGE) {
		round = (size + 63) / 64 * 64;
		mem = aligned_alloc(64, round);
		return mem ? memset(mem, 0, round) : NULL;
	}
	/* Map one huge page more, then give back what lies outside the aligned part. */
	round = (size + HUGE - 1) / HUGE * HUGE;
	map = mmap(NULL, round + HUGE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	head = (HUGE - ((uintptr_t)map & (HUGE - 1))) & (HUGE - 1);
	mem = map + head;
	if (head)
		munmap(map, head);
	if (HUGE - head)
		munmap(mem + round, HUGE - head);
	madvise(mem, round, MADV_HUGEPAGE);
	return mem;
}

void memory_free(void *mem, size_t size)
{
	if (!mem)
		return;
	if (size < HUGE)
		free(mem);
	else
		munmap(mem, (size + HUGE - 1) / HUGE * HUGE);
}
