/* SPDX-License-Identifier: MIT */
/* See strings.h. */
#include "daemon/model/strings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a of Fowler, Noll and Vo, folded, as the mask keeps low bits only. */
static uint32_t text_hash(const uint8_t *s, size_t len)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < len; i++)
		h = (h ^ s[i]) * UINT64_C(0x100000001b3);
	return (uint32_t)(h ^ h >> 32);
}

static bool strings_is(const struct strings *strings, uint32_t i, const uint8_t *s,
		       size_t len)
{
	struct gguf_str str = strings_at(strings, i);

	return str.len == len && !memcmp(str.data, s, len);
}

/* The map holds indices plus one: 0 is empty. It is never full, so a search ends. */
static uint32_t *strings_slot(const struct strings *strings, const uint8_t *s, size_t len)
{
	uint32_t i = text_hash(s, len) & strings->map_mask;

	while (strings->map[i] && !strings_is(strings, strings->map[i] - 1, s, len))
		i = (i + 1) & strings->map_mask;
	return &strings->map[i];
}

uint32_t strings_find(const struct strings *strings, const uint8_t *s, size_t len)
{
	return *strings_slot(strings, s, len) - 1; /* empty gives STRINGS_NONE */
}

int strings_grow_map(struct strings *strings)
{
	uint32_t mask = strings->map_mask ? strings->map_mask * 2 + 1 : 1023;
	struct strings grown = *strings;

	grown.map = calloc((size_t)mask + 1, sizeof(*grown.map));
	if (!grown.map)
		return -ENOMEM;
	grown.map_mask = mask;
	for (uint32_t i = 0; strings->map && i <= strings->map_mask; i++) {
		struct gguf_str str;

		if (!strings->map[i])
			continue;
		str = strings_at(strings, strings->map[i] - 1);
		*strings_slot(&grown, (const uint8_t *)str.data, str.len) =
			strings->map[i];
	}
	free(strings->map);
	*strings = grown;
	return 0;
}

/* Offsets are 32 bits, which bounds the sum of lengths. */
int strings_add(struct strings *strings, const uint8_t *s, size_t len)
{
	if (len > UINT32_MAX / 2 - strings->len)
		return -ENOMEM;
	if (strings->len + len > strings->cap) {
		size_t cap = strings->cap ? strings->cap : 4096;
		uint8_t *data;

		while (cap < strings->len + len)
			cap *= 2;
		data = realloc(strings->data, cap);
		if (!data)
			return -ENOMEM;
		strings->data = data;
		strings->cap = cap;
	}
	/* one more than there are strings: where the next begins, this one ends */
	if (strings->n + 2 > strings->offs_cap) {
		uint32_t cap = strings->offs_cap ? strings->offs_cap * 2 : 1024;
		uint32_t *offs = realloc(strings->offs, cap * sizeof(*offs));

		if (!offs)
			return -ENOMEM;
		strings->offs = offs;
		strings->offs_cap = cap;
	}
	if (len)
		memcpy(strings->data + strings->len, s, len);
	strings->offs[strings->n++] = (uint32_t)strings->len;
	strings->len += len;
	strings->offs[strings->n] = (uint32_t)strings->len;
	return 0;
}

int strings_map_last(struct strings *strings)
{
	struct gguf_str str = strings_at(strings, strings->n - 1);
	uint32_t *slot;
	int r;

	if (!strings->map || strings->n_mapped >= strings->map_mask / 4 * 3) {
		r = strings_grow_map(strings);
		if (r < 0)
			return r;
	}
	slot = strings_slot(strings, (const uint8_t *)str.data, str.len);
	/* of equal strings the first is found: of two tokens the lower id */
	if (!*slot) {
		*slot = strings->n;
		strings->n_mapped++;
	}
	return 0;
}

int strings_intern(struct strings *strings, const uint8_t *s, size_t len, uint32_t *ret)
{
	uint32_t i = strings_find(strings, s, len);
	int r;

	if (i == STRINGS_NONE) {
		i = strings->n;
		r = strings_add(strings, s, len);
		if (r == 0)
			r = strings_map_last(strings);
		if (r < 0)
			return r;
	}
	*ret = i;
	return 0;
}

void strings_deinit(struct strings *strings)
{
	free(strings->data);
	free(strings->offs);
	free(strings->map);
	*strings = (struct strings){0};
}
