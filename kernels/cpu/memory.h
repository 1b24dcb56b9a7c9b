/* SPDX-License-Identifier: MIT */
/*
 * Aligned, zeroed memory of the CPU backend. Small pieces come from the heap, large ones are
 * mappings with huge pages advised. Any thread. Many small ones that live equally long are cut
 * from the chunks of an arena, so that they get huge pages, too.
 */
#ifndef KVD_KERNELS_CPU_MEMORY_H
#define KVD_KERNELS_CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64-byte aligned and zeroed, 2 MiB aligned from 2 MiB on; NULL when there is none. */
void *memory_alloc(size_t size);
/* size as it was allocated; NULL is fine. */
void memory_free(void *mem, size_t size);

/* A mapping that pieces are cut from, one behind the other. It lives as long as a piece of it,
 * or as its arena may go on with it. */
struct memory_chunk;

/**
 * struct memory_arena - where chunks come from: private memory, or a file that outlives them
 * @current: the chunk to cut from, or NULL
 * @chunks: of the file, until memory_arena_freeze()
 * @fd: of the file, borrowed; -1: private memory
 * @next: where in the file the next chunk begins
 * @size: of a filled file
 * @deadline_ns: by which another one has its huge pages
 * @filled: what is cut lies in the file already
 * @whole: so far all that was cut lies in the file
 *
 * One thread at a time. The same sizes, cut in the same order, lie at the same places of a file.
 */
struct memory_arena {
	struct memory_chunk *current, *chunks;
	int fd;
	uint64_t next, size, deadline_ns;
	bool filled, whole;
};

void memory_arena_init(struct memory_arena *arena);
/* Frees what no piece lies in. */
void memory_arena_deinit(struct memory_arena *arena);

/**
 * memory_arena_use() - cut from a file from now on
 * @fd: a memory file, until memory_arena_freeze(); with @filled sealed against writing, else one
 *	that may grow
 * @off: where the first chunk begins, a multiple of 2 MiB
 * @filled: the file comes from an arena that was used alike
 *
 * From where on the kernel gives no huge pages for a file that is not filled (before Linux 6.1,
 * where they are forbidden, or in 20 seconds), the file cannot grow, or a page of a filled one is
 * lost, pieces are cut from private memory.
 */
void memory_arena_use(struct memory_arena *arena, int fd, uint64_t off, bool filled);

/**
 * memory_arena_freeze() - what was cut from the file becomes read-only; the rest is private
 *
 * Return: 0: all since memory_arena_use() lies in the file, which nobody has mapped for writing
 * by it; 1: not all; -ENOMEM.
 */
int memory_arena_freeze(struct memory_arena *arena);

/**
 * memory_cut() - a piece of a chunk
 * @ret_chunk: the chunk that it lies in, for memory_unref()
 * @ret_filled: whether it has its bytes already, and must not be written
 *
 * Return: as memory_alloc(), but 64-byte aligned whatever the size.
 */
void *memory_cut(struct memory_arena *arena, size_t size, struct memory_chunk **ret_chunk,
		 bool *ret_filled);
/* Of one piece. NULL is fine. */
void memory_unref(struct memory_chunk *chunk);

/* @size bytes of a file from @off on, shared, at an address that huge pages can stand at.
 * Return: NULL when they cannot be mapped. */
void *memory_map(int fd, uint64_t off, size_t size);
void memory_unmap(void *mem, size_t size);

#endif
