/* SPDX-License-Identifier: MIT */
/* Rings and sessions of a daemon without a model: full queues, long texts, sessions that
 * end. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/op.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/sessions.h"
#include "daemon/serve/submit.h"
#include "ipc/barrier.h"
#include "ipc/proto.h"

static struct config config;
static struct loop *loop;
static struct engine engine;
static struct sessions sessions;
static struct session *session;
static int peer;

static void setup(void)
{
	int pair[2];

	ck_assert_int_eq(config_init(&config), 0);
	config.daemon.spin_us = 0;
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	engine = (struct engine){.loop = loop, .config = &config};
	sessions_init(&sessions, loop, &config, &engine, NULL);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	peer = pair[1];
	sessions_accept(&sessions, pair[0], false);
	session = sessions.list;
	ck_assert_ptr_nonnull(session);
}

static void teardown(void)
{
	sessions_deinit(&sessions);
	loop_free(loop);
	close(peer);
	config_deinit(&config);
}

#define IN_BYTES (1u << 20)

static struct session_ring *open_ring(uint32_t sq_entries, uint32_t cq_entries)
{
	struct kvd_msg_ring_open msg = {
		.sq_entries = sq_entries,
		.cq_entries = cq_entries,
		.in_bytes = IN_BYTES,
		.out_bytes = 4096,
	};
	struct session_ring *ring;

	session->state = SESSION_READY;
	ck_assert_int_eq(session_ring_open(session, &msg, &ring), 0);
	return ring;
}

/* An operation that has ended. Return: whether its CQE was posted. */
static bool end_one(struct session_ring *ring, uint64_t user_data)
{
	struct kvd_sqe sqe = {.opcode = KVD_OP_TOKENIZE, .user_data = user_data};
	struct op *op = op_new(&engine, ring, &sqe, 1);

	ck_assert_ptr_nonnull(op);
	op_end(op, 0, NULL, 1);
	return op_flush(op);
}

/* The client has read @n CQEs; it looked at CQ_FULL when it was not set. */
static void client_read(struct session_ring *ring, uint64_t n)
{
	shm_store_release_u64(&ring->ring.client->cq_pos, n);
}

/* The same, and it signals as it should: where it sees CQ_FULL. */
static void client_makes_room(struct session_ring *ring, uint64_t n)
{
	client_read(ring, n);
	if (shm_load_u32(&ring->ring.daemon->flags) & KVD_DAEMON_CQ_FULL)
		ring->doorbell.fn(&ring->doorbell, LOOP_READ);
}

static uint64_t posted(const struct session_ring *ring)
{
	return ring->ring.cq_pos;
}

/* Until the daemon would sleep: then only the doorbell helps, which nobody rings. */
static void settle(void)
{
	for (int i = 0; i < 1000; i++)
		if (ring_watch_prepare(&sessions) == LOOP_SLEEP_FOREVER)
			return;
	ck_abort_msg("the loop spins");
}

START_TEST(one_post_takes_the_signal_of_another)
{
	struct session_ring *ring = open_ring(4, 1);

	ck_assert(end_one(ring, 1));
	ck_assert(!end_one(ring, 2));
	settle();
	ck_assert_uint_eq(posted(ring), 1);
	ck_assert_uint_eq(ring->n_blocked, 1);

	/* Room comes, and before the client looks at CQ_FULL another op takes it. */
	client_read(ring, 1);
	ck_assert(end_one(ring, 3));
	client_read(ring, 2);
	settle();
	ck_assert_uint_eq(posted(ring), 3);
	ck_assert_uint_eq(ring->n_blocked, 0);
}
END_TEST

/* The room went to the other before the daemon looked: the one that waits says so again. */
START_TEST(what_waits_asks_for_the_next_signal)
{
	struct session_ring *ring = open_ring(4, 1);

	ck_assert(end_one(ring, 1));
	ck_assert(!end_one(ring, 2));
	settle();
	client_read(ring, 1);
	ck_assert(end_one(ring, 3));
	settle();
	ck_assert_uint_eq(posted(ring), 2);
	client_makes_room(ring, 2);
	settle();
	ck_assert_uint_eq(posted(ring), 3);
	ck_assert_uint_eq(ring->n_blocked, 0);
}
END_TEST

