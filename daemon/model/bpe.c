/* SPDX-License-Identifier: MIT */
#include "daemon/model/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base.h"

/* Ids are small and differ in few bits, and the mask keeps low bits only: what a product puts into
 * its upper half is folded down, twice. */
static uint32_t pair_hash(uint32_t left, uint32_t right)
{
	uint64_t x = ((uint64_t)left << 32) | right;

	x *= UINT64_C(0x9e3779b97f4a7c15);
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	return (uint32_t)(x >> 32);
}

int bpe_init(struct bpe *bpe, size_t n_merges)
{
	size_t n_slots = 16;

	/* at most 3/4 full, so that a search ends */
	while (n_slots - n_slots / 4 <= n_merges)
		n_slots *= 2;
	if (n_slots > UINT32_MAX)
		return -ENOMEM;
	bpe->slots = malloc(n_slots * sizeof(*bpe->slots));
	if (!bpe->slots)
		return -ENOMEM;
	memset(bpe->slots, 0xff, n_slots * sizeof(*bpe->slots));
	memset(bpe->bytes, 0xff, sizeof(bpe->bytes));
	bpe->mask = (uint32_t)(n_slots - 1);
	return 0;
}

void bpe_deinit(struct bpe *bpe)
{
	free(bpe->slots);
	bpe->slots = NULL;
}

/* Where the pair is, or the empty slot, of rank BPE_NONE, where it would be. */
static struct bpe_slot *find_slot(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	uint32_t i = pair_hash(left, right) & bpe->mask;

	while (bpe->slots[i].rank != BPE_NONE &&
	       (bpe->slots[i].left != left || bpe->slots[i].right != right))
		i = (i + 1) & bpe->mask;
	return &bpe->slots[i];
}

void bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank,
	     uint32_t result)
{
	struct bpe_slot *slot = find_slot(bpe, left, right);

	/* of a pair that the file names twice the first, lower rank counts */
	if (slot->rank != BPE_NONE)
		return;
	*slot = (struct bpe_slot){left, right, rank, result};
}

void bpe_scratch_deinit(struct bpe_scratch *scratch)
{
	/* the text stands in them, in pieces */
	secret_free(scratch->nodes, scratch->cap * sizeof(*scratch->nodes));
	secret_free(scratch->heap, 2 * scratch->cap * sizeof(*scratch->heap));
	memset(scratch, 0, sizeof(*scratch));
}

static int scratch_reserve(struct bpe_scratch *scratch, size_t len)
{
	size_t cap = scratch->cap ? scratch->cap : 64;
	struct bpe_node *nodes;
	struct bpe_pair *heap;

	if (len <= scratch->cap)
		return 0;
	while (cap < len)
		cap *= 2;
	nodes = secret_realloc(scratch->nodes, scratch->cap * sizeof(*nodes),
			       cap * sizeof(*nodes));
	if (!nodes)
		return -ENOMEM;
	scratch->nodes = nodes;
	/* n - 1 pairs at first; each of at most n - 1 merges takes one and adds two */
	heap = secret_realloc(scratch->heap, 2 * scratch->cap * sizeof(*heap),
			      2 * cap * sizeof(*heap));
	if (!heap)
		return -ENOMEM;
	scratch->heap = heap;
	/* both are as long now: nodes alone may be longer, which does no harm */
	scratch->cap = cap;
	return 0;
}

/* The lowest rank first, and of the same pair the leftmost: in "aaa" two overlap, and the order
 * decides what the text becomes. */
static int pair_before(const struct bpe_pair *a, const struct bpe_pair *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(struct bpe_scratch *scratch, struct bpe_pair pair)
{
	size_t i = scratch->n_heap++;

	while (i > 0) {
		size_t parent = (i - 1) / 2;

		if (!pair_before(&pair, &scratch->heap[parent]))
			break;
		scratch->heap[i] = scratch->heap[parent];
		i = parent;
	}
	scratch->heap[i] = pair;
}

static struct bpe_pair heap_pop(struct bpe_scratch *scratch)
{
	struct bpe_pair top = scratch->heap[0];
	struct bpe_pair last = scratch->heap[--scratch->n_heap];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= scratch->n_heap)
			break;
		if (child + 1 < scratch->n_heap &&
		    pair_before(&scratch->heap[child + 1], &scratch->heap[child]))
			child++;
		if (!pair_before(&scratch->heap[child], &last))
			break;
		scratch->heap[i] = scratch->heap[child];
		i = child;
	}
	scratch->heap[i] = last;
	return top;
}

/* Queues the pair that begins at node @left, if it is one. */
static void queue_pair(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t left)
{
	const struct bpe_node *node = &scratch->nodes[left];
	const struct bpe_slot *slot;
	uint32_t right_symbol;

	if (node->next == BPE_NONE)
		return;
	right_symbol = scratch->nodes[node->next].symbol;
	slot = find_slot(bpe, node->symbol, right_symbol);
	if (slot->rank == BPE_NONE)
		return;
	heap_push(scratch,
		  (struct bpe_pair){slot->rank, left, node->symbol, right_symbol});
}

/*
 * What comes of merging the pair of lowest rank again and again. Looking through all pairs for it
 * each time would be quadratic, and a client chooses the length; with a heap of pairs and symbols
 * in a list, a merge costs two new pairs.
 */
int bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, const uint8_t *piece,
	      size_t len)
{
	struct bpe_node *nodes;
	int r;

	r = scratch_reserve(scratch, len);
	if (r < 0)
		return r;
	nodes = scratch->nodes;
	scratch->n_heap = 0;
	for (size_t i = 0; i < len; i++) {
		nodes[i].symbol = bpe->bytes[piece[i]];
		nodes[i].prev = i ? (uint32_t)i - 1 : BPE_NONE;
		nodes[i].next = i + 1 < len ? (uint32_t)i + 1 : BPE_NONE;
	}
	for (size_t i = 0; i + 1 < len; i++)
		queue_pair(bpe, scratch, (uint32_t)i);
	while (scratch->n_heap) {
		struct bpe_pair pair = heap_pop(scratch);
		struct bpe_node *left = &nodes[pair.left], *right;
		uint32_t next = left->next;

		/* A pair whose side was merged meanwhile is stale. Symbols grow with each
		 * merge, so equal symbols mean an untouched pair. */
		if (left->symbol != pair.left_symbol || next == BPE_NONE)
			continue;
		right = &nodes[next];
		if (right->symbol != pair.right_symbol)
			continue;
		left->symbol = find_slot(bpe, left->symbol, right->symbol)->result;
		left->next = right->next;
		right->symbol = BPE_NONE;
		if (left->next != BPE_NONE)
			nodes[left->next].prev = pair.left;
		queue_pair(bpe, scratch, pair.left);
		if (left->prev != BPE_NONE)
			queue_pair(bpe, scratch, left->prev);
	}
	return 0;
}
