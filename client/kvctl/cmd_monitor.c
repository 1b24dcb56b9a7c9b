/* SPDX-License-Identifier: MIT */
/* kvctl monitor: what happens in the daemon, a JSON object a line. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvctl/choices.h"
#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

/* How long the daemon keeps events for us; it has room for KVD_EVENTS_PAGE of them. */
#define PAUSE_NS 50000000

static const char *kind_name(uint32_t kind)
{
	static const char *const names[] = {
		[KVD_EVENT_CONNECT] = "connect", [KVD_EVENT_DISCONNECT] = "disconnect",
		[KVD_EVENT_FAULT] = "fault",     [KVD_EVENT_REQUEST] = "request",
		[KVD_EVENT_EVICT] = "evict",     [KVD_EVENT_FLUSH] = "flush",
		[KVD_EVENT_LIMIT] = "limit",     [KVD_EVENT_QUOTA] = "quota",
		[KVD_EVENT_DRAIN] = "drain",
	};

	return kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind]
								      : "unknown";
}

static const char *op_name(uint32_t opcode)
{
	switch (opcode) {
	case KVD_OP_GENERATE:
		return "generate";
	case KVD_OP_SCORE:
		return "score";
	case KVD_OP_FORK:
		return "fork";
	default:
		return "other";
	}
}

static void print_request(struct json *json, const struct kvd_event *e)
{
	json_str(json, "op", op_name(e->opcode));
	json_i64(json, "status", e->status < 0 ? e->status : 0);
	if (e->status < 0)
		json_str(json, "error", kvc_errname(e->status));
	json_str(json, "finish_reason", choices_finish_name(e->finish_reason));
	json_u64(json, "prompt_tokens", e->prompt_tokens);
	json_u64(json, "cached_tokens", e->cached_tokens);
	json_u64(json, "generated_tokens", e->generated_tokens);
	json_f64(json, "ttft_ms", (double)e->ttft_ns * 1e-6, 9);
	json_f64(json, "total_ms", (double)e->total_ns * 1e-6, 9);
}

static void print_event(const struct kvd_event *e)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_f64(&json, "time", (double)e->time_ns * 1e-9, 16);
	json_str(&json, "event", kind_name(e->kind));
	if (e->client_id)
		json_u64(&json, "client", e->client_id);
	if (e->kind != KVD_EVENT_EVICT)
		json_u64(&json, "uid", e->uid);
	if (e->name[0])
		json_str_n(&json, "name", e->name, strnlen(e->name, sizeof(e->name)));
	switch (e->kind) {
	case KVD_EVENT_REQUEST:
		print_request(&json, e);
		break;
	case KVD_EVENT_DISCONNECT:
		json_u64(&json, "requests", e->requests);
		break;
	case KVD_EVENT_EVICT:
	case KVD_EVENT_FLUSH:
		json_u64(&json, "blocks", e->blocks);
		break;
	case KVD_EVENT_DRAIN:
		json_bool(&json, "draining", e->status);
		json_u64(&json, "requests", e->requests);
		break;
	case KVD_EVENT_LIMIT:
		json_str(&json, "error", kvc_errname(e->status));
		break;
	default:
		break;
	}
	json_close_object(&json);
	json_end(&json);
}

static void print_lost(uint64_t n)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_str(&json, "event", "lost");
	json_u64(&json, "count", n);
	json_close_object(&json);
	json_end(&json);
}

/* Return: an exit code, or below 0 an error. */
static int watch(struct kvc_client *client, struct kvd_event *events, uint64_t left)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	bool counted = left > 0;

	for (;;) {
		uint64_t lost;
		int n = kvc_events(client, events, KVD_EVENTS_PAGE, &lost);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			print_event(&events[i]);
			if (counted && --left == 0)
				return EXIT_OK;
		}
		if (lost)
			print_lost(lost);
		if (fflush(stdout) == EOF)
			return EXIT_FAILED;
		if (n < (int)KVD_EVENTS_PAGE)
			nanosleep(&pause, NULL);
	}
}

int cmd_monitor(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {{"count", required_argument, NULL, 'c'},
						KVCTL_COMMON_OPTIONS};
	struct kvd_event *events;
	struct kvc_client *client;
	uint64_t count = 0;
	int c, r;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1)
		count = kvctl_parse_u64("--count", optarg, 1, UINT64_MAX);
	kvctl_no_arguments(argc, argv);
	events = calloc(KVD_EVENTS_PAGE, sizeof(*events));
	if (!events) {
		fputs("kvctl: out of memory\n", stderr);
		return EXIT_FAILED;
	}
	r = kvctl_connect(ctl, &client);
	if (r) {
		free(events);
		return r;
	}
	r = watch(client, events, count);
	if (r < 0)
		r = kvctl_fail("cannot watch", r);
	free(events);
	kvc_close(client);
	return r;
}
