/* SPDX-License-Identifier: MIT */
/*
 * Rings of the smallest sizes, in all states that can be reached: ring_daemon.c and ring_client.c
 * themselves run here access by access, and after each one the other side may act.
 *
 * The daemon is the loop of daemon/serve/ring_watch.c for one ring: it answers an SQE at once
 * or later. The client is libkvclient's way of using a ring, or writes whatever it likes.
 */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base.h"
#include "tests/unit/ipc/ring_model.h"
#include "tests/unit/suite.h"

/* Where the loop is; ROUND: before it looks at the ring again, with room for events. */
enum d_at {
	D_COLD,
	D_ROUND,
	D_RESUME,
	D_TAKING,
	D_TAKEN,
	D_ANSWER,
	D_ARMING,
	D_TELL,
	D_LATE,
	D_DEAD
};
enum c_at {
	C_TOP,
	C_TELL,
	C_TAKING,
	C_ARMING,
	C_LOOKING,
	C_ROOM,
	C_SLEEP,
	C_AWAKE,
	C_DONE
};

static const char *const op_names[] = {"-",      "take",    "post",   "notify", "arm",
				       "disarm", "c.put",   "c.kick", "c.take", "c.arm",
				       "c.look", "c.space", "c.wake", "c.stay"};

/* --- states that were seen, and how they were reached ------------------------------------ */

struct node {
	uint32_t parent;
	uint8_t what, arg;
};

#define MAX_STATES (UINT32_C(1) << 24)

static uint64_t *seen;
static struct node *nodes;
static uint32_t n_nodes;
static struct state *todo;
static uint32_t *todo_node;
static size_t n_todo, max_todo;

static uint64_t hash_of(const struct state *s)
{
	uint64_t h = 0x9e3779b97f4a7c15u, v;

	for (size_t i = 0; i < sizeof(*s); i += sizeof(v)) {
		v = 0;
		memcpy(&v, (const char *)s + i,
		       i + sizeof(v) <= sizeof(*s) ? sizeof(v) : sizeof(*s) - i);
		h = (h ^ v) * 0xff51afd7ed558ccdu;
		h ^= h >> 29;
	}
	return h ? h : 1;
}

static bool is_new(uint64_t h)
{
	size_t i = h & (MAX_STATES - 1);

	while (seen[i] && seen[i] != h)
		i = (i + 1) & (MAX_STATES - 1);
	if (seen[i])
		return false;
	seen[i] = h;
	return true;
}

enum what { START, DAEMON, CLIENT, ANSWER, LATER, EVENT, BELL, SEEN_D, SEEN_C, WRITE };

static void add(const struct state *s, uint32_t parent, enum what what, uint8_t arg)
{
	if (!is_new(hash_of(s)))
		return;
	ck_assert_uint_lt(n_nodes, MAX_STATES / 2);
	nodes[n_nodes] = (struct node){parent, (uint8_t)what, arg};
	if (n_todo == max_todo) {
		max_todo = max_todo ? 2 * max_todo : 1024;
		todo = reallocarray(todo, max_todo, sizeof(*todo));
		todo_node = reallocarray(todo_node, max_todo, sizeof(*todo_node));
	}
	todo[n_todo] = *s;
	todo_node[n_todo++] = n_nodes++;
}

static uint32_t node_now;

static void print_way(uint32_t node)
{
	static const char *const names[] = {
		"start", "daemon", "client",         "answered",       "kept",
		"event", "bell",   "daemon's store", "client's store", "client writes"};
	const struct node *n = &nodes[node];

	if (node)
		print_way(n->parent);
	if (n->what == WRITE)
		fprintf(stderr, "  word %u = %u\n", n->arg & 15u, n->arg >> 4);
	else
		fprintf(stderr, "  %s %s\n", names[n->what],
			n->what == DAEMON || n->what == CLIENT ? op_names[n->arg] : "");
}

static void claim(bool holds, const char *what)
{
	if (holds)
		return;
	print_way(node_now);
	ck_abort_msg("%s", what);
}

/* --- what a call leads to ----------------------------------------------------------- */

static uint32_t result;

