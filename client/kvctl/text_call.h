/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_KVCTL_TEXT_CALL_H
#define KVD_CLIENT_KVCTL_TEXT_CALL_H

/* What verbs share that take one text and --no-special and get ids: a connection, and room for
 * as many ids as there can be. */
#include <kvclient.h>
#include <stddef.h>
#include <stdint.h>

struct kvctl;

/* @flags: KVD_SQE_NO_SPECIAL, or 0; @ids: [cap]. */
struct text_call {
	struct kvc_client *client;
	struct kvc_input input;
	uint32_t flags;
	uint32_t *ids;
	size_t cap;
	char *text;
};

/* Return: 0, or the exit code after a message. text_call_end() is safe after failure. */
int text_call_begin(struct text_call *call, struct kvctl *ctl, int argc, char **argv);
void text_call_end(struct text_call *call);

struct json;

/* The array "tokens", into the open object. */
void text_call_print_ids(struct json *json, const uint32_t *ids, size_t n);

#endif
