/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_RING_H
#define KVD_DAEMON_SERVE_SESSION_RING_H

/*
 * One ring of a session: how CQEs get into it, the two lists in which it waits for a turn
 * of ring_watch.h, and ended sequences whose tokens it keeps for FORK.
 *
 * A warm ring is polled in the turn that comes; a dirty one has news for its client, who is
 * woken once in that turn. A doorbell warms a ring.
 *
 * Thread: loop. Holds operations (op.h) by their list only.
 */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/loop.h"
#include "daemon/serve/encoder.h"
#include "daemon/user.h"
#include "ipc/ring.h"

struct op;
struct session;

/* An ended sequence whose tokens a ring keeps for FORK. */
struct session_kept {
	uint64_t user_data;
	uint64_t salt;
	int32_t *tokens;
	uint32_t n_tokens;
	struct user_charge charge;
};

/**
 * struct session_ring - see above
 * @ops, @n_ops:  operations in flight, oldest first
 * @kept, @n_kept: ended sequences for FORK, the oldest first
 * @charge:       arenas
 * @n_blocked:    operations that wait for room in the CQ
 * @encoded_op:   whose text becomes tokens, by @encoding; no further SQE is taken until then
 * @spin_ns:      how long it is polled after its last traffic; halved each time that
 *                was in vain
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
	struct user_charge charge;
	uint32_t n_blocked;
	struct op *encoded_op;
	struct encoder_wait encoding;
	uint64_t spin_ns;
	uint64_t cool_ns;
	struct session_ring *warm_prev, *warm_next;
	struct session_ring *dirty_next;
	bool warm;
	bool dirty;
};

/* How long a ring is polled after traffic, at most: [daemon] spin_us. */
uint64_t session_ring_max_spin_ns(const struct session_ring *ring);

/* Watch a new ring; it is cold. Return: 0 or -errno. */
int session_ring_watch(struct session_ring *ring);

/* Leave both lists; before the ring is freed. */
void session_ring_unwatch(struct session_ring *ring);

void session_ring_warm(struct session_ring *ring);
void session_ring_cool(struct session_ring *ring);

/* CQEs were posted or SQEs taken: the client is woken, if it sleeps, before the loop
 * blocks. */
void session_ring_dirty(struct session_ring *ring);

/**
 * session_ring_post() - post one CQE; the client is woken as by session_ring_dirty()
 *
 * A client signals that it made room only while it sees CQ_FULL, and a post that finds
 * room takes CQ_FULL back. If others still wait for room, or SQEs do, the client's signal
 * may so never come: the ring is looked at again before the loop blocks.
 *
 * Return: as ring_daemon_post().
 */
enum ring_status session_ring_post(struct session_ring *ring, const struct kvd_cqe *cqe);

/* What its arenas and kept tokens are charged at. */
uint64_t session_ring_bytes(const struct session_ring *ring);

/* Takes over the tokens of an operation that has ended; the oldest makes room. */
void session_ring_keep(struct session_ring *ring, const struct session_kept *kept);

/* The newest that was kept under this name, or NULL. */
const struct session_kept *session_ring_find_kept(const struct session_ring *ring,
						  uint64_t user_data);

/* Return: how many were kept under this name and are forgotten now. */
int session_ring_forget_kept(struct session_ring *ring, uint64_t user_data);
void session_ring_forget_all(struct session_ring *ring);

#endif
