/* SPDX-License-Identifier: MIT */
/*
 * Geometry: which numbers make a ring, on both sides.
 */
#include "ipc/ring.h"

#include <errno.h>
#include <string.h>

#include "ipc/abi_assert.h"
#include "ipc/base.h"

int ring_geometry_init(struct kvd_ring_geometry *ret, uint32_t sq_entries,
		       uint32_t cq_entries, uint64_t in_bytes, uint64_t out_bytes)
{
	struct kvd_ring_geometry g = {0};

	if (!is_power_of_two(sq_entries) || sq_entries > KVD_MAX_SQ_ENTRIES ||
	    !is_power_of_two(cq_entries) || cq_entries > KVD_MAX_CQ_ENTRIES)
		return -EINVAL;
	if (in_bytes % 4096 != 0 || in_bytes > KVD_MAX_ARENA_BYTES ||
	    out_bytes % 4096 != 0 || out_bytes > KVD_MAX_ARENA_BYTES)
		return -EINVAL;

	/* Nothing wraps: all terms are bounded by the limits above. */
	g.sq_entries = sq_entries;
	g.cq_entries = cq_entries;
	g.sq_off = sizeof(struct kvd_client_page);
	g.cq_off = sizeof(struct kvd_daemon_page);
	g.in_off = align_up(g.sq_off + sq_entries * sizeof(struct kvd_sqe), 4096);
	g.in_bytes = in_bytes;
	g.out_off = align_up(g.cq_off + cq_entries * sizeof(struct kvd_cqe), 4096);
	g.out_bytes = out_bytes;
	g.c2d_bytes = g.in_off + in_bytes;
	g.d2c_bytes = g.out_off + out_bytes;
	*ret = g;
	return 0;
}

static bool part_ok(uint64_t off, uint64_t len, uint64_t align, uint64_t file)
{
	return off >= 4096 && off % align == 0 && range_ok(off, len, file);
}

bool ring_geometry_ok(const struct kvd_ring_geometry *g)
{
	const uint64_t max_file = 2 * (uint64_t)KVD_MAX_ARENA_BYTES;

	return is_power_of_two(g->sq_entries) && g->sq_entries <= KVD_MAX_SQ_ENTRIES &&
	       is_power_of_two(g->cq_entries) && g->cq_entries <= KVD_MAX_CQ_ENTRIES &&
	       g->c2d_bytes % 4096 == 0 && g->c2d_bytes <= max_file &&
	       g->d2c_bytes % 4096 == 0 && g->d2c_bytes <= max_file &&
	       part_ok(g->sq_off, g->sq_entries * sizeof(struct kvd_sqe), 64,
		       g->c2d_bytes) &&
	       part_ok(g->cq_off, g->cq_entries * sizeof(struct kvd_cqe), 64,
		       g->d2c_bytes) &&
	       part_ok(g->in_off, g->in_bytes, 4096, g->c2d_bytes) &&
	       part_ok(g->out_off, g->out_bytes, 4096, g->d2c_bytes);
}
