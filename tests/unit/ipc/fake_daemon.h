/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_FAKE_DAEMON_H
#define KVD_TESTS_FAKE_DAEMON_H

/*
 * A daemon without a model, in a child process: the handshake, rings and every
 * opcode with answers that can be told in advance. What the tests of libkvclient
 * and the benchmark of the transport talk to.
 *
 * Text tokenizes to its bytes. PREFIX_LOOKUP finds all whole blocks of four, by the name
 * of the first byte. GENERATE echoes the input, three bytes a token (more where that
 * would cut a character), and ends with timeout_ms as detail; all requests advance by one
 * token a round, so short ones overtake long ones. Inputs that begin with a word do more:
 *
 *   "die"   the process exits after three tokens
 *   "hang"  no token, no end until CANCEL
 *   "big"   one token with 100 bytes of text
 *   "slow"  one token in 10 ms
 *   "fail"  ends with KVD_E_CONTEXT, detail 77
 *   "bad"   posts a CQE for a request that nobody made
 *   "kick"  hangs up on its client
 *   "wipe"  wipes the ring, sleeps for 50 ms, then hangs up, or restarts if so told
 *   "vary"  the answer has the generation in it
 *   "wild"  like "vary", and after a restart it hangs behind the first token
 *   "once"  slow, and after a restart it hangs behind the second token
 *   "text"  slow, and the bytes of its tokens change with each generation, not the ids
 *   "less"  slow, and three bytes shorter with each generation
 *   "poison" restarts as soon as it is seen
 *
 * It restarts on SIGUSR1, and instead of dying if so told: rings vanish unscrubbed, the
 * generation rises, and connections end or, like kept ones, get a notice.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* FAKE_SILENT: like FAKE_KEEPS, but between two signals nobody is there. */
enum fake_restart { FAKE_DIES, FAKE_HANGS_UP, FAKE_KEEPS, FAKE_SILENT };

/**
 * struct fake_daemon - the child
 * @max_rings:    granted to each connection
 * @reject:       answer every HELLO with this status, if not 0
 * @no_reply:     accept, and say nothing
 * @restart:      how
 * @mute:         no answer to STATS before the first restart
 * @stop_at_open: after a restart it stops itself (SIGSTOP) before it opens a ring
 * @other_size:   after a restart rings have larger output arenas than asked for
 * @max_waiting:  a GENERATE more without a token is refused (KVD_E_QUOTA); 0: any number
 * @refuses:      after a restart every GENERATE is refused so
 * @new_model:    the fingerprint changes with each restart
 * @first_tokens: before the first restart a GENERATE hangs behind so many, however long
 *                the restart is in coming; 0: it goes on
 * @max_arena:    bytes granted to each arena; 0: all that there may be
 * @spin_ns:      watch the rings so long before sleeping
 */
struct fake_daemon {
	char path[108];
	char dir[64];
	pid_t pid;
	uint32_t max_rings;
	int reject;
	bool no_reply;
	bool mute;
	bool stop_at_open;
	bool other_size;
	enum fake_restart restart;
	uint32_t max_waiting;
	bool refuses;
	bool new_model;
	uint32_t first_tokens;
	uint64_t max_arena;
	uint64_t spin_ns;
};

/* Start it; returns when it listens. The caller sets the options before. */
void fake_daemon_start(struct fake_daemon *d);

/* Kill it and remove its socket. Returns its wait status. */
int fake_daemon_stop(struct fake_daemon *d);

#endif
