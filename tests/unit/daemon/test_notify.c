/* SPDX-License-Identifier: MIT */
/* What arrives at a service manager, which is a socket of the test. */
#include "daemon/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "tests/unit/daemon/manager.h"
#include "tests/unit/suite.h"

static char heard[2048];

static void setup(void)
{
	manager_open();
}

static void teardown(void)
{
	manager_close();
}

static const char *listen_once(void)
{
	ssize_t n = recv(manager, heard, sizeof(heard) - 1, MSG_DONTWAIT);

	ck_assert_int_ge(n, 0);
	heard[n] = '\0';
	return heard;
}

START_TEST(states)
{
	ck_assert_int_eq(notify_ready("%d model", 1), 1);
	ck_assert_str_eq(listen_once(), "READY=1\nSTATUS=1 model");
	ck_assert_int_eq(notify_status("%s", "a\nREADY=1"), 1);
	ck_assert_str_eq(listen_once(), "STATUS=a READY=1");
	ck_assert_int_eq(notify_stopping(), 1);
	ck_assert_str_eq(listen_once(), "STOPPING=1");
	ck_assert_int_eq(notify_watchdog(), 1);
	ck_assert_str_eq(listen_once(), "WATCHDOG=1");
}
END_TEST

START_TEST(reloading_has_its_time)
{
	struct timespec ts;
	uint64_t before, after, said;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	before = (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
	ck_assert_int_eq(notify_reloading(), 1);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	after = (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
	listen_once();
	ck_assert_ptr_eq(strstr(heard, "RELOADING=1\nMONOTONIC_USEC="), heard);
	said = strtoull(strrchr(heard, '=') + 1, NULL, 10);
	ck_assert_uint_ge(said, before);
	ck_assert_uint_le(said, after);
}
END_TEST

/* A manager that does not read: nothing waits, and what must not be lost comes later. */
START_TEST(a_full_queue_holds_nobody_up)
{
	int n = 0;

	ck_assert(!notify_pending());
	while (notify_watchdog() == 1)
		ck_assert_int_lt(++n, 100000);
	ck_assert_int_eq(notify_status("a"), -EAGAIN);
	ck_assert_int_eq(notify_ready("b %d", 1), -EAGAIN);
	ck_assert_int_eq(notify_reloading(), -EAGAIN);
	ck_assert_int_eq(notify_stopping(), -EAGAIN);
	ck_assert(notify_pending());
	ck_assert_int_eq(notify_flush(true), -EAGAIN);
	for (int i = 0; i < n; i++)
		ck_assert_str_eq(listen_once(), "WATCHDOG=1");
	ck_assert_int_eq(notify_flush(true), 1);
	ck_assert_str_eq(listen_once(), "READY=1\nWATCHDOG=1\nSTATUS=b 1");
	ck_assert(!notify_pending());
	ck_assert_int_eq(notify_flush(true), 0);
	ck_assert_int_lt(recv(manager, heard, sizeof(heard), MSG_DONTWAIT), 0);
}
END_TEST

/* A ping that comes late says no more than one that comes in time. */
START_TEST(a_late_ping_does_not_lie)
{
	int n = 0;

	while (notify_watchdog() == 1)
		n++;
	ck_assert_int_eq(notify_flush(false), 0);
	ck_assert(!notify_pending());
	while (n--)
		listen_once();
	ck_assert_int_eq(notify_flush(true), 0);
}
END_TEST

START_TEST(without_a_manager)
{
	unsetenv("NOTIFY_SOCKET");
	ck_assert_int_eq(notify_ready("x"), 0);
	ck_assert_int_eq(notify_status("x"), 0);
	ck_assert_int_eq(notify_reloading(), 0);
	ck_assert_int_eq(notify_stopping(), 0);
	ck_assert_int_eq(notify_watchdog(), 0);
}
END_TEST

START_TEST(watchdog_period)
{
	char pid[16];

	unsetenv("WATCHDOG_USEC");
	ck_assert_uint_eq(notify_watchdog_period_ns(), 0);
	setenv("WATCHDOG_USEC", "10000000", 1);
	ck_assert_uint_eq(notify_watchdog_period_ns(), UINT64_C(5000000000));
	/* Meant for another process. */
	setenv("WATCHDOG_PID", "1", 1);
	ck_assert_uint_eq(notify_watchdog_period_ns(), 0);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("WATCHDOG_PID", pid, 1);
	ck_assert_uint_eq(notify_watchdog_period_ns(), UINT64_C(5000000000));
	setenv("WATCHDOG_USEC", "soon", 1);
	ck_assert_uint_eq(notify_watchdog_period_ns(), 0);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("notify");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, states);
	tcase_add_test(tcase, reloading_has_its_time);
	tcase_add_test(tcase, a_full_queue_holds_nobody_up);
	tcase_add_test(tcase, a_late_ping_does_not_lie);
	tcase_add_test(tcase, without_a_manager);
	tcase_add_test(tcase, watchdog_period);
	return run_case("notify", tcase);
}
