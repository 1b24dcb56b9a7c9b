/* SPDX-License-Identifier: MIT */
/* Requests to a small random model through a ring, with the whole way inside the daemon: what
 * a client hears when memory runs out at any point of taking one. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/gguf.h"
#include "daemon/serve/op_event.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/sessions.h"
#include "ipc/barrier.h"
#include "tests/unit/engine/tiny_engine.h"
#include "tests/unit/failing_alloc.h"
#include "tests/unit/suite.h"

#define N_PROMPT 20
#define PARAMS   4096

static char path[] = "/tmp/kvd-requests.XXXXXX";
static struct config config;
static struct loop *loop;
static struct engine engine;
static struct sessions sessions;
static struct session *session;
static struct session_ring *ring;
static uint64_t n_sqes, n_cqes;
static int peer;

static void setup(void)
{
	struct kvd_msg_ring_open msg = {
		.sq_entries = 4,
		.cq_entries = 64,
		.in_bytes = 65536,
		.out_bytes = 4096,
	};
	const struct engine_setup how = {.event = op_event, .event_ctx = &sessions};
	int pair[2];

	tiny_engine_config(&config, path);
	config.daemon.spin_us = 0;
	tiny_engine_init(&engine, how, &config, &loop);
	sessions_init(&sessions, loop, &config, &engine, NULL);
	ck_assert_int_eq(sessions_start(&sessions), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	peer = pair[1];
	sessions_accept(&sessions, pair[0], false);
	session = sessions.list;
	session->state = SESSION_READY;
	ck_assert_int_eq(session_ring_open(session, &msg, &ring), 0);
}

static void teardown(void)
{
	sessions_deinit(&sessions);
	engine_deinit(&engine);
	loop_free(loop);
	close(peer);
	config_deinit(&config);
	unlink(path);
}

/* A prompt of @n_seqs answers; the daemon has taken it. */
static void ask(uint32_t n_seqs, uint32_t flags)
{
	char *in = (char *)ring_daemon_in(&ring->ring, 0, 65536);
	struct kvd_gen_params params = {
		.size = sizeof(params),
		.flags = KVD_GEN_IGNORE_EOS | flags,
		.max_tokens = 3,
		.n = n_seqs,
	};
	struct kvd_sqe *slot = &ring->ring.sq[n_sqes % 4];

	for (uint32_t i = 0; i < N_PROMPT; i++)
		memcpy(in + 4 * i, &(uint32_t){i}, 4);
	memcpy(in + PARAMS, &params, sizeof(params));
	slot->opcode = KVD_OP_GENERATE;
	slot->input = KVD_INPUT_TOKENS;
	slot->in_len = 4 * N_PROMPT;
	slot->params_off = PARAMS;
	slot->params_len = sizeof(params);
	slot->user_data = 7;
	shm_store_release_u64(&slot->seq, ++n_sqes);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	ring_watch_prepare(&sessions);
}

static uint64_t until_idle(struct loop *l, void *userdata)
{
	uint64_t sleep_ns = ring_watch_prepare(&sessions);

	(void)userdata;
	if (!session->n_ops)
		loop_exit(l, 0);
	return sleep_ns;
}

static uint64_t until_uncharged(struct loop *l, void *userdata)
{
	uint64_t sleep_ns = ring_watch_prepare(&sessions);

	(void)userdata;
	if (!session->user->used[USER_BYTES])
		loop_exit(l, 0);
	return sleep_ns;
}

/* Ends of sequences, by sequence; the request's own is the last. Return: how many. */
static unsigned collect(int32_t *ret_res)
{
	unsigned n = 0;

	loop_set_prepare(loop, until_idle, NULL);
	if (session->n_ops)
		ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
	for (; n_cqes < ring->ring.cq_pos; n_cqes++) {
		const struct kvd_cqe *cqe = &ring->ring.cq[n_cqes % 64];

		ck_assert_uint_eq(cqe->user_data, 7);
		if (!(cqe->flags & KVD_CQE_MORE) || cqe->flags & KVD_CQE_END)
			ret_res[n++] = cqe->res;
		/* nothing follows the last one */
		ck_assert(cqe->flags & KVD_CQE_MORE || n_cqes + 1 == ring->ring.cq_pos);
	}
	shm_store_release_u64(&ring->ring.client->cq_pos, n_cqes);
	return n;
}

START_TEST(each_sequence_ends_once)
{
	int32_t res[4];

	ask(3, 0);
	ck_assert_uint_eq(collect(res), 3);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(res[i], 3);
	ck_assert_uint_eq(sessions.n_completed, 3);
}
END_TEST

