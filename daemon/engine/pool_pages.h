/* SPDX-License-Identifier: MIT */
/*
 * Huge pages for a memory file.
 *
 * The kernel gives them to memory files at the first touch only where an administrator
 * switched that on, and long contexts are a fifth slower without. So the parts of the pool
 * that have come into use are put onto huge pages afterwards (MADV_COLLAPSE), a chunk at a
 * time; a later daemon finds them so. The kernel copies what lies there, and waits for
 * threads of its own: on a busy machine a chunk has been seen to take seconds, so a thread does
 * it (worker.h) that nobody waits for.
 *
 * Thread: loop. Knows addresses only; which chunk is worth it is the caller's to say.
 */
#ifndef KVD_DAEMON_POOL_PAGES_H
#define KVD_DAEMON_POOL_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/worker.h"

#define POOL_PAGES_HUGE  ((size_t)2 << 20)
#define POOL_PAGES_CHUNK (8 * POOL_PAGES_HUGE)

/**
 * struct pool_pages - see above
 * @next: the chunk to be asked for next; UINT32_MAX: the kernel does not do it
 * @n_tries: how often that one could not be had
 * @from, @len, @error: the worker's while it is busy
 * @stop: no further part of a chunk is begun
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

/* Starts the thread, "kvd-pages". Return: 0 or -errno. */
int pool_pages_init(struct pool_pages *pages);

/* Waits for at most a part of the chunk in work. Idempotent, also when all-zero. */
void pool_pages_deinit(struct pool_pages *pages);

/**
 * pool_pages_ready() - take note of the chunk that was in work
 *
 * Return: whether pool_pages_start() may be called for chunk @next. Not while the thread is
 * at work, nor when a chunk just could not be had, nor ever where the kernel cannot do it.
 */
bool pool_pages_ready(struct pool_pages *pages);

/* Begin with chunk @next, which lies at @from; worker.event_fd becomes readable at its end. */
void pool_pages_start(struct pool_pages *pages, const void *from, size_t len);

#endif
