/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_WORKER_H
#define KVD_DAEMON_WORKER_H

/*
 * A thread that runs one function at a time, so that the loop does not wait for it. What the task
 * reads and writes is the worker's from worker_submit() to worker_collect(), so it needs no lock.
 * Thread: that which the worker belongs to, the loop as a rule.
 */

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Errors travel inside the task's result. Thread: worker. */
typedef void (*worker_fn)(void *ctx);

/*
 * @task, @quit: under @lock. @busy: the owner's view. @event_fd: readable when a result waits.
 * @beats: progress inside a task; written by the worker, relaxed; the owner compares it only.
 */
struct worker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	worker_fn run;
	void *ctx;
	bool task;
	bool quit;
	bool started;
	bool busy;
	int event_fd;
	uint64_t beats;
};

/* @name: of the thread, at most 15 bytes; it blocks all signals. Return: 0 or -errno. */
int worker_init(struct worker *worker, const char *name, worker_fn run, void *ctx);

/* Binds the thread to @cpus. Return: 0 or -errno. */
int worker_bind(struct worker *worker, const cpu_set_t *cpus);

/* Waits for the task in flight, then ends the thread. Idempotent. */
void worker_deinit(struct worker *worker);

/* worker->busy must be false. */
void worker_submit(struct worker *worker);

/* Takes the task back, when event_fd is readable. Return: 1: it ended; 0: it still runs. */
int worker_collect(struct worker *worker);

void worker_wait(struct worker *worker);

/* A part of the task is done. @worker: a struct worker. Thread: worker. */
void worker_beat(void *worker);

uint64_t worker_beats(const struct worker *worker);

#endif
