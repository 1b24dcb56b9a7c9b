/* SPDX-License-Identifier: MIT */
#ifndef KVD_CLIENT_OPTS_H
#define KVD_CLIENT_OPTS_H

/* Callers' arguments, checked before anything is sent. Each refusal leaves one line for
 * kvc_errmsg() that names the field, its value and the range. Pure functions, any thread. */

#include <stddef.h>
#include <stdint.h>

#include <kvclient.h>

struct kvc_sqe;

/* An option struct of any version, which begins with its size_t size, into [size] bytes of ours;
 * NULL: all defaults. -E2BIG: it sets fields that this library does not know. */
int opts_read(void *dst, size_t size, const void *src, const char *name);

/* Return: 0, -EINVAL, -E2BIG. */
int gen_opts_read(struct kvc_gen_opts *dst, const struct kvc_gen_opts *src);
/* Of a SCORE in either form; zeros for other operations. */
int score_opts_of(const struct kvc_sqe *sqe, struct kvc_score_opts *dst);

/* @ret_detail: the limit with -E2BIG, else 0. */
int entry_check(const struct kvc_sqe *sqe, uint64_t *ret_detail);

#endif
