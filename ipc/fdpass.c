/* SPDX-License-Identifier: MIT */
/*
 * The daemon receives with no control buffer, so that the kernel installs no descriptor,
 * however many were sent; and where the kernel can (6.16 and later) their sender already
 * gets EPERM.
 *
 * An older one drops them when their packet is received or its socket closed, in the thread that
 * does so, and the last end of a TCP connection waits there for as long as its owner chose
 * (SO_LINGER). There the daemon looks first: a packet that is only looked at keeps its
 * descriptors, and MSG_CTRUNC tells that it has some. fdpass_drain() is then for a thread that may
 * wait; it installs them and switches lingering off, so that it seldom does. Packets come with
 * their sender's credentials (SO_PASSCRED), by which an empty one is told from the end; they fill
 * the control buffer, so that it has no room for descriptors.
 */
#include "ipc/fdpass.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <kvd/proto.h>

#include "ipc/base.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* All that one packet can carry. */
#define SCM_MAX_FD 253

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(KVD_MSG_MAX_FDS * sizeof(int))];
};

int fdpass_refuse(int sock)
{
	int off = 0, on = 1;

	if (setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) == 0)
		return 0;
	return setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0
		       ? -errno
		       : FDPASS_WARY;
}

/* No more than that: what is accepted inherits SO_PASSCRED, and would have packets with credentials
 * for which the reader has no room. */
void fdpass_refuse_early(int sock)
{
	int off = 0;

	(void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

bool fdpass_unread(int sock)
{
	int n;

	return ioctl(sock, SIOCOUTQ, &n) == 0 && n > 0;
}

int fdpass_send(int sock, const void *buf, size_t len, const int *fds, size_t n_fds)
{
	union control control;
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (n_fds > KVD_MSG_MAX_FDS)
		return -EINVAL;
	if (n_fds > 0) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, n_fds * sizeof(int));
	}
	do
		n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	/* A packet goes whole or not at all. */
	return (size_t)n == len ? 0 : -EIO;
}

ssize_t fdpass_recv(int sock, void *buf, size_t size)
{
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (msg.msg_flags & MSG_CTRUNC)
		return -EBADMSG;
	if (msg.msg_flags & MSG_TRUNC)
		return -EMSGSIZE;
	return n;
}

/* @flags: MSG_PEEK or 0. Return: its length; -EBADMSG: it has descriptors; -ENODATA: the end, and
 * there is no packet; -errno. */
static ssize_t recv_wary(int sock, void *buf, size_t size, int flags)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t n;

	do
		n = recvmsg(sock, &msg, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (msg.msg_flags & MSG_CTRUNC)
		return -EBADMSG;
	if (!msg.msg_controllen)
		return -ENODATA;
	return msg.msg_flags & MSG_TRUNC ? -EMSGSIZE : n;
}

ssize_t fdpass_recv_wary(int sock, void *buf, size_t size)
{
	ssize_t n;
	char byte;

	n = recv_wary(sock, &byte, 1, MSG_PEEK);
	if (n >= 0 || n == -EMSGSIZE)
		n = recv_wary(sock, buf, size, 0);
	return n == -ENODATA ? 0 : n;
}

bool fdpass_end(int sock)
{
	ssize_t n;
	char byte;

	shutdown(sock, SHUT_RDWR);
	do {
		n = recv_wary(sock, &byte, 1, MSG_PEEK);
		if (n >= 0 || n == -EMSGSIZE)
			n = recv_wary(sock, &byte, 1, 0);
		/* of a peer that has gone with something unread; said once, packets stay */
	} while (n >= 0 || n == -EMSGSIZE || n == -ECONNRESET);
	return n != -EBADMSG;
}

/* Close what @msg brought. Return: how many. */
static size_t close_without_linger(struct msghdr *msg)
{
	static const struct linger off = {0};
	struct cmsghdr *c;
	size_t i, n, n_closed = 0;
	int fd;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			/* ENOTSOCK: then it does not linger either */
			(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
			fd_close(fd);
			n_closed++;
		}
	}
	return n_closed;
}

size_t fdpass_drain(int sock)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) +
			   CMSG_SPACE(SCM_MAX_FD * sizeof(int))];
	} control;
	size_t n_closed = 0;
	char byte;
	ssize_t n;

	do {
		struct iovec iov = {.iov_base = &byte, .iov_len = 1};
		struct msghdr msg = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes),
		};

		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n >= 0 && !msg.msg_controllen)
			break;
		if (n >= 0)
			n_closed += close_without_linger(&msg);
	} while (n >= 0 || errno == EINTR || errno == ECONNRESET);
	return n_closed;
}

/* Move the descriptors of @msg to @fds, close what does not fit. */
static bool collect_fds(struct msghdr *msg, int *fds, size_t *ret_n)
{
	struct cmsghdr *c;
	size_t i, n, n_fds = 0;
	bool ok = true;
	int fd;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
			ok = false;
			continue;
		}
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n_fds < KVD_MSG_MAX_FDS) {
				fds[n_fds++] = fd;
			} else {
				fd_close(fd);
				ok = false;
			}
		}
	}
	*ret_n = n_fds;
	return ok;
}

ssize_t fdpass_recv_fds(int sock, void *buf, size_t size, int *fds, size_t *ret_n_fds)
{
	union control control;
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	size_t i, n_fds = 0;
	ssize_t n;

	for (i = 0; i < KVD_MSG_MAX_FDS; i++)
		fds[i] = -1;
	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;

	if (!collect_fds(&msg, fds, &n_fds) || (msg.msg_flags & MSG_CTRUNC))
		n = -EBADMSG;
	else if (msg.msg_flags & MSG_TRUNC)
		n = -EMSGSIZE;
	if (n <= 0) {
		for (i = 0; i < n_fds; i++)
			fds[i] = fd_close(fds[i]);
		n_fds = 0;
	}
	*ret_n_fds = n_fds;
	return n;
}
