/* SPDX-License-Identifier: MIT */
/*
 * Emptying a part of the prefix index, a bounded piece at a time, until prefix_flush_step() says
 * that it is done. Loop thread; safe also while a step is in flight: blocks with holders keep their
 * bytes.
 *
 * Owns nothing but its place in the index, which it keeps while others publish, evict, pin and
 * flush between two pieces. What was published when a flush began and stands where it is to flush
 * is gone at its end, or pinned, or counted as remaining.
 */
#ifndef KVD_CACHE_PREFIX_FLUSH_H
#define KVD_CACHE_PREFIX_FLUSH_H

#include "daemon/cache/prefix.h"

/* Work for one turn of the loop: some hundred microseconds; what a node costs that goes, or is
 * looked at. */
#define PREFIX_TURN_WORK 8192
#define PREFIX_NODE_COST 16
#define PREFIX_LOOK_COST 1

/* In blocks: freed; read by running requests, so that they left the index and become free later;
 * pinned and untouched; and flushable ones that are still there, counted afterwards. */
struct prefix_flush_result {
	uint32_t flushed;
	uint32_t kept_active;
	uint32_t kept_pinned;
	uint32_t remaining;
};

enum prefix_flush_kind { FLUSH_ALL, FLUSH_DOMAIN, FLUSH_TREE, FLUSH_CHAIN, FLUSH_DROP };
enum prefix_flush_phase {
	FLUSH_SCAN,
	FLUSH_WALK,
	FLUSH_ENDS,
	FLUSH_CLIMB,
	FLUSH_COUNT,
	FLUSH_COUNT_WALK,
	FLUSH_DONE
};

/* @index: NULL: no flush is in hand. @life: what was published later is not looked for. @next_node:
 * where the pass over all nodes is. @top: the tree in work; @at: the node in it; @up: its children
 * are done */
struct prefix_flush {
	struct prefix_index *index;
	struct prefix_flush *next;
	struct prefix_flush *prev;
	enum prefix_flush_kind kind;
	enum prefix_flush_phase phase;
	uint32_t domain;
	uint32_t life;
	uint32_t next_node;
	uint32_t top;
	uint32_t at;
	bool up;
	struct prefix_flush_result result;
};

/* One domain's part of the index; of the public one, what hangs below it too. */
void prefix_flush_domain(struct prefix_index *index, struct prefix_flush *flush,
			 uint32_t domain);
void prefix_flush_all(struct prefix_index *index, struct prefix_flush *flush);

/* The blocks that only the prefix has that ends at @node, and the partial ones after it; with @tree
 * everything that goes on from there, else the prefix is kept if a full block does. */
void prefix_flush_chain(struct prefix_index *index, struct prefix_flush *flush,
			uint32_t node, bool tree);

/* Does @work of it. Return: whether it is done, and flush->result complete. */
bool prefix_flush_step(struct prefix_flush *flush, uint32_t work);

/* Ends it, done or not. Idempotent. */
void prefix_flush_end(struct prefix_flush *flush);

/* Drops nodes whose bytes were wrong, and what hangs below them. @drop: all zero at first, ended
 * with the index. Return: whether there are more. */
bool prefix_drop_step(struct prefix_index *index, struct prefix_flush *drop,
		      uint32_t work);

#endif
