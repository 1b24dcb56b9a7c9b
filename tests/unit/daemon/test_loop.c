/* SPDX-License-Identifier: MIT */
/* Every case runs on both back ends. No case depends on how long anything takes. */
#include "daemon/loop.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>

#include "ipc/base.h"
#include "tests/unit/daemon/loop_test.h"

struct counter {
	struct loop_io io;
	struct counter *other;
	unsigned int n;
	unsigned int limit;
	uint32_t events;
};

static void drain(int fd)
{
	uint64_t value;

	ck_assert_int_eq(read(fd, &value, sizeof(value)), sizeof(value));
}

static void kick(int fd)
{
	uint64_t one = 1;

	ck_assert_int_eq(write(fd, &one, sizeof(one)), sizeof(one));
}

static int eventfd_make(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	ck_assert_int_ge(fd, 0);
	return fd;
}

static void watch(struct counter *c, int fd, loop_io_fn fn)
{
	ck_assert_int_eq(loop_io_add(loop, &c->io, fd, LOOP_READ, fn), 0);
}

static void count_until_limit(struct loop_io *io, uint32_t events)
{
	struct counter *c = container_of(io, struct counter, io);

	c->events |= events;
	if (++c->n == c->limit)
		loop_exit(loop, 1);
}

START_TEST(level_triggered)
{
	struct counter c = {.limit = 5};
	int fd = eventfd_make();

	if (!loop_make(_i))
		return;
	watch(&c, fd, count_until_limit);
	kick(fd);
	/* Nobody reads the eventfd, so that it stays ready. */
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(c.n, 5);
	ck_assert_uint_eq(c.events, LOOP_READ);
	loop_io_remove(&c.io);
	ck_assert_ptr_null(c.io.loop);
	loop_io_remove(&c.io);
	close(fd);
	loop_free(loop);
}
END_TEST

static void kick_again(struct loop_io *io, uint32_t events)
{
	struct counter *c = container_of(io, struct counter, io);

	c->events |= events;
	if (++c->n < c->limit)
		kick(io->fd);
}

/* Each signal is reported, though nobody ever reads the eventfd; and once. */
START_TEST(edge_triggered)
{
	struct counter c = {.limit = 1000};
	struct loop_timer stop = {0};
	int fd = eventfd_make();

	if (!loop_make(_i))
		return;
	kick(fd); /* before it is watched */
	ck_assert_int_eq(loop_io_add(loop, &c.io, fd, LOOP_READ | LOOP_EDGE, kick_again),
			 0);
	while (c.n < c.limit) {
		loop_timer_start(loop, &stop, loop_now_refresh(loop) + MS, 0, stop_run);
		ck_assert_int_eq(run(), 7);
	}
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + 5 * MS, 0, stop_run);
	ck_assert_int_eq(run(), 7);
	ck_assert_uint_eq(c.n, 1000);
	ck_assert_uint_eq(c.events, LOOP_READ);

	/* One in each wait, from outside. */
	for (unsigned int i = 1; i <= 50; i++) {
		kick(fd);
		/* On a busy machine the time is up before the loop has looked. */
		while (c.n < 1000 + i) {
			loop_timer_start(loop, &stop, loop_now_refresh(loop) + MS / 10, 0,
					 stop_run);
			ck_assert_int_eq(run(), 7);
		}
		ck_assert_uint_eq(c.n, 1000 + i);
	}
	loop_io_remove(&c.io);
	kick(fd);
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + MS, 0, stop_run);
	ck_assert_int_eq(run(), 7);
	ck_assert_uint_eq(c.n, 1050);
	close(fd);
	loop_free(loop);
}
END_TEST

struct feed {
	struct loop_io io;
	uint32_t value; /* by __atomic */
	uint32_t last;
};

static void *feed_run(void *arg)
{
	struct feed *f = arg;

	for (uint32_t i = 1; i <= f->last; i++) {
		__atomic_store_n(&f->value, i, __ATOMIC_RELEASE);
		kick(f->io.fd);
		/* Into the wait, and into a burst. */
		if (i % 64 == 8)
			sched_yield();
	}
	return NULL;
}

