/* SPDX-License-Identifier: MIT */
/* kvctl cache: what an administrator does to the prefix cache. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/lists.h"
#include "client/kvctl/prefix.h"
#include "client/kvctl/quota.h"
#include "client/kvctl/table.h"

enum {
	OPT_DOMAIN = 256,
	OPT_MODEL,
	OPT_YES,
	OPT_PUBLIC,
	/* in the order of enum quota_option */
	OPT_USER,
	OPT_GUARANTEED,
	OPT_BLOCKS,
	OPT_RUNNING,
	OPT_WAITING,
	OPT_CONNECTIONS,
	OPT_ARENA,
	/* in the order of enum prefix_option */
	OPT_PREFIX,
	OPT_PREFIX_FILE,
	OPT_SYSTEM,
	OPT_SYSTEM_FILE,
	OPT_TOKENS,
	OPT_ID,
};

static bool confirmed(bool one)
{
	char line[16];

	if (!isatty(STDIN_FILENO))
		kvctl_usage_error(
			"'cache flush' throws cached prefixes away; add --yes to do "
			"it without being asked");
	fputs(one ? "Throw this prefix away, with all that goes on from it? [y/N] "
		  : "Throw away all cached prefixes that no request uses? [y/N] ",
	      stderr);
	return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

static void print_json(const struct kvd_flush_counts *counts)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_u64(&json, "flushed_blocks", counts->flushed_blocks);
	json_u64(&json, "flushed_bytes", counts->flushed_bytes);
	json_u64(&json, "kept_pinned", counts->kept_pinned);
	json_u64(&json, "kept_active", counts->kept_active);
	json_u64(&json, "remaining", counts->remaining);
	json_close_object(&json);
	json_end(&json);
}

static int flush_all(struct kvctl *ctl, const char *domain, const char *model,
		     struct kvd_flush_counts *ret_counts)
{
	struct kvc_client *client;
	int r = kvctl_connect(ctl, &client);

	if (r)
		return r;
	r = kvc_cache_flush(client, domain, model, ret_counts);
	kvc_close(client);
	return r < 0 ? kvctl_fail("cannot flush the cache", r) : EXIT_OK;
}

static int flush_cache(struct kvctl *ctl, const char *domain, const char *model,
		       const struct prefix_args *prefix)
{
	struct kvd_flush_counts counts = {0};
	int r = prefix->value ? prefix_flush(ctl, prefix, &counts)
			      : flush_all(ctl, domain, model, &counts);

	if (r)
		return r;
	if (ctl->json)
		print_json(&counts);
	else
		printf("flushed %" PRIu64 " blocks, %.1f MiB; kept %" PRIu64
		       " in use and %" PRIu64 " pinned\n",
		       counts.flushed_blocks, (double)counts.flushed_bytes / 1048576.0,
		       counts.kept_active, counts.kept_pinned);
	if (counts.remaining == 0)
		return EXIT_OK;
	fprintf(stderr,
		"kvctl: %" PRIu64 " blocks that may be flushed are left; run it again\n",
		counts.remaining);
	return EXIT_FAILED;
}

