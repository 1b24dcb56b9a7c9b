/* SPDX-License-Identifier: MIT */
/* kvctl score: the log probability of each token of a text, and the perplexity. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

enum { OPT_NO_SPECIAL = 256 };

/*
 * The first token has none before it, so logprobs has one element less than tokens:
 * logprobs[i] belongs to tokens[i + 1].
 */
static void print_scores(const struct kvctl *ctl, const uint32_t *ids,
			 const float *logprobs, size_t n)
{
	double sum = 0, perplexity;
	struct json json;

	for (size_t i = 1; i < n; i++)
		sum += (double)logprobs[i];
	perplexity = n > 1 ? exp(-sum / (double)(n - 1)) : NAN;
	if (!ctl->json) {
		for (size_t i = 1; i < n; i++)
			printf("%" PRIu32 "\t%.4f\n", ids[i], (double)logprobs[i]);
		printf("perplexity %.4f over %zu tokens\n", perplexity, n);
		return;
	}
	json_init(&json, stdout);
	json_open_object(&json, NULL);
	json_open_array(&json, "tokens");
	for (size_t i = 0; i < n; i++)
		json_u64(&json, NULL, ids[i]);
	json_close_array(&json);
	json_open_array(&json, "logprobs");
	for (size_t i = 1; i < n; i++)
		json_f64(&json, NULL, (double)logprobs[i], 9);
	json_close_array(&json);
	json_f64(&json, "perplexity", perplexity, 12);
	json_close_object(&json);
	json_end(&json);
}

int cmd_score(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"no-special", no_argument, NULL, OPT_NO_SPECIAL},
		KVCTL_COMMON_OPTIONS,
	};
	struct kvc_client *client;
	float *logprobs = NULL;
	struct kvc_input input;
	uint32_t *ids = NULL;
	uint32_t flags = 0;
	size_t len, cap;
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
	/* No text has more tokens than bytes, but for the one that the model may begin with. */
	cap = len + 1;
	ids = calloc(cap, sizeof(*ids));
	logprobs = calloc(cap, sizeof(*logprobs));
	input = kvc_text(text, len);
	r = ids && logprobs ? kvc_score(client, &input, flags, ids, logprobs, cap, NULL)
			    : -ENOMEM;
	if (r < 0) {
		r = kvctl_fail("cannot score the text", r);
	} else {
		print_scores(ctl, ids, logprobs, (size_t)r < cap ? (size_t)r : cap);
		r = EXIT_OK;
	}
	free(logprobs);
	free(ids);
	kvc_close(client);
out_text:
	free(text);
	return r;
}
