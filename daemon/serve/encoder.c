/* SPDX-License-Identifier: MIT */
/*
 * See encoder.h. A text of 1 MiB takes from ten milliseconds to half a second, in which the loop
 * would serve nobody. It is copied from its arena when its turn comes, into the one buffer that
 * there is. One that is forgotten while in work is finished, and its tokens are dropped.
 */
#include "daemon/serve/encoder.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/serve/input.h"
#include "ipc/base.h"
#include "ipc/ring.h"

#define ENCODER_MAX_BYTES (INPUT_MAX_TOKENS * sizeof(int32_t))
_Static_assert(ENCODER_MAX_BYTES >= INPUT_MAX_TEXT, "holds any input that is wanted");

/* Thread: worker. */
static void encoder_run(void *ctx)
{
	struct encoder *encoder = ctx;
	struct encoder_result *result = &encoder->result;
	const struct kvd_sqe *sqe = &encoder->sqe;

	if (!encoder->warm) {
		memset(encoder->data, 0, ENCODER_MAX_BYTES);
		encoder->warm = true;
		return;
	}
	if (!result->res)
		result->res = input_tokens(encoder->text, sqe->input, encoder->data,
					   sqe->in_len, sqe->flags, &result->list,
					   &result->detail);
	if (!result->res && sqe->opcode == KVD_OP_DETOKENIZE)
		result->n_bytes =
			input_text_len(encoder->text, sqe->flags, &result->list);
	explicit_bzero(encoder->data, sqe->in_len);
}

static void encoder_clear(struct encoder *encoder)
{
	token_list_deinit(&encoder->result.list);
	encoder->result = (struct encoder_result){0};
}

static void encoder_unlink(struct encoder *encoder, struct encoder_wait *wait)
{
	struct encoder_wait *before = NULL;

	for (struct encoder_wait **at = &encoder->waiting; *at;
	     before = *at, at = &(*at)->next) {
		if (*at != wait)
			continue;
		*at = wait->next;
		if (encoder->waiting_tail == wait)
			encoder->waiting_tail = before;
		wait->next = NULL;
		return;
	}
}

/* What a user has used, or could have: a pause gives no credit. */
static struct encoder_user *encoder_user(struct encoder *encoder, uid_t uid)
{
	struct encoder_user *user = &encoder->users[uid % ENCODER_USERS];

	if (user->uid != uid || user->used_ns < encoder->used_ns)
		*user = (struct encoder_user){.uid = uid, .used_ns = encoder->used_ns};
	return user;
}

/* The oldest text of the user that has used the least: so a user waits for the one in work, and
 * after long ones of its own until the others have had as much. */
static struct encoder_wait *encoder_next(struct encoder *encoder)
{
	struct encoder_wait *next = NULL;
	uint64_t least = UINT64_MAX;

	for (struct encoder_wait *wait = encoder->waiting; wait; wait = wait->next) {
		uint64_t used_ns = encoder_user(encoder, wait->uid)->used_ns;

		if (used_ns < least) {
			least = used_ns;
			next = wait;
		}
	}
	encoder->used_ns = least;
	return next;
}

static void encoder_start(struct encoder *encoder)
{
	struct encoder_wait *wait;
	const void *shared;

	if (encoder->worker.busy || !encoder->waiting)
		return;
	wait = encoder_next(encoder);
	encoder_unlink(encoder, wait);
	encoder->current = wait;
	encoder->uid = wait->uid;
	encoder->began_ns = clock_ns();
	encoder->sqe = wait->sqe;
	shared = ring_daemon_in(wait->arena, encoder->sqe.in_off, encoder->sqe.in_len);
	if (shared)
		memcpy(encoder->data, shared, encoder->sqe.in_len);
	else
		encoder->result.res = error_origin(-EFAULT);
	worker_submit(&encoder->worker);
}

static void encoder_stepped(struct loop_io *io, uint32_t events)
{
	struct encoder *encoder = container_of(io, struct encoder, io);
	struct encoder_wait *wait = encoder->current;

	if (!worker_collect(&encoder->worker))
		return;
	encoder->current = NULL;
	loop_now_refresh(encoder->loop);
	if (encoder->began_ns)
		encoder_user(encoder, encoder->uid)->used_ns +=
			loop_now(encoder->loop) - encoder->began_ns;
	encoder->began_ns = 0;
	if (wait) {
		encoder->done(wait, &encoder->result);
	}
	encoder_clear(encoder);
	encoder_start(encoder);
}

int encoder_init(struct encoder *encoder, struct loop *loop,
		 const struct model_text *text, encoder_done_fn done)
{
	int r;

	*encoder = (struct encoder){
		.loop = loop,
		.text = text,
		.done = done,
	};
	encoder->data = malloc(ENCODER_MAX_BYTES);
	if (!encoder->data)
		return error_origin(-ENOMEM);
	r = worker_init(&encoder->worker, "kvd-encoder", encoder_run, encoder);
	if (r)
		return r;
	r = loop_io_add(loop, &encoder->io, encoder->worker.event_fd, LOOP_READ,
			encoder_stepped);
	if (!r)
		worker_submit(&encoder->worker);
	return r;
}

void encoder_deinit(struct encoder *encoder)
{
	assert(!encoder->waiting && !encoder->current);
	loop_io_remove(&encoder->io);
	worker_deinit(&encoder->worker);
	encoder->worker.busy = false;
	encoder_clear(encoder);
	free(encoder->data);
	encoder->data = NULL;
}

bool encoder_wants(const struct encoder *encoder, const struct kvd_sqe *sqe)
{
	if (!encoder->worker.started)
		return false;
	if (sqe->input == KVD_INPUT_TOKENS)
		return sqe->opcode == KVD_OP_DETOKENIZE &&
		       sqe->in_len > ENCODER_MIN_IDS * 4 &&
		       sqe->in_len <= INPUT_MAX_TOKENS * 4;
	return (sqe->input == KVD_INPUT_TEXT || sqe->input == KVD_INPUT_CHAT) &&
	       sqe->in_len > ENCODER_MIN_BYTES && sqe->in_len <= INPUT_MAX_TEXT;
}

void encoder_add(struct encoder *encoder, struct encoder_wait *wait)
{
	wait->next = NULL;
	if (encoder->waiting)
		encoder->waiting_tail->next = wait;
	else
		encoder->waiting = wait;
	encoder->waiting_tail = wait;
	encoder_start(encoder);
}

void encoder_forget(struct encoder *encoder, struct encoder_wait *wait)
{
	if (encoder->current == wait)
		encoder->current = NULL;
	else
		encoder_unlink(encoder, wait);
}
