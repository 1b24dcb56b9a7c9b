/* SPDX-License-Identifier: MIT */
/*
 * A ring's life: opening, closing, the table of requests in flight.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "client/internal.h"
#include "client/opts.h"
#include "ipc/base.h"
#include "ipc/proto.h"

#define SQ_DEFAULT  128u
#define IN_DEFAULT  (4u << 20)
#define OUT_DEFAULT (1u << 20)

static int alloc_tables(struct kvc_ring *r, uint32_t max_in_flight)
{
	uint32_t n = r->ring.sq_entries, i;

	if (n < r->ring.cq_entries)
		n = r->ring.cq_entries;
	n = min_u32(n, KVD_MAX_IN_FLIGHT);
	if (max_in_flight)
		n = min_u32(n, max_in_flight);

	r->n_reqs = n;
	r->reqs = calloc(n, sizeof(*r->reqs));
	r->sqes = calloc(r->ring.sq_entries, sizeof(*r->sqes));
	if (!r->reqs || !r->sqes)
		return -ENOMEM;
	/* The lowest index first, so that few requests touch few lines. */
	for (i = 0; i < n; i++)
		r->reqs[i].next = i + 1 < n ? i + 2 : 0;
	r->free_req = 1;
	if (arena_init(&r->in, r->ring.geometry.in_bytes, n) < 0 ||
	    arena_init(&r->out, r->ring.geometry.out_bytes, n) < 0)
		return -ENOMEM;
	return 0;
}

static void link_ring(struct kvc_ring *r)
{
	struct kvc_client *c = r->client;

	r->next = c->rings;
	if (r->next)
		r->next->prev = r;
	c->rings = r;
}

static void unlink_ring(struct kvc_ring *r)
{
	if (r->prev)
		r->prev->next = r->next;
	else if (r->client->rings == r)
		r->client->rings = r->next;
	if (r->next)
		r->next->prev = r->prev;
	r->next = NULL;
	r->prev = NULL;
}

int ring_open(struct kvc_client *c, struct kvc_ring **ret, uint32_t sq_entries,
	      uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes,
	      uint64_t deadline_ns)
{
	struct kvd_msg_ring_open msg = {
		.sq_entries = sq_entries,
		.cq_entries = cq_entries,
		.in_bytes = in_bytes,
		.out_bytes = out_bytes,
	};
	struct kvd_msg_ring_opened opened;
	int fds[KVD_RING_N_FDS], rc;
	uint32_t max_in_flight;
	struct kvc_ring *r;

	r = calloc(1, sizeof(*r));
	if (!r)
		return kvc_fail_status(-ENOMEM, 0);
	r->client = c;
	r->epoll_fd = -1;
	r->wake_fd = -1;
	r->hold_fd = -1;
	r->spin_now = c->spin_ns;
	/* BUSY: what a ring that is opened again asked for was not read yet. It is by now. */
	do
		rc = ctl_begin(c, &msg, sizeof(msg), KVD_MSG_RING_OPEN,
			       KVD_MSG_RING_OPENED, deadline_ns, fds);
	while (rc == KVD_E_BUSY);
	if (rc < 0) {
		free(r);
		return rc;
	}
	rc = proto_parse_reply(c->buf, (size_t)rc, KVD_MSG_RING_OPENED, sizeof(opened),
			       &opened, sizeof(opened));
	if (rc < 0) {
		ctl_end(c);
		fds_close(fds, KVD_RING_N_FDS);
		free(r);
		return kvc_fail_status(rc, 0);
	}
	r->ring_id = opened.ring_id;
	rc = ring_client_init(&r->ring, &opened.geometry, fds);
	ring_bind(r);
	if (rc >= 0)
		link_ring(r);
	max_in_flight = c->server.max_in_flight;
	ctl_end(c);
	if (rc >= 0)
		rc = alloc_tables(r, max_in_flight);
	if (rc < 0) {
		kvc_ring_close(r);
		return kvc_fail_status(rc, 0);
	}
	*ret = r;
	return 0;
}

