/* SPDX-License-Identifier: MIT */
/*
 * Parts start in this order, and end in the reverse:
 *
 *   fdstore   what a former daemon left with the service manager
 *   loop      signals, sockets, timers, the eventfd of the worker
 *   engine    model, pool, cache, scheduler, worker
 *   sessions  clients and their rings
 *   listeners new clients, last of all
 */
#include "daemon/daemon.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/host_limits.h"
#include "daemon/lockdown.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "daemon/notify.h"
#include "daemon/sandbox.h"
#include "daemon/serve/admit.h"
#include "daemon/serve/op_event.h"
#include "daemon/serve/ring_watch.h"
#include "ipc/base.h"
#include "ipc/fdpass.h"

#define STATUS_PERIOD_NS UINT64_C(5000000000)
#define NOTIFY_AGAIN_NS  UINT64_C(100000000)

/* Descriptors: of the daemon itself; of a client with one ring, which are its connection, the
 * ring's eventfd and both ends of its pipe. */
#define OWN_FILES    64
#define CLIENT_FILES 4

/* Bytes: what is at least as large, such as a request with a long context, has a mapping of its
 * own, which goes back to the system with it. Once set it stays, else the allocator moves it. */
#define OWN_MAPPING (32 << 10)

static void on_manager_room(struct loop_timer *timer, uint64_t now_ns);

/* @r: of notify_*(). What the manager has no room for now it gets soon. */
static void daemon_notified(struct daemon *daemon, int r)
{
	if (r == -EAGAIN && notify_pending())
		(void)loop_timer_start(daemon->loop, &daemon->manager_room,
				       loop_now(daemon->loop) + NOTIFY_AGAIN_NS, 0,
				       on_manager_room);
}

static void on_manager_room(struct loop_timer *timer, uint64_t now_ns)
{
	struct daemon *daemon = container_of(timer, struct daemon, manager_room);

	daemon_notified(daemon, notify_flush(!daemon->stalled));
}

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

/* What a reload takes over at once lies in the configuration itself, but for the log. */
static void log_apply(const struct config *config)
{
	log_open((enum log_target)config->daemon.log_target, config->daemon.log_level);
	log_set_rate_limit(config->daemon.log_rate_interval_ns,
			   config->daemon.log_rate_burst);
}

static void on_sighup(struct loop_signal *signal, int signo)
{
	struct daemon *daemon = container_of(signal, struct daemon, sighup);
	struct config fresh;
	char later[256];
	unsigned int n;
	int r;

	notify_reloading();
	r = daemon->reload(daemon->reload_ctx, &fresh);
	if (r) {
		/* Its lines may be all right where it could not be read. */
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD), "%s",
			  r == DAEMON_RELOAD_MISTAKES
				  ? "the configuration has mistakes; nothing was changed"
				  : "the configuration could not be read; nothing was "
				    "changed, reload again");
	} else {
		n = config_adopt(daemon->config, &fresh, later, sizeof(later));
		log_apply(daemon->config);
		sessions_reload(&daemon->sessions);
		if (*later)
			log_event(
				LOG_NOTICE,
				LOG_FIELDS(.message_id = MSGID_CONFIG_RELOADED),
				"configuration reloaded, %u values changed; restart kvd "
				"to change %s",
				n, later);
		else
			log_event(LOG_NOTICE,
				  LOG_FIELDS(.message_id = MSGID_CONFIG_RELOADED),
				  "configuration reloaded, %u values changed", n);
	}
	config_deinit(&fresh);
	daemon_notified(daemon, notify_ready("%s", daemon->status_text));
}

/* The timer proves that the loop turns; the worker has to get on as well. */
static void on_watchdog(struct loop_timer *timer, uint64_t now_ns)
{
	struct daemon *daemon = container_of(timer, struct daemon, watchdog);

	if (engine_progresses(&daemon->engine, now_ns, daemon->watchdog_ns)) {
		daemon->stalled = false;
		daemon_notified(daemon, notify_watchdog());
		return;
	}
	if (!daemon->stalled)
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_STEP_STALLED),
			  "the worker has made no progress for %llu s; waiting for the "
			  "service manager to restart kvd",
			  (unsigned long long)(daemon->watchdog_ns / 1000000000));
	daemon->stalled = true;
}

