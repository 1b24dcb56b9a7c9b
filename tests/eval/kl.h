/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_EVAL_KL_H
#define KVD_TESTS_EVAL_KL_H

/*
 * One distribution against another, over the whole vocabulary, and how a window's figures
 * are printed. Pure arithmetic on rows of natural-log probabilities.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/**
 * struct kl_window - figures of one window under one format, a number per position
 * @kl:   [n] KL(reference || this) of the distribution after each position, in nats
 * @nll:  [n] -log p of the token that really follows; nan after the last
 * @same: [n] 1 where the likeliest token is the reference's
 */
struct kl_window {
	size_t n;
	double *kl, *nll;
	uint8_t *same;
};

static inline size_t kl_argmax(const float *lp, size_t n)
{
	size_t best = 0;

	for (size_t i = 1; i < n; i++)
		if (lp[i] > lp[best])
			best = i;
	return best;
}

/* @p: [n] the reference's probabilities, @ref: [n] their logarithms, @lp: [n] the other's. */
static inline double kl_row(const float *p, const float *ref, const float *lp, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)p[i] * ((double)ref[i] - (double)lp[i]);
	return sum;
}

/* Fills in positions first .. first + m - 1; @ids: [w->n] the window's tokens. */
static inline void kl_fill(struct kl_window *w, const uint32_t *ids, size_t first,
			   size_t m, const float *ref, const float *lp, size_t n_vocab,
			   float *p)
{
	for (size_t i = 0; i < m; i++, ref += n_vocab, lp += n_vocab) {
		size_t pos = first + i;

		for (size_t t = 0; t < n_vocab; t++)
			p[t] = expf(ref[t]);
		w->kl[pos] = kl_row(p, ref, lp, n_vocab);
		w->same[pos] = kl_argmax(ref, n_vocab) == kl_argmax(lp, n_vocab);
		w->nll[pos] = pos + 1 < w->n ? -(double)lp[ids[pos + 1]] : NAN;
	}
}

/* One line of JSON. */
static inline void kl_print(const struct kl_window *w, size_t window, const char *name)
{
	printf("{\"window\":%zu,\"format\":\"%s\",\"kl\":[", window, name);
	for (size_t i = 0; i < w->n; i++)
		printf("%s%.9g", i ? "," : "", w->kl[i]);
	printf("],\"nll\":[");
	for (size_t i = 0; i + 1 < w->n; i++)
		printf("%s%.9g", i ? "," : "", w->nll[i]);
	printf("],\"same\":[");
	for (size_t i = 0; i < w->n; i++)
		printf("%s%d", i ? "," : "", w->same[i]);
	printf("]}\n");
	fflush(stdout);
}

#endif