static int list_cache(struct kvctl *ctl)
{
	static const char *const headings[] = {
		"ID",       ">TOKENS", ">OWN BLOCKS",   "DOMAIN",
		">READERS", "PINNED",  "WHY IT IS KEPT"};
	const struct kvd_prefix_info *prefixes;
	struct list list = {0};
	struct kvc_client *client;
	struct table table;
	struct json json;
	int r = kvctl_connect(ctl, &client);

	if (r)
		return r;
	r = list_prefixes(&list, client);
	kvc_close(client);
	if (r < 0) {
		list_deinit(&list);
		return kvctl_fail("cannot list the cache", r);
	}
	prefixes = list.items;
	json_init(&json, stdout);
	if (ctl->json) {
		json_open_object(&json, NULL);
		json_open_array(&json, "prefixes");
	} else if (table_init(&table, 7, headings) < 0) {
		list_deinit(&list);
		return kvctl_fail("cannot list the cache", -ENOMEM);
	}
	for (size_t i = 0; i < list.n; i++) {
		const struct kvd_prefix_info *p = &prefixes[i];
		const char *why = p->pins       ? "pinned"
				  : p->readers  ? "in use"
				  : p->frequent ? "found again"
						: "computed once";
		char id[24];

		snprintf(id, sizeof(id), "%u-%u", (unsigned)(p->id >> 32),
			 (unsigned)p->id);
		if (ctl->json) {
			json_open_object(&json, NULL);
			json_str(&json, "id", id);
			json_u64(&json, "tokens", p->tokens);
			json_u64(&json, "own_blocks", p->own_blocks);
			json_str_n(&json, "domain", p->domain,
				   strnlen(p->domain, sizeof(p->domain)));
			json_u64(&json, "readers", p->readers);
			json_u64(&json, "pins", p->pins);
			json_str(&json, "kept", why);
			json_close_object(&json);
			continue;
		}
		r |= table_add(&table, "%s", id);
		r |= table_add(&table, "%" PRIu64, p->tokens);
		r |= table_add(&table, "%u", p->own_blocks);
		r |= table_add(&table, "%.*s", (int)strnlen(p->domain, sizeof(p->domain)),
			       p->domain);
		r |= table_add(&table, "%u", p->readers);
		r |= table_add(&table, "%s", p->pins ? "yes" : "-");
		r |= table_add(&table, "%s", why);
	}
	if (ctl->json) {
		json_close_array(&json);
		json_close_object(&json);
		json_end(&json);
	} else {
		table_print(&table, stdout);
		table_deinit(&table);
	}
	list_deinit(&list);
	return r ? kvctl_fail("cannot list the cache", -ENOMEM) : EXIT_OK;
}

int cmd_cache(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"domain", required_argument, NULL, OPT_DOMAIN},
		{"model", required_argument, NULL, OPT_MODEL},
		{"yes", no_argument, NULL, OPT_YES},
		{"user", required_argument, NULL, OPT_USER},
		{"guaranteed-blocks", required_argument, NULL, OPT_GUARANTEED},
		{"max-blocks", required_argument, NULL, OPT_BLOCKS},
		{"max-running", required_argument, NULL, OPT_RUNNING},
		{"max-waiting", required_argument, NULL, OPT_WAITING},
		{"max-connections", required_argument, NULL, OPT_CONNECTIONS},
		{"max-arena", required_argument, NULL, OPT_ARENA},
		{"public", no_argument, NULL, OPT_PUBLIC},
		{"prefix", required_argument, NULL, OPT_PREFIX},
		{"prefix-file", required_argument, NULL, OPT_PREFIX_FILE},
		{"system", required_argument, NULL, OPT_SYSTEM},
		{"system-file", required_argument, NULL, OPT_SYSTEM_FILE},
		{"tokens", required_argument, NULL, OPT_TOKENS},
		{"id", required_argument, NULL, OPT_ID},
		KVCTL_COMMON_OPTIONS,
	};
	const char *domain = NULL, *model = NULL;
	struct quota_args quota = {0};
	struct prefix_args prefix = {0};
	bool yes = false, make_public = false;
	int c;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		if (c == OPT_DOMAIN)
			domain = optarg;
		else if (c == OPT_MODEL)
			model = optarg;
		else if (c == OPT_YES)
			yes = true;
		else if (c == OPT_PUBLIC)
			make_public = true;
		else if (c >= OPT_PREFIX)
			prefix_option(&prefix, c - OPT_PREFIX, optarg);
		else
			quota_option(&quota, c - OPT_USER, optarg);
	}
	if (optind + 1 != argc)
		kvctl_usage_error(
			"say what to do: kvctl cache flush, ls, pin, unpin or quota");
	if (!strcmp(argv[optind], "ls"))
		return list_cache(ctl);
	if (!strcmp(argv[optind], "quota"))
		return quota_run(ctl, &quota);
	if (!strcmp(argv[optind], "pin"))
		return prefix_pin(ctl, &prefix, make_public);
	if (!strcmp(argv[optind], "unpin"))
		return prefix_unpin(ctl, &prefix);
	if (strcmp(argv[optind], "flush") != 0)
		kvctl_usage_error("'kvctl cache' knows flush, ls, pin, unpin and quota");
	if (prefix.value && (domain || model))
		kvctl_usage_error("a prefix, or --domain and --model, not both");
	if (!yes && !confirmed(prefix.value)) {
		fputs("kvctl: nothing was flushed\n", stderr);
		return EXIT_FAILED;
	}
	return flush_cache(ctl, domain, model, &prefix);
}
