/* SPDX-License-Identifier: MIT */
/*
 * Inside of the prefix index, for prefix.c, prefix_admin.c and prefix_image.c only: putting
 * nodes into the two tables, by key and by first token, taking them out and giving them other
 * keys. Runs on the loop thread. prefix.h says what must hold.
 */
#ifndef KVD_CACHE_PREFIX_NODE_H
#define KVD_CACHE_PREFIX_NODE_H

#include "daemon/cache/prefix.h"

/* Key of the block of @tokens after @parent, which may be @ret_key; computed, or from the
 * memo. Return: 0 or -ENOMEM. */
int node_key_next(struct prefix_index *index, const struct prefix_key *parent,
		  const int32_t *tokens, struct prefix_key *ret_key);

/* [block_tokens] of an indexed block, the first n_rows of them set. */
int32_t *node_tokens(const struct prefix_index *index, uint32_t id);

/* The same block is found below @parent and by another key from now on. That is the parent it
 * has, or nobody holds the block. */
void node_move(struct prefix_index *index, uint32_t id, uint32_t parent,
	       const struct prefix_key *root, const struct prefix_key *key);

/* Public block of @tokens after the public block @parent, or first of all; or BLOCK_NONE.
 * Return: 0 or -ENOMEM. */
int node_find_public(struct prefix_index *index, const int32_t *tokens, uint32_t parent,
		     uint32_t *ret_id);

/* First block of the chain that a key belongs to. */
uint32_t *node_bucket(const struct prefix_index *index, const struct prefix_key *key);

/* First of the blocks that follow @parent, or begin the same root, with the same token. */
uint32_t *node_heads(const struct prefix_index *index, const struct prefix_key *root,
		     uint32_t parent, int32_t token);

/* A node for @id, a block of the chain's domain, below @parent, which is indexed. An open one,
 * of the first @n_rows tokens of block @i, has @parent's key or the chain's root as @key. */
void node_add(struct prefix_index *index, const struct prefix_chain *chain,
	      const struct prefix_key *key, const int32_t *tokens, uint32_t i,
	      uint32_t parent, uint32_t id, uint32_t n_rows);

/* An open block has more tokens of block @i now, and is still open. */
void node_extend(struct prefix_index *index, uint32_t id, const int32_t *tokens,
		 uint32_t i, uint32_t n_rows);

/* An open block has all tokens of block @i now, and the key of a full one. */
void node_complete(struct prefix_index *index, uint32_t id, const struct prefix_key *key,
		   const int32_t *tokens, uint32_t i);

/* A full block into the tables, with key, root, parent and tokens set. */
void node_link(struct prefix_index *index, uint32_t id);

/* Bits by which the eviction remembers a block. */
uint64_t node_bits(const struct prefix_index *index, uint32_t id);

/* The record of a published block says what the node says now; its bytes are the same. */
void node_rewrite(struct prefix_index *index, uint32_t id);

/* Whether the bytes are as they were. If not, the block has left the index. */
bool node_verify(struct prefix_index *index, uint32_t id);

/* Out of the table. */
void node_unlink(struct prefix_index *index, uint32_t id);

static inline bool node_is_open(const struct prefix_index *index, uint32_t id)
{
	return index->nodes[id].n_rows < index->block_tokens;
}

static inline bool node_is_public(const struct prefix_index *index, uint32_t id)
{
	return block_pool_get(index->pool, id)->domain == PREFIX_DOMAIN_PUBLIC;
}

#endif