static void d_returned(struct state *s, enum op op)
{
	switch ((enum d_at)s->d_at) {
	case D_COLD:
	case D_ROUND:
		s->d_at = D_ROUND;
		break;
	case D_RESUME:
	case D_ANSWER:
	case D_LATE:
		if (result == RING_OK) {
			s->dirty = s->worked = 1;
			s->busy = 0;
		}
		if (s->d_at == D_RESUME) {
			s->blocked -= result == RING_OK;
			s->d_at = result == RING_OK && s->blocked ? D_RESUME : D_TAKING;
		} else if (s->d_at == D_ANSWER) {
			claim(result != RING_FULL,
			      "an SQE was taken for which there is no room");
			s->d_at = D_TAKING;
		} else {
			/* session_ring_post(): a cold ring stays cold, unless others wait */
			s->worked = 0;
			s->blocked += result == RING_FULL;
			s->d_at = D_TELL;
			if (result == RING_OK && s->was_full)
				s->d_next = D_ROUND;
			s->was_full = 0;
		}
		break;
	case D_TAKING:
		if (result == RING_OK) {
			s->dirty = s->worked = 1;
			s->busy = 0;
			s->d_at = D_TAKEN;
		} else {
			s->d_at = s->worked ? D_TELL : D_ARMING;
			s->d_next = D_ROUND;
			s->worked = 0;
		}
		break;
	case D_ARMING:
		if (result == RING_BUSY)
			claim(++s->busy < 2,
			      "busy twice with nothing done in between: it spins");
		else
			s->busy = 0;
		s->d_next = result == RING_OK ? D_COLD : D_ROUND;
		s->d_at = D_TELL;
		break;
	case D_TELL:
		s->dirty = 0;
		s->d_at = s->d_next;
		s->d_next = 0;
		break;
	case D_TAKEN:
	case D_DEAD:
		break;
	}
	if (op != D_NOTIFY && op != D_DISARM && result == RING_FAULT)
		s->d_at = D_DEAD;
	/* Only a ring with news is notified. */
	if (s->d_at == D_TELL && !s->dirty) {
		s->d_at = s->d_next;
		s->d_next = 0;
	}
	if (s->d_at == D_RESUME && !s->blocked)
		s->d_at = D_TAKING;
}

static void c_returned(struct state *s, unsigned n)
{
	switch ((enum c_at)s->c_at) {
	case C_TOP:
		s->full = result == RING_FULL;
		s->sent += result == RING_OK;
		if (s->full)
			s->c_at = C_TELL;
		break;
	case C_TELL:
		s->c_at = C_TAKING;
		break;
	case C_TAKING:
		claim(result == RING_OK || result == RING_EMPTY,
		      "a completion is lost, twice there or overwritten");
		s->got += result == RING_OK;
		s->c_at = result == RING_OK ? C_TOP : C_ARMING;
		if (result == RING_OK)
			s->full = 0;
		if (s->got == n)
			s->c_at = C_DONE;
		break;
	case C_ARMING:
		s->c_at = C_LOOKING;
		break;
	case C_LOOKING:
		s->c_at = result ? C_AWAKE : s->full ? C_ROOM : C_SLEEP;
		break;
	case C_ROOM:
		s->c_at = result ? C_AWAKE : C_SLEEP;
		break;
	case C_SLEEP:
	case C_AWAKE:
		s->full = 0;
		s->c_at = C_TOP;
		break;
	case C_DONE:
		break;
	}
}

/* --- who may do what ------------------------------------------------------------------------ */

static void go_daemon(const struct state *s, uint32_t node, enum op op)
{
	struct state t = *s;

	if (model_step(&t, 0, op, &result))
		d_returned(&t, op);
	add(&t, node, DAEMON, (uint8_t)op);
}

static void daemon_acts(const struct state *s, uint32_t node)
{
	static const uint8_t ops[] = {
		[D_RESUME] = D_POST, [D_TAKING] = D_TAKE, [D_ANSWER] = D_POST,
		[D_ARMING] = D_ARM,  [D_TELL] = D_NOTIFY, [D_LATE] = D_POST,
	};
	struct state t = *s;

	if (s->sides[0].op) {
		go_daemon(s, node, (enum op)s->sides[0].op);
		return;
	}
	switch ((enum d_at)s->d_at) {
	case D_ROUND:
		t.d_at = s->blocked ? D_RESUME : D_TAKING;
		add(&t, node, START, 0);
		/* fall through */
	case D_COLD:
		/* events: its doorbell, and an answer that comes late */
		if (s->words[SUBMIT])
			go_daemon(s, node, D_DISARM);
		if (s->late) {
			t = *s;
			t.late--;
			t.d_next = s->d_at;
			t.d_at = D_LATE;
			t.was_full = ring_daemon_cq_full(&s->d);
			add(&t, node, EVENT, 0);
		}
		break;
	case D_TAKEN:
		t.d_at = D_ANSWER;
		add(&t, node, ANSWER, 0);
		t.d_at = D_TAKING;
		t.late++;
		add(&t, node, LATER, 0);
		break;
	case D_DEAD:
		claim(model_call(&t, D_TAKE) == RING_FAULT &&
			      model_call(&t, D_POST) == RING_FAULT &&
			      model_call(&t, D_ARM) == RING_FAULT,
		      "a fault is not final");
		break;
	default:
		go_daemon(s, node, (enum op)ops[s->d_at]);
	}
}

static void stores_reach(const struct state *s, uint32_t node)
{
	for (int i = 0; i < 2; i++) {
		struct state t = *s;

		if (!s->sides[i].n_buffer)
			continue;
		model_flush(&t, (unsigned)i);
		if (i)
			t.busy = 0;
		add(&t, node, i ? SEEN_C : SEEN_D, 0);
	}
}

static void go_client(const struct state *s, uint32_t node, enum op op, unsigned n)
{
	struct state t = *s;

	t.busy = 0;
	if (model_step(&t, 1, op, &result))
		c_returned(&t, n);
	add(&t, node, CLIENT, (uint8_t)op);
}

