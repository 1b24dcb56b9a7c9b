/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_PRETOKENIZE_H
#define KVD_DAEMON_MODEL_PRETOKENIZE_H

/*
 * Cuts text into the pieces inside which byte pairs may merge: digits, words, runs of
 * spaces, as the family named by tokenizer.ggml.pre does.
 *
 * A family is one to two patterns, applied in sequence: each later one cuts the pieces of
 * the one before, and text that a pattern leaves unmatched stays a piece. Owns the
 * compiled patterns (PCRE2, JIT where the system allows it); immutable once made, so any
 * number of threads may cut with one. Works on valid UTF-8 only; the caller keeps other
 * bytes away. Does not know the vocabulary.
 *
 * Work is bounded by PCRE2's match limit and by the text's length, not by trust in the
 * patterns.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pretokenizer;

/* What cutting may answer besides 0 and -errno. */
enum {
	PRETOKENIZE_TOO_COMPLEX = 1, /* the match limit was reached */
};

/* Receives the pieces in order; a non-zero return stops the cutting and is passed on. */
typedef int pretokenize_fn(void *arg, const uint8_t *piece, size_t len);

/**
 * pretokenizer_new - compile the patterns of a family
 * @name: value of tokenizer.ggml.pre, @len bytes
 *
 * Return: 0; -ENOTSUP an unknown family (see pretokenizer_names()); -ENOMEM.
 */
int pretokenizer_new(struct pretokenizer **ret, const char *name, size_t len);
void pretokenizer_free(struct pretokenizer *pre);

/* Known families, separated by spaces, for error lines. */
const char *pretokenizer_names(void);
/* A piece that is a token as a whole is that token, without merging. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pre);
/* Whether the family begins with BOS when the file does not say. */
bool pretokenizer_adds_bos(const struct pretokenizer *pre);

/**
 * pretokenize - cut valid UTF-8 into pieces
 *
 * The pieces cover the text without gaps and in order; none is empty.
 *
 * Return: 0; PRETOKENIZE_TOO_COMPLEX; -ENOMEM; what @fn returned.
 */
int pretokenize(const struct pretokenizer *pre, const uint8_t *text, size_t len,
		pretokenize_fn *fn, void *arg);

#endif
