/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SESSION_RING_H
#define KVD_DAEMON_SERVE_SESSION_RING_H

/*
 * One ring of a session, and ended sequences whose tokens it keeps for FORK. A warm ring is polled
 * in each turn of its own (ring_watch.h); a dirty one has news for its client, who is woken once in
 * that turn. Holds operations (op.h) by their list only. Thread: loop.
 */

#include <stdbool.h>
#include <stdint.h>

#include <kvd/abi.h>

#include "daemon/loop.h"
#include "daemon/serve/encoder.h"
#include "daemon/serve/output.h"
#include "daemon/turns.h"
#include "daemon/user.h"
#include "ipc/ring.h"

struct lent;
struct op;
struct session;

struct session_kept {
	uint64_t user_data;
	uint64_t salt;
	int32_t *tokens;
	uint32_t n_tokens;
	struct user_charge charge;
};

/**
 * struct session_ring - see above
 * @ops, @kept: oldest first
 * @charge, @lent: for what the client writes; for what it reads, queue and arena each
 * @turn:       runs while the ring is warm or dirty
 * @n_blocked:  operations that wait for room in the CQ
 * @held_op:    waits for @encoding, for a turn with @encoded, or for @output to be written; no SQE
 *              is taken until then
 * @spin_ns:    how long it is polled after traffic; halved each time in vain
 * @cool_ns:    when a warm ring turns cold
 * @ending:     its memory is given back; @close_tag: of the request
 * @rung:       the doorbell was signalled since its last turn
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
	struct lent *lent;
	uint32_t n_blocked;
	struct op *held_op;
	struct encoder_wait encoding;
	struct encoder_result encoded;
	bool has_encoded;
	struct output output;
	uint64_t spin_ns;
	uint64_t cool_ns;
	struct turn turn;
	bool warm;
	bool dirty;
	bool rung;
	bool ending;
	uint32_t close_tag;
};

/* [daemon] spin_us: how long a ring is polled after traffic, at most. */
uint64_t session_ring_max_spin_ns(const struct session_ring *ring);

/* Watches the doorbell. Return: 0 or -errno. The ring is cold. */
int session_ring_watch(struct session_ring *ring);

/* It has no turn any more, before the ring is freed. */
void session_ring_unwatch(struct session_ring *ring);

/* Its turn after the doorbell rang: the next time is heard again. */
void session_ring_hear(struct session_ring *ring);

void session_ring_warm(struct session_ring *ring);

/* CQEs were posted or SQEs taken: a sleeping client is woken in the next turn. */
void session_ring_dirty(struct session_ring *ring);

/* Posts one CQE and makes the ring dirty. Return: as ring_daemon_post(). */
enum ring_status session_ring_post(struct session_ring *ring, const struct kvd_cqe *cqe);

uint64_t session_ring_bytes(const struct session_ring *ring);

/* Takes over the tokens of an ended operation; the oldest makes room. */
void session_ring_keep(struct session_ring *ring, const struct session_kept *kept);

/* The newest of this name, or NULL; session_ring_forget_kept() returns how many there were. */
const struct session_kept *session_ring_find_kept(const struct session_ring *ring,
						  uint64_t user_data);

int session_ring_forget_kept(struct session_ring *ring, uint64_t user_data);
void session_ring_forget_all(struct session_ring *ring);

#endif
