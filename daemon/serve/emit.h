/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_EMIT_H
#define KVD_DAEMON_SERVE_EMIT_H

/*
 * The text side of one answer: bytes of sampled tokens go in, whole UTF-8 characters come
 * out, and nothing else. It holds back what could still change its meaning:
 *
 *   - the first bytes of a character whose rest has not come yet. If it never comes, since
 *     the answer ends here, they are not shown at all;
 *   - the longest end of the text that is a proper beginning of a stop string, so that a
 *     stop string is never shown, not even in part.
 *
 *   text so far:  [ released ............ | held ... | first bytes of a character ]
 *                                           ^ data     ^ partial
 *
 * Bytes that can never become a character become U+FFFD.
 *
 * Thread: loop. Knows nothing of rings, requests or models.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvd/abi.h>

struct sqe_span;

/**
 * struct emit - the text of one answer
 * @stops:   the stop strings, one after the other
 * @data:    [cap] of which len are held
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

/**
 * emit_init() - start an answer
 * @stops: [n_stops] stop strings, copied; at most KVD_MAX_STOP of 1 .. KVD_MAX_STOP_LEN
 *         bytes of UTF-8, as sqe_parse_gen_params() has seen to
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
 * emit_take() - take text that may be shown now, at most @cap >= 4 bytes of it
 * @last: no further byte will come, so that what could begin a stop string may go
 *
 * Return: bytes written to @to, whole characters; 0 when nothing may be shown yet.
 */
size_t emit_take(struct emit *emit, void *to, size_t cap, bool last);

/* Whether emit_take() with the same @last would give bytes. */
bool emit_pending(const struct emit *emit, bool last);

#endif
