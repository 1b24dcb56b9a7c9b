/* SPDX-License-Identifier: MIT */
/*
 * The daemon's side of a ring. Whatever the client writes, the only addresses
 * formed here are slots under private masks and arena ranges that were checked;
 * each shared word is loaded once per decision.
 *
 * The daemon's loop, for each ring that was signalled or is still warm:
 *
 *     ring_daemon_disarm()               when its doorbell was signalled
 *     ring_daemon_take() until not OK    bounded per tick, so all get a turn
 *     ring_daemon_post() what is ready   until FULL
 *     ring_daemon_notify()               once per tick, after the posts
 *
 * and when it wants to stop watching:
 *
 *     ring_daemon_arm()                  BUSY: there is work, go round again
 *
 * An armed ring costs nothing until its submit doorbell is signalled. New rings are armed.
 */
#include "ipc/ring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"

/* The slots behind the one at hand are on their way while it is filled. More of them would be
 * taken from under the other side's eyes. */
#define SLOTS_AHEAD 2

/* Signals that are timed exactly after a slow one, and how many of them may be slow. */
#define N_WATCHED 256
#define MAX_SLOW  2

/* Publish a position at the latest when this many slots are unaccounted for. */
static uint64_t lazy_limit(uint32_t entries)
{
	return entries >= 4 ? entries / 4 : 1;
}

int ring_daemon_init(struct ring_daemon *r, uint32_t sq_entries, uint32_t cq_entries,
		     uint64_t in_bytes, uint64_t out_bytes)
{
	struct ring_daemon t = {
		.fd_submit = -1,
		.fd_complete = {-1, -1},
		.c2d = REGION_NULL,
		.d2c = REGION_NULL,
	};
	int rc;

	rc = ring_geometry_init(&t.geometry, sq_entries, cq_entries, in_bytes, out_bytes);
	if (rc < 0)
		return rc;
	rc = region_init(&t.c2d, REGION_C2D, t.geometry.c2d_bytes);
	if (rc >= 0)
		rc = region_init(&t.d2c, REGION_D2C, t.geometry.d2c_bytes);
	if (rc >= 0) {
		rc = region_lend(&t.d2c);
		/* Without /proc the client gets the daemon's own, which cannot be watched. */
		if (rc == -ENOENT)
			rc = 0;
	}
	if (rc >= 0)
		rc = doorbell_init_submit(&t.fd_submit);
	if (rc >= 0)
		rc = doorbell_init_complete(t.fd_complete);
	if (rc >= 0) {
		t.out_touched = calloc(out_bytes / 4096 / 64 + 1, sizeof(*t.out_touched));
		rc = t.out_touched ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		ring_daemon_deinit(&t);
		return rc;
	}

	t.client = t.c2d.map;
	t.daemon = t.d2c.map;
	t.sq = (void *)((uint8_t *)t.c2d.map + t.geometry.sq_off);
	t.cq = (void *)((uint8_t *)t.d2c.map + t.geometry.cq_off);
	t.in = (uint8_t *)t.c2d.map + t.geometry.in_off;
	t.out = (uint8_t *)t.d2c.map + t.geometry.out_off;
	t.sq_entries = sq_entries;
	t.cq_entries = cq_entries;

	t.daemon->magic = KVD_RING_MAGIC;
	t.daemon->version = KVD_ABI_VERSION;
	t.daemon->geometry = t.geometry;
	t.flags = KVD_DAEMON_NEED_WAKEUP;
	shm_store_u32(&t.daemon->flags, t.flags);
	*r = t;
	return 0;
}

void ring_daemon_deinit(struct ring_daemon *r)
{
	/* One that was not made yet has nothing to scrub. */
	if (r->out_touched)
		(void)ring_daemon_scrub(r, UINT64_MAX);
	ring_daemon_leave(r);
}

