/* SPDX-License-Identifier: MIT */
/*
 * A connection that is lost and made again, step by step and never waiting, so that any
 * thread that looks for completions can take the next step.
 *
 * A daemon that dies shows first by the pipes of its rings, which hang up. Then either a
 * new daemon that found the connection kept says so by a notice, or the connection ends
 * and another is made. Both ways lead to HELLO and WELCOME, and from there each ring's
 * thread goes on by itself (resend.c).
 *
 * States, enum client_state:
 *
 *   OK ---- NOTICE ----> HELLO ---- WELCOME ----> OK, epoch + 1
 *    |                   ^  |
 *    +-- a ring's pipe --|--+--> SILENT: the daemon is dead; a notice, or the end of
 *    |   has hung up     |  |            the connection will come
 *    +-- no ring in -----|--+--> SILENT, slow: any answer leads back to OK
 *    |   time            |  |
 *    +-- end of socket --+--+--> GONE: connect again, then HELLO
 *
 * From each of them but OK to DEAD when its time is over, or by a refusal.
 *
 * What happens when the daemon dies, in this order:
 *
 *   lost          who notices             what is done, by whom                 until
 *   the daemon    a ring's pipe hangs up  recover.c: client_attend(), by any    state OK,
 *                 (ring_hup), the socket  thread that looks for completions,    epoch + 1;
 *                 ends, or a notice       or client_recover() in a call that    or DEAD
 *                                         waits: connect, HELLO, WELCOME
 *   a ring        ring_stale(): its       reopen.c: reopen_step(), by the       r->ring is
 *                 epoch is an old one     ring's thread once its CQ is empty:   new; or
 *                                         RING_OPEN; the answer is put down by  r->fault
 *                                         the reader of the socket
 *   a request     in flight on a ring     resend.c: ring_reopen() judges it:    its final
 *                 that is new             ended here, held back, or submitted   CQE
 *                                         again (ring_pump); ring_progress()
 *                                         cuts what was given out before
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "ipc/proto.h"

/* Between two attempts to connect. */
#define RETRY_NS 10000000u
/* For an answer to HELLO, though it is too late for anything else. */
#define ANSWER_NS 1000000000u

static void set_state(struct kvc_client *c, enum client_state state)
{
	__atomic_store_n(&c->state, state, __ATOMIC_RELEASE);
}

/* When it is too late; 0: never. */
static uint64_t last_moment(const struct kvc_client *c)
{
	uint64_t last = c->lost_ns + (uint64_t)c->reconnect_ns;

	if (c->reconnect_ns < 0)
		return 0;
	if (c->state == CLIENT_HELLO && last < c->hello_ns + ANSWER_NS)
		last = c->hello_ns + ANSWER_NS;
	return last;
}

/* When to look again though no descriptor tells; 0: no need. */
static uint64_t next_look(const struct kvc_client *c)
{
	uint64_t last = last_moment(c);

	switch (c->state) {
	case CLIENT_OK:
		return reopen_next_look(c);
	case CLIENT_SILENT:
		/* The notice is no longer in the socket: now, which is long ago. */
		return c->notice_tag ? 1 : last;
	case CLIENT_HELLO:
		return last;
	case CLIENT_GONE:
		return last && last < c->retry_ns ? last : c->retry_ns;
	default:
		return 0;
	}
}

void client_set_timer(struct kvc_client *c)
{
	uint64_t at = next_look(c);
	struct itimerspec when = {
		.it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)},
	};

	if (c->timer_fd >= 0)
		(void)timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* A program that sleeps in an event loop has to look at its ring. */
static void wake_rings(struct kvc_client *c)
{
	for (struct kvc_ring *r = c->rings; r; r = r->next)
		ring_wake(r);
}

static void watch_socket(struct kvc_client *c, bool on)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};

	int fd;

	for (struct kvc_ring *r = c->rings; r; r = r->next) {
		fd = __atomic_load_n(&r->epoll_fd, __ATOMIC_ACQUIRE);
		if (fd >= 0)
			(void)epoll_ctl(fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, c->sock,
					&event);
	}
}

int client_watch(struct kvc_client *c, struct kvc_ring *r)
{
	struct epoll_event in = {.events = EPOLLIN},
			   sock = {.events = EPOLLIN | EPOLLRDHUP};

	if (c->timer_fd < 0) {
		c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (c->timer_fd < 0)
			return -errno;
		client_set_timer(c);
	}
	/* What is in it already may have been put there by another thread, or an earlier try. */
	if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, c->timer_fd, &in) < 0 &&
	    errno != EEXIST)
		return -errno;
	if (c->state != CLIENT_GONE && c->state != CLIENT_DEAD &&
	    epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, c->sock, &sock) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

