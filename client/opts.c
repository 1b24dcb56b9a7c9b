/* SPDX-License-Identifier: MIT */
/* What only the daemon can judge (ids of the vocabulary, lengths in tokens, UTF-8 of prompts) is
 * left to it. */
#include "client/opts.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "client/internal.h"
#include "ipc/base.h"
#include "ipc/proto.h"
#include "ipc/utf8.h"

#define GEN_FLAGS (KVD_GEN_LOGPROBS | KVD_GEN_IGNORE_EOS | KVD_GEN_KEEP)

int opts_read(void *dst, size_t size, const void *src, const char *name)
{
	const uint8_t *bytes = src;
	size_t given = size, i;

	memset(dst, 0, size);
	if (src)
		memcpy(&given, src, sizeof(given));
	if (given < sizeof(given))
		return kvc_fail(-EINVAL,
				"%s.size is not set; initialise it with "
				"KVC_OPTS_INIT",
				name);
	for (i = size; i < given; i++)
		if (bytes[i] != 0)
			return kvc_fail(-E2BIG,
					"%s sets an option that this version of "
					"the library does not know",
					name);
	if (src)
		memcpy(dst, src, given < size ? given : size);
	memcpy(dst, &size, sizeof(size));
	return 0;
}

/* Written so that NaN fails too. */
static int check_real(const char *name, float value, float max)
{
	if (value >= 0.0f && value <= max)
		return 0;
	return kvc_fail(-EINVAL, "%s is %g; it must be >= 0 and <= %g", name,
			(double)value, (double)max);
}

static int check_flags(const char *name, uint32_t flags, uint32_t known)
{
	if (!(flags & ~known))
		return 0;
	return kvc_fail(-EINVAL, "%s has the unknown bits 0x%x; known here are 0x%x",
			name, flags & ~known, known);
}

static int check_stops(const struct kvc_gen_opts *o)
{
	size_t len, valid;
	uint32_t i;

	if (o->n_stop > KVD_MAX_STOP)
		return kvc_fail(-EINVAL, "n_stop is %u; it must be <= %u", o->n_stop,
				KVD_MAX_STOP);
	if (o->n_stop && !o->stop)
		return kvc_fail(-EINVAL, "n_stop is %u, but stop is NULL", o->n_stop);
	for (i = 0; i < o->n_stop; i++) {
		if (!o->stop[i])
			return kvc_fail(-EINVAL, "stop[%u] is NULL", i);
		len = strnlen(o->stop[i], KVD_MAX_STOP_LEN + 1);
		if (len == 0)
			return kvc_fail(-EINVAL,
					"stop[%u] is empty; it must have 1 to %u bytes",
					i, KVD_MAX_STOP_LEN);
		if (len > KVD_MAX_STOP_LEN)
			return kvc_fail(-EINVAL,
					"stop[%u] has %zu bytes; it must have 1 to %u", i,
					strlen(o->stop[i]), KVD_MAX_STOP_LEN);
		valid = utf8_valid_len(o->stop[i], len);
		if (valid != len)
			return kvc_fail(-EINVAL,
					"stop[%u] is not valid UTF-8 (at byte %zu)", i,
					valid);
	}
	return 0;
}

static int check_gen(const struct kvc_gen_opts *o)
{
	int rc;

	rc = check_real("temperature", o->temperature, 100.0f);
	if (rc >= 0)
		rc = check_real("top_p", o->top_p, 1.0f);
	if (rc >= 0)
		rc = check_real("min_p", o->min_p, 1.0f);
	if (rc >= 0)
		rc = check_flags("gen_flags", o->gen_flags, GEN_FLAGS);
	if (rc >= 0)
		rc = check_flags("input_flags", o->input_flags,
				 KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS);
	if (rc >= 0)
		rc = check_stops(o);
	if (rc < 0)
		return rc;
	if (o->priority < -KVD_MAX_PRIORITY || o->priority > KVD_MAX_PRIORITY)
		return kvc_fail(-EINVAL, "priority is %d; it must be >= %d and <= %d",
				o->priority, -KVD_MAX_PRIORITY, KVD_MAX_PRIORITY);
	if (o->n > KVD_MAX_N)
		return kvc_fail(-EINVAL, "n is %u; it must be <= %u", o->n, KVD_MAX_N);
	if (o->n > 1 && o->gen_flags & KVD_GEN_KEEP)
		return kvc_fail(-EINVAL, "n is %u; with KVD_GEN_KEEP it must be 1", o->n);
	return 0;
}