void ring_daemon_leave(struct ring_daemon *r)
{
	if (r->c2d.map || r->d2c.map) {
		region_deinit(&r->c2d);
		region_deinit(&r->d2c);
		fd_close(r->fd_submit);
		fd_close(r->fd_complete[0]);
		fd_close(r->fd_complete[1]);
	}
	free(r->out_touched);
	*r = (struct ring_daemon){
		.fd_submit = -1,
		.fd_complete = {-1, -1},
		.c2d = REGION_NULL,
		.d2c = REGION_NULL,
	};
}

void ring_daemon_get_fds(const struct ring_daemon *r, int ret_fds[KVD_RING_N_FDS])
{
	ret_fds[KVD_RING_FD_C2D] = r->c2d.fd;
	ret_fds[KVD_RING_FD_D2C] = r->d2c.fd;
	ret_fds[KVD_RING_FD_SUBMIT] = r->fd_submit;
	ret_fds[KVD_RING_FD_COMPLETE] = r->fd_complete[0];
}

void ring_daemon_close_files(struct ring_daemon *r)
{
	r->c2d.fd = fd_close(r->c2d.fd);
	r->d2c.fd = fd_close(r->d2c.fd);
}

static void set_flags(struct ring_daemon *r, uint32_t flags)
{
	if (r->flags == flags)
		return;
	r->flags = flags;
	shm_store_u32(&r->daemon->flags, flags);
}

static void publish_sq(struct ring_daemon *r)
{
	if (r->sq_published == r->sq_pos)
		return;
	r->sq_published = r->sq_pos;
	shm_store_release_u64(&r->daemon->sq_pos, r->sq_pos);
}

/* Learn how far the client has read. False if it claims the impossible. */
static bool refresh_cq(struct ring_daemon *r)
{
	uint64_t pos = shm_load_acquire_u64(&r->client->cq_pos);

	/* Unsigned differences: going back shows as a huge step forward. */
	if (pos - r->cq_seen > r->cq_pos - r->cq_seen) {
		r->head = RING_HEAD_FAULT;
		return false;
	}
	r->cq_seen = pos;
	return true;
}

static uint32_t cached_space(const struct ring_daemon *r)
{
	uint64_t used = r->cq_pos - r->cq_seen;

	assert(used <= r->cq_entries);
	return r->cq_entries - (uint32_t)used;
}

/*
 * Make sure of one free CQ slot. CQ_FULL is set before the last look: either
 * that look sees the client's newer position, or the client, which publishes its
 * position before it loads the flag, sees the flag and signals.
 */
static enum ring_status need_space(struct ring_daemon *r)
{
	if (cached_space(r) == 0) {
		if (!refresh_cq(r))
			return RING_FAULT;
		if (cached_space(r) == 0) {
			set_flags(r, r->flags | KVD_DAEMON_CQ_FULL);
			shm_full_barrier();
			if (!refresh_cq(r))
				return RING_FAULT;
			if (cached_space(r) == 0)
				return RING_FULL;
		}
	}
	set_flags(r, r->flags & ~KVD_DAEMON_CQ_FULL);
	return RING_OK;
}

/* What the seq of the SQ's next slot says: an unpublished slot holds that of one lap ago. */
enum sq_word { SQ_LAP_AGO, SQ_PUBLISHED, SQ_OTHER, SQ_N_WORDS };

static enum sq_word sq_word(const struct ring_daemon *r, uint64_t seq)
{
	uint64_t next = r->sq_pos + 1;

	if (seq == next)
		return SQ_PUBLISHED;
	if (seq == (next > r->sq_entries ? next - r->sq_entries : 0))
		return SQ_LAP_AGO;
	return SQ_OTHER;
}

/*
 * All transitions of a look at the next slot. An entry that was seen cannot be taken back: it
 * may be why CQ_FULL is set, and the client's next signal stands for it.
 */
