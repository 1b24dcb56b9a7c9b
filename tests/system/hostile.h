/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_SYSTEM_HOSTILE_H
#define KVD_TESTS_SYSTEM_HOSTILE_H

/*
 * What the verbs of hostile share: until when they play, their random numbers, a way in.
 * One thread, but for verbs that start their own.
 */
#include <stdbool.h>
#include <stdint.h>

#include "tests/system/raw.h"

extern uint32_t seed;
extern double deadline;

/* A promise of the daemon that a verb saw broken; the exit status becomes 1. */
extern bool broken;

double now(void);
void nap_us(unsigned us);

/* Whether the daemon has hung up. Swallows messages that nobody waits for. */
int hung_up(int fd);

/* Connection and ring of the usual size. Return: 0, or -1 when it is time to stop. */
int attach(struct raw_client *client, struct raw_ring *ring, uint32_t sq, uint32_t cq);

/* Verbs of hostile_table.c. Return: how often each did what it does. */
unsigned play_seals(void);
unsigned play_punch(void);
unsigned play_keep(void);
unsigned play_uffd(void);
unsigned play_locks(void);
unsigned play_deaf(void);
unsigned play_connects(void);
unsigned play_flip(void);
unsigned play_bells(void);
unsigned play_positions(void);

/* Verbs of hostile_fds.c. */
unsigned play_fds(void);
unsigned play_linger(void);
unsigned play_inflight(void);

#endif
