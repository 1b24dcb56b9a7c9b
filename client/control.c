/* SPDX-License-Identifier: MIT */
/*
 * Requests over the socket: one at a time, told apart by tag, so that an answer
 * that came too late is not taken for the next one's. Administration calls.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/*
 * A pipe that hangs up when the daemon dies: a kept connection does not tell. -1: no ring
 * is open, or the connection ends with its daemon.
 */
static int lifeline(const struct kvc_client *c)
{
	if (!c->reconnect)
		return -1;
	for (const struct kvc_ring *r = c->rings; r; r = r->next)
		if (r->epoch == c->epoch)
			return r->ring.fd_complete;
	return -1;
}

/*
 * Return: 0 when ready, -ETIME, KVD_E_RESTARTED: the daemon has died. @deadline_ns 0: for
 * ever.
 */
static int wait_socket(struct kvc_client *c, short events, uint64_t deadline_ns)
{
	struct pollfd p[2] = {{.fd = c->sock, .events = events}, {.fd = lifeline(c)}};
	struct timespec ts, *tsp = NULL;
	uint64_t now, left;
	int n;

	for (;;) {
		if (deadline_ns) {
			now = clock_ns();
			left = now < deadline_ns ? deadline_ns - now : 0;
			ts.tv_sec = (time_t)(left / 1000000000u);
			ts.tv_nsec = (long)(left % 1000000000u);
			tsp = &ts;
		}
		n = ppoll(p, 2, tsp, NULL);
		/* What it said before it died comes first. */
		if (n > 0 && (p[0].revents || poll(p, 1, 0) > 0))
			return 0;
		if (n > 0) {
			client_lost(c, CLIENT_SILENT);
			return KVD_E_RESTARTED;
		}
		if (n == 0)
			return -ETIME;
		if (errno != EINTR)
			return -errno;
	}
}

static int send_request(struct kvc_client *c, const void *msg, size_t len,
			uint64_t deadline_ns)
{
	int rc;

	for (;;) {
		rc = fdpass_send(c->sock, msg, len, NULL, 0);
		if (rc == -EPIPE)
			rc = -ECONNRESET;
		if (rc != -EAGAIN)
			return rc;
		rc = wait_socket(c, POLLOUT, deadline_ns);
		if (rc < 0)
			return rc;
	}
}

/*
 * Receive into c->buf until a packet with @tag comes. KVD_E_RESTARTED: a notice, which is
 * taken.
 */
static int recv_reply(struct kvc_client *c, uint32_t tag, uint64_t deadline_ns, int *fds,
		      size_t *ret_n_fds)
{
	struct kvd_msg_notice notice;
	struct kvd_msg_hdr h;
	ssize_t n;
	int rc;

	for (;;) {
		memset(c->buf, 0, sizeof(struct kvd_msg_ring_opened));
		n = fdpass_recv_fds(c->sock, c->buf, KVD_MSG_MAX, fds, ret_n_fds);
		if (n == 0)
			return -ECONNRESET;
		if (n == -EAGAIN) {
			rc = wait_socket(c, POLLIN, deadline_ns);
			if (rc < 0)
				return rc;
			continue;
		}
		if (n == -EBADMSG && client_took_cut(c, tag))
			continue;
		if (n == -EMSGSIZE || n == -EBADMSG)
			return KVD_E_PROTO;
		if (n < 0)
			return (int)n;
		if ((size_t)n < sizeof(h)) {
			fds_close(fds, *ret_n_fds);
			return KVD_E_PROTO;
		}
		memcpy(&h, c->buf, sizeof(h));
		/* REJECT answers the connection itself, perhaps before HELLO came. */
		if (h.tag == tag || h.type == KVD_MSG_REJECT)
			return (int)n;
		if (client_took(c, c->buf, (size_t)n, fds, *ret_n_fds))
			continue;
		fds_close(fds, *ret_n_fds);
		if (proto_parse_notice(c->buf, (size_t)n, &notice)) {
			client_noticed(c, &notice);
			return KVD_E_RESTARTED;
		}
	}
}

