/* SPDX-License-Identifier: MIT */
/* Requests about a large cache on the socket: turns of the loop between request and answer, and
 * sessions that end in between. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "daemon/cache/seq.h"
#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/control.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/sessions.h"
#include "ipc/proto.h"
#include "tests/unit/suite.h"

#define N_BLOCKS 4000
#define CHAIN    20
#define BT       1

static struct config config;
static struct loop *loop;
static struct engine engine;
static struct sessions sessions;
static int peers[2];

static struct session *join(int *ret_peer)
{
	int pair[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	*ret_peer = pair[1];
	sessions_accept(&sessions, pair[0], false);
	ck_assert_ptr_nonnull(sessions.list_tail);
	sessions.list_tail->state = SESSION_READY;
	sessions.list_tail->admin = true;
	return sessions.list_tail;
}

/* @n chains of CHAIN blocks of one token. */
static void publish(int32_t n)
{
	struct prefix_index *index = &engine.cache.index;

	for (int32_t seed = 1; seed <= n; seed++) {
		int32_t tokens[CHAIN] = {seed};
		struct prefix_key keys[CHAIN];
		struct prefix_chain chain = {
			.keys = keys, .cap_keys = CHAIN, .domain = 1};
		struct seq_table table;
		uint32_t id;

		ck_assert(!prefix_key_root(&index->keyer, &index->spaces[0].base, 1, NULL,
					   0, NULL, 0, &chain.root));
		ck_assert(!seq_init(&table, CHAIN));
		while (table.n_blocks < CHAIN) {
			ck_assert_int_eq(prefix_take(index, 1, 1, &id), 0);
			seq_append(&table, id);
		}
		ck_assert_uint_eq(seq_publish(&table, index, &chain, tokens, CHAIN),
				  CHAIN);
		seq_release(&table, index->pool);
		seq_deinit(&table);
	}
}

/* A turn is over after one piece. */
static uint64_t piece_clock(void)
{
	static uint64_t pieces;

	return loop_now(loop) + TURNS_NS * ++pieces;
}

static void setup(void)
{
	static const struct prefix_model identity = {.block_tokens = BT};
	const struct cache_config cache = {.identity = &identity,
					   .block_bytes = 64,
					   .n_blocks = N_BLOCKS,
					   .evict = &evict_adaptive};

	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	engine = (struct engine){.loop = loop, .config = &config};
	ck_assert_int_eq(cache_init(&engine.cache, &cache), 0);
	sessions_init(&sessions, loop, &config, &engine, NULL);
	sessions.turns.clock = piece_clock;
	publish(N_BLOCKS / CHAIN);
}

static void teardown(void)
{
	sessions_deinit(&sessions);
	ck_assert_ptr_null(engine.cache.index.flushes);
	ck_assert_int_eq(prefix_check(&engine.cache.index), 0);
	cache_deinit(&engine.cache);
	loop_free(loop);
	for (int i = 0; i < 2; i++)
		close(peers[i]);
	config_deinit(&config);
}

static void ask_flush(struct session *session, uint32_t tag)
{
	struct proto_request request = {0};

	proto_hdr_init(&request.hdr, KVD_MSG_CACHE_FLUSH, sizeof(request.u.flush), tag,
		       0);
	request.u.flush.hdr = request.hdr;
	control_request(session, &request);
}

static void ask_list(struct session *session, uint32_t tag, uint64_t after)
{
	struct proto_request request = {0};

	proto_hdr_init(&request.hdr, KVD_MSG_CACHE_LIST, sizeof(request.u.cache_list),
		       tag, 0);
	request.u.cache_list.after = after;
	control_request(session, &request);
}

/* What has arrived, or -EAGAIN. */
static ssize_t answer(int peer, void *buf, size_t size)
{
	ssize_t n = recv(peer, buf, size, MSG_DONTWAIT);

	return n < 0 ? -errno : n;
}

static int n_turns;

static uint64_t count_turns(struct loop *l, void *userdata)
{
	const int *wanted = userdata;

	if (n_turns++ == *wanted)
		loop_exit(l, 0);
	else
		ring_watch_prepare(&sessions);
	return LOOP_POLL_AGAIN;
}