/* Each end says what was wrong; nobody asked for a cancellation. */
START_TEST(memory_that_runs_out_is_said_so)
{
	unsigned n_failed, n_rounds = 0;
	int32_t res[4];

	do {
		unsigned n;

		n_failed = 0;
		fail_after = n_rounds++;
		ask(3, 0);
		fail_after = -1;
		n = collect(res);
		ck_assert_uint_ge(n, 1);
		for (unsigned i = 0; i < n; i++) {
			ck_assert(res[i] == 3 || res[i] == -ENOMEM);
			n_failed += res[i] != 3;
		}
		ck_assert_uint_eq(session->n_ops, 0);
	} while (n_failed);
	ck_assert_uint_gt(n_rounds, 5);
	ck_assert_uint_eq(sessions.n_cancelled, 0);
}
END_TEST

/* Tokens that are kept for FORK cost their user what they take, until they are forgotten. */
START_TEST(what_is_kept_is_charged)
{
	struct user *user = session->user;
	uint64_t arenas = user->used[USER_BYTES];
	int32_t res[4];

	/* for each direction a page, a queue of 64-byte entries in whole pages, and an arena */
	ck_assert_uint_eq(arenas, (4096 + 4096 + 65536) + (4096 + 64 * 64 + 4096));
	ask(1, KVD_GEN_KEEP);
	/* once more for the request itself, with its keys, until it has ended */
	ck_assert_uint_gt(user->used[USER_BYTES], arenas + 2 * 4 * (N_PROMPT + 3));
	ck_assert_uint_lt(user->used[USER_BYTES], arenas + 4096);
	ck_assert_uint_eq(collect(res), 1);
	ck_assert_uint_eq(user->used[USER_BYTES], arenas + 4 * (N_PROMPT + 3));
	ck_assert_int_eq(session_ring_forget_kept(ring, 7), 1);
	ck_assert_uint_eq(user->used[USER_BYTES], arenas);
	/* beyond the limit it is refused, and nothing stays charged */
	user->max[USER_BYTES] = arenas + 8;
	ask(1, KVD_GEN_KEEP);
	ck_assert_uint_eq(collect(res), 1);
	ck_assert_int_eq(res[0], KVD_E_QUOTA);
	ck_assert_uint_eq(user->used[USER_BYTES], arenas);
	/* nobody was given the descriptor, so what the client would read goes with it */
	ck_assert_int_eq(session_ring_close(session, ring->id, 1), 0);
	ring_watch_prepare(&sessions);
	sessions.lent.io.fn(&sessions.lent.io, LOOP_READ);
	ck_assert_uint_eq(user->used[USER_BYTES], 0);
}
END_TEST

/* So does what waits; a session that ends takes it along, whatever has become of it. */
START_TEST(what_waits_is_charged)
{
	struct user *user = session->user;
	uint64_t arenas = user->used[USER_BYTES], one;
	struct session *other;
	int32_t res[4];
	int pair[2];

	ask(1, 0);
	one = user->used[USER_BYTES] - arenas;
	ck_assert_uint_gt(one, 4 * (N_PROMPT + 3));
	user->max[USER_BYTES] = arenas + 2 * one - 1;
	/* the second one is refused at once */
	ask(1, 0);
	ck_assert_int_eq(ring->ring.cq[n_cqes].res, KVD_E_QUOTA);
	ck_assert_uint_eq(ring->ring.cq[n_cqes++].u.usage.detail, arenas + 2 * one - 1);
	ck_assert_uint_eq(collect(res), 1);
	ck_assert_int_eq(res[0], 3);
	ck_assert_uint_eq(user->used[USER_BYTES], arenas);
	/* of n sequences each costs as much */
	user->max[USER_BYTES] = arenas + 2 * one + 100;
	ask(3, 0);
	ck_assert_uint_le(user->used[USER_BYTES], user->max[USER_BYTES]);
	ck_assert_uint_ge(user->used[USER_BYTES], arenas + 2 * one);
	/* it keeps its user, without any connection, until the step in flight has ended */
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	sessions_accept(&sessions, pair[0], false);
	other = sessions.list_tail;
	ck_assert_ptr_eq(other->user, user);
	session_close(session);
	ring_watch_prepare(&sessions);
	ck_assert_uint_lt(user->used[USER_BYTES], arenas + 2 * one + 100);
	session = other;
	loop_set_prepare(loop, until_uncharged, NULL);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
	close(pair[1]);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("requests");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, each_sequence_ends_once);
	tcase_add_test(tcase, memory_that_runs_out_is_said_so);
	tcase_add_test(tcase, what_is_kept_is_charged);
	tcase_add_test(tcase, what_waits_is_charged);
	return run_case("requests", tcase);
}
