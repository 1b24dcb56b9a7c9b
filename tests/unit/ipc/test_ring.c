/* SPDX-License-Identifier: MIT */
/* Both sides of a ring: order, wrap, full queues, sleeping, and a hostile peer. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"
#include "ipc/ring.h"
#include "tests/unit/suite.h"

static void make_pair(struct ring_daemon *d, struct ring_client *c, uint32_t sq,
		      uint32_t cq)
{
	int fds[KVD_RING_N_FDS], dups[KVD_RING_N_FDS], i;

	ck_assert_int_eq(ring_daemon_init(d, sq, cq, 8192, 4096), 0);
	ring_daemon_get_fds(d, fds);
	for (i = 0; i < KVD_RING_N_FDS; i++)
		dups[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	ring_daemon_close_files(d);
	ck_assert_int_eq(ring_client_init(c, &d->geometry, dups), 0);
}

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static struct kvd_sqe sqe_of(uint64_t n)
{
	return (struct kvd_sqe){.user_data = n, .arg = ~n, .seq = 99};
}

START_TEST(geometry_limits)
{
	static const struct {
		uint32_t sq, cq;
		uint64_t in, out;
		int rc;
	} cases[] = {
		{1, 1, 0, 0, 0},
		{KVD_MAX_SQ_ENTRIES, KVD_MAX_CQ_ENTRIES, KVD_MAX_ARENA_BYTES,
		 KVD_MAX_ARENA_BYTES, 0},
		{0, 1, 0, 0, -EINVAL},
		{1, 0, 0, 0, -EINVAL},
		{3, 4, 0, 0, -EINVAL},
		{2 * KVD_MAX_SQ_ENTRIES, 4, 0, 0, -EINVAL},
		{4, 2 * KVD_MAX_CQ_ENTRIES, 0, 0, -EINVAL},
		{1u << 31, 1u << 31, 0, 0, -EINVAL},
		{4, 4, 4095, 0, -EINVAL},
		{4, 4, 0, 1, -EINVAL},
		{4, 4, KVD_MAX_ARENA_BYTES + 4096ull, 0, -EINVAL},
		{4, 4, 0, ~0ull << 12, -EINVAL},
	};
	struct kvd_ring_geometry g, bad;
	size_t i;

	for (i = 0; i < KVD_ARRAY_LEN(cases); i++) {
		ck_assert_int_eq(ring_geometry_init(&g, cases[i].sq, cases[i].cq,
						    cases[i].in, cases[i].out),
				 cases[i].rc);
		if (cases[i].rc == 0)
			ck_assert(ring_geometry_ok(&g));
	}
	ck_assert_int_eq(ring_geometry_init(&g, 8, 8, 4096, 4096), 0);
	bad = g;
	bad.sq_off = ~0ull & ~63ull;
	ck_assert(!ring_geometry_ok(&bad));
	bad = g;
	bad.sq_off = 0; /* would lie on the page of positions */
	ck_assert(!ring_geometry_ok(&bad));
	bad = g;
	bad.in_bytes = g.c2d_bytes;
	ck_assert(!ring_geometry_ok(&bad));
	bad = g;
	bad.cq_entries = 7;
	ck_assert(!ring_geometry_ok(&bad));
	bad = g;
	bad.d2c_bytes += 1;
	ck_assert(!ring_geometry_ok(&bad));
}
END_TEST

START_TEST(goes_round_and_fills)
{
	struct kvd_cqe cqe = {.res = 5}, got;
	struct kvd_sqe sqe, taken;
	struct ring_daemon d;
	struct ring_client c;
	uint64_t i, k, n;
	uint32_t sizes[] = {1, 2, 4, 64};

	for (k = 0; k < KVD_ARRAY_LEN(sizes); k++) {
		n = sizes[k];
		make_pair(&d, &c, (uint32_t)n, (uint32_t)n);
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_EMPTY);
		ck_assert_int_eq(ring_client_take(&c, &got), RING_EMPTY);
		for (i = 0; i < 10 * n; i++) {
			sqe = sqe_of(i);
			ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
			ck_assert(ring_daemon_pending(&d));
			ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
			ck_assert_uint_eq(taken.user_data, i);
			ck_assert_uint_eq(taken.arg, ~i);
			ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_EMPTY);
			cqe.user_data = i;
			ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
			ck_assert(ring_client_pending(&c));
			ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
			ck_assert_uint_eq(got.user_data, i);
			ck_assert_int_eq(got.res, 5);
		}
		/* Fill both. */
		for (i = 0; i < n; i++) {
			ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
			ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		}
		ck_assert_int_eq(ring_client_put(&c, &sqe), RING_FULL);
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_FULL);
		/* No SQE is taken that could not be answered. */
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FULL);
		/* Reading one makes room at once, since the daemon waits. */
		ck_assert(!readable(d.fd_submit));
		ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
		ck_assert(readable(d.fd_submit));
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		ring_client_deinit(&c);
		ring_daemon_deinit(&d);
		ring_daemon_deinit(&d);
	}
}
END_TEST

