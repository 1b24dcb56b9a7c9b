/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_BPE_H
#define KVD_DAEMON_MODEL_BPE_H

/*
 * Byte pair merging: turns one piece of bytes into symbols by always merging the adjacent pair of
 * the lowest rank, leftmost first among equals. Symbols below n_tokens are the vocabulary's tokens;
 * those above are byte strings that merges pass through but no token spells.
 *
 * Owns the table of merges, immutable once filled: any number of threads may merge, each with a
 * scratch of its own. O(n log n). Source: Sennrich et al., arXiv 1508.07909, as in the GPT-2
 * release.
 */

#include <stddef.h>
#include <stdint.h>

#define BPE_NONE UINT32_MAX

struct bpe_slot {
	uint32_t left, right;
	uint32_t rank;
	uint32_t result;
};

/* @bytes: symbol of each byte. @slots: [mask + 1] open addressing; rank BPE_NONE is empty */
struct bpe {
	uint32_t bytes[256];
	struct bpe_slot *slots;
	uint32_t mask;
};

struct bpe_node {
	uint32_t symbol; /* BPE_NONE once merged into its left neighbour */
	uint32_t prev, next;
};

struct bpe_pair {
	uint32_t rank;
	uint32_t left; /* node; with equal ranks the lower one goes first */
	uint32_t left_symbol, right_symbol;
};

/* All-zero is empty. */
struct bpe_scratch {
	struct bpe_node *nodes;
	struct bpe_pair *heap;
	size_t cap; /* bytes of a piece that fit */
	size_t n_heap;
};

/* Room for @n_merges; bytes[] is filled with BPE_NONE. Return: 0 or -ENOMEM. */
int bpe_init(struct bpe *bpe, size_t n_merges);
void bpe_deinit(struct bpe *bpe);
/* Adds a merge; of two with one pair the first stays. At most n_merges calls. */
void bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank,
	     uint32_t result);

void bpe_scratch_deinit(struct bpe_scratch *scratch);

/* Merges one piece of @len bytes, 1 <= @len < 2^30. The symbols then are the nodes of
 * scratch->nodes from index 0 on, by next (BPE_NONE ends the list); node i begins at byte i of the
 * piece. Return: 0 or -ENOMEM. */
int bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, const uint8_t *piece,
	      size_t len);

#endif
