/* SPDX-License-Identifier: MIT */
/* kvctl clients: who is connected, and what each holds. */
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/table.h"

/* More clients may connect between asking how many and asking for them. */
static int fetch(struct kvc_client *client, struct kvd_client_info **ret_list,
		 size_t *ret_n)
{
	struct kvd_client_info *list = NULL;
	size_t cap = 128;

	for (;;) {
		struct kvd_client_info *grown = reallocarray(list, cap, sizeof(*list));
		int n;

		if (!grown) {
			free(list);
			return -ENOMEM;
		}
		list = grown;
		n = kvc_clients(client, list, cap);
		if (n >= 0 && (size_t)n > cap) {
			cap = (size_t)n + 64;
			continue;
		}
		if (n < 0) {
			free(list);
			return n;
		}
		*ret_list = list;
		*ret_n = (size_t)n;
		return 0;
	}
}

static void print_json(const struct kvd_client_info *list, size_t n)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_open_array(&json, "clients");
	for (const struct kvd_client_info *c = list; c < list + n; c++) {
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
		json_f64(&json, "connected_s", (double)c->connected_ns * 1e-9, 12);
		json_close_object(&json);
	}
	json_close_array(&json);
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
	r |= table_add(table, "%s", kvctl_age(c->connected_ns, age));
	return r ? -ENOMEM : 0;
}

static int print_table(const struct kvd_client_info *list, size_t n)
{
	static const char *const headings[] = {
		">ID",     ">PID",    "USER",       "NAME",    ">RUNNING", ">WAITING",
		">PROMPT", ">CACHED", ">GENERATED", ">BLOCKS", "CONNECTED"};
	struct table table;
	int r = table_init(&table, sizeof(headings) / sizeof(headings[0]), headings);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_row(&table, &list[i]);
	if (r == 0)
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

int cmd_clients(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {KVCTL_COMMON_OPTIONS};
	struct kvd_client_info *list = NULL;
	struct kvc_client *client;
	size_t n = 0;
	int r;

	(void)kvctl_next_option(ctl, argc, argv, options);
	kvctl_no_arguments(argc, argv);
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	r = fetch(client, &list, &n);
	if (r == 0) {
		if (ctl->json)
			print_json(list, n);
		else
			r = print_table(list, n);
	}
	if (r < 0)
		r = kvctl_fail("cannot list the clients", r);
	free(list);
	kvc_close(client);
	return r;
}
