/* SPDX-License-Identifier: MIT */
/* kvctl cache: what an administrator does to the prefix cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_DOMAIN = 256, OPT_MODEL, OPT_YES };

static bool confirmed(void)
{
	char line[16];

	if (!isatty(STDIN_FILENO))
		kvctl_usage_error(
			"'cache flush' throws cached prefixes away; add --yes to do "
			"it without being asked");
	fputs("Throw away all cached prefixes that no request uses? [y/N] ", stderr);
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

static int flush_cache(struct kvctl *ctl, const char *domain, const char *model)
{
	struct kvd_flush_counts counts = {0};
	struct kvc_client *client;
	int r = kvctl_connect(ctl, &client);

	if (r)
		return r;
	r = kvc_cache_flush(client, domain, model, &counts);
	kvc_close(client);
	if (r < 0)
		return kvctl_fail("cannot flush the cache", r);
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

int cmd_cache(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"domain", required_argument, NULL, OPT_DOMAIN},
		{"model", required_argument, NULL, OPT_MODEL},
		{"yes", no_argument, NULL, OPT_YES},
		KVCTL_COMMON_OPTIONS,
	};
	const char *domain = NULL, *model = NULL;
	bool yes = false;
	int c;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		if (c == OPT_DOMAIN)
			domain = optarg;
		else if (c == OPT_MODEL)
			model = optarg;
		else if (c == OPT_YES)
			yes = true;
	}
	if (optind + 1 != argc || strcmp(argv[optind], "flush") != 0)
		kvctl_usage_error(
			"'kvctl cache' knows one thing to do: kvctl cache flush");
	if (!yes && !confirmed()) {
		fputs("kvctl: nothing was flushed\n", stderr);
		return EXIT_FAILED;
	}
	return flush_cache(ctl, domain, model);
}
