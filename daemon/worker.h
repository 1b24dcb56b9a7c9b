/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_WORKER_H
#define KVD_DAEMON_WORKER_H

/*
 * The thread that owns a device. It gets one plan at a time by value, runs it and
 * hands the result back; the loop thread learns of it through an eventfd, so the
 * daemon's state needs no lock:
 *
 *      loop thread                              worker thread
 *      worker_submit(plan) --- mutex, cond --->  run(plan, result)
 *      worker_collect()    <---- eventfd ------  done
 *
 * Between the two calls the plan and the result belong to the worker. There is
 * never more than one plan in flight.
 *
 * Thread: every function here is called on the loop thread; worker_fn runs on the
 * worker's. Knows nothing of models: it runs a function.
 */

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

struct plan;
struct plan_result;

/* Runs one step; errors travel inside the result. Thread: worker. */
typedef void (*worker_fn)(void *ctx, const struct plan *plan, struct plan_result *result);

struct worker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	worker_fn run;
	void *ctx;
	const struct plan *plan; /* under lock: set while a step is in flight */
	struct plan_result *result;
	bool quit; /* under lock */
	bool started;
	bool busy;    /* loop thread's own view */
	int event_fd; /* readable when a result waits */
	/* Counts progress inside a step: written by the worker, relaxed, read by the loop
	 * thread, which only looks whether it has changed. */
	uint64_t beats;
};

/* Return: 0 or -errno; the thread is named "kvd-worker" and blocks all signals. */
int worker_init(struct worker *worker, worker_fn run, void *ctx);

/* Let the thread run on these CPUs only. Return: 0 or -errno. */
int worker_bind(struct worker *worker, const cpu_set_t *cpus);

/* Waits for the step in flight, then ends the thread. Idempotent. */
void worker_deinit(struct worker *worker);

/* Hand over one plan; worker->busy must be false. */
void worker_submit(struct worker *worker, const struct plan *plan,
		   struct plan_result *result);

/**
 * worker_collect() - take the result back
 *
 * Called when event_fd is readable.
 *
 * Return: 1 when the step has ended and plan and result are the caller's again, 0
 * when it still runs.
 */
int worker_collect(struct worker *worker);

/* A part of the step is done. @worker: a struct worker. Thread: worker. */
void worker_beat(void *worker);

/* The count of worker_beat(), steps included. */
uint64_t worker_beats(const struct worker *worker);

#endif
