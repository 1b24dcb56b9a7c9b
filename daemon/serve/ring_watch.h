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

#include <kvd/abi.h>

#include "ipc/ring.h"

struct session_ring;
struct sessions;

/* Watch a new ring; it is cold. Return: 0 or -errno. */
int ring_watch_add(struct session_ring *ring);

/* Leave both lists; before the ring is freed. */
void ring_watch_forget(struct session_ring *ring);

/* CQEs were posted or SQEs taken: the client is woken, if it sleeps, before the loop
 * blocks. */
void ring_watch_dirty(struct session_ring *ring);

/**
 * ring_watch_post() - post one CQE; the client is woken as by ring_watch_dirty()
 *
 * A client signals that it made room only while it sees CQ_FULL, and a post that finds
 * room takes CQ_FULL back. If others still wait for room, or SQEs do, the client's signal
 * may so never come: the ring is looked at again before the loop blocks.
 *
 * Return: as ring_daemon_post().
 */
enum ring_status ring_watch_post(struct session_ring *ring, const struct kvd_cqe *cqe);

/* The ring's long text has become tokens (encoder.h): further SQEs are taken. */
void ring_watch_go_on(struct session_ring *ring);

/**
 * ring_watch_prepare() - the loop is about to block
 *
 * Polls warm rings, wakes clients, arms rings that have cooled down.
 *
 * Return: how long the loop may sleep, as loop_prepare_fn.
 */
uint64_t ring_watch_prepare(struct sessions *sessions);

#endif
