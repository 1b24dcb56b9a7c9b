/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_WATCH_H
#define KVD_DAEMON_SERVE_RING_WATCH_H

/* When rings are looked at, and when their clients are woken. Thread: loop. */

#include <stdint.h>

struct sessions;

/**
 * ring_watch_prepare() - the loop is about to block
 *
 * Polls warm rings, wakes clients, arms rings that have cooled down.
 *
 * Return: how long the loop may sleep, as loop_prepare_fn.
 */
uint64_t ring_watch_prepare(struct sessions *sessions);

#endif
