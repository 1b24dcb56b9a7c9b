/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_CHOICES_H
#define KVD_CLIENT_KVCTL_CHOICES_H

/* Several answers to one prompt (generate -n), which come mixed on one ring, and the keys that
 * an answer has in JSON. Uses the installed headers only; the connection is the caller's. */
#include <kvclient.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/kvctl/json.h"
#include "client/kvctl/kvctl.h"

struct choice {
	struct kvc_result result;
	size_t text_cap;
	size_t tokens_cap;
	int res;
	bool ended;
};

struct choices {
	struct choice list[KVD_MAX_N];
	uint32_t n;
	uint64_t seed;
	bool logprobs;
};

/* @show: print each to stdout once it and those before it are whole. Return: 0, also when answers
 * ended with errors of their own (choices_error()); or the error of the library, or of a request
 * refused as a whole. choices_deinit() is safe after failure. */
int choices_run(struct choices *choices, struct kvc_client *client,
		const struct kvc_input *input, const struct kvc_gen_opts *opts,
		bool show);
void choices_deinit(struct choices *choices);

/* The first answer's error, or 0. */
int choices_error(const struct choices *choices);

/* One document: an object with the array "choices". */
void choices_print_json(const struct choices *choices, FILE *f);

/* enum kvd_finish as JSON names it. */
const char *choices_finish_name(uint32_t reason);

/* Into the open object. */
void choice_print_keys(struct json *json, const struct kvc_result *result);

#endif
