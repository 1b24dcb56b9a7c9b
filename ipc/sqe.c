/* SPDX-License-Identifier: MIT */
#include "ipc/sqe.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/abi_assert.h"
#include "ipc/base.h"
#include "ipc/utf8.h"

#define KIND(k) (1u << (k))

#define TAKES_OUT    (1u << 0)
#define TAKES_PARAMS (1u << 1)
#define TAKES_ARG    (1u << 2)

/* What each opcode takes; a row of zeros takes nothing. */
static const struct {
	bool known;
	uint8_t sqe_flags;
	uint8_t takes;
	uint32_t inputs;
} ops[] = {
	[KVD_OP_NOP] = {.known = true},
	[KVD_OP_GENERATE] = {.known = true,
			     .sqe_flags = KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			     .takes = TAKES_PARAMS,
			     .inputs = KIND(KVD_INPUT_TOKENS) | KIND(KVD_INPUT_TEXT) |
				       KIND(KVD_INPUT_CHAT)},
	[KVD_OP_SCORE] = {.known = true,
			  .sqe_flags = KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			  .takes = TAKES_OUT | TAKES_ARG,
			  .inputs = KIND(KVD_INPUT_TOKENS) | KIND(KVD_INPUT_TEXT) |
				    KIND(KVD_INPUT_CHAT)},
	[KVD_OP_TOKENIZE] = {.known = true,
			     .sqe_flags = KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			     .takes = TAKES_OUT,
			     .inputs = KIND(KVD_INPUT_TEXT) | KIND(KVD_INPUT_CHAT)},
	[KVD_OP_DETOKENIZE] = {.known = true,
			       .sqe_flags = KVD_SQE_SKIP_SPECIAL,
			       .takes = TAKES_OUT,
			       .inputs = KIND(KVD_INPUT_TOKENS)},
	[KVD_OP_FORK] = {.known = true,
			 .sqe_flags = KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			 .takes = TAKES_PARAMS | TAKES_ARG,
			 .inputs = KIND(KVD_INPUT_NONE) | KIND(KVD_INPUT_TOKENS) |
				   KIND(KVD_INPUT_TEXT)},
	[KVD_OP_PREFIX_LOOKUP] = {.known = true,
				  .sqe_flags = KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
				  .inputs = KIND(KVD_INPUT_TOKENS) |
					    KIND(KVD_INPUT_TEXT) | KIND(KVD_INPUT_CHAT)},
	[KVD_OP_CANCEL] = {.known = true, .takes = TAKES_ARG},
};

/* Return: 0, -EINVAL, -EFAULT. */
static int span_check(uint64_t off, uint32_t len, bool taken, uint64_t arena)
{
	if (len == 0)
		return off == 0 ? 0 : -EINVAL;
	if (!taken)
		return -EINVAL;
	return range_ok(off, len, arena) ? 0 : -EFAULT;
}

static bool score_arg_ok(uint64_t arg)
{
	uint32_t top = (uint32_t)arg;

	return top == 0 ? arg == 0 : top <= KVD_MAX_TOP || top == KVD_TOP_ALL;
}

int sqe_check(const struct kvd_sqe *sqe, uint64_t in_bytes, uint64_t out_bytes)
{
	uint32_t takes, inputs;
	int rc;

	if (sqe->opcode >= KVD_ARRAY_LEN(ops) || !ops[sqe->opcode].known)
		return -EINVAL;
	takes = ops[sqe->opcode].takes;
	inputs = ops[sqe->opcode].inputs;

	if (sqe->flags & ~ops[sqe->opcode].sqe_flags)
		return -EINVAL;
	if (inputs == 0 ? sqe->input != KVD_INPUT_NONE
			: sqe->input > KVD_INPUT_CHAT || !(inputs & KIND(sqe->input)))
		return -EINVAL;
	if (sqe->input == KVD_INPUT_TOKENS && sqe->in_len % 4 != 0)
		return -EINVAL;
	if (sqe->arg != 0 && !(takes & TAKES_ARG))
		return -EINVAL;
	if (sqe->opcode == KVD_OP_SCORE && !score_arg_ok(sqe->arg))
		return -EINVAL;
	if (sqe->out_off % 4 != 0)
		return -EINVAL;

	rc = span_check(sqe->in_off, sqe->in_len, inputs != 0, in_bytes);
	if (rc == 0)
		rc = span_check(sqe->params_off, sqe->params_len, takes & TAKES_PARAMS,
				in_bytes);
	if (rc == 0)
		rc = span_check(sqe->out_off, sqe->out_len, takes & TAKES_OUT, out_bytes);
	return rc;
}

