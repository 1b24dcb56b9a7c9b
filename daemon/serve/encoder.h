/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_ENCODER_H
#define KVD_DAEMON_SERVE_ENCODER_H

/*
 * Tokenizes long texts, and checks and measures long lists of ids for DETOKENIZE, on a thread of
 * its own, whose time is shared by user. Thread: loop; the worker (worker.h) sees private memory
 * and the immutable tokenizer only. Relies on input.h. Knows neither rings nor operations.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <kvd/abi.h>

#include "daemon/engine/worker.h"
#include "daemon/loop.h"
#include "daemon/model/tokenizer.h"
#include "daemon/res.h"

struct model_text;
struct ring_daemon;

/* What is shorter costs less than the way to another thread and back. */
#define ENCODER_MIN_BYTES (4u << 10)
#define ENCODER_MIN_IDS   4096

#define ENCODER_USERS 256

/* Embedded in what asks. encoder_add() expects uid, arena, and sqe after sqe_check(). */
struct encoder_wait {
	struct encoder_wait *next;
	uid_t uid;
	const struct ring_daemon *arena;
	struct kvd_sqe sqe;
};

/* @n_bytes: of the text of @list, for DETOKENIZE */
struct encoder_result {
	struct token_list list;
	size_t n_bytes;
	uint64_t detail;
	kvd_res res;
};

/* The callee may take the list out of @result; the rest is freed afterwards. */
typedef void (*encoder_done_fn)(struct encoder_wait *wait, struct encoder_result *result);

/**
 * struct encoder - the thread and its queue
 * @waiting:  oldest first
 * @current:  whose text is in work; NULL: none, or it was forgotten
 * @uid:      who asked for what is in work, since @began_ns; 0: nobody did
 * @used_ns:  of the thread's time, by a user at least; @users: by those that had more lately, by
 *            uid, direct mapped
 * @data:     [ENCODER_MAX_BYTES] the input; its pages stay, as they cost more than the copy
 * @warm:     they are there
 * @sqe, @data, @result: the worker's while worker.busy
 */
struct encoder {
	struct loop *loop;
	const struct model_text *text;
	encoder_done_fn done;
	struct worker worker;
	struct loop_io io;
	struct encoder_wait *waiting, *waiting_tail;
	struct encoder_wait *current;
	uid_t uid;
	uint64_t began_ns;
	uint64_t used_ns;
	struct encoder_user {
		uid_t uid;
		uint64_t used_ns;
	} users[ENCODER_USERS];
	struct kvd_sqe sqe;
	void *data;
	bool warm;
	struct encoder_result result;
};

/* Starts the thread "kvd-encoder". Return: 0 or -errno. */
int encoder_init(struct encoder *encoder, struct loop *loop,
		 const struct model_text *text, encoder_done_fn done);

/* Waits for the text in work; no other may wait. Idempotent, and fine on all-zero. */
void encoder_deinit(struct encoder *encoder);

/* Whether the input is too long for the loop thread. */
bool encoder_wants(const struct encoder *encoder, const struct kvd_sqe *sqe);

/* encoder_done_fn is called once, never from in here, unless encoder_forget() comes first. */
void encoder_add(struct encoder *encoder, struct encoder_wait *wait);
void encoder_forget(struct encoder *encoder, struct encoder_wait *wait);

#endif
