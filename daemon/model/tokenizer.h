/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_TOKENIZER_H
#define KVD_DAEMON_MODEL_TOKENIZER_H

/*
 * Text to token ids and back, for the byte-level BPE vocabularies that GGUF files call "gpt2".
 *
 * Any bytes have an encoding, of at most one id a byte and BOS, and decode to the same bytes,
 * except those without a token (a control character, in some vocabularies), which give none, as in
 * llama.cpp and HF tokenizers. Owns a copy of the vocabulary, immutable once made: any number of
 * threads may encode and decode. Does not know chat formats (chat.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"

#define TOKEN_NONE (-1)

#define TOKENIZER_MAX_TEXT ((size_t)1 << 28)

enum tokenizer_flags {
	TOKENIZER_PARSE_SPECIAL = 1 << 0, /* recognize control tokens in the text */
	TOKENIZER_ADD_BOS = 1 << 1,       /* begin with BOS if the model wants it */
};

enum {
	TOKENIZER_TOO_COMPLEX = 1, /* the pattern matcher's work limit was reached */
	TOKENIZER_TOO_LONG = 2,
};

/* A growing list of ids; all-zero is empty. */
struct token_list {
	int32_t *ids;
	size_t n;
	size_t cap;
};

/* Return: 0 or -ENOMEM, with the list as it was. */
int token_list_add(struct token_list *list, int32_t id);
void token_list_deinit(struct token_list *list);

struct tokenizer;

/* Builds the tokenizer that a model file describes. Return: 0; -ENOTSUP: a tokenizer model or
 * pre-tokenizer that kvd does not know, named in @err; -EINVAL: a broken vocabulary; -ENOMEM. */
int tokenizer_new(struct tokenizer **ret, const struct gguf *gguf,
		  struct load_error *err);
void tokenizer_free(struct tokenizer *tok);

uint32_t tokenizer_n_tokens(const struct tokenizer *tok);
/* TOKEN_NONE where the model has none. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);
/* Whether generation ends with this token: EOS, end of turn, and what means the same by its text;
 * false for an id out of range, as below. */
bool tokenizer_is_eog(const struct tokenizer *tok, int32_t id);
/* Control tokens carry structure, not text. */
bool tokenizer_is_control(const struct tokenizer *tok, int32_t id);
/* The control or user-defined token with exactly this text, or TOKEN_NONE. */
int32_t tokenizer_find_special(const struct tokenizer *tok, const char *text);

/* Appends the ids of a text; @list is unchanged unless 0 is returned. @flags: enum tokenizer_flags.
 * Return: 0; TOKENIZER_TOO_COMPLEX; TOKENIZER_TOO_LONG; -ENOMEM. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len,
		     unsigned flags, struct token_list *list);

/* The bytes of a token, which may end inside a character, borrowed; none for an id out of
 * range. Control tokens give their name, such as "<|im_end|>". */
struct gguf_str tokenizer_piece(const struct tokenizer *tok, int32_t id);

/* Writes the first @cap bytes of a list of ids. Return: what all take; ids out of range add
 * nothing. */
size_t tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n,
			char *buf, size_t cap);

#endif