void ring_free(struct kvc_ring *r, bool forked)
{
	unlink_ring(r);
	reopen_forget(r, !forked);
	if (forked)
		ring_client_forget(&r->ring);
	else
		ring_client_deinit(&r->ring);
	fd_close(r->epoll_fd);
	fd_close(r->wake_fd);
	fd_close(r->hold_fd);
	arena_deinit(&r->in);
	arena_deinit(&r->out);
	free(r->ready);
	free(r->reqs);
	free(r->sqes);
	free(r);
}

static int check_entries(const char *name, uint32_t n, uint32_t max)
{
	if (n <= max)
		return 0;
	return kvc_fail(-EINVAL, "%s is %u; it must be <= %u", name, n, max);
}

/* Up to a power of two, as all limits are. */
static uint32_t round_entries(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

/* @max: what the daemon grants. The default gives way to it, what is asked for does not. */
static int arena_bytes(uint64_t *bytes, uint64_t standard, uint64_t max)
{
	if (!*bytes)
		*bytes = standard < max ? standard : max;
	if (*bytes > max)
		return kvc_fail(KVD_E_QUOTA,
				"an arena of %llu bytes is asked for; this daemon grants "
				"%llu at most ([daemon] max_arena_per_ring)",
				(unsigned long long)*bytes, (unsigned long long)max);
	*bytes = align_up(*bytes, 4096);
	return 0;
}

int kvc_ring_open(struct kvc_client *c, struct kvc_ring **ret_ring,
		  const struct kvc_ring_opts *opts)
{
	uint64_t max_in, max_out;
	struct kvc_ring_opts o;
	int rc;

	rc = client_check(c);
	if (rc >= 0)
		rc = opts_read(&o, sizeof(o), opts, "kvc_ring_opts");
	if (rc >= 0)
		rc = check_entries("sq_entries", o.sq_entries, KVD_MAX_SQ_ENTRIES);
	if (rc >= 0)
		rc = check_entries("cq_entries", o.cq_entries, KVD_MAX_CQ_ENTRIES);
	if (rc < 0)
		return rc;
	o.sq_entries = round_entries(o.sq_entries ? o.sq_entries : SQ_DEFAULT);
	if (!o.cq_entries)
		o.cq_entries = min_u32(o.sq_entries, KVD_MAX_CQ_ENTRIES / 4) * 4;
	o.cq_entries = round_entries(o.cq_entries);
	client_max_arenas(c, &max_in, &max_out);
	rc = arena_bytes(&o.in_bytes, IN_DEFAULT, max_in);
	if (rc >= 0)
		rc = arena_bytes(&o.out_bytes, OUT_DEFAULT, max_out);
	if (rc < 0)
		return rc;
	return ring_open(c, ret_ring, o.sq_entries, o.cq_entries, o.in_bytes, o.out_bytes,
			 0);
}

/* Has its daemon died? A kept connection would not show it to a thread that waits for an answer. */
static bool has_hung_up(const struct kvc_ring *r)
{
	struct pollfd p = {.fd = r->ring.client ? r->ring.fd_complete : -1};

	return r->hup || (r->client->reconnect && poll(&p, 1, 0) > 0);
}

int ring_close(struct kvc_ring *r, uint64_t deadline_ns)
{
	struct kvd_msg_ring_close msg = {.ring_id = r->ring_id};
	struct kvc_client *c = r->client;
	bool forked = client_forked(c);

	if (!forked && client_lock_until(c, deadline_ns) < 0)
		return -ETIME;
	/* Its pipe hangs up now, and tells nothing any more. */
	unlink_ring(r);
	/* A daemon that came later has perhaps another ring of this number. */
	if (!forked && c->state == CLIENT_OK && c->epoch == r->epoch && !has_hung_up(r))
		(void)ctl_call_locked(
			c, &msg, sizeof(msg), KVD_MSG_RING_CLOSE, KVD_MSG_RING_CLOSED,
			deadline_sooner(deadline_ns, deadline_after(c->timeout_ns)),
			NULL);
	else if (!forked && c->slow && c->epoch == r->epoch)
		reopen_send_close(c, r->ring_id);
	ring_free(r, forked);
	if (!forked)
		client_unlock(c);
	return 0;
}

void kvc_ring_close(struct kvc_ring *r)
{
	if (r)
		(void)ring_close(r, 0);
}

unsigned kvc_ring_in_flight(const struct kvc_ring *r)
{
	return r->in_flight;
}
