/* SPDX-License-Identifier: MIT */
/*
 * Flushes and drops, piece by piece. See prefix_flush.h.
 *
 * A tree is walked children first, so that what goes never has a child: the next node is the
 * first child of the first child..., then its sibling, then their parent. Each step is a bounded
 * piece of work; between two of them a flush stands at a node (prefix_walk.h). Who
 * publishes below a node that is yet to go has published for nothing: the walk comes
 * back down.
 *
 * A domain's trees are found by a pass over the slab: a node of the domain whose parent is none, or
 * is public and not of the domain. A second pass counts what is left. Trees that were published
 * after the beginning are left alone, so that a flush ends however much is published meanwhile.
 */
#include "daemon/cache/prefix_flush.h"

#include <stddef.h>

#include "daemon/cache/prefix_node.h"
#include "daemon/cache/prefix_walk.h"

static void begin(struct prefix_index *index, struct prefix_flush *f,
		  enum prefix_flush_kind kind, enum prefix_flush_phase phase)
{
	*f = (struct prefix_flush){
		.index = index,
		.next = index->flushes,
		.kind = kind,
		.phase = phase,
		.life = index->lives,
		.top = NODE_NONE,
		.at = NODE_NONE,
	};
	if (f->next)
		f->next->prev = f;
	index->flushes = f;
}

void prefix_flush_all(struct prefix_index *index, struct prefix_flush *f)
{
	begin(index, f, FLUSH_ALL, FLUSH_SCAN);
}

void prefix_flush_domain(struct prefix_index *index, struct prefix_flush *f,
			 uint32_t domain)
{
	begin(index, f, FLUSH_DOMAIN, FLUSH_SCAN);
	f->domain = domain;
}

static void begin_tree(struct prefix_flush *f, uint32_t top)
{
	f->top = f->at = top;
	f->up = false;
	f->phase = FLUSH_WALK;
}

void prefix_flush_chain(struct prefix_index *index, struct prefix_flush *f, uint32_t node,
			bool tree)
{
	begin(index, f, tree ? FLUSH_TREE : FLUSH_CHAIN, FLUSH_ENDS);
	f->domain = index->nodes[node].domain;
	if (tree) {
		begin_tree(f, node);
		return;
	}
	f->top = node;
	f->at = index->nodes[node].first_child;
}

void prefix_flush_end(struct prefix_flush *f)
{
	if (!f->index)
		return;
	/* of others nothing goes, or they would see by the time it takes that somebody flushed */
	if (f->kind != FLUSH_DROP)
		node_wipe_memo(f->index, f->kind == FLUSH_ALL, f->domain);
	if (f->next)
		f->next->prev = f->prev;
	if (f->prev)
		f->prev->next = f->next;
	else
		f->index->flushes = f->next;
	f->index = NULL;
}

static bool is_newer(const struct prefix_flush *f, const struct prefix_node *node)
{
	return (int32_t)(node->life - f->life) > 0;
}

/* Whether a tree to be flushed begins at this node. */
static bool is_top(const struct prefix_flush *f, const struct prefix_node *node)
{
	if (!node->n_rows || is_newer(f, node))
		return false;
	if (f->kind == FLUSH_ALL)
		return node->parent == NODE_NONE;
	return node->domain == f->domain &&
	       (node->parent == NODE_NONE ||
		f->index->nodes[node->parent].domain != f->domain);
}

/* A node goes, or says why not. @f->at moves on in any case. */
static void take(struct prefix_flush *f)
{
	struct prefix_index *index = f->index;
	uint32_t id = f->at;

	if (f->kind == FLUSH_DROP && index->nodes[id].pinned)
		node_unpin(index, id);
	if (node_pins(index, id)) {
		f->result.kept_pinned++;
		walk_keep(f);
		return;
	}
	if (node_refs(index, id))
		f->result.kept_active++;
	else
		f->result.flushed += node_is_resident(index, id);
	if (f->kind == FLUSH_DROP)
		index->image->n_lost += !index->nodes[id].doomed;
	node_unlink(index, id);
}

/* What others have below a public block stays where that does. */
static bool is_kept_by_parent(const struct prefix_flush *f, uint32_t id)
{
	const struct prefix_index *index = f->index;
	uint32_t parent = index->nodes[id].parent;

	return f->kind == FLUSH_DOMAIN && id != f->top && !node_is_public(index, id) &&
	       node_is_public(index, parent) && node_pins(index, parent);
}

