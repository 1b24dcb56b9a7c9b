/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSIONS_H
#define KVD_DAEMON_SERVE_SESSIONS_H

/*
 * How sessions come and go: connections that are accepted, those that a former daemon left
 * with the service manager, packets that are read, the deferred end.
 *
 * Where the service manager has an FD store, a connection that asked for it in HELLO
 * (KVD_FEATURE_KEEP) lies there as client-ID or admin-ID from a second on as long as its
 * session lives, and outlives the daemon (session_keep.h). The next one makes it a session in
 * state NEW, says that it is another one, and waits for HELLO as long as it takes: the client
 * may be asleep. What a client had is gone; its rings are files that only the dead one could
 * write.
 *
 * Thread: loop. Nothing in daemon/serve/ is above this.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/session.h"

/* @store: NULL: connections are not kept */
void sessions_init(struct sessions *sessions, struct loop *loop,
		   const struct config *config, struct engine *engine,
		   struct fdstore *store);

/* Once the engine has its model, before anybody is accepted. Return: 0 or -errno. */
int sessions_start(struct sessions *sessions);

/* The configuration was reloaded: limits of connected users follow it. */
void sessions_reload(struct sessions *sessions);

/* At the end of the daemon: ends every session that is not kept. */
void sessions_deinit(struct sessions *sessions);

/**
 * sessions_accept() - a connection was accepted
 * @fd:    taken, also on failure
 * @admin: it came by the administrators' socket: who may open that has their rights,
 *         and gets in when clients have used up max_clients, or its own user
 *         max_connections
 */
void sessions_accept(struct sessions *sessions, int fd, bool admin);

/*
 * Take over the connections that a former daemon left in the store, and tell them. To be
 * called once generation is set, before anybody is accepted. Return: how many.
 */
uint32_t sessions_adopt(struct sessions *sessions);

#endif