START_TEST(positions_are_lazy_but_prompt_when_it_matters)
{
	struct kvd_sqe sqe = sqe_of(1), taken;
	struct ring_daemon d;
	struct ring_client c;
	int i;

	make_pair(&d, &c, 16, 16);
	for (i = 0; i < 3; i++) {
		ring_client_put(&c, &sqe);
		ring_daemon_take(&d, &taken);
	}
	ck_assert_uint_eq(d.daemon->sq_pos, 0);
	ring_client_put(&c, &sqe);
	ring_daemon_take(&d, &taken);
	ck_assert_uint_eq(d.daemon->sq_pos, 4);
	ring_client_put(&c, &sqe);
	ring_daemon_take(&d, &taken);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ck_assert_uint_eq(d.daemon->sq_pos, 5);

	/* A client that waits for room is told at once. */
	for (i = 0; i < 16; i++)
		ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
	ring_daemon_disarm(&d);
	ring_client_arm(&c, true);
	ck_assert_uint_eq(ring_client_sq_space(&c), 0);
	ring_daemon_take(&d, &taken);
	ck_assert(!readable(c.fd_complete));
	ring_daemon_notify(&d);
	ck_assert(readable(c.fd_complete));
	ck_assert_uint_eq(ring_client_sq_space(&c), 1);
	ring_client_disarm(&c, true);
	ck_assert(!readable(c.fd_complete));
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

START_TEST(doorbells_ring_only_for_sleepers)
{
	struct kvd_cqe cqe = {.res = 1}, got;
	struct kvd_sqe sqe = sqe_of(1), taken;
	struct ring_daemon d;
	struct ring_client c;

	if (emulator_lacks("preadv2"))
		return;
	make_pair(&d, &c, 8, 8);
	/* New rings are armed. */
	ring_client_put(&c, &sqe);
	ring_client_kick(&c);
	ck_assert(readable(d.fd_submit));
	ring_daemon_disarm(&d);
	doorbell_clear_submit(d.fd_submit);
	ck_assert(!readable(d.fd_submit));
	ck_assert_int_eq(ring_daemon_arm(&d), RING_BUSY);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
	ring_client_put(&c, &sqe);
	ring_client_kick(&c);
	ck_assert(!readable(d.fd_submit));

	ring_daemon_post(&d, &cqe);
	ring_daemon_notify(&d);
	ck_assert(!readable(c.fd_complete));
	ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
	ring_client_arm(&c, false);
	ring_daemon_notify(&d); /* nothing was posted */
	ck_assert(!readable(c.fd_complete));
	ring_daemon_post(&d, &cqe);
	ring_daemon_notify(&d);
	ck_assert(readable(c.fd_complete));
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* One signal until the client has emptied its doorbell. */
START_TEST(doorbells_are_signalled_once)
{
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;
	char bytes[16];

	make_pair(&d, &c, 8, 64);
	ring_client_arm(&c, false);
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		ck_assert_int_eq(ring_daemon_notify(&d), RING_OK);
	}
	ck_assert_int_eq(read(c.fd_complete, bytes, sizeof(bytes)), 1);
	ck_assert(!readable(c.fd_complete));
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ck_assert_int_eq(ring_daemon_notify(&d), RING_OK);
	ck_assert(readable(c.fd_complete));
	ring_client_disarm(&c, true);
	ck_assert(!readable(c.fd_complete));
	for (int i = 0; i < 6; i++)
		ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
	/* One that is awake again without having emptied it is woken by what is there. */
	ring_client_arm(&c, false);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ck_assert_int_eq(ring_daemon_notify(&d), RING_OK);
	ring_client_disarm(&c, false);
	ring_client_arm(&c, false);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ck_assert_int_eq(ring_daemon_notify(&d), RING_OK);
	ck_assert(readable(c.fd_complete));
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* Waiters on the doorbell, for several milliseconds of a signal. */
static void hang_in(int fd, unsigned n_sets)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLET};
	int dups[500], n_failed = 0;

	for (size_t i = 0; i < KVD_ARRAY_LEN(dups); i++)
		dups[i] = dup(fd);
	while (n_sets--) {
		int set = epoll_create1(EPOLL_CLOEXEC);

		for (size_t i = 0; i < KVD_ARRAY_LEN(dups); i++)
			n_failed += epoll_ctl(set, EPOLL_CTL_ADD, dups[i], &e) < 0;
	}
	ck_assert_int_eq(n_failed, 0);
}

