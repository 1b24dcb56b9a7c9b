/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_STRINGS_H
#define KVD_DAEMON_MODEL_STRINGS_H

/* Byte strings numbered from 0, as a vocabulary has them: a number gives its bytes, and bytes, of
 * those strings that were mapped, their number. Grows while it is built, then any number of threads
 * may read it. */

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"

#define STRINGS_NONE UINT32_MAX

/* All-zero is empty, but for the map: strings_grow_map(). @offs: text i is data[offs[i] .. offs[i +
 * 1]). @map: open addressing over numbers + 1, 0 is empty; of equal strings the first is found */
struct strings {
	uint8_t *data;
	size_t len, cap;
	uint32_t *offs;
	uint32_t n, offs_cap;
	uint32_t *map;
	uint32_t map_mask, n_mapped;
};

void strings_deinit(struct strings *strings);

/* What grows. Return: 0 or -ENOMEM. */
int strings_grow_map(struct strings *strings);
/* Appends a string that is not mapped. */
int strings_add(struct strings *strings, const uint8_t *s, size_t len);
int strings_map_last(struct strings *strings);
/* The number of a string, which is added and mapped when it is new. */
int strings_intern(struct strings *strings, const uint8_t *s, size_t len, uint32_t *ret);

/* Return: the number of a mapped string or STRINGS_NONE. */
uint32_t strings_find(const struct strings *strings, const uint8_t *s, size_t len);

static inline struct gguf_str strings_at(const struct strings *strings, uint32_t i)
{
	return (struct gguf_str){
		.data = (const char *)strings->data + strings->offs[i],
		.len = strings->offs[i + 1] - strings->offs[i],
	};
}

#endif
