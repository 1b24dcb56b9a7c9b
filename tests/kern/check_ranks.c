/* SPDX-License-Identifier: MIT */
/* Several devices: columns of a matrix on each, and sums among them. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/comm.h"
#include "tests/kern/world.h"

enum { K = 1024, N = 40, M = 3, RANKS = 3, LEN = 1001 };

/* linear() by some columns of a matrix gives the bits of a matrix that has no others. */
static void check_columns(const struct ck *ck, struct world *w, enum kv_wtype type)
{
	size_t whole = (size_t)kv_wtype_row_bytes(type, K);
	size_t half = (size_t)kv_wtype_row_bytes(type, K / 2);
	uint8_t *data = ck_alloc(N * whole), *copy = ck_alloc(N * half);
	float *x = ck_alloc(M * K * 4), *want = ck_alloc(M * N * 4);
	float *got = ck_alloc(M * N * 4);
	struct kv_weight *weight;

	ck_context("columns of %s", kv_wtype_name(type));
	for (size_t i = 0; i < N * whole; i++)
		data[i] = (uint8_t)(ck_u64() & 0x3f); /* finite in every type */
	ck_fill(x, M * K, CK_NORMAL);
	for (uint32_t part = 0; part < 2; part++) {
		struct kv_weight_part strided = {.type = type,
						 .n = N,
						 .k = K / 2,
						 .data = data,
						 .row_stride = whole,
						 .col0 = part * K / 2};
		struct kv_weight_part dense = {type, N, K / 2, copy};
		struct kv_linear a = {.x = x + part * K / 2, .m = M, .ldx = K, .ldy = N};

		for (uint32_t i = 0; i < N; i++)
			memcpy(copy + i * half, data + i * whole + part * half, half);
		CK(w->be->weight_pack(w->dev, &dense, 1, &weight) == 0);
		a.w = weight;
		a.y = want;
		CK(w->be->linear(w->st, &a) == 0);
		w->be->weight_free(weight);
		CK(w->be->weight_pack(w->dev, &strided, 1, &weight) == 0);
		a.w = weight;
		a.y = got;
		CK(w->be->linear(w->st, &a) == 0);
		w->be->weight_free(weight);
		ck_same("y", got, want, M * N);
		/* Beyond the row's end, half a group, or nothing to say where rows begin. */
		strided.col0 += K / 2 + kv_wtype_group(type);
		CK(w->be->weight_pack(w->dev, &strided, 1, &weight) == -EINVAL);
		strided.col0 = kv_wtype_group(type);
		strided.row_stride = 0;
		CK(w->be->weight_pack(w->dev, &strided, 1, &weight) == -EINVAL);
		strided.col0 = 1;
		strided.row_stride = whole;
		CK(kv_wtype_group(type) == 1 ||
		   w->be->weight_pack(w->dev, &strided, 1, &weight) == -EINVAL);
	}
	ck_release_all();
}

struct party {
	struct kv_comm *comm;
	pthread_t thread;
	float sum[LEN], gathered[RANKS * LEN], told[LEN];
	int aborts_at; /* the round in which it stops */
	int status;
};

static float start_of(uint32_t rank, int i, int round)
{
	return (float)((rank + 1) * 1000 + (uint32_t)i * 7 % 13) /
	       (float)(3 + round + (int)rank);
}

static void *party_main(void *arg)
{
	struct party *p = arg;
	const struct kv_comm_ops *ops = p->comm->ops;
	float own[LEN];

	for (int round = 0; round < 200 && !p->status; round++) {
		if (round == p->aborts_at) {
			ops->abort(p->comm);
			p->status = -EIO;
			break;
		}
		for (int i = 0; i < LEN; i++)
			p->sum[i] = own[i] = p->told[i] =
				start_of(p->comm->rank, i, round);
		p->status = ops->all_reduce(p->comm, NULL, p->sum, LEN);
		if (!p->status)
			p->status = ops->all_gather(p->comm, NULL, own, p->gathered, LEN);
		if (!p->status)
			p->status = ops->broadcast(p->comm, NULL, p->told, LEN,
						   (uint32_t)round % RANKS);
	}
	return NULL;
}

static void run_parties(struct party *p, uint32_t aborting, int at)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		p[i].status = 0;
		p[i].aborts_at = i == aborting ? at : -1;
		CK(pthread_create(&p[i].thread, NULL, party_main, &p[i]) == 0);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		pthread_join(p[i].thread, NULL);
}

/* After the last of 200 rounds: sums in the order of ranks, in float, on all of them. */
static void check_sums(const struct party *p)
{
	for (int i = 0; i < LEN; i++) {
		float sum = start_of(0, i, 199) + start_of(1, i, 199);

		sum += start_of(2, i, 199);
		for (uint32_t k = 0; k < RANKS; k++) {
			CK(p[k].status == 0 && p[k].sum[i] == sum);
			CK(p[k].told[i] == start_of(199 % RANKS, i, 199));
			for (uint32_t from = 0; from < RANKS; from++)
				CK(p[k].gathered[from * LEN + (uint32_t)i] ==
				   start_of(from, i, 199));
		}
	}
}

static void check_comm(struct world *w)
{
	struct kv_device *devs[RANKS] = {w->dev, w->dev, w->dev};
	struct party *p = calloc(RANKS, sizeof(*p));
	struct kv_comm *comms[RANKS];

	ck_context("sums among ranks");
	CK(p && w->be->comm_open(devs, RANKS, comms) == 0);
	for (uint32_t i = 0; i < RANKS; i++) {
		p[i].comm = comms[i];
		CK(comms[i]->rank == i && comms[i]->n_ranks == RANKS);
	}
	run_parties(p, RANKS, 0);
	check_sums(p);
	/* One stops: nobody waits for ever, and afterwards all is as before. */
	for (int at = 0; at < 20; at++) {
		run_parties(p, (uint32_t)at % RANKS, at);
		for (uint32_t i = 0; i < RANKS; i++)
			CK(p[i].status ==
			   (i == (uint32_t)at % RANKS ? -EIO : -ECANCELED));
		comms[0]->ops->reset(comms[0]);
	}
	run_parties(p, RANKS, 0);
	check_sums(p);
	for (uint32_t i = 0; i < RANKS; i++)
		comms[i]->ops->close(comms[i]);
	CK(w->be->comm_open(devs, KV_MAX_RANKS + 1, comms) == -EINVAL);
	free(p);
}

void check_ranks(const struct ck *ck)
{
	const struct shape s = {64, 2, 1, 16, 64, KV_ROPE_NORMAL, 1, {1}};
	struct world w;

	if (!world_open(&w, ck, &s, 2, -1)) {
		ck_fail("open");
		return;
	}
	for (int type = 0; type < KV_WTYPE_N; type++)
		check_columns(ck, &w, (enum kv_wtype)type);
	if (!ck->below.act)
		check_comm(&w);
	world_close(&w);
}
