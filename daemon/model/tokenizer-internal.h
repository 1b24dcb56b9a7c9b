/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_TOKENIZER_INTERNAL_H
#define KVD_DAEMON_MODEL_TOKENIZER_INTERNAL_H

/* What tokenizer-load.c (building from a file) and tokenizer.c (use) share. Nobody else includes
 * it. Thread: as tokenizer.h. */

#include "daemon/model/bpe.h"
#include "daemon/model/pretokenize.h"
#include "daemon/model/strings.h"
#include "daemon/model/tokenizer.h"
#include "daemon/model/whole.h"

enum token_type {
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3,
	TOKEN_USER_DEFINED = 4,
	TOKEN_UNUSED = 5,
	TOKEN_BYTE = 6,
};

/* @types: [n_tokens] enum token_type. @eog: [n_tokens] 0 or 1. @specials: control, unknown and
 * user-defined tokens; @user_defined: those that are text, found whatever the caller's flags.
 * @byte_tokens: by byte; TOKEN_NONE where the vocabulary has none */
struct tokenizer {
	uint32_t n_tokens;
	struct strings strings;
	uint8_t *types;
	uint8_t *eog;
	struct whole_tokens specials;
	struct whole_tokens user_defined;
	struct bpe bpe;
	struct pretokenizer *pre;
	int32_t byte_tokens[256];
	int32_t bos, eos;
	bool add_bos;
};

#endif
