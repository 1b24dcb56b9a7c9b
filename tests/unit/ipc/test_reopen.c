/* SPDX-License-Identifier: MIT */
/*
 * A ring is opened again while the daemon that came does not answer: nobody waits longer
 * than it says.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <kvclient.h>

#include "client/internal.h"
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
 * whoever waited for them would do so for ever: a peek returns, a wait ends by its own
 * deadline, and a ring that was closed meanwhile is closed again when it comes.
 */
START_TEST(opening_again_holds_up_nobody)
{
	const char *prompt = "slow 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct pollfd p = {.events = POLLIN};
	struct kvd_server_info info;
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring, *other;
	struct got got[1] = {0};
	pthread_t t;
	void *ret;
	int rc;

	start_with((struct fake_daemon){.restart = way(_i),
					.stop_at_open = true,
					.max_rings = 2},
		   5 * SECOND_NS, -1);
	ck_assert_int_eq(kvc_ring_open(client, &other, NULL), 0);
	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
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
		while ((rc = kvc_ring_peek_cqe(ring, &cqe)) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
		ck_assert_int_eq(rc, -EAGAIN);
	}
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 20000000), -ETIME);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 1, 20000000), -ETIME);
	kvc_ring_close(other);
	p.fd = kvc_ring_event_fd(ring);
	kill(fake.pid, SIGCONT);
	wait_until_stopped();
	kill(fake.pid, SIGCONT);
	while (!got[0].finals) {
		ck_assert_int_eq(poll(&p, 1, 10000), 1);
		kvc_ring_event_ack(ring);
		while (kvc_ring_peek_cqe(ring, &cqe) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
	}
	ck_assert_str_eq(got[0].text, prompt);
	/* The first one's answer found nobody; there is room for its successor. */
	ck_assert_int_eq(pthread_create(&t, NULL, open_second, NULL), 0);
	wait_until_stopped();
	kill(fake.pid, SIGCONT);
	pthread_join(t, &ret);
	ck_assert_ptr_nonnull(ret);
	kvc_ring_close(ret);
	kvc_ring_close(ring);
	finish();
}
END_TEST

/* The same with a limit: the daemon is given up, first by an event loop that only sleeps. */
START_TEST(opening_again_has_its_limit)
{
	struct kvc_input in = kvc_text("slow 0123456789", 15);
	struct pollfd p = {.events = POLLIN};
	const struct kvd_cqe *cqe;
	struct got got[1] = {0};
	struct kvc_ring *ring;

	start_with((struct fake_daemon){.restart = way(_i), .stop_at_open = true},
		   500000000, -1);
	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	/* Only now: a busy machine may take its time to connect. */
	client->timeout_ns = 200000000;
	p.fd = kvc_ring_event_fd(ring);
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGUSR1);
	while (!got[0].finals) {
		ck_assert_int_eq(poll(&p, 1, 10000), 1);
		kvc_ring_event_ack(ring);
		while (kvc_ring_peek_cqe(ring, &cqe) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
	}
	ck_assert_int_eq(got[0].res, -ECONNRESET);
	kvc_ring_close(ring);
	finish();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("reopen");
	TCase *t = tcase_create("fake daemon");
	SRunner *sr;
	int failed;

	tcase_set_timeout(t, 60);
	/* 0: the connection ends; 1: it is kept. */
	tcase_add_loop_test(t, opening_again_holds_up_nobody, 0, 2);
	tcase_add_loop_test(t, opening_again_has_its_limit, 0, 2);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
