/* SPDX-License-Identifier: MIT */
/*
 * See emit.h. Stop strings are few and short and the held text is shorter still,
 * so plain comparison at every position is the whole search: a token appends a
 * handful of bytes and only those can complete a match.
 */
#include "daemon/serve/emit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/sqe.h"

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
		return -ENOMEM;
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
	free(emit->stops);
	free(emit->data);
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

int emit_push(struct emit *emit, const void *bytes, size_t len)
{
	size_t at;

	if (emit->stopped || !len)
		return 0;
	if (len > emit->cap - emit->len) {
		size_t cap = (emit->len + len) * 2 + 64;
		char *data = realloc(emit->data, cap);

		if (!data)
			return -ENOMEM;
		emit->data = data;
		emit->cap = cap;
	}
	memcpy(emit->data + emit->len, bytes, len);
	emit->len += len;
	at = emit_find_stop(emit, 0);
	if (at < emit->len) {
		emit->len = at;
		emit->stopped = true;
	}
	return 0;
}

/* Bytes at the end that begin a character and lack its rest: 0..3. */
static size_t emit_utf8_tail(const char *data, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char c = (unsigned char)data[len - back];
		size_t want = c >= 0xf0 && c < 0xf8 ? 4
			      : c >= 0xe0           ? 3
			      : c >= 0xc0           ? 2
						    : 1;

		if (c >= 0xf8)
			return 0;
		if (c >= 0xc0)
			return want > back ? back : 0;
		if (c < 0x80)
			return 0;
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
	size_t tail, stop_tail;

	if (last || emit->stopped)
		return emit->len;
	tail = emit_utf8_tail(emit->data, emit->len);
	stop_tail = emit_stop_tail(emit);
	if (stop_tail > tail)
		tail = stop_tail;
	return emit->len - tail;
}

bool emit_pending(const struct emit *emit, bool last)
{
	return emit_ready(emit, last) > 0;
}

size_t emit_take(struct emit *emit, void *to, size_t cap, bool last)
{
	size_t n = emit_ready(emit, last);

	if (n > cap) {
		size_t tail = emit_utf8_tail(emit->data, cap);

		n = tail < cap ? cap - tail : cap;
	}
	if (!n)
		return 0;
	memcpy(to, emit->data, n);
	memmove(emit->data, emit->data + n, emit->len - n);
	emit->len -= n;
	return n;
}
