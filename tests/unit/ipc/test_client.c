/* SPDX-License-Identifier: MIT */
/* libkvclient against the fake daemon, whose answers are known in advance. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvclient.h>

#include "ipc/base.h"
#include "tests/unit/ipc/fake_daemon.h"
#include "tests/unit/suite.h"

static struct fake_daemon fake;
static struct kvc_client *client;

static struct kvc_client *connect_fake(void)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c = NULL;
	int rc;

	o.socket_path = fake.path;
	o.reconnect_ns = -1;
	rc = kvc_connect(&c, &o);
	ck_assert_msg(rc == 0, "%d %s", rc, kvc_errmsg());
	return c;
}

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake_daemon_start(&fake);
	client = connect_fake();
}

static void teardown(void)
{
	kvc_close(client);
	fake_daemon_stop(&fake);
}

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

START_TEST(connect_says_what_is_wrong)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c = NULL;
	char path[400];
	FILE *f;

	o.socket_path = "/tmp/no-such-kvd/kvd.sock";
	ck_assert_int_eq(kvc_connect(&c, &o), -ENOENT);
	ck_assert_str_eq(kvc_errmsg(),
			 "kvd is not running at /tmp/no-such-kvd/kvd.sock; start it: "
			 "systemctl start kvd, or set $KVD_SOCKET");
	ck_assert_ptr_null(c);

	/* A socket whose server is gone. */
	snprintf(path, sizeof(path), "%s", fake.path);
	kill(fake.pid, SIGKILL);
	waitpid(fake.pid, NULL, 0);
	o.socket_path = path;
	ck_assert_int_eq(kvc_connect(&c, &o), -ECONNREFUSED);
	ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "systemctl start kvd"));
	unlink(fake.path);
	rmdir(fake.dir);
	fake_daemon_start(&fake);

	/* A path that another user may not reach. */
	if (geteuid() == 0) {
		chmod(fake.path, 0600);
		chmod(fake.dir, 0755);
		o.socket_path = fake.path;
		ck_assert_int_eq(seteuid(65534), 0);
		ck_assert_int_eq(kvc_connect(&c, &o), -EACCES);
		ck_assert_int_eq(seteuid(0), 0);
		snprintf(path, sizeof(path),
			 "cannot connect to %s: Permission denied. Add yourself to "
			 "group kvd-clients: sudo usermod -aG kvd-clients $USER, then "
			 "log in again.",
			 fake.path);
		ck_assert_str_eq(kvc_errmsg(), path);
	}

	memset(path, 'x', sizeof(path));
	path[150] = 0;
	o.socket_path = path;
	ck_assert_int_eq(kvc_connect(&c, &o), -ENAMETOOLONG);

	snprintf(path, sizeof(path), "%s/file", fake.dir);
	f = fopen(path, "w");
	fclose(f);
	ck_assert_int_eq(kvc_connect(&c, &o), -ECONNREFUSED);
	unlink(path);
}
END_TEST

START_TEST(connect_refuses_bad_options)
{
	struct {
		struct kvc_connect_opts o;
		uint64_t future;
	} newer = {.o = {.size = sizeof(newer), .socket_path = fake.path}, .future = 1};
	struct kvc_client *c = NULL;

	ck_assert_int_eq(kvc_connect(&c, &newer.o), -E2BIG);
	newer.future = 0;
	ck_assert_int_eq(kvc_connect(&c, &newer.o), 0);
	kvc_close(c);
	newer.o.size = 0;
	ck_assert_int_eq(kvc_connect(&c, &newer.o), -EINVAL);
}
END_TEST

