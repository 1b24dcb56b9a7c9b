/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_PRETOKENIZE_H
#define KVD_DAEMON_MODEL_PRETOKENIZE_H

/* Cuts valid UTF-8 into the pieces inside which byte pairs may merge: digits, words, runs of
 * spaces, as the family named by tokenizer.ggml.pre does. Does not know the vocabulary. Owns the
 * compiled patterns, immutable once made: any number of threads may cut. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pretokenizer;

enum {
	PRETOKENIZE_TOO_COMPLEX = 1, /* the match limit was reached */
};

/* Receives the pieces in order; a non-zero return stops the cutting and is passed on. */
typedef int pretokenize_fn(void *arg, const uint8_t *piece, size_t len);

/* Compiles the patterns of a family. @name: [len] value of tokenizer.ggml.pre. Return: 0; -ENOTSUP:
 * unknown; -ENOMEM. */
int pretokenizer_new(struct pretokenizer **ret, const char *name, size_t len);
void pretokenizer_free(struct pretokenizer *pre);

/* Known families, separated by spaces, as far as @size goes. */
void pretokenizer_list(char *buf, size_t size);
/* Whether a piece that is a token as a whole is that token, without merging. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pre);
/* Whether the family begins with BOS when the file does not say. */
bool pretokenizer_adds_bos(const struct pretokenizer *pre);

/* Cuts into pieces that cover the text without gaps and in order; none is empty. Return: 0;
 * PRETOKENIZE_TOO_COMPLEX; -ENOMEM; what @fn returned. */
int pretokenize(const struct pretokenizer *pre, const uint8_t *text, size_t len,
		pretokenize_fn *fn, void *arg);

#endif