static void on_status(struct loop_timer *timer, uint64_t now_ns)
{
	struct daemon *daemon = container_of(timer, struct daemon, status);
	char text[sizeof(daemon->status_text)];

	log_catch_up();
	/* every local user reads it: nothing of what clients do */
	if (!daemon->engine.model) {
		snprintf(text, sizeof(text), "no model (kvctl model fetch)");
	} else {
		struct kvd_stats s = {0};

		engine_stats(&daemon->engine, &s);
		snprintf(text, sizeof(text), "serves %s on %s", daemon->engine.info.name,
			 s.backend);
	}
	if (daemon->sessions.draining) {
		size_t len = strlen(text);

		snprintf(text + len, sizeof(text) - len,
			 "; draining: takes no new requests");
	}
	if (strcmp(text, daemon->status_text) == 0)
		return;
	memcpy(daemon->status_text, text, sizeof(text));
	daemon_notified(daemon, notify_status("%s", text));
}

static uint64_t on_prepare(struct loop *loop, void *userdata)
{
	struct daemon *daemon = userdata;

	return ring_watch_prepare(&daemon->sessions);
}

static void on_accept(struct loop_accept *accept, int fd)
{
	struct daemon *daemon = container_of(accept, struct daemon, listener.accept);

	if (fd >= 0)
		sessions_accept(&daemon->sessions, fd, false);
	else
		sessions_warn(&daemon->sessions, fd, "cannot accept a connection");
}

static void on_accept_admin(struct loop_accept *accept, int fd)
{
	struct daemon *daemon = container_of(accept, struct daemon, admin.accept);

	if (fd >= 0)
		sessions_accept(&daemon->sessions, fd, true);
	else
		sessions_warn(&daemon->sessions, fd,
			      "cannot accept an administrator's connection");
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
	/* Before any thread is made, so that all inherit it. Signals: so that none takes
	 * these. */
	r = lockdown_io_uring(loop_backend_of(daemon->loop) != LOOP_BACKEND_IO_URING);
	if (r)
		log_event(LOG_WARNING,
			  LOG_FIELDS(.message_id = MSGID_SANDBOX_WEAK, .error = r),
			  "cannot refuse further use of io_uring");
	r = loop_signal_add(daemon->loop, &daemon->sigterm, SIGTERM, on_sigterm);
	if (!r)
		r = loop_signal_add(daemon->loop, &daemon->sigint, SIGINT, on_sigint);
	if (!r)
		r = loop_signal_add(daemon->loop, &daemon->sighup, SIGHUP, on_sighup);
	if (r)
		log_errno(LOG_ERR, r, "cannot watch signals");
	return r;
}

/* Where the sandbox is weaker than kvd.service asks for, say so and go on. */
static void daemon_check_sandbox(void)
{
	enum sandbox_level level = sandbox_expected();
	struct sandbox_row rows[SANDBOX_MAX_ROWS];
	unsigned int n_permitted;
	char text[768];
	int n;

	if (level == SANDBOX_NONE)
		return;
	n = sandbox_probe(level, rows, &n_permitted);
	if (n < 0) {
		log_event(LOG_WARNING,
			  LOG_FIELDS(.message_id = MSGID_SANDBOX_WEAK, .error = n),
			  "cannot probe the sandbox");
	} else if (n_permitted) {
		sandbox_describe(rows, n, text, sizeof(text));
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_SANDBOX_WEAK),
			  "the sandbox is weaker than configured; kvd could %s", text);
	}
}

/* Return: how many files may be open. */
static uint64_t daemon_check_files(const struct config *config)
{
	uint64_t have = host_limits_raise_files(), own = OWN_FILES + ADMIT_RESERVE,
		 want = own + CLIENT_FILES * (uint64_t)config->daemon.max_clients;

	if (have < want)
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_RLIMIT_SMALL),
			  "%llu open files are permitted, enough for about %llu clients; "
			  "raise LimitNOFILE= to %llu or lower [daemon] max_clients (%u)",
			  (unsigned long long)have,
			  (unsigned long long)(have > own ? (have - own) / CLIENT_FILES
							  : 0),
			  (unsigned long long)want, config->daemon.max_clients);
	return have;
}

/* Better one line now than a kill by the kernel while the pool fills. */
static int daemon_check_memory(const struct config *config)
{
	uint64_t limit, need = config->cache.kv_cache_memory;
	char where[256];
	struct stat st;

	if (!*config->model.path || host_limits_memory("", &limit, where, sizeof(where)))
		return 0;
	if (stat(config->model.path, &st) == 0 && st.st_size > 0)
		need += (uint64_t)st.st_size;
	if (need <= limit)
		return 0;
	log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_START_FAILED),
		  "model and cache need %llu MiB, but the limit of control group %s is "
		  "%llu MiB; raise MemoryMax= or lower [cache] kv_cache_memory",
		  (unsigned long long)need >> 20, where, (unsigned long long)limit >> 20);
	return error_origin(-ENOMEM);
}