START_TEST(one_post_takes_the_signal_of_an_sqe)
{
	struct session_ring *ring = open_ring(4, 1);
	struct kvd_sqe *slot = &ring->ring.sq[0];

	ck_assert(end_one(ring, 1));
	slot->opcode = KVD_OP_NOP;
	slot->user_data = 2;
	shm_store_release_u64(&slot->seq, 1);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	ck_assert_uint_eq(ring->ring.sq_pos, 0);

	client_read(ring, 1);
	ck_assert(end_one(ring, 3));
	client_read(ring, 2);
	settle();
	ck_assert_uint_eq(ring->ring.sq_pos, 1);
	ck_assert_uint_eq(posted(ring), 3);
}
END_TEST

START_TEST(full_queues_do_not_spin)
{
	struct session_ring *ring = open_ring(1, 1);

	ck_assert(end_one(ring, 1));
	ck_assert(!end_one(ring, 2));
	shm_store_release_u64(&ring->ring.sq[0].seq, 1);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	/* The client reads one; it sees CQ_FULL and signals. The op goes first. */
	client_read(ring, 1);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	ck_assert_uint_eq(posted(ring), 2);
	ck_assert_uint_eq(ring->ring.sq_pos, 0);
	client_read(ring, 2);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	ck_assert_uint_eq(posted(ring), 3);
	ck_assert_uint_eq(ring->ring.sq_pos, 1);
}
END_TEST

START_TEST(faults_end_the_session)
{
	struct session_ring *ring = open_ring(4, 1);

	ck_assert(end_one(ring, 1));
	ck_assert(!end_one(ring, 2));
	client_read(ring, 7);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	ck_assert_uint_eq(sessions.n_sessions, 0);
	ck_assert_uint_eq(sessions.n_faulty, 1);
}
END_TEST

static void fill_sq(struct session_ring *ring, uint8_t opcode, uint32_t in_len)
{
	for (uint32_t i = 0; i < ring->ring.sq_entries; i++) {
		struct kvd_sqe *slot = &ring->ring.sq[i];

		slot->opcode = opcode;
		slot->input = in_len ? KVD_INPUT_TEXT : KVD_INPUT_NONE;
		slot->in_len = in_len;
		shm_store_release_u64(&slot->seq, i + 1);
	}
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
}

static uint64_t long_ns;

/* Whatever is measured takes the time of a turn. */
static uint64_t long_clock(void)
{
	return long_ns += TURNS_NS;
}

/* What takes long is done one in a turn, and every ring gets its turn. */
START_TEST(long_inputs_take_turns)
{
	struct session_ring *light, *heavy[3];

	long_ns = loop_now(loop);
	sessions.turns.clock = long_clock;
	for (int i = 0; i < 3; i++)
		heavy[i] = open_ring(64, 64);
	light = open_ring(64, 64);
	fill_sq(light, KVD_OP_NOP, 0);
	for (int i = 0; i < 3; i++)
		fill_sq(heavy[i], KVD_OP_TOKENIZE, IN_BYTES);
	for (uint64_t turn = 1; turn <= 8; turn++) {
		uint64_t sum = 0;

		ring_watch_prepare(&sessions);
		for (int i = 0; i < 3; i++) {
			sum += heavy[i]->ring.sq_pos;
			ck_assert_uint_ge(heavy[i]->ring.sq_pos, turn / 4);
			ck_assert_uint_le(heavy[i]->ring.sq_pos, turn / 4 + 1);
		}
		ck_assert_uint_le(sum, turn);
		ck_assert_uint_ge(light->ring.sq_pos, turn / 4 * 32);
	}
	settle();
	ck_assert_uint_eq(light->ring.sq_pos, 64);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(posted(heavy[i]), 64);
}
END_TEST

/* A model of which only the encoder is there, and that without a tokenizer. */
static void setup_encoder(void)
{
	static char model;

	setup();
	engine.model = (struct engine_model *)&model;
	ck_assert_int_eq(
		encoder_init(&sessions.encoder, loop, &engine.text, submit_encoded), 0);
}

static const struct kvd_cqe *completion(const struct session_ring *ring, uint64_t i)
{
	return &ring->ring.cq[i & (ring->ring.cq_entries - 1)];
}

