/* SPDX-License-Identifier: MIT */
/*
 * A daemon that goes on living ends a session: its rings are wiped, then it hangs up.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/ipc/restart.h"

#include "ipc/base.h"

/* A ring of 16 completions after so many NOPs. */
static struct kvc_ring *used_ring(int n_nops)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;

	o.sq_entries = 16;
	o.cq_entries = 16;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	while (n_nops--) {
		kvc_prep_nop(next(ring, 0));
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
		kvc_ring_cqe_seen(ring);
	}
	return ring;
}

/* How a caller looks for completions. */
enum look { WAITS, PEEKS, SLEEPS, N_LOOKS };

static int look(struct kvc_ring *ring, enum look how, const struct kvd_cqe **ret_cqe)
{
	struct pollfd p = {.events = POLLIN};
	int rc;

	if (how == WAITS)
		return kvc_ring_wait_cqe(ring, ret_cqe, 10 * SECOND_NS);
	if (how == SLEEPS)
		p.fd = kvc_ring_event_fd(ring);
	for (;;) {
		rc = kvc_ring_peek_cqe(ring, ret_cqe);
		if (rc != -EAGAIN)
			return rc;
		if (how != SLEEPS)
			continue;
		ck_assert_int_eq(poll(&p, 1, 10000), 1);
		kvc_ring_event_ack(ring);
	}
}

/* At once, and with a pause between the wipe and the end of the connection. */
static const char *const words[] = {"kick", "wipe"};

/* However much came through the ring before, all ends by -ECONNRESET. */
START_TEST(the_end_is_no_fault)
{
	struct kvc_input hang = kvc_text("hang", 4),
			 word = kvc_text(words[_i / N_LOOKS], 4);
	static const int n_nops[] = {0, 15, 16, 100};
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	int rc;

	for (size_t i = 0; i < KVD_ARRAY_LEN(n_nops); i++) {
		struct got got[2] = {0};

		start((struct fake_daemon){.restart = FAKE_DIES}, 5 * SECOND_NS);
		ring = used_ring(n_nops[i]);
		kvc_prep_generate(next(ring, 0), &hang, NULL);
		kvc_prep_generate(next(ring, 1), &word, NULL);
		ck_assert_int_eq(kvc_ring_submit(ring), 2);
		while ((rc = look(ring, _i % N_LOOKS, &cqe)) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
		ck_assert_int_eq(rc, -ECONNRESET);
		for (int k = 0; k < 2; k++) {
			ck_assert_int_eq(got[k].finals, 1);
			ck_assert_int_eq(got[k].res, -ECONNRESET);
		}
		kvc_ring_close(ring);
		finish();
	}
}
END_TEST

/* By the time between its peeks, not by their number. */
START_TEST(who_naps_between_peeks_sees_the_end)
{
	struct kvc_input hang = kvc_text("hang", 4);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	int rc = -EAGAIN;

	start((struct fake_daemon){.restart = FAKE_DIES}, 20000000);
	ring = used_ring(0);
	kvc_prep_generate(next(ring, 0), &hang, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGKILL);
	for (int i = 0; i < 500 && rc == -EAGAIN; i++) {
		usleep(2000);
		rc = kvc_ring_peek_cqe(ring, &cqe);
	}
	ck_assert_int_eq(rc, 0);
	ck_assert_int_eq(cqe->res, -ECONNRESET);
	finish_ring(ring);
}
END_TEST

/* Its inputs went with the ring: another daemon must not get zeros in their place. */
START_TEST(what_was_wiped_is_lost)
{
	struct kvc_input hang = kvc_text("hang", 4), wipe = kvc_text("wipe", 4);
	struct got got[3] = {0};
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i & 1)}, 5 * SECOND_NS);
	ring = used_ring(_i & 2 ? 0 : 100);
	kvc_prep_generate(next(ring, 0), &hang, NULL);
	kvc_prep_generate(next(ring, 1), &wipe, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 2);
	take_some(ring, got, UINT32_MAX);
	for (int k = 0; k < 2; k++) {
		ck_assert_int_eq(got[k].finals, 1);
		ck_assert_int_eq(got[k].res, KVD_E_RESTARTED);
	}
	kvc_prep_nop(next(ring, 2));
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[2].res, 0);
	finish_ring(ring);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, the_end_is_no_fault, 0, 2 * N_LOOKS);
	tcase_add_test(t, who_naps_between_peeks_sees_the_end);
	/* 0: the connection ends; 1: it is kept; and 2: nothing went through before. */
	tcase_add_loop_test(t, what_was_wiped_is_lost, 0, 4);
	return run_case("ended", t);
}
