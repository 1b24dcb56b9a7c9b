/* SPDX-License-Identifier: MIT */
/*
 * A daemon that has just come refuses by its limits what ran at its predecessor: that is
 * tried again, while what is new is refused at once.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "tests/unit/ipc/restart.h"

#define N_STREAMS 6

static const char *prompts[N_STREAMS] = {
	"slow a 0123456789", "slow b 0123456789", "slow c 0123456789",
	"slow d 0123456789", "slow e 0123456789", "slow f 0123456789",
};

/* Until all have ended, by an event loop that only sleeps. */
static void loop_until_ended(struct kvc_ring *ring, struct got *got)
{
	int rc;

	while (kvc_ring_in_flight(ring)) {
		rc = take_woken(ring, got);
		ck_assert(rc == -EAGAIN || rc == -ENODATA);
	}
}

/* One after another they all run; after the restart they all come at once. */
START_TEST(what_ran_runs_again)
{
	struct got got[N_STREAMS + 1] = {0};
	struct kvc_input in;
	struct kvc_ring *ring;
	int i;

	start((struct fake_daemon){.restart = way(_i & 1), .max_waiting = 2},
	      5 * SECOND_NS);
	ring = open_ring();
	for (i = 0; i < N_STREAMS; i++) {
		in = kvc_text(prompts[i], strlen(prompts[i]));
		kvc_prep_generate(next(ring, (uint64_t)i), &in, NULL);
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
		while (!got[i].len)
			take_some(ring, got, 1);
	}
	kill(fake.pid, SIGUSR1);
	if (_i & 2)
		loop_until_ended(ring, got);
	else
		take_some(ring, got, UINT32_MAX);
	for (i = 0; i < N_STREAMS; i++) {
		ck_assert_int_eq(got[i].finals, 1);
		ck_assert_int_eq(got[i].res, 6);
		ck_assert_str_eq(got[i].text, prompts[i]);
	}
	finish_ring(ring);
}
END_TEST

/* Returns when @ring belongs to the daemon after @epoch; nothing may be given out. */
static void wait_until_reopened(struct kvc_ring *ring, uint32_t epoch)
{
	const struct kvd_cqe *cqe;

	while (ring->epoch == epoch)
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 1000000), -ETIME);
}

/* Of three that wait two may, also beside those that a restart brought along. */
START_TEST(what_is_new_is_refused)
{
	struct kvc_input hang = kvc_text("hang", 4);
	struct got got[4] = {0};
	struct kvc_ring *ring;
	int i;

	start((struct fake_daemon){.restart = way(_i), .max_waiting = 2}, 5 * SECOND_NS);
	ring = open_ring();
	for (i = 0; i < 3; i++)
		kvc_prep_generate(next(ring, (uint64_t)i), &hang, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 3);
	take_some(ring, got, 1);
	ck_assert_int_eq(got[2].res, KVD_E_QUOTA);
	kill(fake.pid, SIGUSR1);
	wait_until_reopened(ring, ring->epoch);
	kvc_prep_generate(next(ring, 3), &hang, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 1);
	ck_assert_int_eq(got[3].res, KVD_E_QUOTA);
	ck_assert_uint_eq(got[3].usage.detail, 2);
	finish_ring(ring);
}
END_TEST

/* The limit is lower now: it is told in the end, or the request ends otherwise. */
START_TEST(a_refusal_may_last)
{
	struct kvc_input slow = kvc_text("slow 0123456789", 15),
			 hang = kvc_text("hang", 4);
	struct kvc_gen_opts soon = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct got got[8] = {0};
	struct kvd_stats stats = {.size = sizeof(stats)};
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i),
				   .refuses = true,
				   .first_tokens = 2},
	      5 * SECOND_NS);
	ring = open_ring();
	soon.timeout_ms = 60000;
	kvc_prep_generate(next(ring, 0), &hang, NULL);
	kvc_prep_generate(next(ring, 1), &hang, NULL);
	kvc_prep_generate(next(ring, 2), &hang, &soon);
	kvc_prep_generate(next(ring, 3), &slow, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 4);
	take_some(ring, got, 2);
	restart(ring, got);
	wait_until_held(ring, &ring->reqs[0]);
	wait_until_held(ring, &ring->reqs[1]);
	/* No daemon knows of it while it waits. */
	kvc_prep_cancel(next(ring, 4), 0);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 2);
	ck_assert_int_eq(got[0].res, -ECANCELED);
	ck_assert_int_eq(got[4].res, 1);
	/* A CANCEL that comes behind a refusal is not forgotten. */
	ck_assert_int_eq(kvc_stats(client, &stats), 0);
	kill(fake.pid, SIGSTOP);
	ring->reqs[1].hold_ns = 1;
	ring->hold_ns = 0;
	ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), -EAGAIN);
	ck_assert(!ring->reqs[1].held);
	kvc_prep_cancel(next(ring, 5), 1);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGCONT);
	while (!got[1].finals || !got[5].finals)
		take_some(ring, got, 1);
	ck_assert_int_eq(got[1].res, KVD_E_QUOTA);
	ck_assert_int_eq(got[5].res, -ENOENT);
	if (!got[3].finals)
		ring->reqs[3].n_lost = 250 - 2;
	/* The time of this one is over. */
	ring->reqs[2].deadline_ns = clock_ns();
	ring->hold_ns = 0;
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[2].res, KVD_E_DEADLINE);
	ck_assert_int_eq(got[3].res, KVD_E_QUOTA);
	ck_assert_int_eq(strncmp(got[3].text, "slow 0123456789", got[3].len), 0);
	for (int i = 0; i < 6; i++)
		ck_assert_int_eq(got[i].finals, 1);
	finish_ring(ring);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_set_timeout(t, 60);
	/* 0: the connection ends; 1: it is kept; and 2: in an event loop. */
	tcase_add_loop_test(t, what_ran_runs_again, 0, 4);
	tcase_add_loop_test(t, what_is_new_is_refused, 0, 2);
	tcase_add_loop_test(t, a_refusal_may_last, 0, 2);
	return run_case("refused", t);
}
