/* SPDX-License-Identifier: MIT */
#include "client/kvctl/prefix.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvctl/json.h"

/* Others may push a prefix out between computing and pinning it. */
#define MAX_TRIES 5

/**
 * struct prefix - one prefix
 * @ids: [n] its tokens, unless it is named by its id
 * @id: of what is cached of it; 0: nothing is
 * @complete: all its full blocks are cached
 * @block_tokens: of the daemon
 */
struct prefix {
	uint32_t *ids;
	size_t n;
	uint64_t id;
	bool complete;
	uint32_t block_tokens;
};

void prefix_option(struct prefix_args *args, int option, const char *value)
{
	if (args->value)
		kvctl_usage_error("a prefix is named once: --prefix, --prefix-file, "
				  "--system, --system-file, --tokens or --id");
	args->option = (enum prefix_option)option;
	args->value = value;
}

static uint64_t parse_id(const char *text)
{
	char first[16], second[16];
	int n = 0;

	if (sscanf(text, "%10[0-9]-%10[0-9]%n", first, second, &n) != 2 || text[n])
		kvctl_usage_error("--id: '%s' is no id of 'kvctl cache ls'", text);
	return kvctl_parse_u64("--id", first, 0, UINT32_MAX) << 32 |
	       kvctl_parse_u64("--id", second, 0, UINT32_MAX);
}

static int parse_tokens(const char *list, struct prefix *prefix)
{
	char *copy = strdup(list), *at = copy, *word;

	prefix->ids = calloc(strlen(list) + 1, sizeof(*prefix->ids));
	if (!copy || !prefix->ids) {
		free(copy);
		return -ENOMEM;
	}
	while ((word = strsep(&at, ", \t\n")))
		if (*word)
			prefix->ids[prefix->n++] =
				(uint32_t)kvctl_parse_u64("--tokens", word, 0, INT32_MAX);
	free(copy);
	return 0;
}

/* Tokens of @input. Return: 0 or the error. */
static int tokenize(struct kvc_client *client, const struct kvc_input *input,
		    size_t max_bytes, uint32_t **ret_ids, size_t *ret_n)
{
	/* a template adds a few; no text has more tokens than bytes */
	size_t cap = max_bytes + 1024;
	uint32_t *ids = calloc(cap, sizeof(*ids));
	int n = ids ? kvc_tokenize(client, input, 0, ids, cap) : -ENOMEM;

	if (n < 0 || (size_t)n > cap) {
		free(ids);
		return n < 0 ? n : -E2BIG;
	}
	*ret_ids = ids;
	*ret_n = (size_t)n;
	return 0;
}

/* What all conversations with this system prompt have in common. */
static int tokenize_system(struct kvc_client *client, const char *system, size_t len,
			   struct prefix *prefix)
{
	uint32_t *other = NULL;
	size_t n_other = 0, n = 0;
	int r;

	for (int i = 0; i < 2; i++) {
		struct kvc_message messages[2] = {
			{.role = "system", .content = system},
			{.role = "user", .content = i ? "1" : "A"},
		};
		struct kvc_input input = kvc_messages(messages, 2);

		r = i ? tokenize(client, &input, len, &other, &n_other)
		      : tokenize(client, &input, len, &prefix->ids, &prefix->n);
		if (r < 0)
			return r;
	}
	while (n < prefix->n && n < n_other && prefix->ids[n] == other[n])
		n++;
	prefix->n = n;
	free(other);
	return 0;
}

/* Return: 0; an error of the library; an exit code after saying why. */
static int read_prefix(struct kvc_client *client, const struct prefix_args *args,
		       struct prefix *prefix)
{
	bool system = args->option == PREFIX_SYSTEM || args->option == PREFIX_SYSTEM_FILE;
	bool file = args->option == PREFIX_FILE || args->option == PREFIX_SYSTEM_FILE;
	struct kvc_input input;
	size_t len;
	char *text;
	int r;

	if (args->option == PREFIX_TOKENS)
		return parse_tokens(args->value, prefix);
	text = file ? kvctl_read_file(args->value, &len)
		    : kvctl_read_text(args->value, &len);
	if (!text)
		return EXIT_FAILED;
	input = kvc_text(text, len);
	r = system ? tokenize_system(client, text, len, prefix)
		   : tokenize(client, &input, len, &prefix->ids, &prefix->n);
	free(text);
	return r;
}

static int find(struct kvc_client *client, struct prefix *prefix)
{
	struct kvc_input input = kvc_tokens(prefix->ids, prefix->n);
	int n = kvc_prefix_lookup(client, &input, 0, &prefix->id, NULL);

	if (n < 0)
		return n;
	prefix->complete = prefix->n - (size_t)n < prefix->block_tokens;
	return 0;
}

static void prefix_close(struct kvc_client *client, struct prefix *prefix)
{
	free(prefix->ids);
	kvc_close(client);
}

