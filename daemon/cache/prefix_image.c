/* SPDX-License-Identifier: MIT */
/* The prefix index and its image: writing down what is published, rebuilding from it. */
#include "daemon/cache/prefix_node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void node_record(struct prefix_index *index, uint32_t id, bool keep_sum)
{
	const struct prefix_node *node = &index->nodes[id];
	const struct block *b = block_pool_get(index->pool, id);
	const struct image_record fields = {
		.life = b->generation,
		.parent = node->parent,
		.parent_life =
			node->parent == BLOCK_NONE
				? 0
				: block_pool_get(index->pool, node->parent)->generation,
		.domain = b->domain,
		.flags = node->held ? IMAGE_HELD : 0,
		.root = node->root,
		.key = node->key,
	};

	image_commit(index->image, id, &fields, node_tokens(index, id), keep_sum);
}

void node_rewrite(struct prefix_index *index, uint32_t id)
{
	/* one that waits for its record gets the latest anyway, an open one gets none */
	if (index->image && !index->image->queued[id] && !node_is_open(index, id))
		node_record(index, id, true);
}

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
		if (block_pool_get(index->pool, id)->indexed && !node_is_open(index, id))
			node_record(index, id, false);
	}
	return index->image->n_pending;
}

bool node_verify(struct prefix_index *index, uint32_t id)
{
	if (!index->nodes[id].unverified)
		return true;
	if (image_is_committed(index->image, id) && image_bytes_match(index->image, id)) {
		index->nodes[id].unverified = false;
		return true;
	}
	index->image->n_bad++;
	index->image->n_lost += prefix_drop(index, id);
	return false;
}

/* What is known of a record while the index is rebuilt: prefix_node.mark. */
enum { MARK_NONE, MARK_WHOLE, MARK_WALKED, MARK_LINKED };

/**
 * struct rebuild - the work in hand
 * @path: [n_blocks] from a block up to the first ancestor that is settled
 * @order: [n_blocks] blocks as they were linked: parents before children
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

/* What can be said of a record without looking at others. */
static bool record_possible(const struct rebuild *rb, uint32_t id)
{
	const struct image_record *r = image_record(rb->image, id);

	if (!image_is_committed(rb->image, id))
		return false;
	if (r->domain == BLOCK_DOMAIN_ZERO || r->flags & ~(uint32_t)IMAGE_HELD)
		return false;
	if (r->domain == PREFIX_DOMAIN_PUBLIC &&
	    memcmp(&r->root, &rb->index->public_root, sizeof(r->root)) != 0)
		return false;
	for (uint32_t i = 0; i < rb->image->block_tokens; i++)
		if (r->tokens[i] < 0)
			return false;
	return r->parent == BLOCK_NONE ||
	       (r->parent < rb->image->n_blocks && r->parent != id);
}

/* Takes the record over into the node, which is in no table yet. */
static void record_take(struct rebuild *rb, uint32_t id)
{
	const struct image_record *r = image_record(rb->image, id);

	rb->index->nodes[id] = (struct prefix_node){
		.key = r->key,
		.root = r->root,
		.parent = r->parent,
		.n_rows = rb->image->block_tokens,
		.unverified = true,
		.mark = MARK_WHOLE,
	};
	memcpy(node_tokens(rb->index, id), r->tokens,
	       (size_t)rb->image->block_tokens * sizeof(*r->tokens));
}

