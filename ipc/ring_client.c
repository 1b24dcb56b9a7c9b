/* SPDX-License-Identifier: MIT */
/*
 * The client's side of a ring. The daemon is trusted to serve, but a corrupted
 * word must not lead this side outside its mappings either.
 */
#include "ipc/ring.h"

#include <errno.h>
#include <string.h>

#include "ipc/barrier.h"
#include "ipc/base.h"
#include "ipc/doorbell.h"

/* The slots behind the one at hand are on their way while it is filled. More of them would be
 * taken from under the other side's eyes. */
#define SLOTS_AHEAD 2

static uint64_t lazy_limit(uint32_t entries)
{
	return entries >= 4 ? entries / 4 : 1;
}

int ring_client_init(struct ring_client *r, const struct kvd_ring_geometry *geometry,
		     const int fds[KVD_RING_N_FDS])
{
	struct ring_client t = {
		.fd_submit = fds[KVD_RING_FD_SUBMIT],
		.fd_complete = fds[KVD_RING_FD_COMPLETE],
		.c2d = REGION_NULL,
		.d2c = REGION_NULL,
		.geometry = *geometry,
	};
	int rc;

	if (!ring_geometry_ok(geometry)) {
		fd_close(fds[KVD_RING_FD_C2D]);
		fd_close(fds[KVD_RING_FD_D2C]);
		rc = KVD_E_PROTO;
		goto fail;
	}
	rc = region_init_peer(&t.c2d, REGION_C2D, fds[KVD_RING_FD_C2D],
			      geometry->c2d_bytes);
	if (rc < 0) {
		fd_close(fds[KVD_RING_FD_D2C]);
		goto fail;
	}
	rc = region_init_peer(&t.d2c, REGION_D2C, fds[KVD_RING_FD_D2C],
			      geometry->d2c_bytes);
	if (rc < 0)
		goto fail;
	/* The mappings are all that is needed from here on. */
	t.c2d.fd = fd_close(t.c2d.fd);
	t.d2c.fd = fd_close(t.d2c.fd);

	t.client = t.c2d.map;
	t.daemon = t.d2c.map;
	t.sq = (void *)((uint8_t *)t.c2d.map + geometry->sq_off);
	t.cq = (const void *)((const uint8_t *)t.d2c.map + geometry->cq_off);
	t.in = (uint8_t *)t.c2d.map + geometry->in_off;
	t.out = (const uint8_t *)t.d2c.map + geometry->out_off;
	t.sq_entries = geometry->sq_entries;
	t.cq_entries = geometry->cq_entries;
	if (t.daemon->magic != KVD_RING_MAGIC || t.daemon->version != KVD_ABI_VERSION) {
		rc = KVD_E_PROTO;
		goto fail;
	}
	*r = t;
	return 0;

fail:
	region_deinit(&t.c2d);
	region_deinit(&t.d2c);
	fd_close(t.fd_submit);
	fd_close(t.fd_complete);
	return rc;
}

static void close_doorbells(struct ring_client *r)
{
	fd_close(r->fd_submit);
	fd_close(r->fd_complete);
	*r = (struct ring_client){
		.fd_submit = -1,
		.fd_complete = -1,
		.c2d = REGION_NULL,
		.d2c = REGION_NULL,
	};
}

void ring_client_deinit(struct ring_client *r)
{
	if (!r->client)
		return;
	region_deinit(&r->c2d);
	region_deinit(&r->d2c);
	close_doorbells(r);
}

void ring_client_forget(struct ring_client *r)
{
	if (!r->client)
		return;
	region_forget(&r->c2d);
	region_forget(&r->d2c);
	close_doorbells(r);
}

static void set_flags(struct ring_client *r, uint32_t flags)
{
	if (r->flags == flags)
		return;
	r->flags = flags;
	shm_store_u32(&r->client->flags, flags);
}

uint32_t ring_client_sq_space(struct ring_client *r)
{
	uint64_t pos = shm_load_acquire_u64(&r->daemon->sq_pos);

	/* Anything but progress within what was submitted is ignored. */
	if (pos - r->sq_seen <= r->sq_pos - r->sq_seen)
		r->sq_seen = pos;
	return r->sq_entries - (uint32_t)(r->sq_pos - r->sq_seen);
}

static void copy_out(struct kvd_sqe *slot, const struct kvd_sqe *src)
{
	shm_store_u64(&slot->user_data, src->user_data);
	shm_store_u8(&slot->opcode, src->opcode);
	shm_store_u8(&slot->flags, src->flags);
	shm_store_u16(&slot->input, src->input);
	shm_store_u32(&slot->in_len, src->in_len);
	shm_store_u64(&slot->in_off, src->in_off);
	shm_store_u64(&slot->out_off, src->out_off);
	shm_store_u32(&slot->out_len, src->out_len);
	shm_store_u32(&slot->params_len, src->params_len);
	shm_store_u64(&slot->params_off, src->params_off);
	shm_store_u64(&slot->arg, src->arg);
}