/* Connects and looks it up. Return: 0, or the exit code after saying why not. */
static int prefix_open(struct kvctl *ctl, const struct prefix_args *args,
		       struct kvc_client **ret_client, struct prefix *prefix)
{
	struct kvd_model_info info = {0};
	int r;

	*prefix = (struct prefix){.complete = true};
	if (!args->value)
		kvctl_usage_error("which prefix? --prefix, --prefix-file, --system, "
				  "--system-file, --tokens or --id");
	if (args->option == PREFIX_ID)
		prefix->id = parse_id(args->value);
	r = kvctl_connect(ctl, ret_client);
	if (r || args->option == PREFIX_ID)
		return r;
	r = kvc_get_model_info(*ret_client, &info);
	prefix->block_tokens = info.block_tokens;
	if (r >= 0)
		r = read_prefix(*ret_client, args, prefix);
	if (r == 0 && prefix->n < prefix->block_tokens) {
		fprintf(stderr,
			"kvctl: the prefix has %zu tokens; the cache holds whole blocks "
			"of %" PRIu32 "\n",
			prefix->n, prefix->block_tokens);
		r = EXIT_FAILED;
	}
	if (r == 0)
		r = find(*ret_client, prefix);
	if (r < 0)
		r = kvctl_fail("cannot find the prefix", r);
	if (r)
		prefix_close(*ret_client, prefix);
	return r;
}

/* Has it computed by a request for one token. */
static int compute(struct kvc_client *client, struct prefix *prefix)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input input = kvc_tokens(prefix->ids, prefix->n);
	int r;

	opts.max_tokens = 1;
	r = kvc_generate_input(client, &input, &opts, NULL, NULL, NULL);
	return r < 0 ? r : find(client, prefix);
}

static int report(const struct kvctl *ctl, const char *what, int tokens)
{
	struct json json;

	if (!ctl->json) {
		printf("%s %d tokens\n", what, tokens);
		return EXIT_OK;
	}
	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_u64(&json, "tokens", (uint64_t)tokens);
	json_close_object(&json);
	json_end(&json);
	return EXIT_OK;
}

int prefix_pin(struct kvctl *ctl, const struct prefix_args *args, bool make_public)
{
	struct kvd_server_info server = {0};
	struct kvc_client *client;
	struct prefix prefix;
	int r = prefix_open(ctl, args, &client, &prefix);

	if (r)
		return r;
	/* else it would be computed first */
	kvc_get_server_info(client, &server);
	if (!(server.features & KVD_FEATURE_ADMIN)) {
		fputs("kvctl: cannot pin the prefix: only an administrator may\n",
		      stderr);
		prefix_close(client, &prefix);
		return EXIT_PERMISSION;
	}
	for (int i = 0; i < MAX_TRIES && r >= 0; i++) {
		if (!prefix.complete || !prefix.id)
			r = compute(client, &prefix);
		if (r < 0 || !prefix.complete)
			continue;
		r = kvc_prefix_control(client, prefix.id, KVD_PREFIX_PIN,
				       make_public ? KVD_PREFIX_PUBLIC : 0, NULL);
		if (r != -ENOENT || args->option == PREFIX_ID)
			break;
		prefix.complete = false;
		r = 0;
	}
	if (r >= 0 && !prefix.complete) {
		fputs("kvctl: cannot pin the prefix: the cache is too full\n", stderr);
		r = EXIT_BUSY;
	} else {
		r = r < 0 ? kvctl_fail("cannot pin the prefix", r)
			  : report(ctl, "pinned", r);
	}
	prefix_close(client, &prefix);
	return r;
}

int prefix_unpin(struct kvctl *ctl, const struct prefix_args *args)
{
	struct kvc_client *client;
	struct prefix prefix;
	int r = prefix_open(ctl, args, &client, &prefix);

	if (r)
		return r;
	r = kvc_prefix_control(client, prefix.id, KVD_PREFIX_UNPIN, 0, NULL);
	r = r < 0 ? kvctl_fail("cannot unpin the prefix", r) : report(ctl, "unpinned", r);
	prefix_close(client, &prefix);
	return r;
}

int prefix_flush(struct kvctl *ctl, const struct prefix_args *args,
		 struct kvd_flush_counts *ret_counts)
{
	struct kvc_client *client;
	struct prefix prefix;
	int r = prefix_open(ctl, args, &client, &prefix);

	if (r)
		return r;
	if (prefix.id)
		r = kvc_prefix_control(client, prefix.id, KVD_PREFIX_FLUSH,
				       prefix.complete ? KVD_PREFIX_TREE : 0, ret_counts);
	/* gone meanwhile is gone; an id that names nothing is a mistake */
	if (r == -ENOENT && args->option != PREFIX_ID)
		r = 0;
	r = r < 0 ? kvctl_fail("cannot flush the prefix", r) : EXIT_OK;
	prefix_close(client, &prefix);
	return r;
}
