/* SPDX-License-Identifier: MIT */
/* kvctl tokenize: the ids of a text, none added. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_NO_SPECIAL = 256 };

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
	json_open_array(&json, "tokens");
	for (size_t i = 0; i < n; i++)
		json_u64(&json, NULL, ids[i]);
	json_close_array(&json);
	json_close_object(&json);
	json_end(&json);
}

int cmd_tokenize(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"no-special", no_argument, NULL, OPT_NO_SPECIAL},
		KVCTL_COMMON_OPTIONS,
	};
	uint32_t flags = KVD_SQE_NO_BOS;
	struct kvc_client *client;
	struct kvc_input input;
	uint32_t *ids = NULL;
	size_t len;
	char *text;
	int r;

	while (kvctl_next_option(ctl, argc, argv, options) != -1)
		flags |= KVD_SQE_NO_SPECIAL;
	text = kvctl_read_text(kvctl_one_argument(argc, argv, "TEXT"), &len);
	if (!text)
		return EXIT_FAILED;
	r = kvctl_connect(ctl, &client);
	if (r)
		goto out_text;
	/* No text has more tokens than bytes. */
	ids = calloc(len + 1, sizeof(*ids));
	input = kvc_text(text, len);
	r = ids ? kvc_tokenize(client, &input, flags, ids, len + 1) : -ENOMEM;
	if (r < 0) {
		r = kvctl_fail("cannot tokenize", r);
	} else {
		print_ids(ctl, ids, (size_t)r < len + 1 ? (size_t)r : len + 1);
		r = EXIT_OK;
	}
	free(ids);
	kvc_close(client);
out_text:
	free(text);
	return r;
}
