/* SPDX-License-Identifier: MIT */
/*
 * The end of a ring, as a client may hold its mappings for ever: what was written is zeroed, and
 * nothing else is touched, since a first touch costs a page that is the daemon's until the client
 * lets go of it. One bit for each page of the output arena says which were handed out.
 *
 *     D2C  | page, positions | CQ, as far as it was used | out: pages with their bit |
 *     C2D  freed, as a whole
 *
 * @scrub_pos goes through both files, D2C first: by its magic a client tells whether its inputs
 * are still there.
 */
#include "ipc/ring.h"

#include "ipc/base.h"

#define PAGE 4096u

/* C2D is freed by the piece; a hole where nothing was costs next to nothing. */
#define PIECE     (1u << 20)
#define PIECE_PAY (PIECE / 16)

bool ring_daemon_out_ok(const struct ring_daemon *r, uint64_t off, uint64_t len)
{
	return off % 4 == 0 && range_ok(off, len, r->geometry.out_bytes);
}

void *ring_daemon_out(struct ring_daemon *r, uint64_t off, uint64_t len)
{
	if (!ring_daemon_out_ok(r, off, len))
		return NULL;
	for (uint64_t page = off / PAGE; len && page <= (off + len - 1) / PAGE; page++)
		r->out_touched[page / 64] |= UINT64_C(1) << page % 64;
	return r->out + off;
}

/* The first page from @page on that was handed out, or the number of pages. */
static uint64_t next_touched(const struct ring_daemon *r, uint64_t page)
{
	uint64_t n = r->geometry.out_bytes / PAGE, word;

	while (page < n) {
		word = r->out_touched[page / 64] >> page % 64;
		if (word)
			return page + (uint64_t)__builtin_ctzll(word);
		page = (page / 64 + 1) * 64;
	}
	return n;
}

/* A piece of D2C that has to be zeroed, at or after @scrub_pos, which moves there. Return: its
 * length; 0: there is none. */
static uint64_t next_dirty(struct ring_daemon *r)
{
	const struct kvd_ring_geometry *g = &r->geometry;
	uint64_t n_cqes = r->cq_pos < r->cq_entries ? r->cq_pos : r->cq_entries;
	uint64_t head = g->cq_off + n_cqes * sizeof(struct kvd_cqe);
	uint64_t page;

	if (r->scrub_pos < head)
		return head - r->scrub_pos;
	/* a page that a budget ended in; out_off is a multiple of its size */
	if (r->scrub_pos > g->out_off && r->scrub_pos % PAGE)
		return PAGE - r->scrub_pos % PAGE;
	page = r->scrub_pos < g->out_off ? 0 : (r->scrub_pos - g->out_off) / PAGE;
	page = next_touched(r, page);
	r->scrub_pos = g->out_off + page * PAGE;
	return r->scrub_pos < g->d2c_bytes ? PAGE : 0;
}

bool ring_daemon_scrub(struct ring_daemon *r, uint64_t budget)
{
	const struct kvd_ring_geometry *g = &r->geometry;
	uint64_t n;

	if (!r->c2d.map || !r->d2c.map)
		return true;
	while (r->scrub_pos < g->d2c_bytes && (n = next_dirty(r))) {
		n = n < budget ? n : budget;
		region_scrub(&r->d2c, r->scrub_pos, n);
		r->scrub_pos += n;
		budget -= n;
		if (!budget)
			return false;
	}
	while (r->scrub_pos < g->d2c_bytes + g->c2d_bytes) {
		uint64_t off = r->scrub_pos - g->d2c_bytes;

		n = g->c2d_bytes - off < PIECE ? g->c2d_bytes - off : PIECE;
		region_scrub(&r->c2d, off, n);
		r->scrub_pos += n;
		if (budget <= PIECE_PAY)
			return r->scrub_pos == g->d2c_bytes + g->c2d_bytes;
		budget -= PIECE_PAY;
	}
	return true;
}
