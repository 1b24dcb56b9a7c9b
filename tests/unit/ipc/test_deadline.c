/* SPDX-License-Identifier: MIT */
/*
 * A daemon that is there and does nothing: every call that has a time limit keeps it,
 * whatever it had to wait for on the way.
 */
#include <signal.h>
#include <unistd.h>

#include "tests/unit/ipc/restart.h"

#define LIMIT_NS 100000000ll
/* A loaded machine is slow; five seconds is what an answer has by default. */
#define LATE_NS 2500000000u

static uint64_t begun_ns;

static void begin(void)
{
	begun_ns = clock_ns();
}

static void assert_in_time(const char *what)
{
	uint64_t took = clock_ns() - begun_ns;

	ck_assert_msg(took < LATE_NS, "%s took %llu ms", what,
		      (unsigned long long)took / 1000000);
}

static void stop_daemon(int64_t timeout_ns)
{
	start_with((struct fake_daemon){0}, -1, timeout_ns);
	kill(fake.pid, SIGSTOP);
}

START_TEST(ping_without_a_ring)
{
	stop_daemon(0);
	begin();
	ck_assert_int_eq(kvc_ping(client, LIMIT_NS), -ETIME);
	assert_in_time("ping");
	ck_assert_str_eq(kvc_errmsg(), "kvd does not answer");
	kill(fake.pid, SIGCONT);
	ck_assert_int_eq(kvc_ping(client, 10 * SECOND_NS), 0);
	finish();
}
END_TEST

START_TEST(ping_with_a_ring)
{
	start((struct fake_daemon){0}, -1);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	kill(fake.pid, SIGSTOP);
	for (int i = 0; i < 3; i++) {
		begin();
		ck_assert_int_eq(kvc_ping(client, LIMIT_NS), -ETIME);
		assert_in_time("ping");
	}
	kill(fake.pid, SIGCONT);
	ck_assert_int_eq(kvc_ping(client, 10 * SECOND_NS), 0);
	finish();
}
END_TEST

static void *ask_for_stats(void *arg)
{
	struct kvd_stats stats = {.size = sizeof(stats)};

	*(int *)arg = kvc_stats(client, &stats);
	return NULL;
}

/* Another thread has the socket to itself until its own limit. */
START_TEST(ping_behind_another_call)
{
	pthread_t thread;
	int rc;

	stop_daemon(0);
	pthread_create(&thread, NULL, ask_for_stats, &rc);
	usleep(100000);
	for (int i = 0; i < 3; i++) {
		begin();
		ck_assert_int_eq(kvc_ping(client, LIMIT_NS), -ETIME);
		assert_in_time("ping");
	}
	kill(fake.pid, SIGCONT);
	pthread_join(thread, NULL);
	ck_assert_int_eq(rc, 0);
	ck_assert_int_eq(kvc_ping(client, 10 * SECOND_NS), 0);
	finish();
}
END_TEST

/* A ring that could not be closed in time is closed by a later call. */
START_TEST(what_is_dropped_is_closed)
{
	struct kvc_ring *r;
	pthread_t thread;
	int rc, n = 0;

	start((struct fake_daemon){.max_rings = 1}, -1);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	kill(fake.pid, SIGSTOP);
	pthread_create(&thread, NULL, ask_for_stats, &rc);
	usleep(100000);
	begin();
	ck_assert_int_eq(kvc_ping(client, LIMIT_NS), -ETIME);
	assert_in_time("ping");
	kill(fake.pid, SIGCONT);
	pthread_join(thread, NULL);
	ck_assert_int_eq(kvc_ping(client, 10 * SECOND_NS), 0);
	for (r = client->rings; r; r = r->next)
		n++;
	ck_assert_int_eq(n, 1);
	ck_assert_uint_eq(client->n_hidden, 1);
	finish();
}
END_TEST

/* All rings are taken, and none comes back. */
static void *generate_for_ever(void *arg)
{
	*(int *)arg = kvc_generate(client, "hang", NULL, NULL);
	return NULL;
}

START_TEST(ping_without_a_free_ring)
{
	pthread_t thread;
	int rc;

	start((struct fake_daemon){.max_rings = 1}, -1);
	pthread_create(&thread, NULL, generate_for_ever, &rc);
	usleep(200000);
	begin();
	ck_assert_int_eq(kvc_ping(client, LIMIT_NS), -ETIME);
	assert_in_time("ping");
	kill(fake.pid, SIGKILL);
	pthread_join(thread, NULL);
	ck_assert_int_eq(rc, -ECONNRESET);
	finish();
}
END_TEST

static void *drain(void *arg)
{
	*(int *)arg = kvc_drain(client, KVD_DRAIN_ASK, NULL);
	return NULL;
}

