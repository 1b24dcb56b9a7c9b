/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_WATCH_H
#define KVD_DAEMON_SERVE_RING_WATCH_H

/* When rings are looked at, and when their clients are woken: in turns, by user. Thread: loop. */

#include <stdint.h>

#include "daemon/turns.h"

struct sessions;

/* Polls a warm ring, wakes the client of a dirty one, arms what has cooled down. */
extern const struct turn_kind ring_watch_turn;

/* Before the loop blocks: runs turns. Return: how long the loop may sleep, as loop_prepare_fn. */
uint64_t ring_watch_prepare(struct sessions *sessions);

#endif