/* What the service manager handed over, before anything is closed. */
static int daemon_take_descriptors(struct daemon *daemon)
{
	struct listener *listener = &daemon->listener;
	int r = listener_take(listener, LISTENER_FD_NAME);

	if (r >= 0) {
		listener = &daemon->admin;
		r = listener_take(listener, LISTENER_ADMIN_FD_NAME);
	}
	if (r < 0) {
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_START_FAILED), "%s",
			  listener->error);
		return r;
	}
	r = fdstore_init(&daemon->fdstore);
	if (r)
		log_event(LOG_ERR,
			  LOG_FIELDS(.message_id = MSGID_START_FAILED, .error = r),
			  "cannot take over descriptors from the service manager");
	return r;
}

static int daemon_listen(struct daemon *daemon)
{
	struct listener *failed = &daemon->listener;
	int r;

	r = listener_open(&daemon->listener, daemon->config->daemon.socket);
	if (!r && daemon->admin.fd >= 0) {
		failed = &daemon->admin;
		fdpass_refuse_early(daemon->admin.fd);
		r = listener_start(&daemon->admin, daemon->loop, on_accept_admin);
	}
	if (!r) {
		failed = &daemon->listener;
		fdpass_refuse_early(daemon->listener.fd);
		r = listener_start(&daemon->listener, daemon->loop, on_accept);
	}
	if (r)
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_START_FAILED), "%s",
			  *failed->error ? failed->error : strerror(-r));
	return r;
}

/* What knows a name has taken what is its own by now. */
static void daemon_drop_strangers(struct daemon *daemon)
{
	char name[FDSTORE_NAME_MAX];
	uint32_t n = fdstore_drop(&daemon->fdstore, name);

	if (n)
		log_event(
			LOG_WARNING,
			LOG_FIELDS(.message_id = MSGID_FDSTORE_STRANGE, .detail = name,
				   .detail_len = strlen(name)),
			"%u descriptors that the service manager handed over have names "
			"that nobody here knows; they are closed",
			n);
}

#define SANDBOX_HIDES                                                                      \
	"; the sandbox of kvd.service hides /home, /root, /srv, /mnt, /media and more, "   \
	"see kvd(8): put it below /var/lib/kvd/models, or permit its folder by a drop-in " \
	"with BindReadOnlyPaths="

/* Whether a file cannot be opened for a reason that its rights may not show. */
static bool is_hidden(const char *path)
{
	return *path && sandbox_expected() != SANDBOX_NONE && access(path, R_OK) < 0 &&
	       (errno == EACCES || errno == ENOENT);
}

static void warn_of_name(struct config_report *report, const char *text)
{
	log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD), "%s", text);
}

/* A name that is not there now, of a user who was deleted or of a directory that comes late,
 * is no reason to serve nobody. Return: 0; DAEMON_BAD_CONFIG; -errno. */
static int daemon_find_users(struct daemon *daemon)
{
	struct config_report report = {.fn = warn_of_name};
	int r = users_init(&daemon->sessions.users, daemon->config, &report);

	if (daemon->sessions.users.map.hidden_uids)
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_USERS_HIDDEN),
			  "this user namespace does not map all uids; users without a "
			  "mapping are turned away, as they all look like uid %u",
			  daemon->sessions.users.map.overflow_uid);
	if (r < 0)
		log_errno(LOG_ERR, r, "cannot look up the users of [domain]");
	else if (r > 0)
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD),
			  "[domain]: a name cannot be used");
	else if (report.n_errors)
		log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_CONFIG_BAD),
			  "names in [domain] were left out until the next start: their "
			  "users share with nobody");
	return r > 0 ? DAEMON_BAD_CONFIG : r;
}

