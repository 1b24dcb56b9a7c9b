/* SPDX-License-Identifier: MIT */
/*
 * The end of a request in a ring's table: what it held is free again, and where this side
 * ends it, it waits in a list to be given out.
 */
#include <assert.h>

#include "client/internal.h"

void request_release(struct kvc_ring *r, struct kvc_request *q)
{
	assert(q->used);
	if (q->in_len)
		arena_free(&r->in, q->in_off, q->in_len);
	if (q->out_len)
		arena_free(&r->out, q->out_off, q->out_len);
	q->used = false;
	q->ended = false;
	q->doomed = false;
	q->in_len = 0;
	q->out_len = 0;
	q->next = r->free_req;
	r->free_req = (uint32_t)(q - r->reqs) + 1;
	r->in_flight--;
}

void request_end(struct kvc_ring *r, struct kvc_request *q, int res)
{
	uint32_t id = (uint32_t)(q - r->reqs) + 1;

	if (q->unsent)
		r->n_unsent--;
	if (q->held)
		r->n_held--;
	q->unsent = false;
	q->held = false;
	q->res = res;
	q->ended = true;
	q->next = 0;
	if (r->ended_tail)
		r->reqs[r->ended_tail - 1].next = id;
	else
		r->ended_head = id;
	r->ended_tail = id;
	ring_wake(r);
}