START_TEST(slow_doorbells_are_faults)
{
	struct kvd_cqe cqe = {0};
	struct ring_daemon d;
	struct ring_client c;
	unsigned n = 0;

	if (emulator_lacks("the time of a thread in the kernel"))
		return;
	make_pair(&d, &c, 8, 64);
	ring_client_arm(&c, false);
	/* Any number of quick ones. */
	for (int i = 0; i < 20; i++) {
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		ck_assert_int_eq(ring_daemon_notify(&d), RING_OK);
		(void)doorbell_clear_complete(c.fd_complete);
	}
	ck_assert(!ring_daemon_is_slow(&d));
	hang_in(c.fd_complete, 200);
	while (n < 40 && ring_daemon_post(&d, &cqe) == RING_OK &&
	       ring_daemon_notify(&d) == RING_OK) {
		(void)doorbell_clear_complete(c.fd_complete);
		n++;
	}
	ck_assert(ring_daemon_is_slow(&d));
	ck_assert_uint_ge(n, 2);
	ck_assert_int_eq(ring_daemon_notify(&d), RING_FAULT);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_FAULT);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* A client that fills its SQ and never reads must not keep the loop awake. */
START_TEST(unread_cq_lets_the_daemon_sleep)
{
	struct kvd_sqe sqe = sqe_of(1), taken;
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;
	int i;

	make_pair(&d, &c, 4, 2);
	for (i = 0; i < 4; i++)
		ring_client_put(&c, &sqe);
	ring_daemon_disarm(&d);
	ring_daemon_post(&d, &cqe);
	ring_daemon_post(&d, &cqe);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FULL);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ck_assert(!readable(d.fd_submit));
	/* The first read wakes it. */
	ring_client_take(&c, &got);
	ck_assert(readable(d.fd_submit));
	ring_daemon_disarm(&d);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_BUSY);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* Words that an honest client never writes; each ends the session, none crashes. */
START_TEST(impossible_words_are_faults)
{
	static const uint64_t seqs[] = {2, 3, 9, ~0ull, 1ull << 63, 0xdeadbeef};
	static const uint64_t positions[] = {1, 5, ~0ull, 1ull << 63, 0xdeadbeef};
	struct kvd_sqe taken, sqe = sqe_of(1);
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;
	size_t i, k;

	for (i = 0; i < KVD_ARRAY_LEN(seqs); i++) {
		make_pair(&d, &c, 8, 4);
		shm_store_u64(&c.sq[0].seq, seqs[i]);
		ck_assert_int_eq(ring_daemon_arm(&d), RING_FAULT);
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FAULT);
		/* Once faulty, always faulty. */
		shm_store_u64(&c.sq[0].seq, 0);
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FAULT);
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_FAULT);
		ring_daemon_notify(&d);
		ring_client_deinit(&c);
		ring_daemon_deinit(&d);
	}
	for (i = 0; i < KVD_ARRAY_LEN(positions); i++) {
		make_pair(&d, &c, 8, 4);
		for (k = 0; k < 4; k++) {
			ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
			if (positions[i] == 1)
				ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
		}
		/* Forward to 4, which the next post sees, then back to 1. */
		for (k = 0; positions[i] == 1 && k < 4; k++)
			ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		shm_store_u64(&c.client->cq_pos, positions[i]);
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_FAULT);
		ring_client_deinit(&c);
		ring_daemon_deinit(&d);
	}
	if (emulator_lacks("MADV_REMOVE"))
		return;
	/* A hole punched into the ring in its second lap. */
	make_pair(&d, &c, 2, 2);
	for (i = 0; i < 3; i++) {
		ring_client_put(&c, &sqe);
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
	}
	ck_assert_int_eq(madvise(c.c2d.map, c.c2d.size, MADV_REMOVE), 0);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FAULT);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* An entry that was seen and is gone again, wherever it is missed first. */
