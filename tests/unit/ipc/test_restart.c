/* SPDX-License-Identifier: MIT */
/*
 * libkvclient over restarts of the fake daemon: each request ends once, with the answer
 * that it would have had, or says that it cannot.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/ipc/restart.h"

static bool stop;

/* Everything that may be submitted again, in one ring, at each point of a stream. */
START_TEST(all_is_answered_once)
{
	const char *prompt = "slow one two three four";
	struct kvc_input in = kvc_text(prompt, strlen(prompt)), abc = kvc_text("abc", 3);
	struct kvd_server_info info;
	uint32_t ids[8], ids2[8];
	float logprobs[8];
	char text[8];
	int cut;

	for (cut = 0; cut < 9; cut++) {
		struct got got[8] = {0};
		struct kvc_ring *ring;

		start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
		ring = open_ring();
		kvc_prep_generate(next(ring, 0), &in, NULL);
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
		take_some(ring, got, (unsigned)cut);
		/* It takes none of these before it restarts. */
		kill(fake.pid, SIGSTOP);
		memset(ids, 0, sizeof(ids));
		memset(ids2, 0, sizeof(ids2));
		memset(logprobs, 0, sizeof(logprobs));
		kvc_prep_nop(next(ring, 1));
		kvc_prep_score(next(ring, 2), &abc, 0, ids, logprobs, 8);
		kvc_prep_tokenize(next(ring, 3), &abc, 0, ids2, 8);
		kvc_prep_detokenize(next(ring, 4), (uint32_t[]){'x', 'y'}, 2, 0, text, 8);
		ck_assert_int_eq(kvc_ring_submit(ring), 4);
		kill(fake.pid, SIGUSR1);
		kill(fake.pid, SIGCONT);
		take_some(ring, got, UINT32_MAX);
		for (int i = 0; i < 5; i++)
			ck_assert_int_eq(got[i].finals, 1);
		ck_assert_mem_eq(got[0].text, prompt, strlen(prompt) + 1);
		ck_assert_int_eq(got[0].res, 8);
		ck_assert_uint_eq(got[0].usage.generated_tokens, 8);
		ck_assert_int_eq(got[1].res, 0);
		ck_assert_int_eq(got[2].res, 3);
		ck_assert_uint_eq(ids[1], 'b');
		ck_assert_float_eq(logprobs[2], -(float)'c' / 256.0f);
		ck_assert_int_eq(got[3].res, 3);
		ck_assert_uint_eq(ids2[2], 'c');
		ck_assert_int_eq(got[4].res, 2);
		ck_assert_mem_eq(text, "xy", 2);
		kvc_get_server_info(client, &info);
		ck_assert_uint_eq(info.generation, 8);
		kvc_ring_close(ring);
		finish();
	}
}
END_TEST

START_TEST(small_queues_are_filled_again)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_input in = kvc_text("slow 0123456789", 15);
	struct got got[16] = {0};
	struct kvc_ring *ring;
	int i, rc;

	start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
	o.sq_entries = 2;
	o.cq_entries = 16;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	for (i = 0; i < 12;) {
		kvc_prep_generate(next(ring, (uint64_t)i), &in, NULL);
		i++;
		/* a full completion queue would keep the submission queue full */
		while ((rc = kvc_ring_submit(ring)) == -EAGAIN)
			take_some(ring, got, 1);
		ck_assert_int_ge(rc, 0);
	}
	take_some(ring, got, 20);
	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	for (i = 0; i < 12; i++) {
		ck_assert_int_eq(got[i].finals, 1);
		ck_assert_str_eq(got[i].text, "slow 0123456789");
	}
	finish_ring(ring);
}
END_TEST

