/* SPDX-License-Identifier: MIT */
/* Packets with descriptors: what arrives, and that no stray one stays open. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/proto.h>

#include "ipc/base.h"
#include "ipc/fdpass.h"
#include "tests/unit/suite.h"

static int sv[2];

static void open_pair(void)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
}

static void close_pair(void)
{
	close(sv[0]);
	close(sv[1]);
}

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* sendmsg() without any of our limits. */
static int send_raw(int sock, size_t len, const int *fds, size_t n_fds)
{
	static char data[KVD_MSG_MAX * 2];
	union {
		struct cmsghdr h;
		char bytes[CMSG_SPACE(253 * sizeof(int))];
	} control = {0};
	struct iovec iov = {data, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n_fds) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.h.cmsg_level = SOL_SOCKET;
		control.h.cmsg_type = SCM_RIGHTS;
		control.h.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.h), fds, n_fds * sizeof(int));
	}
	return sendmsg(sock, &msg, 0) < 0 ? -errno : 0;
}

START_TEST(passes_up_to_four)
{
	int fds[4] = {0, 1, 2, 0}, got[KVD_MSG_MAX_FDS], before, i;
	char buf[64];
	size_t n;

	open_pair();
	before = count_fds();
	for (i = 0; i <= 4; i++) {
		ck_assert_int_eq(fdpass_send(sv[0], "hello", 5, fds, (size_t)i), 0);
		ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), 5);
		ck_assert_uint_eq(n, (size_t)i);
		while (n > 0) {
			ck_assert(fcntl(got[--n], F_GETFD) & FD_CLOEXEC);
			close(got[n]);
		}
		for (n = (size_t)i; n < 4; n++)
			ck_assert_int_eq(got[n], -1);
	}
	ck_assert_int_eq(fdpass_send(sv[0], "hello", 5, fds, 5), -EINVAL);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EAGAIN);
	ck_assert_int_eq(count_fds(), before);
	close(sv[0]);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), 0);
	ck_assert_int_eq(fdpass_send(sv[1], "x", 1, NULL, 0), -EPIPE);
	close(sv[1]);
}
END_TEST

START_TEST(client_closes_strays)
{
	int many[253], got[KVD_MSG_MAX_FDS], before, i;
	char buf[64];
	size_t n = 9;

	if (emulator_lacks("room for 253 descriptors in a message"))
		return;
	open_pair();
	for (i = 0; i < 253; i++)
		many[i] = 2;
	before = count_fds();
	ck_assert_int_eq(send_raw(sv[0], 10, many, 253), 0);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EBADMSG);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(send_raw(sv[0], 10, many, 5), 0);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EBADMSG);
	/* A packet that is cut takes its descriptors along. */
	ck_assert_int_eq(send_raw(sv[0], 65, many, 2), 0);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EMSGSIZE);
	ck_assert_int_eq(got[0], -1);
	/* An empty packet is an end, and brings nothing either. */
	ck_assert_int_eq(send_raw(sv[0], 0, many, 2), 0);
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), 0);
	ck_assert_int_eq(count_fds(), before);
	close_pair();
}
END_TEST

START_TEST(daemon_installs_none)
{
	int many[253], before, i;
	char buf[64];

	open_pair();
	for (i = 0; i < 253; i++)
		many[i] = 2;
	before = count_fds();
	for (i = 1; i <= 253; i += 84) {
		ck_assert_int_eq(send_raw(sv[0], 10, many, (size_t)i), 0);
		ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), -EBADMSG);
	}
	ck_assert_int_eq(send_raw(sv[0], 65, NULL, 0), 0);
	ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), -EMSGSIZE);
	ck_assert_int_eq(send_raw(sv[0], 64, NULL, 0), 0);
	ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), 64);
	ck_assert_int_eq(send_raw(sv[0], 0, NULL, 0), 0);
	ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), 0);
	ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), -EAGAIN);
	ck_assert_int_eq(count_fds(), before);

	/* Where the kernel can refuse, the sender is told; the next test is of others. */
	if (fdpass_refuse(sv[1]) == 0) {
		ck_assert_int_eq(send_raw(sv[0], 10, many, 1), -EPERM);
		ck_assert_int_eq(send_raw(sv[0], 10, NULL, 0), 0);
		ck_assert_int_eq(fdpass_recv(sv[1], buf, sizeof(buf)), 10);
	}
	close_pair();
}
END_TEST

/* The kernel is as before 6.16. */
static bool old_kernel;

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (old_kernel && level == SOL_SOCKET && name == 83) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return __real_setsockopt(fd, level, name, value, len);
}

/* A TCP connection that nobody reads, whose last close waits for a minute. Return: its one end; the
 * other one is in @ret_peer. */
