/* SPDX-License-Identifier: MIT */
/* See prefix_walk.h. */
#include "daemon/cache/prefix_walk.h"

/* The tree in work is done, or has gone: @parent was before it. */
static void leave_tree(struct prefix_flush *f, uint32_t parent)
{
	f->at = f->top = NODE_NONE;
	if (f->kind == FLUSH_ALL || f->kind == FLUSH_DOMAIN) {
		f->phase = FLUSH_SCAN;
	} else if (f->kind == FLUSH_DROP || f->phase == FLUSH_COUNT_WALK) {
		f->phase = FLUSH_DONE;
	} else {
		f->at = parent;
		f->phase = FLUSH_CLIMB;
	}
}

void walk_advance(struct prefix_flush *f)
{
	const struct prefix_node *node = &f->index->nodes[f->at];

	switch (f->phase) {
	case FLUSH_WALK:
	case FLUSH_COUNT_WALK:
		if (f->at == f->top) {
			leave_tree(f, node->parent);
			break;
		}
		f->up = node->siblings.next == NODE_NONE;
		f->at = f->up ? node->parent : node->siblings.next;
		break;
	case FLUSH_ENDS:
		f->at = node->siblings.next;
		break;
	case FLUSH_CLIMB:
		f->at = node->parent;
		break;
	default:
		break;
	}
}

void walks_leave(struct prefix_index *index, uint32_t id)
{
	for (struct prefix_flush *f = index->flushes; f; f = f->next) {
		if (f->at == id)
			walk_advance(f);
		if (f->top != id)
			continue;
		/* without children, it had none left to do */
		f->top = NODE_NONE;
		if (f->phase == FLUSH_ENDS) {
			f->at = index->nodes[id].parent;
			f->phase = FLUSH_CLIMB;
		}
	}
}

void walk_keep(struct prefix_flush *f)
{
	bool top = f->at == f->top, tree = f->kind == FLUSH_TREE;

	if (!top || !tree || f->phase == FLUSH_COUNT_WALK) {
		walk_advance(f);
		return;
	}
	/* what is before it stays as well; what is left below it is counted */
	f->phase = FLUSH_COUNT_WALK;
	f->up = false;
}

/* Whether the walk of a tree is at a node of that tree, or below it. */
static bool is_in(const struct prefix_flush *f, uint32_t id)
{
	uint32_t at = f->at;

	if (f->phase != FLUSH_WALK && f->phase != FLUSH_COUNT_WALK)
		return false;
	while (at != id && at != f->top)
		at = f->index->nodes[at].parent;
	return at == id;
}

void walks_lose(struct prefix_index *index, uint32_t id)
{
	for (struct prefix_flush *f = index->flushes; f; f = f->next) {
		if (f->phase == FLUSH_ENDS && f->at == id)
			walk_advance(f);
		if (!is_in(f, id))
			continue;
		/* it becomes public, with a pin: what was not reached is what remains */
		f->at = id;
		f->up = true;
		walk_keep(f);
	}
}
