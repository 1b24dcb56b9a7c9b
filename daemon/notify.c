/* SPDX-License-Identifier: MIT */
#include "daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"

#define STATUS_MAX 512

/* Still to be sent. An empty status says nothing new. */
static struct {
	bool ready, watchdog;
	char status[STATUS_MAX];
} owed;

/* The address in $NOTIFY_SOCKET. Return: 0; -ENOENT: none; -EINVAL: no such socket. */
static int manager_address(struct sockaddr_un *addr, socklen_t *ret_len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;

	if (!len)
		return error_origin(-ENOENT);
	if ((*path != '/' && *path != '@') || len < 2 || len >= sizeof(addr->sun_path))
		return error_origin(-EINVAL);
	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(addr->sun_path, path, len);
	if (*path == '@')
		addr->sun_path[0] = '\0';
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len +
			       (*path == '/'));
	return 0;
}

/* As sd_pid_notify_with_fds(), which always waits for room. */
int notify_send(const char *text, int fd, bool wait)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct sockaddr_un addr;
	struct iovec iov = {.iov_base = (void *)text, .iov_len = strlen(text)};
	struct msghdr msg = {.msg_name = &addr, .msg_iov = &iov, .msg_iovlen = 1};
	int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT), sock;
	int r = manager_address(&addr, &msg.msg_namelen);

	if (r)
		return r == -ENOENT ? 0 : r;
	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return error_origin(-errno);
	r = sendmsg(sock, &msg, flags) < 0 ? error_origin(-errno) : 1;
	close(sock);
	return r;
}

bool notify_pending(void)
{
	return owed.ready || owed.watchdog || *owed.status;
}

int notify_flush(bool alive)
{
	char text[STATUS_MAX + 64];
	int r;

	owed.watchdog = owed.watchdog && alive;
	if (!notify_pending())
		return 0;
	snprintf(text, sizeof(text), "%s%s%s%s", owed.ready ? "READY=1\n" : "",
		 owed.watchdog ? "WATCHDOG=1\n" : "", *owed.status ? "STATUS=" : "",
		 owed.status);
	if (text[strlen(text) - 1] == '\n')
		text[strlen(text) - 1] = '\0';
	r = notify_send(text, -1, false);
	if (r != -EAGAIN) {
		owed.ready = owed.watchdog = false;
		*owed.status = '\0';
	}
	return r;
}

/* Newlines become spaces, so that a status cannot smuggle in a second field. */
static void set_status(const char *format, va_list args)
{
	(void)vsnprintf(owed.status, sizeof(owed.status), format, args);
	for (char *p = owed.status; *p; p++)
		if (*p == '\n')
			*p = ' ';
}

int notify_ready(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_status(format, args);
	va_end(args);
	owed.ready = true;
	return notify_flush(true);
}

int notify_status(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_status(format, args);
	va_end(args);
	return notify_flush(true);
}

int notify_watchdog(void)
{
	owed.watchdog = true;
	return notify_flush(true);
}

/* With MONOTONIC_USEC= and READY=1 behind it Type=notify and Type=notify-reload both understand
 * it. Without it a reload is less exact, and without STOPPING=1 a stop is silent. */
int notify_reloading(void)
{
	char text[64];
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
		 (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000);
	return notify_send(text, -1, false);
}

int notify_stopping(void)
{
	return notify_send("STOPPING=1", -1, false);
}

uint64_t notify_watchdog_period_ns(void)
{
	uint64_t us;

	if (sd_watchdog_enabled(0, &us) <= 0 || us > UINT64_MAX / 1000)
		return 0;
	return us * 1000 / 2;
}
