/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_OPTS_H
#define KVD_CLIENT_OPTS_H

/*
 * What callers hand over, held against what kvd takes before anything is sent: option
 * structs of an older or newer caller, values out of range, texts and conversations that
 * are too large. Each refusal leaves one line for kvc_errmsg() that names the field, its
 * value and the range. Pure functions over the caller's memory, any thread.
 *
 * What only the daemon can judge (ids of the vocabulary, lengths in tokens, UTF-8 of
 * prompts) is left to it.
 */

#include <stddef.h>
#include <stdint.h>

#include <kvclient.h>

struct kvc_sqe;

/**
 * opts_read() - an option struct of any version into ours
 * @dst:  [size] zeroed first, and so is what an older caller does not have
 * @src:  begins with its size_t size; NULL: all defaults
 * @name: of the struct
 *
 * Return: 0; -EINVAL: its size is not set; -E2BIG: it sets what this library does not know.
 */
int opts_read(void *dst, size_t size, const void *src, const char *name);

/* Return: 0, -EINVAL, -E2BIG. */
int gen_opts_read(struct kvc_gen_opts *dst, const struct kvc_gen_opts *src);
/* What a SCORE asks for, in whichever form; zeros for other operations. */
int score_opts_of(const struct kvc_sqe *sqe, struct kvc_score_opts *dst);

/**
 * entry_check() - everything that a prepared entry names
 * @ret_detail: what usage.detail of its final CQE will be: the limit with -E2BIG, else 0
 *
 * Return: 0, -EINVAL, -E2BIG.
 */
int entry_check(const struct kvc_sqe *sqe, uint64_t *ret_detail);

#endif
