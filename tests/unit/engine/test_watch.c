/* SPDX-License-Identifier: MIT */
/* Whether a step that stands still is told from one that takes long. */
#include "daemon/engine/engine.h"

#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>

#include <check.h>

#include "tests/unit/suite.h"

static sem_t begun, go_on, beaten;

/* A step of three parts, each when the test says so. */
static void step(void *ctx)
{
	sem_post(&begun);
	for (int i = 0; i < 3; i++) {
		sem_wait(&go_on);
		worker_beat(ctx);
		sem_post(&beaten);
	}
}

static void one_part(void)
{
	sem_post(&go_on);
	sem_wait(&beaten);
}

START_TEST(progress)
{
	static struct engine engine;
	struct pollfd pollfd;

	sem_init(&begun, 0, 0);
	sem_init(&go_on, 0, 0);
	sem_init(&beaten, 0, 0);
	ck_assert_int_eq(worker_init(&engine.worker, "step", step, &engine.worker), 0);
	/* At rest for any time. */
	ck_assert(engine_progresses(&engine, 100, 10));
	ck_assert(engine_progresses(&engine, 1000, 10));
	worker_submit(&engine.worker);
	sem_wait(&begun);
	ck_assert(engine_progresses(&engine, 1005, 10));
	/* Nothing since 1005. */
	ck_assert(engine_progresses(&engine, 1014, 10));
	ck_assert(!engine_progresses(&engine, 1015, 10));
	ck_assert(!engine_progresses(&engine, 2000, 10));
	/* Each part counts, however late. */
	one_part();
	ck_assert(engine_progresses(&engine, 2001, 10));
	ck_assert(engine_progresses(&engine, 2010, 10));
	one_part();
	ck_assert(engine_progresses(&engine, 2020, 10));
	one_part();
	pollfd = (struct pollfd){.fd = engine.worker.event_fd, .events = POLLIN};
	ck_assert_int_eq(poll(&pollfd, 1, 10000), 1);
	ck_assert_int_eq(worker_collect(&engine.worker), 1);
	ck_assert(engine_progresses(&engine, 9000, 10));
	worker_deinit(&engine.worker);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("watch");

	tcase_add_test(tcase, progress);
	return run_case("watch", tcase);
}
