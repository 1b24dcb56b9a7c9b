/* SPDX-License-Identifier: MIT */
/*
 * The prefix index: from tokens, or from keys of others, to blocks that already hold their bytes.
 *
 * Owns: a slab of nodes and the tables over them. A node says what one block holds, held or will
 * hold: it exists apart from the block, and a node without one is not resident. Runs on the loop
 * thread. Relies on block.h for states and evict.h for the order; the pool outlives the index.
 * Does no I/O and knows no sequences: those name blocks, the index names nodes.
 *
 *   root A ---- n7 ---- n2 ---- n9          a tree per root; a node is full, or a leaf that
 *                 \---- n4                  is partial: n4 may be one
 *   root B ---- n5                          n7 has two children, n9 and n4 none
 *
 * A space (struct prefix_space) is what one identity fills: a model, or an engine that brings
 * keys of its own. Several may share one index and its pool; nothing is found across them.
 *
 * Equations, checked by prefix_check():
 *
 *   node in use <=> n_rows > 0;  resident <=> block != BLOCK_NONE
 *   node resident <=> its block is indexed and names it;  domain(node) = domain(block)
 *   node resident  =>  its parent is resident or none
 *   n_rows = block_tokens in the table of keys, any node with tokens in that of heads, unless
 *	it is doomed;  n_rows < block_tokens  =>  no children
 *   parent is in use or none;  n_children, n_resident and the list of children agree with it
 *   n_tokens = n_rows + n_tokens(parent);  space(child) = space(parent)
 *   refs(child) > 0  =>  refs(parent) > 0     (a holder of a block holds its chain)
 *   pins(child) > 0  =>  pins(parent) > 0     (a pin is on the whole chain)
 *   domain(child) = domain(parent), or the parent is public
 *   n_public = nodes whose domain is PREFIX_DOMAIN_PUBLIC
 *   => all cached, unpinned blocks can be evicted, leaves first
 *
 * A hit needs equal key, tokens (if the space has any), parent, root and domain. So a collision
 * of keys is a miss, never a wrong answer. No two resident nodes that can be found are equal.
 *
 * Only a block whose step has completed may be published.
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

/* The two tables that a node may stand in. */
enum prefix_table { PREFIX_BY_KEY, PREFIX_BY_HEAD, PREFIX_N_TABLES };

/* Neighbours in a list; NODE_NONE at the ends. */
struct prefix_link {
	uint32_t next;
	uint32_t prev;
};

/**
 * struct prefix_space - what one identity fills
 * @base: digest of it, a part of every root
 * @public_root: root of all public chains
 * @block_tokens: tokens, or positions, in a block
 * @keys_only: its chains come with keys and without tokens
 */
struct prefix_space {
	struct prefix_key base;
	struct prefix_key public_root;
	uint32_t block_tokens;
	bool keys_only;
};

/**
 * struct prefix_node - what the index knows of one block
 * @key: its key; of a partial one that of the block before it, or the root
 * @root: root of its chain; compared where the parent is none
 * @life: number of its publication; (life, id) is a name that is never given again
 * @block: where its bytes are, or BLOCK_NONE
 * @domain: who may read it
 * @parent: node before it, or NODE_NONE
 * @first_child, @siblings: list of the nodes whose parent this is
 * @n_children: how many; @n_resident: those that have a block
 * @n_rows: rows that others may read; 0: the node is free, and @parent the next free one
 * @n_tokens: rows of the whole chain
 * @links: neighbours in its bucket of each table
 * @space: number of its space
 * @pinned: an administrator pinned the prefix that ends here
 * @unverified: a former process computed it, and its bytes were not compared with their
 *	checksum yet
 * @doomed: its bytes were wrong: it is in no table, and waits to be dropped
 * @mark: of the rebuilding in hand
 */
