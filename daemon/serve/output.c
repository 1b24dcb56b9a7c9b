/* SPDX-License-Identifier: MIT */
/* See output.h. */
#include "daemon/serve/output.h"

#include <errno.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/serve/op.h"
#include "daemon/serve/session.h"
#include "daemon/serve/session_ring.h"

/* A few pages; and ids whose pieces are looked up, which may be empty. */
#define OUTPUT_PIECE_BYTES (16u << 10)
#define OUTPUT_PIECE_IDS   4096

/* What is written at once, without a list that waits. */
#define OUTPUT_AT_ONCE (4 * OUTPUT_PIECE_BYTES)

static void write_ids(struct output *o)
{
	size_t n = o->n_bytes - o->n_written;

	if (n > OUTPUT_PIECE_BYTES)
		n = OUTPUT_PIECE_BYTES;
	memcpy(o->out + o->n_written, (const uint8_t *)o->list.ids + o->n_written, n);
	o->n_written += n;
}

static void write_text(struct output *o)
{
	size_t room = o->n_bytes - o->n_written;

	if (room > OUTPUT_PIECE_BYTES)
		room = OUTPUT_PIECE_BYTES;
	for (int i = 0; i < OUTPUT_PIECE_IDS && o->at < o->list.n && room; i++) {
		struct gguf_str piece = tokenizer_piece(o->text, o->list.ids[o->at]);
		size_t n = piece.len - o->n_part;

		if (n > room)
			n = room;
		if (n)
			memcpy(o->out + o->n_written, piece.data + o->n_part, n);
		o->n_written += n;
		o->n_part += n;
		room -= n;
		if (o->n_part == piece.len) {
			o->n_part = 0;
			o->at++;
		}
	}
}

bool output_step(struct output *output)
{
	struct op *op = output->op;

	if (output->text)
		write_text(output);
	else
		write_ids(output);
	if (output->n_written < output->n_bytes)
		return false;
	op_end(op, output->res, NULL, loop_now(op->engine->loop));
	output_deinit(output);
	return true;
}

kvd_res output_begin(struct output *output, struct op *op, struct token_list *list,
		     const struct tokenizer *text, size_t n_bytes, int32_t res,
		     uint64_t *ret_detail)
{
	struct user *user = op->ring->session->user;
	struct output o = {
		.op = op, .list = *list, .text = text, .n_bytes = n_bytes, .res = res};

	if (n_bytes > op->out_len) {
		*ret_detail = n_bytes;
		return -ENOBUFS;
	}
	if (n_bytes) {
		o.out = ring_daemon_out(&op->ring->ring, op->out_off, n_bytes);
		if (!o.out)
			return error_origin(-EFAULT);
	}
	if (n_bytes > OUTPUT_AT_ONCE) {
		if (user_charge(&o.charge, user, USER_BYTES,
				list->n * sizeof(list->ids[0]))) {
			*ret_detail = user->max[USER_BYTES];
			return KVD_E_QUOTA;
		}
		*list = (struct token_list){NULL};
		*output = o;
		return 0;
	}
	while (o.n_written < n_bytes)
		if (text)
			write_text(&o);
		else
			write_ids(&o);
	op_end(op, res, NULL, op->taken_ns);
	return 0;
}

void output_deinit(struct output *output)
{
	user_charge_deinit(&output->charge);
	token_list_deinit(&output->list);
	*output = (struct output){NULL};
}
