/* SPDX-License-Identifier: MIT */
/* See host_limits.h. */
#include "daemon/host_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/log.h"

/* Paths of control groups nest, but not endlessly. */
#define PATH_BYTES 1024

uint64_t host_limits_raise_files(void)
{
	struct rlimit limit;

	/* where a filter refuses to tell, accept() says when it is reached */
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return UINT64_MAX;
	if (limit.rlim_cur < limit.rlim_max) {
		rlim_t former = limit.rlim_cur;

		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			limit.rlim_cur = former;
	}
	return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

/* Return: bytes read, with a NUL behind them; -errno. */
static ssize_t read_text(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return error_origin(-errno);
	do
		n = read(fd, buf, size - 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		n = error_origin(-errno);
	else
		buf[n] = '\0';
	close(fd);
	return n;
}

/*
 * Version 2 is the line "0::/kvd.slice/kvd.service", version 1 "4:cpu,cpuacct:/path": a list of
 * controllers between the colons. In a container with the host's names the path may not exist
 * below the mount; the walk upwards then ends at the container's own group.
 */
static bool line_is_of(const char *line, const char *controller)
{
	const char *list = strchr(line, ':'), *end = list ? strchr(list + 1, ':') : NULL;
	size_t len = strlen(controller);

	if (!end)
		return false;
	if (!len)
		return end == list + 1;
	for (const char *at = list + 1; at < end; at += strcspn(at, ",:") + 1)
		if (!strncmp(at, controller, len) && (at[len] == ',' || at[len] == ':'))
			return true;
	return false;
}

/* The own group of a controller of version 1; of version 2: "". */
static int own_group(const char *root, const char *controller, char *group, size_t size)
{
	char path[PATH_BYTES], text[4096], *line, *rest;
	ssize_t n;

	if ((size_t)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root) >=
	    sizeof(path))
		return error_origin(-ENAMETOOLONG);
	n = read_text(path, text, sizeof(text));
	if (n < 0)
		return (int)n;
	for (rest = text; (line = strsep(&rest, "\n"));) {
		const char *name = strchr(line, '/');

		if (!name || !line_is_of(line, controller))
			continue;
		if (strlen(name) >= size)
			return error_origin(-ENAMETOOLONG);
		strcpy(group, name);
		return 0;
	}
	return error_origin(-ENOENT);
}

/* A file of one group. Return: as read_text(). */
static ssize_t read_group(const char *root, const char *controller, const char *group,
			  const char *file, char *text, size_t size)
{
	char path[2 * PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s%s%s/%s", root,
		       *controller ? "/" : "", controller, group, file);
	return read_text(path, text, size);
}

/* Return: UINT64_MAX for "max", -1, and what is no number. */
static uint64_t parse_limit(const char *text)
{
	unsigned long long n;
	char *end;

	if (*text < '0' || *text > '9')
		return UINT64_MAX;
	errno = 0;
	n = strtoull(text, &end, 10);
	return errno ? UINT64_MAX : n;
}

/* What one group permits, in a unit of its own; UINT64_MAX: all. */
typedef uint64_t group_limit_fn(const char *root, const char *group);

static uint64_t memory_v2(const char *root, const char *group)
{
	char text[64];

	if (read_group(root, "", group, "memory.max", text, sizeof(text)) <= 0)
		return UINT64_MAX;
	return parse_limit(text);
}

/* Without a limit it is the largest multiple of the page size. */
static uint64_t memory_v1(const char *root, const char *group)
{
	char text[64];
	uint64_t bytes;

	if (read_group(root, "memory", group, "memory.limit_in_bytes", text,
		       sizeof(text)) <= 0)
		return UINT64_MAX;
	bytes = parse_limit(text);
	return bytes >= INT64_MAX - 0xffff ? UINT64_MAX : bytes;
}

/* More threads than that wait at each barrier for one that the kernel throttles. */
static uint64_t whole_cpus(uint64_t quota, uint64_t period)
{
	return quota == UINT64_MAX || period == UINT64_MAX || !period ? UINT64_MAX
								      : quota / period;
}

/* "50000 100000": microseconds of CPU time in each period; or "max 100000". */
static uint64_t cpus_v2(const char *root, const char *group)
{
	char text[64];
	const char *period;

	if (read_group(root, "", group, "cpu.max", text, sizeof(text)) <= 0)
		return UINT64_MAX;
	period = strchr(text, ' ');
	return period ? whole_cpus(parse_limit(text), parse_limit(period + 1))
		      : UINT64_MAX;
}

static uint64_t cpus_v1(const char *root, const char *group)
{
	char quota[64], period[64];

	if (read_group(root, "cpu", group, "cpu.cfs_quota_us", quota, sizeof(quota)) <=
		    0 ||
	    read_group(root, "cpu", group, "cpu.cfs_period_us", period, sizeof(period)) <=
		    0)
		return UINT64_MAX;
	return whole_cpus(parse_limit(quota), parse_limit(period));
}

/*
 * Lowers *least to what the own group or one above it permits. A machine may have controllers
 * of both versions, so the caller asks for each. @where, @size: the group that sets it.
 */
static int walk_up(const char *root, const char *controller, group_limit_fn *limit,
		   uint64_t *least, char *where, size_t size)
{
	char group[PATH_BYTES], *slash;
	int r = own_group(root, controller, group, sizeof(group));

	if (r)
		return r;
	do {
		uint64_t here = limit(root, strcmp(group, "/") != 0 ? group : "");

		if (here < *least) {
			*least = here;
			(void)snprintf(where, size, "%s", *group ? group : "/");
		}
		slash = strrchr(group, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
	return 0;
}

int host_limits_memory(const char *root, uint64_t *ret_bytes, char *where,
		       size_t where_size)
{
	uint64_t least = UINT64_MAX;
	int r, r1;

	where[0] = '\0';
	r = walk_up(root, "", memory_v2, &least, where, where_size);
	r1 = walk_up(root, "memory", memory_v1, &least, where, where_size);
	if (r && r1)
		return r;
	*ret_bytes = least;
	return 0;
}

uint32_t host_limits_cpus(const char *root, uint32_t n_usable)
{
	uint64_t least = UINT64_MAX;
	char where[16];

	(void)walk_up(root, "", cpus_v2, &least, where, sizeof(where));
	(void)walk_up(root, "cpu", cpus_v1, &least, where, sizeof(where));
	if (n_usable > least)
		n_usable = (uint32_t)least;
	return n_usable ? n_usable : 1;
}