static int lingering(int *ret_peer)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger on = {.l_onoff = 1, .l_linger = 60};
	static char junk[65536];
	socklen_t len = sizeof(a);
	int listener, fd;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&a, &len), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, len), 0);
	*ret_peer = accept(listener, NULL, NULL);
	close(listener);
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &on, sizeof(on)), 0);
	while (send(fd, junk, sizeof(junk), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
		;
	return fd;
}

START_TEST(wary_drops_no_descriptor)
{
	int before, peer, many[253], i;
	char buf[64];

	if (emulator_lacks("room for 253 descriptors in a message"))
		return;
	open_pair();
	for (i = 0; i < 253; i++)
		many[i] = 2;
	before = count_fds();
	old_kernel = true;
	ck_assert_int_eq(fdpass_refuse(sv[1]), FDPASS_WARY);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), -EAGAIN);
	ck_assert_int_eq(send_raw(sv[0], 10, NULL, 0), 0);
	ck_assert_int_eq(send_raw(sv[0], 0, NULL, 0), 0);
	ck_assert_int_eq(send_raw(sv[0], 65, NULL, 0), 0);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), 10);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), 0);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), -EMSGSIZE);

	/* In the middle, behind an empty one and another one with some. */
	i = lingering(&peer);
	ck_assert_int_eq(send_raw(sv[0], 10, many, 253), 0);
	ck_assert_int_eq(send_raw(sv[0], 0, NULL, 0), 0);
	ck_assert_int_eq(send_raw(sv[0], 0, &i, 1), 0);
	close(i);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), -EBADMSG);
	ck_assert_int_eq(fdpass_recv_wary(sv[1], buf, sizeof(buf)), -EBADMSG);
	ck_assert(!fdpass_end(sv[1]));
	ck_assert_int_lt(send_raw(sv[0], 10, NULL, 0), 0);
	/* Without lingering it takes no minute, which is the limit of this test. */
	ck_assert_uint_eq(fdpass_drain(sv[1]), 254);
	ck_assert_uint_eq(fdpass_drain(sv[1]), 0);
	ck_assert_int_eq(count_fds(), before + 1);
	close(peer);
	close_pair();

	/* Empty packets do not hide what is behind them, nor look like it. */
	open_pair();
	ck_assert_int_eq(fdpass_refuse(sv[1]), FDPASS_WARY);
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(send_raw(sv[0], 0, NULL, 0), 0);
	ck_assert(fdpass_end(sv[1]));
	ck_assert_uint_eq(fdpass_drain(sv[1]), 0);
	close_pair();

	/* A peer that has gone with something unread is an error once, and its packets stay. */
	open_pair();
	ck_assert_int_eq(fdpass_refuse(sv[1]), FDPASS_WARY);
	ck_assert_int_eq(send_raw(sv[0], 10, NULL, 0), 0);
	ck_assert_int_eq(send_raw(sv[0], 10, many, 2), 0);
	ck_assert_int_eq(fdpass_send(sv[1], "hello", 5, NULL, 0), 0);
	close(sv[0]);
	ck_assert(!fdpass_end(sv[1]));
	ck_assert_uint_eq(fdpass_drain(sv[1]), 2);
	close(sv[1]);
	old_kernel = false;
}
END_TEST

START_TEST(knows_what_is_unread)
{
	int fds[4] = {0, 1, 2, 0}, got[KVD_MSG_MAX_FDS];
	char buf[64];
	size_t n;

	open_pair();
	ck_assert(!fdpass_unread(sv[0]));
	ck_assert_int_eq(fdpass_send(sv[0], "hello", 5, fds, 4), 0);
	ck_assert(fdpass_unread(sv[0]));
	ck_assert(!fdpass_unread(sv[1]));
	ck_assert_int_eq(fdpass_recv_fds(sv[1], buf, sizeof(buf), got, &n), 5);
	fds_close(got, n);
	ck_assert(!fdpass_unread(sv[0]));
	/* Nor is what a peer left when it went. */
	ck_assert_int_eq(fdpass_send(sv[0], "hello", 5, fds, 4), 0);
	shutdown(sv[0], SHUT_RDWR);
	ck_assert(fdpass_unread(sv[0]));
	close(sv[1]);
	ck_assert(!fdpass_unread(sv[0]));
	close(sv[0]);
}
END_TEST

START_TEST(send_never_blocks)
{
	int rc, n = 0;

	open_pair();
	while ((rc = fdpass_send(sv[0], "0123456789", 10, NULL, 0)) == 0 && n < 1000000)
		n++;
	ck_assert_int_eq(rc, -EAGAIN);
	close_pair();
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		passes_up_to_four,        client_closes_strays, daemon_installs_none,
		wary_drops_no_descriptor, knows_what_is_unread, send_never_blocks,
	};

	return run_suite("fdpass", tests, KVD_ARRAY_LEN(tests));
}
