/* SPDX-License-Identifier: MIT */
/*
 * See worker.h.
 *
 *      loop thread                              worker thread
 *      worker_submit()      --- mutex, cond --->  run(ctx)
 *      worker_collect()    <---- eventfd ------  done
 */
#include "daemon/engine/worker.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/log.h"
#include "ipc/barrier.h"

void worker_beat(void *ctx)
{
	struct worker *worker = ctx;

	shm_store_u64(&worker->beats, shm_load_u64(&worker->beats) + 1);
}

uint64_t worker_beats(const struct worker *worker)
{
	return shm_load_u64(&worker->beats);
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	const uint64_t one = 1;

	for (;;) {
		bool task;

		pthread_mutex_lock(&worker->lock);
		while (!worker->task && !worker->quit)
			pthread_cond_wait(&worker->wake, &worker->lock);
		task = worker->task;
		pthread_mutex_unlock(&worker->lock);
		if (!task)
			return NULL;

		worker_beat(worker);
		worker->run(worker->ctx);

		pthread_mutex_lock(&worker->lock);
		worker->task = false;
		pthread_mutex_unlock(&worker->lock);
		/* An eventfd takes 2^64 - 1 of these before it could refuse one. */
		while (write(worker->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
}

int worker_init(struct worker *worker, const char *name, worker_fn run, void *ctx)
{
	sigset_t all, old;
	int r;

	*worker = (struct worker){.run = run, .ctx = ctx, .event_fd = -1};
	worker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (worker->event_fd < 0)
		return error_origin(-errno);
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->wake, NULL);
	/* Signals belong to the loop thread's signalfd. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&worker->thread, NULL, worker_main, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r) {
		pthread_cond_destroy(&worker->wake);
		pthread_mutex_destroy(&worker->lock);
		close(worker->event_fd);
		worker->event_fd = -1;
		return -r;
	}
	pthread_setname_np(worker->thread, name);
	worker->started = true;
	return 0;
}

int worker_bind(struct worker *worker, const cpu_set_t *cpus)
{
	return -pthread_setaffinity_np(worker->thread, sizeof(*cpus), cpus);
}

void worker_deinit(struct worker *worker)
{
	if (!worker->started)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->quit = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
	close(worker->event_fd);
	worker->event_fd = -1;
	worker->started = false;
}

void worker_submit(struct worker *worker)
{
	assert(!worker->busy);
	worker->busy = true;
	pthread_mutex_lock(&worker->lock);
	worker->task = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

int worker_collect(struct worker *worker)
{
	uint64_t n;

	if (!worker->busy || read(worker->event_fd, &n, sizeof(n)) != sizeof(n))
		return 0;
	worker->busy = false;
	return 1;
}

void worker_wait(struct worker *worker)
{
	struct pollfd pfd = {.fd = worker->event_fd, .events = POLLIN};

	while (worker->busy && !worker_collect(worker))
		(void)poll(&pfd, 1, -1);
}