START_TEST(another_answer_is_noticed)
{
	struct kvc_input in = kvc_text("vary 0123456789", 15);
	struct fake_daemon models = {.restart = way(_i), .new_model = true};
	struct got got[4] = {0};
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i), .first_tokens = 2}, 5 * SECOND_NS);
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 2);
	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	ck_assert_str_eq(got[0].text, "vary 0");
	/* Of what was not given out nothing can differ. The ring is as good as new. */
	memset(got, 0, sizeof(got));
	kvc_prep_generate(next(ring, 0), &in, NULL);
	kill(fake.pid, SIGSTOP);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGUSR1);
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].res, 5);
	finish_ring(ring);

	/* With another model nothing is the same, but a NOP. */
	memset(got, 0, sizeof(got));
	start(models, 5 * SECOND_NS);
	ring = open_ring();
	kill(fake.pid, SIGSTOP);
	kvc_prep_tokenize(next(ring, 0), &in, 0, NULL, 0);
	kvc_prep_nop(next(ring, 1));
	ck_assert_int_eq(kvc_ring_submit(ring), 2);
	kill(fake.pid, SIGUSR1);
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	ck_assert_int_eq(got[1].res, 0);
	finish_ring(ring);
}
END_TEST

START_TEST(cancel_deadline_and_fork)
{
	struct kvc_gen_opts soon = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_gen_opts keep = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_gen_opts four = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input hang = kvc_text("hang", 4), in = kvc_text("abc", 3);
	struct got got[10] = {0};
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
	ring = open_ring();
	keep.gen_flags = KVD_GEN_KEEP;
	kvc_prep_generate(next(ring, 0), &in, &keep);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, UINT32_MAX);
	four.n = 4;
	kvc_prep_generate(next(ring, 1), &hang, NULL);
	kvc_prep_generate(next(ring, 7), &hang, &four);
	ck_assert_int_eq(kvc_ring_submit(ring), 2);
	kill(fake.pid, SIGSTOP);
	soon.timeout_ms = 1;
	kvc_prep_generate(next(ring, 2), &in, &soon);
	kvc_prep_cancel(next(ring, 3), 1);
	kvc_prep_cancel(next(ring, 8), 7);
	kvc_prep_cancel(next(ring, 4), 77);
	kvc_prep_fork(next(ring, 5), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 5);
	usleep(2000);
	kill(fake.pid, SIGUSR1);
	kill(fake.pid, SIGCONT);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[1].res, -ECANCELED);
	ck_assert_uint_eq(got[1].usage.finish_reason, KVD_FINISH_CANCELLED);
	ck_assert_int_eq(got[2].res, KVD_E_DEADLINE);
	ck_assert_int_eq(got[3].res, 1);
	ck_assert_int_eq(got[4].res, -ENOENT);
	/* As many as sequences, as the daemon would have answered. */
	ck_assert_int_eq(got[7].res, -ECANCELED);
	ck_assert_int_eq(got[8].res, 4);
	ck_assert_int_eq(got[5].res, KVD_E_RESTARTED);
	/* What was kept is lost, and says so. */
	kvc_prep_fork(next(ring, 6), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[6].res, KVD_E_RESTARTED);
	for (int i = 1; i < 9; i++)
		ck_assert_int_eq(got[i].finals, 1);
	finish_ring(ring);
}
END_TEST

/* An answer that ends before it is where it had been is none to go on from. */
START_TEST(a_shorter_answer_is_lost)
{
	struct kvc_gen_opts keep = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input in = kvc_text("less 0123456", 12);
	struct got got[4] = {0};
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i), .first_tokens = 4}, 5 * SECOND_NS);
	ring = open_ring();
	keep.gen_flags = KVD_GEN_KEEP;
	kvc_prep_generate(next(ring, 0), &in, &keep);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 4);
	ck_assert_str_eq(got[0].text, "less 0123456");
	kill(fake.pid, SIGUSR1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert_int_eq(got[0].res, KVD_E_RESTARTED);
	ck_assert_uint_eq(ring->n_kept, 1);
	kvc_prep_fork(next(ring, 1), 0, NULL, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[1].res, KVD_E_RESTARTED);
	finish_ring(ring);
}
END_TEST

START_TEST(a_killer_is_given_up)
{
	struct kvc_result res;

	start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
	client->pause_ns = 1000;
	ck_assert_int_eq(kvc_generate(client, "poison", NULL, &res), KVD_E_RESTARTED);
	kvc_result_clear(&res);
	ck_assert_int_eq(kvc_ping(client, SECOND_NS), 0);
	/* Thrown out by a daemon that goes on living: no second try. */
	ck_assert_int_eq(kvc_generate(client, "kick", NULL, &res), -ECONNRESET);
	kvc_result_clear(&res);
	ck_assert_int_eq(kvc_ping(client, SECOND_NS), -ECONNRESET);
	finish();
}
END_TEST

