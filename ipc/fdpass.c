/* SPDX-License-Identifier: MIT */
/*
 * The daemon receives with no control buffer, so that the kernel installs no descriptor,
 * however many were sent; and where the kernel can (6.16 and later) their sender already
 * gets EPERM.
 */
#include "ipc/fdpass.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <kvd/proto.h>

#include "ipc/base.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(KVD_MSG_MAX_FDS * sizeof(int))];
};

void fdpass_refuse(int sock)
{
	int off = 0;

	(void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
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
