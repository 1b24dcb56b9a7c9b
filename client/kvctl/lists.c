/* SPDX-License-Identifier: MIT */
#include "client/kvctl/lists.h"

#include <errno.h>
#include <stdlib.h>

/* Room beyond what there was when it was asked last. */
#define SPARE 64

static int clients(struct kvc_client *client, void *items, size_t cap)
{
	return kvc_clients(client, items, cap);
}

static int users(struct kvc_client *client, void *items, size_t cap)
{
	return kvc_quota_list(client, items, cap);
}

static int prefixes(struct kvc_client *client, void *items, size_t cap)
{
	return kvc_cache_list(client, items, cap);
}

/* More entries may come between asking how many there are and asking for them. */
static int fetch(struct list *list, struct kvc_client *client, size_t size,
		 int (*get)(struct kvc_client *, void *, size_t))
{
	list->n = 0;
	for (;;) {
		int n = get(client, list->items, list->cap);
		void *grown;

		if (n < 0)
			return n;
		if ((size_t)n <= list->cap) {
			list->n = (size_t)n;
			return 0;
		}
		grown = reallocarray(list->items, (size_t)n + SPARE, size);
		if (!grown)
			return -ENOMEM;
		list->items = grown;
		list->cap = (size_t)n + SPARE;
	}
}

int list_clients(struct list *list, struct kvc_client *client)
{
	return fetch(list, client, sizeof(struct kvd_client_info), clients);
}

int list_users(struct list *list, struct kvc_client *client)
{
	return fetch(list, client, sizeof(struct kvd_quota_info), users);
}

int list_prefixes(struct list *list, struct kvc_client *client)
{
	return fetch(list, client, sizeof(struct kvd_prefix_info), prefixes);
}

void list_deinit(struct list *list)
{
	free(list->items);
	*list = (struct list){0};
}
