/* SPDX-License-Identifier: MIT */
/* A service manager as far as messages go: the socket that $NOTIFY_SOCKET names. */
#ifndef KVD_TESTS_UNIT_DAEMON_MANAGER_H
#define KVD_TESTS_UNIT_DAEMON_MANAGER_H

#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int manager;

static inline void manager_open(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(addr);
	char name[sizeof(addr.sun_path) + 1];

	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(manager, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&addr, sizeof(sa_family_t)), 0);
	ck_assert_int_eq(getsockname(manager, (struct sockaddr *)&addr, &len), 0);
	/* An abstract address is written with an @ for its NUL. */
	snprintf(name, sizeof(name), "@%.*s",
		 (int)(len - offsetof(struct sockaddr_un, sun_path) - 1),
		 addr.sun_path + 1);
	setenv("NOTIFY_SOCKET", name, 1);
}

static inline void manager_close(void)
{
	unsetenv("NOTIFY_SOCKET");
	close(manager);
}

#endif
