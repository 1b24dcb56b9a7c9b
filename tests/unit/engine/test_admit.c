/* SPDX-License-Identifier: MIT */
/* Who gets a connection when there are few: by user, silent ones last. */
#include <check.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/serve/admit.h"
#include "daemon/serve/ring_open.h"
#include "daemon/serve/ring_watch.h"
#include "daemon/serve/session_ring.h"
#include "daemon/serve/sessions.h"
#include "tests/unit/suite.h"

#define N_CLIENTS 6

static struct config config;
static struct loop *loop;
static struct engine engine;
static struct sessions sessions;
static uid_t uid_of_next;

int __wrap_peer_cred_get(int fd, struct peer_cred *ret_cred);

int __wrap_peer_cred_get(int fd, struct peer_cred *ret_cred)
{
	*ret_cred = (struct peer_cred){.uid = uid_of_next, .gid = 7, .pid = 7};
	return 0;
}

static void setup(void)
{
	ck_assert_int_eq(config_init(&config), 0);
	config.daemon.max_clients = N_CLIENTS;
	config.daemon.spin_us = 0;
	ck_assert_int_eq(loop_new(&loop, LOOP_BACKEND_EPOLL), 0);
	engine = (struct engine){.loop = loop, .config = &config};
	sessions_init(&sessions, loop, &config, &engine, NULL);
}

/* What ends does so in turns. */
static void settle(void)
{
	for (int i = 0; i < 1000; i++)
		if (ring_watch_prepare(&sessions) == LOOP_SLEEP_FOREVER)
			return;
	ck_abort_msg("the loop spins");
}

static void teardown(void)
{
	sessions_deinit(&sessions);
	loop_free(loop);
	config_deinit(&config);
}

/* Return: the client's end. */
static int knock(uid_t uid, bool admin)
{
	int pair[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	uid_of_next = uid;
	sessions_accept(&sessions, pair[0], admin);
	settle();
	return pair[1];
}

/* Return: 0: still connected; else the status of REJECT, after which nothing comes. */
static int32_t rejected(int fd)
{
	struct kvd_msg_error msg;
	ssize_t n = recv(fd, &msg, sizeof(msg), 0);
	char rest;

	if (n < 0) {
		ck_assert_int_eq(errno, EAGAIN);
		return 0;
	}
	ck_assert_int_eq(n, sizeof(msg));
	ck_assert_uint_eq(msg.hdr.type, KVD_MSG_REJECT);
	ck_assert_int_eq(recv(fd, &rest, 1, 0), 0);
	return msg.hdr.status;
}

START_TEST(a_new_user_gets_the_place_of_a_silent_one)
{
	int first[N_CLIENTS], second[3], third;

	for (int i = 0; i < N_CLIENTS; i++)
		first[i] = knock(1, false);
	ck_assert_int_eq(rejected(knock(1, false)), KVD_E_QUOTA);
	/* an even share of two users is three */
	for (int i = 0; i < 3; i++) {
		second[i] = knock(2, false);
		ck_assert_int_eq(rejected(second[i]), 0);
		ck_assert_int_eq(rejected(first[N_CLIENTS - 1 - i]), KVD_E_QUOTA);
	}
	ck_assert_int_eq(rejected(knock(2, false)), KVD_E_QUOTA);
	ck_assert_int_eq(rejected(knock(1, false)), KVD_E_QUOTA);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(rejected(first[i]), 0);
		ck_assert_int_eq(rejected(second[i]), 0);
	}
	/* of three it is two; the newest of all that has more than that makes room */
	third = knock(3, false);
	ck_assert_int_eq(rejected(third), 0);
	ck_assert_int_eq(rejected(second[2]), KVD_E_QUOTA);
	ck_assert_uint_eq(sessions.n_sessions, N_CLIENTS);
}
END_TEST

START_TEST(who_said_hello_stays)
{
	int first[N_CLIENTS];

	for (int i = 0; i < N_CLIENTS; i++) {
		first[i] = knock(1, false);
		sessions.list_tail->state = SESSION_READY;
	}
	ck_assert_int_eq(rejected(knock(2, false)), KVD_E_QUOTA);
	/* so does one that a restart left asleep */
	sessions.list->state = SESSION_NEW;
	sessions.list->hello_tag = 5;
	ck_assert_int_eq(rejected(knock(2, false)), KVD_E_QUOTA);
	sessions.list->hello_tag = 0;
	ck_assert_int_eq(rejected(knock(2, false)), 0);
	ck_assert_int_eq(rejected(first[0]), KVD_E_QUOTA);
	for (int i = 1; i < N_CLIENTS; i++)
		ck_assert_int_eq(rejected(first[i]), 0);
}
END_TEST

START_TEST(administrators_always_get_in)
{
	int admin;

	for (int i = 0; i < N_CLIENTS; i++) {
		(void)knock(1, false);
		sessions.list_tail->state = SESSION_READY;
	}
	sessions.client_files = 0;
	admin = knock(2, true);
	ck_assert_int_eq(rejected(admin), 0);
	ck_assert_uint_eq(sessions.n_sessions, N_CLIENTS + 1);
}
END_TEST

START_TEST(hello_has_its_time)
{
	int silent = knock(1, false), greets = knock(1, false);
	struct session *one = sessions.list, *other = one->next;

	other->state = SESSION_READY;
	ck_assert_uint_eq(one->hello_timer.due_ns - loop_now(loop),
			  UINT64_C(10000000000));
	one->hello_timer.fn(&one->hello_timer, 0);
	other->hello_timer.fn(&other->hello_timer, 0);
	settle();
	ck_assert_int_eq(rejected(silent), -ETIMEDOUT);
	ck_assert_int_eq(rejected(greets), 0);
	ck_assert_ptr_eq(sessions.list, other);
}
END_TEST

/* Descriptors that are left are administrators'. */
START_TEST(the_last_descriptors)
{
	const struct kvd_msg_ring_open msg = {.sq_entries = 1, .cq_entries = 1};
	struct session_ring *ring;
	int fd = knock(1, false);
	struct session *client = sessions.list;

	ck_assert_int_eq(rejected(fd), 0);
	ck_assert_int_eq(session_ring_open(client, &msg, &ring), 0);
	sessions.client_files = fd + 1;
	ck_assert_int_eq(session_ring_open(client, &msg, &ring), -EMFILE);
	ck_assert_uint_eq(client->user->used[USER_RINGS], 1);
	ck_assert_int_eq(rejected(knock(2, false)), -EMFILE);
	(void)knock(1, true);
	ck_assert_int_eq(session_ring_open(sessions.list_tail, &msg, &ring), 0);
}
END_TEST

START_TEST(how_many_are_kept)
{
	admit_set_files(&sessions, 65536);
	ck_assert_int_eq(sessions.client_files, 65536 - ADMIT_RESERVE);
	admit_set_files(&sessions, 100);
	ck_assert_int_eq(sessions.client_files, 50);
	admit_set_files(&sessions, UINT64_MAX);
	ck_assert_int_eq(sessions.client_files, INT_MAX);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("admit");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_new_user_gets_the_place_of_a_silent_one);
	tcase_add_test(tc, who_said_hello_stays);
	tcase_add_test(tc, administrators_always_get_in);
	tcase_add_test(tc, hello_has_its_time);
	tcase_add_test(tc, the_last_descriptors);
	tcase_add_test(tc, how_many_are_kept);
	return run_case("admit", tc);
}
