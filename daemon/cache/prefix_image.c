/* SPDX-License-Identifier: MIT */
/* The prefix index and its image: writing down what is published, rebuilding from it. */
#include "daemon/cache/prefix_node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t prefix_save(struct prefix_index *index, size_t max_bytes)
{
	size_t each, left = max_bytes;

	if (!index->image)
		return 0;
	each = index->image->block_bytes;
	for (bool first = true; first || left >= each; first = false) {
		uint32_t id = image_take_pending(index->image);

		if (id == BLOCK_NONE)
			break;
		left -= left < each ? left : each;
		/* it may have gone meanwhile, or have come again, with other tokens */
		id = node_of_block(index, id);
		if (id != NODE_NONE && !index->nodes[id].space &&
		    !index->nodes[id].doomed && !node_is_partial(index, id))
			node_record(index, id, false);
	}
	return index->image->n_pending;
}

/* What is known of a record while the index is rebuilt: prefix_node.mark. */
enum { MARK_NONE, MARK_WHOLE, MARK_WALKED, MARK_LINKED };

/**
 * struct rebuild - the work in hand
 * @path: [n_blocks] from a node up to the first ancestor that is settled
 * @order: [n_blocks] nodes as they were linked: parents before children
 */
struct rebuild {
	struct prefix_index *index;
	struct image *image;
	uint32_t *path;
	struct rebuild_block {
		uint64_t use;
		uint32_t rank;
		uint32_t id;
	} * order;
	uint32_t n_linked;
};

/* What can be said of a block's record without looking at others. */
static bool record_possible(const struct rebuild *rb, uint32_t block)
{
	const struct image_record *r = image_record(rb->image, block);
	const struct prefix_index *index = rb->index;

	if (!image_is_committed(rb->image, block))
		return false;
	if (r->domain == BLOCK_DOMAIN_ZERO || r->flags & ~(uint32_t)IMAGE_PINNED)
		return false;
	if (r->domain == PREFIX_DOMAIN_PUBLIC &&
	    memcmp(&r->root, &index->spaces[0].public_root, sizeof(r->root)) != 0)
		return false;
	for (uint32_t i = 0; i < rb->image->block_tokens; i++)
		if (r->tokens[i] < 0)
			return false;
	/* another may say that it is the same node: the first one is */
	return r->node < index->cap_nodes && !index->nodes[r->node].mark &&
	       (r->parent == NODE_NONE ||
		(r->parent < index->cap_nodes && r->parent != r->node));
}

/* Takes the record over into its node, which is in no table yet. */
static void record_take(struct rebuild *rb, uint32_t block)
{
	const struct image_record *r = image_record(rb->image, block);

	rb->index->nodes[r->node] = (struct prefix_node){
		.key = r->key,
		.root = r->root,
		.life = r->life,
		.block = block,
		.domain = r->domain,
		.parent = r->parent,
		.first_child = NODE_NONE,
		.first_public = NODE_NONE,
		.n_rows = rb->image->block_tokens,
		.unverified = true,
		.mark = MARK_WHOLE,
	};
	memcpy(node_tokens(rb->index, r->node), r->tokens,
	       (size_t)rb->image->block_tokens * sizeof(*r->tokens));
}

/* Whether a node may hang below another, as prefix_check() has it. */
static bool parent_fits(const struct rebuild *rb, uint32_t id)
{
	const struct prefix_node *node = &rb->index->nodes[id], *up;

	if (node->parent == NODE_NONE)
		return true;
	up = &rb->index->nodes[node->parent];
	if (up->mark != MARK_LINKED ||
	    up->life != image_record(rb->image, node->block)->parent_life)
		return false;
	return up->domain == PREFIX_DOMAIN_PUBLIC ||
	       (up->domain == node->domain &&
		!memcmp(&up->root, &node->root, sizeof(node->root)));
}

/*
 * The key that the tokens give. A block follows its parent's key where they have one root;
 * below a public block of others it follows its own root, along the same tokens.
 * Return: whether the record has it; -ENOMEM.
 */
static int key_fits(struct rebuild *rb, uint32_t id)
{
	struct prefix_index *index = rb->index;
	const struct prefix_node *node = &index->nodes[id];
	struct prefix_key key = node->root;
	uint32_t n = 0;
	int r = 0;

	if (node->parent != NODE_NONE &&
	    !memcmp(&node->root, &index->nodes[node->parent].root, sizeof(node->root)))
		key = index->nodes[node->parent].key;
	else
		for (uint32_t i = node->parent; i != NODE_NONE;
		     i = index->nodes[i].parent)
			rb->path[n++] = i;
	while (n > 0 && !r)
		r = node_key_next(index, 0, node->domain, &key,
				  node_tokens(index, rb->path[--n]), &key);
	if (!r)
		r = node_key_next(index, 0, node->domain, &key, node_tokens(index, id),
				  &key);
	return r < 0 ? r : !memcmp(&key, &node->key, sizeof(key));
}

/* Equal blocks never stand side by side in an index. */
static bool has_twin(const struct rebuild *rb, uint32_t id)
{
	const struct prefix_index *index = rb->index;
	const struct prefix_node *node = &index->nodes[id];

	for (uint32_t i = *node_bucket(index, &node->key); i != NODE_NONE;
	     i = index->nodes[i].links[PREFIX_BY_KEY].next) {
		const struct prefix_node *other = &index->nodes[i];

		if (other->parent == node->parent &&
		    !memcmp(&other->key, &node->key, sizeof(node->key)) &&
		    !memcmp(&other->root, &node->root, sizeof(node->root)))
			return true;
	}
	return false;
}

