/* SPDX-License-Identifier: MIT */
/*
 * The prefix index: from tokens, or from keys of others, to blocks that already hold their bytes.
 *
 * Owns a slab of nodes and the tables over them. A node says what one block holds, held or will
 * hold, and exists apart from it. Loop thread. Relies on block.h for states and evict.h for the
 * order; the pool outlives the index. Sequences name blocks, the index names nodes.
 *
 *   root A ---- n7 ---- n2 ---- n9          a tree per root; a node is full, or a leaf that
 *                 \---- n4                  is partial: n4 may be one
 *   root B ---- n5                          n7 has two children, n9 and n4 none
 *
 * A space is what one identity fills: a model, or an engine that brings keys of its own. Nothing is
 * found across spaces. A hit needs equal key, tokens (if the space has any), parent, root and
 * domain: a collision of keys is a miss. No two resident nodes that can be found are equal.
 *
 * A holder of a block holds its chain, and a pin is on the whole chain, so that all cached,
 * unpinned blocks can be evicted, leaves first. prefix_check.c has the equations.
 */
#ifndef KVD_CACHE_PREFIX_H
#define KVD_CACHE_PREFIX_H

#include "daemon/cache/block.h"
#include "daemon/cache/image.h"
#include "daemon/cache/key.h"

#include <stdbool.h>
#include <stdint.h>

#define NODE_NONE UINT32_MAX

/* The domain that every chain with reads_public looks in. No uid and no named domain. */
#define PREFIX_DOMAIN_PUBLIC (UINT32_MAX - 1)

/* Spaces of one index; the first is the one that an image is of. */
#define PREFIX_MAX_SPACES 16

/* Named conditions of prefix_publish() and prefix_publish_rows(). */
enum {
	PREFIX_EXISTS = 1, /* an equal block is published; *ret_id is that one */
	PREFIX_ORPHAN = 2, /* the parent is not in the index (flushed): stay private */
	PREFIX_FULL = 3,   /* no node is free: stay private */
};

/* The tables that a node may stand in; the last one, lists of public nodes by what is before. */
enum prefix_table { PREFIX_BY_KEY, PREFIX_BY_HEAD, PREFIX_BY_PARENT, PREFIX_N_TABLES };

/* Neighbours in a list; NODE_NONE at the ends. */
struct prefix_link {
	uint32_t next;
	uint32_t prev;
};

/* What one identity fills. @base is a part of every root; @first_public: of the public nodes that
 * begin a chain; with @keys_only chains come with keys and without tokens. */
struct prefix_space {
	struct prefix_key base;
	struct prefix_key public_root;
	uint32_t first_public;
	uint32_t block_tokens;
	bool keys_only;
};

/* What the index knows of one block. @key: of a partial one that of the block before it, or the
 * root. @life: number of its publication: (life, number of the node) is a name given once. @block:
 * where its bytes are, or BLOCK_NONE. @parent: node before it, or NODE_NONE; of a free node the
 * next free one. @first_child, @siblings: list of the nodes whose parent this is; @first_public: of
 * the public ones among them; @n_resident: those that have a block. @n_rows: rows that others may
 * read; 0: the node is free. @n_tokens: rows of the whole chain. @pinned: an administrator pinned
 * the prefix that ends here. @unverified: of a former process, and its bytes were not compared with
 * their checksum yet. @doomed: its bytes were wrong: it is in no table, and waits to be dropped.
 * @mark: of prefix_restore() */
struct prefix_node {
	struct prefix_key key;
	struct prefix_key root;
	uint32_t life;
	uint32_t block;
	uint32_t domain;
	uint32_t parent;
	uint32_t first_child;
	uint32_t first_public;
	struct prefix_link siblings;
	uint32_t n_children;
	uint32_t n_resident;
	uint32_t n_rows;
	uint32_t n_tokens;
	struct prefix_link links[PREFIX_N_TABLES];
	uint8_t space;
	bool pinned;
	bool unverified;
	bool doomed;
	uint8_t mark;
};

/* Since start; @shared_hit_tokens of a block that another process computed, @duplicate_blocks given
 * back because an equal one was there. */
struct prefix_counters {
	uint64_t queried_tokens;
	uint64_t hit_tokens;
	uint64_t shared_hit_tokens;
	uint64_t evicted_blocks;
	uint64_t published_blocks;
	uint64_t duplicate_blocks;
};

struct prefix_memo;
struct prefix_flush;

/* @nodes: [cap_nodes] the slab; @tokens: [cap_nodes][max_tokens], NULL where no space has any.
 * @node_of: [n_blocks] of each indexed block. @lives: life of the node published last. @buckets,
 * @heads: [n_buckets] first nodes of the lists by key and by head, a power of two. @doomed: first
 * of those that wait to be dropped. @flushes: in hand. @image: where published blocks of the first
 * space are written down, or NULL */
struct prefix_index {
	struct block_pool *pool;
	struct prefix_keyer keyer;
	struct prefix_node *nodes;
	uint32_t *node_of;
	int32_t *tokens;
	struct prefix_space spaces[PREFIX_MAX_SPACES];
	uint32_t n_spaces;
	struct prefix_memo *memo;
	int32_t *memo_tokens;
	uint32_t *buckets;
	uint32_t *heads;
	uint32_t n_buckets;
	uint32_t max_tokens;
	uint32_t cap_nodes;
	uint32_t free_node;
	uint32_t n_nodes;
	uint32_t n_public;
	uint32_t lives;
	uint32_t doomed;
	struct prefix_flush *flushes;
	struct prefix_counters counters;
	struct image *image;
};

