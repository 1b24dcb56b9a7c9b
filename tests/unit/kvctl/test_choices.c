/* SPDX-License-Identifier: MIT */
/*
 * Which of several answers an end belongs to. The library is played: completions come
 * from a script, in the words of kvd-abi(7).
 */
#include "client/kvctl/choices.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <kvclient.h>

#include "tests/unit/suite.h"

static const struct kvd_cqe *script;
static unsigned int n_script, at;

int kvc_ring_open(struct kvc_client *client, struct kvc_ring **ret_ring,
		  const struct kvc_ring_opts *opts)
{
	*ret_ring = NULL;
	return 0;
}

void kvc_ring_close(struct kvc_ring *ring)
{
}

struct kvc_sqe *kvc_ring_get_sqe(struct kvc_ring *ring)
{
	return NULL;
}

void kvc_prep_generate(struct kvc_sqe *sqe, const struct kvc_input *input,
		       const struct kvc_gen_opts *opts)
{
}

int kvc_ring_submit(struct kvc_ring *ring)
{
	return 1;
}

int kvc_ring_wait_cqe(struct kvc_ring *ring, const struct kvd_cqe **ret_cqe,
		      int64_t timeout_ns)
{
	if (at == n_script)
		return -ENODATA;
	*ret_cqe = &script[at++];
	return 0;
}

void kvc_ring_cqe_seen(struct kvc_ring *ring)
{
}

const char *kvc_errname(int err)
{
	return err == KVD_E_RESTARTED ? "KVD_E_RESTARTED" : "other";
}

static struct kvd_cqe token(uint32_t i, int32_t id, char c)
{
	struct kvd_cqe cqe = {.flags = KVD_CQE_MORE | i << 24};

	cqe.u.token.token = id;
	cqe.u.token.n_bytes = 1;
	cqe.u.token.bytes[0] = (uint8_t)c;
	return cqe;
}

/* The end of answer @i; @more: others are still to end. */
static struct kvd_cqe ended(uint32_t i, bool more, int32_t res, uint32_t reason)
{
	struct kvd_cqe cqe = {
		.flags = (more ? KVD_CQE_MORE | KVD_CQE_END : 0) | i << 24,
		.res = res,
	};

	cqe.u.usage.prompt_tokens = 9;
	cqe.u.usage.generated_tokens = res > 0 ? (uint32_t)res : 0;
	cqe.u.usage.finish_reason = reason;
	return cqe;
}

/* As libkvclient ends what a restart has lost: no index, counts of all answers. */
static struct kvd_cqe lost(int32_t res, uint32_t n_tokens)
{
	struct kvd_cqe cqe = {.res = res};

	cqe.u.usage.generated_tokens = n_tokens;
	cqe.u.usage.finish_reason = KVD_FINISH_ERROR;
	return cqe;
}

static int play(struct choices *choices, uint32_t n, const struct kvd_cqe *cqes,
		unsigned int n_cqes)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_input input = kvc_text("x", 1);
	int r;

	opts.n = n;
	script = cqes;
	n_script = n_cqes;
	at = 0;
	r = choices_run(choices, NULL, &input, &opts, false);
	ck_assert_uint_eq(at, n_script);
	return r;
}
#define PLAY(choices, n, cqes) play(choices, n, cqes, sizeof(cqes) / sizeof((cqes)[0]))

START_TEST(each_ends_by_itself)
{
	struct kvd_cqe cqes[] = {
		token(1, 5, 'b'),
		token(0, 4, 'a'),
		ended(1, true, 1, KVD_FINISH_LENGTH),
		ended(2, true, KVD_E_BUSY, KVD_FINISH_ERROR),
		ended(0, false, 1, KVD_FINISH_STOP),
	};
	struct choices c;

	ck_assert_int_eq(PLAY(&c, 3, cqes), 0);
	ck_assert_int_eq(c.list[0].res, 1);
	ck_assert_str_eq(c.list[0].result.text, "a");
	ck_assert_uint_eq(c.list[0].result.usage.finish_reason, KVD_FINISH_STOP);
	ck_assert_int_eq(c.list[1].res, 1);
	ck_assert_uint_eq(c.list[1].result.tokens[0], 5);
	ck_assert_int_eq(c.list[2].res, KVD_E_BUSY);
	ck_assert_int_eq(choices_error(&c), KVD_E_BUSY);
	choices_deinit(&c);
}
END_TEST