int gen_opts_read(struct kvc_gen_opts *dst, const struct kvc_gen_opts *src)
{
	int rc;

	rc = opts_read(dst, sizeof(*dst), src, "kvc_gen_opts");
	return rc < 0 ? rc : check_gen(dst);
}

int score_opts_of(const struct kvc_sqe *sqe, struct kvc_score_opts *dst)
{
	const struct kvc_score_opts plain = {
		.size = sizeof(plain),
		.flags = sqe->flags,
		.tokens = sqe->out,
		.logprobs = sqe->out2,
		.cap = sqe->cap,
	};
	int rc;

	if (sqe->opcode != KVD_OP_SCORE) {
		*dst = (struct kvc_score_opts){0};
		return 0;
	}
	rc = opts_read(dst, sizeof(*dst), sqe->score_opts ? sqe->score_opts : &plain,
		       "kvc_score_opts");
	if (rc >= 0)
		rc = check_flags("flags", dst->flags,
				 KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS);
	if (rc < 0)
		return rc;
	if (dst->top > KVD_MAX_TOP && dst->top != KVD_TOP_ALL)
		return kvc_fail(-EINVAL, "top is %u; it must be <= %u, or KVD_TOP_ALL",
				dst->top, KVD_MAX_TOP);
	if (dst->reserved)
		return kvc_fail(-EINVAL, "reserved is %u; it must be 0", dst->reserved);
	if (dst->first && !dst->top)
		return kvc_fail(-EINVAL,
				"first is %u, but top is 0: no position is "
				"asked for",
				dst->first);
	return 0;
}

static int too_large(uint64_t *ret_detail, uint64_t limit, const char *what, uint64_t n)
{
	*ret_detail = limit;
	return kvc_fail(-E2BIG, "the input has %llu %s; kvd takes %llu at most",
			(unsigned long long)n, what, (unsigned long long)limit);
}

/* Those of abi.h; the daemon refuses others, but has no room to name them. */
static int check_role(size_t i, const char *role)
{
	static const char *const roles[] = {"system", "user", "assistant"};
	char shown[KVD_MAX_CHAT_ROLE_LEN + 1];

	for (size_t k = 0; k < KVD_ARRAY_LEN(roles); k++)
		if (!strcmp(role, roles[k]))
			return 0;
	proto_set_string(shown, sizeof(shown), role);
	return kvc_fail(-EINVAL,
			"message %zu has the role \"%s\"; it must be system, user or "
			"assistant",
			i, shown);
}

static int check_chat(const struct kvc_message *m, size_t n, uint64_t *ret_detail)
{
	uint64_t bytes = 0;
	size_t i;

	if (n > KVD_MAX_CHAT_MESSAGES)
		return too_large(ret_detail, KVD_MAX_CHAT_MESSAGES, "messages", n);
	for (i = 0; i < n; i++) {
		if (!m[i].role || !m[i].content)
			return kvc_fail(-EINVAL, "message %zu has no %s", i,
					m[i].role ? "content" : "role");
		if (m[i].reserved[0] || m[i].reserved[1])
			return kvc_fail(
				-EINVAL,
				"message %zu: reserved is not NULL; initialise it", i);
		if (check_role(i, m[i].role) < 0)
			return -EINVAL;
		bytes += 8 + strlen(m[i].role) + strlen(m[i].content);
	}
	return bytes <= KVD_MAX_TEXT_BYTES ? 0
					   : too_large(ret_detail, KVD_MAX_TEXT_BYTES,
						       "bytes in its messages", bytes);
}

