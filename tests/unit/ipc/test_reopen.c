/* SPDX-License-Identifier: MIT */
/*
 * A ring is opened again while the daemon that came does not answer: nobody waits longer
 * than it says.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/ipc/restart.h"

static void wait_until_stopped(void)
{
	siginfo_t info;

	ck_assert_int_eq(waitid(P_PID, (id_t)fake.pid, &info, WSTOPPED), 0);
	ck_assert_int_eq(info.si_code, CLD_STOPPED);
}

static void *open_second(void *arg)
{
	struct kvc_ring *ring = arg;

	return kvc_ring_open(client, &ring, NULL) == 0 ? ring : NULL;
}

/*
 * The new daemon stops between its WELCOME and the ring. With no limit for its answers,
 * what waited for them would do so for ever: a peek returns, a wait ends by its own
 * deadline, and a ring that was closed meanwhile is closed again when it comes.
 */
START_TEST(opening_again_holds_up_nobody)
{
	const char *prompt = "slow 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct kvd_server_info info;
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring, *other;
	struct got got[1] = {0};
	pthread_t t;
	void *ret;

	start_with((struct fake_daemon){.restart = way(_i),
					.stop_at_open = true,
					.max_rings = 2,
					.first_tokens = 2},
		   5 * SECOND_NS, -1);
	other = open_ring();
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 2);
	kill(fake.pid, SIGUSR1);
	/* The other one asks first; nobody takes its answer. */
	do {
		ck_assert_int_eq(kvc_ring_peek_cqe(other, &cqe), -EAGAIN);
		kvc_get_server_info(client, &info);
	} while (info.generation == 7 || !other->reopen.tag);
	wait_until_stopped();
	for (int i = 0; i < 100; i++) {
		ck_assert_int_eq(take_ready(ring, got), -EAGAIN);
	}
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 20000000), -ETIME);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 1, 20000000), -ETIME);
	kvc_ring_close(other);
	(void)kvc_ring_event_fd(ring);
	kill(fake.pid, SIGCONT);
	wait_until_stopped();
	kill(fake.pid, SIGCONT);
	while (!got[0].finals) {
		(void)take_woken(ring, got);
	}
	ck_assert_str_eq(got[0].text, prompt);
	/* The first one's answer found nobody; there is room for its successor. */
	ck_assert_int_eq(pthread_create(&t, NULL, open_second, NULL), 0);
	wait_until_stopped();
	kill(fake.pid, SIGCONT);
	pthread_join(t, &ret);
	ck_assert_ptr_nonnull(ret);
	kvc_ring_close(ret);
	finish_ring(ring);
}
END_TEST

/* The same with a limit: the daemon is given up, first by an event loop that only sleeps. */
START_TEST(opening_again_has_its_limit)
{
	struct kvc_input in = kvc_text("slow 0123456789", 15);
	struct got got[1] = {0};
	struct kvc_ring *ring;

	start_with((struct fake_daemon){.restart = way(_i),
					.stop_at_open = true,
					.first_tokens = 1},
		   500000000, -1);
	ring = open_ring();
	/* Only now: a busy machine may take its time to connect. */
	client->timeout_ns = 200000000;
	(void)kvc_ring_event_fd(ring);
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGUSR1);
	while (!got[0].finals) {
		(void)take_woken(ring, got);
	}
	ck_assert_int_eq(got[0].res, -ECONNRESET);
	finish_ring(ring);
}
END_TEST

/*
 * It answers behind its limit, but before the client is given up: all goes on, as soon as
 * it says something. A ring that was closed meanwhile is closed again when it comes.
 */
START_TEST(opening_again_may_be_late)
{
	const char *prompt = "slow 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct kvd_stats stats = {.size = sizeof(stats)};
	struct kvc_ring *ring, *other;
	const struct kvd_cqe *cqe;
	struct got got[1] = {0};
	pthread_t t;
	void *ret;

	start_with((struct fake_daemon){.restart = way(_i & 1),
					.stop_at_open = true,
					.max_rings = 2,
					.first_tokens = 2},
		   30 * SECOND_NS, -1);
	other = open_ring();
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 2);
	kill(fake.pid, SIGUSR1);
	while (!other->reopen.tag)
		ck_assert_int_eq(kvc_ring_peek_cqe(other, &cqe), -EAGAIN);
	while (!ring->reopen.tag)
		if (kvc_ring_peek_cqe(ring, &cqe) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
	wait_until_stopped();
	/* Both have asked, and their limit is reached. */
	other->reopen.look_ns = 1;
	ring->reopen.look_ns = 1;
	while (!client->slow)
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 1000000), -ETIME);
	if (_i & 2)
		kvc_ring_close(other);
	kill(fake.pid, SIGCONT);
	wait_until_stopped();
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, 5);
	ck_assert_str_eq(got[0].text, prompt);
	ck_assert_int_eq(kvc_stats(client, &stats), 0);
	if (_i & 2) {
		ck_assert_int_eq(pthread_create(&t, NULL, open_second, NULL), 0);
		wait_until_stopped();
		kill(fake.pid, SIGCONT);
		pthread_join(t, &ret);
		ck_assert_ptr_nonnull(ret);
		other = ret;
	}
	kvc_prep_nop(next(other, 0));
	ck_assert_int_eq(kvc_ring_submit(other), 1);
	ck_assert_int_eq(kvc_ring_wait_cqe(other, &cqe, -1), 0);
	kvc_ring_cqe_seen(other);
	kvc_ring_close(other);
	finish_ring(ring);
}
END_TEST

/* What comes cannot be used: no room for descriptors, another geometry. It is closed. */
START_TEST(what_is_of_no_use_is_closed)
{
	struct kvc_input in = kvc_text("slow 0123456789", 15);
	bool no_room = _i & 2;
	struct rlimit old, low;
	const struct kvd_cqe *cqe;
	struct got got[1] = {0};
	struct kvc_ring *ring, *other;
	int rc;

	start_with((struct fake_daemon){.restart = way(_i & 1),
					.other_size = !no_room,
					.max_rings = 1,
					.first_tokens = 1},
		   10 * SECOND_NS, -1);
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 1);
	if (no_room) {
		ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
		low = old;
		rc = dup(0);
		ck_assert_int_ge(rc, 0);
		close(rc);
		low.rlim_cur = (rlim_t)rc + 2;
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	}
	kill(fake.pid, SIGUSR1);
	while ((rc = kvc_ring_wait_cqe(ring, &cqe, 10 * SECOND_NS)) == 0) {
		take(got, cqe);
		kvc_ring_cqe_seen(ring);
	}
	ck_assert_int_eq(rc, no_room ? -EMFILE : KVD_E_PROTO);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	if (no_room)
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	/* The only ring that may be open is free again. */
	ck_assert_msg(kvc_ring_open(client, &other, NULL) == 0, "%s", kvc_errmsg());
	kvc_ring_close(other);
	finish_ring(ring);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_set_timeout(t, 60);
	/* 0: the connection ends; 1: it is kept. */
	tcase_add_loop_test(t, opening_again_holds_up_nobody, 0, 2);
	tcase_add_loop_test(t, opening_again_has_its_limit, 0, 2);
	/* 2: and the other ring is closed meanwhile. */
	tcase_add_loop_test(t, opening_again_may_be_late, 0, 4);
	/* 2: and there is no room for descriptors; else another geometry. */
	tcase_add_loop_test(t, what_is_of_no_use_is_closed, 0, 4);
	return run_case("reopen", t);
}
