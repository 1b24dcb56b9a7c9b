/* SPDX-License-Identifier: MIT */
/* The timers of a loop: a binary heap of pointers to the callers' objects. */
#include "daemon/log.h"
#include "daemon/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/loop_backend.h"

/* Each timer knows its place, so that stopping one takes no search. */
static void timer_place(struct loop *loop, struct loop_timer *timer, size_t position)
{
	loop->timers[position] = timer;
	timer->position = position;
}

/* Finds the place of @timer from @position on, which is free: upwards, and else downwards. */
static void timer_sift(struct loop *loop, struct loop_timer *timer, size_t position)
{
	size_t child;

	while (position > 0) {
		struct loop_timer *parent = loop->timers[(position - 1) / 2];

		if (parent->due_ns <= timer->due_ns)
			break;
		timer_place(loop, parent, position);
		position = (position - 1) / 2;
	}
	while ((child = 2 * position + 1) < loop->n_timers) {
		if (child + 1 < loop->n_timers &&
		    loop->timers[child + 1]->due_ns < loop->timers[child]->due_ns)
			child++;
		if (timer->due_ns <= loop->timers[child]->due_ns)
			break;
		timer_place(loop, loop->timers[child], position);
		position = child;
	}
	timer_place(loop, timer, position);
}

int loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t due_ns,
		     uint64_t period_ns, loop_timer_fn fn)
{
	if (!timer->loop) {
		if (loop->n_timers == loop->max_timers) {
			size_t n = loop->max_timers ? loop->max_timers * 2 : 32;
			struct loop_timer **timers;

			timers = reallocarray(loop->timers, n,
					      sizeof(struct loop_timer *));
			if (!timers)
				return error_origin(-ENOMEM);
			loop->timers = timers;
			loop->max_timers = n;
		}
		timer->loop = loop;
		timer->position = loop->n_timers++;
	}
	assert(timer->loop == loop);
	/* Later than this iteration's now, so that a callback that restarts its own timer
	 * in the past cannot hold up the loop. */
	timer->due_ns = due_ns > loop->now_ns ? due_ns : loop->now_ns + 1;
	timer->period_ns = period_ns;
	timer->fn = fn;
	timer_sift(loop, timer, timer->position);
	return 0;
}

void loop_timer_stop(struct loop_timer *timer)
{
	struct loop *loop = timer->loop;
	struct loop_timer *last;

	if (!loop)
		return;
	timer->loop = NULL;
	/* The last one fills the gap. It comes from another branch, so it may have to go up. */
	last = loop->timers[--loop->n_timers];
	if (last != timer)
		timer_sift(loop, last, timer->position);
}

uint64_t loop_timers_next(const struct loop *loop)
{
	return loop->n_timers ? loop->timers[0]->due_ns : UINT64_MAX;
}

void loop_timers_run(struct loop *loop)
{
	/* Callbacks may refresh the clock; what falls due meanwhile waits its turn. */
	uint64_t now = loop->now_ns, late;

	while (!loop->exiting && loop_timers_next(loop) <= now) {
		struct loop_timer *timer = loop->timers[0];

		if (timer->period_ns) {
			/* periods that were missed are left out, not made up for */
			late = now - timer->due_ns;
			timer->due_ns += (late / timer->period_ns + 1) * timer->period_ns;
			timer_sift(loop, timer, 0);
		} else {
			/* before its call, which may start it again or free it */
			loop_timer_stop(timer);
		}
		timer->fn(timer, now);
	}
}