static void feed_look(struct loop_io *io, uint32_t events)
{
	struct feed *f = container_of(io, struct feed, io);

	if (__atomic_load_n(&f->value, __ATOMIC_ACQUIRE) == f->last)
		loop_exit(loop, 1);
}

/* A thread signals while the loop sleeps, wakes and dispatches: the last one is seen. */
START_TEST(edge_from_another_thread)
{
	struct feed f = {.last = 1};
	int fd = eventfd_make();
	pthread_t thread;

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(loop_io_add(loop, &f.io, fd, LOOP_READ | LOOP_EDGE, feed_look),
			 0);
	for (int round = 0; round < 50; round++) {
		f.value = 0;
		f.last = 1 + (uint32_t)round * 7 % 100;
		ck_assert_int_eq(pthread_create(&thread, NULL, feed_run, &f), 0);
		ck_assert_int_eq(run(), 1);
		pthread_join(thread, NULL);
	}
	loop_io_remove(&f.io);
	close(fd);
	loop_free(loop);
}
END_TEST

static void drain_and_kick_again(struct loop_io *io, uint32_t events)
{
	struct counter *c = container_of(io, struct counter, io);

	drain(io->fd);
	if (++c->n == c->limit)
		loop_exit(loop, 1);
	else
		kick(io->fd);
}

START_TEST(ready_again_inside_callback)
{
	struct counter c = {.limit = 1000};
	int fd = eventfd_make();

	if (!loop_make(_i))
		return;
	watch(&c, fd, drain_and_kick_again);
	kick(fd);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(c.n, 1000);
	loop_io_remove(&c.io);
	close(fd);
	loop_free(loop);
}
END_TEST

static void remove_other(struct loop_io *io, uint32_t events)
{
	struct counter *c = container_of(io, struct counter, io);

	c->n++;
	loop_io_remove(&c->other->io);
	/* Its memory is ours again: what still uses it trips over this. */
	memset(c->other, 0xa5, sizeof(*c->other));
	loop_io_remove(io);
	loop_exit(loop, 1);
}

START_TEST(remove_from_another_callback)
{
	struct counter *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	int fd_a = eventfd_make(), fd_b = eventfd_make();

	if (!loop_make(_i))
		return;
	a->other = b;
	b->other = a;
	watch(a, fd_a, remove_other);
	watch(b, fd_b, remove_other);
	kick(fd_a);
	kick(fd_b);
	ck_assert_int_eq(run(), 1);
	/* One of them ran and took the other with it. */
	ck_assert((a->n == 1) != (b->n == 1));
	free(a);
	free(b);
	close(fd_a);
	close(fd_b);
	loop_free(loop);
}
END_TEST

static void replace_self(struct loop_io *io, uint32_t events)
{
	struct counter *c = container_of(io, struct counter, io);
	int made = eventfd_make(), fd;

	/* The new descriptor may well get the number of the old one. */
	loop_io_remove(io);
	close(io->fd);
	fd = dup(made);
	ck_assert_int_ge(fd, 0);
	close(made);
	if (++c->n == c->limit) {
		close(fd);
		loop_exit(loop, 1);
		return;
	}
	ck_assert_int_eq(loop_io_add(loop, io, fd, LOOP_READ, replace_self), 0);
	kick(fd);
}

START_TEST(watch_is_reused_at_once)
{
	struct counter c = {.limit = 300};
	int fd = eventfd_make();

	if (!loop_make(_i))
		return;
	watch(&c, fd, replace_self);
	kick(fd);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(c.n, 300);
	loop_free(loop);
}
END_TEST

static void must_not_run(struct loop_io *io, uint32_t events)
{
	ck_abort_msg("callback of a watch that is disarmed or removed");
}