/* It kills seldom; beside it all others get on; what is held back can be ended. */
START_TEST(a_killer_has_to_wait)
{
	struct kvc_input poison = kvc_text("poison", 6), in = kvc_text("abcdef", 6);
	struct kvc_gen_opts soon = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct got got[4] = {0};
	struct kvd_server_info info;
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	uint64_t begin, deaths;

	start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
	client->pause_ns = 500000000;
	ring = open_ring();
	(void)kvc_ring_event_fd(ring);
	begin = clock_ns();
	soon.timeout_ms = 4000;
	kvc_prep_generate(next(ring, 0), &poison, &soon);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	/* An event loop is woken when it may go on. */
	do {
		(void)take_woken(ring, got);
		kvc_get_server_info(client, &info);
	} while (info.generation < 7 + 4);
	while (!ring->n_held)
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 1000000), -ETIME);
	deaths = info.generation - 7;
	ck_assert_uint_le(deaths, 3 + (clock_ns() - begin) / 500000000);
	/* New ones are taken meanwhile, and the same in sleeping calls. */
	kvc_prep_generate(next(ring, 1), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	while (!got[1].finals)
		take_some(ring, got, 1);
	ck_assert_int_eq(got[1].res, 2);
	/* It ends by its deadline, or by a CANCEL of which no daemon knows. */
	while (!ring->n_held && !got[0].finals)
		take_some(ring, got, 1);
	if (!got[0].finals) {
		kvc_prep_cancel(next(ring, 2), 0);
		ck_assert_int_eq(kvc_ring_submit(ring), 1);
	}
	take_some(ring, got, UINT32_MAX);
	ck_assert_int_eq(got[0].finals, 1);
	ck_assert(got[0].res == -ECANCELED || got[0].res == KVD_E_DEADLINE);
	ck_assert_int_eq(got[2].res, got[0].res == -ECANCELED);
	finish_ring(ring);
}
END_TEST

START_TEST(held_back_until_its_deadline)
{
	struct kvc_gen_opts soon = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_result res;

	start((struct fake_daemon){.restart = way(_i)}, 5 * SECOND_NS);
	client->pause_ns = 100 * SECOND_NS;
	soon.timeout_ms = 500;
	ck_assert_int_eq(kvc_generate(client, "poison", &soon, &res), KVD_E_DEADLINE);
	kvc_result_clear(&res);
	ck_assert_int_eq(kvc_ping(client, SECOND_NS), 0);
	finish();
}
END_TEST

START_TEST(nobody_comes_back)
{
	struct kvc_input dies = kvc_text("die 12345678", 12), hang = kvc_text("hang", 4);
	struct got got[2] = {0};
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvd_stats stats = {.size = sizeof(stats)};
	int rc;

	start((struct fake_daemon){.restart = FAKE_DIES}, 200000000);
	ring = open_ring();
	if (_i)
		(void)kvc_ring_event_fd(ring);
	kvc_prep_generate(next(ring, 0), &dies, NULL);
	kvc_prep_generate(next(ring, 1), &hang, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 2);
	do {
		while (!_i && (rc = kvc_ring_wait_cqe(ring, &cqe, 5 * SECOND_NS)) == 0) {
			take(got, cqe);
			kvc_ring_cqe_seen(ring);
		}
		if (_i)
			rc = take_woken(ring, got);
	} while (rc == -EAGAIN);
	ck_assert_int_eq(rc, -ECONNRESET);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(got[i].finals, 1);
		ck_assert_int_eq(got[i].res, -ECONNRESET);
	}
	ck_assert_str_eq(got[0].text, "die 12345");
	ck_assert_int_eq(kvc_stats(client, &stats), -ECONNRESET);
	finish_ring(ring);
}
END_TEST

