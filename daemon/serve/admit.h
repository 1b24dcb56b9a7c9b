/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_ADMIT_H
#define KVD_DAEMON_SERVE_ADMIT_H

/*
 * Who is let in, and what those hear who are turned away. Each user has so many connections; all
 * together are one pot, of which a user with less than an even share gets a place also when it is
 * full. Descriptors from client_files on are kept for administrators. Below sessions.h.
 * Thread: loop.
 */

#include <stdbool.h>
#include <sys/types.h>

struct peer_cred;
struct session;
struct sessions;
struct user;

/* Descriptors that are kept: 16 connections of administrators with a ring each, and what it takes
 * to refuse politely. */
#define ADMIT_RESERVE 128

/* The limit of open files, from which client_files follows. */
void admit_set_files(struct sessions *sessions, unsigned long long n_files);

/* Charges a connection to its user. Return: NULL: it was turned away, and @fd is closed. */
struct user *admit(struct sessions *sessions, int fd, const struct peer_cred *cred,
		   bool admin);

/* Not a session yet, and to be closed: the store may have a duplicate, and descriptors may lie in
 * it already. @fd: taken */
void admit_part(struct sessions *sessions, int fd, uid_t uid);

/* One that says no HELLO for 10 seconds is turned away. */
void admit_await_hello(struct session *session);

#endif
