/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_INPUT_H
#define KVD_DAEMON_SERVE_INPUT_H

/*
 * From a private copy of a request's input to token ids: tokens are checked, text is tokenized, a
 * conversation is put into the chat template first. Thread: any.
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "daemon/res.h"

struct model_text;

/* Bytes of text in one request, and token ids of DETOKENIZE; others take what the context holds. */
#define INPUT_MAX_TEXT   KVD_MAX_TEXT_BYTES
#define INPUT_MAX_TOKENS KVD_MAX_DETOKENIZE

/**
 * input_tokens() - append the token ids of an input to @list, which stays the caller's
 * @kind: enum kvd_input
 * @flags: KVD_SQE_*
 * @ret_detail: a number that explains the error, else 0
 *
 * Return: 0, or the res of the final CQE: -EINVAL, -E2BIG (messages), -ENOMEM, KVD_E_TOKEN,
 * KVD_E_TEXT, KVD_E_EMPTY, KVD_E_TOKENIZER, KVD_E_TEMPLATE.
 */
kvd_res input_tokens(const struct model_text *model, uint16_t kind, const void *data,
		     uint32_t len, uint8_t flags, struct token_list *list,
		     uint64_t *ret_detail);

/* What DETOKENIZE writes of @list: drops ids that @flags leave out. Return: bytes; 0 without a
 * tokenizer. */
size_t input_text_len(const struct model_text *model, uint8_t flags,
		      struct token_list *list);

#endif