static void turn(int wanted)
{
	n_turns = 0;
	loop_set_prepare(loop, count_turns, &wanted);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_set_prepare(loop, NULL, NULL);
}

START_TEST(an_answer_takes_turns)
{
	struct session *a = join(&peers[0]), *b = join(&peers[1]);
	struct kvd_msg_cache_flush_reply reply;
	struct kvd_msg_error error;
	int n = 0;

	/* nothing of its first piece is an answer yet; another one is not begun meanwhile */
	ask_flush(a, 7);
	ck_assert_ptr_nonnull(a->job);
	ck_assert_int_eq(answer(peers[0], &reply, sizeof(reply)), -EAGAIN);
	ask_list(a, 8, 0);
	ck_assert_int_ge(answer(peers[0], &error, sizeof(error)), (int)sizeof(error.hdr));
	ck_assert_uint_eq(error.hdr.tag, 8);
	ck_assert_int_eq(error.hdr.status, KVD_E_BUSY);
	ask_flush(b, 9);
	while (answer(peers[0], &reply, sizeof(reply)) == -EAGAIN) {
		turn(1);
		ck_assert_int_lt(n++, 1000);
	}
	ck_assert_int_ge(n, 3);
	ck_assert_uint_eq(reply.hdr.tag, 7);
	ck_assert_uint_eq(reply.counts.remaining, 0);
	while (answer(peers[1], &error, sizeof(error)) == -EAGAIN)
		turn(1);
	ck_assert_uint_eq(error.hdr.tag, 9);
	ck_assert_ptr_null(a->job);
	ck_assert_ptr_null(b->job);
	/* both together have flushed all, each block once */
	ck_assert_uint_le(reply.counts.flushed_blocks, N_BLOCKS);
	ck_assert_uint_eq(engine.cache.pool.n_free, N_BLOCKS);
}
END_TEST

START_TEST(a_session_takes_its_job_along)
{
	struct session *a = join(&peers[0]), *b = join(&peers[1]);
	struct kvd_msg_cache_flush_reply reply;

	ask_flush(a, 1);
	ask_flush(b, 2);
	turn(2);
	ck_assert_ptr_nonnull(a->job);
	session_close(a);
	ck_assert_ptr_null(a->job);
	turn(200);
	ck_assert_uint_eq(sessions.n_sessions, 1);
	ck_assert_int_gt(answer(peers[1], &reply, sizeof(reply)), 0);
	ck_assert_uint_eq(reply.hdr.tag, 2);
	ck_assert_uint_eq(engine.cache.pool.n_free, N_BLOCKS);
	/* the last one, and with the daemon */
	publish(N_BLOCKS / CHAIN);
	ask_flush(b, 3);
	ck_assert_ptr_nonnull(b->job);
}
END_TEST

/* All pages have all prefixes, once each. */
START_TEST(pages_of_a_listing)
{
	struct {
		struct kvd_msg_cache_list_reply head;
		struct kvd_prefix_info info[KVD_CLIENTS_PAGE];
	} page = {0};
	struct session *a = join(&peers[0]);
	uint32_t n = 0, n_pages = 0;

	peers[1] = dup(peers[0]);
	do {
		ask_list(a, 5, page.head.next);
		while (answer(peers[0], &page, sizeof(page)) == -EAGAIN)
			turn(1);
		ck_assert_uint_eq(page.head.hdr.type, KVD_MSG_CACHE_LIST_REPLY);
		for (uint32_t i = 0; i < page.head.n; i++) {
			ck_assert_uint_eq(page.info[i].tokens, CHAIN);
			ck_assert_uint_eq(page.info[i].own_blocks, CHAIN);
		}
		n += page.head.n;
		n_pages++;
	} while (page.head.next);
	ck_assert_uint_eq(n, N_BLOCKS / CHAIN);
	ck_assert_uint_ge(n_pages, N_BLOCKS / CHAIN / KVD_CLIENTS_PAGE);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("job");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, an_answer_takes_turns);
	tcase_add_test(tcase, a_session_takes_its_job_along);
	tcase_add_test(tcase, pages_of_a_listing);
	return run_case("job", tcase);
}
