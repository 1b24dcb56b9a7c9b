/* SPDX-License-Identifier: MIT */
#include "client/kvctl/text_call.h"

#include <errno.h>
#include <stdlib.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_NO_SPECIAL = 256 };

int text_call_begin(struct text_call *call, struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"no-special", no_argument, NULL, OPT_NO_SPECIAL},
		KVCTL_COMMON_OPTIONS,
	};
	size_t len;
	int r;

	*call = (struct text_call){0};
	while (kvctl_next_option(ctl, argc, argv, options) != -1)
		call->flags = KVD_SQE_NO_SPECIAL;
	call->text = kvctl_read_text(kvctl_one_argument(argc, argv, "TEXT"), &len);
	if (!call->text)
		return EXIT_FAILED;
	r = kvctl_connect(ctl, &call->client);
	if (r)
		return r;
	/* No text has more tokens than bytes, but for the one that the model may begin with. */
	call->cap = len + 1;
	call->ids = calloc(call->cap, sizeof(*call->ids));
	if (!call->ids)
		return kvctl_fail("cannot hold the text", -ENOMEM);
	call->input = kvc_text(call->text, len);
	return 0;
}

void text_call_end(struct text_call *call)
{
	kvc_close(call->client);
	free(call->ids);
	free(call->text);
	*call = (struct text_call){0};
}

void text_call_print_ids(struct json *json, const uint32_t *ids, size_t n)
{
	json_open_array(json, "tokens");
	for (size_t i = 0; i < n; i++)
		json_u64(json, NULL, ids[i]);
	json_close_array(json);
}
