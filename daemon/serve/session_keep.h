/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_KEEP_H
#define KVD_DAEMON_SERVE_SESSION_KEEP_H

/* Connections in the service manager's FD store; their names there. Thread: loop. */

#include <stdbool.h>
#include <stdint.h>

struct session;

/* HELLO says whether the connection should outlive the daemon; sets session->keep if it can. */
void session_keep(struct session *session, bool wanted);

/* The session ends: takes it out of the store, unless the daemon ends. */
void session_unkeep(struct session *session);

/* Parses a name in the store. Return: false if it is none of ours. */
bool session_keep_parse(const char *name, bool *ret_admin, uint64_t *ret_id);

/* A connection came back: tells its client that the daemon restarted. */
void session_keep_tell(struct session *session);

#endif
