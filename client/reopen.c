/* SPDX-License-Identifier: MIT */
/*
 * RING_OPEN after a restart, which nobody waits for: the ring's thread asks, the next
 * reader of the socket puts the answer down, and the ring's thread finds it there when it
 * looks again. So neither a peek nor a wait with a deadline depends on when the daemon answers.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/* Until a socket that is full is tried again. */
#define FULL_NS 10000000u

static uint32_t take_tag(struct kvc_client *c)
{
	if (++c->next_tag == 0)
		c->next_tag = 1;
	return c->next_tag;
}

/* If that cannot be said, the ring ends with the session. */
void reopen_send_close(struct kvc_client *c, uint32_t ring_id)
{
	struct kvd_msg_ring_close msg = {.ring_id = ring_id};

	proto_hdr_init(&msg.hdr, KVD_MSG_RING_CLOSE, sizeof(msg), take_tag(c), 0);
	(void)fdpass_send(c->sock, &msg, sizeof(msg), NULL, 0);
}

void reopen_forget(struct kvc_ring *r, bool tell)
{
	struct reopen *o = &r->reopen;
	struct kvc_client *c = r->client;

	if (o->status > 0) {
		if (tell && (c->state == CLIENT_OK || c->slow) && c->epoch == o->epoch)
			reopen_send_close(c, o->opened.ring_id);
		fds_close(o->fds, KVD_RING_N_FDS);
	}
	*o = (struct reopen){0};
}

uint64_t reopen_next_look(const struct kvc_client *c)
{
	uint64_t soonest = 0;

	for (const struct kvc_ring *r = c->rings; r; r = r->next)
		if (r->reopen.look_ns && (!soonest || r->reopen.look_ns < soonest))
			soonest = r->reopen.look_ns;
	return soonest;
}

bool reopen_look(struct kvc_client *c)
{
	bool late = false;
	uint64_t now;

	if (!reopen_next_look(c))
		return false;
	now = clock_ns();
	for (struct kvc_ring *r = c->rings; r; r = r->next) {
		if (!r->reopen.look_ns || now < r->reopen.look_ns)
			continue;
		r->reopen.look_ns = 0;
		late |= r->reopen.tag && c->epoch == r->reopen.epoch;
		ring_wake(r);
	}
	return late;
}

void reopen_go_on(struct kvc_client *c)
{
	uint64_t due;

	if (c->timeout_ns < 0)
		return;
	due = clock_ns() + (uint64_t)c->timeout_ns;
	for (struct kvc_ring *r = c->rings; r; r = r->next)
		if (r->reopen.tag && !r->reopen.status && !r->reopen.look_ns)
			r->reopen.look_ns = due;
}

/* The answer to @o. Return: 1: it is a ring, whose descriptors are taken; negative: not. */
static int read_answer(struct reopen *o, const void *packet, size_t len, const int *fds,
		       size_t n_fds)
{
	struct kvd_msg_hdr h;

	memcpy(&h, packet, sizeof(h));
	if (h.type == KVD_MSG_ERROR && h.status < 0 && n_fds == 0)
		return h.status;
	if (h.type != KVD_MSG_RING_OPENED || n_fds != KVD_RING_N_FDS ||
	    proto_parse_reply(packet, len, KVD_MSG_RING_OPENED, sizeof(o->opened),
			      &o->opened, sizeof(o->opened)) < 0)
		return KVD_E_PROTO;
	memcpy(o->fds, fds, sizeof(o->fds));
	return 1;
}

static struct kvc_ring *find_asker(const struct kvc_client *c, uint32_t tag)
{
	struct kvc_ring *r;

	for (r = c->rings; r; r = r->next)
		if (r->reopen.tag && !r->reopen.status && r->reopen.tag == tag)
			break;
	return r;
}

/* @status is the answer that @r waits for. */
static void put_down(struct kvc_ring *r, int status)
{
	r->reopen.look_ns = 0;
	r->reopen.status = status;
	/* Who sleeps in an event loop may have been woken for another thread. */
	ring_wake(r);
}

bool reopen_cut(struct kvc_client *c, uint32_t own_tag)
{
	struct kvd_msg_ring_opened opened;
	struct kvc_ring *r;

	memcpy(&opened, c->buf, sizeof(opened));
	if (opened.hdr.type != KVD_MSG_RING_OPENED || opened.hdr.len < sizeof(opened))
		return false;
	reopen_send_close(c, opened.ring_id);
	r = find_asker(c, opened.hdr.tag);
	if (r)
		put_down(r, -EMFILE);
	return opened.hdr.tag != own_tag;
}

