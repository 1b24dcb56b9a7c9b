/* SPDX-License-Identifier: MIT */
/* Aligned, zeroed memory of the CPU backend, from 2 MiB on in huge pages if there are any. Many
 * pieces that live equally long share them in the chunks of an arena. Any thread, an arena one
 * at a time. NULL may be freed, else with the size that was allocated. */
#ifndef KVD_KERNELS_CPU_MEMORY_H
#define KVD_KERNELS_CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64-byte aligned and zeroed, 2 MiB aligned from 2 MiB on; NULL when there is none. */
void *memory_alloc(size_t size);
void memory_free(void *mem, size_t size);

struct memory_chunk;

/* Where chunks come from: private memory (fd -1), or a borrowed file that outlives them, where the
 * same sizes, cut in the same order, lie at the same places. whole: all that was cut is in it. */
struct memory_arena {
	struct memory_chunk *current, *chunks;
	int fd;
	uint64_t next, size, deadline_ns;
	bool filled, whole;
};

void memory_arena_init(struct memory_arena *arena);
/* Chunks live on until their last piece is gone. */
void memory_arena_deinit(struct memory_arena *arena);

/* Cut from memory file fd, from off (a multiple of 2 MiB) on, until memory_arena_freeze().
 * filled: the file was filled by the same cuts and is sealed against writing; else it may grow.
 * Pieces that it cannot hold, or not in huge pages, are cut from private memory. */
void memory_arena_use(struct memory_arena *arena, int fd, uint64_t off, bool filled);

/* What was cut from the file becomes read-only. Return: 0: all since memory_arena_use() is in
 * the file, which has no writable mapping left; 1: not all; -ENOMEM. */
int memory_arena_freeze(struct memory_arena *arena);

/* A piece of a chunk, 64-byte aligned and zeroed, or NULL; @ret_chunk is for memory_unref().
 * @ret_filled: it has its bytes already, and must not be written. */
void *memory_cut(struct memory_arena *arena, size_t size, struct memory_chunk **ret_chunk,
		 bool *ret_filled);
void memory_unref(struct memory_chunk *chunk);

/* Shared, 2 MiB aligned; NULL when it cannot be mapped. */
void *memory_map(int fd, uint64_t off, size_t size);
void memory_unmap(void *mem, size_t size);

#endif