/* Settles one whose parent is settled. Return: 0 or -ENOMEM. */
static int link_one(struct rebuild *rb, uint32_t id)
{
	struct prefix_node *node = &rb->index->nodes[id];
	int r = 0;

	node->mark = MARK_NONE;
	if (parent_fits(rb, id))
		r = key_fits(rb, id);
	if (r <= 0 || has_twin(rb, id))
		return r < 0 ? r : 0;
	node->mark = MARK_LINKED;
	node_link(rb->index, id);
	rb->index->node_of[node->block] = id;
	rb->order[rb->n_linked] = (struct rebuild_block){
		.use = rb->image->uses[node->block],
		.rank = rb->n_linked,
		.id = id,
	};
	rb->n_linked++;
	return 0;
}

/* Settles a block and all above it. A chain that bites its tail is dropped. */
static int link_chain(struct rebuild *rb, uint32_t id)
{
	struct prefix_node *nodes = rb->index->nodes;
	uint32_t n = 0, *path = rb->path + rb->image->n_blocks;
	int r = 0;

	while (id != NODE_NONE && nodes[id].mark == MARK_WHOLE) {
		nodes[id].mark = MARK_WALKED;
		path[n++] = id;
		id = nodes[id].parent;
	}
	while (n > 0 && !r)
		r = link_one(rb, path[--n]);
	return r;
}

static int by_use(const void *a, const void *b)
{
	const struct rebuild_block *x = a, *y = b;

	if (x->use != y->use)
		return x->use < y->use ? -1 : 1;
	/* linked last goes first: a child before its parent */
	return x->rank > y->rank ? -1 : x->rank < y->rank;
}

/*
 * Brings the blocks to life in the order in which they shall go. A parent counts as used when
 * its children were, and as found when one of them was; the eviction relies on both.
 */
static void revive(struct rebuild *rb)
{
	struct prefix_index *index = rb->index;
	const struct prefix_node *nodes = index->nodes;
	struct image *image = rb->image;
	struct evict *evict = &index->pool->evict;

	for (uint32_t i = rb->n_linked; i-- > 0;) {
		uint32_t id = rb->order[i].id, parent = nodes[id].parent;
		uint64_t use = image->uses[nodes[id].block], *up;

		rb->order[i].use = use >> 1;
		if (image->clock < use >> 1)
			image->clock = use >> 1;
		if (parent == NODE_NONE)
			continue;
		up = &image->uses[nodes[parent].block];
		*up = (*up >> 1 > use >> 1 ? *up >> 1 : use >> 1) << 1 |
		      ((*up | use) & 1);
	}
	qsort(rb->order, rb->n_linked, sizeof(*rb->order), by_use);
	for (uint32_t i = 0; i < rb->n_linked; i++) {
		uint32_t id = rb->order[i].id, block = nodes[id].block;

		evict_admit(evict, block, node_bits(index, id));
		if (image->uses[block] & 1)
			evict_touch(evict, block);
		block_pool_revive(index->pool, block, nodes[id].domain);
		if ((int32_t)(nodes[id].life - index->lives) > 0)
			index->lives = nodes[id].life;
	}
	for (uint32_t i = 0; i < rb->n_linked; i++) {
		uint32_t id = rb->order[i].id;

		if (!(image_record(image, nodes[id].block)->flags & IMAGE_PINNED))
			continue;
		index->nodes[id].pinned = true;
		node_pin_chain(index, id);
	}
}

/* What was taken and not linked is free, and so is what had no record. */
static void free_rest(struct rebuild *rb)
{
	struct prefix_index *index = rb->index;
	uint32_t *next = &index->free_node;

	for (uint32_t i = 0; i < index->cap_nodes; i++) {
		if (index->nodes[i].mark == MARK_LINKED)
			continue;
		if (index->nodes[i].n_rows)
			explicit_bzero(node_tokens(index, i),
				       index->max_tokens * sizeof(*index->tokens));
		index->nodes[i] = (struct prefix_node){.block = BLOCK_NONE};
		*next = i;
		next = &index->nodes[i].parent;
	}
	*next = NODE_NONE;
	for (uint32_t i = 0; i < rb->image->n_blocks; i++) {
		if (block_pool_get(index->pool, i)->indexed)
			continue;
		image_clear(rb->image, i);
		block_pool_distrust(index->pool, i,
				    image_record(rb->image, i)->life != 0);
	}
	block_pool_relist(index->pool);
}

int prefix_restore(struct prefix_index *index, struct image *image,
		   struct prefix_restored *ret_result)
{
	struct rebuild rb = {.index = index, .image = image};
	uint32_t n_blocks = image->n_blocks, n_records = 0;
	int r = 0;

	/* of key_fits() and of link_chain() */
	rb.path = calloc(n_blocks, 2 * sizeof(*rb.path));
	rb.order = calloc(n_blocks, sizeof(*rb.order));
	if (!rb.path || !rb.order)
		r = -ENOMEM;
	index->keyer.secret = *image_secret(image);
	if (!r)
		r = node_set_public_root(index, 0);
	for (uint32_t i = 0; i < n_blocks && !r; i++) {
		n_records += image_record(image, i)->commit != 0;
		if (record_possible(&rb, i))
			record_take(&rb, i);
	}
	for (uint32_t i = 0; i < index->cap_nodes && !r; i++)
		r = link_chain(&rb, i);
	if (r < 0) {
		node_free_all(index);
	} else {
		index->image = image;
		index->lives = image_lives(image);
		revive(&rb);
		free_rest(&rb);
		*ret_result = (struct prefix_restored){
			.restored = rb.n_linked,
			.dropped = n_records - rb.n_linked,
		};
	}
	free(rb.path);
	free(rb.order);
	return r;
}
