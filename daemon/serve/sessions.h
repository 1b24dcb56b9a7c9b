/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSIONS_H
#define KVD_DAEMON_SERVE_SESSIONS_H

/* How sessions come and go; nothing in daemon/serve/ is above this. Thread: loop. */

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

/* Applies the reloaded configuration to limits of connected users. */
void sessions_reload(struct sessions *sessions);

/* Ends every session that is not kept. */
void sessions_deinit(struct sessions *sessions);

/* @fd: taken, also on failure. @admin: from the administrators' socket: all rights, no limits */
void sessions_accept(struct sessions *sessions, int fd, bool admin);

/* Stored connections become sessions; generation is set, nobody accepted yet. Return: how many. */
uint32_t sessions_adopt(struct sessions *sessions);

#endif
