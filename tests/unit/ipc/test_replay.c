/* SPDX-License-Identifier: MIT */
/*
 * What a request carries from one daemon to the next: how much of its answer is known, the
 * time that is left, what counts against it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/ipc/restart.h"

/* One ring with one request, which has given out @n_tokens, and no more may come. */
static struct kvc_ring *begin(struct fake_daemon options, const char *prompt,
			      const struct kvc_gen_opts *opts, struct got *got,
			      unsigned n_tokens)
{
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct kvc_ring *ring;

	options.first_tokens = n_tokens;
	start_with(options, 20 * SECOND_NS, -1);
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, opts);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, n_tokens);
	return ring;
}

/* Until the request in flight has come so far with its second answer. */
static void replay_until(struct kvc_ring *ring, uint32_t n_tokens)
{
	const struct kvd_cqe *cqe;

	while (ring->reqs[0].again.n_tokens < n_tokens)
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 1000000), -ETIME);
}

START_TEST(other_bytes_of_the_same_tokens)
{
	struct fake_daemon options = {.restart = way(_i)};
	struct got got[1] = {0};
	struct kvc_ring *ring = begin(options, "text 0123456789", NULL, got, 3);

	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	ck_assert_str_eq(got[0].text, "text 0123");
	finish_ring(ring);
}
END_TEST

/* A token whose bytes take several CQEs, of which some were given out. */
START_TEST(in_the_middle_of_a_token)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_input in = kvc_text("big", 3);
	const struct kvd_cqe *cqe;
	struct got got[1] = {0};
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i)}, 20 * SECOND_NS);
	o.sq_entries = 2;
	o.cq_entries = 2;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
	kill(fake.pid, SIGSTOP);
	take_some(ring, got, 1);
	kill(fake.pid, SIGUSR1);
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, 1);
	ck_assert_uint_eq(got[0].len, 100);
	finish_ring(ring);
}
END_TEST

/* The new daemon would not end it for a long time; nobody waits for that. */
START_TEST(another_answer_is_cancelled)
{
	struct fake_daemon options = {.restart = way(_i)};
	struct got got[1] = {0};
	struct kvc_ring *ring = begin(options, "wild 0123456789", NULL, got, 1);

	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	finish_ring(ring);
}
END_TEST

START_TEST(several_that_were_shown_are_lost)
{
	const char *prompt = "slow 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct fake_daemon options = {.restart = way(_i & 1)};
	struct got got[1] = {0};
	struct kvc_ring *ring;

	opts.n = 2;
	if (_i & 2) {
		ring = begin(options, prompt, &opts, got, 2);
	} else {
		start_with(options, 20 * SECOND_NS, -1);
		ring = open_ring();
		kill(fake.pid, SIGSTOP);
		kvc_prep_generate(next(ring, 0), &in, &opts);
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
	}
	kill(fake.pid, SIGUSR1);
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	if (_i & 2)
		ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	else
		ck_assert_str_eq(got[0].text, prompt);
	finish_ring(ring);
}
END_TEST

/* The fake daemon tells with what timeout it got the request. */
START_TEST(time_is_counted_from_the_first)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct fake_daemon options = {.restart = way(_i)};
	struct got got[1] = {0};
	struct kvc_ring *ring;

	opts.timeout_ms = 60000;
	ring = begin(options, "slow 0123456789", &opts, got, 2);
	usleep(30000);
	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].res, 5);
	ck_assert_uint_gt(got[0].usage.detail, 0);
	ck_assert_uint_le(got[0].usage.detail, 60000 - 30);
	finish_ring(ring);
}
END_TEST

/* What has not come as far as before cannot be branched where the caller means it. */
START_TEST(no_fork_of_what_comes_again)
{
	struct fake_daemon options = {.restart = way(_i)};
	struct got got[4] = {0};
	struct kvc_ring *ring = begin(options, "once 0123456789", NULL, got, 4);
	struct kvc_request *q = &ring->reqs[0];

	restart(ring, got);
	replay_until(ring, 2);
	ck_assert(q->replay);
	kvc_prep_fork(next(ring, 1), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 1);
	ck_assert_int_eq(got[1].res, KVD_E_RESTARTED);
	/* As if it had come out otherwise, and its end were on the way. */
	q->replay = false;
	q->doomed = true;
	kvc_prep_fork(next(ring, 2), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 1);
	ck_assert_int_eq(got[2].res, KVD_E_RESTARTED);
	ck_assert_int_eq(got[0].finals, 0);
	finish_ring(ring);
}
END_TEST

