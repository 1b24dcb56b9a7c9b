/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/clock.h"

/* Since Linux 6.1 and 5.14. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* What huge pages for a file may take in all: a busy machine has taken seconds for a few. */
#define COLLAPSE_NS ((uint64_t)20 * 1000000000)

/* A file's chunk gets huge pages in steps: asking for them has a price of its own. */
enum { HUGE = 2 << 20, CHUNK = 64 << 20, STEP = 8 << 20 };

/**
 * struct memory_chunk - a mapping that pieces are cut from, one behind the other
 * @used: bytes that pieces were cut from; @ready: of a file, that have their pages
 * @file_off: where it lies in its file; 0: private memory
 * @n_refs: its pieces, the arena whose list it is in, the arena whose current one it is
 */
struct memory_chunk {
	struct memory_chunk *next;
	uint8_t *mem;
	size_t size, used, ready;
	uint64_t file_off;
	uint32_t n_refs;
	bool filled;
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

/* --- arenas ------------------------------------------------------------------------- */

void memory_arena_init(struct memory_arena *arena)
{
	*arena = (struct memory_arena){.fd = -1};
}

void memory_unref(struct memory_chunk *chunk)
{
	if (!chunk || --chunk->n_refs)
		return;
	if (chunk->file_off)
		munmap(chunk->mem, chunk->size);
	else
		memory_free(chunk->mem, chunk->size);
	free(chunk);
}

/* What comes next is private memory. */
static void leave_file(struct memory_arena *arena)
{
	arena->fd = -1;
	arena->whole = false;
}

static void forget_chunks(struct memory_arena *arena)
{
	struct memory_chunk *chunk = arena->chunks;

	memory_unref(arena->current);
	arena->current = arena->chunks = NULL;
	while (chunk) {
		struct memory_chunk *next = chunk->next;

		memory_unref(chunk);
		chunk = next;
	}
}

void memory_arena_deinit(struct memory_arena *arena)
{
	forget_chunks(arena);
	memory_arena_init(arena);
}

/*
 * Huge pages for part of a file's mapping: it gets them in the place of small ones only, of
 * which there has to be one. Small ones that stayed would stay in the kept file as well, and
 * cost more at each step than packing does at a start.
 */
static bool collapse(uint8_t *mem, size_t size)
{
	for (size_t at = 0; at < size; at += HUGE)
		*(volatile uint8_t *)(mem + at) = 0;
	/* the second time for what was in use just then */
	return !madvise(mem, size, MADV_COLLAPSE) || !madvise(mem, size, MADV_COLLAPSE);
}

/* A page lost to a memory error is found here, and not by SIGBUS at some step. */
static bool populate(uint8_t *mem, size_t size)
{
	return !madvise(mem, size, MADV_POPULATE_READ) || errno == EINVAL;
}

/* A chunk of the file, without huge pages yet, or with what is there. */
static struct memory_chunk *chunk_of_file(struct memory_arena *arena, size_t size)
{
	int prot = arena->filled ? PROT_READ : PROT_READ | PROT_WRITE;
	/* Before Linux 6.7 what is sealed against writing cannot be mapped as shared. */
	int flags = MAP_FIXED | (arena->filled ? MAP_PRIVATE : MAP_SHARED);
	struct memory_chunk *chunk;
	uint64_t end;

	size = round_huge(size);
	if (__builtin_add_overflow(arena->next, size, &end) || end > INT64_MAX)
		return NULL;
	if (arena->filled ? end > arena->size : ftruncate(arena->fd, (off_t)end) < 0)
		return NULL;
	chunk = calloc(1, sizeof(*chunk));
	if (!chunk)
		return NULL;
	chunk->mem = map_aligned(size, PROT_NONE);
	if (!chunk->mem) {
		free(chunk);
		return NULL;
	}
	if (mmap(chunk->mem, size, prot, flags, arena->fd, (off_t)arena->next) ==
	    MAP_FAILED) {
		munmap(chunk->mem, size);
		free(chunk);
		return NULL;
	}
	chunk->size = size;
	chunk->file_off = arena->next;
	chunk->filled = arena->filled;
	arena->next = end;
	return chunk;
}

/* Return: with one reference, or NULL. */
static struct memory_chunk *chunk_new(struct memory_arena *arena, size_t size)
{
	struct memory_chunk *chunk;