START_TEST(disarmed_is_quiet)
{
	struct counter c = {.limit = 1};
	struct loop_timer stop = {0};
	int pair[2];

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	watch(&c, pair[0], must_not_run);
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + 5 * MS, 0, stop_run);
	ck_assert_int_eq(run(), 7); /* armed, not ready */
	loop_io_remove(&c.io);
	ck_assert_int_eq(loop_io_add(loop, &c.io, pair[0], 0, must_not_run), 0);
	ck_assert_int_eq(send(pair[1], "x", 1, 0), 1);
	close(pair[1]);
	loop_timer_start(loop, &stop, loop_now_refresh(loop) + 5 * MS, 0, stop_run);
	ck_assert_int_eq(run(), 7); /* readable and hung up, but disarmed */
	loop_io_remove(&c.io);
	ck_assert_int_eq(loop_io_add(loop, &c.io, pair[0], LOOP_READ | LOOP_WRITE,
				     count_until_limit),
			 0);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(c.events & (LOOP_READ | LOOP_HUP), LOOP_READ | LOOP_HUP);
	loop_io_remove(&c.io);
	close(pair[0]);
	loop_free(loop);
}
END_TEST

START_TEST(half_close_is_hup)
{
	struct counter c = {.limit = 1};
	int pair[2];

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	watch(&c, pair[0], count_until_limit);
	ck_assert_int_eq(shutdown(pair[1], SHUT_WR), 0);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_ne(c.events & LOOP_HUP, 0);
	loop_io_remove(&c.io);
	close(pair[0]);
	close(pair[1]);
	loop_free(loop);
}
END_TEST

START_TEST(write_readiness)
{
	struct counter c = {.limit = 1};
	int pair[2];

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	ck_assert_int_eq(loop_io_add(loop, &c.io, pair[0], LOOP_WRITE, count_until_limit),
			 0);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(c.events, LOOP_WRITE);
	loop_io_remove(&c.io);
	close(pair[0]);
	close(pair[1]);
	loop_free(loop);
}
END_TEST

START_TEST(many_watches)
{
	enum { N = 700 };
	struct counter *c = calloc(N, sizeof(*c));
	unsigned int sum = 0;
	int fds[N];

	if (!loop_make(_i))
		return;
	for (int i = 0; i < N; i++) {
		fds[i] = eventfd_make();
		c[i].limit = UINT32_MAX;
		ck_assert_int_eq(
			loop_io_add(loop, &c[i].io, fds[i], LOOP_READ, count_until_limit),
			0);
		kick(fds[i]);
	}
	c[N - 1].limit = 3;
	ck_assert_int_eq(run(), 1);
	for (int i = 0; i < N; i++) {
		/* None starves: each has had about as many turns as the last. */
		ck_assert_uint_ge(c[i].n, 1);
		ck_assert_uint_le(c[i].n, 5);
		sum += c[i].n;
		loop_io_remove(&c[i].io);
		close(fds[i]);
	}
	ck_assert_uint_ge(sum, N);
	free(c);
	loop_free(loop);
}
END_TEST

/* Timers. */

struct tick {
	struct loop_timer timer;
	unsigned int *log, *n_log;
	unsigned int id, n;
};

static void tick_logs(struct loop_timer *timer, uint64_t now_ns)
{
	struct tick *t = container_of(timer, struct tick, timer);

	t->log[(*t->n_log)++] = t->id;
	if (*t->n_log == 50)
		loop_exit(loop, 1);
}

START_TEST(timers_run_in_order)
{
	struct tick t[53] = {0};
	unsigned int log[53], n_log = 0;
	uint64_t base;

	if (!loop_make(_i))
		return;
	base = loop_now_refresh(loop) + MS;
	for (unsigned int i = 0; i < 53; i++) {
		t[i] = (struct tick){.log = log, .n_log = &n_log, .id = i * 21 % 53};
		loop_timer_start(loop, &t[i].timer, base + t[i].id * 1000, 0, tick_logs);
	}
	/* Three go again, one moves to the front. */
	for (unsigned int i = 0; i < 53; i++) {
		if (t[i].id == 10 || t[i].id == 20 || t[i].id == 30)
			loop_timer_stop(&t[i].timer);
		if (t[i].id == 52)
			loop_timer_start(loop, &t[i].timer, base - 1, 0, tick_logs);
	}
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(log[0], 52);
	for (unsigned int i = 1; i < 50; i++) {
		if (i > 1)
			ck_assert_uint_gt(log[i], log[i - 1]);
		ck_assert_uint_ne(log[i] % 10 == 0 && log[i] && log[i] <= 30, 1);
	}
	for (unsigned int i = 0; i < 53; i++)
		ck_assert_ptr_null(t[i].timer.loop);
	loop_free(loop);
}
END_TEST

