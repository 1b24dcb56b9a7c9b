/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_H
#define KVD_DAEMON_SERVE_SESSION_H

/*
 * Clients: one session for each connection, and what all of them share.
 *
 *                     HELLO ok
 *   accept --> NEW ------------> READY ----+
 *               |                          | EOF, error, contract broken
 *               +--------------------------+--> CLOSING --> freed (deferred call)
 *
 * A session ends as a whole and at once: its sequences are cancelled, its rings are
 * scrubbed and unmapped, its descriptors closed. It is only marked inside callbacks
 * and freed by a deferred call, so nobody holds a dangling session. What a client does
 * wrong ends its own session, never more, with one log line.
 *
 * Identity is the peer's uid and gid as the kernel recorded them at connect; its pid
 * is a label.
 *
 * This is the object and what goes out by its socket. Above it: its rings (session_ring.h,
 * ring_open.h), what its messages do (control.h), how it comes and goes (sessions.h).
 *
 * Thread: loop.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto.h>

#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/job.h"
#include "daemon/serve/monitor.h"
#include "daemon/user.h"

struct config;
struct engine;
struct fdstore;
struct session_ring;
struct sessions;

enum session_state { SESSION_NEW, SESSION_READY, SESSION_CLOSING };

/**
 * struct session - one connection
 * @owner: label of the client's process, for shared_hit_tokens
 * @admin: may flush everything and see everybody
 * @by_admin_socket: came by the administrators' socket
 * @keep: was told that it is kept over a restart
 * @stored: lies in the FD store
 * @keep_timer: runs until it does
 * @hello_tag: of a kept connection: HELLO must have it; 0: any tag
 * @monitor: NULL: does not watch
 * @job: NULL: no long request is in hand
 */
struct session {
	struct session *prev, *next;
	struct sessions *sessions;
	struct loop_io io;
	int fd;
	uint64_t id;
	enum session_state state;
	struct peer_cred cred;
	struct user *user;
	uint64_t owner;
	bool admin;
	bool by_admin_socket;
	bool keep;
	bool stored;
	struct loop_timer keep_timer;
	uint32_t hello_tag;
	char name[KVD_NAME_MAX];
	uint64_t connected_ns;
	struct session_ring *rings;
	uint32_t n_rings;
	uint32_t n_ops;
	uint32_t next_ring_id;
	struct session *next_closing;
	uint64_t tokens_prompt, tokens_generated, tokens_cached;
	uint64_t requests_failed;
	uint64_t ttft_ns;
	struct monitor_queue *monitor;
	struct job *job;
};

/**
 * struct sessions - all of them
 * @closing_fn: a session was marked: stop what runs for it and free it later
 * @list:    by rising id
 * @ending:  the daemon stops: what lies in the store stays there, and clients keep what
 *           their rings hold
 * @warm:    rings that are polled
 * @dirty:   rings whose client may have to be woken
 * @closing: to be freed by the deferred call
 * @jobs: long requests in hand
 * @draining: requests for the model are refused; those that were taken go on
 * @n_faulty: sessions that broke the contract, since the start
 * @n_completed, @n_failed, @n_cancelled: operations that named the model, since the start
 */
struct sessions {
	struct loop *loop;
	const struct config *config;
	struct engine *engine;
	struct fdstore *store;
	void (*closing_fn)(struct session *session);
	bool ending;
	bool draining;
	struct users users;
	struct encoder encoder;
	struct monitor monitor;
	struct session *list, *list_tail;
	uint32_t n_sessions;
	uint32_t n_rings;
	uint64_t next_id;
	uint64_t n_faulty;
	uint64_t n_completed, n_failed, n_cancelled;
	uint64_t generation;
	uint64_t started_ns;
	struct jobs jobs;
	struct session *closing;
	struct log_last warned; /* by sessions_warn() */
	struct session_ring *warm;
	struct session_ring *dirty;
	struct loop_defer reap;
};

/* The machine is short of something, by nobody's fault: one line in the log, however many
 * connections suffer, and another when it lasts. */
void sessions_warn(struct sessions *sessions, int error, const char *what);

/* For those who watch: client_id, uid and name are filled in. */
void session_event(struct session *session, struct kvd_event event);

/* End a session. What runs for it is cancelled now, the rest is deferred. */
void session_close(struct session *session);

/* The same because of what its client did; one log line. */
void session_fault(struct session *session, const char *what);

/* The same by no fault of its own. */
void session_fail(struct session *session, int error);

/**
 * session_reply() - send one packet
 * @fds: [n_fds] passed along, still the caller's
 *
 * A client that does not read its socket, although each reply answers a request of
 * its own, is cut off: the daemon keeps no queue for it.
 */
void session_reply(struct session *session, const void *msg, size_t len, const int *fds,
		   size_t n_fds);

/* ERROR to a request. @text: one line, without contents of requests. */
void session_reply_error(struct session *session, const struct kvd_msg_hdr *request,
			 int32_t status, uint64_t detail, const char *text);

#endif
