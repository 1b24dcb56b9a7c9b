/* SPDX-License-Identifier: MIT */
#include "client/kvctl/quota.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/table.h"

void quota_option(struct quota_args *args, int option, const char *text)
{
	static const char *const names[] = {
		"--user",        "--guaranteed-blocks", "--max-blocks", "--max-running",
		"--max-waiting", "--max-connections",   "--max-arena",
	};
	const struct passwd *pw;
	uint64_t value;

	if (option == QUOTA_USER && (*text < '0' || *text > '9')) {
		pw = getpwnam(text);
		if (!pw)
			kvctl_usage_error("--user: no user '%s'", text);
		args->uid = pw->pw_uid;
		args->has_user = true;
		return;
	}
	value = kvctl_parse_u64(names[option], text, 0,
				option == QUOTA_ARENA ? UINT64_MAX : UINT32_MAX);
	if (option == QUOTA_USER) {
		args->uid = (uint32_t)value;
		args->has_user = true;
		return;
	}
	args->set |= 1u << (option - 1);
	switch (option) {
	case QUOTA_GUARANTEED:
		args->quota.guaranteed_blocks = (uint32_t)value;
		break;
	case QUOTA_BLOCKS:
		args->quota.max_blocks = (uint32_t)value;
		break;
	case QUOTA_RUNNING:
		args->quota.max_running = (uint32_t)value;
		break;
	case QUOTA_WAITING:
		args->quota.max_waiting = (uint32_t)value;
		break;
	case QUOTA_CONNECTIONS:
		args->quota.max_connections = (uint32_t)value;
		break;
	default:
		args->quota.max_arena = value;
		break;
	}
}

void quota_print_users(struct json *json, const struct list *list)
{
	const struct kvd_quota_info *users = list->items;

	json_open_array(json, "users");
	for (const struct kvd_quota_info *u = users; u < users + list->n; u++) {
		json_open_object(json, NULL);
		json_u64(json, "uid", u->uid);
		json_str_n(json, "domain", u->domain,
			   strnlen(u->domain, sizeof(u->domain)));
		json_u64(json, "blocks", u->blocks);
		json_u64(json, "guaranteed_blocks", u->quota.guaranteed_blocks);
		json_u64(json, "max_blocks", u->quota.max_blocks);
		json_u64(json, "running", u->running);
		json_u64(json, "max_running", u->quota.max_running);
		json_u64(json, "waiting", u->waiting);
		json_u64(json, "max_waiting", u->quota.max_waiting);
		json_u64(json, "connections", u->connections);
		json_u64(json, "max_connections", u->quota.max_connections);
		json_u64(json, "arena_bytes", u->arena);
		json_u64(json, "max_arena_bytes", u->quota.max_arena);
		json_close_object(json);
	}
	json_close_array(json);
}

static void print_json(const struct list *list)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	quota_print_users(&json, list);
	json_close_object(&json);
	json_end(&json);
}

/* "3/10", or "3" where there is no limit. */
static int add_use(struct table *table, uint64_t use, uint64_t limit)
{
	return limit ? table_add(table, "%" PRIu64 "/%" PRIu64, use, limit)
		     : table_add(table, "%" PRIu64, use);
}

int quota_print_table(const struct list *list)
{
	const struct kvd_quota_info *users = list->items;
	static const char *const headings[] = {"USER",         "DOMAIN",    ">BLOCKS",
					       ">SURE OF",     ">RUNNING",  ">WAITING",
					       ">CONNECTIONS", ">ARENA KIB"};
	struct table table;
	int r = table_init(&table, sizeof(headings) / sizeof(headings[0]), headings);

	if (r < 0)
		return r;
	for (const struct kvd_quota_info *u = users; u < users + list->n; u++) {
		const struct passwd *pw = getpwuid(u->uid);

		r |= pw ? table_add(&table, "%s", pw->pw_name)
			: table_add(&table, "%u", u->uid);
		r |= table_add(&table, "%.*s", (int)strnlen(u->domain, sizeof(u->domain)),
			       u->domain);
		r |= add_use(&table, u->blocks, u->quota.max_blocks);
		r |= table_add(&table, "%u", u->quota.guaranteed_blocks);
		r |= add_use(&table, u->running, u->quota.max_running);
		r |= add_use(&table, u->waiting, u->quota.max_waiting);
		r |= add_use(&table, u->connections, u->quota.max_connections);
		r |= add_use(&table, u->arena >> 10, u->quota.max_arena >> 10);
	}
	if (!r)
		table_print(&table, stdout);
	table_deinit(&table);
	return r ? -ENOMEM : 0;
}

int quota_run(struct kvctl *ctl, const struct quota_args *args)
{
	struct kvc_client *client;
	struct list list = {0};
	int r;

	if (args->set && !args->has_user)
		kvctl_usage_error("whose limits? add --user NAME");
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	if (args->set)
		r = kvc_quota_set(client, args->uid, args->set, &args->quota);
	if (r < 0) {
		r = kvctl_fail("cannot set the limits", r);
	} else {
		r = list_users(&list, client);
		if (r == 0 && ctl->json)
			print_json(&list);
		else if (r == 0)
			r = quota_print_table(&list);
		if (r < 0)
			r = kvctl_fail("cannot list the users", r);
	}
	list_deinit(&list);
	kvc_close(client);
	return r;
}