static int daemon_start(struct daemon *daemon)
{
	const struct config *config = daemon->config;
	struct engine_setup setup;
	char error[512] = "";
	struct timespec now;
	uint64_t n_files;
	uint32_t n_kept;
	int r;

	r = daemon_take_descriptors(daemon);
	if (r)
		return r;
	n_files = daemon_check_files(config);
	r = daemon_check_memory(config);
	if (r)
		return r;
	r = daemon_start_loop(daemon);
	if (r)
		return r;
	/* Before there are threads, for it forks; behind the last of the filters. */
	daemon_check_sandbox();
	/* What costs little comes before the model, which may take minutes and the memory that
	 * a daemon which serves has need of. */
	sessions_init(&daemon->sessions, daemon->loop, config, &daemon->engine,
		      &daemon->fdstore);
	admit_set_files(&daemon->sessions, n_files);
	r = daemon_find_users(daemon);
	if (r)
		return r;
	r = listener_reserve(&daemon->listener, config->daemon.socket);
	if (r) {
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_START_FAILED), "%s",
			  daemon->listener.error);
		return r;
	}
	setup = (struct engine_setup){
		.loop = daemon->loop,
		.config = config,
		.fdstore = &daemon->fdstore,
		.event = op_event,
		.event_ctx = &daemon->sessions,
	};
	r = engine_init(&daemon->engine, &setup, error, sizeof(error));
	if (r) {
		log_event(LOG_ERR, LOG_FIELDS(.message_id = MSGID_MODEL_BAD), "%s%s",
			  *error ? error : strerror(-r),
			  is_hidden(config->model.path) ? SANDBOX_HIDES : "");
		return r;
	}
	loop_now_refresh(daemon->loop);
	r = sessions_start(&daemon->sessions);
	if (r) {
		log_event(LOG_ERR,
			  LOG_FIELDS(.message_id = MSGID_START_FAILED, .error = r),
			  "cannot start the thread for long texts");
		return r;
	}
	/* A kept pool counts its daemons; else it rises as long as the clock does. */
	clock_gettime(CLOCK_REALTIME, &now);
	daemon->sessions.generation = daemon->engine.keep.generation;
	if (!daemon->sessions.generation)
		daemon->sessions.generation =
			(uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	loop_set_prepare(daemon->loop, on_prepare, daemon);
	n_kept = sessions_adopt(&daemon->sessions);
	if (n_kept)
		log_event(LOG_INFO, LOG_FIELDS(.message_id = MSGID_CLIENTS_KEPT),
			  "%u connections were kept over the restart", n_kept);
	daemon_drop_strangers(daemon);
	daemon->fdstore.no_wait = true;
	return daemon_listen(daemon);
}

int daemon_new(struct daemon **ret_daemon, struct config *config, daemon_reload_fn reload,
	       void *ctx)
{
	struct daemon *daemon;
	int r;

	(void)mallopt(M_MMAP_THRESHOLD, OWN_MAPPING);
	daemon = calloc(1, sizeof(*daemon));
	if (!daemon) {
		log_error("out of memory");
		return error_origin(-ENOMEM);
	}
	daemon->config = config;
	daemon->reload = reload;
	daemon->reload_ctx = ctx;
	log_apply(config);
	listener_init(&daemon->listener);
	listener_init(&daemon->admin);
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

	if (watchdog_ns) {
		daemon->watchdog_ns = 2 * watchdog_ns;
		r = loop_timer_start(daemon->loop, &daemon->watchdog, now_ns, watchdog_ns,
				     on_watchdog);
	}
	if (!r)
		r = loop_timer_start(daemon->loop, &daemon->status, now_ns,
				     STATUS_PERIOD_NS, on_status);
	if (r) {
		log_errno(LOG_ERR, r, "cannot start the timers");
		return r;
	}
	engine_keep_succeed(&daemon->engine.keep);
	/* For a start by hand; scripts wait for this line. */
	if (!daemon->listener.activated) {
		printf("socket: %s\n", daemon->config->daemon.socket);
		fflush(stdout);
	}
	log_event(LOG_NOTICE, LOG_FIELDS(.message_id = MSGID_STARTED),
		  "serving %s on %s with %s",
		  daemon->engine.model ? daemon->engine.info.name : "no model",
		  daemon->config->daemon.socket,
		  loop_backend_name(loop_backend_of(daemon->loop)));
	daemon_notified(daemon,
			notify_ready("%s", daemon->engine.model
						   ? daemon->engine.info.name
						   : "no model: kvctl model fetch, or "
						     "[model] path in kvd.conf"));
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
	listener_deinit(&daemon->admin);
	if (daemon->loop) {
		loop_set_prepare(daemon->loop, NULL, NULL);
		sessions_deinit(&daemon->sessions);
		loop_timer_stop(&daemon->watchdog);
		loop_timer_stop(&daemon->status);
		loop_timer_stop(&daemon->manager_room);
		engine_deinit(&daemon->engine);
		loop_signal_remove(&daemon->sigterm);
		loop_signal_remove(&daemon->sigint);
		loop_signal_remove(&daemon->sighup);
		loop_free(daemon->loop);
	}
	fdstore_deinit(&daemon->fdstore);
	free(daemon);
	return NULL;
}
