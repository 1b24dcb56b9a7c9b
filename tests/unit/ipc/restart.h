/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_RESTART_H
#define KVD_TESTS_RESTART_H

/*
 * What the tests of restarts share: one fake daemon, one client, and what each request of a
 * ring has got so far. Included by one source of a program only; one thread, but for what
 * libkvclient itself permits.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <kvclient.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "tests/unit/ipc/fake_daemon.h"
#include "tests/unit/suite.h"

#define SECOND_NS 1000000000ll

static struct fake_daemon fake;
static struct kvc_client *client;

static inline struct kvc_client *start_with(struct fake_daemon options,
					    int64_t reconnect_ns, int64_t timeout_ns)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);

	fake = options;
	fake_daemon_start(&fake);
	o.socket_path = fake.path;
	o.reconnect_ns = reconnect_ns;
	o.timeout_ns = timeout_ns;
	ck_assert_int_eq(kvc_connect(&client, &o), 0);
	return client;
}

static inline struct kvc_client *start(struct fake_daemon options, int64_t reconnect_ns)
{
	return start_with(options, reconnect_ns, 0);
}

static inline void finish(void)
{
	kvc_close(client);
	fake_daemon_stop(&fake);
}

static inline struct kvc_ring *open_ring(void)
{
	struct kvc_ring *ring;

	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	return ring;
}

/* The last ring, and all else. */
static inline void finish_ring(struct kvc_ring *ring)
{
	kvc_ring_close(ring);
	finish();
}

static inline enum fake_restart way(int i)
{
	return i ? FAKE_KEEPS : FAKE_HANGS_UP;
}

/* What a request has got so far. */
struct got {
	char text[256];
	size_t len;
	int finals;
	int res;
	struct kvd_cqe_usage usage;
};

static inline void take(struct got *all, const struct kvd_cqe *cqe)
{
	struct got *g = &all[cqe->user_data];

	if (cqe->flags & KVD_CQE_MORE) {
		ck_assert_int_eq(g->finals, 0);
		ck_assert_uint_lt(g->len + cqe->u.token.n_bytes, sizeof(g->text));
		memcpy(g->text + g->len, cqe->u.token.bytes, cqe->u.token.n_bytes);
		g->len += cqe->u.token.n_bytes;
		return;
	}
	g->finals++;
	g->res = cqe->res;
	g->usage = cqe->u.usage;
}

/* Take @n CQEs, or all. */
static inline void take_some(struct kvc_ring *ring, struct got *all, unsigned n)
{
	const struct kvd_cqe *cqe;
	int rc;

	while (n-- && kvc_ring_in_flight(ring)) {
		rc = kvc_ring_wait_cqe(ring, &cqe, 10 * SECOND_NS);
		ck_assert_msg(rc == 0, "%d %s", rc, kvc_errmsg());
		take(all, cqe);
		kvc_ring_cqe_seen(ring);
	}
}

/* All that is there to take. Return: what a peek says then. */
static inline int take_ready(struct kvc_ring *ring, struct got *all)
{
	const struct kvd_cqe *cqe;
	int rc;

	while ((rc = kvc_ring_peek_cqe(ring, &cqe)) == 0) {
		take(all, cqe);
		kvc_ring_cqe_seen(ring);
	}
	return rc;
}

/* The same by an event loop that sleeps until it is woken. */
static inline int take_woken(struct kvc_ring *ring, struct got *all)
{
	struct pollfd p = {.fd = kvc_ring_event_fd(ring), .events = POLLIN};

	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	kvc_ring_event_ack(ring);
	return take_ready(ring, all);
}

/* Until the ring belongs to the next daemon; takes what comes. */
static inline void restart(struct kvc_ring *ring, struct got *all)
{
	uint32_t epoch = ring->epoch;
	const struct kvd_cqe *cqe;

	kill(fake.pid, SIGUSR1);
	while (ring->epoch == epoch)
		if (kvc_ring_wait_cqe(ring, &cqe, 1000000) == 0) {
			take(all, cqe);
			kvc_ring_cqe_seen(ring);
		}
}

/* Until @q is held back for so long that nothing else happens to it meanwhile. */
static inline void wait_until_held(struct kvc_ring *ring, struct kvc_request *q)
{
	const struct kvd_cqe *cqe;

	q->n_refused = 50;
	while (!q->held || q->hold_ns < clock_ns() + SECOND_NS)
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 1000000), -ETIME);
}

static inline struct kvc_sqe *next(struct kvc_ring *ring, uint64_t data)
{
	struct kvc_sqe *sqe = kvc_ring_get_sqe(ring);

	ck_assert_ptr_nonnull(sqe);
	kvc_sqe_set_data64(sqe, data);
	return sqe;
}

#endif
