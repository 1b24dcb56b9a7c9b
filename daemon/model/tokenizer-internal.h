/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_TOKENIZER_INTERNAL_H
#define KVD_DAEMON_MODEL_TOKENIZER_INTERNAL_H

/*
 * What tokenizer-load.c (building from a file) and tokenizer.c (use) share. Nobody else
 * includes it. Thread: as tokenizer.h.
 */

#include "daemon/model/bpe.h"
#include "daemon/model/pretokenize.h"
#include "daemon/model/tokenizer.h"

/* Longer special tokens do not occur; the limit bounds the search at each byte. */
#define SPECIAL_MAX_LEN 256

enum token_type {
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3,
	TOKEN_USER_DEFINED = 4,
	TOKEN_UNUSED = 5,
	TOKEN_BYTE = 6,
};

/*
 * Byte strings numbered from 0: the tokens first, in order, then strings that only merges
 * know. Text of number i is data[offs[i] .. offs[i + 1]). map finds a number by text
 * (open addressing over numbers + 1, 0 is empty); of equal strings the first is found, and
 * tokens that are not normal text are not in it.
 */
struct strings {
	uint8_t *data;
	size_t len, cap;
	uint32_t *offs;
	uint32_t n, offs_cap;
	uint32_t *map;
	uint32_t map_mask, n_mapped;
};

/* Tokens that are found in a text as wholes: ids sorted by text, and the bytes that one of
 * them begins with. */
struct whole_tokens {
	int32_t *ids;
	uint32_t n;
	bool first[256];
};

/**
 * struct tokenizer
 * @types:        [n_tokens] enum token_type
 * @eog:          [n_tokens] 0 or 1
 * @specials:     control, unknown and user-defined tokens
 * @user_defined: those of @specials that are text, found whatever the caller's flags
 * @byte_tokens:  by byte, TOKEN_NONE where the vocabulary has none
 */
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

/* Return: the number of a mapped string or BPE_NONE. */
uint32_t strings_find(const struct strings *strings, const uint8_t *s, size_t len);

static inline struct gguf_str strings_at(const struct strings *strings, uint32_t i)
{
	return (struct gguf_str){
		.data = (const char *)strings->data + strings->offs[i],
		.len = strings->offs[i + 1] - strings->offs[i],
	};
}

#endif
