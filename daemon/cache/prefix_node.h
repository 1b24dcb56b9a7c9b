/* SPDX-License-Identifier: MIT */
/*
 * Internals of the prefix index, for the prefix_*.c only: nodes in and out of the slab, the tree
 * and the two tables, by key and by first token. Loop thread. prefix_check.c says what must hold.
 *
 *   prefix_node.c <- prefix_record.c <- prefix_flush.c <- prefix.c <- prefix_pin.c
 *                                                      <- prefix_image.c
 */
#ifndef KVD_CACHE_PREFIX_NODE_H
#define KVD_CACHE_PREFIX_NODE_H

#include "daemon/cache/prefix.h"

/* Keys remembered; direct mapped. A burst of equal prompts then hashes each block once. */
#define PREFIX_MEMO_KEYS 1024

/* A key made lately. @parent: key or root before it; with its tokens, compared whole, it fixes
 * @key. @domain: for whom it was made: below the public root all have the same keys, and nobody
 * must see by the time it takes what others look for */
struct prefix_memo {
	struct prefix_key parent;
	struct prefix_key key;
	uint32_t domain;
	bool used;
};

/* The root of public chains, from the keyer's secret. Return: 0 or -ENOMEM. */
int node_set_public_root(struct prefix_index *index, uint32_t space);

/* Key of the block of @tokens after @parent, which may be @ret_key; @domain: of who asks, for the
 * memo. Return: 0 or -ENOMEM. */
int node_key_next(struct prefix_index *index, uint32_t space, uint32_t domain,
		  const struct prefix_key *parent, const int32_t *tokens,
		  struct prefix_key *ret_key);

/* [block_tokens] of a node, the first n_rows of them set; NULL: its space has none. */
int32_t *node_tokens(const struct prefix_index *index, uint32_t id);

/* Key of the public block of @tokens, or of key @own in a space without, after the public node
 * @parent, or first of all. @domain: of who asks. Return: 0 or -ENOMEM. */
int node_public_key(struct prefix_index *index, uint32_t space, uint32_t domain,
		    const struct prefix_key *own, const int32_t *tokens, uint32_t parent,
		    struct prefix_key *ret_key);

/* First of the public nodes that follow @parent, which is public, or begin a chain. */
uint32_t *node_publics(struct prefix_index *index, uint32_t space, uint32_t parent);

/* The node of that block, or NODE_NONE. Return: 0 or -ENOMEM. */
int node_find_public(struct prefix_index *index, uint32_t space, uint32_t domain,
		     const struct prefix_key *own, const int32_t *tokens, uint32_t parent,
		     uint32_t *ret_id);

/* No tokens that were looked up for @domain, or for @all, stand in the memo any more. */
void node_wipe_memo(struct prefix_index *index, bool all, uint32_t domain);

/* First node of the chain that a key belongs to. */
uint32_t *node_bucket(const struct prefix_index *index, const struct prefix_key *key);

/* First of the nodes that follow @parent, or begin the same root, with the same token. */
uint32_t *node_heads(const struct prefix_index *index, const struct prefix_key *root,
		     uint32_t parent, int32_t token);

void node_free_all(struct prefix_index *index);

/* A node for @block, of the chain's domain, below @parent, which is in use. @key: of the block; of
 * a partial one, of the first @n_rows tokens of block @i, @parent's or the chain's root. Return: 0
 * or PREFIX_FULL. */
int node_add(struct prefix_index *index, const struct prefix_chain *chain,
	     const struct prefix_key *key, const int32_t *tokens, uint32_t i,
	     uint32_t parent, uint32_t block, uint32_t n_rows);

/* A partial block has more tokens of block @i now, and is still partial. */
void node_extend(struct prefix_index *index, uint32_t id, const int32_t *tokens,
		 uint32_t i, uint32_t n_rows);

/* A partial block has all tokens of block @i now, and the key of a full one. */
void node_complete(struct prefix_index *index, uint32_t id, const struct prefix_key *key,
		   const int32_t *tokens, uint32_t i);

/* A full node into tree and tables, with all but the lists set; it is not free any more. */
void node_link(struct prefix_index *index, uint32_t id);

/* Out of everything; without children. Its block leaves the index, and its tokens are wiped. */
void node_unlink(struct prefix_index *index, uint32_t id);

/* The bytes are in @block again, which is active, of the node's domain, and not indexed. */
void node_attach(struct prefix_index *index, uint32_t id, uint32_t block);

/* The node stays and its block, which is unpinned and has no resident child, leaves the index. */
void node_detach(struct prefix_index *index, uint32_t id);

/* It is no longer found, and prefix_drop_step() drops it; nobody holds it. */
void node_doom(struct prefix_index *index, uint32_t id);

/* The node is public and found below @parent, by another key, from now on. That is the parent it
 * has, or nobody holds its block. */
void node_move_public(struct prefix_index *index, uint32_t id, uint32_t parent,
		      const struct prefix_key *key);

/* Pins the blocks of a resident node and of the chain above it, so that they stay cached. */
void node_pin_chain(struct prefix_index *index, uint32_t id);
void node_unpin_chain(struct prefix_index *index, uint32_t id);

/* An administrator's pin goes. */
void node_unpin(struct prefix_index *index, uint32_t id);

/* Bits by which the eviction remembers a block. */
uint64_t node_bits(const struct prefix_index *index, uint32_t id);

/* The record of a resident node; @keep_sum: the bytes are as they were. */
void node_record(struct prefix_index *index, uint32_t id, bool keep_sum);

/* The record of a published node says what the node says now; its bytes are the same. */
void node_rewrite(struct prefix_index *index, uint32_t id);

/* Whether the bytes are as they were. If not, the node is doomed. */
bool node_verify(struct prefix_index *index, uint32_t id);

static inline bool node_in_use(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].n_rows > 0;
}

static inline const struct prefix_space *node_space(const struct prefix_index *index,
						    uint32_t id)
{
	return &index->spaces[index->nodes[id].space];
}

static inline bool node_is_partial(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].n_rows < node_space(index, id)->block_tokens;
}

static inline bool node_is_public(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].domain == PREFIX_DOMAIN_PUBLIC;
}

static inline bool node_is_resident(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].block != BLOCK_NONE;
}

/* Its block, or NULL. */
static inline const struct block *node_block(const struct prefix_index *index,
					     uint32_t id)
{
	uint32_t block = index->nodes[id].block;

	return block == BLOCK_NONE ? NULL : block_pool_get(index->pool, block);
}

static inline uint32_t node_pins(const struct prefix_index *index, uint32_t id)
{
	const struct block *b = node_block(index, id);

	return b ? b->pins : 0;
}

static inline uint32_t node_refs(const struct prefix_index *index, uint32_t id)
{
	const struct block *b = node_block(index, id);

	return b ? b->refs : 0;
}

/* Node of a block, or NODE_NONE where it is not indexed. */
static inline uint32_t node_of_block(const struct prefix_index *index, uint32_t block)
{
	return block_pool_get(index->pool, block)->indexed ? index->node_of[block]
							   : NODE_NONE;
}

#endif