int ctl_call_locked(struct kvc_client *c, void *msg, size_t len, uint16_t type,
		    uint16_t reply, uint64_t deadline_ns, int *fds)
{
	struct kvd_msg_error err;
	struct kvd_msg_hdr h;
	int got[KVD_MSG_MAX_FDS], rc;
	size_t n_fds = 0, i;

	if (client_state(c) == CLIENT_DEAD)
		return kvc_fail_status(-ECONNRESET, 0);
	if (++c->next_tag == 0)
		c->next_tag = 1;
	proto_hdr_init(&h, type, len, c->next_tag, 0);
	memcpy(msg, &h, sizeof(h));

	rc = send_request(c, msg, len, deadline_ns);
	if (rc >= 0)
		rc = recv_reply(c, h.tag, deadline_ns, got, &n_fds);
	/* The end of the connection is seen before the packet that says why. */
	if (rc == -ECONNRESET) {
		int last = recv_reply(c, h.tag, deadline_ns, got, &n_fds);

		if (last >= 0)
			rc = last;
	}
	if (rc == -ECONNRESET)
		client_lost(c, CLIENT_GONE);
	if (rc == -ECONNRESET || rc == KVD_E_RESTARTED)
		rc = client_state(c) == CLIENT_DEAD ? -ECONNRESET : KVD_E_RESTARTED;
	if (rc == -ETIME)
		return kvc_fail(rc, "kvd does not answer");
	if (rc < 0)
		return kvc_fail_status(rc, 0);

	memcpy(&h, c->buf, sizeof(h));
	if (n_fds != (fds && h.type == reply ? KVD_RING_N_FDS : 0)) {
		fds_close(got, n_fds);
		return kvc_fail_status(KVD_E_PROTO, 0);
	}
	if (h.type == KVD_MSG_ERROR || h.type == KVD_MSG_REJECT) {
		if (proto_parse_reply(c->buf, (size_t)rc, h.type, sizeof(h), &err,
				      sizeof(err)) < 0 ||
		    h.status >= 0)
			return kvc_fail_status(KVD_E_PROTO, 0);
		err.text[sizeof(err.text) - 1] = 0;
		if (!err.text[0])
			return kvc_fail_status(h.status, err.detail);
		return kvc_fail(h.status, "%s", err.text);
	}
	if (h.type != reply || h.len != (uint32_t)rc) {
		fds_close(got, n_fds);
		return kvc_fail_status(KVD_E_PROTO, 0);
	}
	for (i = 0; i < n_fds; i++)
		fds[i] = got[i];
	return rc;
}

/* Does it change nothing, so that it may be said twice? */
static bool only_asks(const void *msg, uint16_t type)
{
	struct kvd_msg_quota quota;
	struct kvd_msg_drain drain;

	switch (type) {
	case KVD_MSG_RING_OPEN:
	case KVD_MSG_STATS:
	case KVD_MSG_CLIENTS:
	case KVD_MSG_CACHE_LIST:
	case KVD_MSG_EVENTS:
		return true;
	case KVD_MSG_QUOTA:
		memcpy(&quota, msg, sizeof(quota));
		return !quota.set;
	case KVD_MSG_DRAIN:
		memcpy(&drain, msg, sizeof(drain));
		return !drain.action;
	default:
		return false;
	}
}

int ctl_begin(struct kvc_client *c, void *msg, size_t len, uint16_t type, uint16_t reply,
	      uint64_t deadline_ns, int *fds)
{
	uint64_t due;
	int rc;

	for (;;) {
		rc = client_recover(c, deadline_ns);
		if (rc < 0)
			return rc;
		/* Also while another thread waits for its answer. */
		due = deadline_sooner(deadline_ns, deadline_after(c->timeout_ns));
		if (client_lock_until(c, due) < 0)
			return kvc_fail(-ETIME, "kvd does not answer");
		if (c->state != CLIENT_OK) {
			client_unlock(c);
			continue;
		}
		rc = ctl_call_locked(c, msg, len, type, reply, due, fds);
		if (rc >= 0)
			return rc;
		client_unlock(c);
		if (rc != KVD_E_RESTARTED || !only_asks(msg, type))
			return rc;
	}
}

void ctl_end(struct kvc_client *c)
{
	client_unlock(c);
}

int ctl_call(struct kvc_client *c, void *msg, size_t len, uint16_t type, uint16_t reply,
	     size_t min, void *ret, size_t size)
{
	int rc;

	rc = ctl_begin(c, msg, len, type, reply, 0, NULL);
	if (rc < 0)
		return rc;
	rc = proto_parse_reply(c->buf, (size_t)rc, reply, min, ret, size);
	ctl_end(c);
	return rc < 0 ? kvc_fail_status(KVD_E_PROTO, 0) : 0;
}

