/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_RING_H
#define KVD_IPC_RING_H

/*
 * A ring as each side sees it: private positions, masks and bounds over the
 * shared pages of <kvd/abi.h>. Nothing that decides where memory is touched is
 * ever read back from shared memory. One ring object belongs to one thread at a
 * time: on the daemon's side the loop, on the client's side the caller.
 *
 * Relies on region.c for files that cannot shrink, on doorbell.c for signals that
 * cannot block, on barrier.h for order. Knows no opcode, copies no input, keeps
 * no queue: a CQE that does not fit is the caller's to keep.
 * FAULT from any function is the peer's mistake and final; all stay safe to call.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "ipc/region.h"

/* Conditions; none is an error of the caller. */
enum ring_status {
	RING_OK = 0,
	RING_EMPTY = 1, /* nothing to take */
	RING_FULL = 2,  /* no room to post, or to answer what would be taken */
	RING_BUSY = 3,  /* do not sleep */
	RING_FAULT = 4, /* the peer broke the contract */
	RING_GONE = 5, /* the daemon has wiped it, to end it; its doorbell will hang up */
};

/**
 * ring_geometry_init() - lay a ring out
 * @ret: filled in on success
 *
 * Return: 0; -EINVAL: counts that are no power of two, arenas that are no
 * multiple of 4096, or anything above the limits of <kvd/abi.h>.
 */
int ring_geometry_init(struct kvd_ring_geometry *ret, uint32_t sq_entries,
		       uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes);

/* Is a received geometry one whose parts lie inside their files? */
bool ring_geometry_ok(const struct kvd_ring_geometry *g);

/* ------------------------------------------------------------------------
 * The daemon's side. Thread: loop.
 */

/**
 * struct ring_daemon - consumer of an SQ, producer of a CQ
 * @sq_pos:       next SQE to take
 * @sq_published: what the client was told of it
 * @sq_taken:     SQEs were taken since the last notify
 * @cq_pos:       next CQE to post
 * @cq_seen:      how far the client had consumed when last looked
 * @cq_posted:    CQEs were posted since the last notify
 * @flags:        private copy of the flags this side publishes
 * @out_dirty:    end of the part of the output arena that was handed out
 */
struct ring_daemon {
	struct kvd_sqe *sq;
	uint64_t sq_pos;
	uint64_t sq_published;
	struct kvd_cqe *cq;
	uint64_t cq_pos;
	uint64_t cq_seen;
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint32_t flags;
	bool sq_taken;
	bool cq_posted;
	bool fault;
	struct kvd_client_page *client;
	struct kvd_daemon_page *daemon;
	uint8_t *in;
	uint8_t *out;
	uint64_t out_dirty;
	int fd_submit;
	int fd_complete[2];
	struct region c2d;
	struct region d2c;
	struct kvd_ring_geometry geometry;
};

/**
 * ring_daemon_init() - make a ring: files, doorbells, mappings
 * @sq_entries, @cq_entries, @in_bytes, @out_bytes: as in RING_OPEN, unchecked
 *
 * Return: 0; -EINVAL as ring_geometry_init(); -EMFILE, -ENOMEM and other -errno.
 * On failure nothing is left, and ring_daemon_deinit() is not needed.
 */
int ring_daemon_init(struct ring_daemon *r, uint32_t sq_entries, uint32_t cq_entries,
		     uint64_t in_bytes, uint64_t out_bytes);

/*
 * Scrub both files (a client may hold its mappings for ever), unmap, close.
 * Idempotent, and fine on a zeroed struct.
 */
void ring_daemon_deinit(struct ring_daemon *r);

/*
 * The same at the end of the daemon, as if it had died: nothing is scrubbed, since the
 * client goes on with the entries and inputs that are there.
 */
void ring_daemon_leave(struct ring_daemon *r);

/* The descriptors of RING_OPENED, in order; still owned by the ring. */
void ring_daemon_get_fds(const struct ring_daemon *r, int ret_fds[KVD_RING_N_FDS]);

/* After they were sent: close the two memory files, which only cost slots now. */
void ring_daemon_close_files(struct ring_daemon *r);

/* To be polled for readability; signalled by the client. */
static inline int ring_daemon_doorbell(const struct ring_daemon *r)
{
	return r->fd_submit;
}

/* Is there an SQE? One load; for polling many rings before sleeping. */
bool ring_daemon_pending(const struct ring_daemon *r);

/**
 * ring_daemon_take() - copy the next SQE out, once
 * @ret_sqe: private copy; what the client writes into the slot later is unseen
 *
 * Takes nothing when the CQ has no room, so that what is taken can be answered;
 * then CQ_FULL is set and the client signals the doorbell when it made room.
 *
 * Return: RING_OK, RING_EMPTY, RING_FULL, RING_FAULT.
 */
enum ring_status ring_daemon_take(struct ring_daemon *r, struct kvd_sqe *ret_sqe);

