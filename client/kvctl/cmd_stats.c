/* SPDX-License-Identifier: MIT */
/* kvctl stats and kvctl status: the same numbers, all of them or the ones that matter. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/utf8.h"

/* Strings of the wire are terminated in their array by contract; do not rely on it. */
#define STR(field) (field), strnlen((field), sizeof(field))

static void json_field(struct json *json, const char *key, const char *str, size_t size)
{
	json_str_n(json, key, str, strnlen(str, size));
}

static void hex(const uint8_t *bytes, size_t n, char *ret_text)
{
	for (size_t i = 0; i < n; i++)
		sprintf(ret_text + 2 * i, "%02x", bytes[i]);
}

/* @ret_own: they are of the caller's own user only */
static int fetch(struct kvctl *ctl, int argc, char **argv, struct kvd_stats *ret_stats,
		 bool *ret_own)
{
	static const struct option options[] = {KVCTL_COMMON_OPTIONS};
	struct kvd_server_info server = {0};
	struct kvc_client *client;
	int r;

	(void)kvctl_next_option(ctl, argc, argv, options);
	kvctl_no_arguments(argc, argv);
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	*ret_stats = (struct kvd_stats){.size = sizeof(*ret_stats)};
	r = kvc_stats(client, ret_stats);
	if (r < 0)
		r = kvctl_fail("cannot read the statistics", r);
	kvc_get_server_info(client, &server);
	*ret_own = !(server.features & KVD_FEATURE_ADMIN);
	kvc_close(client);
	return r;
}

static void print_json(const struct kvd_stats *stats, bool own)
{
	char fingerprint[2 * sizeof(stats->model.fingerprint) + 1];
	struct json json;

	hex(stats->model.fingerprint, sizeof(stats->model.fingerprint), fingerprint);
	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_field(&json, "version", stats->release, sizeof(stats->release));
	json_u64(&json, "generation", stats->generation);
	json_f64(&json, "uptime_s", (double)stats->uptime_ns * 1e-9, 12);
	json_field(&json, "backend", stats->backend, sizeof(stats->backend));

	json_open_object(&json, "model");
	json_field(&json, "name", stats->model.name, sizeof(stats->model.name));
	json_field(&json, "arch", stats->model.arch, sizeof(stats->model.arch));
	json_str(&json, "fingerprint", fingerprint);
	json_u64(&json, "context_length", stats->model.context_length);
	json_u64(&json, "n_layers", stats->model.n_layers);
	json_u64(&json, "n_kv_heads", stats->model.n_kv_heads);
	json_u64(&json, "head_dim", stats->model.head_dim);
	json_u64(&json, "n_vocab", stats->model.n_vocab);
	json_close_object(&json);

	json_open_object(&json, "cache");
	json_field(&json, "format", stats->cache_format, sizeof(stats->cache_format));
	json_u64(&json, "pool_bytes", stats->pool_bytes);
	json_u64(&json, "block_tokens", stats->model.block_tokens);
	json_u64(&json, "block_bytes", stats->model.block_bytes);
	json_f64(&json, "bytes_per_token", stats->bytes_per_token, 12);
	json_u64(&json, "blocks_total", stats->blocks_total);
	json_u64(&json, "blocks_free", stats->blocks_free);
	json_u64(&json, "blocks_cached", stats->blocks_cached);
	json_u64(&json, "blocks_active", stats->blocks_active);
	json_u64(&json, "blocks_pinned", stats->blocks_pinned);
	json_u64(&json, "queried_tokens", stats->queried_tokens);
	json_u64(&json, "hit_tokens", stats->hit_tokens);
	json_u64(&json, "shared_hit_tokens", stats->shared_hit_tokens);
	json_u64(&json, "evicted_blocks", stats->evicted_blocks);
	json_u64(&json, "tail_bytes", stats->tail_bytes);
	json_close_object(&json);

	json_open_object(&json, "requests");
	json_u64(&json, "running", stats->requests_running);
	json_u64(&json, "waiting", stats->requests_waiting);
	json_u64(&json, "completed", stats->requests_completed);
	json_u64(&json, "failed", stats->requests_failed);
	json_u64(&json, "cancelled", stats->requests_cancelled);
	json_close_object(&json);

	json_open_object(&json, "tokens");
	json_u64(&json, "prompt", stats->tokens_prompt);
	json_u64(&json, "generated", stats->tokens_generated);
	json_close_object(&json);

	json_u64(&json, "clients", stats->clients);
	json_u64(&json, "rings", stats->rings);
	json_u64(&json, "sessions_faulty", stats->sessions_faulty);
	json_bool(&json, "draining", stats->draining);
	json_bool(&json, "affinity_refused", stats->affinity_refused);
	json_u64(&json, "threads", stats->threads);
	json_u64(&json, "cpus", stats->cpus);
	json_str(&json, "of", own ? "own" : "all");
	json_close_object(&json);
	json_end(&json);
}

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void print_model(const struct kvd_model_info *model)
{
	if (!model->arch[0]) {
		printf("  model     none; set [model] path in kvd.conf\n");
		return;
	}
	fputs("  model     ", stdout);
	utf8_put_name(stdout, STR(model->name));
	fputs(" (", stdout);
	utf8_put_name(stdout, STR(model->arch));
	printf("), context %u tokens\n", model->context_length);
}