START_TEST(connect_reports_rejection_and_silence)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct fake_daemon other = {.reject = KVD_E_DRAINING};
	struct kvc_client *c = NULL;

	fake_daemon_start(&other);
	o.socket_path = other.path;
	ck_assert_int_eq(kvc_connect(&c, &o), KVD_E_DRAINING);
	ck_assert_str_eq(kvc_errmsg(), kvc_strerror(KVD_E_DRAINING));
	fake_daemon_stop(&other);

	other = (struct fake_daemon){.no_reply = true};
	fake_daemon_start(&other);
	o.timeout_ns = 50000000;
	ck_assert_int_eq(kvc_connect(&c, &o), -ETIME);
	fake_daemon_stop(&other);
}
END_TEST

START_TEST(info_and_administration)
{
	struct kvd_client_info *infos = calloc(300, sizeof(*infos));
	struct kvd_flush_counts counts;
	struct kvd_server_info server;
	struct kvd_stats stats = {.size = sizeof(stats)};
	struct kvd_model_info model;
	int i;

	kvc_get_server_info(client, &server);
	ck_assert_uint_eq(server.generation, 7);
	ck_assert_str_eq(server.release, "fake");
	ck_assert_int_eq(kvc_get_model_info(client, &model), 0);
	ck_assert_str_eq(model.arch, "bytes");

	ck_assert_int_eq(kvc_stats(client, &stats), 0);
	ck_assert_uint_eq(stats.blocks_total, 100);
	ck_assert_uint_eq(stats.sessions_faulty, 42);
	/* An older caller gets only what it has room for. */
	memset(&stats, 0xee, sizeof(stats));
	stats.size = offsetof(struct kvd_stats, blocks_total);
	ck_assert_int_eq(kvc_stats(client, &stats), 0);
	ck_assert_uint_eq(stats.blocks_total, 0xeeeeeeeeeeeeeeeeull);

	ck_assert_int_eq(kvc_clients(client, NULL, 0), 300);
	ck_assert_int_eq(kvc_clients(client, infos, 300), 300);
	for (i = 0; i < 300; i++)
		ck_assert_uint_eq(infos[i].id, (uint64_t)i + 1);

	ck_assert_int_eq(kvc_cache_flush(client, NULL, NULL, &counts), 0);
	ck_assert_uint_eq(counts.flushed_blocks, 12);
	ck_assert_uint_eq(counts.remaining, 0);
	ck_assert_int_eq(kvc_cache_flush(client, NULL, "m", &counts), 0);
	ck_assert_uint_eq(counts.remaining, 3);
	ck_assert_int_eq(kvc_cache_flush(client, "uid:0", NULL, &counts), -EPERM);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	free(infos);
}
END_TEST

struct seen {
	char text[256];
	size_t len;
	int calls;
	int cancel_at;
};

static bool utf8_whole(const char *s, size_t len)
{
	size_t i;

	/* A piece never begins inside of a character. */
	if (len && ((uint8_t)s[0] & 0xc0) == 0x80)
		return false;
	for (i = len > 3 ? len - 3 : 0; i < len; i++)
		if ((uint8_t)s[i] >= 0xe0 && i + 3 > len)
			return false;
	return true;
}

static int on_piece(void *userdata, const struct kvc_piece *piece)
{
	struct seen *s = userdata;

	ck_assert(utf8_whole(piece->text, piece->text_len));
	memcpy(s->text + s->len, piece->text, piece->text_len);
	s->len += piece->text_len;
	return ++s->calls == s->cancel_at;
}

