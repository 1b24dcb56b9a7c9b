/* SPDX-License-Identifier: MIT */
/* See encoder.h. */
#include "daemon/serve/encoder.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/serve/input.h"
#include "daemon/serve/session.h"
#include "daemon/serve/submit.h"
#include "daemon/serve/submit_input.h"
#include "ipc/base.h"

/* Thread: worker. */
static void encoder_run(void *ctx)
{
	struct encoder *encoder = ctx;
	struct encoder_result *result = &encoder->result;
	const struct kvd_sqe *sqe = &encoder->sqe;

	if (!result->res)
		result->res = input_tokens(encoder->engine, sqe->input, encoder->data,
					   sqe->in_len, sqe->flags, &result->list,
					   &result->detail);
}

static void encoder_clear(struct encoder *encoder)
{
	submit_free_secret(encoder->data, encoder->sqe.in_len);
	encoder->data = NULL;
	submit_free_tokens(&encoder->result.list);
	encoder->result = (struct encoder_result){0};
}

static void encoder_unlink(struct encoder *encoder, struct session_ring *ring)
{
	struct session_ring *before = NULL;

	for (struct session_ring **at = &encoder->waiting; *at;
	     before = *at, at = &(*at)->encoding.next) {
		if (*at != ring)
			continue;
		*at = ring->encoding.next;
		if (encoder->waiting_tail == ring)
			encoder->waiting_tail = before;
		ring->encoding.next = NULL;
		return;
	}
}

/* The rings of the user whose turn it was go behind those of all others, in order: so a user
 * waits for one text of each other one. */
static void encoder_pass(struct encoder *encoder, uid_t uid)
{
	struct session_ring *moved = NULL, **others = &encoder->waiting, **end = &moved;
	struct session_ring *ring, *next;

	encoder->waiting_tail = NULL;
	for (ring = encoder->waiting; ring; ring = next) {
		next = ring->encoding.next;
		if (ring->session->cred.uid == uid) {
			*end = ring;
			end = &ring->encoding.next;
		} else {
			*others = ring;
			others = &ring->encoding.next;
			encoder->waiting_tail = ring;
		}
	}
	*end = NULL;
	*others = moved;
	if (moved)
		encoder->waiting_tail =
			container_of(end, struct session_ring, encoding.next);
}

static void encoder_start(struct encoder *encoder)
{
	struct session_ring *ring;
	const void *shared;

	if (encoder->worker.busy || !encoder->waiting)
		return;
	encoder_pass(encoder, encoder->last_uid);
	ring = encoder->waiting;
	encoder_unlink(encoder, ring);
	encoder->ring = ring;
	encoder->last_uid = ring->session->cred.uid;
	encoder->sqe = ring->encoding.sqe;
	shared = ring_daemon_in(&ring->ring, encoder->sqe.in_off, encoder->sqe.in_len);
	encoder->data = shared ? malloc(encoder->sqe.in_len) : NULL;
	if (encoder->data)
		memcpy(encoder->data, shared, encoder->sqe.in_len);
	else
		encoder->result.res = shared ? -ENOMEM : -EFAULT;
	worker_submit(&encoder->worker);
}

static void encoder_stepped(struct loop_io *io, uint32_t events)
{
	struct encoder *encoder = container_of(io, struct encoder, io);
	struct session_ring *ring = encoder->ring;
	struct op *op;

	(void)events;
	if (!worker_collect(&encoder->worker))
		return;
	encoder->ring = NULL;
	if (ring) {
		op = ring->encoding.op;
		ring->encoding.op = NULL;
		loop_now_refresh(encoder->engine->loop);
		submit_encoded(ring, op, &encoder->sqe, &encoder->result);
	}
	encoder_clear(encoder);
	encoder_start(encoder);
}

int encoder_init(struct encoder *encoder, struct engine *engine)
{
	int r;

	*encoder = (struct encoder){.engine = engine, .last_uid = (uid_t)-1};
	r = worker_init(&encoder->worker, "kvd-encoder", encoder_run, encoder);
	if (!r)
		r = loop_io_add(engine->loop, &encoder->io, encoder->worker.event_fd,
				LOOP_READ, encoder_stepped);
	return r;
}

void encoder_deinit(struct encoder *encoder)
{
	assert(!encoder->waiting && !encoder->ring);
	loop_io_remove(&encoder->io);
	worker_deinit(&encoder->worker);
	encoder->worker.busy = false;
	encoder_clear(encoder);
}

bool encoder_wants(const struct encoder *encoder, const struct kvd_sqe *sqe)
{
	return encoder->worker.started && sqe->in_len > ENCODER_MIN_BYTES &&
	       (sqe->input == KVD_INPUT_TEXT || sqe->input == KVD_INPUT_CHAT);
}

void encoder_add(struct encoder *encoder, struct session_ring *ring, struct op *op,
		 const struct kvd_sqe *sqe)
{
	assert(!ring->encoding.op);
	ring->encoding = (struct encoder_wait){.op = op, .sqe = *sqe};
	if (encoder->waiting)
		encoder->waiting_tail->encoding.next = ring;
	else
		encoder->waiting = ring;
	encoder->waiting_tail = ring;
	encoder_start(encoder);
}

void encoder_forget(struct encoder *encoder, struct session_ring *ring)
{
	if (!ring->encoding.op)
		return;
	ring->encoding.op = NULL;
	if (encoder->ring == ring)
		encoder->ring = NULL;
	else
		encoder_unlink(encoder, ring);
}