/* Written so that NaN fails too. */
static bool within(float v, float max)
{
	return v >= 0.0f && v <= max;
}

static uint32_t load_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

int sqe_parse_gen_params(const void *bytes, size_t len, struct kvd_gen_params *ret,
			 struct sqe_span *ret_stops)
{
	const uint8_t *b = bytes;
	struct kvd_gen_params p = {0};
	size_t i, n, pos;
	uint32_t stop_len;

	if (len == 0) {
		p.size = sizeof(p);
		*ret = p;
		return 0;
	}
	if (len < KVD_GEN_PARAMS_SIZE_1)
		return -EINVAL;
	p.size = load_u32(b);
	if (p.size < KVD_GEN_PARAMS_SIZE_1 || p.size > len)
		return -EINVAL;
	n = p.size < sizeof(p) ? p.size : sizeof(p);
	memcpy(&p, b, n);
	for (i = n; i < p.size; i++)
		if (b[i] != 0)
			return -EINVAL;

	if (p.flags & ~(KVD_GEN_LOGPROBS | KVD_GEN_IGNORE_EOS | KVD_GEN_KEEP))
		return -EINVAL;
	if (p.n > KVD_MAX_N || p.n_stop > KVD_MAX_STOP)
		return -EINVAL;
	if (p.priority < -KVD_MAX_PRIORITY || p.priority > KVD_MAX_PRIORITY ||
	    (p.n > 1 && p.flags & KVD_GEN_KEEP))
		return -EINVAL;
	if (!within(p.temperature, 100.0f) || !within(p.top_p, 1.0f) ||
	    !within(p.min_p, 1.0f))
		return -EINVAL;

	pos = p.size;
	for (i = 0; i < p.n_stop; i++) {
		if (len - pos < sizeof(stop_len))
			return -EINVAL;
		stop_len = load_u32(b + pos);
		pos += sizeof(stop_len);
		if (stop_len == 0 || stop_len > KVD_MAX_STOP_LEN ||
		    stop_len > len - pos || utf8_valid_len(b + pos, stop_len) != stop_len)
			return -EINVAL;
		ret_stops[i] = (struct sqe_span){.bytes = b + pos, .len = stop_len};
		pos += stop_len;
	}
	if (pos != len)
		return -EINVAL;
	*ret = p;
	return 0;
}

int sqe_next_message(const void *bytes, size_t len, size_t *pos,
		     struct sqe_span *ret_role, struct sqe_span *ret_content)
{
	const uint8_t *b = bytes;
	uint32_t role_len, content_len;
	size_t at = *pos;

	if (at == len)
		return 0;
	if (len - at < 8)
		return -EINVAL;
	role_len = load_u32(b + at);
	content_len = load_u32(b + at + 4);
	at += 8;
	if (role_len == 0 || role_len > KVD_MAX_CHAT_ROLE_LEN || role_len > len - at)
		return -EINVAL;
	*ret_role = (struct sqe_span){.bytes = b + at, .len = role_len};
	at += role_len;
	if (content_len > len - at)
		return -EINVAL;
	*ret_content = (struct sqe_span){.bytes = b + at, .len = content_len};
	*pos = at + content_len;
	return 1;
}

/* Not what was refused, or failed before its first token: retries of it would push out what
 * is of use. */
bool sqe_was_kept(const struct kvd_cqe *end)
{
	return end->res >= 0 || end->res == -ECANCELED || end->u.usage.generated_tokens;
}
