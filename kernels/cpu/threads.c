/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/clock.h"
#include "kernels/cpu/futex.h"

/*
 * Claims. The claim word holds (units of the loop << 32 | next unit). A claim is a fetch-add
 * of one; it is good when the old word's next is below its units. Only then may the claimer
 * read fn and arg: the loop cannot end before the claimed unit is done, so they are stable.
 * A claim past the end reads nothing and needs no undoing, as the next loop stores the whole
 * word again; at most one per thread is under way, so next cannot run into the upper half.
 * As units are claimed one by one in index order, a thread that the kernel has put aside holds up
 * only the unit it is in, and a sleeping thread holds up nothing.
 *
 * Sleep. A thread announces itself in n_sleepers, then looks at the claim word again, then
 * sleeps while wake_seq is what it was; the publisher stores the word, steps wake_seq, then
 * looks at n_sleepers. All four are sequentially consistent, so one of the two sees the
 * other.
 *
 * Stepping aside. A woken thread may be put on the CPU of the one that woke it, as other
 * threads of the process hold the remaining CPUs for a moment. It then takes turns with the
 * caller, each spinning for the other, until the kernel balances its load: many steps later.
 * So a thread that finds itself on the caller's CPU moves away, once, by narrowing and
 * widening its affinity. No thread stays bound. Where a sandbox refuses that, it goes to
 * sleep instead of spinning: the caller has the CPU for itself, and the next loop wakes the
 * thread on a CPU that is idle, if one is.
 */

/**
 * struct threads - see threads.h
 * @claim: release by the publisher, acquire by claims; guards @fn and @arg
 * @n_done: release by each unit, acquire by the caller
 * @caller_sleeps: pairs with @n_done, both seq_cst
 * @caller_cpu: relaxed: a hint, -1 outside threads_run()
 * @usable: of the thread that made the others; constant
 */
struct threads {
	_Alignas(64) _Atomic uint64_t claim;
	threads_fn *fn;
	void *arg;
	_Alignas(64) _Atomic uint32_t n_done;
	_Atomic uint32_t caller_sleeps;
	_Alignas(64) _Atomic uint32_t wake_seq;
	_Atomic uint32_t n_sleepers;
	_Atomic bool stop;
	_Atomic int caller_cpu;
	uint32_t n_threads, n_started;
	uint64_t spin_ns;
	bool step_aside, can_move;
	cpu_set_t usable;
	pthread_t ids[KV_MAX_THREADS];
	struct threads_start {
		struct threads *threads;
		uint32_t index;
	} starts[KV_MAX_THREADS];
};

static bool has_unit(uint64_t claim)
{
	return (uint32_t)claim < (uint32_t)(claim >> 32);
}

static void work(struct threads *t, uint32_t thread)
{
	while (has_unit(atomic_load_explicit(&t->claim, memory_order_relaxed))) {
		uint64_t c =
			atomic_fetch_add_explicit(&t->claim, 1, memory_order_acquire);
		uint32_t n_units = (uint32_t)(c >> 32);

		if (!has_unit(c))
			break;
		t->fn(t->arg, (uint32_t)c, thread);
		if (atomic_fetch_add(&t->n_done, 1) + 1 == n_units &&
		    atomic_load(&t->caller_sleeps))
			futex_wake(&t->n_done, 1);
	}
}

/* See the head of this file. Return: false when this thread is in the caller's way, and
 * can only sleep. */
static bool step_aside(struct threads *t)
{
	int cpu = sched_getcpu();
	cpu_set_t set;

	if (cpu < 0 || cpu != atomic_load_explicit(&t->caller_cpu, memory_order_relaxed))
		return true;
	if (!t->can_move)
		return false;
	set = t->usable;
	CPU_CLR(cpu, &set);
	/* Failing is harmless: the threads then take turns. */
	if (sched_setaffinity(0, sizeof(set), &set) == 0)
		sched_setaffinity(0, sizeof(t->usable), &t->usable);
	return true;
}

/* Spin until there is a unit to claim. Return: false when the time is up, or should be. */
static bool spin_for_unit(struct threads *t)
{
	uint64_t end = kv_now_ns() + t->spin_ns;

	do {
		if (t->step_aside && !step_aside(t))
			return false;
		for (int i = 0; i < 32; i++) {
			if (has_unit(atomic_load_explicit(&t->claim,
							  memory_order_relaxed)) ||
			    atomic_load_explicit(&t->stop, memory_order_relaxed))
				return true;
			cpu_pause();
		}
	} while (kv_now_ns() < end);
	return false;
}

