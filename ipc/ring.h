/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_RING_H
#define KVD_IPC_RING_H

/*
 * A ring as each side sees it: private positions and bounds over the shared pages of
 * <kvd/abi.h>. Where memory is touched is never decided by a word read back from them. One
 * thread at a time: the loop in the daemon, the caller in the client.
 *
 * Relies on region.c, doorbell.c and barrier.h. Knows no opcode, copies no input; a CQE that does
 * not fit is the caller's to keep. A fault is final; all functions stay safe to call.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>
#include <kvd/proto.h>

#include "ipc/region.h"

/*
 * Conditions; none is an error of the caller. FULL: no room to post, or to answer what would be
 * taken; BUSY: do not sleep; FAULT: the peer broke the contract; GONE: the daemon has wiped the
 * ring, its doorbell will hang up.
 */
enum ring_status {
	RING_OK = 0,
	RING_EMPTY = 1,
	RING_FULL = 2,
	RING_BUSY = 3,
	RING_FAULT = 4,
	RING_GONE = 5,
};

/* Return: 0; -EINVAL: a count is no power of two, an arena no multiple of 4096, or anything is
 * above the limits of <kvd/abi.h>. */
int ring_geometry_init(struct kvd_ring_geometry *ret, uint32_t sq_entries,
		       uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes);

/* Do all parts of a received geometry lie inside their files? */
bool ring_geometry_ok(const struct kvd_ring_geometry *g);

/* --- the daemon's side; thread: loop ------------------------------------------------- */

/* What the daemon knows of the SQE that is next: nothing yet; that it was published; or the ring
 * has a fault, here or elsewhere, and nothing else counts any more. */
enum ring_head {
	RING_HEAD_UNSEEN,
	RING_HEAD_SEEN,
	RING_HEAD_FAULT,
	RING_N_HEADS,
};

/**
 * struct ring_daemon - consumer of an SQ, producer of a CQ
 * @sq_pos: next SQE to take, @sq_published as the client knows it
 * @cq_pos: next CQE to post
 * @cq_seen: how far the client had consumed when last looked
 * @flags: private copy of the flags this side publishes
 * @sq_taken, @cq_posted: SQEs, CQEs since the last notify
 * @rung: the doorbell was signalled, and not seen empty since
 * @n_watched: signals of the doorbell that are still timed exactly, since one was slow
 * @n_slow: of those, slow ones
 * @out_touched: a bit for each page of the output arena that was handed out
 * @scrub_pos: how far ring_daemon_scrub() is
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
	bool rung;
	uint16_t n_watched;
	uint16_t n_slow;
	enum ring_head head;
	struct kvd_client_page *client;
	struct kvd_daemon_page *daemon;
	uint8_t *in;
	uint8_t *out;
	uint64_t *out_touched;
	uint64_t scrub_pos;
	int fd_submit;
	int fd_complete[2];
	struct region c2d;
	struct region d2c;
	struct kvd_ring_geometry geometry;
};

/* Sizes as in RING_OPEN, unchecked. Return: 0; -EINVAL as ring_geometry_init(); -EMFILE, -ENOMEM
 * and other -errno, with nothing left to deinit. */
int ring_daemon_init(struct ring_daemon *r, uint32_t sq_entries, uint32_t cq_entries,
		     uint64_t in_bytes, uint64_t out_bytes);

/* Zero what can still be read in both files, some @budget bytes at once. Nothing is taken or posted
 * from then on. Return: whether all is done. */
bool ring_daemon_scrub(struct ring_daemon *r, uint64_t budget);

/* Scrub what is left of both files, unmap, close. Idempotent, and fine on a zeroed struct. */
void ring_daemon_deinit(struct ring_daemon *r);
/* The same at the end of the daemon: the client goes on with what is in the files. */
void ring_daemon_leave(struct ring_daemon *r);

/* The descriptors of RING_OPENED, in order; still owned by the ring. */
void ring_daemon_get_fds(const struct ring_daemon *r, int ret_fds[KVD_RING_N_FDS]);
/* After they were sent: close the two memory files. */
void ring_daemon_close_files(struct ring_daemon *r);

/* Watched for signals. */
static inline int ring_daemon_doorbell(const struct ring_daemon *r)
{
	return r->fd_submit;
}

/* Is there an SQE, or a fault? One load. */
bool ring_daemon_pending(const struct ring_daemon *r);

/* Copy the next SQE out. FULL: the CQ has no room for an answer; CQ_FULL is set, and the client
 * signals the doorbell when it has made room. FAULT: an impossible entry, or one that was there
 * before and is not any more. Return: RING_OK, _EMPTY, _FULL, _FAULT. */
