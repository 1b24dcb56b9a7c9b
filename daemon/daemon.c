/* SPDX-License-Identifier: MIT */
/* See daemon.h. */
#include "daemon/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/notify.h"
#include "daemon/ring_watch.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"

#define STATUS_PERIOD_NS UINT64_C(5000000000)

static void daemon_terminate(struct daemon *daemon, int signo)
{
	log_event(LOG_NOTICE, LOG_FIELDS(.message_id = MSGID_STOPPING), "stopping on %s",
		  signo == SIGINT ? "SIGINT" : "SIGTERM");
	notify_stopping();
	loop_exit(daemon->loop, 0);
}

static void on_sigterm(struct loop_signal *signal, int signo)
{
	daemon_terminate(container_of(signal, struct daemon, sigterm), signo);
}

static void on_sigint(struct loop_signal *signal, int signo)
{
	daemon_terminate(container_of(signal, struct daemon, sigint), signo);
}

static void on_sighup(struct loop_signal *signal, int signo)
{
	struct daemon *daemon = container_of(signal, struct daemon, sighup);
	int r;

	(void)signo;
	notify_reloading();
	r = daemon->recheck(daemon->recheck_ctx);
	log_event(r ? LOG_ERR : LOG_NOTICE,
		  LOG_FIELDS(.message_id = r ? MSGID_CONFIG_BAD : MSGID_CONFIG_RELOADED),
		  r ? "the configuration has mistakes; kvd would not start with it"
		    : "the configuration is fine; restart kvd to apply changes");
	notify_ready("%s", daemon->status_text);
}

static void on_watchdog(struct loop_timer *timer, uint64_t now_ns)
{
	(void)timer;
	(void)now_ns;
	notify_watchdog();
}

static void on_status(struct loop_timer *timer, uint64_t now_ns)
{
	struct daemon *daemon = container_of(timer, struct daemon, status);
	struct kvd_stats s = {0};
	char text[sizeof(daemon->status_text)];

	(void)now_ns;
	engine_stats(&daemon->engine, &s);
	if (!daemon->engine.model)
		snprintf(text, sizeof(text), "no model; %u clients",
			 daemon->sessions.n_sessions);
	else
		snprintf(text, sizeof(text),
			 "%s, %llu/%llu blocks used, %u clients, %.1f%% hit",
			 daemon->engine.info.name,
			 (unsigned long long)(s.blocks_total - s.blocks_free),
			 (unsigned long long)s.blocks_total, daemon->sessions.n_sessions,
			 s.queried_tokens
				 ? 100.0 * (double)s.hit_tokens / (double)s.queried_tokens
				 : 0.0);
	if (strcmp(text, daemon->status_text) == 0)
		return;
	memcpy(daemon->status_text, text, sizeof(text));
	notify_status("%s", text);
}

static uint64_t on_prepare(struct loop *loop, void *userdata)
{
	struct daemon *daemon = userdata;

	(void)loop;
	return ring_watch_prepare(&daemon->sessions);
}

static void on_accept(struct loop_accept *accept, int fd)
{
	struct daemon *daemon = container_of(accept, struct daemon, listener.accept);

	if (fd >= 0)
		sessions_accept(&daemon->sessions, fd);
	else
		log_errno(LOG_WARNING, fd, "cannot accept a connection");
}

static int daemon_start_loop(struct daemon *daemon)
{
	const char *step;
	int r;

	r = loop_new(&daemon->loop, (enum loop_backend)daemon->config->daemon.io_backend);
	if (r) {
		log_errno(LOG_ERR, r, "cannot make the event loop");
		return r;
	}
	r = loop_fallback(daemon->loop, &step);
	if (r)
		log_event(LOG_NOTICE,
			  LOG_FIELDS(.message_id = MSGID_IO_URING_REFUSED, .error = r),
			  "io_uring is not available (%s), using epoll", step);
	/* Before any thread is made, so that none takes these. */
	r = loop_signal_add(daemon->loop, &daemon->sigterm, SIGTERM, on_sigterm);
	if (!r)
		r = loop_signal_add(daemon->loop, &daemon->sigint, SIGINT, on_sigint);
	if (!r)
		r = loop_signal_add(daemon->loop, &daemon->sighup, SIGHUP, on_sighup);
	if (r)
		log_errno(LOG_ERR, r, "cannot watch signals");
	return r;
}