START_TEST(generate_echoes)
{
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_result res;
	struct seen s = {0};
	int rc;

	rc = kvc_generate(client, "hello world", NULL, &res);
	ck_assert_msg(rc == 0, "%d %s", rc, kvc_errmsg());
	ck_assert_str_eq(res.text, "hello world");
	ck_assert_uint_eq(res.text_len, 11);
	ck_assert_uint_eq(res.n_tokens, 4);
	ck_assert_uint_eq(res.tokens[1], 'l');
	ck_assert_ptr_null(res.logprobs);
	ck_assert_uint_eq(res.usage.finish_reason, KVD_FINISH_STOP);
	ck_assert_uint_eq(res.usage.prompt_tokens, 11);
	kvc_result_clear(&res);

	o.max_tokens = 2;
	o.gen_flags = KVD_GEN_LOGPROBS;
	ck_assert_int_eq(kvc_generate(client, "hello world", &o, &res), 0);
	ck_assert_str_eq(res.text, "hello ");
	ck_assert_float_eq(res.logprobs[1], -0.5f);
	ck_assert_uint_eq(res.usage.finish_reason, KVD_FINISH_LENGTH);
	kvc_result_clear(&res);

	/* Characters of three bytes, cut anywhere by the daemon. */
	ck_assert_int_eq(kvc_generate_stream(client, "x€€y€€z", NULL, on_piece, &s, NULL),
			 0);
	ck_assert_str_eq(s.text, "x€€y€€z");

	/* One token with more text than a CQE holds. */
	memset(&s, 0, sizeof(s));
	ck_assert_int_eq(kvc_generate_stream(client, "big", NULL, on_piece, &s, &res), 0);
	ck_assert_uint_eq(s.len, 100);
	ck_assert_uint_eq(res.n_tokens, 1);
	ck_assert_uint_eq(strspn(res.text, "b"), 100);
	kvc_result_clear(&res);
}
END_TEST

START_TEST(generate_stops_and_fails)
{
	const char *stops[17] = {"a", "bc"};
	struct kvc_gen_opts o = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_result res;
	struct seen s = {.cancel_at = 2};

	ck_assert_int_eq(
		kvc_generate_stream(client, "slow abcdefghijk", NULL, on_piece, &s, &res),
		-ECANCELED);
	ck_assert_str_eq(kvc_errmsg(), kvc_strerror(-ECANCELED));
	ck_assert_int_eq(s.calls, 2);
	ck_assert_uint_eq(res.usage.finish_reason, KVD_FINISH_CANCELLED);
	kvc_result_clear(&res);

	ck_assert_int_eq(kvc_generate(client, "fail", NULL, &res), KVD_E_CONTEXT);
	ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "(77 tokens)"));
	kvc_result_clear(&res);

	o.stop = stops;
	o.n_stop = 2;
	ck_assert_int_eq(kvc_generate(client, "x", &o, NULL), 0);
	o.n_stop = 17;
	ck_assert_int_eq(kvc_generate(client, "x", &o, NULL), -EINVAL);
	o.n_stop = 1;
	stops[0] = "";
	ck_assert_int_eq(kvc_generate(client, "x", &o, NULL), -EINVAL);
	o.n_stop = 0;
	o.temperature = -1;
	ck_assert_int_eq(kvc_generate(client, "x", &o, NULL), -EINVAL);
	/* The client is as good as new. */
	ck_assert_int_eq(kvc_ping(client, -1), 0);
}
END_TEST

START_TEST(chat_is_packed)
{
	const struct kvc_message m[] = {{"system", "be brief"}, {"user", "hi"}};
	struct kvc_result res;

	ck_assert_int_eq(kvc_chat(client, m, 2, NULL, &res), 0);
	ck_assert_uint_eq(res.text_len, 8 + 6 + 8 + 8 + 4 + 2);
	ck_assert_mem_eq(res.text,
			 "\6\0\0\0\10\0\0\0systembe brief\4\0\0\0\2\0\0\0userhi",
			 res.text_len);
	kvc_result_clear(&res);
}
END_TEST

