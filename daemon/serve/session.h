/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_H
#define KVD_DAEMON_SERVE_SESSION_H

/*
 * Clients: one session for each connection, and what all of them share.
 *
 *                     HELLO ok
 *   accept --> NEW ------------> READY ----+
 *               |                          | EOF, error, contract broken
 *               +--------------------------+--> CLOSING --> freed (in its turn)
 *
 * Callbacks only mark what there is to do; packets are read, and a session that ends is freed, in
 * turns of its user (turns.h). A client's mistake ends its
 * own session only. Identity is the peer's uid and gid as the kernel recorded them at connect.
 * Below session_ring.h, control.h and sessions.h. Thread: loop.
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
#include "daemon/serve/lent.h"
#include "daemon/serve/monitor.h"
#include "daemon/serve/parting.h"
#include "daemon/turns.h"
#include "daemon/user.h"

struct config;
struct engine;
struct fdstore;
struct session_ring;
struct sessions;

enum session_state { SESSION_NEW, SESSION_READY, SESSION_CLOSING };

/**
 * struct session - one connection
 * @id, @number: among all; among those of its user, which is all that one is told
 * @turn:      runs while there are packets, or it ends
 * @hung_up:   the peer is gone
 * @n_ending:  rings that RING_CLOSE is about; later packets wait for them
 * @owner:     label of the client's process, for shared_hit_tokens
 * @admin:     may flush everything and see everybody
 * @wary:      the kernel lets the client send descriptors
 * @sent_fds:  the daemon sent some
 * @keep:      WELCOME said that it is kept over a restart
 * @stored:    lies in the FD store; @keep_timer runs until it does
 * @hello_tag: tag that HELLO of an adopted connection must have; 0: any
 * @monitor, @job: NULL: does not watch; no long request is in hand
 */
struct session {
	struct session *prev, *next;
	struct sessions *sessions;
	struct loop_io io;
	struct turn turn;
	bool hung_up;
	uint32_t n_ending;
	int fd;
	uint64_t id;
	uint64_t number;
	enum session_state state;
	struct peer_cred cred;
	struct user *user;
	uint64_t owner;
	bool admin;
	bool by_admin_socket;
	bool wary;
	bool sent_fds;
	bool keep;
	bool stored;
	struct loop_timer hello_timer;
	struct loop_timer keep_timer;
	uint32_t hello_tag;
	char name[KVD_NAME_MAX];
	uint64_t connected_ns;
	struct session_ring *rings;
	uint32_t n_rings;
	uint32_t n_ops;
	uint32_t next_ring_id;
	uint64_t tokens_prompt, tokens_generated, tokens_cached;
	uint64_t requests_failed;
	uint64_t ttft_ns;
	struct monitor_queue *monitor;
	struct job *job;
};

/**
 * struct sessions - all of them
 * @closing_fn: stops what runs for a marked session and frees it in its turn
 * @ending:     the daemon stops: the store and the rings stay as they are
 * @draining:   requests for the model are refused; those that were taken go on
 * @list:       by rising id
 * @n_faulty:   sessions that broke the contract
 * @n_completed, @n_failed, @n_cancelled: operations that named the model
 * @client_files: descriptors from this one on are not for clients
 * @trim:       runs when a user has gone, whose memory then goes back to the system
 * @warned:     by sessions_warn()
 * @turns:      what is to be done, by user; @ring_turn, @session_turn: for one of these
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
	struct partings partings;
	struct lent_files lent;
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
	int client_files;
	struct loop_timer trim;
	struct log_last warned;
	struct turns turns;
	const struct turn_kind *ring_turn;
	const struct turn_kind *session_turn;
};

/* The machine is short of something: one log line however many clients suffer, more if it lasts. */
void sessions_warn(struct sessions *sessions, int error, const char *what);

/* Reports to those who watch; client_id, uid and name are filled in. */
void session_event(struct session *session, struct kvd_event event);

/* It has something to do. */
void session_turn(struct session *session);

/* An operation that named the model has ended, by KVD_FINISH_*. */
void session_count_end(struct session *session, uint32_t finish);

/* Ends a session: what runs for it is cancelled now, the rest is done in turns. Idempotent. */
void session_close(struct session *session);

/* The same for a client that broke the contract; one log line. */
void session_fault(struct session *session, const char *what);

/* The same by no fault of the client. */
void session_fail(struct session *session, int error);

/* Sends one packet; a client that does not read is cut off. */
void session_reply(struct session *session, const void *msg, size_t len);

/* The same with descriptors, which are still the caller's. Return: false: -ETOOMANYREFS, so that it
 * was not sent: more are on their way to clients than the kernel lets one user have. */
bool session_reply_fds(struct session *session, const void *msg, size_t len,
		       const int *fds, size_t n_fds);

/* ERROR or REJECT to a request. @text: one line, without contents of requests */
void session_reply_error(struct session *session, const struct kvd_msg_hdr *request,
			 int32_t status, uint64_t detail, const char *text);

#endif