enum ring_status ring_daemon_take(struct ring_daemon *r, struct kvd_sqe *ret_sqe);

/* Will the client signal when it has made room? Until the next take or post. */
static inline bool ring_daemon_cq_full(const struct ring_daemon *r)
{
	return r->flags & KVD_DAEMON_CQ_FULL;
}

/* Publish one CQE, whose seq is ignored, without waking the client. FULL: it was not posted,
 * CQ_FULL is set; try again after the doorbell. Return: RING_OK, _FULL, _FAULT. */
enum ring_status ring_daemon_post(struct ring_daemon *r, const struct kvd_cqe *cqe);

/* Wake the client if it sleeps and something was posted, or if it waits for room in the SQ and
 * something was taken; but not again before it has emptied its doorbell. Cheap otherwise. FAULT: as
 * always, or the doorbell was slow. Return: RING_OK, _FAULT. */
enum ring_status ring_daemon_notify(struct ring_daemon *r);

/* A signal may take RING_SLOW_NS. Twice more within a few hundred is a fault. */
#define RING_SLOW_NS UINT64_C(1000000)

/* Is that the fault? */
bool ring_daemon_is_slow(const struct ring_daemon *r);

/* Stop watching the ring until its doorbell is signalled. Return: RING_OK: armed; RING_BUSY: not
 * armed, as there is work: a take or a post gets on, or the client has acted since; RING_FAULT. */
enum ring_status ring_daemon_arm(struct ring_daemon *r);

/* The doorbell was signalled, armed or not: watch the ring again. Does not empty it, as a watch for
 * signals needs no read; one for readability does by doorbell_clear_submit(). */
void ring_daemon_disarm(struct ring_daemon *r);

/* @off, @len: unchecked. The bytes may change at any moment: copy, then validate the copy. Return:
 * NULL if they are not inside the input arena. */
const void *ring_daemon_in(const struct ring_daemon *r, uint64_t off, uint64_t len);

/* The client can read the bytes, only the daemon can write them; asked for where they are written,
 * as they count as used. Return: NULL if they are not inside the output arena, or @off is no
 * multiple of 4; ring_daemon_out_ok() only looks. */
bool ring_daemon_out_ok(const struct ring_daemon *r, uint64_t off, uint64_t len);
void *ring_daemon_out(struct ring_daemon *r, uint64_t off, uint64_t len);

/* --- the client's side; thread: the ring's owner ------------------------------------- */

/**
 * struct ring_client - producer of an SQ, consumer of a CQ
 * @sq_pos: next SQE to write
 * @sq_seen: how far the daemon had taken when last looked
 * @cq_pos: next CQE to take, @cq_published as the daemon knows it
 * @flags: private copy of the flags this side publishes
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

/* Check and map what RING_OPENED brought; @fds are taken, also on failure. Return: 0; KVD_E_PROTO:
 * not what the contract promises; -errno. */
int ring_client_init(struct ring_client *r, const struct kvd_ring_geometry *geometry,
		     const int fds[KVD_RING_N_FDS]);

/* Idempotent, and fine on a zeroed struct. */
void ring_client_deinit(struct ring_client *r);

/* In a child after fork(): close descriptors, leave the address space alone. */
void ring_client_forget(struct ring_client *r);

uint32_t ring_client_sq_space(struct ring_client *r);

/* Publish one SQE; its seq is ignored. Return: RING_OK, RING_FULL. */
enum ring_status ring_client_put(struct ring_client *r, const struct kvd_sqe *sqe);

/* After a batch of puts: wake the daemon if it sleeps. */
void ring_client_kick(struct ring_client *r);

/* Copy the next CQE out, whole even while the daemon wipes the ring, and free its slot. Return:
 * RING_OK, _EMPTY, _GONE, _FAULT. */
enum ring_status ring_client_take(struct ring_client *r, struct kvd_cqe *ret_cqe);

/* Has the daemon wiped it? Inputs are gone as well. */
bool ring_client_wiped(const struct ring_client *r);

/* Is there a CQE? One load. */
bool ring_client_pending(const struct ring_client *r);

/* From here on the daemon signals fd_complete, with @want_sq also when the full SQ has room. Before
 * sleeping look again, by ring_client_pending() or ring_client_sq_space(). */
void ring_client_arm(struct ring_client *r, bool want_sq);

/* After waking; @drain empties the doorbell. */
void ring_client_disarm(struct ring_client *r, bool drain);

#endif