enum ring_status ring_client_put(struct ring_client *r, const struct kvd_sqe *sqe)
{
	struct kvd_sqe *slot = &r->sq[r->sq_pos & (r->sq_entries - 1)];

	if (r->sq_pos - r->sq_seen >= r->sq_entries && ring_client_sq_space(r) == 0)
		return RING_FULL;

	shm_prefetch_write(&r->sq[(r->sq_pos + SLOTS_AHEAD) & (r->sq_entries - 1)]);
	copy_out(slot, sqe);
	shm_store_release_u64(&slot->seq, ++r->sq_pos);
	return RING_OK;
}

void ring_client_kick(struct ring_client *r)
{
	/* Pairs with the daemon's barrier between NEED_WAKEUP and its last look. */
	shm_full_barrier();
	if (shm_load_u32(&r->daemon->flags) & KVD_DAEMON_NEED_WAKEUP)
		doorbell_signal_submit(r->fd_submit);
}

/* Tell the daemon how far the CQ was read; signal it if it waits for that. */
static void publish_cq(struct ring_client *r)
{
	if (r->cq_published == r->cq_pos)
		return;
	r->cq_published = r->cq_pos;
	shm_store_release_u64(&r->client->cq_pos, r->cq_pos);
	/* Pairs with the daemon's barrier between CQ_FULL and its last look. */
	shm_full_barrier();
	if (shm_load_u32(&r->daemon->flags) & KVD_DAEMON_CQ_FULL)
		doorbell_signal_submit(r->fd_submit);
}

static bool cq_full(const struct ring_client *r)
{
	return shm_load_u32(&r->daemon->flags) & KVD_DAEMON_CQ_FULL;
}

bool ring_client_pending(const struct ring_client *r)
{
	const struct kvd_cqe *slot = &r->cq[r->cq_pos & (r->cq_entries - 1)];

	return shm_load_u64(&slot->seq) == r->cq_pos + 1;
}

enum ring_status ring_client_take(struct ring_client *r, struct kvd_cqe *ret_cqe)
{
	const struct kvd_cqe *slot = &r->cq[r->cq_pos & (r->cq_entries - 1)];
	uint64_t next = r->cq_pos + 1, seq, words[8];
	const uint64_t *from = (const void *)slot;
	uint8_t *to = (void *)ret_cqe;
	int i;

	seq = shm_load_acquire_u64(&slot->seq);
	if (seq != next) {
		if (seq != (next > r->cq_entries ? next - r->cq_entries : 0))
			return seq == 0 ? RING_GONE : RING_FAULT;
		/* Nobody may come back soon: settle accounts if it matters. */
		if (r->cq_published != r->cq_pos && (r->flags || cq_full(r)))
			publish_cq(r);
		return RING_EMPTY;
	}

	words[0] = seq;
#pragma GCC unroll 8
	for (i = 1; i < 8; i++)
		words[i] = shm_load_acquire_u64(&from[i]);
	/* Acquired, these words are no newer than this look: not from after a wipe. */
	seq = shm_load_u64(&slot->seq);
	if (seq != next)
		return seq == 0 ? RING_GONE : RING_FAULT;
#pragma GCC unroll 8
	for (i = 0; i < 8; i++)
		memcpy(to + 8 * i, &words[i], sizeof(words[i]));
	r->cq_pos++;
	if (r->cq_pos - r->cq_published >= lazy_limit(r->cq_entries) || cq_full(r))
		publish_cq(r);
	return RING_OK;
}

bool ring_client_wiped(const struct ring_client *r)
{
	return shm_load_u32(&r->daemon->magic) != KVD_RING_MAGIC;
}

void ring_client_arm(struct ring_client *r, bool want_sq)
{
	uint32_t flags = KVD_CLIENT_NEED_WAKEUP;

	if (want_sq)
		flags |= KVD_CLIENT_SQ_FULL;
	publish_cq(r);
	set_flags(r, flags);
	/* Pairs with the daemon's barrier between publishing and its flag load. */
	shm_full_barrier();
	if (cq_full(r))
		doorbell_signal_submit(r->fd_submit);
}

void ring_client_disarm(struct ring_client *r, bool drain)
{
	set_flags(r, 0);
	if (drain)
		doorbell_clear_complete(r->fd_complete);
}
