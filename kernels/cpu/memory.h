/* SPDX-License-Identifier: MIT */
/*
 * Aligned, zeroed memory of the CPU backend. Small pieces come from the heap, large ones are
 * mappings with huge pages advised. Any thread.
 */
#ifndef KVD_KERNELS_CPU_MEMORY_H
#define KVD_KERNELS_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* 64-byte aligned and zeroed, 2 MiB aligned from 2 MiB on; NULL when there is none. */
void *memory_alloc(size_t size);
/* size as it was allocated; NULL is fine. */
void memory_free(void *mem, size_t size);

/* @size bytes of a file from @off on, shared, at an address that huge pages can stand at.
 * Return: NULL when they cannot be mapped. */
void *memory_map(int fd, uint64_t off, size_t size);
void memory_unmap(void *mem, size_t size);

#endif
