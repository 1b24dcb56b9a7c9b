/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20 };

static size_t round_huge(size_t size)
{
	return (size + HUGE - 1) / HUGE * HUGE;
}

/* @size is a multiple of HUGE. */
static void *map_aligned(size_t size, int prot)
{
	uint8_t *map, *mem;
	size_t head;

	/* Map one huge page more, then give back what lies outside the aligned part. */
	map = mmap(NULL, size + HUGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	head = (HUGE - ((uintptr_t)map & (HUGE - 1))) & (HUGE - 1);
	mem = map + head;
	if (head)
		munmap(map, head);
	if (HUGE - head)
		munmap(mem + size, HUGE - head);
	return mem;
}

void *memory_map(int fd, uint64_t off, size_t size)
{
	void *mem, *map;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	mem = map_aligned(round_huge(size), PROT_NONE);
	if (!mem)
		return NULL;
	map = mmap(mem, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		   (off_t)off);
	if (map == MAP_FAILED) {
		munmap(mem, round_huge(size));
		return NULL;
	}
	madvise(map, size, MADV_HUGEPAGE);
	return map;
}

void memory_unmap(void *mem, size_t size)
{
	if (mem)
		munmap(mem, round_huge(size));
}

void *memory_alloc(size_t size)
{
	uint8_t *mem;
	size_t round;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	if (size < HUGE) {
		round = (size + 63) / 64 * 64;
		mem = aligned_alloc(64, round);
		return mem ? memset(mem, 0, round) : NULL;
	}
	mem = map_aligned(round_huge(size), PROT_READ | PROT_WRITE);
	if (mem)
		madvise(mem, round_huge(size), MADV_HUGEPAGE);
	return mem;
}

void memory_free(void *mem, size_t size)
{
	if (!mem)
		return;
	if (size < HUGE)
		free(mem);
	else
		munmap(mem, round_huge(size));
}
