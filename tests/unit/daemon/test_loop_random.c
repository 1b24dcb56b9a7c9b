/* SPDX-License-Identifier: MIT */
/*
 * Random operations from inside callbacks, against a model: a watch is called only while
 * it exists, is armed and its descriptor is readable, and none that is ready is forgotten.
 * Removed watches are freed at once, so that a sanitizer sees any late use.
 */
#include "daemon/loop.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <check.h>

#include "ipc/base.h"
#include "tests/unit/daemon/loop_test.h"

#define N_PLACES 150
#define N_CALLS  20000

struct place;

struct watch {
	struct loop_io io;
	struct loop_defer defer;
	struct loop_timer timer;
	struct place *place;
};

struct place {
	struct watch *watch;
	int fd;
	bool armed, kicked;
	unsigned int n_calls;
};

static struct place places[N_PLACES];
static uint64_t random_state;
static unsigned int n_calls;

/* xorshift64* of Vigna, "An experimental exploration of Marsaglia's xorshift generators". */
static uint32_t random_below(uint32_t n)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (uint32_t)(random_state * UINT64_C(2685821657736338717) >> 32) % n;
}

static void watch_called(struct loop_io *io, uint32_t events);

static void place_kick(struct place *place)
{
	uint64_t one = 1;

	if (place->fd < 0)
		return;
	ck_assert_int_eq(write(place->fd, &one, sizeof(one)), sizeof(one));
	place->kicked = true;
}

static void place_watch(struct place *place, loop_io_fn fn)
{
	struct loop_io *io = &place->watch->io;

	loop_io_remove(io);
	ck_assert_int_eq(
		loop_io_add(loop, io, place->fd, place->armed ? LOOP_READ : 0, fn), 0);
}

static void place_clear(struct place *place)
{
	if (!place->watch)
		return;
	loop_io_remove(&place->watch->io);
	loop_defer_cancel(&place->watch->defer);
	loop_timer_stop(&place->watch->timer);
	memset(place->watch, 0xa5, sizeof(*place->watch));
	free(place->watch);
	close(place->fd);
	*place = (struct place){.fd = -1};
}

static void place_fill(struct place *place)
{
	place_clear(place);
	place->watch = calloc(1, sizeof(*place->watch));
	ck_assert_ptr_nonnull(place->watch);
	place->watch->place = place;
	place->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ck_assert_int_ge(place->fd, 0);
	place->armed = random_below(4) != 0;
	place_watch(place, watch_called);
}

static void deferred(struct loop_defer *defer)
{
	place_kick(container_of(defer, struct watch, defer)->place);
}

static void timed(struct loop_timer *timer, uint64_t now_ns)
{
	place_kick(container_of(timer, struct watch, timer)->place);
}

static void act(void)
{
	struct place *place = &places[random_below(N_PLACES)];

	if (!place->watch || random_below(8) == 0) {
		place_fill(place);
		return;
	}
	switch (random_below(7)) {
	case 0:
		place_clear(place);
		break;
	case 1:
		place->armed = !place->armed;
		place_watch(place, watch_called);
		break;
	case 2:
		loop_defer(loop, &place->watch->defer, deferred);
		break;
	case 3:
		ck_assert_int_eq(loop_timer_start(loop, &place->watch->timer,
						  loop_now(loop) + random_below(20000), 0,
						  timed),
				 0);
		break;
	default:
		place_kick(place);
		break;
	}
}

static void watch_called(struct loop_io *io, uint32_t events)
{
	struct place *place = container_of(io, struct watch, io)->place;
	uint64_t value;

	ck_assert_ptr_eq(&place->watch->io, io);
	ck_assert(place->armed);
	ck_assert(place->kicked);
	ck_assert_uint_eq(events, LOOP_READ);
	place->n_calls++;
	if (random_below(3)) {
		ck_assert_int_eq(read(place->fd, &value, sizeof(value)), sizeof(value));
		place->kicked = false;
	}
	for (uint32_t n = random_below(4); n; n--)
		act();
	if (++n_calls == N_CALLS)
		loop_exit(loop, 1);
}

/* Keeps things going: acts whenever the loop would wait. */
static uint64_t prepare(struct loop *l, void *userdata)
{
	static const uint64_t answers[] = {LOOP_POLL_AGAIN, 1000, 20000};

	act();
	act();
	return answers[random_below(3)];
}

static void all_called(struct loop_timer *timer, uint64_t now_ns)
{
	for (size_t i = 0; i < N_PLACES; i++)
		if (places[i].n_calls == 0)
			return;
	loop_exit(loop, 2);
}

static void count_only(struct loop_io *io, uint32_t events)
{
	container_of(io, struct watch, io)->place->n_calls++;
}

START_TEST(random_operations)
{
	struct loop_timer timer = {0};

	random_state = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(_i / 2 + 1);
	if (!loop_make(_i % 2))
		return;
	for (size_t i = 0; i < N_PLACES; i++)
		places[i] = (struct place){.fd = -1};
	n_calls = 0;
	loop_set_prepare(loop, prepare, NULL);
	ck_assert_int_eq(run(), 1);
	/* Now all that exist get an event: none may be forgotten. */
	loop_set_prepare(loop, NULL, NULL);
	for (size_t i = 0; i < N_PLACES; i++) {
		if (!places[i].watch)
			place_fill(&places[i]);
		loop_defer_cancel(&places[i].watch->defer);
		loop_timer_stop(&places[i].watch->timer);
		places[i].armed = true;
		place_watch(&places[i], count_only);
		places[i].n_calls = 0;
		place_kick(&places[i]);
	}
	loop_timer_start(loop, &timer, 0, MS, all_called);
	ck_assert_int_eq(run(), 2);
	loop_timer_stop(&timer);
	for (size_t i = 0; i < N_PLACES; i++)
		place_clear(&places[i]);
	loop_free(loop);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("loop-random");

	probe_uring();
	tcase_set_timeout(tcase, 60);
	tcase_add_loop_test(tcase, random_operations, 0, 6);
	return run_case("loop-random", tcase);
}
