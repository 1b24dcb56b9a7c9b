/* SPDX-License-Identifier: MIT */
/*
 * O_NONBLOCK belongs to the open file, which both processes share after the descriptor was
 * passed. A client that clears it and fills an eventfd's counter would block the daemon's
 * next write for ever; hence a pipe, whose writing end the daemon keeps to itself. The
 * daemon never reads the eventfd: each write to it is an event for who watches it edge
 * triggered, and its counter takes some 2^64 of them. The client's direction stays an eventfd
 * because writing to a pipe without a reader raises SIGPIPE in the client's program.
 */
#include "ipc/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ipc/base.h"

int doorbell_init_submit(int *ret_fd)
{
	int fd;

	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int doorbell_init_complete(int ret_fds[2])
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	/* One page is plenty, and the kernel counts pipe pages per user. */
	(void)fcntl(fds[1], F_SETPIPE_SZ, 4096);
	ret_fds[0] = fds[0];
	ret_fds[1] = fds[1];
	return 0;
}

void doorbell_signal_submit(int fd)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	/* EAGAIN: this program filled the counter by itself, and wakes nobody any more. */
}

static uint64_t clock_of(bool own)
{
	return own ? clock_cpu_ns() : clock_ns();
}

uint64_t doorbell_signal_complete(int write_fd, bool exact)
{
	uint64_t begin = clock_of(exact);
	ssize_t n;

	do
		n = write(write_fd, "", 1);
	while (n < 0 && errno == EINTR);
	/* EAGAIN: the pipe is full, so the client has a signal to see. */
	return clock_of(exact) - begin;
}

bool doorbell_heard(int read_fd)
{
	int n = 0;

	return ioctl(read_fd, FIONREAD, &n) < 0 || n == 0;
}

void doorbell_clear_submit(int fd)
{
	uint64_t count;
	struct iovec iov = {.iov_base = &count, .iov_len = sizeof(count)};
	ssize_t n;

	do
		n = preadv2(fd, &iov, 1, -1, RWF_NOWAIT);
	while (n < 0 && errno == EINTR);
}

bool doorbell_clear_complete(int read_fd)
{
	char bytes[256];
	ssize_t n;

	/* A short read means that it is empty; one read is the usual case. */
	do
		n = read(read_fd, bytes, sizeof(bytes));
	while (n == (ssize_t)sizeof(bytes) || (n < 0 && errno == EINTR));
	return n != 0;
}
