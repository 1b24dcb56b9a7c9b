/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_SQE_H
#define KVD_IPC_SQE_H

/* Checks of an SQE and the bytes it names that need neither a model nor a session. Pure functions
 * over private copies, no state, any thread; fuzzed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

/* Opcode, flags, kind of input, unused fields, and bounds. Return: 0; -EINVAL; -EFAULT: outside an
 * arena. */
int sqe_check(const struct kvd_sqe *sqe, uint64_t in_bytes, uint64_t out_bytes);

/* Bytes by reference; not terminated. */
struct sqe_span {
	const uint8_t *bytes;
	uint32_t len;
};

/* @bytes: [len]; len 0: all defaults. @ret: completed with zeros. @ret_stops: [KVD_MAX_STOP], the
 * first ret->n_stop are set and point into @bytes. Return: 0, -EINVAL. */
int sqe_parse_gen_params(const void *bytes, size_t len, struct kvd_gen_params *ret,
			 struct sqe_span *ret_stops);

/* Step through a CHAT input of [len] bytes; @pos is 0 at first. Return: 1: a message; 0: the end,
 * all bytes used; -EINVAL. */
int sqe_next_message(const void *bytes, size_t len, size_t *pos,
		     struct sqe_span *ret_role, struct sqe_span *ret_content);

/* Is a request with KVD_GEN_KEEP and this final CQE kept for FORK? Both sides count by this. */
bool sqe_was_kept(const struct kvd_cqe *end);

#endif