/* A long text, then a NOP; the daemon has seen both. */
static struct session_ring *ask_long(uint64_t user_data)
{
	struct session_ring *ring = open_ring(4, 4);
	struct kvd_sqe *slot = ring->ring.sq;

	slot[0].opcode = KVD_OP_TOKENIZE;
	slot[0].user_data = user_data;
	slot[0].input = KVD_INPUT_TEXT;
	slot[0].in_len = ENCODER_MIN_BYTES + 1;
	shm_store_release_u64(&slot[0].seq, 1);
	slot[1].opcode = KVD_OP_NOP;
	slot[1].user_data = user_data + 1;
	shm_store_release_u64(&slot[1].seq, 2);
	ring->doorbell.fn(&ring->doorbell, LOOP_READ);
	settle();
	return ring;
}

static struct session_ring *awaited, *before;

static uint64_t until_answered(struct loop *l, void *userdata)
{
	uint64_t sleep_ns = ring_watch_prepare(&sessions);

	if (before)
		ck_assert_uint_ge(posted(before), posted(awaited));
	if (posted(awaited) == 2)
		loop_exit(l, 0);
	return sleep_ns;
}

static void await(struct session_ring *ring, struct session_ring *other)
{
	awaited = ring;
	before = other;
	loop_set_prepare(loop, until_answered, NULL);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
}

START_TEST(a_long_text_keeps_its_place)
{
	struct session_ring *ring = ask_long(7);

	/* Nothing overtakes it, and nothing spins while it is in work. */
	ck_assert_uint_eq(posted(ring), 0);
	ck_assert_uint_eq(ring->ring.sq_pos, 1);
	await(ring, NULL);
	ck_assert_uint_eq(completion(ring, 0)->user_data, 7);
	ck_assert_int_eq(completion(ring, 0)->res, KVD_E_TOKENIZER);
	ck_assert_uint_eq(completion(ring, 1)->user_data, 8);
	ck_assert_int_eq(completion(ring, 1)->res, 0);
	ck_assert_uint_eq(session->n_ops, 0);
}
END_TEST