/* As libkvclient does it: some puts, a kick, takes; then it sleeps. */
static void honest_acts(const struct state *s, uint32_t node, unsigned n)
{
	static const uint8_t ops[] = {
		[C_TOP] = C_PUT,    [C_TELL] = C_KICK,    [C_TAKING] = C_TAKE,
		[C_ARMING] = C_ARM, [C_LOOKING] = C_LOOK, [C_ROOM] = C_SPACE,
		[C_SLEEP] = C_WAKE, [C_AWAKE] = C_STAY,
	};
	struct state t = *s;

	if (s->sides[1].op) {
		go_client(s, node, (enum op)s->sides[1].op, n);
		return;
	}
	if (s->c_at == C_TOP) {
		if (s->sent < n)
			go_client(s, node, C_PUT, n);
		if (s->sent > s->got) {
			t.c_at = C_TELL;
			add(&t, node, START, 0);
		}
	} else if (s->c_at != C_DONE && (s->c_at != C_SLEEP || s->words[COMPLETE])) {
		go_client(s, node, (enum op)ops[s->c_at], n);
	}
}

static void honest_is_served(const struct state *s, unsigned n)
{
	bool still = s->d_at == D_COLD && !s->sides[0].op && !s->sides[0].n_buffer &&
		     !s->words[SUBMIT] && !s->late;

	claim(s->d_at != D_DEAD, "an honest client is taken for a faulty one");
	if (!still || s->sides[1].op || s->sides[1].n_buffer)
		return;
	claim(s->c_at != C_SLEEP || s->words[COMPLETE], "both sleep: a wake-up is lost");
	if (s->c_at == C_DONE)
		claim(s->d.cq_pos == n && s->d.sq_pos == n && !s->blocked,
		      "what was asked is not what was answered");
}

static void write_word(const struct state *s, uint32_t node, unsigned word,
		       uint64_t value)
{
	struct state t = *s;

	if (model_widen(s->words[word]) == value)
		return;
	t.words[word] = (uint8_t)value;
	t.busy = 0;
	add(&t, node, WRITE, (uint8_t)(word | (value & 15) << 4));
}

/* Anything that may matter, at any moment; @n: entries that it publishes at most. */
static void hostile_acts(const struct state *s, uint32_t node, unsigned n)
{
	uint64_t pos = s->d.sq_pos;

	for (unsigned i = 0; i < s->d.sq_entries; i++) {
		uint64_t at = pos + i, lap = s->d.sq_entries;
		unsigned word = SQ_SEQ + (unsigned)(at & (lap - 1));

		write_word(s, node, word, at + 1 > lap ? at + 1 - lap : 0);
		if (at < n)
			write_word(s, node, word, at + 1);
		if (!i)
			write_word(s, node, word, UINT64_MAX);
	}
	write_word(s, node, CQ_POS, s->d.cq_pos);
	write_word(s, node, CQ_POS, s->d.cq_seen);
	write_word(s, node, CQ_POS, UINT64_MAX);
	if (s->d.cq_seen)
		write_word(s, node, CQ_POS, s->d.cq_seen - 1);
	write_word(s, node, CLIENT_FLAGS, 0);
	write_word(s, node, CLIENT_FLAGS, KVD_CLIENT_NEED_WAKEUP | KVD_CLIENT_SQ_FULL);
	write_word(s, node, SUBMIT, 1);
	write_word(s, node, COMPLETE, 0);
}

/* --- all of it ------------------------------------------------------------------------------ */

static void explore(uint32_t sq_entries, uint32_t cq_entries, unsigned n, bool honest)
{
	struct state s = model_first(sq_entries, cq_entries);

	seen = calloc(MAX_STATES, sizeof(*seen));
	nodes = calloc(MAX_STATES / 2, sizeof(*nodes));
	ck_assert(seen && nodes);
	n_nodes = 0;
	add(&s, 0, START, 0);
	while (n_todo) {
		s = todo[--n_todo];
		node_now = todo_node[n_todo];
		daemon_acts(&s, node_now);
		stores_reach(&s, node_now);
		if (honest) {
			honest_is_served(&s, n);
			honest_acts(&s, node_now, n);
		} else {
			hostile_acts(&s, node_now, n);
		}
	}
	printf("SQ %u, CQ %u, %u entries, %s client: %u states\n", sq_entries, cq_entries,
	       n, honest ? "honest" : "hostile", n_nodes);
	/* fewer would mean that a side does not get on */
	ck_assert_uint_gt(n_nodes, 1000);
	free(seen);
	free(nodes);
	free(todo);
	free(todo_node);
	todo = NULL;
	todo_node = NULL;
	max_todo = 0;
}

START_TEST(honest_client_is_served)
{
	explore(1, 1, 3, true);
	explore(2, 1, 3, true);
	explore(2, 2, 3, true);
}
END_TEST

START_TEST(hostile_client_costs_nothing)
{
	explore(1, 1, 3, false);
	explore(2, 1, 3, false);
	explore(2, 2, 3, false);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {honest_client_is_served, hostile_client_costs_nothing};

	return run_suite("ring-model", tests, KVD_ARRAY_LEN(tests));
}
