/* SPDX-License-Identifier: MIT */
/*
 * Puts parts of a memory file onto huge pages, a chunk at a time, on a thread that nobody waits
 * for. The caller says which chunk is worth it. Thread: loop.
 */
#ifndef KVD_DAEMON_POOL_PAGES_H
#define KVD_DAEMON_POOL_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/worker.h"

#define POOL_PAGES_HUGE  ((size_t)2 << 20)
#define POOL_PAGES_CHUNK (8 * POOL_PAGES_HUGE)

/*
 * @next: the chunk to be asked for next; UINT32_MAX: the kernel does not do it. @n_tries: how often
 * it could not be had. @from, @len, @error: the worker's while busy. @stop: begin no further part.
 */
struct pool_pages {
	struct worker worker;
	uint32_t next;
	unsigned n_tries;
	const volatile uint8_t *from;
	size_t len;
	int error;
	uint32_t stop;
};

/* Starts the thread "kvd-pages". Return: 0 or -errno. */
int pool_pages_init(struct pool_pages *pages);

/* Waits for at most a part of the chunk in work. Idempotent, also when all-zero. */
void pool_pages_deinit(struct pool_pages *pages);

/* Return: whether pool_pages_start() may be called for chunk @next now. */
bool pool_pages_ready(struct pool_pages *pages);

/* Begins chunk @next, at @from; worker.event_fd becomes readable at its end. */
void pool_pages_start(struct pool_pages *pages, const void *from, size_t len);

#endif