static void tick_periodic(struct loop_timer *timer, uint64_t now_ns)
{
	struct tick *t = container_of(timer, struct tick, timer);

	ck_assert_uint_gt(timer->due_ns, now_ns);
	ck_assert_uint_eq((timer->due_ns - 1) % (MS / 5), t->id);
	if (++t->n == 10) {
		loop_timer_stop(timer);
		loop_exit(loop, 1);
	}
}

START_TEST(periodic_timer_keeps_its_phase)
{
	struct tick t = {0};
	uint64_t due;

	if (!loop_make(_i))
		return;
	due = loop_now_refresh(loop) + MS;
	t.id = (unsigned int)((due - 1) % (MS / 5));
	loop_timer_start(loop, &t.timer, due, MS / 5, tick_periodic);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(t.n, 10);
	loop_free(loop);
}
END_TEST

static void tick_restarts_in_the_past(struct loop_timer *timer, uint64_t now_ns)
{
	struct tick *t = container_of(timer, struct tick, timer);

	t->n++;
	loop_timer_start(loop, timer, 0, 0, tick_restarts_in_the_past);
}

START_TEST(timer_in_the_past_does_not_starve_others)
{
	struct counter c = {.limit = 1};
	struct tick t = {0};
	int fd = eventfd_make();

	if (!loop_make(_i))
		return;
	loop_timer_start(loop, &t.timer, 0, 0, tick_restarts_in_the_past);
	watch(&c, fd, count_until_limit);
	kick(fd);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_ge(t.n, 1);
	loop_timer_stop(&t.timer);
	loop_io_remove(&c.io);
	close(fd);
	loop_free(loop);
}
END_TEST

/* Deferred calls and the hook. */

struct later {
	struct loop_defer defer;
	struct later *next;
	unsigned int n;
};

static void later_runs(struct loop_defer *defer)
{
	struct later *l = container_of(defer, struct later, defer);

	l->n++;
	if (l->next)
		loop_defer(loop, &l->next->defer, later_runs);
	else
		loop_exit(loop, 1);
}

START_TEST(deferred_once_and_chained)
{
	struct later c = {0}, b = {.next = &c}, a = {.next = &b}, cancelled = {0};

	if (!loop_make(_i))
		return;
	loop_defer(loop, &a.defer, later_runs);
	loop_defer(loop, &cancelled.defer, later_runs);
	loop_defer(loop, &a.defer, later_runs);
	loop_defer_cancel(&cancelled.defer);
	/* b and c are queued by their forerunner: the loop must not go to sleep between. */
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_eq(a.n, 1);
	ck_assert_uint_eq(b.n, 1);
	ck_assert_uint_eq(c.n, 1);
	ck_assert_uint_eq(cancelled.n, 0);
	loop_free(loop);
}
END_TEST

struct hook {
	unsigned int n, limit;
	uint64_t answer;
	int kick_fd;
	unsigned int kick_at;
};

static uint64_t hook_answers(struct loop *l, void *userdata)
{
	struct hook *h = userdata;

	ck_assert_ptr_eq(l, loop);
	h->n++;
	if (h->kick_at == h->n)
		kick(h->kick_fd);
	if (h->n == h->limit)
		loop_exit(l, 3);
	return h->answer;
}

/* The hook ends the run when its limit is reached. */
static void run_hook(int which, struct hook *h)
{
	if (!loop_make(which))
		return;
	loop_set_prepare(loop, hook_answers, h);
	ck_assert_int_eq(run(), 3);
	ck_assert_uint_eq(h->n, h->limit);
	loop_free(loop);
}

