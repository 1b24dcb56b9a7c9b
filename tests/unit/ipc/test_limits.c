/* SPDX-License-Identifier: MIT */
/* What is too large or out of range: who says so, and what the line says. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvclient.h>

#include "ipc/base.h"
#include "tests/unit/ipc/fake_daemon.h"
#include "tests/unit/suite.h"

static struct kvc_client *connect_to(const struct fake_daemon *fake)
{
	struct kvc_connect_opts o = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_client *c = NULL;

	o.socket_path = fake->path;
	o.reconnect_ns = -1;
	ck_assert_int_eq(kvc_connect(&c, &o), 0);
	return c;
}

/* Defaults give way to what the daemon grants; what is asked for does not. */
START_TEST(small_arenas_are_enough)
{
	static const uint64_t grants[] = {65536, 70000, 1 << 20};
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvd_server_info server;
	struct kvc_result result;
	struct kvc_ring *ring;
	struct kvc_client *c;
	uint32_t *large = calloc(2, 1 << 20);
	struct kvc_input tokens = kvc_tokens(large, (2 << 20) / sizeof(*large));

	for (size_t i = 0; i < KVD_ARRAY_LEN(grants); i++) {
		struct fake_daemon fake = {.max_arena = grants[i]};

		fake_daemon_start(&fake);
		c = connect_to(&fake);
		kvc_get_server_info(c, &server);
		ck_assert_uint_eq(server.max_in_bytes, grants[i]);
		ck_assert_int_eq(kvc_ping(c, -1), 0);
		ck_assert_int_eq(kvc_generate(c, "abc", NULL, &result), 0);
		ck_assert_str_eq(result.text, "abc");
		kvc_result_clear(&result);
		ck_assert_int_eq(kvc_generate_input(c, &tokens, NULL, NULL, NULL, NULL),
				 -E2BIG);
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "max_arena_per_ring"));
		ck_assert_int_eq(kvc_ring_open(c, &ring, NULL), 0);
		kvc_ring_close(ring);
		ck_assert_int_eq(kvc_ring_open(c, &ring, &o), 0);
		kvc_ring_close(ring);
		o.in_bytes = (1 << 20) + 1;
		ck_assert_int_eq(kvc_ring_open(c, &ring, &o), KVD_E_QUOTA);
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "1048577 bytes"));
		ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "max_arena_per_ring"));
		o.in_bytes = 0;
		kvc_close(c);
		fake_daemon_stop(&fake);
	}
	free(large);
}
END_TEST

static struct fake_daemon fake;
static struct kvc_client *client;

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake_daemon_start(&fake);
	client = connect_to(&fake);
}

static void teardown(void)
{
	/* However much was refused, it is as good as new. */
	ck_assert_int_eq(kvc_ping(client, -1), 0);
	kvc_close(client);
	fake_daemon_stop(&fake);
}

static char long_stop[KVD_MAX_STOP_LEN + 2];
static const char *const no_stop[] = {"a", NULL};
static const char *const empty_stop[] = {"a", ""};
static const char *const bad_stop[] = {"a", "b\xc3"};
static const char *const too_long_stop[] = {"a", long_stop};

