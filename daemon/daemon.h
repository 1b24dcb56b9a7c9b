/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_DAEMON_H
#define KVD_DAEMON_DAEMON_H

/* The daemon as a whole: starts its parts, serves, and ends them in the reverse order. Thread:
 * loop, but for what engine.h says of the worker. */

#include "daemon/config.h"
#include "daemon/engine/engine.h"
#include "daemon/fdstore.h"
#include "daemon/listener.h"
#include "daemon/loop.h"
#include "daemon/serve/sessions.h"

/* Lines are wrong; files that may be all right could not be read. */
enum { DAEMON_RELOAD_MISTAKES = 1, DAEMON_RELOAD_UNREAD = 2 };

/* Reads the configuration again, into a new struct config, and logs its mistakes. Return: 0;
 * DAEMON_RELOAD_*; -errno. config_deinit() of @fresh is safe after failure. */
typedef int (*daemon_reload_fn)(void *ctx, struct config *fresh);

/* Named condition of daemon_new(): a mistake that another try would meet again. */
enum { DAEMON_BAD_CONFIG = 1 };

struct daemon {
	struct config *config;
	daemon_reload_fn reload;
	void *reload_ctx;
	struct fdstore fdstore;
	struct loop *loop;
	struct engine engine;
	struct sessions sessions;
	struct listener listener; /* of clients */
	struct listener admin;    /* of administrators; only from the service manager */
	struct loop_signal sigterm, sigint, sighup;
	struct loop_timer watchdog, status, manager_room;
	uint64_t watchdog_ns; /* how long a step may stand still */
	bool stalled;
	char status_text[256];
};

/* Starts everything up to the listening socket. @config: checked; outlives the daemon, which
 * changes it at a reload. @reload: called with @ctx on SIGHUP. Return: 0; DAEMON_BAD_CONFIG;
 * -errno. The log says why. */
int daemon_new(struct daemon **ret_daemon, struct config *config, daemon_reload_fn reload,
	       void *ctx);

/* Serves until SIGTERM or SIGINT. Return: 0 or -errno. */
int daemon_run(struct daemon *daemon);

/* NULL is fine. Return: NULL. */
struct daemon *daemon_free(struct daemon *daemon);

#endif
