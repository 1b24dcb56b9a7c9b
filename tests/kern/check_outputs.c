/* SPDX-License-Identifier: MIT */
/* What ends a layer and a step: sums and their norms, tokens, distributions. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/kern/world.h"

/* Tokens and distributions of five rows of 32 logits, in double. */
static void check_tokens(struct world *w, const float *x)
{
	enum { N = 32, ROWS = 5 };
	struct kv_sample rows[ROWS] = {{.target = 31}, {.target = -1}, {.target = -1}};
	struct kv_token tokens[ROWS] = {0};
	float bad[N], all[N], best[3];
	uint32_t ids[3];
	struct kv_top tops[] = {{1, N, NULL, all}, {1, 3, ids, best}};

	rows[2].params = (struct kv_sample_params){.temperature = 1, .top_k = 1};
	rows[3] = (struct kv_sample){.target = -1, .params = {2, 0.9f, 0, 0, 7}};
	rows[4] = rows[3];
	CK(w->be->sample(w->st, x, N, N, rows, tokens, ROWS) == 0);
	CK(w->be->top(w->st, x, N, N, tops, 2) == 0);
	for (int i = 0; i < ROWS; i++) {
		const float *row = x + i * N;
		double sum = 0;
		int max = 0;

		for (int j = 0; j < N; j++) {
			sum += exp((double)row[j]);
			max = row[j] > row[max] ? j : max;
		}
		CK(tokens[i].token == 31 || i != 0);
		CK(tokens[i].token == max || (i != 1 && i != 2));
		CK(tokens[i].token >= 0 && tokens[i].token < N);
		ck_near("logprob", tokens[i].logprob, row[tokens[i].token] - log(sum),
			1e-5, 1e-5);
	}
	/* The whole row, and its likeliest three, say the same. */
	CK((int32_t)ids[0] == tokens[1].token);
	for (int i = 0; i < 3; i++) {
		int likelier = 0;

		CK(best[i] == all[ids[i]]);
		for (int j = 0; j < N; j++)
			likelier += all[j] > best[i];
		CK(likelier == i);
	}
	/* A draw follows its position, whatever row and thread it comes from. */
	memcpy(bad, x + 3 * N, sizeof(bad));
	rows[0] = rows[3];
	CK(w->be->sample(w->st, bad, N, N, rows, tokens, 1) == 0);
	CK(tokens[0].token == tokens[3].token && tokens[0].logprob == tokens[3].logprob);
	bad[7] = NAN;
	CK(w->be->sample(w->st, bad, N, N, rows, tokens, 1) == 0);
	CK(tokens[0].token == -1 && isnan(tokens[0].logprob));
	rows[0].target = N;
	CK(w->be->sample(w->st, x, N, N, rows, tokens, 1) == -EINVAL);
	tops[0].n = N - 1;
	CK(w->be->top(w->st, x, N, N, tops, 2) == -EINVAL);
	tops[0] = (struct kv_top){1, N + 1, ids, best};
	CK(w->be->top(w->st, x, N, N, tops, 1) == -EINVAL);
}

/* x += add, then the norm, in the array that was added. */
static void check_add_norm(struct world *w)
{
	enum { M = 3, D = 40 };
	float x[M * D], add[M * D], sum[M * D], weight[D], want[M * D];
	struct kv_norm norm = {.x = sum,
			       .y = want,
			       .w = weight,
			       .ldx = D,
			       .ldadd = D,
			       .ldy = D,
			       .eps = 1e-5f,
			       .m = M,
			       .d = D};

	ck_fill(x, M * D, CK_NORMAL);
	ck_fill(add, M * D, CK_NORMAL);
	ck_fill(weight, D, CK_NORMAL);
	for (int i = 0; i < M * D; i++)
		sum[i] = x[i] + add[i];
	CK(w->be->rms_norm(w->st, &norm) == 0);
	norm.x = x;
	norm.add = norm.y = add;
	CK(w->be->rms_norm(w->st, &norm) == 0);
	ck_same("sum", x, sum, M * D);
	ck_same("norm", add, want, M * D);
	norm.ldadd = D - 1;
	CK(w->be->rms_norm(w->st, &norm) == -EINVAL);
}

void check_outputs(const struct ck *ck)
{
	const struct shape s = {64, 2, 1, 16, 64, KV_ROPE_NORMAL, 1, {1}};
	float *x = ck_alloc(5 * 32 * 4);
	struct world w;

	for (uint32_t threads = 1; threads <= 3; threads += 2) {
		ck_context("outputs, %u threads", threads);
		if (!world_open(&w, ck, &s, threads, -1)) {
			ck_fail("open");
			return;
		}
		ck_fill(x, 5 * 32, CK_NORMAL);
		check_tokens(&w, x);
		check_add_norm(&w);
		world_close(&w);
	}
	ck_release_all();
}
