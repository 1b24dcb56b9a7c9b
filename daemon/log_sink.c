/* SPDX-License-Identifier: MIT */
/* See log_sink.h. */
#include "daemon/log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* How standard error is written to; dev and ino tell when it was exchanged. */
static struct {
	bool known;
	dev_t dev;
	ino_t ino;
	mode_t type;
	int own_fd; /* -1: none, where it cannot be opened again or need not be */
	bool cut;   /* the last line ended before its newline */
} err = {.own_fd = -1};

static int journal_fd = -1;

/*
 * Pipes and terminals are opened again: flags belong to the open file description, which
 * others share. Files never wait; with a description of their own they would get an offset of
 * their own, too. Sockets take MSG_DONTWAIT.
 */
static void stderr_look(void)
{
	struct stat st;

	if (fstat(STDERR_FILENO, &st) < 0)
		return;
	if (err.known && st.st_dev == err.dev && st.st_ino == err.ino)
		return;
	if (err.own_fd >= 0)
		close(err.own_fd);
	err.known = true;
	err.dev = st.st_dev;
	err.ino = st.st_ino;
	err.type = st.st_mode & S_IFMT;
	err.cut = false;
	err.own_fd = err.type == S_IFIFO || err.type == S_IFCHR
			     ? open("/proc/self/fd/2",
				    O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)
			     : -1;
}

/* Where the description is shared. Room for PIPE_BUF bytes is what POLLOUT means of a pipe: a
 * write of no more does not wait, unless another writer takes the room first. */
static bool stderr_has_room(void)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&fd, 1, 0) != 0;
}

static ssize_t stderr_write(const struct iovec *parts, int n)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)n};
	int fd = err.own_fd >= 0 ? err.own_fd : STDERR_FILENO;
	ssize_t done;

	do
		if (err.type == S_IFSOCK)
			done = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		else if (n == 1)
			done = write(fd, parts->iov_base, parts->iov_len);
		else
			done = writev(fd, parts, n);
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : done;
}

int log_sink_stderr(const char *line, size_t len)
{
	struct iovec parts[3];
	size_t whole = 0;
	ssize_t done;
	int n = 0;
	bool shared;

	stderr_look();
	shared = err.own_fd < 0 && (err.type == S_IFIFO || err.type == S_IFCHR);
	if (shared && !stderr_has_room())
		return -EAGAIN;
	/* One call for one line, so that lines of several writers do not mix. */
	if (err.cut)
		parts[n++] = (struct iovec){"\n", 1};
	if (shared && len + 1 > PIPE_BUF) {
		parts[n++] = (struct iovec){(void *)line, PIPE_BUF - 2};
		parts[n++] = (struct iovec){"\n", 1};
	} else {
		parts[n++] = (struct iovec){(void *)line, len};
	}
	for (int i = 0; i < n; i++)
		whole += parts[i].iov_len;
	done = stderr_write(parts, n);
	if (done < 0)
		return (int)done;
	err.cut = (size_t)done < whole;
	return err.cut ? -EAGAIN : 0;
}

bool log_sink_has_journal(void)
{
	return access(JOURNAL_SOCKET, W_OK) == 0;
}

/* sd_journal_sendv() does the same and waits while the journal's queue is full. Entries here
 * are far below what a datagram holds, and have no newline.
 * Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/ */
int log_sink_journal(const struct iovec *fields, int n)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
	struct iovec parts[2 * LOG_SINK_FIELDS];
	struct msghdr msg = {
		.msg_name = &addr,
		.msg_namelen = sizeof(addr),
		.msg_iov = parts,
		.msg_iovlen = 2 * (size_t)n,
	};

	if (n > LOG_SINK_FIELDS)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		parts[2 * i] = fields[i];
		parts[2 * i + 1] = (struct iovec){"\n", 1};
	}
	if (journal_fd < 0)
		journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (journal_fd < 0)
		return -errno;
	if (sendmsg(journal_fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return -errno;
	return 0;
}
