/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_TURNS_H
#define KVD_DAEMON_TURNS_H

/*
 * Whose turn it is: the loop's time is shared by user, however many rings and connections each has.
 *
 *   user 1000:  ring - ring - session that ends - flush     used 12,430 us
 *   user 1001:  ring                                        used 12,180 us   <- is next
 *   user 1002:  session with packets                        used 12,910 us
 *
 * What waits to be done for a user is a turn in its queue. The user that has used the least
 * goes first, its turns one after the other, and the measured time is added to what it has used.
 * Who begins after a pause begins at what the others have by then: time is not saved up, and
 * a newcomer waits for what is in work, not for a round of all others. Who took more than its
 * share waits until the others have had as much. Where several have turns, time without a CPU
 * is nobody's.
 *
 * Owns no turn and no user: both are embedded in what they are of. Does not wait; reads time by
 * functions it was given. Thread: loop.
 */

#include <stdbool.h>
#include <stdint.h>

/* After this time events are looked at; what may take longer is done in pieces. */
#define TURNS_NS UINT64_C(250000)

/* Users that left while they owed time to others; by uid, direct mapped. */
#define TURNS_DEBTS 256

struct turn;
struct turns;

/*
 * @run:     does a piece, until turns_due() at the latest. It may stop or start any turn, and
 *           free its own. Return: false: there was nothing to do, it only looked
 * @pending: for turns that look: whether run() would find something; NULL: it always does
 */
struct turn_kind {
	bool (*run)(struct turn *turn);
	bool (*pending)(struct turn *turn);
};

/* All zero: not started. @user: whose, while it is. */
struct turn {
	struct turn *prev, *next;
	struct turn_user *user;
	const struct turn_kind *kind;
};

/**
 * struct turn_user - one user; all zero but uid: it has no turns
 * @first:   its turns, a circle; the next one that runs
 * @used_ns: time that it has used, or could have
 * @looked:  the run in which it had nothing to do
 */
struct turn_user {
	struct turns *turns;
	struct turn_user *prev, *next;
	struct turn *first;
	uint32_t n_turns;
	uint32_t uid;
	uint64_t used_ns;
	uint64_t looked;
};

/**
 * struct turns - all of them
 * @read:    of both clocks the one of this run
 * @users:   those with turns
 * @current: whose turn it is; NULL: nobody's
 * @used_ns: what a user has used at least that begins now
 * @n_runs:  number of this run
 * @now_ns:  when the clock was read last
 * @due_ns:  when this run ends
 */
struct turns {
	uint64_t (*clock)(void), (*cpu_clock)(void), (*read)(void);
	struct turn_user *users, *users_tail;
	struct turn_user *current;
	uint64_t used_ns;
	uint64_t n_runs;
	uint64_t now_ns;
	uint64_t due_ns;
	struct turn_debt {
		uint32_t uid;
		uint64_t used_ns;
	} debts[TURNS_DEBTS];
};

/* What is left after turns_run(). */
enum turns_left {
	TURNS_NONE, /* no turns */
	TURNS_LOOK, /* turns that found nothing */
	TURNS_MORE, /* the time was over */
};

/* @clock, @cpu_clock: CLOCK_MONOTONIC and the time that the thread had a CPU, in ns; or a
 * test's */
void turns_init(struct turns *turns, uint64_t (*clock)(void),
		uint64_t (*cpu_clock)(void));

/* Runs turns until the time is over or there is nothing more to do. @now_ns: by the clock. */
enum turns_left turns_run(struct turns *turns, uint64_t now_ns);

/* Reads the clock. Return: whether this run is over, for a turn that could go on. */
bool turns_due(struct turns *turns);

/* Looks up to @n_looks times. Return: whether a turn has something to do. */
bool turns_look(const struct turns *turns, uint32_t n_looks);

/* At the end of the queue of @user. Goes on where it is started already. */
void turn_start(struct turns *turns, struct turn_user *user, struct turn *turn,
		const struct turn_kind *kind);

/* Idempotent. */
void turn_stop(struct turn *turn);

/* The user goes and has no turns; what it owes is remembered. Idempotent. */
void turn_user_deinit(struct turn_user *user);

#endif