/* The event that the hook makes ends it. */
static void run_hook_to_event(int which, struct hook *h)
{
	struct counter c = {.limit = 1};

	if (!loop_make(which))
		return;
	h->kick_fd = eventfd_make();
	loop_set_prepare(loop, hook_answers, h);
	watch(&c, h->kick_fd, count_until_limit);
	ck_assert_int_eq(run(), 1);
	ck_assert_uint_ge(h->n, h->kick_at);
	loop_io_remove(&c.io);
	close(h->kick_fd);
	loop_free(loop);
}

START_TEST(hook_spins)
{
	run_hook(_i, &(struct hook){.limit = 100000, .answer = LOOP_POLL_AGAIN});
}
END_TEST

START_TEST(spinning_sees_events)
{
	run_hook_to_event(_i, &(struct hook){.limit = UINT32_MAX,
					     .answer = LOOP_POLL_AGAIN,
					     .kick_at = 1000});
}
END_TEST

START_TEST(hook_sleeps_for_a_while)
{
	run_hook(_i, &(struct hook){.limit = 4, .answer = MS / 2});
}
END_TEST

START_TEST(hook_sleeps_until_event)
{
	run_hook_to_event(_i, &(struct hook){.limit = UINT32_MAX,
					     .answer = LOOP_SLEEP_FOREVER,
					     .kick_at = 1});
}
END_TEST

/* Signals. */

static int last_signo;

static void signal_seen(struct loop_signal *signal, int signo)
{
	ck_assert_int_eq(signal->signo, signo);
	last_signo = signo;
	loop_exit(loop, 1);
}

START_TEST(signals)
{
	struct loop_signal usr1 = {0}, usr2 = {0}, again = {0};

	if (!loop_make(_i))
		return;
	ck_assert_int_eq(loop_signal_add(loop, &usr1, SIGUSR1, signal_seen), 0);
	ck_assert_int_eq(loop_signal_add(loop, &usr2, SIGUSR2, signal_seen), 0);
	ck_assert_int_eq(loop_signal_add(loop, &again, SIGUSR2, signal_seen), -EBUSY);
	ck_assert_int_eq(loop_signal_add(loop, &again, 65, signal_seen), -EINVAL);
	raise(SIGUSR2);
	ck_assert_int_eq(run(), 1);
	ck_assert_int_eq(last_signo, SIGUSR2);
	loop_signal_remove(&usr2);
	raise(SIGUSR2); /* blocked, nobody's */
	raise(SIGUSR1);
	ck_assert_int_eq(run(), 1);
	ck_assert_int_eq(last_signo, SIGUSR1);
	loop_signal_remove(&usr1);
	loop_free(loop);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("loop");

	probe_uring();
	tcase_set_timeout(tcase, 60);
	tcase_add_loop_test(tcase, level_triggered, 0, 2);
	tcase_add_loop_test(tcase, edge_triggered, 0, 2);
	tcase_add_loop_test(tcase, edge_from_another_thread, 0, 2);
	tcase_add_loop_test(tcase, ready_again_inside_callback, 0, 2);
	tcase_add_loop_test(tcase, remove_from_another_callback, 0, 2);
	tcase_add_loop_test(tcase, watch_is_reused_at_once, 0, 2);
	tcase_add_loop_test(tcase, disarmed_is_quiet, 0, 2);
	tcase_add_loop_test(tcase, half_close_is_hup, 0, 2);
	tcase_add_loop_test(tcase, write_readiness, 0, 2);
	tcase_add_loop_test(tcase, many_watches, 0, 2);
	tcase_add_loop_test(tcase, timers_run_in_order, 0, 2);
	tcase_add_loop_test(tcase, periodic_timer_keeps_its_phase, 0, 2);
	tcase_add_loop_test(tcase, timer_in_the_past_does_not_starve_others, 0, 2);
	tcase_add_loop_test(tcase, deferred_once_and_chained, 0, 2);
	tcase_add_loop_test(tcase, hook_spins, 0, 2);
	tcase_add_loop_test(tcase, spinning_sees_events, 0, 2);
	tcase_add_loop_test(tcase, hook_sleeps_for_a_while, 0, 2);
	tcase_add_loop_test(tcase, hook_sleeps_until_event, 0, 2);
	tcase_add_loop_test(tcase, signals, 0, 2);
	return run_case("loop", tcase);
}