static uint32_t step_walk(struct prefix_flush *f)
{
	const struct prefix_node *node = &f->index->nodes[f->at];
	bool stays = f->kind != FLUSH_DROP && node_pins(f->index, f->at);

	if (is_kept_by_parent(f, f->at)) {
		walk_advance(f);
		return PREFIX_LOOK_COST;
	}
	/* what stays has its children looked at once, what goes must have none */
	if (node->first_child != NODE_NONE && !(f->up && stays)) {
		f->at = node->first_child;
		f->up = false;
		return PREFIX_LOOK_COST;
	}
	take(f);
	return PREFIX_NODE_COST;
}

static uint32_t step_count_walk(struct prefix_flush *f)
{
	const struct prefix_node *node = &f->index->nodes[f->at];

	if (node->first_child != NODE_NONE && !f->up) {
		f->at = node->first_child;
		return PREFIX_LOOK_COST;
	}
	f->result.remaining += !node_pins(f->index, f->at) && !is_newer(f, node);
	walk_advance(f);
	return PREFIX_LOOK_COST;
}

/* The partial blocks after a prefix are the odd ends of it, of whatever domain. */
static uint32_t step_ends(struct prefix_flush *f)
{
	if (f->at == NODE_NONE) {
		f->at = f->top;
		f->top = NODE_NONE;
		f->phase = f->at == NODE_NONE ? FLUSH_DONE : FLUSH_CLIMB;
		return PREFIX_LOOK_COST;
	}
	if (!node_is_partial(f->index, f->at)) {
		walk_advance(f);
		return PREFIX_LOOK_COST;
	}
	take(f);
	return PREFIX_NODE_COST;
}

/* Up the chain, as long as no other prefix has the block. */
static uint32_t step_climb(struct prefix_flush *f)
{
	const struct prefix_node *nodes = f->index->nodes;

	if (f->at == NODE_NONE || nodes[f->at].n_children ||
	    nodes[f->at].domain != f->domain) {
		f->phase = FLUSH_DONE;
		return PREFIX_LOOK_COST;
	}
	if (node_pins(f->index, f->at))
		f->phase = FLUSH_DONE;
	take(f);
	return PREFIX_NODE_COST;
}

/* The slab from front to back. */
static uint32_t step_pass(struct prefix_flush *f)
{
	const struct prefix_node *node = &f->index->nodes[f->next_node];
	bool counting = f->phase == FLUSH_COUNT;

	if (f->next_node == f->index->cap_nodes) {
		f->phase = counting ? FLUSH_DONE : FLUSH_COUNT;
		f->next_node = 0;
		return PREFIX_LOOK_COST;
	}
	if (counting)
		f->result.remaining +=
			node->n_rows && !is_newer(f, node) &&
			(f->kind == FLUSH_ALL || node->domain == f->domain) &&
			!node_pins(f->index, f->next_node);
	else if (is_top(f, node))
		begin_tree(f, f->next_node);
	f->next_node++;
	return PREFIX_LOOK_COST;
}

bool prefix_flush_step(struct prefix_flush *f, uint32_t work)
{
	static uint32_t (*const steps[])(struct prefix_flush *) = {
		[FLUSH_SCAN] = step_pass,  [FLUSH_WALK] = step_walk,
		[FLUSH_ENDS] = step_ends,  [FLUSH_CLIMB] = step_climb,
		[FLUSH_COUNT] = step_pass, [FLUSH_COUNT_WALK] = step_count_walk,
	};
	uint32_t done = 0;

	while (f->phase != FLUSH_DONE && done < work)
		done += steps[f->phase](f);
	return f->phase == FLUSH_DONE;
}

bool prefix_drop_step(struct prefix_index *index, struct prefix_flush *drop,
		      uint32_t work)
{
	if (!drop->index && index->doomed != NODE_NONE) {
		begin(index, drop, FLUSH_DROP, FLUSH_WALK);
		begin_tree(drop, index->doomed);
	}
	if (drop->index && prefix_flush_step(drop, work))
		prefix_flush_end(drop);
	return index->doomed != NODE_NONE;
}
