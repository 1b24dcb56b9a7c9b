/* SPDX-License-Identifier: MIT */
/* Steps of a small random model, as the daemon runs them: what is in flight while the events
 * of a step are delivered, and what their receiver may do. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/gguf.h"
#include "tests/unit/engine/tiny_engine.h"
#include "tests/unit/suite.h"

#define N_PROMPT 100

static char path[] = "/tmp/kvd-steps.XXXXXX";
static struct config config;
static struct loop *loop;
static struct engine engine;
static int32_t prompt[N_PROMPT];

/* What the callback does, and what it has seen. */
static uint32_t cancel_at;
static uint32_t n_tokens, n_scored, n_busy, n_dist_wrong;
static struct sched_event finished;

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void on_event(void *ctx, const struct sched_event *event, const uint32_t *dist)
{
	float logprob;

	n_busy += engine_busy(&engine);
	switch (event->kind) {
	case SCHED_TOKEN:
		if (++n_tokens == cancel_at)
			engine_cancel(&engine, event->id);
		break;
	case SCHED_SCORED:
		/* the worker has time to write what comes next */
		if (n_scored++ % 16 == 0)
			sleep_ms(20);
		if (!dist || event->token < 0)
			break;
		memcpy(&logprob, &dist[event->token], sizeof(logprob));
		n_dist_wrong += logprob != event->logprob;
		break;
	case SCHED_FINISHED:
		finished = *event;
		loop_exit(loop, 0);
		break;
	}
}

static void setup(void)
{
	const struct engine_setup how = {.event = on_event};

	tiny_engine_config(&config, path);
	config.scheduler.max_num_seqs = 8;
	config.scheduler.max_num_batched_tokens = 24;
	tiny_engine_init(&engine, how, &config, &loop);
	for (uint32_t i = 0; i < N_PROMPT; i++)
		prompt[i] = (int32_t)(i * 7 % engine.info.n_vocab);
}

static void teardown(void)
{
	engine_deinit(&engine);
	loop_free(loop);
	config_deinit(&config);
	unlink(path);
}

static void run(const struct request_desc *desc)
{
	uint64_t detail;
	uint32_t id;

	ck_assert_int_eq(engine_add(&engine, desc, &id, &detail), 0);
	ck_assert_int_eq(loop_run(loop), 0);
	ck_assert_uint_eq(finished.id, id);
	ck_assert_ptr_null(engine_sequence(&engine, id));
}

static struct request_desc generate(uint32_t n)
{
	return (struct request_desc){
		.kind = REQUEST_GENERATE,
		.tokens = prompt,
		.n_tokens = 20,
		.max_tokens = n,
		.ignore_eos = true,
		.sample = {.top_p = 1},
	};
}

START_TEST(the_device_does_not_wait_for_the_clients)
{
	struct request_desc desc = generate(8);

	run(&desc);
	ck_assert_uint_eq(n_tokens, 8);
	ck_assert_int_eq(finished.reason, SCHED_REASON_LENGTH);
	/* behind the last token there is nothing to do */
	ck_assert_uint_eq(n_busy, 7);
}
END_TEST

/* As a stop string does: the row in flight is computed for nobody. */
START_TEST(what_is_cancelled_in_delivery_yields_no_more)
{
	struct request_desc desc = generate(8);

	cancel_at = 3;
	run(&desc);
	ck_assert_uint_eq(n_tokens, 3);
	ck_assert_int_eq(finished.reason, SCHED_REASON_CANCELLED);
	ck_assert_uint_eq(finished.n_generated, 3);
	ck_assert(!engine_busy(&engine));
	/* and the next one runs as if nothing had been */
	cancel_at = n_tokens = 0;
	run(&desc);
	ck_assert_uint_eq(n_tokens, 8);
}
END_TEST

/* A prompt of several steps: distributions of one step lie still while the next one writes
 * its own. */
START_TEST(results_stay_while_they_are_delivered)
{
	struct request_desc desc = {
		.kind = REQUEST_SCORE,
		.tokens = prompt,
		.n_tokens = N_PROMPT,
		.dist = {.top = PLAN_DIST_ALL, .words = engine.info.n_vocab},
	};

	run(&desc);
	ck_assert_uint_eq(n_scored, N_PROMPT);
	ck_assert_uint_gt(n_busy, 0);
	ck_assert_uint_eq(n_dist_wrong, 0);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("steps");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, the_device_does_not_wait_for_the_clients);
	tcase_add_test(tcase, what_is_cancelled_in_delivery_yields_no_more);
	tcase_add_test(tcase, results_stay_while_they_are_delivered);
	return run_case("steps", tcase);
}
