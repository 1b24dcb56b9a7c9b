/* SPDX-License-Identifier: MIT */
/* See host_limits.h. */
#include "daemon/host_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Paths of control groups nest, but not endlessly. */
#define PATH_BYTES 1024

uint64_t host_limits_raise_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 0;
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
		return -errno;
	do
		n = read(fd, buf, size - 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		n = -errno;
	else
		buf[n] = '\0';
	close(fd);
	return n;
}

/* "0::/kvd.slice/kvd.service" in /proc/self/cgroup is the unified hierarchy. */
static int own_group(const char *root, char *group, size_t size)
{
	char path[PATH_BYTES], text[4096], *line, *end;
	ssize_t n;

	if ((size_t)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root) >=
	    sizeof(path))
		return -ENAMETOOLONG;
	n = read_text(path, text, sizeof(text));
	if (n < 0)
		return (int)n;
	line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (!line)
		return -ENOENT;
	line = strchr(line, '/');
	end = line ? strchr(line, '\n') : NULL;
	if (!end || (size_t)(end - line) >= size)
		return -ENAMETOOLONG;
	*end = '\0';
	strcpy(group, line);
	return 0;
}

static uint64_t group_limit(const char *root, const char *group)
{
	char path[2 * PATH_BYTES], text[64], *end;
	unsigned long long bytes;

	(void)snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/memory.max", root, group);
	if (read_text(path, text, sizeof(text)) <= 0)
		return UINT64_MAX;
	errno = 0;
	bytes = strtoull(text, &end, 10);
	/* "max", or something that is no number. */
	return errno || end == text ? UINT64_MAX : bytes;
}

int host_limits_memory(const char *root, uint64_t *ret_bytes, char *where,
		       size_t where_size)
{
	char group[PATH_BYTES], *slash;
	uint64_t least = UINT64_MAX;
	int r = own_group(root, group, sizeof(group));

	if (r)
		return r;
	where[0] = '\0';
	do {
		uint64_t bytes = group_limit(root, group);

		if (bytes < least) {
			least = bytes;
			(void)snprintf(where, where_size, "%s", *group ? group : "/");
		}
		slash = strrchr(group, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
	*ret_bytes = least;
	return 0;
}