START_TEST(conversions)
{
	struct kvc_input in = kvc_text("abc", 3);
	struct kvd_cqe_usage usage;
	uint32_t ids[4] = {0};
	float lp[4] = {9, 9, 9, 9};
	char text[4] = {0};
	char *large;
	size_t n = 300000;
	uint32_t *many = calloc(n, sizeof(*many));

	ck_assert_int_eq(kvc_tokenize(client, &in, 0, ids, 4), 3);
	ck_assert_uint_eq(ids[0], 'a');
	ck_assert_uint_eq(ids[2], 'c');
	ids[0] = 0;
	ck_assert_int_eq(kvc_tokenize(client, &in, 0, ids, 2), 3);
	ck_assert_uint_eq(ids[0], 0);
	ck_assert_int_eq(kvc_tokenize(client, &in, 0, NULL, 0), 3);

	ck_assert_int_eq(kvc_score(client, &in, 0, ids, lp, 4, &usage), 3);
	ck_assert_float_eq(lp[0], 0);
	ck_assert_float_eq(lp[2], -(float)'c' / 256.0f);
	ck_assert_uint_eq(ids[1], 'b');
	ck_assert_float_eq(lp[3], 9);
	ck_assert_uint_eq(usage.prompt_tokens, 3);
	ck_assert_int_eq(kvc_score(client, &in, 0, ids, lp, 1, NULL), 3);

	ck_assert_int_eq(kvc_detokenize(client, ids, 3, 0, text, 3), 3);
	ck_assert_str_eq(text, "abc");
	ck_assert_int_eq(kvc_detokenize(client, ids, 3, 0, text, 1), 3);

	/* Larger than the hidden ring is at first. */
	large = calloc(1, n + 1);
	memset(large, 'q', n);
	in = kvc_text(large, n);
	ck_assert_int_eq(kvc_tokenize(client, &in, 0, many, n), (int)n);
	ck_assert_uint_eq(many[n - 1], 'q');
	ck_assert_int_eq(kvc_tokenize(client, &in, 8, many, n), -EINVAL);
	free(large);
	free(many);
}
END_TEST

START_TEST(ring_completes_out_of_order)
{
	struct kvc_input longer = kvc_text("a long prompt that takes many steps", 35);
	struct kvc_input shorter = kvc_text("short", 5);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	uint64_t order[2];
	struct kvc_sqe *sqe;
	int n = 0;

	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), -ENODATA);
	ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), -EAGAIN);
	ck_assert_int_eq(kvc_ring_submit(ring), 0);

	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_generate(sqe, &longer, NULL);
	kvc_sqe_set_data64(sqe, 1);
	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_generate(sqe, &shorter, NULL);
	kvc_sqe_set_data64(sqe, 2);
	ck_assert_int_eq(kvc_ring_submit(ring), 2);
	ck_assert_uint_eq(kvc_ring_in_flight(ring), 2);
	while (n < 2) {
		ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
		if (!(cqe->flags & KVD_CQE_MORE))
			order[n++] = cqe->user_data;
		kvc_ring_cqe_seen(ring);
	}
	ck_assert_uint_eq(order[0], 2);
	ck_assert_uint_eq(order[1], 1);
	ck_assert_uint_eq(kvc_ring_in_flight(ring), 0);
	kvc_ring_close(ring);
}
END_TEST

START_TEST(ring_survives_small_queues)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_input in = kvc_text("0123456789012345678901234567890123456789", 40);
	int finals = 0, tokens = 0, i, round;
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvc_sqe *sqe;

	/* A CQ of 2 is full all the time; 4 KiB hold few prompts at once. */
	o.sq_entries = 4;
	o.cq_entries = 2;
	o.in_bytes = 4096;
	o.out_bytes = 4096;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	for (round = 0; round < 50; round++) {
		for (i = 0; i < 4; i++) {
			sqe = kvc_ring_get_sqe(ring);
			ck_assert_ptr_nonnull(sqe);
			kvc_prep_generate(sqe, &in, NULL);
		}
		ck_assert_ptr_null(kvc_ring_get_sqe(ring));
		while (finals < 4 * (round + 1)) {
			ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 2000000000), 0);
			if (cqe->flags & KVD_CQE_MORE)
				tokens++;
			else
				finals++;
			kvc_ring_cqe_seen(ring);
		}
	}
	ck_assert_int_eq(tokens, 50 * 4 * 14);
	kvc_ring_close(ring);
}
END_TEST