static const struct sq_step {
	enum ring_head head;
	enum ring_status status;
} sq_steps[RING_N_HEADS][SQ_N_WORDS] = {
	[RING_HEAD_UNSEEN] =
		{
			[SQ_LAP_AGO] = {RING_HEAD_UNSEEN, RING_EMPTY},
			[SQ_PUBLISHED] = {RING_HEAD_SEEN, RING_OK},
			[SQ_OTHER] = {RING_HEAD_FAULT, RING_FAULT},
		},
	[RING_HEAD_SEEN] =
		{
			[SQ_LAP_AGO] = {RING_HEAD_FAULT, RING_FAULT},
			[SQ_PUBLISHED] = {RING_HEAD_SEEN, RING_OK},
			[SQ_OTHER] = {RING_HEAD_FAULT, RING_FAULT},
		},
	[RING_HEAD_FAULT] =
		{
			[SQ_LAP_AGO] = {RING_HEAD_FAULT, RING_FAULT},
			[SQ_PUBLISHED] = {RING_HEAD_FAULT, RING_FAULT},
			[SQ_OTHER] = {RING_HEAD_FAULT, RING_FAULT},
		},
};

static const struct kvd_sqe *sq_slot(const struct ring_daemon *r)
{
	return &r->sq[r->sq_pos & (r->sq_entries - 1)];
}

static enum ring_status sq_look(struct ring_daemon *r)
{
	enum sq_word word = sq_word(r, shm_load_acquire_u64(&sq_slot(r)->seq));
	struct sq_step step = sq_steps[r->head][word];

	r->head = step.head;
	return step.status;
}

bool ring_daemon_pending(const struct ring_daemon *r)
{
	enum sq_word word = sq_word(r, shm_load_u64(&sq_slot(r)->seq));

	return sq_steps[r->head][word].status != RING_EMPTY;
}

/* The slot's words in order, seq apart; each is loaded exactly once. */
static void copy_in(struct kvd_sqe *dst, const struct kvd_sqe *slot)
{
	const uint64_t *from = (const void *)slot;
	uint64_t word;

	for (size_t i = 1; i < sizeof(*dst) / sizeof(word); i++) {
		word = shm_load_u64(&from[i]);
		memcpy((uint8_t *)dst + i * sizeof(word), &word, sizeof(word));
	}
}

static void copy_out(struct kvd_cqe *slot, const struct kvd_cqe *src)
{
	uint64_t *to = (void *)slot->u.raw, word;

	shm_store_u64(&slot->user_data, src->user_data);
	shm_store_u32((uint32_t *)&slot->res, (uint32_t)src->res);
	shm_store_u32(&slot->flags, src->flags);
	for (size_t i = 0; i < sizeof(slot->u.raw) / sizeof(word); i++) {
		memcpy(&word, src->u.raw + i * sizeof(word), sizeof(word));
		shm_store_u64(&to[i], word);
	}
}

enum ring_status ring_daemon_take(struct ring_daemon *r, struct kvd_sqe *ret_sqe)
{
	enum ring_status st = sq_look(r);

	if (st == RING_OK)
		st = need_space(r);
	if (st != RING_OK)
		return st;

	copy_in(ret_sqe, sq_slot(r));
	ret_sqe->seq = ++r->sq_pos;
	r->head = RING_HEAD_UNSEEN;
	r->sq_taken = true;
	if (r->sq_pos - r->sq_published >= lazy_limit(r->sq_entries))
		publish_sq(r);
	return RING_OK;
}

enum ring_status ring_daemon_post(struct ring_daemon *r, const struct kvd_cqe *cqe)
{
	struct kvd_cqe *slot = &r->cq[r->cq_pos & (r->cq_entries - 1)];
	enum ring_status st;

	if (r->head == RING_HEAD_FAULT)
		return RING_FAULT;
	st = need_space(r);
	if (st != RING_OK)
		return st;

	shm_prefetch_write(&r->cq[(r->cq_pos + SLOTS_AHEAD) & (r->cq_entries - 1)]);
	copy_out(slot, cqe);
	shm_store_release_u64(&slot->seq, ++r->cq_pos);
	r->cq_posted = true;
	return RING_OK;
}

