/* SPDX-License-Identifier: MIT */
/* What the tests of the loop share: one loop at a time, and a run that cannot hang. */
#ifndef KVD_TESTS_UNIT_DAEMON_LOOP_TEST_H
#define KVD_TESTS_UNIT_DAEMON_LOOP_TEST_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/loop.h"
#include "tests/unit/suite.h"

#define MS UINT64_C(1000000)

static struct loop *loop;
static bool have_uring;

static const enum loop_backend backends[] = {LOOP_BACKEND_EPOLL, LOOP_BACKEND_IO_URING};

/* Return: false where the kernel has no io_uring for us, so that epoll is all there is. */
static inline bool loop_make(int which)
{
	if (backends[which] == LOOP_BACKEND_IO_URING && !have_uring)
		return false;
	ck_assert_int_eq(loop_new(&loop, backends[which]), 0);
	ck_assert_int_eq(loop_backend_of(loop), backends[which]);
	return true;
}

/* A guard so that a lost event is a failed assertion and no hang. */
static inline void guard_fired(struct loop_timer *timer, uint64_t now_ns)
{
	loop_exit(timer->loop ? timer->loop : loop, 99);
}

static inline int run(void)
{
	uint64_t end =
		loop_now_refresh(loop) + 5000 * MS * (getenv("KVD_EMULATOR") ? 12 : 1);
	struct loop_timer guard = {0};
	int r;

	ck_assert_int_eq(loop_timer_start(loop, &guard, end, 0, guard_fired), 0);
	r = loop_run(loop);
	loop_timer_stop(&guard);
	return r;
}

static inline void stop_run(struct loop_timer *timer, uint64_t now_ns)
{
	loop_exit(loop, 7);
}

static inline void probe_uring(void)
{
	have_uring = loop_new(&loop, LOOP_BACKEND_IO_URING) == 0;
	if (have_uring)
		loop_free(loop);
	else
		fprintf(stderr, "no io_uring here: only epoll is tested\n");
}

#endif
