/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_CHAT_H
#define KVD_DAEMON_MODEL_CHAT_H

/*
 * Messages of a conversation to the token ids that a model was trained to see. A template of no
 * known family makes chat requests fail by a condition; text and token requests work all the same.
 * Immutable once made, any thread.
 */

#include <stddef.h>

#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer.h"

enum {
	CHAT_NO_TEMPLATE = 1, /* the model file has none and none is configured */
	CHAT_UNKNOWN_TEMPLATE = 2,
	CHAT_BAD_ROLE = 3, /* none of system, user, assistant */
	CHAT_NO_MESSAGES = 4,
	CHAT_TOO_COMPLEX = 5, /* as TOKENIZER_TOO_COMPLEX and TOKENIZER_TOO_LONG */
};

struct chat_message {
	const char *role;
	size_t role_len;
	const char *content;
	size_t content_len;
};

struct chat_template;

/* Recognizes a model's chat format. @ret: after a condition, too: chat_encode() then answers that
 * condition again. @tok: outlives the template. @override: name of a family from the configuration,
 * or NULL. Return: 0; CHAT_NO_TEMPLATE; CHAT_UNKNOWN_TEMPLATE; -EINVAL: @override names no family,
 * or one whose markers the vocabulary lacks; -ENOMEM. */
int chat_template_new(struct chat_template **ret, const struct gguf *gguf,
		      const struct tokenizer *tok, const char *override,
		      struct load_error *err);
void chat_template_free(struct chat_template *chat);

/* Appends the ids of a conversation, ready for the assistant's answer; @list is unchanged unless 0
 * is returned. @ret_bad: the message of CHAT_BAD_ROLE. Return: 0; a condition above; -ENOMEM. */
int chat_encode(const struct chat_template *chat, const struct chat_message *messages,
		size_t n, struct token_list *list, size_t *ret_bad);

#endif