/*
 * All who wait for the pipe are looked at inside of write(), with interrupts off: a client that
 * hangs it into sets of epoll(7) a million times has the daemon pay for that. A signal may be slow
 * because this thread lost its CPU; so the first only has the next ones timed exactly.
 */
static enum ring_status ring_doorbell(struct ring_daemon *r)
{
	uint64_t took;

	if (r->rung && !doorbell_heard(r->fd_complete[0]))
		return RING_OK;
	r->rung = true;
	took = doorbell_signal_complete(r->fd_complete[1], r->n_watched);
	if (took > RING_SLOW_NS && r->n_watched)
		r->n_slow++;
	if (took > RING_SLOW_NS)
		r->n_watched = N_WATCHED;
	else if (r->n_watched && !--r->n_watched)
		r->n_slow = 0;
	if (r->n_slow < MAX_SLOW)
		return RING_OK;
	r->head = RING_HEAD_FAULT;
	return RING_FAULT;
}

bool ring_daemon_is_slow(const struct ring_daemon *r)
{
	return r->n_slow >= MAX_SLOW;
}

enum ring_status ring_daemon_notify(struct ring_daemon *r)
{
	bool taken = r->sq_taken, posted = r->cq_posted, wake;
	uint32_t flags;

	/* Pairs with the client's barrier between setting a flag and looking. */
	if (posted || taken)
		shm_full_barrier();
	flags = shm_load_u32(&r->client->flags);
	wake = posted && (flags & KVD_CLIENT_NEED_WAKEUP);
	if ((flags & KVD_CLIENT_SQ_FULL) && (taken || r->sq_pos != r->sq_published)) {
		publish_sq(r);
		wake = true;
	}
	r->sq_taken = false;
	r->cq_posted = false;
	if (r->head == RING_HEAD_FAULT)
		return RING_FAULT;
	return wake ? ring_doorbell(r) : RING_OK;
}

/*
 * While CQ_FULL is set only room in the CQ counts as work, since no SQE would be taken: a client
 * that stops reading while its SQ is full does not keep the loop awake. Room is said once: it
 * takes CQ_FULL back, and what is done with it sets it again.
 *
 *     CQ_FULL   CQ        SQ's next slot   answer
 *     set       no room   not looked at    OK
 *     set       room      not looked at    BUSY, CQ_FULL is clear
 *     clear     -         empty            OK
 *     clear     -         published        BUSY
 *     any       impossible position, or a slot as by sq_steps: FAULT
 */
enum ring_status ring_daemon_arm(struct ring_daemon *r)
{
	enum ring_status st;

	if (r->head == RING_HEAD_FAULT)
		return RING_FAULT;
	publish_sq(r);
	set_flags(r, r->flags | KVD_DAEMON_NEED_WAKEUP);
	shm_full_barrier();
	if ((shm_load_u32(&r->client->flags) & KVD_CLIENT_SQ_FULL) &&
	    ring_doorbell(r) == RING_FAULT)
		return RING_FAULT;

	if (r->flags & KVD_DAEMON_CQ_FULL) {
		if (!refresh_cq(r))
			return RING_FAULT;
		st = cached_space(r) == 0 ? RING_EMPTY : RING_OK;
	} else {
		st = sq_look(r);
	}
	if (st == RING_EMPTY)
		return RING_OK;
	if (st == RING_FAULT)
		return RING_FAULT;
	set_flags(r, r->flags & ~(KVD_DAEMON_NEED_WAKEUP | KVD_DAEMON_CQ_FULL));
	return RING_BUSY;
}

void ring_daemon_disarm(struct ring_daemon *r)
{
	set_flags(r, r->flags & ~KVD_DAEMON_NEED_WAKEUP);
}

const void *ring_daemon_in(const struct ring_daemon *r, uint64_t off, uint64_t len)
{
	return range_ok(off, len, r->geometry.in_bytes) ? r->in + off : NULL;
}