static void give_up(struct kvc_client *c)
{
	if (c->state == CLIENT_DEAD)
		return;
	if (c->state != CLIENT_GONE)
		watch_socket(c, false);
	c->slow = false;
	set_state(c, CLIENT_DEAD);
	/* What a daemon may still hold for this connection ends with it. */
	(void)shutdown(c->sock, SHUT_RDWR);
	wake_rings(c);
}

void client_lost(struct kvc_client *c, enum client_state state)
{
	if (c->state == CLIENT_DEAD || c->state == CLIENT_GONE)
		return;
	/* the time that a slow one took is not that of the one which comes */
	if (c->state == CLIENT_OK || c->slow)
		c->lost_ns = clock_ns();
	c->slow = false;
	if (!c->reconnect) {
		give_up(c);
		return;
	}
	if (state == CLIENT_GONE) {
		/* It would be readable all the time. */
		watch_socket(c, false);
		c->notice_tag = 0;
		/* At once, but for a daemon that takes the connection and hangs up. */
		c->retry_ns = clock_ns() + (c->state == CLIENT_HELLO ? RETRY_NS : 0);
	}
	set_state(c, state);
	client_set_timer(c);
}

/* The daemon that owes an answer has said something: it lives. */
static void answered(struct kvc_client *c)
{
	if (!c->slow)
		return;
	c->slow = false;
	set_state(c, CLIENT_OK);
	reopen_go_on(c);
	wake_rings(c);
}

bool client_took(struct kvc_client *c, const void *packet, size_t len, const int *fds,
		 size_t n_fds)
{
	struct kvd_msg_hdr h;

	if (len < sizeof(h))
		return false;
	memcpy(&h, packet, sizeof(h));
	if (h.type != KVD_MSG_NOTICE)
		answered(c);
	return reopen_answered(c, packet, len, fds, n_fds);
}

bool client_took_cut(struct kvc_client *c, uint32_t own_tag)
{
	struct kvd_msg_hdr h;

	memcpy(&h, c->buf, sizeof(h));
	if (h.type == KVD_MSG_RING_OPENED)
		answered(c);
	return reopen_cut(c, own_tag);
}

void client_noticed(struct kvc_client *c, const struct kvd_msg_notice *notice)
{
	c->notice_tag = notice->hello_tag;
	client_lost(c, CLIENT_SILENT);
	/* Who took it is perhaps in a call, and does not come back to answer it. */
	wake_rings(c);
}

static void say_hello(struct kvc_client *c, uint32_t tag)
{
	struct kvd_msg_hello hello;

	client_hello_init(c, &hello);
	proto_hdr_init(&hello.hdr, KVD_MSG_HELLO, sizeof(hello), tag, 0);
	c->hello_tag = tag;
	c->hello_ns = clock_ns();
	c->notice_tag = 0;
	if (fdpass_send(c->sock, &hello, sizeof(hello), NULL, 0) < 0) {
		client_lost(c, CLIENT_GONE);
		/* a connection that was just made: the next one not at once */
		c->retry_ns = clock_ns() + RETRY_NS;
		client_set_timer(c);
		return;
	}
	set_state(c, CLIENT_HELLO);
}

/* The answer to HELLO. */
static void welcomed(struct kvc_client *c, const void *packet, size_t len)
{
	struct kvd_msg_welcome welcome;
	uint64_t before = c->server.generation;

	if (proto_parse_reply(packet, len, KVD_MSG_WELCOME,
			      offsetof(struct kvd_msg_welcome, model), &welcome,
			      sizeof(welcome)) < 0) {
		give_up(c);
		return;
	}
	/* A daemon that still lives has ended this session on purpose. */
	if (welcome.server.generation == before || client_welcome(c, &welcome) < 0) {
		give_up(c);
		return;
	}
	__atomic_store_n(&c->epoch, c->epoch + 1, __ATOMIC_RELEASE);
	set_state(c, CLIENT_OK);
	wake_rings(c);
}