/* Is the client asked to signal when it made room? Ends with the next take or post. */
static inline bool ring_daemon_cq_full(const struct ring_daemon *r)
{
	return r->flags & KVD_DAEMON_CQ_FULL;
}

/**
 * ring_daemon_post() - publish one CQE
 * @cqe: its seq is ignored
 *
 * RING_FULL: it was not posted, CQ_FULL is set; keep it and try again after the
 * doorbell. Does not wake the client; ring_daemon_notify() does.
 *
 * Return: RING_OK, RING_FULL, RING_FAULT.
 */
enum ring_status ring_daemon_post(struct ring_daemon *r, const struct kvd_cqe *cqe);

/*
 * Wake the client if it sleeps and something was posted, or if it waits for room
 * in the SQ and something was taken. Cheap when there is nothing to do.
 */
void ring_daemon_notify(struct ring_daemon *r);

/**
 * ring_daemon_arm() - stop watching the ring until its doorbell is signalled
 *
 * Sets NEED_WAKEUP, then looks once more. While CQ_FULL is set only room in the
 * CQ counts, since no SQE would be taken: a client that stops reading while its
 * SQ is full does not keep the loop awake.
 *
 * Return: RING_OK: armed; RING_BUSY: there is work, the ring is not armed;
 * RING_FAULT.
 */
enum ring_status ring_daemon_arm(struct ring_daemon *r);

/*
 * The doorbell was signalled: empty it, and watch the ring again, so that the
 * client need not signal. Also for a signal that came while the ring was watched.
 */
void ring_daemon_disarm(struct ring_daemon *r);

/**
 * ring_daemon_in() - bytes of the input arena
 * @off, @len: from an SQE, unchecked
 *
 * The bytes may change, or turn to 0, at any moment: copy first, then validate
 * the copy. Return: NULL if they are not inside the arena.
 */
const void *ring_daemon_in(const struct ring_daemon *r, uint64_t off, uint64_t len);

/*
 * Bytes of the output arena; @off must be a multiple of 4. The client can read
 * them, and nobody but the daemon can write them. Return: NULL if not inside.
 */
void *ring_daemon_out(struct ring_daemon *r, uint64_t off, uint64_t len);

/* ------------------------------------------------------------------------
 * The client's side. Thread: the ring's owner.
 */

/**
 * struct ring_client - producer of an SQ, consumer of a CQ
 * @sq_pos:       next SQE to write
 * @sq_seen:      how far the daemon had taken when last looked
 * @cq_pos:       next CQE to take
 * @cq_published: what the daemon was told of it
 * @flags:        private copy of the flags this side publishes
 */
struct ring_client {
	struct kvd_sqe *sq;
	uint64_t sq_pos;
	uint64_t sq_seen;
	const struct kvd_cqe *cq;
	uint64_t cq_pos;
	uint64_t cq_published;
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint32_t flags;
	struct kvd_client_page *client;
	const struct kvd_daemon_page *daemon;
	uint8_t *in;
	const uint8_t *out;
	int fd_submit;
	int fd_complete;
	struct region c2d;
	struct region d2c;
	struct kvd_ring_geometry geometry;
};

/**
 * ring_client_init() - check and map what RING_OPENED brought
 * @fds: taken, also on failure
 *
 * Return: 0; KVD_E_PROTO: not what the contract promises; -errno.
 */
int ring_client_init(struct ring_client *r, const struct kvd_ring_geometry *geometry,
		     const int fds[KVD_RING_N_FDS]);

/* Unmap, close. Idempotent, and fine on a zeroed struct. */
void ring_client_deinit(struct ring_client *r);

/* In a child after fork(): close descriptors, leave the address space alone. */
void ring_client_forget(struct ring_client *r);

/* SQEs that fit now. */
uint32_t ring_client_sq_space(struct ring_client *r);

/* Publish one SQE; its seq is ignored. Return: RING_OK, RING_FULL. */
enum ring_status ring_client_put(struct ring_client *r, const struct kvd_sqe *sqe);

/* After a batch of puts: wake the daemon if it sleeps. */
void ring_client_kick(struct ring_client *r);

/*
 * Copy the next CQE out and free its slot. What comes out is whole, also while the daemon
 * wipes the ring. Return: RING_OK, _EMPTY, _GONE, _FAULT.
 */
enum ring_status ring_client_take(struct ring_client *r, struct kvd_cqe *ret_cqe);

/* Has the daemon wiped it? Then inputs are no longer there either. */
bool ring_client_wiped(const struct ring_client *r);

/* Is there a CQE? One load; for spinning. */
bool ring_client_pending(const struct ring_client *r);

/**
 * ring_client_arm() - before sleeping on fd_complete
 * @want_sq: also wake when the full SQ has room
 *
 * From here on the daemon signals. What came before it may not have: look once
 * more with ring_client_pending() or ring_client_sq_space(), then sleep.
 */
void ring_client_arm(struct ring_client *r, bool want_sq);

/* After waking. Empties the doorbell if @drain. */
void ring_client_disarm(struct ring_client *r, bool drain);

#endif
