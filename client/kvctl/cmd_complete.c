/* SPDX-License-Identifier: MIT */
/* kvctl __complete: names that only the daemon knows, one a line, for the shells. It says
 * nothing at all when there is no daemon, and does not wait for one. */
#include <stdio.h>
#include <string.h>

#include "client/kvctl/kvctl.h"
#include "client/kvctl/lists.h"
#include "client/kvctl/utf8.h"

#define TIMEOUT_NS 500000000

static void print_name(const char *name, size_t size)
{
	utf8_put_name(stdout, name, strnlen(name, size));
	putchar('\n');
}

static void print_model(struct kvc_client *client)
{
	struct kvd_stats stats = {.size = sizeof(stats)};

	if (kvc_stats(client, &stats) >= 0 && stats.model.arch[0])
		print_name(stats.model.name, sizeof(stats.model.name));
}

/* Of those who are connected, or have limits of their own; by rising uid. */
static void print_domains(struct kvc_client *client)
{
	struct list list = {0};
	const struct kvd_quota_info *users;

	if (list_users(&list, client) == 0) {
		users = list.items;
		for (size_t i = 0; i < list.n; i++) {
			bool seen = false;

			for (size_t k = 0; k < i && !seen; k++)
				seen = !strncmp(users[k].domain, users[i].domain,
						sizeof(users[i].domain));
			if (!seen)
				print_name(users[i].domain, sizeof(users[i].domain));
		}
	}
	list_deinit(&list);
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
