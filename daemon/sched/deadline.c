/* SPDX-License-Identifier: MIT */
/*
 * A request that is past its deadline ends with SCHED_REASON_DEADLINE at the next sched_plan() or
 * sched_expire(); the step in flight is not cut short.
 */
#include "daemon/sched/state.h"

#include <assert.h>

static void place(struct sched *sched, uint32_t i, struct request *request)
{
	sched->heap[i] = request;
	request->heap_place = i;
}

static bool earlier(const struct sched *sched, uint32_t i, const struct request *request)
{
	return sched->heap[i]->deadline_ns < request->deadline_ns;
}

/* Sets @request down at @i or where the order wants it. */
static void settle(struct sched *sched, uint32_t i, struct request *request)
{
	while (i && !earlier(sched, (i - 1) / 2, request)) {
		place(sched, i, sched->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child + 1 < sched->n_heap &&
		    earlier(sched, child + 1, sched->heap[child]))
			child++;
		if (child >= sched->n_heap || !earlier(sched, child, request))
			break;
		place(sched, i, sched->heap[child]);
		i = child;
	}
	place(sched, i, request);
}

void deadline_link(struct sched *sched, struct request *request)
{
	if (!request->deadline_ns)
		return;
	assert(sched->n_heap < sched->n_slots);
	settle(sched, sched->n_heap++, request);
}

void deadline_unlink(struct sched *sched, struct request *request)
{
	struct request *last;

	if (!request->deadline_ns)
		return;
	assert(sched->heap[request->heap_place] == request);
	last = sched->heap[--sched->n_heap];
	if (last != request)
		settle(sched, request->heap_place, last);
	request->deadline_ns = 0;
}

bool deadline_check(const struct sched *sched)
{
	for (uint32_t i = 0; i < sched->n_heap; i++)
		if (sched->heap[i]->heap_place != i || !sched->heap[i]->deadline_ns ||
		    (i && earlier(sched, i, sched->heap[(i - 1) / 2])))
			return false;
	return true;
}