static void print_status(const struct kvd_stats *stats, bool own)
{
	const uint64_t used = stats->blocks_cached + stats->blocks_active;
	char age[32];

	fputs("kvd ", stdout);
	utf8_put_name(stdout, STR(stats->release));
	printf(", generation %" PRIu64 ", up %s, backend ", stats->generation,
	       kvctl_age(stats->uptime_ns, age));
	utf8_put_name(stdout, STR(stats->backend));
	putchar('\n');
	print_model(&stats->model);
	printf("  cache     %" PRIu64 " of %" PRIu64
	       " blocks in use (%.1f of %.1f MiB), ",
	       used, stats->blocks_total,
	       (double)used * (double)stats->model.block_bytes / 1048576.0,
	       (double)stats->pool_bytes / 1048576.0);
	utf8_put_name(stdout, STR(stats->cache_format));
	putchar('\n');
	printf("  hits      %.1f %% of %" PRIu64 " looked up tokens; %" PRIu64
	       " from another process\n",
	       percent(stats->hit_tokens, stats->queried_tokens), stats->queried_tokens,
	       stats->shared_hit_tokens);
	printf("  requests  %" PRIu64 " running, %" PRIu64 " waiting, %" PRIu64 " done\n",
	       stats->requests_running, stats->requests_waiting,
	       stats->requests_completed);
	printf("  clients   %" PRIu64 "\n", stats->clients);
	if (own)
		printf("  of you    what others do is told to administrators only\n");
	if (stats->draining)
		printf("  draining  takes no new requests; 'kvctl drain --off' ends it\n");
}

static void print_stats(const struct kvd_stats *stats, bool own)
{
	const struct {
		const char *name;
		uint64_t value;
	} rows[] = {
		{"pool bytes", stats->pool_bytes},
		{"block tokens", stats->model.block_tokens},
		{"block bytes", stats->model.block_bytes},
		{"tail bytes", stats->tail_bytes},
		{"blocks total", stats->blocks_total},
		{"blocks free", stats->blocks_free},
		{"blocks cached", stats->blocks_cached},
		{"blocks active", stats->blocks_active},
		{"blocks pinned", stats->blocks_pinned},
		{"queried tokens", stats->queried_tokens},
		{"hit tokens", stats->hit_tokens},
		{"shared hit tokens", stats->shared_hit_tokens},
		{"evicted blocks", stats->evicted_blocks},
		{"requests running", stats->requests_running},
		{"requests waiting", stats->requests_waiting},
		{"requests completed", stats->requests_completed},
		{"requests failed", stats->requests_failed},
		{"requests cancelled", stats->requests_cancelled},
		{"prompt tokens", stats->tokens_prompt},
		{"generated tokens", stats->tokens_generated},
		{"clients", stats->clients},
		{"rings", stats->rings},
		{"faulty sessions", stats->sessions_faulty},
	};

	print_status(stats, own);
	putchar('\n');
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		printf("  %-20s %" PRIu64 "\n", rows[i].name, rows[i].value);
}

int cmd_stats(struct kvctl *ctl, int argc, char **argv)
{
	struct kvd_stats stats;
	bool own;
	int r = fetch(ctl, argc, argv, &stats, &own);

	if (r)
		return r;
	if (ctl->json)
		print_json(&stats, own);
	else
		print_stats(&stats, own);
	return EXIT_OK;
}

int cmd_status(struct kvctl *ctl, int argc, char **argv)
{
	struct kvd_stats stats;
	bool own;
	int r = fetch(ctl, argc, argv, &stats, &own);

	if (r)
		return r;
	if (ctl->json)
		print_json(&stats, own);
	else
		print_status(&stats, own);
	return EXIT_OK;
}
