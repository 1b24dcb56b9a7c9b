/* SPDX-License-Identifier: MIT */
/* kvctl drain: let what runs finish and nothing new begin. */
#include <stdio.h>
#include <time.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_WAIT = 256, OPT_OFF };

/* From one look at what is left to the next. */
#define PAUSE_NS 50000000

static int wait_for_all(struct kvc_client *client, uint32_t *n_left)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	int r = 1;

	while (*n_left) {
		nanosleep(&pause, NULL);
		r = kvc_drain(client, KVD_DRAIN_ASK, n_left);
		if (r <= 0)
			break; /* somebody else ended it */
	}
	return r;
}

static void print(const struct kvctl *ctl, bool draining, uint32_t n_left)
{
	struct json json;

	if (ctl->json) {
		json_init(&json, stdout);
		json_open_object(&json, NULL);
		json_bool(&json, "draining", draining);
		json_u64(&json, "requests", n_left);
		json_close_object(&json);
		json_end(&json);
	} else if (!draining) {
		puts("kvd takes new requests");
	} else if (n_left) {
		printf("kvd takes no new requests; %u are left\n", n_left);
	} else {
		puts("kvd takes no new requests; none is left");
	}
}

int cmd_drain(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"wait", no_argument, NULL, OPT_WAIT},
		{"off", no_argument, NULL, OPT_OFF},
		KVCTL_COMMON_OPTIONS,
	};
	bool wait = false, off = false;
	struct kvc_client *client;
	uint32_t n_left = 0;
	int c, r;

	while ((c = kvctl_next_option(ctl, argc, argv, options)) != -1) {
		wait |= c == OPT_WAIT;
		off |= c == OPT_OFF;
	}
	kvctl_no_arguments(argc, argv);
	if (wait && off)
		kvctl_usage_error("--wait and --off exclude each other");
	r = kvctl_connect(ctl, &client);
	if (r)
		return r;
	r = kvc_drain(client, off ? KVD_DRAIN_OFF : KVD_DRAIN_ON, &n_left);
	if (r > 0 && wait)
		r = wait_for_all(client, &n_left);
	if (r >= 0)
		print(ctl, r > 0, n_left);
	if (r < 0) {
		r = kvctl_fail("cannot drain", r);
	} else if (!r && !off) {
		fputs("kvctl: somebody ended the draining meanwhile\n", stderr);
		r = EXIT_FAILED;
	} else {
		r = EXIT_OK;
	}
	kvc_close(client);
	return r;
}
