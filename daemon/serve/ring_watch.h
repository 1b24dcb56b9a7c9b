/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_WATCH_H
#define KVD_DAEMON_SERVE_RING_WATCH_H

/* When rings are looked at, and when their clients are woken. Thread: loop. */

#include <stdint.h>

struct sessions;

/*
 * Before the loop blocks: polls warm rings, wakes clients of dirty ones, arms those that cooled
 * down. Return: how long the loop may sleep, as loop_prepare_fn.
 */
uint64_t ring_watch_prepare(struct sessions *sessions);

#endif