static void *thread_main(void *arg)
{
	struct threads_start *start = arg;
	struct threads *t = start->threads;

	while (!atomic_load(&t->stop)) {
		uint32_t seq;

		work(t, start->index);
		if (spin_for_unit(t))
			continue;
		seq = atomic_load(&t->wake_seq);
		atomic_fetch_add(&t->n_sleepers, 1);
		if (!has_unit(atomic_load(&t->claim)) && !atomic_load(&t->stop))
			futex_wait(&t->wake_seq, seq);
		atomic_fetch_sub(&t->n_sleepers, 1);
		if (t->step_aside)
			(void)step_aside(t);
	}
	return NULL;
}

/* Thread i goes to the i-th CPU that this process may use, counting round. */
static void bind_thread(struct threads *t, uint32_t index, const cpu_set_t *usable)
{
	uint32_t n = (uint32_t)CPU_COUNT(usable), k;
	cpu_set_t one;

	if (n == 0)
		return;
	k = index % n;
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, usable) && k-- == 0) {
			CPU_SET(cpu, &one);
			break;
		}
	}
	pthread_setaffinity_np(t->ids[index], sizeof(one), &one);
}

int threads_new(uint32_t n_threads, uint32_t spin_us, bool affinity,
		struct threads **ret_threads)
{
	struct threads *t;
	sigset_t all, old;

	if (n_threads == 0 || n_threads > KV_MAX_THREADS)
		return -EINVAL;
	t = aligned_alloc(64, (sizeof(*t) + 63) / 64 * 64);
	if (!t)
		return -ENOMEM;
	*t = (struct threads){
		.n_threads = n_threads,
		.n_started = 1,
		.spin_ns = (uint64_t)spin_us * 1000,
		.caller_cpu = -1,
	};
	CPU_ZERO(&t->usable);
	sched_getaffinity(0, sizeof(t->usable), &t->usable);
	/* With more threads than CPUs there is nowhere to go. */
	t->step_aside = !affinity && n_threads <= (uint32_t)CPU_COUNT(&t->usable);
	/* This changes nothing, and tells whether it is permitted. */
	t->can_move =
		t->step_aside && sched_setaffinity(0, sizeof(t->usable), &t->usable) == 0;

	/* Signals belong to the program's own threads, but for those that a thread's own
	 * access raises: blocked, they would end the process. */
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (uint32_t i = 1; i < n_threads; i++) {
		t->starts[i] = (struct threads_start){t, i};
		if (pthread_create(&t->ids[i], NULL, thread_main, &t->starts[i]) != 0)
			break;
		t->n_started++;
		if (affinity)
			bind_thread(t, i, &t->usable);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (t->n_started != n_threads) {
		threads_free(t);
		return -EAGAIN;
	}
	*ret_threads = t;
	return 0;
}

void threads_free(struct threads *t)
{
	if (!t)
		return;
	atomic_store(&t->stop, true);
	atomic_fetch_add(&t->wake_seq, 1);
	futex_wake(&t->wake_seq, KV_MAX_THREADS);
	for (uint32_t i = 1; i < t->n_started; i++)
		pthread_join(t->ids[i], NULL);
	free(t);
}

uint32_t threads_count(const struct threads *t)
{
	return t->n_threads;
}

static void wait_done(struct threads *t, uint32_t n_units)
{
	uint64_t end = 0;

	for (;;) {
		uint32_t done;

		for (int i = 0; i < 64; i++) {
			if (atomic_load_explicit(&t->n_done, memory_order_acquire) ==
			    n_units)
				return;
			cpu_pause();
		}
		if (end == 0)
			end = kv_now_ns() + t->spin_ns;
		if (kv_now_ns() < end)
			continue;
		atomic_store(&t->caller_sleeps, 1);
		done = atomic_load(&t->n_done);
		if (done != n_units)
			futex_wait(&t->n_done, done);
		atomic_store(&t->caller_sleeps, 0);
	}
}

void threads_run(struct threads *t, threads_fn *fn, void *arg, uint32_t n_units)
{
	if (t->n_threads == 1 || n_units <= 1) {
		for (uint32_t i = 0; i < n_units; i++)
			fn(arg, i, 0);
		return;
	}
	atomic_store_explicit(&t->caller_cpu, sched_getcpu(), memory_order_relaxed);
	t->fn = fn;
	t->arg = arg;
	atomic_store_explicit(&t->n_done, 0, memory_order_relaxed);
	atomic_store(&t->claim, (uint64_t)n_units << 32);
	atomic_fetch_add(&t->wake_seq, 1);
	if (atomic_load(&t->n_sleepers) > 0)
		futex_wake(&t->wake_seq, KV_MAX_THREADS);
	work(t, 0);
	wait_done(t, n_units);
	atomic_store_explicit(&t->caller_cpu, -1, memory_order_relaxed);
}