struct prefix_node {
	struct prefix_key key;
	struct prefix_key root;
	uint32_t life;
	uint32_t block;
	uint32_t domain;
	uint32_t parent;
	uint32_t first_child;
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

/**
 * struct prefix_counters - since start, never reset
 * @queried_tokens: tokens of requests that looked for a prefix
 * @hit_tokens: tokens found
 * @shared_hit_tokens: those among them whose block another process computed
 * @evicted_blocks: blocks dropped because another was needed
 * @published_blocks: blocks that entered the index
 * @duplicate_blocks: blocks given back because an equal one was there
 */
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

/**
 * struct prefix_index - the index
 * @nodes: [cap_nodes] the slab; @free_node: first free one
 * @node_of: [n_blocks] node of each indexed block
 * @tokens: [cap_nodes][max_tokens]; NULL: no space has any
 * @spaces: [n_spaces]
 * @memo: keys that were made lately; @memo_tokens: tokens of each
 * @n_nodes: in use; @n_public: of public blocks
 * @lives: of the node that was published last
 * @buckets: [n_buckets] first node of each chain by key, n_buckets a power of two
 * @heads: [n_buckets] the same by head: root, parent and first token
 * @doomed: first of the nodes that wait to be dropped
 * @flushes: those in hand, which follow what happens to the nodes they stand at
 * @image: where published blocks of the first space are written down, or NULL
 */
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

/**
 * struct prefix_chain - one sequence's way through the index
 * @root: from prefix_key_root(), with the base of its space
 * @keys: [n_keys] keys of its leading full blocks, made once each, on demand; where the space
 *	has no tokens the caller's, all of them
 * @n_keys: how many are made
 * @cap_keys: room in @keys; the caller's memory
 * @space: number of its space
 * @domain: as in the root
 * @reads_public: finds public blocks too; not with a salt, which narrows
 * @owner: label of the process that asks
 *
 * Keys depend on tokens alone, so they survive eviction and preemption. Truncating the
 * tokens means setting n_keys back.
 */
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

/**
 * prefix_init() - an empty index over a pool, with one space
 * @index: caller's memory
 * @pool: outlives the index; no block is indexed
 * @model: identity of the space
 * @n_nodes: room for so many; 0: for one of each block
 * @key_bits: 256; fewer in tests
 *
 * Return: 0, -EINVAL, -ENOMEM.
 */
int prefix_init(struct prefix_index *index, struct block_pool *pool,
		const struct prefix_model *model, uint32_t n_nodes, uint32_t key_bits);

/* The pool's blocks keep their indexed mark: deinit the pool right after. */
void prefix_deinit(struct prefix_index *index);

/**
 * prefix_add_space() - one more identity
 * @model: no more tokens in a block than the first space has, or keys_only
 * @ret_space: its number, for chains
 *
 * Return: 0, -EINVAL, -ENOSPC, -ENOMEM.
 */
int prefix_add_space(struct prefix_index *index, const struct prefix_model *model,
		     uint32_t *ret_space);

/**
 * prefix_chain_key() - key of block @i of a sequence
 * @index: index
 * @chain: the sequence's chain
 * @tokens: the sequence's tokens, at least (i + 1) * block_tokens of them; NULL in a space
 *	without tokens, here and below
 * @i: block number, below cap_keys
 *
 * Return: borrowed key, or NULL if libcrypto is out of memory.
 */
const struct prefix_key *prefix_chain_key(struct prefix_index *index,
					  struct prefix_chain *chain,
					  const int32_t *tokens, uint32_t i);

/**
 * prefix_find() - block @i of a sequence, if it is published and resident
 * @index, @chain, @tokens, @i: as prefix_chain_key()
 * @parent: block i - 1, BLOCK_NONE for i = 0
 *
 * Takes no reference and counts nothing.
 *
 * Return: block, or BLOCK_NONE.
 */
uint32_t prefix_find(struct prefix_index *index, struct prefix_chain *chain,
		     const int32_t *tokens, uint32_t i, uint32_t parent);

/**
 * prefix_acquire() - block @i of a sequence with a reference, counted as a hit
 *
 * As prefix_find(). This is how a sequence adopts, one by one, blocks that another has
 * published since it looked last.
 *
 * Return: block, or BLOCK_NONE.
 */
uint32_t prefix_acquire(struct prefix_index *index, struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent);

/**
 * prefix_publish() - others may find block @i from now on
 * @index, @chain, @tokens, @i, @parent: as prefix_find()
 * @id: active, not indexed or partial, of the chain's domain; its step has completed
 * @ret_id: set with PREFIX_EXISTS only
 *
 * An equal node that is not resident gets the block. With PREFIX_EXISTS, @id may be indexed no
 * more: take a reference to the other one and give that of @id back.
 *
 * Return: 0; PREFIX_EXISTS, which may be @id itself; PREFIX_ORPHAN; PREFIX_FULL; -ENOMEM.
 */
int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id);

