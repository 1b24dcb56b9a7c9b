/* SPDX-License-Identifier: MIT */
/* How long a client polls before it sleeps: what it learns from each wait. */
#include <check.h>
#include <unistd.h>

#include <kvclient.h>

#include "client/internal.h"
#include "tests/unit/ipc/fake_daemon.h"
#include "tests/unit/suite.h"

static struct fake_daemon fake;

static void setup(void)
{
	fake_daemon_start(&fake);
}

static void teardown(void)
{
	fake_daemon_stop(&fake);
}

/* Wait until a NOP was slept for, though the full time is more than it can take. */
static void sleep_for_nop(struct kvc_ring *ring, uint32_t doubted)
{
	const struct kvd_cqe *cqe;

	do {
		ring->spin_now = 0;
		ring->spin_doubts = doubted ? 255 : 0;
		ring->spin_doubted = doubted;
		usleep(2000); /* the fake daemon sleeps, too */
		kvc_prep_nop(kvc_ring_get_sqe(ring));
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
		kvc_ring_cqe_seen(ring);
	} while (ring->spin_now == 0); /* polling was rewarded */
}

START_TEST(short_sleeps_teach_to_poll)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_ring *ring;
	struct kvc_client *c;

	o.socket_path = fake.path;
	o.spin_ns = 3600000000000;
	ck_assert_int_eq(kvc_connect(&c, &o), 0);
	ck_assert_int_eq(kvc_ring_open(c, &ring, NULL), 0);
	ck_assert_int_eq(ring->spin_now, o.spin_ns);

	/* An hour of polling would have done. */
	sleep_for_nop(ring, 0);
	ck_assert_int_eq(ring->spin_now, o.spin_ns);
	ck_assert_uint_eq(ring->spin_doubts, 1);
	/* It was tried in vain before: not yet again. */
	sleep_for_nop(ring, 5);
	ck_assert_int_lt(ring->spin_now, o.spin_ns);
	ck_assert_uint_eq(ring->spin_doubts, 255);
	ck_assert_uint_eq(ring->spin_doubted, 6);
	/* But after as many as are let pass. */
	sleep_for_nop(ring, 255);
	ck_assert_int_eq(ring->spin_now, o.spin_ns);
	ck_assert_uint_eq(ring->spin_doubts, 255);
	ck_assert_uint_eq(ring->spin_doubted, 0);
	kvc_ring_close(ring);
	kvc_close(c);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("poll");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, short_sleeps_teach_to_poll);
	return run_case("client-poll", t);
}