/* Whether a block may hang below another, as prefix_check() has it. */
static bool parent_fits(const struct rebuild *rb, uint32_t id)
{
	const struct image_record *r = image_record(rb->image, id), *up;

	if (r->parent == BLOCK_NONE)
		return true;
	if (rb->index->nodes[r->parent].mark != MARK_LINKED)
		return false;
	up = image_record(rb->image, r->parent);
	if (up->life != r->parent_life)
		return false;
	return up->domain == PREFIX_DOMAIN_PUBLIC ||
	       (up->domain == r->domain && !memcmp(&up->root, &r->root, sizeof(r->root)));
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

	if (node->parent != BLOCK_NONE &&
	    !memcmp(&node->root, &index->nodes[node->parent].root, sizeof(node->root)))
		key = index->nodes[node->parent].key;
	else
		for (uint32_t i = node->parent; i != BLOCK_NONE;
		     i = index->nodes[i].parent)
			rb->path[n++] = i;
	while (n > 0 && !r)
		r = node_key_next(index, &key, node_tokens(index, rb->path[--n]), &key);
	if (!r)
		r = node_key_next(index, &key, node_tokens(index, id), &key);
	return r < 0 ? r : !memcmp(&key, &node->key, sizeof(key));
}

/* Equal blocks never stand side by side in an index. */
static bool has_twin(const struct rebuild *rb, uint32_t id)
{
	const struct prefix_index *index = rb->index;
	const struct prefix_node *node = &index->nodes[id];

	for (uint32_t i = *node_bucket(index, &node->key); i != BLOCK_NONE;
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
	rb->order[rb->n_linked] = (struct rebuild_block){
		.use = rb->image->uses[id],
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

	while (id != BLOCK_NONE && nodes[id].mark == MARK_WHOLE) {
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
	struct image *image = rb->image;
	struct evict *evict = &index->pool->evict;

	for (uint32_t i = rb->n_linked; i-- > 0;) {
		uint32_t id = rb->order[i].id, parent = index->nodes[id].parent;
		uint64_t use = image->uses[id], up;

		rb->order[i].use = use >> 1;
		if (image->clock < use >> 1)
			image->clock = use >> 1;
		if (parent == BLOCK_NONE)
			continue;
		up = image->uses[parent];
		image->uses[parent] =
			(up >> 1 > use >> 1 ? up >> 1 : use >> 1) << 1 | ((up | use) & 1);
	}
	qsort(rb->order, rb->n_linked, sizeof(*rb->order), by_use);
	for (uint32_t i = 0; i < rb->n_linked; i++) {
		uint32_t id = rb->order[i].id;
		const struct image_record *r = image_record(image, id);

		evict_admit(evict, id, node_bits(index, id));
		if (image->uses[id] & 1)
			evict_touch(evict, id);
		block_pool_revive(index->pool, id, r->domain, r->life);
		index->n_public += r->domain == PREFIX_DOMAIN_PUBLIC;
	}
	for (uint32_t i = 0; i < rb->n_linked; i++) {
		uint32_t id = rb->order[i].id;

		if (!(image_record(image, id)->flags & IMAGE_HELD))
			continue;
		index->nodes[id].held = true;
		prefix_pin(index, id);
	}
}

static void unlink_all(struct rebuild *rb)
{
	struct prefix_index *index = rb->index;

	for (uint32_t i = 0; i < index->n_buckets; i++)
		index->buckets[i] = index->heads[i] = BLOCK_NONE;
	memset(index->nodes, 0, (size_t)rb->image->n_blocks * sizeof(*index->nodes));
	index->n_nodes = 0;
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
	for (uint32_t i = 0; i < n_blocks && !r; i++) {
		n_records += image_record(image, i)->commit != 0;
		if (record_possible(&rb, i))
			record_take(&rb, i);
	}
	for (uint32_t i = 0; i < n_blocks && !r; i++)
		r = link_chain(&rb, i);
	if (r < 0) {
		unlink_all(&rb);
	} else {
		index->image = image;
		revive(&rb);
		for (uint32_t i = 0; i < n_blocks; i++) {
			if (index->nodes[i].mark == MARK_LINKED)
				continue;
			image_clear(image, i);
			/* one more life may have had a name and no record */
			block_pool_distrust(index->pool, i,
					    image_record(image, i)->life + 1);
		}
		block_pool_relist(index->pool);
		*ret_result = (struct prefix_restored){
			.restored = rb.n_linked,
			.dropped = n_records - rb.n_linked,
		};
	}
	free(rb.path);
	free(rb.order);
	return r;
}