START_TEST(published_stays_published)
{
	struct kvd_sqe taken, sqe = sqe_of(1);
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;

	/* Seen by arm(). */
	make_pair(&d, &c, 4, 4);
	ring_client_put(&c, &sqe);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_BUSY);
	shm_store_u64(&c.sq[0].seq, 0);
	ck_assert(ring_daemon_pending(&d));
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FAULT);
	shm_store_u64(&c.sq[0].seq, 1);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FAULT);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_FAULT);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_FAULT);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);

	/* Seen by take(), which had no room for an answer; and in the second lap. */
	make_pair(&d, &c, 2, 1);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
		ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_OK);
	}
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
	ck_assert_int_eq(ring_daemon_take(&d, &taken), RING_FULL);
	shm_store_u64(&c.sq[0].seq, 1);
	/* While there is no room nobody looks, and the loop sleeps. */
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_BUSY);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_FAULT);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* Room that nobody needs any more is no reason to stay awake. */
START_TEST(room_is_news_once)
{
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;

	make_pair(&d, &c, 2, 1);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_FULL);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
	ck_assert_int_eq(ring_daemon_arm(&d), RING_BUSY);
	ck_assert(!ring_daemon_cq_full(&d));
	ck_assert_int_eq(ring_daemon_arm(&d), RING_OK);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

START_TEST(arena_bounds)
{
	static const struct {
		uint64_t off, len;
		bool in, out;
	} cases[] = {
		{0, 0, true, true},
		{0, 4096, true, true},
		{0, 8192, true, false},
		{0, 8193, false, false},
		{4096, 0, true, true},
		{8192, 0, true, false},
		{8192, 1, false, false},
		{8191, 1, true, false},
		{4, 4092, true, true},
		{4, 4093, true, false},
		{2, 2, true, false},
		{~0ull, 1, false, false},
		{~0ull - 3, 8, false, false},
		{1, ~0ull, false, false},
		{1ull << 63, 1ull << 63, false, false},
	};
	struct ring_daemon d;
	size_t i;

	ck_assert_int_eq(ring_daemon_init(&d, 4, 4, 8192, 4096), 0);
	for (i = 0; i < KVD_ARRAY_LEN(cases); i++) {
		ck_assert_msg((ring_daemon_in(&d, cases[i].off, cases[i].len) != NULL) ==
				      cases[i].in,
			      "in %zu", i);
		ck_assert_msg((ring_daemon_out(&d, cases[i].off, cases[i].len) != NULL) ==
				      cases[i].out,
			      "out %zu", i);
	}
	ring_daemon_deinit(&d);
}
END_TEST

/* The client clears O_NONBLOCK and fills what it can: nothing blocks the daemon. */
START_TEST(doorbells_never_block_the_daemon)
{
	struct kvd_cqe cqe = {0};
	struct ring_daemon d;
	struct ring_client c;
	int i;

	make_pair(&d, &c, 8, 8192);
	fcntl(c.fd_submit, F_SETFL, 0);
	fcntl(c.fd_complete, F_SETFL, 0);
	doorbell_clear_submit(d.fd_submit); /* nothing to read */
	ring_client_arm(&c, false);
	for (i = 0; i < 8000; i++) { /* more than the pipe holds */
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		ring_daemon_notify(&d);
	}
	ck_assert(readable(c.fd_complete));
	fcntl(c.fd_complete, F_SETFL, O_NONBLOCK);
	ring_client_disarm(&c, true);
	ck_assert(!readable(c.fd_complete));
	/* A client that is gone raises no SIGPIPE. */
	ring_client_arm(&c, false);
	ring_client_deinit(&c);
	ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
	ring_daemon_notify(&d);
	ring_daemon_deinit(&d);
}
END_TEST

