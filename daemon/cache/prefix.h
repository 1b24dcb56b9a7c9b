/* SPDX-License-Identifier: MIT */
/*
 * The prefix index: from tokens to blocks that already hold their K and V.
 *
 * Owns: one node per block of the pool (key, tokens, parent, number of children) and the
 * hash table over them. Runs on the loop thread. Relies on block.h for states and evict.h
 * for the order; the pool outlives the index. Does no I/O and knows no sequences.
 *
 *   root A ---- b7 ---- b2 ---- b9          a tree per root; a node is a full block,
 *                 \---- b4                  or a leaf that is open: b4 may be one
 *   root B ---- b5                          b7 has two children, b9 and b4 none
 *
 * Full blocks are found by key and shared. Where the next block of a chain is not there,
 * another child of the same parent may begin with the same tokens: prefix_find_rows() finds
 * the one with most of them, and the caller copies that block and goes on behind those rows.
 * So a sequence offers its open block as well, with as many rows as are computed; it goes on
 * writing behind them, and nobody but its writer holds the block for longer than a copy.
 *
 * Equations, checked by prefix_check():
 *
 *   node of n_rows = block_tokens in the table of keys;  any node in that of heads
 *   node <=> block indexed;  n_rows < block_tokens => n_children = 0
 *   node's parent is indexed or is the root;  n_children = nodes that name it as parent
 *   refs(child) > 0  =>  refs(parent) > 0     (a holder of a block holds its chain)
 *   pins(child) > 0  =>  pins(parent) > 0     (prefix_pin() pins the chain)
 *   domain(child) = domain(parent), or the parent is public
 *   n_public = nodes whose domain is PREFIX_DOMAIN_PUBLIC
 *   => all cached, unpinned blocks can be evicted, leaves first
 *
 * A hit needs equal key, tokens, parent, root and domain. So a collision of keys is a
 * miss, never a wrong answer, and several nodes of one key may live side by side.
 *
 * Equal blocks: two sequences may compute the same block in the same step. The second to
 * publish gets PREFIX_EXISTS with the block that is there; it takes a reference to that
 * one, gives its own back and goes on with the shared one. The bytes are equal, because a
 * block's bytes depend on its tokens and those before them only. This keeps the third
 * equation and halves the memory.
 *
 * Only a block whose step has completed may be published.
 *
 * Held prefixes: an administrator may hold a prefix, which pins its blocks, and may make
 * it public. Public blocks have a domain and a root of their own; a chain that reads them
 * looks there first, block by block, as long as all before it were public too, and goes on
 * in its own domain: what hangs below a public block belongs to who computed it, and
 * nobody else finds it. Making a prefix public moves its nodes; no byte is computed again.
 * Where an equal one is public it serves, and the rest of the prefix moves below it, so that
 * no two public blocks are equal. (prefix_admin.c)
 *
 * An index with an image (image.h) writes down the full blocks that it publishes, and is
 * rebuilt from it by a later process. A block that came back is believed when it is found
 * for the first time and its bytes have the right checksum; until then nobody holds it, nor
 * what hangs below it. When they have not, it goes with all below it, and the request
 * computes. Whoever takes such a block later has it zeroed: the number of a domain may mean
 * another by then. Open blocks are not written down, since their bytes change under their
 * record: a later process computes those rows again. (prefix_image.c)
 */
#ifndef KVD_CACHE_PREFIX_H
#define KVD_CACHE_PREFIX_H

#include "daemon/cache/block.h"
#include "daemon/cache/image.h"
#include "daemon/cache/key.h"

#include <stdbool.h>
#include <stdint.h>

/* The domain that every chain with reads_public looks in. No uid and no named domain. */
#define PREFIX_DOMAIN_PUBLIC (UINT32_MAX - 1)

/* Named conditions of prefix_publish(). */
enum {
	PREFIX_EXISTS = 1, /* an equal block is published; *ret_id is that one */
	PREFIX_ORPHAN = 2, /* the parent is not in the index (flushed): stay private */
};

/* The two tables that a node may stand in. */
enum prefix_table { PREFIX_BY_KEY, PREFIX_BY_HEAD, PREFIX_N_TABLES };

/* Neighbours in a bucket; BLOCK_NONE at the ends. */
struct prefix_link {
	uint32_t next;
	uint32_t prev;
};

/**
 * struct prefix_node - what the index knows of one block
 * @key: its key
 * @root: root of its chain; compared where the parent is none
 * @parent: block id of the block before, or BLOCK_NONE
 * @n_children: nodes whose parent this is
 * @n_rows: tokens, and rows that others may read; block_tokens unless it is open
 * @links: neighbours in its bucket of each table
 * @held: an administrator holds the prefix that ends here
 * @unverified: a former process computed it, and its bytes were not compared with their
 *	checksum yet
 * @mark: what the flush or the rebuilding in hand does with it
 */