static int daemon_start(struct daemon *daemon)
{
	const struct config *config = daemon->config;
	char error[512] = "";
	struct timespec now;
	int r;

	r = daemon_start_loop(daemon);
	if (r)
		return r;
	r = engine_init(&daemon->engine, daemon->loop, config, error, sizeof(error));
	if (r) {
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_MODEL_BAD), "%s",
			  *error ? error : strerror(-r));
		return r;
	}
	loop_now_refresh(daemon->loop);
	sessions_init(&daemon->sessions, daemon->loop, config, &daemon->engine);
	/* Rises with each start as long as the clock does; a warm restart will keep count. */
	clock_gettime(CLOCK_REALTIME, &now);
	daemon->sessions.generation =
		(uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	loop_set_prepare(daemon->loop, on_prepare, daemon);

	r = listener_open(&daemon->listener, config->daemon.socket);
	if (!r) {
		fdpass_refuse(daemon->listener.fd);
		r = listener_start(&daemon->listener, daemon->loop, on_accept);
	}
	if (r) {
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_START_FAILED), "%s",
			  *daemon->listener.error ? daemon->listener.error
						  : strerror(-r));
		return r;
	}
	return 0;
}

int daemon_new(struct daemon **ret_daemon, const struct config *config,
	       daemon_recheck_fn recheck, void *ctx)
{
	struct daemon *daemon = calloc(1, sizeof(*daemon));
	int r;

	if (!daemon) {
		log_error("out of memory");
		return -ENOMEM;
	}
	daemon->config = config;
	daemon->recheck = recheck;
	daemon->recheck_ctx = ctx;
	listener_init(&daemon->listener);
	r = daemon_start(daemon);
	if (r) {
		daemon_free(daemon);
		return r;
	}
	*ret_daemon = daemon;
	return 0;
}

int daemon_run(struct daemon *daemon)
{
	uint64_t watchdog_ns = notify_watchdog_period_ns();
	uint64_t now_ns = loop_now(daemon->loop);
	int r = 0;

	if (watchdog_ns)
		r = loop_timer_start(daemon->loop, &daemon->watchdog, now_ns, watchdog_ns,
				     on_watchdog);
	if (!r)
		r = loop_timer_start(daemon->loop, &daemon->status, now_ns,
				     STATUS_PERIOD_NS, on_status);
	if (r) {
		log_errno(LOG_ERR, r, "cannot start the timers");
		return r;
	}
	/* For whoever started it by hand; scripts wait for this line. */
	printf("socket: %s\n", daemon->config->daemon.socket);
	fflush(stdout);
	log_event(LOG_NOTICE, LOG_FIELDS(.message_id = MSGID_STARTED),
		  "serving %s on %s with %s",
		  daemon->engine.model ? daemon->engine.info.name : "no model",
		  daemon->config->daemon.socket,
		  loop_backend_name(loop_backend_of(daemon->loop)));
	notify_ready("%s",
		     daemon->engine.model
			     ? daemon->engine.info.name
			     : "no model: set [model] path in kvd.conf and restart");
	r = loop_run(daemon->loop);
	if (r < 0)
		log_errno(LOG_ERR, r, "the event loop failed");
	return r;
}

struct daemon *daemon_free(struct daemon *daemon)
{
	if (!daemon)
		return NULL;
	listener_deinit(&daemon->listener);
	if (daemon->loop) {
		loop_set_prepare(daemon->loop, NULL, NULL);
		sessions_deinit(&daemon->sessions);
		loop_timer_stop(&daemon->watchdog);
		loop_timer_stop(&daemon->status);
		engine_deinit(&daemon->engine);
		loop_signal_remove(&daemon->sigterm);
		loop_signal_remove(&daemon->sigint);
		loop_signal_remove(&daemon->sighup);
		loop_free(daemon->loop);
	}
	free(daemon);
	return NULL;
}
