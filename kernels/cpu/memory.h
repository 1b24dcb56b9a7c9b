/* SPDX-License-Identifier: MIT */
/*
 * Aligned, zeroed memory of the CPU backend. Small pieces come from the heap, large ones are
 * mappings with huge pages advised. Any thread. Many small ones that live equally long are cut
 * from chunks, so that they get huge pages, too: one thread at a time for those of a chunk.
 */
#ifndef KVD_KERNELS_CPU_MEMORY_H
#define KVD_KERNELS_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* 64-byte aligned and zeroed, 2 MiB aligned from 2 MiB on; NULL when there is none. */
void *memory_alloc(size_t size);
/* size as it was allocated; NULL is fine. */
void memory_free(void *mem, size_t size);

/* A mapping that pieces are cut from, one behind the other. It lives as long as a piece of it,
 * or as it is the one that the next piece is cut from. */
struct memory_chunk;

/**
 * memory_cut() - a piece of a chunk
 * @current: the chunk to cut from, or NULL; replaced by a new one where it has no room left
 * @ret_chunk: the chunk that it lies in, for memory_unref()
 *
 * Return: as memory_alloc(), but 64-byte aligned whatever the size.
 */
void *memory_cut(struct memory_chunk **current, size_t size,
		 struct memory_chunk **ret_chunk);
/* Of one piece, or of the chunk that was current. NULL is fine. */
void memory_unref(struct memory_chunk *chunk);

/* @size bytes of a file from @off on, shared, at an address that huge pages can stand at.
 * Return: NULL when they cannot be mapped. */
void *memory_map(int fd, uint64_t off, size_t size);
void memory_unmap(void *mem, size_t size);

#endif
