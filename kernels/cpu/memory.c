/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, CHUNK = 64 << 20 };

struct memory_chunk {
	uint8_t *mem;
	size_t size, used;
	uint32_t n_refs;
};

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

static struct memory_chunk *chunk_new(size_t size)
{
	struct memory_chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return NULL;
	chunk->mem = memory_alloc(size);
	if (!chunk->mem) {
		free(chunk);
		return NULL;
	}
	chunk->size = size;
	chunk->n_refs = 1;
	return chunk;
}

void *memory_cut(struct memory_chunk **current, size_t size,
		 struct memory_chunk **ret_chunk)
{
	struct memory_chunk *chunk = *current;
	void *mem;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	size = (size + 63) / 64 * 64;
	if (!chunk || size > chunk->size - chunk->used) {
		/* What would leave much of a chunk unused gets one that it fills. */
		chunk = chunk_new(size < CHUNK / 4 ? CHUNK : size);
		if (!chunk)
			return NULL;
		if (size < CHUNK / 4) {
			memory_unref(*current);
			*current = chunk;
		}
	}
	if (chunk == *current)
		chunk->n_refs++;
	mem = chunk->mem + chunk->used;
	chunk->used += size;
	*ret_chunk = chunk;
	return mem;
}

void memory_unref(struct memory_chunk *chunk)
{
	if (!chunk || --chunk->n_refs)
		return;
	memory_free(chunk->mem, chunk->size);
	free(chunk);
}