START_TEST(ring_refuses_what_never_fits)
{
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	char *large = calloc(1, 8192);
	struct kvc_input in = kvc_text(large, 8192);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvc_sqe *sqe;

	o.in_bytes = 4096;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_generate(sqe, &in, NULL);
	kvc_sqe_set_data64(sqe, 9);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
	ck_assert_int_eq(cqe->res, -E2BIG);
	ck_assert_uint_eq(cqe->user_data, 9);
	kvc_ring_cqe_seen(ring);

	/* Full, but only for now. */
	in.n = 3000;
	memset(large, 0, 8192);
	memcpy(large, "hang", 4);
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(kvc_ring_submit(ring), -ENOBUFS);
	kvc_ring_close(ring);

	o.in_bytes = 0;
	o.sq_entries = 100000;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), -EINVAL);
	free(large);
}
END_TEST

START_TEST(ring_cancels)
{
	struct kvc_input in = kvc_text("hang", 4);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvc_sqe *sqe;
	int seen = 0;

	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_generate(sqe, &in, NULL);
	kvc_sqe_set_data64(sqe, 5);
	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_cancel(sqe, 6);
	kvc_sqe_set_data64(sqe, 60);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 1, -1), 2);
	ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), 0);
	ck_assert_uint_eq(cqe->user_data, 60);
	ck_assert_int_eq(cqe->res, -ENOENT);
	kvc_ring_cqe_seen(ring);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, 20000000), -ETIME);

	sqe = kvc_ring_get_sqe(ring);
	kvc_prep_cancel(sqe, 5);
	kvc_sqe_set_data64(sqe, 50);
	ck_assert_int_eq(kvc_ring_submit_and_wait(ring, 2, -1), 1);
	while (kvc_ring_peek_cqe(ring, &cqe) == 0) {
		if (cqe->user_data == 50)
			ck_assert_int_eq(cqe->res, 1);
		else
			ck_assert_int_eq(cqe->res, -ECANCELED);
		seen += (int)cqe->user_data;
		kvc_ring_cqe_seen(ring);
	}
	ck_assert_int_eq(seen, 55);
	kvc_ring_close(ring);
}
END_TEST

START_TEST(event_fd_tells_of_everything)
{
	struct kvc_input in = kvc_text("slow abcdef", 11),
			 dies = kvc_text("die 12345678", 12);
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct pollfd p = {.events = POLLIN};
	int tokens = 0, finals = 0, rc;

	if (emulator_lacks("preadv2"))
		return;
	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	p.fd = kvc_ring_event_fd(ring);
	ck_assert_int_ge(p.fd, 0);
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	while (!finals) {
		ck_assert_int_eq(poll(&p, 1, 2000), 1);
		kvc_ring_event_ack(ring);
		while (kvc_ring_peek_cqe(ring, &cqe) == 0) {
			tokens += (cqe->flags & KVD_CQE_MORE) != 0;
			finals += (cqe->flags & KVD_CQE_MORE) == 0;
			kvc_ring_cqe_seen(ring);
		}
	}
	ck_assert_int_eq(tokens, 4);
	ck_assert_int_eq(poll(&p, 1, 0), 0);

	/* What this side ends by itself shows as well. */
	in = kvc_text("x", (size_t)64 << 20);
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(poll(&p, 1, 2000), 1);
	kvc_ring_event_ack(ring);
	ck_assert_int_eq(kvc_ring_peek_cqe(ring, &cqe), 0);
	ck_assert_int_eq(cqe->res, -E2BIG);
	kvc_ring_cqe_seen(ring);
	ck_assert_int_eq(poll(&p, 1, 0), 0);

	/* And the end of the daemon. */
	finals = 0;
	kvc_prep_generate(kvc_ring_get_sqe(ring), &dies, NULL);
	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	do {
		ck_assert_int_eq(poll(&p, 1, 2000), 1);
		kvc_ring_event_ack(ring);
		while ((rc = kvc_ring_peek_cqe(ring, &cqe)) == 0) {
			if (!(cqe->flags & KVD_CQE_MORE)) {
				ck_assert_int_eq(cqe->res, -ECONNRESET);
				finals++;
			}
			kvc_ring_cqe_seen(ring);
		}
	} while (rc == -EAGAIN);
	ck_assert_int_eq(rc, -ECONNRESET);
	ck_assert_int_eq(finals, 1);
	kvc_ring_close(ring);
}
END_TEST

