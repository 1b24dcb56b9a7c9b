/* SPDX-License-Identifier: MIT */
/*
 * See emit.h. Held back are an incomplete character, and the longest end of the text that begins a
 * stop string, so that neither is ever shown in part:
 *
 *   text so far:  [ released ............ | held ... | first bytes of a character ]
 *                                           ^ data     ^ partial
 *
 * Stop strings are few and short and the held text is shorter still, so plain comparison at every
 * position is the whole search: a token appends a handful of bytes and only those can complete a
 * match. The text is cut in front of a stop string.
 *
 * A token may be a lone continuation byte, so the bytes of an answer may form no character: those
 * become U+FFFD here, and DETOKENIZE gives them as they are. A character whose rest never comes
 * because the answer ends is not shown.
 *
 * Invariant: @data is valid UTF-8, and shorter than the longest stop string once emit_take()
 * returned 0.
 */
#include "daemon/serve/emit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "ipc/base.h"
#include "ipc/sqe.h"
#include "ipc/utf8.h"

int emit_init(struct emit *emit, const struct sqe_span *stops, unsigned n_stops)
{
	size_t total = 0, used = 0;

	*emit = (struct emit){0};
	assert(n_stops <= KVD_MAX_STOP);
	for (unsigned i = 0; i < n_stops; i++) {
		assert(stops[i].len > 0 && stops[i].len <= KVD_MAX_STOP_LEN);
		total += stops[i].len;
	}
	if (!n_stops)
		return 0;
	emit->stops = malloc(total);
	if (!emit->stops)
		return error_origin(-ENOMEM);
	for (unsigned i = 0; i < n_stops; i++) {
		memcpy(emit->stops + used, stops[i].bytes, stops[i].len);
		emit->stop_len[i] = (uint16_t)stops[i].len;
		used += stops[i].len;
	}
	emit->n_stops = n_stops;
	return 0;
}

void emit_deinit(struct emit *emit)
{
	size_t stops = 0;

	for (unsigned i = 0; i < emit->n_stops; i++)
		stops += emit->stop_len[i];
	secret_free(emit->stops, stops);
	secret_free(emit->data, emit->cap);
	*emit = (struct emit){0};
}

/* The earliest position at which any stop string lies whole; len when none does. */
static size_t emit_find_stop(const struct emit *emit, size_t from)
{
	for (size_t at = from; at < emit->len; at++) {
		const char *stop = emit->stops;

		for (unsigned i = 0; i < emit->n_stops; stop += emit->stop_len[i++]) {
			size_t n = emit->stop_len[i];

			if (n <= emit->len - at && !memcmp(emit->data + at, stop, n))
				return at;
		}
	}
	return emit->len;
}

/* Each byte that can become no character gives one U+FFFD, three bytes for one. */
static int emit_reserve(struct emit *emit, size_t len)
{
	size_t need = emit->len + 3 * (len + sizeof(emit->partial)), cap;
	char *data;

	if (need <= emit->cap)
		return 0;
	cap = need * 2 + 64;
	data = secret_realloc(emit->data, emit->cap, cap);
	if (!data)
		return error_origin(-ENOMEM);
	emit->data = data;
	emit->cap = cap;
	return 0;
}

static void emit_append(struct emit *emit, const void *bytes, size_t len)
{
	memcpy(emit->data + emit->len, bytes, len);
	emit->len += len;
}

/*
 * One byte more of a character. What it turns out not to continue is a maximal subpart:
 * one replacement character, and the byte begins the next one. Source: Unicode 15,
 * section 3.9, "U+FFFD Substitution of Maximal Subparts".
 */
static void emit_byte(struct emit *emit, uint8_t byte)
{
	static const char replacement[] = "\xef\xbf\xbd";
	uint32_t code;
	int n;

	emit->partial[emit->n_partial++] = byte;
	n = utf8_next(emit->partial, emit->n_partial, &code);
	if (n > 0) {
		emit_append(emit, emit->partial, (size_t)n);
		emit->n_partial = 0;
	} else if (n == 0) {
		bool alone = emit->n_partial == 1;

		emit_append(emit, replacement, sizeof(replacement) - 1);
		emit->n_partial = 0;
		if (!alone)
			emit_byte(emit, byte);
	}
}

int emit_push(struct emit *emit, const void *bytes, size_t len)
{
	const uint8_t *b = bytes;
	size_t at;

	if (emit->stopped || !len)
		return 0;
	if (emit_reserve(emit, len) < 0)
		return error_origin(-ENOMEM);
	for (size_t i = 0; i < len; i++)
		emit_byte(emit, b[i]);
	at = emit_find_stop(emit, 0);
	if (at < emit->len) {
		emit->len = at;
		emit->stopped = true;
	}
	return 0;
}

/* Length of the longest end of the text that begins a stop string. */
static size_t emit_stop_tail(const struct emit *emit)
{
	size_t tail = 0;
	const char *stop = emit->stops;

	for (unsigned i = 0; i < emit->n_stops; stop += emit->stop_len[i++]) {
		size_t n = emit->stop_len[i] - 1u;

		if (n > emit->len)
			n = emit->len;
		for (; n > tail; n--)
			if (!memcmp(emit->data + emit->len - n, stop, n)) {
				tail = n;
				break;
			}
	}
	return tail;
}

static size_t emit_ready(const struct emit *emit, bool last)
{
	if (last || emit->stopped)
		return emit->len;
	return emit->len - emit_stop_tail(emit);
}

bool emit_pending(const struct emit *emit, bool last)
{
	return emit_ready(emit, last) > 0;
}

size_t emit_take(struct emit *emit, void *to, size_t cap, bool last)
{
	size_t n = emit_ready(emit, last);

	if (n > cap)
		for (n = cap; n && (emit->data[n] & 0xc0) == 0x80; n--)
			;
	if (!n)
		return 0;
	memcpy(to, emit->data, n);
	memmove(emit->data, emit->data + n, emit->len - n);
	emit->len -= n;
	return n;
}
