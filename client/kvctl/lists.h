/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_LISTS_H
#define KVD_CLIENT_KVCTL_LISTS_H

/*
 * Lists of unknown length from the daemon: clients, users, prefixes. More entries may come
 * between asking how many there are and asking for them, so it is asked until all fit. A
 * list keeps its room when it is fetched again. Uses the installed headers only.
 */
#include <kvclient.h>
#include <stddef.h>

/* @items: [n] of the kind that was fetched, room for cap; all 0 to begin with. */
struct list {
	void *items;
	size_t n;
	size_t cap;
};

/* Return: 0, the library's error, or -ENOMEM; then n is 0. */
int list_clients(struct list *list,
		 struct kvc_client *client);                  /* struct kvd_client_info */
int list_users(struct list *list, struct kvc_client *client); /* struct kvd_quota_info */
int list_prefixes(struct list *list,
		  struct kvc_client *client); /* struct kvd_prefix_info */

void list_deinit(struct list *list);

#endif
