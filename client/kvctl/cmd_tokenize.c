/* SPDX-License-Identifier: MIT */
/* kvctl tokenize: the ids of a text, none added. */
#include <inttypes.h>
#include <stdio.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/text_call.h"

static void print_ids(const struct kvctl *ctl, const uint32_t *ids, size_t n)
{
	struct json json;

	if (!ctl->json) {
		for (size_t i = 0; i < n; i++)
			printf("%s%" PRIu32, i ? " " : "", ids[i]);
		putchar('\n');
		return;
	}
	json_init(&json, stdout);
	json_open_object(&json, NULL);
	text_call_print_ids(&json, ids, n);
	json_close_object(&json);
	json_end(&json);
}

int cmd_tokenize(struct kvctl *ctl, int argc, char **argv)
{
	struct text_call call;
	int r, n;

	r = text_call_begin(&call, ctl, argc, argv);
	if (!r) {
		n = kvc_tokenize(call.client, &call.input, call.flags | KVD_SQE_NO_BOS,
				 call.ids, call.cap);
		if (n < 0)
			r = kvctl_fail("cannot tokenize", n);
		else
			print_ids(ctl, call.ids,
				  (size_t)n < call.cap ? (size_t)n : call.cap);
	}
	text_call_end(&call);
	return r;
}
