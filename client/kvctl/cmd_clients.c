/* SPDX-License-Identifier: MIT */
/* kvctl clients: who is connected, what each holds, and what its user may. */
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/lists.h"
#include "client/kvctl/quota.h"
#include "client/kvctl/table.h"

static void print_json(const struct list *clients, const struct list *users)
{
	const struct kvd_client_info *list = clients->items;
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_open_array(&json, "clients");
	for (const struct kvd_client_info *c = list; c < list + clients->n; c++) {
		json_open_object(&json, NULL);
		json_u64(&json, "id", c->id);
		json_i64(&json, "pid", c->pid);
		json_u64(&json, "uid", c->uid);
		json_u64(&json, "gid", c->gid);
		json_str_n(&json, "name", c->name, strnlen(c->name, sizeof(c->name)));
		json_u64(&json, "rings", c->rings);
		json_u64(&json, "running", c->requests_running);
		json_u64(&json, "waiting", c->requests_waiting);
		json_u64(&json, "prompt_tokens", c->tokens_prompt);
		json_u64(&json, "generated_tokens", c->tokens_generated);
		json_u64(&json, "cached_tokens", c->tokens_cached);
		json_u64(&json, "blocks", c->blocks);
		json_u64(&json, "arena_bytes", c->arena);
		json_f64(&json, "connected_s", (double)c->connected_ns * 1e-9, 12);
		json_close_object(&json);
	}
	json_close_array(&json);
	quota_print_users(&json, users);
	json_close_object(&json);
	json_end(&json);
}

static int add_row(struct table *table, const struct kvd_client_info *c)
{
	const struct passwd *pw = getpwuid(c->uid);
	char uid[16], age[32];
	const char *user = uid;
	int r = 0;

	snprintf(uid, sizeof(uid), "%u", c->uid);
	if (pw)
		user = pw->pw_name;
	r |= table_add(table, "%" PRIu64, c->id);
	r |= table_add(table, "%d", c->pid);
	r |= table_add(table, "%s", user);
	r |= table_add(table, "%.*s", (int)strnlen(c->name, sizeof(c->name)), c->name);
	r |= table_add(table, "%u", c->requests_running);
	r |= table_add(table, "%u", c->requests_waiting);
	r |= table_add(table, "%" PRIu64, c->tokens_prompt);
	r |= table_add(table, "%" PRIu64, c->tokens_cached);
	r |= table_add(table, "%" PRIu64, c->tokens_generated);
	r |= table_add(table, "%" PRIu64, c->blocks);
	r |= table_add(table, "%" PRIu64, c->arena >> 10);
	r |= table_add(table, "%s", kvctl_age(c->connected_ns, age));
	return r ? -ENOMEM : 0;
}

static int print_clients(const struct list *clients)
{
	static const char *const headings[] = {
		">ID",     ">PID",    "USER",       "NAME",    ">RUNNING",   ">WAITING",
		">PROMPT", ">CACHED", ">GENERATED", ">BLOCKS", ">ARENA KIB", "CONNECTED"};
	const struct kvd_client_info *list = clients->items;
	struct table table;
	int r = table_init(&table, sizeof(headings) / sizeof(headings[0]), headings);

	if (r < 0)
		return r;
	for (size_t i = 0; i < clients->n && r == 0; i++)
		r = add_row(&table, &list[i]);
	if (r == 0)
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

/* Limits are of users, not of connections: they have a table of their own. */
static int print_tables(const struct list *clients, const struct list *users)
{
	int r = print_clients(clients);

	if (r < 0)
		return r;
	puts("\nUse and limits of each user:");
	return quota_print_table(users);
}

int cmd_clients(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {KVCTL_COMMON_OPTIONS};
	struct list clients = {0}, users = {0};
	struct kvc_client *client;
	int r;

	(void)kvctl_next_option(ctl, argc, argv, options);
	kvctl_no_arguments(argc, argv);
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	r = list_clients(&clients, client);
	if (r == 0)
		r = list_users(&users, client);
	if (r == 0) {
		if (ctl->json)
			print_json(&clients, &users);
		else
			r = print_tables(&clients, &users);
	}
	if (r < 0)
		r = kvctl_fail("cannot list the clients", r);
	list_deinit(&clients);
	list_deinit(&users);
	kvc_close(client);
	return r;
}