START_TEST(no_fork_of_what_is_held_back)
{
	struct fake_daemon options = {.restart = way(_i), .refuses = true};
	struct got got[2] = {0};
	struct kvc_ring *ring = begin(options, "hang", NULL, got, 0);

	restart(ring, got);
	wait_until_held(ring, &ring->reqs[0]);
	kvc_prep_fork(next(ring, 1), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 1);
	ck_assert_int_eq(got[1].res, KVD_E_RESTARTED);
	ck_assert_int_eq(got[0].finals, 0);
	finish_ring(ring);
}
END_TEST

/* A request that gets on has nothing against it, however often it was lost before. */
START_TEST(getting_on_clears_the_account)
{
	const char *prompt = "slow 0123456789 0123456789";
	struct fake_daemon options = {.restart = way(_i)};
	struct got got[1] = {0};
	struct kvc_ring *ring = begin(options, prompt, NULL, got, 2);
	struct kvc_request *q = &ring->reqs[0];

	restart(ring, got);
	q->n_lost = 250;
	q->n_lives = 100;
	q->n_refused = 100;
	take_some(ring, got, 1);
	ck_assert_uint_eq(q->n_lost, 0);
	ck_assert_uint_eq(q->n_lives, 0);
	ck_assert_uint_eq(q->n_refused, 0);
	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].res, 9);
	ck_assert_str_eq(got[0].text, prompt);
	finish_ring(ring);
}
END_TEST

/* One that dies with its daemon before any token is a suspect; one on its way is not. */
START_TEST(who_comes_some_way_is_no_suspect)
{
	struct fake_daemon options = {.restart = way(_i & 1)};
	struct got got[1] = {0};
	struct kvc_ring *ring = begin(options, _i & 2 ? "once 0123456789" : "hang", NULL,
				      got, _i & 2 ? 4 : 0);
	struct kvc_request *q = &ring->reqs[0];

	client->pause_ns = 1000 * SECOND_NS;
	restart(ring, got);
	if (_i & 2)
		replay_until(ring, 2);
	q->n_lives = 2;
	restart(ring, got);
	ck_assert_uint_eq(q->n_lives, _i & 2 ? 0 : 3);
	ck_assert_int_eq(q->held, !(_i & 2));
	finish_ring(ring);
}
END_TEST

/* The daemon is dead, and the kept connection says nothing: no word waits for an answer. */
START_TEST(closing_waits_for_no_dead_daemon)
{
	struct fake_daemon options = {.restart = FAKE_SILENT};
	struct got got[1] = {0};
	struct kvc_ring *ring = begin(options, "hang", NULL, got, 0);
	struct pollfd p = {.fd = ring->ring.fd_complete};

	kill(fake.pid, SIGUSR1);
	ck_assert_int_eq(poll(&p, 1, 10000), 1);
	ck_assert_int_eq(client->state, CLIENT_OK);
	finish_ring(ring);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_set_timeout(t, 60);
	/* 0: the connection ends; 1: it is kept. */
	tcase_add_loop_test(t, other_bytes_of_the_same_tokens, 0, 2);
	tcase_add_loop_test(t, in_the_middle_of_a_token, 0, 2);
	tcase_add_loop_test(t, another_answer_is_cancelled, 0, 2);
	tcase_add_loop_test(t, time_is_counted_from_the_first, 0, 2);
	tcase_add_loop_test(t, no_fork_of_what_comes_again, 0, 2);
	tcase_add_loop_test(t, no_fork_of_what_is_held_back, 0, 2);
	tcase_add_loop_test(t, getting_on_clears_the_account, 0, 2);
	/* 2: and a part was given out. */
	tcase_add_loop_test(t, several_that_were_shown_are_lost, 0, 4);
	tcase_add_loop_test(t, who_comes_some_way_is_no_suspect, 0, 4);
	tcase_add_test(t, closing_waits_for_no_dead_daemon);
	return run_case("replay", t);
}