/* One option out of its range each, and the line that says so. */
static const struct {
	const char *line;
	struct kvc_gen_opts o;
} bad_gen[] = {
	{"temperature is -1; it must be >= 0 and <= 100", {.temperature = -1}},
	{"temperature is 100.5; it must be >= 0 and <= 100", {.temperature = 100.5f}},
	{"temperature is nan; it must be >= 0 and <= 100", {.temperature = NAN}},
	{"top_p is 2; it must be >= 0 and <= 1", {.top_p = 2}},
	{"top_p is -0.5; it must be >= 0 and <= 1", {.top_p = -0.5f}},
	{"min_p is inf; it must be >= 0 and <= 1", {.min_p = INFINITY}},
	{"priority is 1000; it must be >= -100 and <= 100", {.priority = 1000}},
	{"priority is -101; it must be >= -100 and <= 100", {.priority = -101}},
	{"n is 17; it must be <= 16", {.n = 17}},
	{"n is 2; with KVD_GEN_KEEP it must be 1", {.n = 2, .gen_flags = KVD_GEN_KEEP}},
	{"n is 2; several sequences of one request need a ring of your own", {.n = 2}},
	{"fork_at is 3; it must be 0 but for a fork", {.fork_at = 3}},
	{"gen_flags has the unknown bits 0x10; known here are 0xb", {.gen_flags = 0x11}},
	{"gen_flags has the unknown bits 0x4; known here are 0xb",
	 {.gen_flags = KVD_GEN_ECHO}},
	{"input_flags has the unknown bits 0x104; known here are 0x3",
	 {.input_flags = 0x105}},
	{"n_stop is 17; it must be <= 16", {.stop = no_stop, .n_stop = 17}},
	{"n_stop is 1, but stop is NULL", {.n_stop = 1}},
	{"stop[1] is NULL", {.stop = no_stop, .n_stop = 2}},
	{"stop[1] is empty; it must have 1 to 256 bytes",
	 {.stop = empty_stop, .n_stop = 2}},
	{"stop[1] is not valid UTF-8 (at byte 1)", {.stop = bad_stop, .n_stop = 2}},
	{"stop[1] has 257 bytes; it must have 1 to 256",
	 {.stop = too_long_stop, .n_stop = 2}},
};

/* What a ring gives for the entry that was prepared last. */
static void expect_cqe(struct kvc_ring *ring, int res, uint64_t detail)
{
	const struct kvd_cqe *cqe;

	ck_assert_int_eq(kvc_ring_submit(ring), 1);
	ck_assert_int_eq(kvc_ring_wait_cqe(ring, &cqe, -1), 0);
	ck_assert_int_eq(cqe->res, res);
	ck_assert_uint_eq(cqe->u.usage.detail, detail);
	kvc_ring_cqe_seen(ring);
}

START_TEST(every_option_is_named)
{
	struct kvc_input in = kvc_text("abc", 3);
	struct kvc_gen_opts o;
	struct kvc_ring *ring;

	memset(long_stop, 's', sizeof(long_stop) - 1);
	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	for (size_t i = 0; i < KVD_ARRAY_LEN(bad_gen); i++) {
		o = bad_gen[i].o;
		o.size = sizeof(o);
		ck_assert_int_eq(kvc_generate(client, "abc", &o, NULL), -EINVAL);
		ck_assert_str_eq(kvc_errmsg(), bad_gen[i].line);
		if (o.n == 2 && !o.gen_flags)
			continue;
		/* The same on a ring, whose submission leaves the line. */
		kvc_prep_generate(kvc_ring_get_sqe(ring), &in, &o);
		expect_cqe(ring, -EINVAL, 0);
		ck_assert_str_eq(kvc_errmsg(), bad_gen[i].line);
	}
	o = (struct kvc_gen_opts){.size = sizeof(o), .n = 2};
	kvc_prep_fork(kvc_ring_get_sqe(ring), 0, NULL, &o);
	expect_cqe(ring, -EINVAL, 0);
	ck_assert_str_eq(kvc_errmsg(), "n is 2; of a fork it must be 1");
	kvc_ring_close(ring);
}
END_TEST

/* The ends of each range are inside. */
START_TEST(ends_of_ranges_are_fine)
{
	static const struct kvc_gen_opts good[] = {
		{.temperature = 100, .top_p = 1, .min_p = 1, .priority = 100},
		{.priority = -100, .gen_flags = 0xb, .input_flags = 3, .n = 1},
		{.stop = too_long_stop, .n_stop = 1, .seed = UINT64_MAX},
	};

	for (size_t i = 0; i < KVD_ARRAY_LEN(good); i++) {
		struct kvc_gen_opts o = good[i];

		o.size = sizeof(o);
		ck_assert_int_eq(kvc_generate(client, "abc", &o, NULL), 0);
	}
}
END_TEST

