/* SPDX-License-Identifier: MIT */
#include "daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#define STATUS_MAX 512

static int notify_with_status(const char *state, const char *format, va_list args)
{
	char status[STATUS_MAX];
	int n = vsnprintf(status, sizeof(status), format, args);

	if (n < 0)
		return -EINVAL;
	for (char *p = status; *p; p++)
		if (*p == '\n')
			*p = ' ';
	return sd_notifyf(0, "%sSTATUS=%s", state, status);
}

int notify_ready(const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = notify_with_status("READY=1\n", format, args);
	va_end(args);
	return r;
}

int notify_status(const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = notify_with_status("", format, args);
	va_end(args);
	return r;
}

int notify_reloading(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
			  (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000);
}

int notify_stopping(void)
{
	return sd_notify(0, "STOPPING=1");
}

uint64_t notify_watchdog_period_ns(void)
{
	uint64_t us;

	if (sd_watchdog_enabled(0, &us) <= 0 || us > UINT64_MAX / 1000)
		return 0;
	return us * 1000 / 2;
}

int notify_watchdog(void)
{
	return sd_notify(0, "WATCHDOG=1");
}
