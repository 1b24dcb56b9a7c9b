/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_ENCODER_H
#define KVD_DAEMON_SERVE_ENCODER_H

/*
 * Long texts become token ids on a thread of their own: a text of 1 MiB takes from ten
 * milliseconds to half a second, in which the loop would serve nobody.
 *
 *   encoder_add() --> who waits --> one in work --> encoder_done_fn
 *
 * Users take turns. A text is copied from its arena when its turn comes, so that one copy is
 * held at any time. One that is forgotten while it is in work is finished for nobody.
 *
 * Thread: loop; encoding itself on a worker (worker.h), which sees private memory and the
 * tokenizer, which does not change. Relies on input.h. Knows neither rings nor operations.
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

/* Shorter inputs take less than a few milliseconds at the worst, and less than the way to
 * another thread and back as a rule. */
#define ENCODER_MIN_BYTES (16u << 10)

/* One that waits; embedded in what asks. */
struct encoder_wait {
	struct encoder_wait *next;
	uid_t uid;
	const struct ring_daemon *arena;
	struct kvd_sqe sqe;
};

/* What input_tokens() gave. */
struct encoder_result {
	struct token_list list;
	uint64_t detail;
	kvd_res res;
};

/* @result: the list may be taken out of it; what is left goes afterwards. */
typedef void (*encoder_done_fn)(struct encoder_wait *wait, struct encoder_result *result);

/**
 * struct encoder - the thread and who waits for it
 * @waiting, @waiting_tail: in the order in which their turns come
 * @current: whose input is in work; NULL: none is, or nobody waits for it any more
 * @last_uid: whose turn it was
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
	uid_t last_uid;
	struct kvd_sqe sqe;
	void *data;
	struct encoder_result result;
};

/* Start the thread, "kvd-encoder". Return: 0 or -errno. */
int encoder_init(struct encoder *encoder, struct loop *loop,
		 const struct model_text *text, encoder_done_fn done);

/* Waits for the text in work. Nobody may wait any more. Idempotent, also when all-zero. */
void encoder_deinit(struct encoder *encoder);

/* Whether an input is so long that it should not be encoded on the loop thread. */
bool encoder_wants(const struct encoder *encoder, const struct kvd_sqe *sqe);

/**
 * encoder_add() - wait for the tokens of an input
 * @wait: uid, arena and sqe are set; the latter checked by sqe_check(), with the flags of
 *	input_tokens()
 *
 * encoder_done_fn is called once, never from in here, unless encoder_forget() comes first.
 */
void encoder_add(struct encoder *encoder, struct encoder_wait *wait);
void encoder_forget(struct encoder *encoder, struct encoder_wait *wait);

#endif