START_TEST(structs_of_other_sizes)
{
	struct {
		struct kvc_gen_opts o;
		uint64_t more;
	} gen = {.o = {.size = sizeof(gen)}, .more = 1};
	struct {
		struct kvc_ring_opts o;
		uint64_t more;
	} ring = {.o = {.size = sizeof(ring)}, .more = 1};
	struct kvc_ring *r;

	ck_assert_int_eq(kvc_generate(client, "abc", &gen.o, NULL), -E2BIG);
	ck_assert_str_eq(kvc_errmsg(), "kvc_gen_opts sets an option that this version of "
				       "the library does not know");
	ck_assert_int_eq(kvc_ring_open(client, &r, &ring.o), -E2BIG);
	ck_assert_ptr_nonnull(strstr(kvc_errmsg(), "kvc_ring_opts sets an option"));
	gen.o.size = 0;
	ck_assert_int_eq(kvc_generate(client, "abc", &gen.o, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "kvc_gen_opts.size is not set; initialise it with "
				       "KVC_OPTS_INIT");
	ring.o.size = sizeof(ring.o);
	ring.o.sq_entries = 4097;
	ck_assert_int_eq(kvc_ring_open(client, &r, &ring.o), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "sq_entries is 4097; it must be <= 4096");
	ring.o.sq_entries = 0;
	ring.o.cq_entries = 16385;
	ck_assert_int_eq(kvc_ring_open(client, &r, &ring.o), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "cq_entries is 16385; it must be <= 16384");
	/* What an older caller has not is the default. */
	gen.o.size = offsetof(struct kvc_gen_opts, temperature);
	gen.o.temperature = -1;
	ck_assert_int_eq(kvc_generate(client, "abc", &gen.o, NULL), 0);
}
END_TEST

START_TEST(score_with_alternatives)
{
	static float p[3 * 256];
	uint32_t ids[9];
	struct kvc_score_opts o = {
		.size = sizeof(o),
		.top = 3,
		.first = 1,
		.cap = 4,
		.top_ids = ids,
		.top_logprobs = p,
		.top_cap = 9,
	};
	struct kvc_input in = kvc_text("abcd", 4);

	ck_assert_int_eq(kvc_score_top(client, &in, &o, NULL), 4);
	for (uint32_t i = 0; i < 9; i++)
		ck_assert(ids[i] == 1 + i / 3 + i % 3 && p[i] == -(float)(i % 3));
	o.top_cap = 8;
	ck_assert_int_eq(kvc_score_top(client, &in, &o, NULL), -ENOBUFS);
	o.first = 4;
	ck_assert_int_eq(kvc_score_top(client, &in, &o, NULL), -EINVAL);
	o.top = KVD_TOP_ALL;
	o.first = 1;
	o.top_ids = NULL;
	o.top_cap = 3 * 256;
	ck_assert_int_eq(kvc_score_top(client, &in, &o, NULL), 4);
	for (uint32_t i = 0; i < 3 * 256; i++)
		ck_assert_float_eq(p[i], -(float)(i % 256));
}
END_TEST

START_TEST(scores_are_checked)
{
	static const struct {
		const char *line;
		struct kvc_score_opts o;
	} bad[] = {
		{"top is 257; it must be <= 256, or KVD_TOP_ALL", {.top = 257}},
		{"first is 1, but top is 0: no position is asked for", {.first = 1}},
		{"flags has the unknown bits 0x4; known here are 0x3", {.flags = 4}},
		{"reserved is 1; it must be 0", {.reserved = 1}},
		{"first is 3; the input has no such position", {.top = 1, .first = 3}},
	};
	struct kvc_input in = kvc_text("abc", 3);
	struct kvc_score_opts o;
	uint32_t ids[4];

	for (size_t i = 0; i < KVD_ARRAY_LEN(bad); i++) {
		o = bad[i].o;
		o.size = sizeof(o);
		ck_assert_int_eq(kvc_score_top(client, &in, &o, NULL), -EINVAL);
		ck_assert_str_eq(kvc_errmsg(), bad[i].line);
	}
	ck_assert_int_eq(kvc_score(client, &in, 0x101, NULL, NULL, 0, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(),
			 "flags has the unknown bits 0x100; known here are 0x3");
	ck_assert_int_eq(kvc_tokenize(client, &in, 4, ids, 4), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(),
			 "flags has the unknown bits 0x4; known here are 0x3");
	ck_assert_int_eq(kvc_detokenize(client, ids, 0, 1, NULL, 0), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(),
			 "flags has the unknown bits 0x1; known here are 0x4");
	in = kvc_tokens(ids, 4);
	ck_assert_int_eq(kvc_tokenize(client, &in, 0, ids, 4), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "TOKENIZE takes no input of kind 1");
	in.kind = 77;
	ck_assert_int_eq(kvc_score(client, &in, 0, NULL, NULL, 0, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "SCORE takes no input of kind 77");
	in = kvc_text(NULL, 3);
	ck_assert_int_eq(kvc_score(client, &in, 0, NULL, NULL, 0, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "the input is NULL, but has 3 elements");
}
END_TEST

START_TEST(conversations_are_checked)
{
	static const char *const roles[][2] = {
		{"", ""},
		{"a\nb", "a?b"},
		{"r\xc3\xb6le", "r\xc3\xb6le"},
		{"System", "System"},
		{"tool", "tool"},
		{"user ", "user "},
		{"1234567890123456789012345678901234567890123456789012345678901234x",
		 "1234567890123456789012345678901234567890123456789012345678901234"},
	};
	struct kvc_message *m = calloc(KVD_MAX_CHAT_MESSAGES + 1, sizeof(*m));
	struct kvc_result result;
	struct kvc_ring *ring;
	struct kvc_input in;

	ck_assert_int_eq(kvc_ring_open(client, &ring, NULL), 0);
	for (size_t i = 0; i <= KVD_MAX_CHAT_MESSAGES; i++)
		m[i] = (struct kvc_message){.role = "user", .content = "x"};
	in = kvc_messages(m, KVD_MAX_CHAT_MESSAGES + 1);
	ck_assert_int_eq(kvc_chat(client, m, in.n, NULL, &result), -E2BIG);
	ck_assert_str_eq(kvc_errmsg(),
			 "the input has 1025 messages; kvd takes 1024 at most");
	ck_assert_uint_eq(result.usage.detail, 1024);
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	expect_cqe(ring, -E2BIG, 1024);
	ck_assert_int_eq(kvc_chat(client, m, KVD_MAX_CHAT_MESSAGES, NULL, NULL), 0);
	for (size_t i = 0; i < KVD_ARRAY_LEN(roles); i++) {
		char want[160];

		m[1].role = roles[i][0];
		snprintf(want, sizeof(want),
			 "message 1 has the role \"%s\"; it must be system, user or "
			 "assistant",
			 roles[i][1]);
		ck_assert_int_eq(kvc_chat(client, m, 2, NULL, NULL), -EINVAL);
		ck_assert_str_eq(kvc_errmsg(), want);
	}
	m[1].role = NULL;
	ck_assert_int_eq(kvc_chat(client, m, 2, NULL, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "message 1 has no role");
	m[1] = (struct kvc_message){.role = "user"};
	ck_assert_int_eq(kvc_chat(client, m, 2, NULL, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "message 1 has no content");
	kvc_ring_close(ring);
	free(m);
}
END_TEST

START_TEST(large_inputs_are_named)
{
	size_t n = KVD_MAX_TEXT_BYTES + 1;
	char *text = calloc(4, n + 1);
	struct kvc_message m = {.role = "user", .content = text};
	struct kvc_input in = kvc_text(text, n);
	struct kvd_cqe_usage usage;
	struct kvc_ring_opts o = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_ring *ring;

	memset(text, 'a', n);
	ck_assert_int_eq(kvc_score(client, &in, 0, NULL, NULL, 0, &usage), -E2BIG);
	ck_assert_str_eq(kvc_errmsg(), "the input has 1048577 bytes of text; kvd takes "
				       "1048576 at most");
	ck_assert_uint_eq(usage.detail, 1048576);
	ck_assert_int_eq(kvc_chat(client, &m, 1, NULL, NULL), -E2BIG);
	ck_assert_str_eq(kvc_errmsg(), "the input has 1048589 bytes in its messages; kvd "
				       "takes 1048576 at most");
	ck_assert_int_eq(kvc_detokenize(client, (uint32_t *)text, n, 0, NULL, 0), -E2BIG);
	ck_assert_str_eq(kvc_errmsg(), "the input has 1048577 token ids; kvd takes "
				       "1048576 at most");
	o.in_bytes = 4096;
	ck_assert_int_eq(kvc_ring_open(client, &ring, &o), 0);
	in.n = 4097;
	kvc_prep_generate(kvc_ring_get_sqe(ring), &in, NULL);
	expect_cqe(ring, -E2BIG, 4096);
	ck_assert_str_eq(kvc_errmsg(), "the request needs 4097 bytes of its ring's input "
				       "arena, which has 4096");
	kvc_ring_close(ring);
	free(text);
}
END_TEST

START_TEST(administration_is_checked)
{
	struct kvd_stats stats = {.size = 4};
	struct kvd_quota quota = {0};
	struct kvd_event event;
	char name[200];
	uint64_t lost;

	ck_assert_int_eq(kvc_stats(client, &stats), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "kvd_stats.size is 4; set it to sizeof");
	ck_assert_int_eq(kvc_quota_set(client, 1, 0, &quota), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "set is 0x0; it must name limits of 0x3f");
	ck_assert_int_eq(kvc_quota_set(client, 1, 0x40, &quota), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "set is 0x40; it must name limits of 0x3f");
	ck_assert_int_eq(kvc_drain(client, 3, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "action is 3; it must be <= 2");
	ck_assert_int_eq(kvc_prefix_control(client, 1, 0, 0, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "action is 0; it must be >= 1 and <= 3");
	ck_assert_int_eq(kvc_prefix_control(client, 1, KVD_PREFIX_PIN, 2, NULL), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "flags is 0x2; action 1 takes 0x1");
	ck_assert_int_eq(kvc_events(client, &event, 1, &lost), -EINVAL);
	ck_assert_str_eq(kvc_errmsg(), "cap is 1; it must be >= 256");
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	ck_assert_int_eq(kvc_cache_flush(client, name, NULL, NULL), -ENAMETOOLONG);
	ck_assert_str_eq(kvc_errmsg(), "a domain has at most 63 bytes");
	ck_assert_int_eq(kvc_cache_flush(client, NULL, name, NULL), -ENAMETOOLONG);
	ck_assert_str_eq(kvc_errmsg(), "a model's name has at most 63 bytes");
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("limits"), *c = tcase_create("checks");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, small_arenas_are_enough);
	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, every_option_is_named);
	tcase_add_test(c, ends_of_ranges_are_fine);
	tcase_add_test(c, structs_of_other_sizes);
	tcase_add_test(c, score_with_alternatives);
	tcase_add_test(c, scores_are_checked);
	tcase_add_test(c, conversations_are_checked);
	tcase_add_test(c, large_inputs_are_named);
	tcase_add_test(c, administration_is_checked);
	return run_case("client-limits", t) + run_case("client-checks", c);
}
