/* SPDX-License-Identifier: MIT */
/*
 * A descriptor lies in the store until fdstore_remove(), until the manager sees the other end of a
 * socket hang up, or until the unit is stopped (restarted: it stays). So one that was taken need
 * not be pushed again. The manager drops what is beyond FileDescriptorStoreMax= and tells nobody,
 * which is why this side counts.
 *
 *   start:  fdstore_init(), fdstore_take() by name, fdstore_drop() what nobody took
 *   later:  fdstore_push(), fdstore_remove(), fdstore_leave(), fdstore_barrier()
 */
#include "daemon/fdstore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/notify.h"

/* $FDSTORE, since systemd 254; before, what the unit sets beside FileDescriptorStoreMax=. */
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
		r = error_origin(-ENOMEM);
	for (int i = 0; i < n; i++) {
		struct fdstore_entry *e;

		if (!r && !is_listener(names[i])) {
			e = &store->entries[store->n_entries++];
			e->fd = SD_LISTEN_FDS_START + i;
			e->cut = snprintf(e->name, sizeof(e->name), "%s", names[i]) >=
				 (int)sizeof(e->name);
		}
		free(names[i]);
	}
	free(names);
	if (store->n_entries)
		qsort(store->entries, store->n_entries, sizeof(*store->entries),
		      by_number);
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
			return error_origin(-EEXIST);
		found = e;
	}
	return found ? entry_take(found) : error_origin(-ENOENT);
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
	return error_origin(-ENOENT);
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

/* Return: 0, also without a manager; -EAGAIN: store->no_wait, and its queue is full; -errno. */
static int tell(const struct fdstore *store, const char *text, int fd)
{
	int r = notify_send(text, fd, !store->no_wait);

	return r < 0 ? r : 0;
}

/* Forgets all of a name: the manager takes out all that have it. */
static void entries_remove(struct fdstore *store, const char *name)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < store->n_entries; i++)
		if (store->entries[i].cut || strcmp(store->entries[i].name, name) != 0)
			store->entries[n++] = store->entries[i];
	store->n_entries = n;
}

int fdstore_push(struct fdstore *store, const char *name, int fd)
{
	char text[FDSTORE_NAME_MAX + 32];
	struct fdstore_entry *grown;
	int r;

	if (!name_is_good(name) || fd < 0)
		return error_origin(-EINVAL);
	if (!fdstore_is_there(store))
		return 0;
	if (store->n_entries >= store->max)
		return FDSTORE_FULL;
	grown = reallocarray(store->entries, store->n_entries + 1, sizeof(*grown));
	if (!grown)
		return error_origin(-ENOMEM);
	store->entries = grown;
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	r = tell(store, text, fd);
	if (r)
		return r;
	grown = &store->entries[store->n_entries++];
	*grown = (struct fdstore_entry){.fd = -1};
	strcpy(grown->name, name);
	return 0;
}

int fdstore_remove(struct fdstore *store, const char *name)
{
	char text[FDSTORE_NAME_MAX + 32];
	int r;

	if (!name_is_good(name))
		return error_origin(-EINVAL);
	for (uint32_t i = 0; i < store->n_entries; i++)
		if (store->entries[i].fd >= 0 && !store->entries[i].cut &&
		    !strcmp(store->entries[i].name, name))
			close(entry_take(&store->entries[i]));
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	r = tell(store, text, -1);
	if (r)
		return r;
	entries_remove(store, name);
	return 0;
}

void fdstore_leave(struct fdstore *store, const char *name)
{
	if (fdstore_remove(store, name))
		entries_remove(store, name);
}

uint32_t fdstore_drop(struct fdstore *store, char *ret_name)
{
	uint32_t n = 0, i = 0;

	while (i < store->n_entries) {
		struct fdstore_entry *e = &store->entries[i];

		if (e->fd < 0) {
			i++;
			continue;
		}
		memcpy(ret_name, e->name, sizeof(e->name));
		close(entry_take(e));
		n++;
		/* A cut name removes nothing, and comes back the next time. */
		if (e->cut || fdstore_remove(store, ret_name))
			i++;
		else
			i = 0;
	}
	return n;
}

int fdstore_barrier(struct fdstore *store, uint64_t timeout_ns)
{
	int r;

	if (!fdstore_is_there(store))
		return 0;
	r = sd_notify_barrier(0, timeout_ns / 1000);
	return r < 0 ? r : 0;
}