/* Waiting for CQEs ends with one to take, also while what was given out comes again. */
START_TEST(waiting_skips_what_was_given)
{
	const char *prompt = "slow 0123456789 0123456789 0123456789 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct got got[1] = {0};
	const struct kvd_cqe *cqe;
	struct kvd_server_info info;
	struct kvc_ring *ring;

	start((struct fake_daemon){.restart = way(_i), .first_tokens = 12},
	      5 * SECOND_NS);
	ring = open_ring();
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 12);
	kill(fake.pid, SIGUSR1);
	do {
		usleep(1000);
		(void)take_ready(ring, got);
		kvc_get_server_info(client, &info);
	} while (info.generation == 7);
	ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), -EAGAIN);
	usleep(20000);
	while (kvc_ring_in_flight(ring)) {
		ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 1, 5 * SECOND_NS), 0);
		ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), 0);
		take(got, cqe);
		kvc_ring_cqe_seen(ring);
	}
	ck_assert_str_eq(got[0].text, prompt);
	finish_ring(ring);
}
END_TEST

static void *ask_stats(void *arg)
{
	struct kvd_stats stats = {.size = sizeof(stats)};

	return (void *)(long)kvc_stats(client, &stats);
}

/* A thread waits on the socket for a daemon that lives, then dies; no ring waits for it. */
START_TEST(calls_hold_up_no_ring)
{
	const char *prompt =
		"slow 0123456789 0123456789 0123456789 0123456789 0123456789";
	struct kvc_input in = kvc_text(prompt, strlen(prompt));
	struct pollfd dead = {.events = 0};
	struct kvd_server_info info;
	struct kvd_model_info model;
	const struct kvd_cqe *cqe;
	struct got got[1] = {0};
	struct kvc_ring *ring;
	pthread_t t;
	void *ret;
	int rc;

	start_with((struct fake_daemon){.restart = FAKE_SILENT,
					.mute = true,
					.first_tokens = 3},
		   _i ? SECOND_NS : 10 * SECOND_NS, -1);
	ring = open_ring();
	(void)kvc_ring_event_fd(ring);
	ck_assert_int_eq(pthread_create(&t, NULL, ask_stats, NULL), 0);
	usleep(20000);
	kvc_prep_generate(next(ring, 0), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	take_some(ring, got, 3);
	kvc_get_server_info(client, &info);
	ck_assert_uint_eq(info.generation, 7);
	ck_assert_int_eq(kvc_get_model_info(client, &model), 0);
	dead.fd = ring->ring.fd_complete;
	kill(fake.pid, SIGUSR1);
	ck_assert_int_eq(poll(&dead, 1, 10000), 1);
	rc = take_ready(ring, got);
	ck_assert_int_eq(rc, -EAGAIN);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 10000000), -ETIME);
	/* Its second word comes, or never does. */
	if (!_i)
		kill(fake.pid, SIGUSR1);
	while (!got[0].finals) {
		(void)take_woken(ring, got);
	}
	pthread_join(t, &ret);
	ck_assert_int_eq((long)ret, _i ? -ECONNRESET : 0);
	ck_assert_int_eq(got[0].res, _i ? -ECONNRESET : ((int)strlen(prompt) + 2) / 3);
	ck_assert_int_eq(strncmp(got[0].text, prompt, got[0].len), 0);
	finish_ring(ring);
}
END_TEST

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_RELAXED);
}

static void *blocking(void *arg)
{
	struct kvd_stats stats = {.size = sizeof(stats)};
	struct kvd_client_info infos[4];
	struct kvc_input in;
	struct kvc_result res;
	uint32_t ids[64];
	char prompt[64];
	long n = 0;

	while (!stopped()) {
		n++;
		snprintf(prompt, sizeof(prompt), "%scall %ld of %p", n % 8 ? "" : "slow ",
			 n, arg);
		in = kvc_text(prompt, strlen(prompt));
		if (kvc_generate(client, prompt, NULL, &res) != 0 ||
		    strcmp(res.text, prompt) != 0)
			return (void *)-1;
		kvc_result_clear(&res);
		if (kvc_tokenize(client, &in, 0, ids, 64) != (int)in.n ||
		    ids[3] != (uint8_t)prompt[3])
			return (void *)-2;
		if (kvc_ping(client, 5 * SECOND_NS) != 0)
			return (void *)-3;
		if (kvc_stats(client, &stats) != 0 || stats.blocks_total != 100)
			return (void *)-4;
		if (n % 16 == 0 && kvc_clients(client, infos, 4) != 300)
			return (void *)-5;
	}
	return (void *)n;
}

