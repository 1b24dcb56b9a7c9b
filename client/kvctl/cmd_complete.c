/* SPDX-License-Identifier: MIT */
/* kvctl __complete: names that only the daemon knows, one a line, for the shells. It says
 * nothing at all when there is no daemon, and does not wait for one. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/kvctl.h"

#define MAX_CLIENTS 4096
#define TIMEOUT_NS  500000000

static void print_model(struct kvc_client *client)
{
	struct kvd_stats stats = {.size = sizeof(stats)};

	if (kvc_stats(client, &stats) >= 0 && stats.model.arch[0])
		printf("%.*s\n", (int)strnlen(stats.model.name, sizeof(stats.model.name)),
		       stats.model.name);
}

static int compare(const void *a, const void *b)
{
	uint32_t x = ((const struct kvd_client_info *)a)->uid;
	uint32_t y = ((const struct kvd_client_info *)b)->uid;

	return (x > y) - (x < y);
}

/* Of those who are connected. */
static void print_domains(struct kvc_client *client)
{
	struct kvd_client_info *list = calloc(MAX_CLIENTS, sizeof(*list));
	int n = list ? kvc_clients(client, list, MAX_CLIENTS) : -ENOMEM;

	if (n > MAX_CLIENTS)
		n = MAX_CLIENTS;
	if (n > 0)
		qsort(list, (size_t)n, sizeof(*list), compare);
	for (int i = 0; i < n; i++)
		if (i == 0 || list[i].uid != list[i - 1].uid)
			printf("uid:%" PRIu32 "\n", list[i].uid);
	free(list);
}

int cmd_complete(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {KVCTL_COMMON_OPTIONS};
	struct kvc_connect_opts opts = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *client;
	const char *what;

	(void)kvctl_next_option(ctl, argc, argv, options);
	what = kvctl_one_argument(argc, argv, "WHAT");
	opts.socket_path = ctl->socket_path ? ctl->socket_path : kvctl_default_socket();
	opts.client_name = "kvctl";
	opts.timeout_ns = TIMEOUT_NS;
	if (kvc_connect(&client, &opts) < 0)
		return EXIT_OK;
	if (!strcmp(what, "models"))
		print_model(client);
	else if (!strcmp(what, "domains"))
		print_domains(client);
	kvc_close(client);
	return EXIT_OK;
}