bool reopen_answered(struct kvc_client *c, const void *packet, size_t len, const int *fds,
		     size_t n_fds)
{
	struct kvd_msg_ring_opened opened;
	struct kvd_msg_hdr h;
	struct kvc_ring *r;

	if (len < sizeof(h))
		return false;
	memcpy(&h, packet, sizeof(h));
	r = find_asker(c, h.tag);
	if (r) {
		put_down(r, read_answer(&r->reopen, packet, len, fds, n_fds));
		return r->reopen.status > 0;
	}
	/* Too late: the ring was closed, or its opening given up. */
	if (c->state == CLIENT_OK && h.type == KVD_MSG_RING_OPENED &&
	    proto_parse_reply(packet, len, KVD_MSG_RING_OPENED, sizeof(opened), &opened,
			      sizeof(opened)) >= 0)
		reopen_send_close(c, opened.ring_id);
	return false;
}

/* RING_OPEN with the geometry that the ring has. Return: -EAGAIN, or why not. */
static int ask(struct kvc_ring *r)
{
	const struct kvd_ring_geometry *g = &r->ring.geometry;
	struct kvd_msg_ring_open msg = {
		.sq_entries = g->sq_entries,
		.cq_entries = g->cq_entries,
		.in_bytes = g->in_bytes,
		.out_bytes = g->out_bytes,
	};
	struct kvc_client *c = r->client;
	uint32_t tag = take_tag(c);
	int rc;

	proto_hdr_init(&msg.hdr, KVD_MSG_RING_OPEN, sizeof(msg), tag, 0);
	rc = fdpass_send(c->sock, &msg, sizeof(msg), NULL, 0);
	/* The end of the connection is seen by reading, after the last packet. */
	if (rc == -EPIPE || rc == -ECONNRESET)
		return -EAGAIN;
	if (rc == -EAGAIN)
		r->reopen.look_ns = clock_ns() + FULL_NS;
	if (rc < 0)
		return rc;
	r->reopen = (struct reopen){.tag = tag, .epoch = c->epoch};
	if (c->timeout_ns >= 0)
		r->reopen.look_ns = clock_ns() + (uint64_t)c->timeout_ns;
	return -EAGAIN;
}

static bool same_geometry(const struct kvd_ring_geometry *a,
			  const struct kvd_ring_geometry *b)
{
	return a->sq_entries == b->sq_entries && a->cq_entries == b->cq_entries &&
	       a->in_bytes == b->in_bytes && a->out_bytes == b->out_bytes;
}

/* Put what RING_OPENED brought in place of r->ring. Takes @fds. */
static int replace(struct kvc_ring *r, const struct kvd_msg_ring_opened *opened,
		   const int *fds)
{
	struct epoll_event in = {.events = EPOLLIN};
	struct ring_client fresh;
	int rc;

	rc = ring_client_init(&fresh, &opened->geometry, fds);
	if (rc < 0)
		return rc;
	if (!same_geometry(&r->ring.geometry, &opened->geometry))
		rc = KVD_E_PROTO;
	if (rc >= 0 && r->epoll_fd >= 0) {
		(void)epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, r->ring.fd_complete, NULL);
		if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fresh.fd_complete, &in) < 0)
			rc = -errno;
	}
	if (rc < 0)
		ring_client_deinit(&fresh);
	else
		r->ring = fresh;
	return rc;
}

int reopen_step(struct kvc_ring *r, bool *ret_same_model)
{
	struct kvc_client *c = r->client;
	struct reopen answer;
	int rc;

	if (r->reopen.tag && r->reopen.epoch != c->epoch)
		reopen_forget(r, false);
	/* What was asked for may come yet. */
	if (c->slow)
		return -EAGAIN;
	if (c->state != CLIENT_OK || c->epoch == r->epoch) {
		reopen_forget(r, false);
		return -EAGAIN;
	}
	if (!r->reopen.tag)
		return ask(r);
	if (!r->reopen.status)
		return -EAGAIN;

	answer = r->reopen;
	r->reopen = (struct reopen){0};
	/* It died again, and its successor knows nothing of this session yet. */
	if (answer.status == KVD_E_RESTARTED)
		return -EAGAIN;
	/* What another ring asked for was not read when this one asked; it is now. */
	if (answer.status == KVD_E_BUSY)
		return ask(r);
	if (answer.status < 0)
		return answer.status;
	rc = replace(r, &answer.opened, answer.fds);
	if (rc < 0) {
		reopen_send_close(c, answer.opened.ring_id);
		return rc;
	}
	*ret_same_model =
		memcmp(r->fingerprint, c->model.fingerprint, sizeof(r->fingerprint)) == 0;
	ring_bind(r);
	r->ring_id = answer.opened.ring_id;
	return 0;
}
