/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_INPUT_H
#define KVD_DAEMON_SERVE_INPUT_H

/*
 * From the bytes of a request to token ids: tokens are checked, text is tokenized, a
 * conversation is put into the model's chat template first.
 *
 * Thread: any; the model's text side does not change. Works on private memory only; knows no
 * ring.
 */

#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "daemon/res.h"

struct model_text;

/* Longest text of one request. This bounds how long one client's text can hold up the
 * long texts of others (encoder.h). */
#define INPUT_MAX_TEXT KVD_MAX_TEXT_BYTES

/* Most token ids of one DETOKENIZE; other operations take what the context holds. */
#define INPUT_MAX_TOKENS KVD_MAX_DETOKENIZE

/**
 * input_tokens() - make token ids
 * @kind:   enum kvd_input
 * @data:   [len] bytes, private copy
 * @flags:  KVD_SQE_* of the request
 * @list:   appended to; the caller's in any case
 * @ret_detail: a number that explains the error, else 0
 *
 * Return: 0, or the res of the final CQE: -EINVAL, -E2BIG (text over INPUT_MAX_TEXT),
 * -ENOMEM, KVD_E_TOKEN, KVD_E_TEXT, KVD_E_TOKENIZER, KVD_E_TEMPLATE.
 */
kvd_res input_tokens(const struct model_text *model, uint16_t kind, const void *data,
		     uint32_t len, uint8_t flags, struct token_list *list,
		     uint64_t *ret_detail);

#endif
