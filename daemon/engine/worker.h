/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_WORKER_H
#define KVD_DAEMON_WORKER_H

/*
 * A thread that does one thing at a time, so that the loop does not wait for it: the steps of
 * a device (engine.h), the tokens of a long text (encoder.h). The task lies in what @ctx
 * points to; the loop thread learns of its end through an eventfd, so the daemon's state
 * needs no lock:
 *
 *      loop thread                              worker thread
 *      worker_submit()      --- mutex, cond --->  run(ctx)
 *      worker_collect()    <---- eventfd ------  done
 *
 * Between the two calls what the task reads and writes belongs to the worker. There is
 * never more than one in flight.
 *
 * Thread: every function here is called on the loop thread, or whichever one thread the worker
 * belongs to; worker_fn runs on the worker's. Knows nothing of models: it runs a function.
 */

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Does the task; errors travel inside its result. Thread: worker. */
typedef void (*worker_fn)(void *ctx);

struct worker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	worker_fn run;
	void *ctx;
	bool task; /* under lock: one is in flight */
	bool quit; /* under lock */
	bool started;
	bool busy;    /* loop thread's own view */
	int event_fd; /* readable when a result waits */
	/* Counts progress inside a task: written by the worker, relaxed, read by the loop
	 * thread, which only looks whether it has changed. */
	uint64_t beats;
};

/* @name: of the thread, at most 15 bytes; it blocks all signals. Return: 0 or -errno. */
int worker_init(struct worker *worker, const char *name, worker_fn run, void *ctx);

/* Let the thread run on these CPUs only. Return: 0 or -errno. */
int worker_bind(struct worker *worker, const cpu_set_t *cpus);

/* Waits for the task in flight, then ends the thread. Idempotent. */
void worker_deinit(struct worker *worker);

/* Hand over the task; worker->busy must be false. */
void worker_submit(struct worker *worker);

/**
 * worker_collect() - take the task back
 *
 * Called when event_fd is readable.
 *
 * Return: 1 when it has ended, 0 when it still runs.
 */
int worker_collect(struct worker *worker);

/* Waits until the task has ended, and takes it back. */
void worker_wait(struct worker *worker);

/* A part of the task is done. @worker: a struct worker. Thread: worker. */
void worker_beat(void *worker);

/* The count of worker_beat(), tasks included. */
uint64_t worker_beats(const struct worker *worker);

#endif