START_TEST(daemon_dies_under_requests)
{
	struct kvc_input hangs = kvc_text("hang", 4), dies = kvc_text("die 12345678", 12);
	int tokens = 0, resets = 0, rc, i;
	const struct kvd_cqe *cqe;
	struct kvc_ring *ring;
	struct kvc_result res;
	struct kvc_sqe *sqe;
	uint64_t sum = 0;

	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	for (i = 0; i < 10; i++) {
		sqe = kvc_ring_get_sqe(ring);
		kvc_prep_generate(sqe, i == 9 ? &dies : &hangs, NULL);
		kvc_sqe_set_data64(sqe, (uint64_t)1 << i);
	}
	ck_assert_int_eq(kvc_ring_submit(ring), 10);
	while ((rc = kvc_ring_wait_cqe(ring, &cqe, 5000000000)) == 0) {
		if (cqe->flags & KVD_CQE_MORE) {
			tokens++;
		} else {
			ck_assert_int_eq(cqe->res, -ECONNRESET);
			ck_assert_uint_eq(sum & cqe->user_data, 0);
			sum |= cqe->user_data;
			resets++;
		}
		kvc_ring_cqe_seen(ring);
	}
	/* Every request ended once; what came before the end was not lost. */
	ck_assert_int_eq(rc, -ECONNRESET);
	ck_assert_int_eq(resets, 10);
	ck_assert_uint_eq(sum, 1023);
	ck_assert_int_eq(tokens, 3);
	kvc_ring_close(ring);
	ck_assert_int_eq(kvc_ping(client, -1), -ECONNRESET);
	ck_assert_int_eq(kvc_generate(client, "x", NULL, &res), -ECONNRESET);
	ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "connect again"));
}
END_TEST

START_TEST(daemon_dies_under_blocking_call)
{
	struct kvc_result res;

	ck_assert_int_eq(kvc_generate(client, "die 12345678", NULL, &res), -ECONNRESET);
	ck_assert_str_eq(res.text, "die 12345");
	kvc_result_clear(&res);
}
END_TEST

START_TEST(faulty_daemon_ends_the_ring)
{
	struct kvc_result res;

	ck_assert_int_eq(kvc_generate(client, "bad", NULL, &res), KVD_E_PROTO);
	kvc_result_clear(&res);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
}
END_TEST

static void *thread_main(void *arg)
{
	char prompt[64];
	struct kvc_result res;
	int i, rc;

	for (i = 0; i < 40; i++) {
		snprintf(prompt, sizeof(prompt), "thread %p call %d", arg, i);
		rc = kvc_generate(client, prompt, NULL, &res);
		if (rc < 0 || strcmp(res.text, prompt) != 0)
			return (void *)1;
		kvc_result_clear(&res);
	}
	return NULL;
}

/* More threads than rings: calls queue for the hidden ones. */
START_TEST(client_is_thread_safe)
{
	struct fake_daemon few = {.max_rings = 2};
	pthread_t t[8];
	void *ret;
	long i;

	kvc_close(client);
	fake_daemon_stop(&fake);
	fake = few;
	fake_daemon_start(&fake);
	client = connect_fake();
	for (i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, thread_main, (void *)i), 0);
	for (i = 0; i < 8; i++) {
		pthread_join(t[i], &ret);
		ck_assert_ptr_null(ret);
	}
}
END_TEST