/* A daemon that lies to its client: no wild access, at worst a fault. */
START_TEST(client_distrusts_too)
{
	struct kvd_sqe sqe = sqe_of(1);
	struct kvd_cqe cqe = {0}, got;
	struct ring_daemon d;
	struct ring_client c;

	make_pair(&d, &c, 4, 4);
	shm_store_u64(&d.daemon->sq_pos, 77);
	ck_assert_uint_eq(ring_client_sq_space(&c), 4);
	ck_assert_int_eq(ring_client_put(&c, &sqe), RING_OK);
	shm_store_u64(&d.daemon->sq_pos, ~0ull);
	ck_assert_uint_eq(ring_client_sq_space(&c), 3);
	ring_daemon_post(&d, &cqe);
	shm_store_u64(&d.cq[0].seq, 5);
	ck_assert_int_eq(ring_client_take(&c, &got), RING_FAULT);
	ring_client_deinit(&c);
	ring_daemon_deinit(&d);
}
END_TEST

/* A ring that was wiped is told from an empty one, as soon as zero is not its first seq. */
START_TEST(client_sees_the_end)
{
	struct kvd_cqe cqe = {.user_data = 3, .res = 7}, got;
	struct ring_daemon d;
	struct ring_client c;

	make_pair(&d, &c, 4, 4);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(ring_client_take(&c, &got), RING_EMPTY);
		ck_assert_int_eq(ring_daemon_post(&d, &cqe), RING_OK);
		ck_assert_int_eq(ring_client_take(&c, &got), RING_OK);
		ck_assert_int_eq(got.res, 7);
	}
	ck_assert_int_eq(ring_client_take(&c, &got), RING_EMPTY);
	ck_assert(!ring_client_wiped(&c));
	ring_daemon_deinit(&d);
	ck_assert(ring_client_wiped(&c));
	ck_assert_int_eq(ring_client_take(&c, &got), RING_GONE);
	ck_assert(!ring_client_pending(&c));
	ring_client_deinit(&c);
}
END_TEST

static unsigned n_wipes;

static struct ring_daemon wiped_d;
static uint64_t n_wiped, n_looked;

static void wait_for(const uint64_t *word, uint64_t n)
{
	while (shm_load_acquire_u64(word) != n)
		sched_yield();
}

/* One entry a round, in the same slot; it is there for moments only. */
static void *post_and_wipe(void *arg)
{
	struct kvd_cqe cqe = {.user_data = 3, .res = 7};
	uint64_t *words = (void *)wiped_d.cq;

	memset(cqe.u.raw, 5, sizeof(cqe.u.raw));
	for (uint32_t n = 0; n < n_wipes; n++) {
		wait_for(&n_looked, n);
		wiped_d.cq_pos = 0;
		ck_assert_int_eq(ring_daemon_post(&wiped_d, &cqe), RING_OK);
		for (uint32_t i = 0; i < n % 64; i++)
			(void)shm_load_acquire_u64(&n_looked);
		for (int i = 0; i < 8; i++)
			shm_store_release_u64(&words[i], 0);
		shm_store_release_u64(&n_wiped, n + 1);
	}
	return NULL;
}

/* Whatever is taken during the wipe is as it was posted. */
START_TEST(no_entry_is_half_wiped)
{
	struct kvd_cqe got;
	enum ring_status st;
	struct ring_client c;
	pthread_t t;

	n_wipes = test_rounds(20000);
	make_pair(&wiped_d, &c, 4, 4096);
	ck_assert_int_eq(pthread_create(&t, NULL, post_and_wipe, NULL), 0);
	for (uint32_t n = 0; n < n_wipes; n++) {
		c.cq_pos = 0;
		for (uint32_t looks = 1;; looks++) {
			st = ring_client_take(&c, &got);
			if (st != RING_EMPTY || shm_load_acquire_u64(&n_wiped) != n)
				break;
			/* where both have one CPU */
			if (looks % 256 == 0)
				sched_yield();
		}
		if (st == RING_OK) {
			ck_assert_uint_eq(got.user_data, 3);
			ck_assert_int_eq(got.res, 7);
			for (size_t i = 0; i < sizeof(got.u.raw); i++)
				ck_assert_uint_eq(got.u.raw[i], 5);
		}
		ck_assert_int_ne(st, RING_FAULT);
		wait_for(&n_wiped, n + 1);
		shm_store_release_u64(&n_looked, n + 1);
	}
	pthread_join(t, NULL);
	ring_client_deinit(&c);
	ring_daemon_deinit(&wiped_d);
}
END_TEST

