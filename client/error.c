/* SPDX-License-Identifier: MIT */
/*
 * Error texts. The detail of a failure is kept per thread, so that it stays put
 * while other threads use the same client, and so that a failed kvc_connect(),
 * which leaves no client, has a place for it.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/internal.h"
#include "ipc/status.h"

static __thread char message[512];

unsigned kvc_version(void)
{
	return KVC_VERSION_MAJOR << 16 | KVC_VERSION_MINOR << 8 | KVC_VERSION_PATCH;
}

const char *kvc_strerror(int err)
{
	return status_text(err);
}

const char *kvc_errname(int err)
{
	return status_name(err);
}

const char *kvc_errmsg(void)
{
	return message;
}

int kvc_fail(int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	return rc;
}

int kvc_fail_status(int rc, uint64_t detail)
{
	if (rc == -ECONNRESET)
		return kvc_fail(rc, "kvd closed the connection; see journalctl -u kvd, "
				    "then connect again");
	if (rc == -EOWNERDEAD)
		return kvc_fail(rc, "this connection belongs to the process before "
				    "fork(); connect again");
	if (rc == KVD_E_CONTEXT && detail)
		return kvc_fail(rc, "%s (%llu tokens)", status_text(rc),
				(unsigned long long)detail);
	if (rc == KVD_E_TEXT)
		return kvc_fail(rc, "%s (at byte %llu)", status_text(rc),
				(unsigned long long)detail);
	if (rc == KVD_E_TOKEN)
		return kvc_fail(rc, "%s (at index %llu)", status_text(rc),
				(unsigned long long)detail);
	if (rc == -EINVAL)
		return kvc_fail(rc,
				"kvd refuses a value that this library does not check");
	if (rc == -E2BIG && detail)
		return kvc_fail(rc, "the input is larger than kvd takes (limit %llu)",
				(unsigned long long)detail);
	if (detail && (rc == KVD_E_QUOTA || rc == KVD_E_POOL || rc == KVD_E_BUSY))
		return kvc_fail(rc, "%s (limit %llu)", status_text(rc),
				(unsigned long long)detail);
	return kvc_fail(rc, "%s", status_text(rc));
}

int kvc_fail_usage(int rc, const struct kvd_cqe_usage *usage)
{
	bool of_tokens = rc == KVD_E_CONTEXT || rc == KVD_E_POOL;

	if (!of_tokens || !usage->prompt_tokens || !usage->detail)
		return kvc_fail_status(rc, usage->detail);
	return kvc_fail(rc, "%s (%u tokens; %llu is the limit)", status_text(rc),
			usage->prompt_tokens, (unsigned long long)usage->detail);
}
