/* SPDX-License-Identifier: MIT */
/*
 * See turns.h. Start-time fair queueing (Goyal, Vin, Cheng, 1996) with measured costs: the virtual
 * time of the system is what the user whose turn it is had used at its beginning, and who joins
 * starts there. Deficit round robin gives the same shares, but a newcomer would wait for one
 * quantum of each user before it.
 */
#include "daemon/turns.h"

#include <assert.h>
#include <stddef.h>

/* A look costs less than a reading of the clock. */
#define LOOKS_PER_CLOCK 32

void turns_init(struct turns *turns, uint64_t (*clock)(void), uint64_t (*cpu_clock)(void))
{
	*turns = (struct turns){.clock = clock, .cpu_clock = cpu_clock, .read = clock};
}

static void user_link(struct turns *turns, struct turn_user *user)
{
	user->next = NULL;
	user->prev = turns->users_tail;
	if (turns->users_tail)
		turns->users_tail->next = user;
	else
		turns->users = user;
	turns->users_tail = user;
}

static void user_unlink(struct turns *turns, struct turn_user *user)
{
	if (user->prev)
		user->prev->next = user->next;
	else
		turns->users = user->next;
	if (user->next)
		user->next->prev = user->prev;
	else
		turns->users_tail = user->prev;
	user->prev = user->next = NULL;
}

/* A pause gives no credit. */
static void user_catch_up(const struct turns *turns, struct turn_user *user)
{
	if (user->used_ns < turns->used_ns)
		user->used_ns = turns->used_ns;
}

/* The time since the clock was read before is that of the user whose turn it is. */
static void account(struct turns *turns)
{
	uint64_t before = turns->now_ns;

	turns->now_ns = turns->read();
	if (turns->current && turns->now_ns > before)
		turns->current->used_ns += turns->now_ns - before;
}

bool turns_due(struct turns *turns)
{
	account(turns);
	return turns->now_ns >= turns->due_ns;
}

void turn_start(struct turns *turns, struct turn_user *user, struct turn *turn,
		const struct turn_kind *kind)
{
	const struct turn_debt *debt = &turns->debts[user->uid % TURNS_DEBTS];

	if (turn->user)
		return;
	if (!user->turns) {
		user->turns = turns;
		if (debt->uid == user->uid)
			user->used_ns = debt->used_ns;
	}
	turn->user = user;
	turn->kind = kind;
	if (!user->first) {
		turn->prev = turn->next = user->first = turn;
		user_catch_up(turns, user);
		user_link(turns, user);
	} else {
		turn->next = user->first;
		turn->prev = user->first->prev;
		turn->prev->next = turn->next->prev = turn;
	}
	user->n_turns++;
	/* there is something new, also if it looked in vain before */
	user->looked = 0;
}

void turn_stop(struct turn *turn)
{
	struct turn_user *user = turn->user;

	if (!user)
		return;
	if (user->first == turn)
		user->first = turn->next == turn ? NULL : turn->next;
	turn->prev->next = turn->next;
	turn->next->prev = turn->prev;
	*turn = (struct turn){NULL};
	user->n_turns--;
	if (!user->first)
		user_unlink(user->turns, user);
}

void turn_user_deinit(struct turn_user *user)
{
	struct turns *turns = user->turns;

	assert(!user->first);
	if (!turns)
		return;
	if (turns->current == user) {
		account(turns);
		turns->current = NULL;
	}
	if (user->used_ns > turns->used_ns)
		turns->debts[user->uid % TURNS_DEBTS] =
			(struct turn_debt){.uid = user->uid, .used_ns = user->used_ns};
	user->turns = NULL;
}

/* The user that has used the least, of those that have not looked in vain in this run; of equals,
 * who came last, as it has waited for nobody's turn yet. */
static struct turn_user *user_next(const struct turns *turns)
{
	struct turn_user *least = NULL;

	for (struct turn_user *user = turns->users; user; user = user->next)
		if (user->looked != turns->n_runs &&
		    (!least || user->used_ns <= least->used_ns))
			least = user;
	return least;
}

/* The turns of a user, until the time is over or each has looked in vain. */
static void user_run(struct turns *turns, struct turn_user *user)
{
	uint32_t n_looks = 0;

	turns->current = user;
	while (user->first && n_looks < user->n_turns && turns->now_ns < turns->due_ns) {
		struct turn *turn = user->first;
		bool worked;

		user->first = turn->next;
		worked = turn->kind->run(turn);
		/* it may have been the last thing of this user, who is gone */
		if (turns->current != user)
			return;
		n_looks = worked ? 0 : n_looks + 1;
		if (worked || n_looks % LOOKS_PER_CLOCK == 0)
			account(turns);
	}
	turns->current = NULL;
	if (turns->now_ns >= turns->due_ns)
		return;
	user->looked = turns->n_runs;
	user_catch_up(turns, user);
}

enum turns_left turns_run(struct turns *turns, uint64_t now_ns)
{
	struct turn_user *user;
	/* Who waits for a CPU behind others' processes would pay for that with the loop's time.
	 * One user alone pays nobody, and the other clock is five times as fast. */
	bool shared = turns->users && turns->users->next;

	turns->n_runs++;
	turns->read = shared ? turns->cpu_clock : turns->clock;
	turns->now_ns = shared ? turns->read() : now_ns;
	turns->due_ns = turns->now_ns + TURNS_NS;
	while (turns->now_ns < turns->due_ns && (user = user_next(turns))) {
		if (user->used_ns > turns->used_ns)
			turns->used_ns = user->used_ns;
		user_run(turns, user);
	}
	if (!turns->users)
		return TURNS_NONE;
	return turns->now_ns < turns->due_ns ? TURNS_LOOK : TURNS_MORE;
}

bool turns_look(const struct turns *turns, uint32_t n_looks)
{
	if (!turns->users)
		return false;
	for (;;)
		for (const struct turn_user *user = turns->users; user;
		     user = user->next) {
			struct turn *turn = user->first;

			do {
				if (!turn->kind->pending || turn->kind->pending(turn))
					return true;
				if (n_looks-- <= 1)
					return false;
				turn = turn->next;
			} while (turn != user->first);
		}
}
