/* SPDX-License-Identifier: MIT */
/* Nodes and their records in the image. See prefix_node.h and image.h. */
#include "daemon/cache/prefix_node.h"

void node_record(struct prefix_index *index, uint32_t id, bool keep_sum)
{
	const struct prefix_node *node = &index->nodes[id];
	const struct image_record fields = {
		.node = id,
		.life = node->life,
		.parent = node->parent,
		.parent_life =
			node->parent == NODE_NONE ? 0 : index->nodes[node->parent].life,
		.domain = node->domain,
		.flags = node->pinned ? IMAGE_PINNED : 0,
		.root = node->root,
		.key = node->key,
	};

	image_commit(index->image, node->block, &fields, node_tokens(index, id),
		     keep_sum);
}

void node_rewrite(struct prefix_index *index, uint32_t id)
{
	const struct prefix_node *node = &index->nodes[id];

	/* one that waits for its record gets the latest anyway, a partial one gets none */
	if (index->image && !node->space && !node->doomed && node->block != BLOCK_NONE &&
	    !index->image->queued[node->block] && !node_is_partial(index, id))
		node_record(index, id, true);
}

void node_unpin(struct prefix_index *index, uint32_t id)
{
	index->nodes[id].pinned = false;
	node_unpin_chain(index, id);
	node_rewrite(index, id);
}

bool node_verify(struct prefix_index *index, uint32_t id)
{
	struct prefix_node *node = &index->nodes[id];

	if (!node->unverified)
		return true;
	if (image_is_committed(index->image, node->block) &&
	    image_bytes_match(index->image, node->block)) {
		node->unverified = false;
		return true;
	}
	index->image->n_bad++;
	index->image->n_lost++;
	node_doom(index, id);
	return false;
}
