/* SPDX-License-Identifier: MIT */
/* Completions taken many at a time, and lookups on a ring. */
#include <signal.h>

#include "tests/unit/ipc/restart.h"

/* Add up the tokens of the answers and the answers themselves. */
static int add_up(void *userdata, const struct kvd_cqe *cqe)
{
	int *sums = userdata;

	sums[(cqe->flags & KVD_CQE_MORE) == 0]++;
	return sums[1] == 2;
}

START_TEST(ring_gives_batches)
{
	struct kvc_input in = kvc_text("abcdef", 6);
	const struct kvd_cqe *cqes[64], *again[64], *one;
	struct kvd_cqe seen[64];
	struct kvc_ring *ring;
	int n, tokens = 0, finals = 0, sums[2] = {0};

	start((struct fake_daemon){0}, -1);
	ring = open_ring();
	ck_assert_int_eq(kvc_ring_peek_batch(ring, cqes, 64), 0);
	for (int i = 0; i < 5; i++)
		kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	/* Two tokens and an end each. */
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 15, -1), 5);
	n = kvc_ring_peek_batch(ring, cqes, 64);
	ck_assert_int_eq(n, 15);
	for (int i = 0; i < n; i++) {
		seen[i] = *cqes[i];
		tokens += (cqes[i]->flags & KVD_CQE_MORE) != 0;
		finals += (cqes[i]->flags & KVD_CQE_MORE) == 0;
	}
	ck_assert_int_eq(tokens, 10);
	ck_assert_int_eq(finals, 5);
	/* What was not passed comes again, singly too, and stays where it is. */
	kvc_ring_cq_advance(ring, 4);
	ck_assert_int_eq(kvc_ring_peek_batch(ring, again, 3), 3);
	ck_assert_ptr_eq(again[0], cqes[4]);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &one, -1), 0);
	ck_assert_ptr_eq(one, cqes[4]);
	kvc_ring_cqe_seen(ring);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 10, 0), 0);
	ck_assert_int_eq(kvc_ring_peek_batch(ring, again, 64), 10);
	for (int i = 0; i < 10; i++)
		ck_assert_mem_eq(again[i], &seen[5 + i], sizeof(seen[0]));
	kvc_ring_cq_advance(ring, 64);
	ck_assert_int_eq(kvc_ring_peek_batch(ring, cqes, 64), 0);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &one, 0), -ENODATA);

	/* One after the other, until the callback has enough. */
	ck_assert_int_eq(kvc_ring_for_each_cqe(ring, add_up, sums), 0);
	for (int i = 0; i < 3; i++)
		kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 9, -1), 3);
	n = kvc_ring_for_each_cqe(ring, add_up, sums);
	ck_assert_int_eq(n, sums[0] + sums[1]);
	ck_assert_int_eq(sums[1], 2);
	sums[1] = -9;
	ck_assert_int_eq(kvc_ring_for_each_cqe(ring, add_up, sums), 9 - n);

	kill(fake.pid, SIGKILL);
	while ((n = kvc_ring_peek_batch(ring, cqes, 64)) == 0)
		;
	ck_assert_int_eq(n, -ECONNRESET);
	ck_assert_int_eq(kvc_ring_for_each_cqe(ring, add_up, sums), -ECONNRESET);
	finish_ring(ring);
}
END_TEST

START_TEST(lookup_on_a_ring)
{
	struct kvc_input in = kvc_text("abcdef", 6);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	uint64_t id;

	start((struct fake_daemon){0}, -1);
	ring = open_ring();
	kvc_prep_prefix_lookup(kvc_ring_get_sqe(ring), &in, 0);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
	ck_assert_int_eq(cqe->res, 4);
	ck_assert_uint_eq(cqe->u.usage.detail, 'a');
	ck_assert_uint_eq(cqe->u.usage.prompt_tokens, 6);
	kvc_ring_close(ring);
	ck_assert_int_eq(kvc_prefix_lookup(client, &in, 0, &id, NULL), 4);
	ck_assert_uint_eq(id, 'a');
	finish();
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("batches");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, ring_gives_batches);
	tcase_add_test(t, lookup_on_a_ring);
	return run_case("client-batch", t);
}