START_TEST(a_restart_ends_those_that_are_open)
{
	struct kvd_cqe cqes[] = {
		token(0, 4, 'a'),
		token(1, 5, 'b'),
		ended(0, true, 1, KVD_FINISH_STOP),
		lost(KVD_E_RESTARTED, 2),
	};
	char *text = NULL;
	size_t len = 0;
	struct choices c;
	FILE *f;

	ck_assert_int_eq(PLAY(&c, 3, cqes), 0);
	ck_assert_int_eq(c.list[0].res, 1);
	ck_assert_uint_eq(c.list[0].result.usage.prompt_tokens, 9);
	ck_assert_uint_eq(c.list[0].result.usage.finish_reason, KVD_FINISH_STOP);
	for (uint32_t i = 1; i < 3; i++) {
		ck_assert(c.list[i].ended);
		ck_assert_int_eq(c.list[i].res, KVD_E_RESTARTED);
		ck_assert_uint_eq(c.list[i].result.usage.generated_tokens, 2 - i);
		ck_assert_uint_eq(c.list[i].result.usage.finish_reason, KVD_FINISH_ERROR);
	}
	ck_assert_int_eq(choices_error(&c), KVD_E_RESTARTED);
	f = open_memstream(&text, &len);
	ck_assert_ptr_nonnull(f);
	choices_print_json(&c, f);
	ck_assert_int_eq(fclose(f), 0);
	/* the first answer is whole, the others say what ended them */
	ck_assert_ptr_nonnull(strstr(text, "KVD_E_RESTARTED"));
	ck_assert(strstr(text, "KVD_E_RESTARTED") > strstr(text, "\"index\": 1"));
	ck_assert_ptr_nonnull(strstr(strstr(text, "\"index\": 2"), "KVD_E_RESTARTED"));
	free(text);
	choices_deinit(&c);
}
END_TEST

/* The one that is left need not be the first. */
START_TEST(a_restart_ends_the_last)
{
	struct kvd_cqe cqes[] = {
		token(0, 4, 'a'),
		ended(0, true, 1, KVD_FINISH_STOP),
		lost(KVD_E_RESTARTED, 1),
	};
	struct choices c;

	ck_assert_int_eq(PLAY(&c, 2, cqes), 0);
	ck_assert_int_eq(c.list[0].res, 1);
	ck_assert_int_eq(c.list[1].res, KVD_E_RESTARTED);
	ck_assert_uint_eq(c.list[1].result.usage.generated_tokens, 0);
	choices_deinit(&c);
}
END_TEST

START_TEST(a_refusal_is_one)
{
	struct kvd_cqe cqes[] = {ended(0, false, KVD_E_CONTEXT, KVD_FINISH_ERROR)};
	struct choices c;

	cqes[0].u.usage.detail = 77;
	ck_assert_int_eq(PLAY(&c, 3, cqes), KVD_E_CONTEXT);
	ck_assert_uint_eq(c.list[0].result.usage.detail, 77);
	ck_assert_uint_eq(c.list[0].result.usage.prompt_tokens, 9);
	choices_deinit(&c);
}
END_TEST

/* An answer that had begun is shown, also where it is not the first. */
START_TEST(what_began_is_no_refusal)
{
	struct kvd_cqe cqes[] = {token(1, 5, 'b'), lost(-ECONNRESET, 1)};
	struct choices c;

	ck_assert_int_eq(PLAY(&c, 2, cqes), 0);
	ck_assert_str_eq(c.list[1].result.text, "b");
	ck_assert_int_eq(c.list[0].res, -ECONNRESET);
	ck_assert_int_eq(c.list[1].res, -ECONNRESET);
	choices_deinit(&c);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("ends");

	tcase_add_test(tc, each_ends_by_itself);
	tcase_add_test(tc, a_restart_ends_those_that_are_open);
	tcase_add_test(tc, a_restart_ends_the_last);
	tcase_add_test(tc, a_refusal_is_one);
	tcase_add_test(tc, what_began_is_no_refusal);
	return run_case("choices", tc);
}
