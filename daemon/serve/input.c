/* SPDX-License-Identifier: MIT */
/* See input.h. INPUT_MAX_TEXT bounds how long one client's text can hold up the texts of others. */
#include "daemon/serve/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <kvd/abi.h>

#include "daemon/log.h"
#include "daemon/model/chat.h"
#include "daemon/model/text.h"
#include "ipc/proto.h"
#include "ipc/sqe.h"
#include "ipc/utf8.h"

static kvd_res input_ids(const struct model_text *model, const void *data, uint32_t len,
			 struct token_list *list, uint64_t *ret_detail)
{
	uint32_t n = len / 4;

	if (len % 4)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t id;

		memcpy(&id, (const char *)data + (size_t)i * 4, sizeof(id));
		if (id >= model->n_vocab) {
			*ret_detail = i;
			return KVD_E_TOKEN;
		}
		if (token_list_add(list, (int32_t)id))
			return error_origin(-ENOMEM);
	}
	return 0;
}

static kvd_res input_text(const struct model_text *model, const char *text, uint32_t len,
			  uint8_t flags, struct token_list *list, uint64_t *ret_detail)
{
	unsigned how = 0;
	size_t valid;
	int r;

	if (!model->tokenizer)
		return KVD_E_TOKENIZER;
	valid = utf8_valid_len(text, len);
	if (valid < len) {
		*ret_detail = valid;
		return KVD_E_TEXT;
	}
	if (!(flags & KVD_SQE_NO_SPECIAL))
		how |= TOKENIZER_PARSE_SPECIAL;
	if (!(flags & KVD_SQE_NO_BOS))
		how |= TOKENIZER_ADD_BOS;
	r = tokenizer_encode(model->tokenizer, text, len, how, list);
	return r > 0 ? KVD_E_TOKENIZER : r;
}

static kvd_res chat_result(int r)
{
	switch (r) {
	case CHAT_NO_TEMPLATE:
	case CHAT_UNKNOWN_TEMPLATE:
		return KVD_E_TEMPLATE;
	case CHAT_BAD_ROLE:
		return -EINVAL;
	case CHAT_NO_MESSAGES:
		return KVD_E_EMPTY;
	case CHAT_TOO_COMPLEX:
		return KVD_E_TOKENIZER;
	default:
		return r;
	}
}

static kvd_res encode_chat(const struct chat_template *chat,
			   const struct chat_message *messages, size_t n,
			   struct token_list *list, uint64_t *ret_detail)
{
	size_t bad;
	int r = chat_encode(chat, messages, n, list, &bad);

	if (r == CHAT_BAD_ROLE)
		*ret_detail = bad;
	return chat_result(r);
}

static kvd_res input_chat(const struct model_text *model, const void *data, uint32_t len,
			  struct token_list *list, uint64_t *ret_detail)
{
	struct chat_message *messages;
	struct sqe_span role, content;
	size_t n = 0, pos = 0;
	kvd_res r;

	if (!model->chat)
		return KVD_E_TEMPLATE;
	messages = malloc(KVD_MAX_CHAT_MESSAGES * sizeof(*messages));
	if (!messages)
		return error_origin(-ENOMEM);
	while ((r = sqe_next_message(data, len, &pos, &role, &content)) > 0) {
		size_t valid = utf8_valid_len(content.bytes, content.len);

		if (n == KVD_MAX_CHAT_MESSAGES) {
			*ret_detail = KVD_MAX_CHAT_MESSAGES;
			r = -E2BIG;
			break;
		}
		if (valid < content.len) {
			*ret_detail =
				(uint64_t)(content.bytes - (const uint8_t *)data) + valid;
			r = KVD_E_TEXT;
			break;
		}
		messages[n++] = (struct chat_message){
			.role = (const char *)role.bytes,
			.role_len = role.len,
			.content = (const char *)content.bytes,
			.content_len = content.len,
		};
	}
	if (!r)
		r = encode_chat(model->chat, messages, n, list, ret_detail);
	free(messages);
	return r;
}

kvd_res input_tokens(const struct model_text *model, uint16_t kind, const void *data,
		     uint32_t len, uint8_t flags, struct token_list *list,
		     uint64_t *ret_detail)
{
	switch (kind) {
	case KVD_INPUT_TOKENS:
		return input_ids(model, data, len, list, ret_detail);
	case KVD_INPUT_TEXT:
		return input_text(model, data, len, flags, list, ret_detail);
	case KVD_INPUT_CHAT:
		return input_chat(model, data, len, list, ret_detail);
	default:
		return -EINVAL;
	}
}

size_t input_text_len(const struct model_text *model, uint8_t flags,
		      struct token_list *list)
{
	size_t n_kept = 0;

	if (!model->tokenizer)
		return 0;
	if (flags & KVD_SQE_SKIP_SPECIAL) {
		for (size_t i = 0; i < list->n; i++)
			if (!tokenizer_is_control(model->tokenizer, list->ids[i]))
				list->ids[n_kept++] = list->ids[i];
		list->n = n_kept;
	}
	return tokenizer_decode(model->tokenizer, list->ids, list->n, NULL, 0);
}
