/* SPDX-License-Identifier: MIT */
#include "daemon/fdstore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int fdstore_take_prefix(struct fdstore *store, const char *prefix, char *ret_name)
{
	for (uint32_t i = 0; i < store->n_entries; i++) {
		struct fdstore_entry *e = &store->entries[i];

		if (e->fd < 0 || strncmp(e->name, prefix, strlen(prefix)) != 0)
			continue;
		memcpy(ret_name, e->name, sizeof(e->name));
		return entry_take(e);
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
	r = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
	if (r < 0)
		return r;
	store->n_stored++;
	return 0;
}

int fdstore_remove(struct fdstore *store, const char *name)
{
	int r;

	if (!name_is_good(name))
		return -EINVAL;
	for (uint32_t i = 0; i < store->n_entries; i++)
		if (store->entries[i].fd >= 0 && !strcmp(store->entries[i].name, name))
			close(entry_take(&store->entries[i]));
	r = sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
	if (r < 0)
		return r;
	if (store->n_stored)
		store->n_stored--;
	return 0;
}

int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns)
{
	int r;

	if (!fdstore_is_there(store))
		return 0;
	r = sd_notify_barrier(0, timeout_ns / 1000);
	return r < 0 ? r : 0;
}