/* One sequence's way through the index. @root: from prefix_key_root(), with the base of its space
 * and its domain. @keys: [n_keys of cap_keys] of its leading full blocks, made on demand in the
 * caller's memory; in a space without tokens the caller's own. @reads_public: finds public blocks
 * too; not with a salt. @owner: label of the process that asks */
struct prefix_chain {
	struct prefix_key root;
	struct prefix_key *keys;
	uint32_t n_keys;
	uint32_t cap_keys;
	uint32_t space;
	uint32_t domain;
	bool reads_public;
	uint64_t owner;
};

/* An empty index over a pool that outlives it, with one space. @secret: copied; @n_nodes: 0: one
 * for each block; @key_bits: 256, fewer in tests. Return: 0, -EINVAL, -ENOMEM. */
int prefix_init(struct prefix_index *index, struct block_pool *pool,
		const struct prefix_model *model, const struct prefix_secret *secret,
		uint32_t n_nodes, uint32_t key_bits);

/* The pool's blocks keep their indexed mark: deinit the pool right after. */
void prefix_deinit(struct prefix_index *index);

/* One more identity, of no more tokens in a block than the first one, or keys_only. Return: 0,
 * -EINVAL, -ENOSPC, -ENOMEM. */
int prefix_add_space(struct prefix_index *index, const struct prefix_model *model,
		     uint32_t *ret_space);

/* Borrowed key of block @i of a sequence, below cap_keys; @tokens: of the whole sequence, NULL in a
 * space without, here and below. Return: NULL if libcrypto is out of memory. */
const struct prefix_key *prefix_chain_key(struct prefix_index *index,
					  struct prefix_chain *chain,
					  const int32_t *tokens, uint32_t i);

/* Block @i of a sequence, after block @parent (BLOCK_NONE for the first), if it is published and
 * resident; else BLOCK_NONE. Takes no reference and counts nothing. */
uint32_t prefix_find(struct prefix_index *index, struct prefix_chain *chain,
		     const int32_t *tokens, uint32_t i, uint32_t parent);

/* The same with a reference, counted as a hit. */
uint32_t prefix_acquire(struct prefix_index *index, struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent);

/* Others may find block @i from now on. @id: active, not indexed or partial, of the chain's domain;
 * its step has completed. Return: 0; PREFIX_EXISTS: *ret_id is the equal block, maybe @id itself:
 * ref it and unref @id; PREFIX_ORPHAN; PREFIX_FULL; -ENOMEM. */
int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id);

/* The block that begins with most tokens of block @i, up to @max_rows, where prefix_find() found
 * none. @ret_rows: how many; 0 with BLOCK_NONE. */
uint32_t prefix_find_rows(struct prefix_index *index, const struct prefix_chain *chain,
			  const int32_t *tokens, uint32_t i, uint32_t parent,
			  uint32_t max_rows, uint32_t *ret_rows);

/* A reference to what prefix_find_rows() found, to copy @n_rows rows from; counted as a hit. */
void prefix_acquire_rows(struct prefix_index *index, const struct prefix_chain *chain,
			 uint32_t id, uint32_t n_rows);

/* Others may copy the first @n_rows of a partial block from now on, which is active and was
 * published with fewer rows, or not. Return: 0; PREFIX_EXISTS: another has these rows;
 * PREFIX_ORPHAN; PREFIX_FULL. */
int prefix_publish_rows(struct prefix_index *index, const struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
			uint32_t n_rows);

/* block_pool_take(), at the cost of a cached block if need be. */
int prefix_take(struct prefix_index *index, uint32_t domain, uint64_t owner,
		uint32_t *ret_id);

/* Evicts up to @n blocks, leaves first. Return: how many. */
uint32_t prefix_evict(struct prefix_index *index, uint32_t n);

/* Rows of an indexed block that others may read. */
static inline uint32_t prefix_n_rows(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[index->node_of[id]].n_rows;
}

/* Pins the prefix that ends at @node, resident and full, until prefix_unpin(); a pin is a flag.
 * @make_public: every domain may read it from now on, also after the pin; where an equal prefix is
 * public, that one is pinned and unpinned instead. @max_pinned: of the pool's blocks, in all.
 * Return: 0; -ENOENT: it is about to be dropped; -EDQUOT: beyond @max_pinned; -EBUSY: its beginning
 * is public in another chain, and requests read what is to follow that; -ENOMEM: some of its
 * leading blocks may have become public. */
int prefix_pin(struct prefix_index *index, uint32_t node, bool make_public,
	       uint32_t max_pinned);

/* Return: 0; -ENOENT: it is not pinned; -ENOMEM. */
int prefix_unpin(struct prefix_index *index, uint32_t node);

/* Blocks that can be found again, and records that were damaged or impossible beside others. */
struct prefix_restored {
	uint32_t restored;
	uint32_t dropped;
};

/* Rebuilds an empty index with one space from an image, with the image's secret in place of its
 * own, and goes on writing to that. No root and nothing derived is older. Return: 0; -ENOMEM:
 * index and pool are empty as before. */
int prefix_restore(struct prefix_index *index, struct image *image,
		   struct prefix_restored *ret_result);

/* Writes down published blocks, @max_bytes of them, or one. Return: how many are left. */
uint32_t prefix_save(struct prefix_index *index, size_t max_bytes);

/* Whether every equation holds, in O(n_blocks). Return: 0, or -EINVAL. */
int prefix_check(const struct prefix_index *index);

#endif
