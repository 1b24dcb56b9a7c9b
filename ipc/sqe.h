/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_SQE_H
#define KVD_IPC_SQE_H

/*
 * What an SQE and the bytes it names must look like, by opcode: the checks that
 * need neither a model nor a session; and what both sides conclude from how it ended.
 * Pure functions over private copies, no state, any thread; fuzzed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

/* Opcode, flags, kind of input, unused fields, and the bounds of both arenas. Return: 0;
 * -EINVAL; -EFAULT for what leaves an arena. */
int sqe_check(const struct kvd_sqe *sqe, uint64_t in_bytes, uint64_t out_bytes);

/* Bytes by reference; not terminated. */
struct sqe_span {
	const uint8_t *bytes;
	uint32_t len;
};

/**
 * sqe_parse_gen_params() - parameters and stop strings of a GENERATE
 * @bytes:     [len] private copy of the parameter bytes; len 0: all defaults
 * @ret:       the parameters, completed with zeros
 * @ret_stops: [KVD_MAX_STOP], the first ret->n_stop are set and point into @bytes
 *
 * Return: 0, -EINVAL.
 */
int sqe_parse_gen_params(const void *bytes, size_t len, struct kvd_gen_params *ret,
			 struct sqe_span *ret_stops);

/**
 * sqe_next_message() - step through a CHAT input
 * @bytes: [len] private copy of the input
 * @pos:   0 at first, then left alone
 *
 * Return: 1: a message; 0: the end, all bytes used; -EINVAL: malformed.
 */
int sqe_next_message(const void *bytes, size_t len, size_t *pos,
		     struct sqe_span *ret_role, struct sqe_span *ret_content);

/* Does a request with KVD_GEN_KEEP and this final CQE stay for FORK? Daemon and client count
 * by this rule what is kept. */
bool sqe_was_kept(const struct kvd_cqe *end);

#endif
