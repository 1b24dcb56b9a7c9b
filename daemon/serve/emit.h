/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_EMIT_H
#define KVD_DAEMON_SERVE_EMIT_H

/*
 * The text side of one answer: bytes of sampled tokens go in, bytes that may be
 * shown come out. It holds back what could still change its meaning:
 *
 *   - the first bytes of a UTF-8 character whose rest has not come yet, so that a
 *     reader can print every piece as it arrives;
 *   - the longest end of the text that is a proper beginning of a stop string, so
 *     that a stop string is never shown, not even in part.
 *
 *   text so far:  [ released ............ | held ... ]
 *                                          ^ emit.data[0]
 *
 * Invariant: `len` < longest stop string + 4 once emit_take() returned 0. Bytes that are
 * no UTF-8 at all (a token may be a lone continuation byte) are released as they
 * are: the reader gets exactly the bytes of the tokens.
 *
 * Thread: loop. Knows nothing of rings, requests or models.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

struct sqe_span;

struct emit {
	char *stops; /* the stop strings, one after the other */
	uint16_t stop_len[KVD_MAX_STOP];
	unsigned n_stops;
	char *data; /* held bytes */
	size_t len, cap;
	bool stopped; /* a stop string was met: no byte follows */
};

/**
 * emit_init() - start an answer
 * @stops: [n_stops] stop strings, copied; at most KVD_MAX_STOP of 1 .. KVD_MAX_STOP_LEN
 *         bytes, as sqe_parse_gen_params() has seen to
 *
 * Return: 0 or -ENOMEM.
 */
int emit_init(struct emit *emit, const struct sqe_span *stops, unsigned n_stops);
void emit_deinit(struct emit *emit);

/**
 * emit_push() - append the bytes of one token
 *
 * When they complete a stop string, the text is cut in front of it and
 * emit->stopped is set; later bytes are ignored.
 *
 * Return: 0 or -ENOMEM.
 */
int emit_push(struct emit *emit, const void *bytes, size_t len);

/**
 * emit_take() - take bytes that may be shown now, at most @cap of them
 * @last: no further byte will come, so that everything left may go
 *
 * A piece never ends inside a UTF-8 character unless the text itself does.
 *
 * Return: bytes written to @to; 0 when nothing may be shown yet.
 */
size_t emit_take(struct emit *emit, void *to, size_t cap, bool last);

/* Whether emit_take() with the same @last would give bytes. */
bool emit_pending(const struct emit *emit, bool last);

#endif
