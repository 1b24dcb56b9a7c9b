/* SPDX-License-Identifier: MIT */
#ifndef KVD_MODEL_TEXT_H
#define KVD_MODEL_TEXT_H

/* The text side of a loaded model: what turns bytes into token ids and back. It does not change
 * while the model is loaded, so that any thread may read it. */

#include <stdint.h>

struct chat_template;
struct tokenizer;

/* @tokenizer, @chat: NULL where the model has none that kvd knows */
struct model_text {
	const struct tokenizer *tokenizer;
	const struct chat_template *chat;
	uint32_t n_vocab;
};

#endif
