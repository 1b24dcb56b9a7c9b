/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_KEEP_H
#define KVD_DAEMON_SERVE_SESSION_KEEP_H

/*
 * Connections in the service manager's FD store: how they get there, and what the client of
 * one that came back hears. Thread: loop.
 */

#include <stdbool.h>
#include <stdint.h>

struct session;

/* HELLO asks whether the connection may outlive the daemon. Notes in @session->keep whether it
 * will: once it is a second old, and as long as the store has room. */
void session_keep(struct session *session, bool wanted);

/* The session ends. Shuts down what lay in the store; at the end of the daemon it stays. */
void session_unkeep(struct session *session);

/* The name under which a connection lies there. Return: false if @name is none. */
bool session_keep_parse(const char *name, bool *ret_admin, uint64_t *ret_id);

/* It came back: its client learns that this is another daemon. */
void session_keep_tell(struct session *session);

#endif