static uint64_t n_stress;

static struct ring_daemon stress_d;

static void *stress_daemon(void *arg)
{
	uint64_t n = 0;
	struct kvd_sqe sqe;
	struct kvd_cqe cqe = {0};
	struct pollfd p = {.fd = stress_d.fd_submit, .events = POLLIN};
	enum ring_status st;

	while (n < n_stress) {
		st = ring_daemon_take(&stress_d, &sqe);
		if (st == RING_OK) {
			if (sqe.user_data != n || sqe.arg != ~n)
				return (void *)1;
			cqe.user_data = n++;
			cqe.u.usage.detail = sqe.arg;
			if (ring_daemon_post(&stress_d, &cqe) != RING_OK)
				return (void *)2;
			if (n % 3 == 0)
				ring_daemon_notify(&stress_d);
			continue;
		}
		if (st == RING_FAULT)
			return (void *)3;
		ring_daemon_notify(&stress_d);
		st = ring_daemon_arm(&stress_d);
		if (st == RING_FAULT)
			return (void *)4;
		if (st == RING_OK) {
			if (poll(&p, 1, 20000) != 1)
				return (void *)5; /* a wakeup was lost */
			doorbell_clear_submit(p.fd);
			ring_daemon_disarm(&stress_d);
		}
	}
	ring_daemon_notify(&stress_d);
	return arg;
}

/* Two threads, both sleeping whenever they can; every message arrives once. */
START_TEST(stress_with_sleep)
{
	uint64_t sent = 0, got = 0, depth = 1;
	struct pollfd p = {.events = POLLIN};
	struct ring_client c;
	struct kvd_sqe sqe;
	struct kvd_cqe cqe;
	pthread_t t;
	void *ret;

	if (emulator_lacks("preadv2"))
		return;
	n_stress = test_rounds(300000);
	make_pair(&stress_d, &c, 16, 8);
	p.fd = c.fd_complete;
	ck_assert_int_eq(pthread_create(&t, NULL, stress_daemon, NULL), 0);
	while (got < n_stress) {
		bool full = false;

		depth = depth % 23 + 1;
		while (sent < n_stress && sent - got < depth && !full) {
			sqe = sqe_of(sent);
			full = ring_client_put(&c, &sqe) == RING_FULL;
			sent += !full;
		}
		ring_client_kick(&c);
		if (ring_client_take(&c, &cqe) == RING_OK) {
			ck_assert_uint_eq(cqe.user_data, got);
			ck_assert_uint_eq(cqe.u.usage.detail, ~got);
			got++;
			continue;
		}
		ring_client_arm(&c, full);
		if (!ring_client_pending(&c) && !(full && ring_client_sq_space(&c))) {
			ck_assert_msg(poll(&p, 1, 20000) == 1, "lost wakeup at %llu",
				      (unsigned long long)got);
			ring_client_disarm(&c, true);
		} else {
			ring_client_disarm(&c, false);
		}
	}
	pthread_join(t, &ret);
	ck_assert_ptr_null(ret);
	ring_client_deinit(&c);
	ring_daemon_deinit(&stress_d);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		geometry_limits,
		goes_round_and_fills,
		positions_are_lazy_but_prompt_when_it_matters,
		doorbells_ring_only_for_sleepers,
		doorbells_are_signalled_once,
		slow_doorbells_are_faults,
		unread_cq_lets_the_daemon_sleep,
		impossible_words_are_faults,
		published_stays_published,
		room_is_news_once,
		arena_bounds,
		doorbells_never_block_the_daemon,
		client_distrusts_too,
		client_sees_the_end,
		no_entry_is_half_wiped,
		stress_with_sleep,
	};

	return run_suite("ring", tests, KVD_ARRAY_LEN(tests));
}
