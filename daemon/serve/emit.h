/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_EMIT_H
#define KVD_DAEMON_SERVE_EMIT_H

/*
 * The text of one answer: bytes of sampled tokens go in, whole UTF-8 characters come out; what
 * could still change its meaning is held back. Knows no rings or models. Thread: loop.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

struct sqe_span;

/**
 * struct emit - the text of one answer
 * @data:    [cap] text held back, len bytes of whole characters
 * @partial: [n_partial] first bytes of a character
 * @stopped: a stop string was met: nothing follows
 */
struct emit {
	char *stops;
	uint16_t stop_len[KVD_MAX_STOP];
	unsigned n_stops;
	char *data;
	size_t len;
	size_t cap;
	uint8_t partial[4];
	uint8_t n_partial;
	bool stopped;
};

/* @stops: [n_stops] copied; checked by sqe_parse_gen_params(). Return: 0 or -ENOMEM. */
int emit_init(struct emit *emit, const struct sqe_span *stops, unsigned n_stops);
void emit_deinit(struct emit *emit);

/* Appends the bytes of one token; ignored once stopped. Return: 0 or -ENOMEM. */
int emit_push(struct emit *emit, const void *bytes, size_t len);

/*
 * Takes at most @cap >= 4 bytes of text that may be shown. @last: no byte follows, so what could
 * begin a stop string is shown too. Return: bytes in @to, whole characters; 0: none yet.
 */
size_t emit_take(struct emit *emit, void *to, size_t cap, bool last);

/* Whether emit_take() with the same @last would give bytes. */
bool emit_pending(const struct emit *emit, bool last);

#endif
