/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_ENCODER_H
#define KVD_DAEMON_SERVE_ENCODER_H

/*
 * Long texts become token ids on a thread of their own: a text of 1 MiB takes from ten
 * milliseconds to half a second, in which the loop would serve nobody.
 *
 *   submit_sqe() --> encoder_add() --> waiting rings --> one in work --> submit_encoded()
 *
 * Each ring waits with one request at most and takes no further SQE meanwhile, so that the
 * order of its requests stays as it was. Users take turns. A text is copied from the arena when
 * its turn comes, so that only one copy is held at any time. A ring that closes is
 * forgotten; a text in work is finished for nobody.
 *
 * Thread: loop; encoding itself on a worker (worker.h), which sees private memory and the
 * tokenizer, which does not change. Relies on input.h.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <kvd/abi.h>

#include "daemon/engine/worker.h"
#include "daemon/loop.h"
#include "daemon/model/tokenizer.h"

struct engine;
struct op;
struct session_ring;

/* Shorter inputs take less than a few milliseconds at the worst, and less than the way to
 * another thread and back as a rule. */
#define ENCODER_MIN_BYTES (16u << 10)

/* A ring's request that waits for its tokens; no @op: none does. */
struct encoder_wait {
	struct op *op;
	struct kvd_sqe sqe;
	struct session_ring *next;
};

/* What input_tokens() gave. */
struct encoder_result {
	struct token_list list;
	uint64_t detail;
	int32_t res;
};

/**
 * struct encoder - the thread and who waits for it
 * @waiting, @waiting_tail: rings, in the order in which their turns come
 * @ring: whose input is in work; NULL: none is, or nobody waits for it any more
 * @last_uid: whose turn it was
 * @sqe, @data, @result: the worker's while worker.busy
 */
struct encoder {
	struct engine *engine;
	struct worker worker;
	struct loop_io io;
	struct session_ring *waiting, *waiting_tail;
	struct session_ring *ring;
	uid_t last_uid;
	struct kvd_sqe sqe;
	void *data;
	struct encoder_result result;
};

/* Start the thread, "kvd-encoder". Return: 0 or -errno. */
int encoder_init(struct encoder *encoder, struct engine *engine);

/* Waits for the text in work. Nobody may wait any more. Idempotent, also when all-zero. */
void encoder_deinit(struct encoder *encoder);

/* Whether an input is so long that it should not be encoded on the loop thread. */
bool encoder_wants(const struct encoder *encoder, const struct kvd_sqe *sqe);

/**
 * encoder_add() - let a ring's request wait for its tokens
 * @sqe: checked by sqe_check(); its flags are those of input_tokens()
 *
 * submit_encoded() goes on with it, never from in here.
 */
void encoder_add(struct encoder *encoder, struct session_ring *ring, struct op *op,
		 const struct kvd_sqe *sqe);

/* The ring goes away. Its operation is the caller's. */
void encoder_forget(struct encoder *encoder, struct session_ring *ring);

#endif