int kvc_stats(struct kvc_client *c, struct kvd_stats *ret_stats)
{
	struct kvd_msg_hdr msg;
	struct kvd_msg_stats_reply reply;
	uint32_t size = ret_stats->size;
	int rc;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if (size < sizeof(uint64_t))
		return kvc_fail(-EINVAL, "kvd_stats.size is %u; set it to sizeof", size);
	rc = ctl_call(c, &msg, sizeof(msg), KVD_MSG_STATS, KVD_MSG_STATS_REPLY,
		      sizeof(struct kvd_msg_hdr) + sizeof(uint64_t), &reply,
		      sizeof(reply));
	if (rc < 0)
		return rc;
	if (size > sizeof(reply.stats)) {
		memset(ret_stats, 0, size);
		size = sizeof(reply.stats);
	}
	memcpy(ret_stats, &reply.stats, size);
	return 0;
}

static bool is_fingerprint(const char *text)
{
	size_t n = 2 * sizeof(((struct kvd_model_info *)NULL)->fingerprint);

	return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

int kvc_cache_flush(struct kvc_client *c, const char *domain, const char *model,
		    struct kvd_flush_counts *ret_counts)
{
	struct kvd_msg_cache_flush msg = {0};
	struct kvd_msg_cache_flush_reply reply;
	int rc;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if ((domain && strlen(domain) >= sizeof(msg.domain)) ||
	    (model && strlen(model) >= sizeof(msg.model) && !is_fingerprint(model)))
		return kvc_fail(-ENAMETOOLONG, "a %s has at most %u bytes",
				domain && strlen(domain) >= sizeof(msg.domain)
					? "domain"
					: "model's name",
				KVD_NAME_MAX - 1);
	if (domain)
		proto_set_string(msg.domain, sizeof(msg.domain), domain);
	if (model)
		proto_set_string(msg.model, sizeof(msg.model), model);
	/* a whole fingerprint is one digit too long; the others tell it */
	rc = ctl_call(c, &msg, sizeof(msg), KVD_MSG_CACHE_FLUSH,
		      KVD_MSG_CACHE_FLUSH_REPLY, sizeof(reply), &reply, sizeof(reply));
	if (rc < 0)
		return rc;
	if (ret_counts)
		*ret_counts = reply.counts;
	return 0;
}

/* All pages of a list. Return: entries there are, perhaps more than @cap. */
static int list_pages(struct kvc_client *c, void *msg, size_t len, uint64_t *cursor,
		      uint32_t *cursor32, uint16_t type, uint16_t reply, void *ret,
		      size_t size, size_t cap)
{
	uint64_t next = 0, last;
	size_t total = 0;
	int rc, n;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	do {
		last = next;
		rc = ctl_begin(c, msg, len, type, reply, 0, NULL);
		if (rc < 0)
			return rc;
		n = proto_parse_page(c->buf, (size_t)rc, reply,
				     total < cap ? (uint8_t *)ret + total * size : NULL,
				     size, total < cap ? cap - total : 0, &next);
		ctl_end(c);
		/* cursors rise, or this would never end */
		if (n < 0 || (next != 0 && next <= last))
			return kvc_fail_status(KVD_E_PROTO, 0);
		total += (size_t)n;
		if (cursor)
			*cursor = next;
		else
			*cursor32 = (uint32_t)next;
	} while (next != 0 && total < INT32_MAX / 2);
	return (int)total;
}

int kvc_clients(struct kvc_client *c, struct kvd_client_info *ret_clients, size_t cap)
{
	struct kvd_msg_clients msg = {0};
	int n = list_pages(c, &msg, sizeof(msg), &msg.after_id, NULL, KVD_MSG_CLIENTS,
			   KVD_MSG_CLIENTS_REPLY, ret_clients, sizeof(*ret_clients), cap);

	for (int i = 0; i < n && (size_t)i < cap; i++)
		ret_clients[i].name[sizeof(ret_clients[i].name) - 1] = 0;
	return n;
}

int kvc_quota_list(struct kvc_client *c, struct kvd_quota_info *ret_users, size_t cap)
{
	struct kvd_msg_quota msg = {0};

	return list_pages(c, &msg, sizeof(msg), NULL, &msg.after_uid, KVD_MSG_QUOTA,
			  KVD_MSG_QUOTA_REPLY, ret_users, sizeof(*ret_users), cap);
}

int kvc_quota_set(struct kvc_client *c, uint32_t uid, uint32_t set,
		  const struct kvd_quota *quota)
{
	struct kvd_msg_quota msg = {.set = set, .uid = uid, .quota = *quota};
	struct kvd_msg_quota_reply reply;
	int rc;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if (!set || set & ~KVD_QUOTA_ALL)
		return kvc_fail(-EINVAL, "set is 0x%x; it must name limits of 0x%x", set,
				KVD_QUOTA_ALL);
	if (quota->reserved)
		return kvc_fail(-EINVAL, "kvd_quota.reserved is %u; it must be 0",
				quota->reserved);
	return ctl_call(c, &msg, sizeof(msg), KVD_MSG_QUOTA, KVD_MSG_QUOTA_REPLY,
			sizeof(reply), &reply, sizeof(reply));
}

int kvc_drain(struct kvc_client *c, uint32_t action, uint32_t *ret_requests)
{
	struct kvd_msg_drain msg = {.action = action};
	struct kvd_msg_drain_reply reply;
	int rc;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if (action > KVD_DRAIN_OFF)
		return kvc_fail(-EINVAL, "action is %u; it must be <= %d", action,
				KVD_DRAIN_OFF);
	rc = ctl_call(c, &msg, sizeof(msg), KVD_MSG_DRAIN, KVD_MSG_DRAIN_REPLY,
		      sizeof(reply), &reply, sizeof(reply));
	if (rc < 0)
		return rc;
	if (ret_requests)
		*ret_requests = reply.requests;
	return reply.draining != 0;
}

int kvc_cache_list(struct kvc_client *c, struct kvd_prefix_info *ret_prefixes, size_t cap)
{
	struct kvd_msg_cache_list msg = {0};

	return list_pages(c, &msg, sizeof(msg), &msg.after, NULL, KVD_MSG_CACHE_LIST,
			  KVD_MSG_CACHE_LIST_REPLY, ret_prefixes, sizeof(*ret_prefixes),
			  cap);
}

int kvc_prefix_control(struct kvc_client *c, uint64_t id, uint32_t action, uint32_t flags,
		       struct kvd_flush_counts *ret_counts)
{
	struct kvd_msg_prefix_control msg = {.action = action, .flags = flags, .id = id};
	struct kvd_msg_prefix_control_reply reply;
	uint32_t known;
	int rc;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if (action < KVD_PREFIX_PIN || action > KVD_PREFIX_FLUSH)
		return kvc_fail(-EINVAL, "action is %u; it must be >= %d and <= %d",
				action, KVD_PREFIX_PIN, KVD_PREFIX_FLUSH);
	known = action == KVD_PREFIX_PIN     ? KVD_PREFIX_PUBLIC
		: action == KVD_PREFIX_FLUSH ? KVD_PREFIX_TREE
					     : 0;
	if (flags & ~known)
		return kvc_fail(-EINVAL, "flags is 0x%x; action %u takes 0x%x", flags,
				action, known);
	rc = ctl_call(c, &msg, sizeof(msg), KVD_MSG_PREFIX_CONTROL,
		      KVD_MSG_PREFIX_CONTROL_REPLY, sizeof(reply), &reply, sizeof(reply));
	if (rc < 0)
		return rc;
	if (ret_counts)
		*ret_counts = reply.counts;
	return reply.tokens < INT32_MAX ? (int)reply.tokens : INT32_MAX;
}

int kvc_events(struct kvc_client *c, struct kvd_event *ret_events, size_t cap,
	       uint64_t *ret_lost)
{
	struct kvd_msg_hdr msg;
	int rc, n;

	rc = client_check(c);
	if (rc < 0)
		return rc;
	if (cap < KVD_EVENTS_PAGE)
		return kvc_fail(-EINVAL, "cap is %zu; it must be >= %u", cap,
				KVD_EVENTS_PAGE);
	rc = ctl_begin(c, &msg, sizeof(msg), KVD_MSG_EVENTS, KVD_MSG_EVENTS_REPLY, 0,
		       NULL);
	if (rc < 0)
		return rc;
	n = proto_parse_page(c->buf, (size_t)rc, KVD_MSG_EVENTS_REPLY, ret_events,
			     sizeof(*ret_events), cap, ret_lost);
	ctl_end(c);
	if (n < 0)
		return kvc_fail_status(KVD_E_PROTO, 0);
	for (int i = 0; i < n; i++)
		ret_events[i].name[sizeof(ret_events[i].name) - 1] = 0;
	return n;
}
