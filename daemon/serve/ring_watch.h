/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_RING_WATCH_H
#define KVD_DAEMON_SERVE_RING_WATCH_H

/*
 * When rings are looked at, and when clients are woken.
 *
 * A warm ring is polled by the prepare hook of the loop,
 * for as long as its traffic comes in quick succession and the compute threads leave
 * the CPU free; a cold one is armed and costs nothing until its doorbell rings:
 *
 *       doorbell, or an SQE found while polling
 *   COLD ------------------------------------> WARM
 *    ^                                           |  nothing for spin_ns
 *    +-------------------------------------------+  (ring_daemon_arm())
 *
 * All rings with news for their client (CQEs posted, room in the SQ) are collected in a
 * list and each is notified once per iteration of the loop, after the next step went to
 * the worker: waking a client costs more than anything else that is done for it.
 *
 * Thread: loop.
 */

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
