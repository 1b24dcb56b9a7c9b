/* SPDX-License-Identifier: MIT */
/* kvctl score: the log probability of each token of a text, and the perplexity. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"
#include "client/kvctl/text_call.h"

static void print_text(const uint32_t *ids, const float *logprobs, size_t n,
		       double perplexity)
{
	for (size_t i = 1; i < n; i++)
		printf("%" PRIu32 "\t%.4f\n", ids[i], (double)logprobs[i]);
	if (n > 1)
		printf("perplexity %.4f over %zu tokens\n", perplexity, n);
	else
		printf("perplexity - over %zu token%s\n", n, n == 1 ? "" : "s");
}

/*
 * The first token has none before it, so logprobs has one element less than tokens:
 * logprobs[i] belongs to tokens[i + 1]. Of it alone there is no perplexity: null.
 */
static void print_json(const uint32_t *ids, const float *logprobs, size_t n,
		       double perplexity)
{
	struct json json;

	json_init(&json, stdout);
	json_open_object(&json, NULL);
	text_call_print_ids(&json, ids, n);
	json_open_array(&json, "logprobs");
	for (size_t i = 1; i < n; i++)
		json_f64(&json, NULL, (double)logprobs[i], 9);
	json_close_array(&json);
	json_f64(&json, "perplexity", perplexity, 12);
	json_close_object(&json);
	json_end(&json);
}

static void print_scores(const struct kvctl *ctl, const uint32_t *ids,
			 const float *logprobs, size_t n)
{
	double sum = 0, perplexity;

	for (size_t i = 1; i < n; i++)
		sum += (double)logprobs[i];
	perplexity = n > 1 ? exp(-sum / (double)(n - 1)) : NAN;
	if (ctl->json)
		print_json(ids, logprobs, n, perplexity);
	else
		print_text(ids, logprobs, n, perplexity);
}

int cmd_score(struct kvctl *ctl, int argc, char **argv)
{
	float *logprobs = NULL;
	struct text_call call;
	int r, n;

	r = text_call_begin(&call, ctl, argc, argv);
	if (!r) {
		logprobs = calloc(call.cap, sizeof(*logprobs));
		n = logprobs ? kvc_score(call.client, &call.input, call.flags, call.ids,
					 logprobs, call.cap, NULL)
			     : -ENOMEM;
		if (n < 0)
			r = kvctl_fail("cannot score the text", n);
		else
			print_scores(ctl, call.ids, logprobs,
				     (size_t)n < call.cap ? (size_t)n : call.cap);
	}
	free(logprobs);
	text_call_end(&call);
	return r;
}
