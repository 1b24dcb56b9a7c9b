/* SPDX-License-Identifier: MIT */
/* Memory of rings is charged to its user until the client has let go of it. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/sessions.h"
#include "tests/unit/suite.h"

/* What a ring of 4 and 64 entries with these arenas takes: for each direction a page, a queue of
 * 64-byte entries in whole pages, and the arena. */
#define IN_BYTES  UINT64_C(65536)
#define OUT_BYTES UINT64_C(8192)
#define C2D       (4096 + 4096 + IN_BYTES)
#define D2C       (4096 + 64 * 64 + OUT_BYTES)

static struct config config;
static struct loop *loop;
static struct engine engine;
static struct sessions sessions;
static struct session *session;
static struct user *user;
static int peer, peer2 = -1;
static int overflow_of = -1;

ssize_t __real_read(int fd, void *buf, size_t size);
ssize_t __wrap_read(int fd, void *buf, size_t size);

/* The queue of @overflow_of had no room for what is in it. */
ssize_t __wrap_read(int fd, void *buf, size_t size)
{
	const struct inotify_event lost = {.wd = -1, .mask = IN_Q_OVERFLOW};

	if (fd != overflow_of)
		return __real_read(fd, buf, size);
	overflow_of = -1;
	while (__real_read(fd, buf, size) > 0)
		;
	memcpy(buf, &lost, sizeof(lost));
	return sizeof(lost);
}

static struct session *accept_one(int *ret_peer)
{
	int pair[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	*ret_peer = pair[1];
	sessions_accept(&sessions, pair[0], false);
	ck_assert_ptr_nonnull(sessions.list_tail);
	sessions.list_tail->state = SESSION_READY;
	return sessions.list_tail;
}

static void setup(void)
{
	ck_assert_int_eq(config_init(&config), 0);
	config.daemon.spin_us = 0;
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	engine = (struct engine){.loop = loop, .config = &config};
	sessions_init(&sessions, loop, &config, &engine, NULL);
	ck_assert_int_ge(sessions.lent.fd, 0);
	session = accept_one(&peer);
	user = session->user;
}

/* What ends does so in turns. */
static void settle(void)
{
	for (int i = 0; i < 1000; i++)
		if (ring_watch_prepare(&sessions) == LOOP_SLEEP_FOREVER)
			return;
	ck_abort_msg("the loop spins");
}

static void teardown(void)
{
	sessions_deinit(&sessions);
	loop_free(loop);
	close(peer);
	config_deinit(&config);
}

static int try_ring(struct session *s, struct session_ring **ret_ring)
{
	const struct kvd_msg_ring_open msg = {
		.sq_entries = 4,
		.cq_entries = 64,
		.in_bytes = IN_BYTES,
		.out_bytes = OUT_BYTES,
	};

	return session_ring_open(s, &msg, ret_ring);
}

/* @ret_fd: as RING_OPENED gives it to the client. */
static struct session_ring *open_ring(struct session *s, int *ret_fd)
{
	int fds[KVD_RING_N_FDS];
	struct session_ring *ring;

