/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_H
#define KVD_DAEMON_SERVE_SESSION_H

/*
 * Clients: one session for each connection, with the rings it opened.
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
 * Where the service manager has an FD store, a connection that asked for it in HELLO
 * (KVD_FEATURE_KEEP) lies there as client-ID or admin-ID from a second on as long as its
 * session lives, and outlives the daemon (session_keep.c). The next one makes it a session in state NEW (sessions_adopt()),
 * says that it is another one, and waits for HELLO as long as it takes: the client may be
 * asleep. What a client had is gone; its rings are files that only the dead one could
 * write.
 *
 * Identity is the peer's uid and gid as the kernel recorded them at connect; its pid
 * is a label.
 *
 * Thread: loop. Relies on ipc/ for messages and rings, on ring_watch.h for when a ring
 * is looked at, on control.h for administrative messages.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/proto.h>

#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/serve/encoder.h"
#include "daemon/user.h"
#include "ipc/ring.h"

struct config;
struct engine;
struct fdstore;
struct monitor_queue;
struct op;
struct sessions;

enum session_state { SESSION_NEW, SESSION_READY, SESSION_CLOSING };

/* An ended sequence whose tokens a ring keeps for FORK. */
struct session_kept {
	uint64_t user_data;
	uint64_t salt;
	int32_t *tokens;
	uint32_t n_tokens;
};

/**
 * struct session_ring - one ring of a session
 * @ops, @n_ops:  operations in flight, oldest first
 * @kept, @n_kept: ended sequences for FORK, the oldest first
 * @n_blocked:    those that wait for room in the CQ
 * @encoding:     the one whose text becomes tokens; until then no further SQE is taken
 * @spin_ns:      how long it is polled after its last traffic; halved each time that
 *                 was in vain
 * @cool_ns:      when a warm ring turns cold
 * @warm, @dirty: membership in the two lists of struct sessions
 */
struct session_ring {
	struct session_ring *next;
	struct session *session;
	struct ring_daemon ring;
	struct loop_io doorbell;
	uint32_t id;
	struct op *ops, *ops_tail;
	uint32_t n_ops;
	struct session_kept kept[KVD_MAX_KEPT];
	uint32_t n_kept;
	uint64_t charged; /* arena bytes */
	uint32_t n_blocked;
	struct encoder_wait encoding;
	uint64_t spin_ns;
	uint64_t cool_ns;
	struct session_ring *warm_prev, *warm_next;
	struct session_ring *dirty_next;
	bool warm;
	bool dirty;
};

/**
 * struct session - one connection
 * @owner: label of the client's process, for shared_hit_tokens
 * @admin: may flush everything and see everybody
 * @by_admin_socket: came by the administrators' socket
 * @keep: was told that it is kept over a restart
 * @stored: lies in the FD store
 * @keep_timer: runs until it does
 * @hello_tag: of a kept connection: HELLO must have it; 0: any tag
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
	uint64_t charged; /* bytes of arenas and kept tokens, to the user */
	struct session *next_closing;
	uint64_t tokens_prompt, tokens_generated, tokens_cached;
	uint64_t requests_failed;
	uint64_t ttft_ns;
	struct monitor_queue *monitor; /* NULL: does not watch */
};

/**
 * struct sessions - all of them
 * @list:    by rising id
 * @ending:  the daemon stops: what lies in the store stays there, and clients keep what
 *           their rings hold
 * @warm:    rings that are polled
 * @dirty:   rings whose client may have to be woken
 * @closing: to be freed by the deferred call
 * @monitors: queues of those who watch
 * @draining: requests for the model are refused; those that were taken go on
 * @n_faulty: sessions that broke the contract, since the start
 */
struct sessions {
	struct loop *loop;
	const struct config *config;
	struct engine *engine;
	struct fdstore *store;
	bool ending;
	struct users users;
	struct session *list, *list_tail;
	uint32_t n_sessions;
	uint32_t n_rings;
	uint64_t next_id;
	uint64_t n_faulty;
	uint64_t generation;
	uint64_t started_ns;
	struct monitor_queue *monitors;
	uint64_t evictions_told; /* to those who watch */
	struct session *closing;
	struct log_last warned; /* by sessions_warn() */
	bool draining;
	struct session_ring *warm;
	struct session_ring *dirty;
	struct loop_defer reap;
};

/* @store: NULL: connections are not kept */
void sessions_init(struct sessions *sessions, struct loop *loop,
		   const struct config *config, struct engine *engine,
		   struct fdstore *store);

/* The machine is short of something, by nobody's fault: one line in the log, however many
 * connections suffer, and another when it lasts. */
void sessions_warn(struct sessions *sessions, int error, const char *what);

/* At the end of the daemon: ends every session that is not kept. */
void sessions_deinit(struct sessions *sessions);

/**
 * sessions_accept() - a connection was accepted
 * @fd:    taken, also on failure
 * @admin: it came by the administrators' socket: whoever may open that has their rights,
 *         and gets in when clients have used up max_clients, or its own user
 *         max_connections
 */
void sessions_accept(struct sessions *sessions, int fd, bool admin);

/* The same for a connection of any daemon's. @id: its number, or 0: the next one. Return: NULL:
 * turned away, and closed. */
struct session *session_new(struct sessions *sessions, int fd, bool admin, uint64_t id);

/*
 * Take over the connections that a former daemon left in the store, and tell them. To be
 * called once generation is set, before anybody is accepted. Return: how many.
 */
uint32_t sessions_adopt(struct sessions *sessions);

/* HELLO asks whether the connection may outlive the daemon. Notes in @session->keep whether it
 * will: once it is a second old, and as long as the store has room. */
void session_keep(struct session *session, bool wanted);

/* The session ends. Shuts down what lay in the store; at the end of the daemon it stays. */
void session_unkeep(struct session *session);

/**
 * session_ring_open() - make a ring and watch it
 * @msg: within the limits of WELCOME; the shape is checked here
 *
 * Return: 0; -EINVAL and others as ring_daemon_init().
 */
int session_ring_open(struct session *session, const struct kvd_msg_ring_open *msg,
		      struct session_ring **ret_ring);

/* Return: 0, -ENOENT. */
int session_ring_close(struct session *session, uint32_t id);

/**
 * session_charge() - memory that a session's client makes the daemon hold
 * @bytes: of an arena, or of tokens that are kept for FORK
 *
 * Return: 0, -EDQUOT: beyond max_arena of its user.
 */
int session_charge(struct session *session, uint64_t bytes);
void session_uncharge(struct session *session, uint64_t bytes);

/* Takes over the tokens of an operation that has ended; the oldest makes room. */
void session_ring_keep(struct session_ring *ring, struct op *op);

/* The newest that was kept under this name, or NULL. */
const struct session_kept *session_ring_find_kept(const struct session_ring *ring,
						  uint64_t user_data);

/* Return: how many were kept under this name and are forgotten now. */
int session_ring_forget_kept(struct session_ring *ring, uint64_t user_data);

/* End a session. Its operations are cancelled now, the rest is deferred. */
void session_close(struct session *session);

/* The same because of what its client did; one log line. */
void session_fault(struct session *session, const char *what);

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
