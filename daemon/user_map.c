/* SPDX-License-Identifier: MIT */
/* See user_map.h. Formats: user_namespaces(7). */
#include "daemon/user_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"

/* The kernel's default, for where /proc/sys is not to be seen. */
#define OVERFLOW_ID 65534

/* All but (uint32_t)-1, which is no id. */
#define N_IDS UINT64_C(4294967295)

/* The most lines that the kernel permits, each of three numbers. */
#define MAP_BYTES (340 * 36)

bool user_map_is_partial(const char *text)
{
	uint64_t n = 0;

	while (*text) {
		char *end;

		strtoull(text, &end, 10);
		strtoull(end, &end, 10);
		n += strtoull(end, &end, 10);
		if (end == text)
			break;
		text = end + strspn(end, " \n");
	}
	return n < N_IDS;
}

/* Return: bytes read into @text, which ends with a 0; -errno. */
static ssize_t read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n;

	if (fd < 0)
		return error_origin(-errno);
	while (len < size - 1 && (n = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	close(fd);
	text[len] = '\0';
	return (ssize_t)len;
}

static bool is_partial(const char *path)
{
	char text[MAP_BYTES];

	return read_text(path, text, sizeof(text)) >= 0 && user_map_is_partial(text);
}

static uint32_t overflow_id(const char *path)
{
	char text[16];

	if (read_text(path, text, sizeof(text)) <= 0)
		return OVERFLOW_ID;
	return (uint32_t)strtoul(text, NULL, 10);
}

void user_map_read(struct user_map *map)
{
	*map = (struct user_map){
		.hidden_uids = is_partial("/proc/self/uid_map"),
		.hidden_gids = is_partial("/proc/self/gid_map"),
		.overflow_uid = overflow_id("/proc/sys/kernel/overflowuid"),
		.overflow_gid = overflow_id("/proc/sys/kernel/overflowgid"),
	};
}