/* What is opened next is that user's. Return: the other end of its socket. */
static int another_user(uid_t uid)
{
	struct session *last = session;
	int pair[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	sessions_accept(&sessions, pair[0], false);
	session = last->next;
	session->cred.uid = uid;
	return pair[1];
}

START_TEST(users_with_long_texts_take_turns)
{
	uid_t uid = session->cred.uid;
	struct session_ring *first, *second, *other;
	int sock;

	first = ask_long(1);
	second = ask_long(3);
	sock = another_user(uid + 1);
	other = ask_long(5);
	await(second, other);
	ck_assert_uint_eq(posted(first), 2);
	ck_assert_uint_eq(posted(other), 2);
	close(sock);
}
END_TEST

/* However much two users ask for, a third one waits for one text of each. */
START_TEST(a_third_user_gets_a_turn)
{
	uid_t uid = session->cred.uid;
	struct session_ring *more[2], *last;
	int sock[2];

	ask_long(1);
	more[0] = ask_long(3);
	sock[0] = another_user(uid + 1);
	ask_long(5);
	more[1] = ask_long(7);
	sock[1] = another_user(uid + 2);
	last = ask_long(9);
	await(more[0], last);
	await(more[1], last);
	ck_assert_uint_eq(posted(last), 2);
	close(sock[0]);
	close(sock[1]);
}
END_TEST

START_TEST(rings_close_with_long_texts)
{
	struct session_ring *in_work = ask_long(1), *waiting = ask_long(3);
	struct session_ring *last = ask_long(5);

	ck_assert_uint_eq(session->n_ops, 3);
	ck_assert_int_eq(session_ring_close(session, waiting->id, 1), 0);
	ck_assert_int_eq(session_ring_close(session, in_work->id, 2), 0);
	ck_assert_uint_eq(session->n_ops, 1);
	await(last, NULL);
	ck_assert_uint_eq(session->n_ops, 0);
	/* and a session that ends while its text is in work */
	ask_long(7);
	session_fault(session, "a test");
	ck_assert_int_eq(session->state, SESSION_CLOSING);
}
END_TEST

static int n_turns;

/* Mark the session in the first turn, when the loop is about to look at its socket. */
static uint64_t close_first(struct loop *l, void *userdata)
{
	if (n_turns++ == 0)
		session_fault(session, "a test");
	else
		ring_watch_prepare(&sessions);
	/* its rings end first, in as many turns as that takes */
	if (!sessions.n_sessions || n_turns == 1000)
		loop_exit(l, 0);
	return LOOP_POLL_AGAIN;
}

START_TEST(nothing_revives_a_closing_session)
{
	struct kvd_msg_hello hello = {
		.magic = KVD_HELLO_MAGIC,
		.version = KVD_ABI_VERSION,
	};

	open_ring(4, 4);
	proto_hdr_init(&hello.hdr, KVD_MSG_HELLO, sizeof(hello), 1, 0);
	ck_assert_int_eq(send(peer, &hello, sizeof(hello), 0), sizeof(hello));
	n_turns = 0;
	loop_set_prepare(loop, close_first, NULL);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
	ck_assert_uint_eq(sessions.n_sessions, 0);
	ck_assert_uint_eq(sessions.n_rings, 0);
}
END_TEST

START_TEST(a_ring_closes_with_ops_waiting)
{
	struct session_ring *a = open_ring(4, 1), *b = open_ring(4, 1);

	for (struct session_ring *ring = a; ring; ring = ring == a ? b : NULL) {
		ck_assert(end_one(ring, 1));
		ck_assert(!end_one(ring, 2));
		ck_assert(!end_one(ring, 3));
	}
	ck_assert_uint_eq(session->n_ops, 4);
	ck_assert_int_eq(session_ring_close(session, a->id, 1), 0);
	ck_assert_uint_eq(session->n_ops, 2);
	client_read(b, 1);
	b->doorbell.fn(&b->doorbell, LOOP_READ);
	settle();
	ck_assert_uint_eq(posted(b), 2);
}
END_TEST

static unsigned n_iterations;

/* Until nothing is to be done, which must not take long. */
static uint64_t until_asleep(struct loop *l, void *userdata)
{
	uint64_t sleep_ns = ring_watch_prepare(&sessions);

	if (sleep_ns == LOOP_SLEEP_FOREVER && n_iterations > 8)
		loop_exit(l, 0);
	ck_assert_uint_lt(n_iterations++, 1000);
	return 0;
}

static void sleep_again(void)
{
	n_iterations = 0;
	loop_set_prepare(loop, until_asleep, NULL);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
}

/* Signals before the turn of a ring are one, and the next one after it is heard. */
START_TEST(a_doorbell_rings_on_and_on)
{
	struct session_ring *ring = open_ring(4, 4);
	const uint64_t one = 1;

	for (uint64_t i = 0; i < 4; i++) {
		struct kvd_sqe *slot = &ring->ring.sq[i];

		for (uint64_t k = 0; k < i; k++)
			ring->doorbell.fn(&ring->doorbell, LOOP_READ);
		sleep_again();
		ck_assert_uint_eq(ring->doorbell.events, LOOP_READ | LOOP_EDGE);
		slot->opcode = KVD_OP_NOP;
		shm_store_release_u64(&slot->seq, i + 1);
		ck_assert_int_eq(write(ring->ring.fd_submit, &one, sizeof(one)),
				 sizeof(one));
		sleep_again();
		ck_assert_uint_eq(posted(ring), i + 1);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rings");
	TCase *tc = tcase_create("rings");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, one_post_takes_the_signal_of_another);
	tcase_add_test(tc, what_waits_asks_for_the_next_signal);
	tcase_add_test(tc, one_post_takes_the_signal_of_an_sqe);
	tcase_add_test(tc, full_queues_do_not_spin);
	tcase_add_test(tc, faults_end_the_session);
	tcase_add_test(tc, long_inputs_take_turns);
	tcase_add_test(tc, nothing_revives_a_closing_session);
	tcase_add_test(tc, a_ring_closes_with_ops_waiting);
	tcase_add_test(tc, a_doorbell_rings_on_and_on);
	suite_add_tcase(s, tc);
	tc = tcase_create("encoder");
	tcase_add_checked_fixture(tc, setup_encoder, teardown);
	tcase_add_test(tc, a_long_text_keeps_its_place);
	tcase_add_test(tc, users_with_long_texts_take_turns);
	tcase_add_test(tc, a_third_user_gets_a_turn);
	tcase_add_test(tc, rings_close_with_long_texts);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