static int check_input(const struct kvc_sqe *sqe, uint64_t *ret_detail)
{
	const struct kvc_input *in = &sqe->input;

	if (in->reserved)
		return kvc_fail(-EINVAL, "kvc_input.reserved is %u; it must be 0",
				in->reserved);
	if (in->n && !in->data)
		return kvc_fail(-EINVAL, "the input is NULL, but has %zu elements",
				in->n);
	switch (in->kind) {
	case KVD_INPUT_NONE:
		return 0;
	case KVD_INPUT_CHAT:
		return check_chat(in->data, in->n, ret_detail);
	case KVD_INPUT_TEXT:
		if (in->n > KVD_MAX_TEXT_BYTES)
			return too_large(ret_detail, KVD_MAX_TEXT_BYTES, "bytes of text",
					 in->n);
		return 0;
	default:
		if (sqe->opcode == KVD_OP_DETOKENIZE && in->n > KVD_MAX_DETOKENIZE)
			return too_large(ret_detail, KVD_MAX_DETOKENIZE, "token ids",
					 in->n);
		return 0;
	}
}

/* Kinds of input and flags of each operation that libkvclient prepares. */
static const struct {
	const char *name;
	uint32_t flags;
	bool kinds[KVD_INPUT_CHAT + 1];
} takes[] = {
	[KVD_OP_NOP] = {"NOP", 0, {[KVD_INPUT_NONE] = true}},
	[KVD_OP_GENERATE] = {"GENERATE",
			     0,
			     {[KVD_INPUT_TOKENS] = true,
			      [KVD_INPUT_TEXT] = true,
			      [KVD_INPUT_CHAT] = true}},
	[KVD_OP_SCORE] = {"SCORE",
			  KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			  {[KVD_INPUT_TOKENS] = true,
			   [KVD_INPUT_TEXT] = true,
			   [KVD_INPUT_CHAT] = true}},
	[KVD_OP_TOKENIZE] = {"TOKENIZE",
			     KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
			     {[KVD_INPUT_TEXT] = true, [KVD_INPUT_CHAT] = true}},
	[KVD_OP_DETOKENIZE] = {"DETOKENIZE",
			       KVD_SQE_SKIP_SPECIAL,
			       {[KVD_INPUT_TOKENS] = true}},
	[KVD_OP_CANCEL] = {"CANCEL", 0, {[KVD_INPUT_NONE] = true}},
	[KVD_OP_FORK] = {"FORK",
			 0,
			 {[KVD_INPUT_NONE] = true,
			  [KVD_INPUT_TOKENS] = true,
			  [KVD_INPUT_TEXT] = true}},
	[KVD_OP_PREFIX_LOOKUP] = {"PREFIX_LOOKUP",
				  KVD_SQE_NO_SPECIAL | KVD_SQE_NO_BOS,
				  {[KVD_INPUT_TOKENS] = true,
				   [KVD_INPUT_TEXT] = true,
				   [KVD_INPUT_CHAT] = true}},
};

static int check_params(const struct kvc_sqe *sqe)
{
	struct kvc_score_opts score;
	struct kvc_gen_opts gen;
	int rc;

	if (sqe->opcode == KVD_OP_SCORE)
		return score_opts_of(sqe, &score);
	if (sqe->opcode != KVD_OP_GENERATE && sqe->opcode != KVD_OP_FORK)
		return 0;
	rc = gen_opts_read(&gen, sqe->opts);
	if (rc < 0)
		return rc;
	if (gen.fork_at && sqe->opcode != KVD_OP_FORK)
		return kvc_fail(-EINVAL, "fork_at is %u; it must be 0 but for a fork",
				gen.fork_at);
	if (gen.n > 1 && sqe->opcode == KVD_OP_FORK)
		return kvc_fail(-EINVAL, "n is %u; of a fork it must be 1", gen.n);
	return 0;
}

int entry_check(const struct kvc_sqe *sqe, uint64_t *ret_detail)
{
	uint32_t kind = sqe->input.kind;
	int rc;

	*ret_detail = 0;
	/* Its way is the shortest, and there is nothing to look at. */
	if (sqe->opcode == KVD_OP_NOP && !kind && !sqe->flags)
		return 0;
	if (kind > KVD_INPUT_CHAT || !takes[sqe->opcode].kinds[kind])
		return kvc_fail(-EINVAL, "%s takes no input of kind %u",
				takes[sqe->opcode].name, kind);
	rc = check_params(sqe);
	if (rc >= 0)
		rc = check_flags("flags", sqe->flags, takes[sqe->opcode].flags);
	return rc < 0 ? rc : check_input(sqe, ret_detail);
}
