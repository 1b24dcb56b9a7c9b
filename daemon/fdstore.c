/* SPDX-License-Identifier: MIT */
#include "daemon/fdstore.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/listener.h"

/* $FDSTORE, or what the unit says where the manager is older. */
static uint32_t store_max(void)
{
	const char *text = getenv("FDSTORE");
	unsigned long max;
	char *end;

	if (!getenv("NOTIFY_SOCKET"))
		return 0;
	if (!text)
		text = getenv("KVD_FDSTORE_MAX");
	if (!text || *text < '0' || *text > '9')
		return 0;
	errno = 0;
	max = strtoul(text, &end, 10);
	return errno || *end || max > INT32_MAX ? 0 : (uint32_t)max;
}

static bool is_listener(const char *name)
{
	return strcmp(name, LISTENER_FD_NAME) == 0 ||
	       strcmp(name, LISTENER_ADMIN_FD_NAME) == 0;
}

/* The digits at the end of a name; 0: none. */
static uint64_t name_number(const char *name)
{
	size_t len = strlen(name);

	while (len && name[len - 1] >= '0' && name[len - 1] <= '9')
		len--;
	return strtoull(name[len] ? name + len : "0", NULL, 10);
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = name_number(((const struct fdstore_entry *)a)->name),
		 y = name_number(((const struct fdstore_entry *)b)->name);

	return x < y ? -1 : x > y;
}

int fdstore_init(struct fdstore *store)
{
	char **names = NULL;
	int n, r = 0;

	*store = (struct fdstore){.max = store_max()};
	n = sd_listen_fds_with_names(0, &names);
	if (n <= 0)
		return n;
	store->entries = calloc((size_t)n, sizeof(*store->entries));
	if (!store->entries)
		r = -ENOMEM;
	for (int i = 0; i < n; i++) {
		struct fdstore_entry *e;

		if (!r && !is_listener(names[i])) {
			e = &store->entries[store->n_entries++];
			e->fd = SD_LISTEN_FDS_START + i;
			snprintf(e->name, sizeof(e->name), "%s", names[i]);
		}
		free(names[i]);
	}
	free(names);
	if (store->n_entries)
		qsort(store->entries, store->n_entries, sizeof(*store->entries),
		      by_number);
	store->n_stored = store->n_entries;
	return r;
}

void fdstore_deinit(struct fdstore *store)
{
	for (uint32_t i = 0; i < store->n_entries; i++)
		if (store->entries[i].fd >= 0)
			close(store->entries[i].fd);
	free(store->entries);
	*store = (struct fdstore){0};
}

static int entry_take(struct fdstore_entry *e)
{
	int fd = e->fd;

	e->fd = -1;
	return fd;
}

int fdstore_take(struct fdstore *store, const char *name)
{
	struct fdstore_entry *found = NULL;

	for (uint32_t i = 0; i < store->n_entries; i++) {
		struct fdstore_entry *e = &store->entries[i];

		if (e->fd < 0 || strcmp(e->name, name) != 0)
			continue;
		if (found)
			return -EEXIST;
		found = e;
	}
	return found ? entry_take(found) : -ENOENT;
}

int fdstore_take_next(struct fdstore *store, const char *const *prefixes, char *ret_name)
{
	for (uint32_t i = 0; i < store->n_entries; i++) {
		struct fdstore_entry *e = &store->entries[i];

		if (e->fd < 0)
			continue;
		for (size_t k = 0; prefixes[k]; k++)
			if (!strncmp(e->name, prefixes[k], strlen(prefixes[k]))) {
				memcpy(ret_name, e->name, sizeof(e->name));
				return entry_take(e);
			}
	}
	return -ENOENT;
}

uint32_t fdstore_drop(struct fdstore *store, char *ret_name)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < store->n_entries; i++) {
		struct fdstore_entry *e = &store->entries[i];

		if (e->fd < 0)
			continue;
		memcpy(ret_name, e->name, sizeof(e->name));
		close(entry_take(e));
		/* a cut name removes nothing, and comes back the next time */
		(void)fdstore_remove(store, e->name);
		n++;
	}
	return n;
}

static bool name_is_good(const char *name)
{
	size_t len = strlen(name);

	if (!len || len >= FDSTORE_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == ':')
			return false;
	return true;
}

/* The address in $NOTIFY_SOCKET. Return: 0; -ENOENT: none; -EINVAL: no such socket. */
static int manager_address(struct sockaddr_un *addr, socklen_t *ret_len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;

	if (!len)
		return -ENOENT;
	if ((*path != '/' && *path != '@') || len < 2 || len >= sizeof(addr->sun_path))
		return -EINVAL;
	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(addr->sun_path, path, len);
	if (*path == '@')
		addr->sun_path[0] = '\0';
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len +
			       (*path == '/'));
	return 0;
}

/*
 * As sd_pid_notify_with_fds(), which would wait as long as the manager's queue is full. @fd:
 * -1: none. Return: 0, also without a manager; -EAGAIN: store->no_wait, and the queue is
 * full; -errno.
 */
static int tell(const struct fdstore *store, const char *text, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct sockaddr_un addr;
	struct iovec iov = {.iov_base = (void *)text, .iov_len = strlen(text)};
	struct msghdr msg = {.msg_name = &addr, .msg_iov = &iov, .msg_iovlen = 1};
	int flags = MSG_NOSIGNAL | (store->no_wait ? MSG_DONTWAIT : 0), sock;
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
		return -errno;
	if (sendmsg(sock, &msg, flags) < 0)
		r = -errno;
	close(sock);
	return r;
}

int fdstore_push(struct fdstore *store, const char *name, int fd)
{
	char text[FDSTORE_NAME_MAX + 32];
	int r;

	if (!name_is_good(name) || fd < 0)
		return -EINVAL;
	if (!fdstore_is_there(store))
		return 0;
	if (store->n_stored >= store->max)
		return FDSTORE_FULL;
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	r = tell(store, text, fd);
	if (r)
		return r;
	store->n_stored++;
	return 0;
}

int fdstore_remove(struct fdstore *store, const char *name)
{
	char text[FDSTORE_NAME_MAX + 32];
	int r;

	if (!name_is_good(name))
		return -EINVAL;
	for (uint32_t i = 0; i < store->n_entries; i++)
		if (store->entries[i].fd >= 0 && !strcmp(store->entries[i].name, name))
			close(entry_take(&store->entries[i]));
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	r = tell(store, text, -1);
	if (r)
		return r;
	if (store->n_stored)
		store->n_stored--;
	return 0;
}

void fdstore_leave(struct fdstore *store, const char *name)
{
	if (fdstore_remove(store, name) && store->n_stored)
		store->n_stored--;
}

int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns)
{
	int r;

	if (!fdstore_is_there(store))
		return 0;
	r = sd_notify_barrier(0, timeout_ns / 1000);
	return r < 0 ? r : 0;
}