/**
 * prefix_find_rows() - the block that begins with most tokens of block @i
 * @index, @chain, @tokens, @i, @parent: as prefix_find(), which found nothing
 * @max_rows: 1 .. block_tokens: tokens that are there
 * @ret_rows: how many leading rows are the same; 0 with BLOCK_NONE
 *
 * Takes no reference and counts nothing.
 */
uint32_t prefix_find_rows(struct prefix_index *index, const struct prefix_chain *chain,
			  const int32_t *tokens, uint32_t i, uint32_t parent,
			  uint32_t max_rows, uint32_t *ret_rows);

/* A reference to what prefix_find_rows() found, to copy @n_rows rows from; counted as a hit. */
void prefix_acquire_rows(struct prefix_index *index, const struct prefix_chain *chain,
			 uint32_t id, uint32_t n_rows);

/**
 * prefix_publish_rows() - others may copy the first rows of a partial block from now on
 * @index, @chain, @tokens, @i, @parent: as prefix_publish()
 * @id: active; published by a call with fewer rows, or not indexed
 * @n_rows: rows whose step has completed, 1 .. block_tokens - 1
 *
 * A shorter partial block with the same tokens that nobody holds goes. When the block is full,
 * prefix_publish() makes a full one of it.
 *
 * Return: 0; PREFIX_EXISTS: another has these rows; PREFIX_ORPHAN; PREFIX_FULL.
 */
int prefix_publish_rows(struct prefix_index *index, const struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
			uint32_t n_rows);

/**
 * prefix_take() - a block to write into, at the cost of a cached one if need be
 *
 * As block_pool_take(); BLOCK_POOL_DRY now means that nothing can be evicted either.
 */
int prefix_take(struct prefix_index *index, uint32_t domain, uint64_t owner,
		uint32_t *ret_id);

/* Evicts up to @n blocks, leaves first. Return: how many. */
uint32_t prefix_evict(struct prefix_index *index, uint32_t n);

/* Rows of an indexed block that others may read. */
static inline uint32_t prefix_n_rows(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[index->node_of[id]].n_rows;
}

/**
 * prefix_pin() - keep the prefix that ends at a node until prefix_unpin()
 * @index: index
 * @node: its last one, resident and full
 * @make_public: every domain may read it from now on, also after the pin; if an equal
 *	prefix is public, that one is pinned instead
 * @max_pinned: blocks of the pool that may be pinned in all
 *
 * A pin is a flag: pinning what is pinned changes nothing, but for making it public.
 *
 * Return: 0; -ENOENT: it is about to be dropped; -EDQUOT: it would pin more than @max_pinned; -EBUSY: its beginning is public in
 * another chain, and requests read what is to follow that; -ENOMEM: some of its leading
 * blocks may have become public.
 */
int prefix_pin(struct prefix_index *index, uint32_t node, bool make_public,
	       uint32_t max_pinned);

/* Of the equal public one, where that is pinned instead. Return: 0; -ENOENT: it is not
 * pinned; -ENOMEM. */
int prefix_unpin(struct prefix_index *index, uint32_t node);

/**
 * struct prefix_restored - what came of the records of an image
 * @restored: blocks that can be found again
 * @dropped: records that were damaged, or impossible beside the others
 */
struct prefix_restored {
	uint32_t restored;
	uint32_t dropped;
};

/**
 * prefix_restore() - rebuild an index from an image, and go on writing to that
 * @index: empty, with one space, over a pool that is all free and of the same number of blocks
 * @image: outlives the index
 * @ret_result: counts
 *
 * Blocks without a record become free, to be zeroed before they are used. The order of
 * eviction is that of their last use; what had been found then is kept longer, as before.
 *
 * Return: 0; -ENOMEM: nothing was taken over, and index and pool are as before.
 */
int prefix_restore(struct prefix_index *index, struct image *image,
		   struct prefix_restored *ret_result);

/**
 * prefix_save() - write down blocks that were published
 * @index: index
 * @max_bytes: how much of them is read at most; one block is in any case, whole
 *
 * Return: how many blocks are left to be written.
 */
uint32_t prefix_save(struct prefix_index *index, size_t max_bytes);

/* Whether every equation above holds; O(n_blocks). Return: 0, or -EINVAL. */
int prefix_check(const struct prefix_index *index);

#endif