	if (arena->fd >= 0) {
		chunk = chunk_of_file(arena, size);
		if (chunk) {
			chunk->next = arena->chunks;
			arena->chunks = chunk;
			chunk->n_refs = 2;
			return chunk;
		}
		leave_file(arena);
	}
	chunk = calloc(1, sizeof(*chunk));
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

/* The pages of a chunk's next @size bytes. */
static bool chunk_ready(struct memory_arena *arena, struct memory_chunk *chunk,
			size_t size)
{
	size_t end = round_huge(chunk->used + size);

	if (!chunk->file_off)
		return true;
	if (chunk->filled) {
		if (chunk->ready < end &&
		    !populate(chunk->mem + chunk->ready, end - chunk->ready))
			return false;
		chunk->ready = chunk->ready < end ? end : chunk->ready;
		return true;
	}
	while (chunk->ready < end) {
		size_t len = chunk->size - chunk->ready;

		if (len > STEP)
			len = STEP;
		if (kv_now_ns() > arena->deadline_ns ||
		    !collapse(chunk->mem + chunk->ready, len))
			return false;
		chunk->ready += len;
	}
	return true;
}

/*
 * Huge pages for a file need Linux 6.1; where the kernel has or permits none, or takes longer
 * than COLLAPSE_NS, the arena leaves the file.
 */
void memory_arena_use(struct memory_arena *arena, int fd, uint64_t off, bool filled)
{
	struct memory_chunk *probe;
	struct stat st;

	forget_chunks(arena);
	*arena = (struct memory_arena){.fd = -1};
	if (off == 0 || off % HUGE || fstat(fd, &st) < 0)
		return;
	*arena = (struct memory_arena){
		.fd = fd,
		.next = off,
		.size = (uint64_t)st.st_size,
		.deadline_ns = kv_now_ns() + COLLAPSE_NS,
		.filled = filled,
		.whole = true,
	};
	if (filled)
		return;
	/* Before anything lies in it: it stays empty where there is no such thing. */
	probe = chunk_of_file(arena, HUGE);
	arena->next = off;
	if (!probe || !collapse(probe->mem, HUGE))
		leave_file(arena);
	if (probe) {
		munmap(probe->mem, probe->size);
		free(probe);
	}
}

int memory_arena_freeze(struct memory_arena *arena)
{
	int r = arena->whole ? 0 : 1;

	for (struct memory_chunk *c = arena->chunks; c && arena->whole; c = c->next) {
		size_t used = round_huge(c->used);

		if (c->filled)
			continue;
		if (used < c->ready)
			(void)fallocate(
				arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)(c->file_off + used), (off_t)(c->ready - used));
		if (mmap(c->mem, c->size, PROT_READ, MAP_PRIVATE | MAP_FIXED, arena->fd,
			 (off_t)c->file_off) == MAP_FAILED)
			r = -ENOMEM;
	}
	memory_arena_deinit(arena);
	return r;
}

/* A chunk with room for a piece of that size, which has a reference of its own. What would
 * leave much of a chunk unused gets one that it fills. */
static struct memory_chunk *chunk_for(struct memory_arena *arena, size_t size)
{
	struct memory_chunk *chunk = arena->current;

	if (!chunk || size > chunk->size - chunk->used) {
		chunk = chunk_new(arena, size < CHUNK / 4 ? CHUNK : size);
		if (!chunk || size >= CHUNK / 4)
			return chunk;
		memory_unref(arena->current);
		arena->current = chunk;
	}
	chunk->n_refs++;
	return chunk;
}

void *memory_cut(struct memory_arena *arena, size_t size, struct memory_chunk **ret_chunk,
		 bool *ret_filled)
{
	struct memory_chunk *chunk;
	void *mem;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	size = (size + 63) / 64 * 64;
	chunk = chunk_for(arena, size);
	if (chunk && !chunk_ready(arena, chunk, size)) {
		leave_file(arena);
		memory_unref(chunk);
		memory_unref(arena->current);
		arena->current = NULL;
		chunk = chunk_for(arena, size);
	}
	if (!chunk)
		return NULL;
	mem = chunk->mem + chunk->used;
	chunk->used += size;
	*ret_chunk = chunk;
	*ret_filled = chunk->filled;
	return mem;
}