/* Calls that change something take notices, and do not come back to answer them. */
static void *changing(void *arg)
{
	long n = 0;
	int rc;

	while (!stopped()) {
		rc = kvc_cache_flush(client, NULL, NULL, NULL);
		if (rc != 0 && rc != KVD_E_RESTARTED)
			return (void *)-1;
		n++;
		usleep(1000);
	}
	return (void *)n;
}

/* A ring in an event loop: @arg tells whether it sleeps there or peeks all the time. */
static void *streaming(void *arg)
{
	struct pollfd p = {.events = POLLIN};
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvc_input in;
	char prompt[8][64];
	long n = 0, rc;
	int i, finals;

	if (kvc_ring_open(client, &ring, NULL) < 0)
		return (void *)-1;
	p.fd = kvc_ring_event_fd(ring);
	while (!stopped()) {
		struct got got[8] = {0};

		for (i = 0; i < 8; i++) {
			snprintf(prompt[i], sizeof(prompt[i]), "%sround %ld, number %d",
				 i % 4 ? "" : "slow ", n, i);
			in = kvc_text(prompt[i], strlen(prompt[i]));
			kvc_prep_generate(next(ring, (uint64_t)i), &in, NULL);
		}
		if (kvc_ring_submit(ring) != 8)
			return (void *)-2;
		for (finals = 0; finals < 8;) {
			if (arg && poll(&p, 1, 10000) != 1)
				return (void *)-3;
			if (arg)
				kvc_ring_event_ack(ring);
			while ((rc = kvc_ring_peek_cqe(ring, &cqe)) == 0) {
				finals += !(cqe->flags & KVD_CQE_MORE);
				take(got, cqe);
				kvc_ring_cqe_seen(ring);
			}
			if (rc != -EAGAIN)
				return (void *)-4;
		}
		for (i = 0; i < 8; i++)
			if (got[i].finals != 1 || strcmp(got[i].text, prompt[i]) != 0)
				return (void *)-5;
		n += 8;
	}
	kvc_ring_close(ring);
	return (void *)n;
}

START_TEST(threads_survive_many_restarts)
{
	struct kvd_server_info info;
	pthread_t t[6];
	unsigned seed = 3;
	long total = 0;
	void *ret;
	int i;

	start((struct fake_daemon){.restart = way(_i)}, 10 * SECOND_NS);
	stop = false;
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, i < 3 ? blocking : streaming,
						(void *)(uintptr_t)(i % 2)),
				 0);
	ck_assert_int_eq(pthread_create(&t[5], NULL, changing, NULL), 0);
	for (i = 0; i < 40; i++) {
		usleep((useconds_t)rand_r(&seed) % 200000);
		kill(fake.pid, SIGUSR1);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < 6; i++) {
		pthread_join(t[i], &ret);
		ck_assert_msg((long)ret > 0, "thread %d ended with %ld: %s", i, (long)ret,
			      kvc_errmsg());
		total += (long)ret;
	}
	ck_assert_int_eq(kvc_ping(client, 5 * SECOND_NS), 0);
	kvc_get_server_info(client, &info);
	ck_assert_uint_gt(info.generation, 20);
	ck_assert_int_gt(total, 20);
	finish();
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_set_timeout(t, 60);
	/* 0: the connection ends; 1: it is kept. */
	tcase_add_loop_test(t, all_is_answered_once, 0, 2);
	tcase_add_loop_test(t, small_queues_are_filled_again, 0, 2);
	tcase_add_loop_test(t, another_answer_is_noticed, 0, 2);
	tcase_add_loop_test(t, cancel_deadline_and_fork, 0, 2);
	tcase_add_loop_test(t, a_shorter_answer_is_lost, 0, 2);
	tcase_add_loop_test(t, a_killer_is_given_up, 0, 2);
	tcase_add_loop_test(t, a_killer_has_to_wait, 0, 2);
	tcase_add_loop_test(t, held_back_until_its_deadline, 0, 2);
	tcase_add_loop_test(t, waiting_skips_what_was_given, 0, 2);
	/* 0: it comes back; 1: it does not. */
	tcase_add_loop_test(t, calls_hold_up_no_ring, 0, 2);
	/* 0: waiting; 1: in an event loop. */
	tcase_add_loop_test(t, nobody_comes_back, 0, 2);
	tcase_add_loop_test(t, threads_survive_many_restarts, 0, 2);
	return run_case("restart", t);
}
