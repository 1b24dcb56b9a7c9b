/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_TOKENIZER_H
#define KVD_DAEMON_MODEL_TOKENIZER_H

/*
 * Text to token ids and back, for the byte-level BPE vocabularies that GGUF files call
 * "gpt2".
 *
 * Owns a copy of the vocabulary, so that the file can be closed. Immutable once made: any
 * number of threads may encode and decode with one struct tokenizer at a time. Does not
 * know chat formats (chat.h) and never logs.
 *
 * Encoding. Tokens that stand for a whole text are found first: at each position the longest
 * that fits, leftmost first. User-defined ones ("<think>", runs of blanks) are text and
 * always found; control tokens, which carry structure, only where the caller says so. What
 * begins or ends a turn is a control token, whatever the file calls it. The text between is
 * cut into pieces (pretokenize.h) and each piece is merged (bpe.h). Bytes that are not valid
 * UTF-8 form pieces of their own and map one by one. A byte for which the vocabulary has no
 * token (some control characters, in some vocabularies) gives none, as in llama.cpp and HF
 * tokenizers, so that ids are the same as elsewhere. For text whose bytes all have tokens,
 * decoding the ids gives the same bytes back.
 *
 * A text of n bytes gives at most n + 1 ids, takes O(n log n) time and about 60 bytes of
 * scratch for each byte of its longest piece.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"

#define TOKEN_NONE (-1)

/* Longest text for one call; longer ones are TOKENIZER_TOO_LONG. */
#define TOKENIZER_MAX_TEXT ((size_t)1 << 28)

enum tokenizer_flags {
	TOKENIZER_PARSE_SPECIAL = 1 << 0, /* recognize control tokens in the text */
	TOKENIZER_ADD_BOS = 1 << 1,       /* begin with BOS if the model wants it */
};

/* Conditions of tokenizer_encode(). */
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

/**
 * tokenizer_new - build the tokenizer that a model file describes
 *
 * Return: 0; -ENOTSUP a tokenizer model or pre-tokenizer that kvd does not know, named in
 *	   @err; -EINVAL a broken vocabulary; -ENOMEM.
 */
int tokenizer_new(struct tokenizer **ret, const struct gguf *gguf,
		  struct load_error *err);
void tokenizer_free(struct tokenizer *tok);

uint32_t tokenizer_n_tokens(const struct tokenizer *tok);
/* TOKEN_NONE where the model has none. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);
/* Whether generation ends with this token: EOS, end of turn, and those that by their text
 * mean the same. Ids out of range: false. */
bool tokenizer_is_eog(const struct tokenizer *tok, int32_t id);
/* Control tokens carry structure, not text. Ids out of range: false. */
bool tokenizer_is_control(const struct tokenizer *tok, int32_t id);
/* The control or user-defined token with exactly this text, or TOKEN_NONE. */
int32_t tokenizer_find_special(const struct tokenizer *tok, const char *text);

/**
 * tokenizer_encode - append the ids of a text
 * @text: @len bytes of any content
 * @flags: enum tokenizer_flags
 * @list: appended to; unchanged unless 0 is returned
 *
 * Thread: any. Return: 0; TOKENIZER_TOO_COMPLEX; TOKENIZER_TOO_LONG; -ENOMEM.
 */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len,
		     unsigned flags, struct token_list *list);

/**
 * tokenizer_piece - the bytes that a token stands for
 *
 * A piece may end inside a UTF-8 character. Control tokens give their name, such as
 * "<|im_end|>": callers that show text leave them out (tokenizer_is_control()).
 *
 * Return: the bytes, borrowed, not terminated; length 0 for an id out of range.
 */
struct gguf_str tokenizer_piece(const struct tokenizer *tok, int32_t id);

/**
 * tokenizer_decode - the bytes of a list of ids
 * @buf: room for @cap bytes; may be NULL with @cap 0
 *
 * Return: bytes that the whole takes, which may be more than @cap; then the first @cap
 *	   bytes were written. Ids out of range add nothing.
 */
size_t tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n,
			char *buf, size_t cap);

#endif