START_TEST(fork_is_noticed)
{
	struct kvc_ring *ring;
	const struct kvd_cqe *cqe;
	int status;
	pid_t pid;

	if (emulator_lacks("MADV_WIPEONFORK"))
		return;
	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	pid = fork();
	if (pid == 0) {
		struct kvd_stats s = {.size = sizeof(s)};
		int bad = 0;

		bad |= kvc_ping(client, -1) != -EOWNERDEAD;
		bad |= kvc_stats(client, &s) != -EOWNERDEAD;
		bad |= kvc_ring_submit(ring) != -EOWNERDEAD;
		bad |= kvc_ring_peek_cqe(ring, &cqe) != -EOWNERDEAD;
		bad |= kvc_ring_wait_cqe(ring, &cqe, -1) != -EOWNERDEAD;
		kvc_ring_close(ring);
		kvc_close(client);
		_exit(bad);
	}
	waitpid(pid, &status, 0);
	ck_assert_int_eq(status, 0);
	/* The parent does not notice. */
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	kvc_ring_close(ring);
	ck_assert_int_eq(kvc_ping(client, -1), 0);
}
END_TEST

START_TEST(nothing_leaks)
{
	struct kvc_ring *ring;
	struct kvc_client *c;
	int before, i;

	kvc_ping(client, -1);
	before = count_fds();
	for (i = 0; i < 200; i++) {
		c = connect_fake();
		ck_assert_int_eq(kvc_ring_open(c, &ring, NULL), 0);
		ck_assert_int_ge(kvc_ring_event_fd(ring), 0);
		ck_assert_int_eq(kvc_ping(c, -1), 0);
		if (i % 2)
			kvc_ring_close(ring);
		kvc_close(c);
	}
	ck_assert_int_eq(count_fds(), before);
}
END_TEST

START_TEST(sleeping_and_spinning_agree)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c;
	int i;

	o.socket_path = fake.path;
	o.spin_ns = -1;
	ck_assert_int_eq(kvc_connect(&c, &o), 0);
	for (i = 0; i < 2000; i++) {
		ck_assert_int_eq(kvc_ping(c, 2000000000), 0);
		ck_assert_int_eq(kvc_ping(client, 2000000000), 0);
	}
	kvc_close(c);
}
END_TEST

START_TEST(codes_have_names)
{
	ck_assert_str_eq(kvc_errname(-ENOENT), "ENOENT");
	ck_assert_str_eq(kvc_errname(KVD_E_QUOTA), "KVD_E_QUOTA");
	ck_assert_str_eq(kvc_errname(-5000), "UNKNOWN");
	ck_assert_str_eq(kvc_strerror(-ENOENT), "No such file or directory");
	ck_assert_uint_eq(kvc_version(), 0x000100);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("fake daemon");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, connect_says_what_is_wrong);
	tcase_add_test(t, connect_refuses_bad_options);
	tcase_add_test(t, connect_reports_rejection_and_silence);
	tcase_add_test(t, info_and_administration);
	tcase_add_test(t, generate_echoes);
	tcase_add_test(t, generate_stops_and_fails);
	tcase_add_test(t, chat_is_packed);
	tcase_add_test(t, conversions);
	tcase_add_test(t, ring_completes_out_of_order);
	tcase_add_test(t, ring_survives_small_queues);
	tcase_add_test(t, ring_refuses_what_never_fits);
	tcase_add_test(t, ring_cancels);
	tcase_add_test(t, event_fd_tells_of_everything);
	tcase_add_test(t, daemon_dies_under_requests);
	tcase_add_test(t, daemon_dies_under_blocking_call);
	tcase_add_test(t, faulty_daemon_ends_the_ring);
	tcase_add_test(t, client_is_thread_safe);
	tcase_add_test(t, fork_is_noticed);
	tcase_add_test(t, nothing_leaks);
	tcase_add_test(t, sleeping_and_spinning_agree);
	tcase_add_test(t, codes_have_names);
	return run_case("client", t);
}