struct prefix_node {
	struct prefix_key key;
	struct prefix_key root;
	uint32_t parent;
	uint32_t n_children;
	uint32_t n_rows;
	struct prefix_link links[PREFIX_N_TABLES];
	bool held;
	bool unverified;
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

/* Keys remembered; direct mapped. A burst of equal prompts then hashes each block once. */
#define PREFIX_MEMO_KEYS 1024

/**
 * struct prefix_memo - a key that was made lately, so that it need not be hashed again
 * @parent: key or root before it; with its tokens, compared whole, it fixes @key
 */
struct prefix_memo {
	struct prefix_key parent;
	struct prefix_key key;
	bool used;
};

/**
 * struct prefix_index - the index
 * @nodes: [n_blocks], indexed by block id
 * @tokens: [n_blocks][block_tokens]
 * @memo: [PREFIX_MEMO_KEYS]; @memo_tokens: [PREFIX_MEMO_KEYS][block_tokens]
 * @public_root: root of all public chains
 * @n_public: nodes of public blocks
 * @buckets: [n_buckets] first block id of each chain; n_buckets is a power of two
 * @heads: [n_buckets] the same by head: root, parent and first token
 * @image: where published blocks are written down, or NULL
 */
struct prefix_index {
	struct block_pool *pool;
	struct prefix_keyer keyer;
	struct prefix_node *nodes;
	int32_t *tokens;
	struct prefix_memo *memo;
	int32_t *memo_tokens;
	uint32_t *buckets;
	uint32_t *heads;
	uint32_t n_buckets;
	uint32_t block_tokens;
	uint32_t n_nodes;
	uint32_t n_public;
	struct prefix_key public_root;
	struct prefix_counters counters;
	struct image *image;
};

/**
 * struct prefix_chain - one sequence's way through the index
 * @root: from prefix_key_root()
 * @keys: [n_keys] keys of its leading full blocks, made once each, on demand
 * @n_keys: how many are made
 * @cap_keys: room in @keys; the caller's memory
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
	uint32_t domain;
	bool reads_public;
	uint64_t owner;
};

/**
 * prefix_init() - an empty index over a pool
 * @index: caller's memory
 * @pool: outlives the index; no block is indexed
 * @model: fields common to all keys
 * @key_bits: 256; fewer in tests
 *
 * Return: 0, -EINVAL, -ENOMEM.
 */
int prefix_init(struct prefix_index *index, struct block_pool *pool,
		const struct prefix_model *model, uint32_t key_bits);

/* The pool's blocks keep their indexed mark: deinit the pool right after. */
void prefix_deinit(struct prefix_index *index);

/**
 * prefix_chain_key() - key of block @i of a sequence
 * @index: index
 * @chain: the sequence's chain
 * @tokens: the sequence's tokens, at least (i + 1) * block_tokens of them
 * @i: block number, below cap_keys
 *
 * Return: borrowed key, or NULL if libcrypto is out of memory.
 */
const struct prefix_key *prefix_chain_key(struct prefix_index *index,
					  struct prefix_chain *chain,
					  const int32_t *tokens, uint32_t i);

/**
 * prefix_find() - block @i of a sequence, if it is published
 * @index, @chain, @tokens, @i: as prefix_chain_key()
 * @parent: block id of block i - 1, BLOCK_NONE for i = 0
 *
 * Takes no reference and counts nothing.
 *
 * Return: block id, or BLOCK_NONE.
 */
uint32_t prefix_find(struct prefix_index *index, struct prefix_chain *chain,
		     const int32_t *tokens, uint32_t i, uint32_t parent);

/**
 * prefix_acquire() - block @i of a sequence with a reference, counted as a hit
 *
 * As prefix_find(). This is how a sequence adopts, one by one, blocks that another has
 * published since it looked last.
 *
 * Return: block id, or BLOCK_NONE.
 */
uint32_t prefix_acquire(struct prefix_index *index, struct prefix_chain *chain,
			const int32_t *tokens, uint32_t i, uint32_t parent);

/**
 * prefix_lookup() - the longest published prefix
 * @index, @chain, @tokens: as above
 * @max_blocks: look no further; at most cap_keys, and all its tokens are there
 * @ids: [max_blocks] block ids, each with a reference
 *
 * The caller counts what it asked for in counters.queried_tokens.
 *
 * Return: number of ids.
 */
uint32_t prefix_lookup(struct prefix_index *index, struct prefix_chain *chain,
		       const int32_t *tokens, uint32_t max_blocks, uint32_t *ids);

/**
 * prefix_publish() - others may find block @i from now on
 * @index, @chain, @tokens, @i, @parent: as prefix_find()
 * @id: active, not indexed or open, of the chain's domain; its step has completed
 * @ret_id: with PREFIX_EXISTS the equal block, borrowed
 *
 * Return: 0, PREFIX_EXISTS, PREFIX_ORPHAN, or -ENOMEM (then it stays private).
 */
int prefix_publish(struct prefix_index *index, struct prefix_chain *chain,
		   const int32_t *tokens, uint32_t i, uint32_t parent, uint32_t id,
		   uint32_t *ret_id);

/**
 * prefix_find_rows() - the block after @parent that begins as block @i does
 * @index, @chain, @tokens, @i, @parent: as prefix_find(); of @tokens only the first
 *	@max_rows of the block need be there
 * @max_rows: more rows than these are of no use, 1 .. block_tokens
 * @ret_rows: leading rows that are the same, 1 .. max_rows
 *
 * Takes no reference and counts nothing. Looks at a bounded number of blocks, the latest
 * first, so it may miss one.
 *
 * Return: block id, or BLOCK_NONE.
 */
uint32_t prefix_find_rows(struct prefix_index *index, const struct prefix_chain *chain,
			  const int32_t *tokens, uint32_t i, uint32_t parent,
			  uint32_t max_rows, uint32_t *ret_rows);

/* A reference to what prefix_find_rows() found, counted as a hit of @n_rows tokens. */
void prefix_acquire_rows(struct prefix_index *index, const struct prefix_chain *chain,
			 uint32_t id, uint32_t n_rows);

/**
 * prefix_publish_rows() - others may copy the first rows of an open block from now on
 * @index, @chain, @tokens, @i, @parent: as prefix_publish()
 * @id: active; published by a call with fewer rows, or not indexed
 * @n_rows: rows whose step has completed, 1 .. block_tokens - 1
 *
 * A shorter open block with the same tokens that nobody holds goes. When the block is full,
 * prefix_publish() makes a full one of it.
 *
 * Return: 0; PREFIX_EXISTS: another offers these rows; PREFIX_ORPHAN.
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

/* Pins an indexed block and the chain above it, so that it stays cached. */
void prefix_pin(struct prefix_index *index, uint32_t id);
void prefix_unpin(struct prefix_index *index, uint32_t id);

/**
 * struct prefix_flush_result - what a flush did, in blocks
 * @flushed: were cached and are free now
 * @kept_active: are read by running requests; they left the index, so that no new request
 *	finds them, and become free when their holders let go
 * @kept_pinned: are pinned; untouched
 * @remaining: flushable blocks still there, counted again afterwards: 0
 */
struct prefix_flush_result {
	uint32_t flushed;
	uint32_t kept_active;
	uint32_t kept_pinned;
	uint32_t remaining;
};

/**
 * prefix_flush() - empty one domain's part of the index; of a public one, what hangs below it too
 * @index: index
 * @domain: which
 * @ret_result: counts
 *
 * Safe at any time, also while a step is in flight: blocks with holders keep their bytes.
 */
void prefix_flush(struct prefix_index *index, uint32_t domain,
		  struct prefix_flush_result *ret_result);
void prefix_flush_all(struct prefix_index *index, struct prefix_flush_result *ret_result);

/**
 * prefix_hold() - hold the prefix that ends at a block until prefix_release()
 * @index: index
 * @id: its last block, indexed and full
 * @make_public: every domain may read it from now on, also after the release; if an equal
 *	prefix is public, that one is held instead
 * @max_pinned: blocks of the pool that may be pinned in all
 *
 * Holding what is held changes nothing, but for making it public.
 *
 * Return: 0; -EDQUOT: it would pin more than @max_pinned; -EBUSY: its beginning is public in
 * another chain, and requests read what is to follow that; -ENOMEM: some of its leading
 * blocks may have become public.
 */
int prefix_hold(struct prefix_index *index, uint32_t id, bool make_public,
		uint32_t max_pinned);

/* Of the equal public one, where that is held instead. Return: 0; -ENOENT: nobody holds it;
 * -ENOMEM. */
int prefix_release(struct prefix_index *index, uint32_t id);

/**
 * prefix_flush_chain() - forget one prefix
 * @index: index
 * @id: its last block, indexed
 * @tree: also everything that goes on from there; else no full block does, or it is kept
 * @ret_result: counts, of the blocks that no other prefix has
 *
 * The open blocks right after it go in any case: below a public block those of all domains.
 */
void prefix_flush_chain(struct prefix_index *index, uint32_t id, bool tree,
			struct prefix_flush_result *ret_result);

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
 * @index: empty, over a pool that is all free and of the same number of blocks
 * @image: outlives the index
 * @ret_result: counts
 *
 * Blocks without a record become free, to be zeroed by whoever takes them. The order of
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

/**
 * prefix_drop() - a block is not what it should be: it goes, with all that hang below it
 * @index: index
 * @id: indexed; nobody holds it or any of those, but pins and holds of administrators
 *
 * Return: number of blocks that went.
 */
uint32_t prefix_drop(struct prefix_index *index, uint32_t id);

/* Rows of an indexed block that others may read. */
static inline uint32_t prefix_n_rows(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].n_rows;
}

/* Whether every equation above holds; O(n_blocks). Return: 0, or -EINVAL. */
int prefix_check(const struct prefix_index *index);

#endif