/* Answers on the socket have timeout_ns, however many threads ask. */
START_TEST(administration)
{
	struct kvd_prefix_info prefix;
	struct kvd_flush_counts counts;
	struct kvd_client_info info;
	struct kvd_quota_info quota;
	struct kvd_event *events = calloc(KVD_EVENTS_PAGE, sizeof(*events));
	pthread_t threads[20];
	int rcs[20];
	uint64_t lost;

	stop_daemon(LIMIT_NS);
	begin();
	ck_assert_int_eq(kvc_clients(client, &info, 1), -ETIME);
	assert_in_time("clients");
	begin();
	ck_assert_int_eq(kvc_quota_list(client, &quota, 1), -ETIME);
	assert_in_time("quotas");
	begin();
	ck_assert_int_eq(kvc_cache_list(client, &prefix, 1), -ETIME);
	assert_in_time("cache list");
	begin();
	ck_assert_int_eq(kvc_cache_flush(client, NULL, NULL, &counts), -ETIME);
	assert_in_time("flush");
	begin();
	ck_assert_int_eq(kvc_events(client, events, KVD_EVENTS_PAGE, &lost), -ETIME);
	assert_in_time("events");
	begin();
	for (int i = 0; i < 20; i++)
		pthread_create(&threads[i], NULL, i % 2 ? drain : ask_for_stats, &rcs[i]);
	for (int i = 0; i < 20; i++)
		pthread_join(threads[i], NULL);
	assert_in_time("20 threads");
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(rcs[i], -ETIME);
	free(events);
	finish();
}
END_TEST

START_TEST(connecting)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c = NULL;

	stop_daemon(0);
	o.socket_path = fake.path;
	o.timeout_ns = LIMIT_NS;
	/* The backlog takes some of these, and then none. */
	for (int i = 0; i < 3; i++) {
		begin();
		ck_assert_int_eq(kvc_connect(&c, &o), -ETIME);
		assert_in_time("connect");
	}
	finish();
}
END_TEST

START_TEST(waiting_on_a_ring)
{
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;

	start((struct fake_daemon){0}, -1);
	ring = open_ring();
	kill(fake.pid, SIGSTOP);
	kvc_prep_nop(next(ring, 0));
	begin();
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 1, LIMIT_NS), -ETIME);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, LIMIT_NS), -ETIME);
	assert_in_time("wait");
	finish();
}
END_TEST

/* Neither making the descriptor nor acknowledging waits for the thread that has the socket. */
START_TEST(event_loops)
{
	struct got got[2] = {0};
	struct kvc_ring *ring;
	pthread_t thread;
	int rc;

	start((struct fake_daemon){0}, -1);
	ring = open_ring();
	kill(fake.pid, SIGSTOP);
	pthread_create(&thread, NULL, ask_for_stats, &rc);
	usleep(100000);
	begin();
	ck_assert_int_ge(kvc_ring_event_fd(ring), 0);
	ck_assert_int_eq(kvc_ring_event_ack(ring), 0);
	ck_assert_int_ge(kvc_ring_event_fd(ring), 0);
	ck_assert_uint_lt(clock_ns() - begun_ns, SECOND_NS);
	ck_assert(ring->unwatched);
	kvc_prep_nop(next(ring, 1));
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	kill(fake.pid, SIGCONT);
	pthread_join(thread, NULL);
	ck_assert_int_eq(rc, 0);
	/* It hears of the client now, and of the daemon's end too. */
	while (!got[1].finals || ring->unwatched)
		ck_assert_int_eq(take_woken(ring, got), -EAGAIN);
	kill(fake.pid, SIGKILL);
	while (take_woken(ring, got) == -EAGAIN)
		;
	finish();
}
END_TEST

/* The daemon keeps this limit; where it cannot, the library does. */
START_TEST(generating)
{
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_result result;

	o.timeout_ms = 100;
	for (int ring = 0; ring < 2; ring++) {
		start((struct fake_daemon){0}, -1);
		if (ring)
			ck_assert_int_eq(kvc_ping(client, -1), 0);
		kill(fake.pid, SIGSTOP);
		begin();
		ck_assert_int_eq(kvc_generate(client, "abc", &o, &result),
				 ring ? KVD_E_DEADLINE : -ETIME);
		assert_in_time("generate");
		kvc_result_clear(&result);
		finish();
	}
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("a stopped daemon");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, ping_without_a_ring);
	tcase_add_test(t, ping_with_a_ring);
	tcase_add_test(t, ping_behind_another_call);
	tcase_add_test(t, what_is_dropped_is_closed);
	tcase_add_test(t, ping_without_a_free_ring);
	tcase_add_test(t, administration);
	tcase_add_test(t, connecting);
	tcase_add_test(t, waiting_on_a_ring);
	tcase_add_test(t, event_loops);
	tcase_add_test(t, generating);
	return run_case("client-deadline", t);
}