	ck_assert_int_eq(try_ring(s, &ring), 0);
	ring_daemon_get_fds(&ring->ring, fds);
	*ret_fd = dup(fds[KVD_RING_FD_D2C]);
	ck_assert_int_ge(*ret_fd, 0);
	ring_daemon_close_files(&ring->ring);
	return ring;
}

static int close_ring(struct session_ring *ring)
{
	int r = session_ring_close(session, ring->id, 1);

	settle();
	return r;
}

static void look(void)
{
	sessions.lent.io.fn(&sessions.lent.io, LOOP_READ);
}

static void expect(uint64_t n_rings, uint64_t bytes)
{
	look();
	ck_assert_uint_eq(user->used[USER_RINGS], n_rings);
	ck_assert_uint_eq(user->used[USER_BYTES], bytes);
}

START_TEST(until_descriptor_and_mapping_are_gone)
{
	int fd, other;
	struct session_ring *ring = open_ring(session, &fd);
	void *map;

	ck_assert_uint_eq(session_ring_bytes(ring), C2D + D2C);
	expect(1, C2D + D2C);
	map = mmap(NULL, D2C, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(close_ring(ring), 0);
	expect(1, D2C);
	other = dup(fd);
	close(fd);
	expect(1, D2C);
	close(other);
	expect(1, D2C);
	munmap(map, D2C);
	expect(0, 0);
}
END_TEST

START_TEST(the_client_lets_go_first)
{
	int fd;
	struct session_ring *ring = open_ring(session, &fd);

	close(fd);
	/* the daemon's own mapping keeps all of it */
	expect(1, C2D + D2C);
	ck_assert_int_eq(close_ring(ring), 0);
	expect(0, 0);
}
END_TEST

/* Only the daemon can write to what the client reads, and the client's descriptor says so. */
START_TEST(the_descriptor_only_reads)
{
	int fd;

	(void)open_ring(session, &fd);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	ck_assert_int_eq(write(fd, "x", 1), -1);
	ck_assert_int_eq(errno, EBADF);
	close(fd);
}
END_TEST

START_TEST(limits_hold_over_the_end_of_rings_and_sessions)
{
	struct session_ring *ring;
	struct session *second;
	int fds[3], fd;

	user->max[USER_RINGS] = 3;
	user->set = 0;
	for (int i = 0; i < 3; i++) {
		ring = open_ring(session, &fds[i]);
		ck_assert_int_eq(close_ring(ring), 0);
	}
	ck_assert_int_eq(try_ring(session, &ring), -EDQUOT);
	/* the user stays known without any connection */
	second = accept_one(&peer2);
	ck_assert_ptr_eq(second->user, user);
	session_close(session);
	settle();
	ck_assert_int_eq(try_ring(second, &ring), -EDQUOT);
	session_close(second);
	settle();
	ck_assert_ptr_eq(sessions.users.list, user);
	expect(3, 3 * D2C);
	close(peer2);
	session = accept_one(&peer2);
	ck_assert_ptr_eq(session->user, user);
	ck_assert_int_eq(try_ring(session, &ring), -EDQUOT);
	/* at once, also before the loop has looked */
	close(fds[0]);
	ring = open_ring(session, &fd);
	close(fd);
	close(fds[1]);
	close(fds[2]);
	expect(1, C2D + D2C);
	session_close(session);
	settle();
	look();
	ck_assert_ptr_null(sessions.users.list);
	close(peer2);
}
END_TEST

START_TEST(bytes_are_limited)
{
	struct session_ring *ring;

	user->max[USER_BYTES] = C2D + D2C - 1;
	ck_assert_int_eq(try_ring(session, &ring), -EDQUOT);
	expect(0, 0);
	user->max[USER_BYTES] = C2D + D2C;
	ck_assert_int_eq(try_ring(session, &ring), 0);
	ck_assert_int_eq(close_ring(ring), 0);
	expect(0, 0);
}
END_TEST

/* The kernel dropped events: what has gone is found all the same, and nothing else. */
START_TEST(events_that_were_lost)
{
	struct session_ring *ring;
	int fds[40];

	for (int i = 0; i < 40; i++) {
		ring = open_ring(session, &fds[i]);
		if (i != 5)
			ck_assert_int_eq(close_ring(ring), 0);
	}
	for (int i = 0; i < 30; i++)
		close(fds[i]);
	overflow_of = sessions.lent.fd;
	/* 10 are held, and one is open */
	expect(11, 11 * D2C + C2D);
	ck_assert_int_eq(close_ring(session->rings), 0);
	expect(10, 10 * D2C);
	for (int i = 30; i < 40; i++)
		close(fds[i]);
	expect(0, 0);
}
END_TEST

START_TEST(without_inotify)
{
	int fd;
	struct session_ring *ring;

	loop_io_remove(&sessions.lent.io);
	close(sessions.lent.fd);
	sessions.lent.fd = -1;
	ring = open_ring(session, &fd);
	close(fd);
	ck_assert_int_eq(close_ring(ring), 0);
	ck_assert_uint_eq(user->used[USER_RINGS], 0);
	ck_assert_uint_eq(user->used[USER_BYTES], D2C);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("lent");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, until_descriptor_and_mapping_are_gone);
	tcase_add_test(tc, the_client_lets_go_first);
	tcase_add_test(tc, the_descriptor_only_reads);
	tcase_add_test(tc, limits_hold_over_the_end_of_rings_and_sessions);
	tcase_add_test(tc, bytes_are_limited);
	tcase_add_test(tc, events_that_were_lost);
	tcase_add_test(tc, without_inotify);
	return run_case("lent", tc);
}