/* One packet that no call waits for. */
static void receive(struct kvc_client *c, const void *packet, size_t len)
{
	struct kvd_msg_notice notice;
	struct kvd_msg_hdr h;

	if (proto_parse_notice(packet, len, &notice)) {
		client_noticed(c, &notice);
		return;
	}
	if (len < sizeof(h))
		return;
	memcpy(&h, packet, sizeof(h));
	if (c->state != CLIENT_HELLO)
		return;
	if (h.type == KVD_MSG_REJECT)
		give_up(c);
	else if (h.type == KVD_MSG_WELCOME && h.tag == c->hello_tag)
		welcomed(c, packet, len);
}

/* All that lies in the socket. The newest notice is the one to answer. */
static void receive_all(struct kvc_client *c)
{
	int fds[KVD_MSG_MAX_FDS];
	size_t n_fds, i;
	ssize_t n;

	while (c->state != CLIENT_GONE && c->state != CLIENT_DEAD) {
		memset(c->buf, 0, sizeof(struct kvd_msg_ring_opened));
		n = fdpass_recv_fds(c->sock, c->buf, KVD_MSG_MAX, fds, &n_fds);
		if (n == -EAGAIN)
			break;
		if (n == -EBADMSG)
			(void)client_took_cut(c, 0);
		if (n == -EMSGSIZE || n == -EBADMSG)
			continue;
		if (n <= 0) {
			client_lost(c, CLIENT_GONE);
			break;
		}
		if (client_took(c, c->buf, (size_t)n, fds, n_fds))
			continue;
		for (i = 0; i < n_fds; i++)
			fd_close(fds[i]);
		receive(c, c->buf, (size_t)n);
	}
	if (c->notice_tag && c->state == CLIENT_SILENT)
		say_hello(c, c->notice_tag);
}

/* Put a new connection behind the number of the old one. */
static void connect_again(struct kvc_client *c)
{
	int sock;

	if (clock_ns() < c->retry_ns)
		return;
	c->retry_ns = clock_ns() + RETRY_NS;
	if (client_open_socket(c, false, 0, &sock) < 0)
		return;
	if (dup3(sock, c->sock, O_CLOEXEC) < 0) {
		fd_close(sock);
		return;
	}
	fd_close(sock);
	watch_socket(c, true);
	if (++c->next_tag == 0)
		c->next_tag = 1;
	set_state(c, CLIENT_SILENT);
	say_hello(c, c->next_tag);
}

static void step(struct kvc_client *c)
{
	receive_all(c);
	if (c->state == CLIENT_OK && reopen_look(c)) {
		/* Its end, its successor or its answer will show. */
		client_lost(c, CLIENT_SILENT);
		c->slow = c->state == CLIENT_SILENT;
	}
	if (c->state == CLIENT_GONE)
		connect_again(c);
	if (c->state != CLIENT_OK && last_moment(c) && clock_ns() >= last_moment(c))
		give_up(c);
	client_set_timer(c);
}

bool client_attend(struct kvc_ring *r)
{
	struct kvc_client *c = r->client;

	if (client_state(c) == CLIENT_DEAD)
		return true;
	if (!client_trylock(r))
		return false;
	if ((c->state == CLIENT_OK || c->slow) && r->hup && c->epoch == r->epoch)
		client_lost(c, CLIENT_SILENT);
	step(c);
	client_unlock(c);
	return true;
}

int client_recover(struct kvc_client *c, uint64_t deadline_ns)
{
	struct pollfd p;
	struct timespec ts;
	enum client_state state;
	uint64_t look, now;

	if (client_state(c) == CLIENT_OK)
		return 0;
	for (;;) {
		if (client_lock_until(c, deadline_ns) < 0)
			return kvc_fail(-ETIME, "kvd does not answer");
		if (c->state != CLIENT_OK)
			step(c);
		state = (enum client_state)c->state;
		look = next_look(c);
		p = (struct pollfd){.fd = state == CLIENT_GONE ? -1 : c->sock,
				    .events = POLLIN};
		client_unlock(c);
		if (state == CLIENT_OK)
			return 0;
		if (state == CLIENT_DEAD)
			return kvc_fail_status(-ECONNRESET, 0);
		/* Another thread may take what would wake this one. */
		now = clock_ns();
		if (deadline_ns && now >= deadline_ns)
			return kvc_fail(-ETIME, "kvd does not answer");
		look = deadline_sooner(look, deadline_ns);
		if (!look || look > now + RETRY_NS)
			look = now + RETRY_NS;
		ts.tv_sec = 0;
		ts.tv_nsec = look > now ? (long)(look - now) : 0;
		(void)ppoll(&p, 1, &ts, NULL);
	}
}
