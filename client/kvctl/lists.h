/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_LISTS_H
#define KVD_CLIENT_KVCTL_LISTS_H

/* Lists of unknown length from the daemon. A list keeps its room when it is fetched again. Uses
 * the installed headers only. */
#include <kvclient.h>
#include <stddef.h>

/* @items: [n] of the kind that was fetched, room for cap; all 0 at first. */
struct list {
	void *items;
	size_t n;
	size_t cap;
};

/* Of struct kvd_client_info, kvd_quota_info, kvd_prefix_info. Return: 0, or the library's error
 * or -ENOMEM with n = 0. */
int list_clients(struct list *list, struct kvc_client *client);
int list_users(struct list *list, struct kvc_client *client);
int list_prefixes(struct list *list, struct kvc_client *client);

void list_deinit(struct list *list);

#endif
