/* SPDX-License-Identifier: MIT */
/*
 * See pool_pages.h. The kernel gives huge pages to memory files at the first touch only where an
 * administrator switched that on, and long contexts are a fifth slower without. MADV_COLLAPSE does
 * it afterwards, and a later daemon finds them so. The kernel copies what lies there, and waits for
 * threads of its own: on a busy machine a chunk has been seen to take seconds.
 */
#include "daemon/engine/pool_pages.h"

#include <errno.h>
#include <sys/mman.h>

#include "ipc/barrier.h"

/* Since Linux 6.1. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* A chunk that is in use just now is tried again at the next occasions, not at once. */
#define MAX_TRIES 8

/* Thread: worker. */
static void pool_pages_run(void *ctx)
{
	struct pool_pages *pages = ctx;

	pages->error = 0;
	for (size_t at = 0; at < pages->len && !shm_load_u32(&pages->stop);
	     at += POOL_PAGES_HUGE) {
		/* a huge page takes the place of small ones: there has to be one */
		(void)pages->from[at];
		if (madvise((void *)(pages->from + at), POOL_PAGES_HUGE, MADV_COLLAPSE))
			pages->error = errno;
	}
}

int pool_pages_init(struct pool_pages *pages)
{
	*pages = (struct pool_pages){0};
	return worker_init(&pages->worker, "kvd-pages", pool_pages_run, pages);
}

void pool_pages_deinit(struct pool_pages *pages)
{
	shm_store_u32(&pages->stop, 1);
	worker_deinit(&pages->worker);
	pages->worker.busy = false;
}

/* Takes note of the chunk that was in work; one that could not be had is not ready again yet. */
bool pool_pages_ready(struct pool_pages *pages)
{
	if (!pages->worker.started)
		return false;
	if (!pages->worker.busy)
		return pages->next != UINT32_MAX;
	if (!worker_collect(&pages->worker))
		return false;
	switch (pages->error) {
	case 0:
		break;
	case EAGAIN:
	case EBUSY:
	case ENOMEM:
		if (++pages->n_tries < MAX_TRIES)
			return false;
		break;
	default:
		pages->next = UINT32_MAX;
		return false;
	}
	pages->n_tries = 0;
	pages->next++;
	return true;
}

void pool_pages_start(struct pool_pages *pages, const void *from, size_t len)
{
	pages->from = from;
	pages->len = len;
	worker_submit(&pages->worker);
}
