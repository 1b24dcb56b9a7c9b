/* SPDX-License-Identifier: MIT */
/* See whole.h. */
#include "daemon/model/whole.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Longer ones do not occur; the limit bounds the search at each byte. */
#define MAX_LEN 256

static int text_cmp(const void *a, const void *b, void *arg)
{
	const struct strings *strings = arg;
	struct gguf_str sa = strings_at(strings, *(const uint32_t *)a);
	struct gguf_str sb = strings_at(strings, *(const uint32_t *)b);
	int r = memcmp(sa.data, sb.data, sa.len < sb.len ? sa.len : sb.len);

	if (r)
		return r;
	if (sa.len != sb.len)
		return sa.len < sb.len ? -1 : 1;
	return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static bool is_taken(const struct strings *strings, const uint8_t *types, uint32_t id,
		     unsigned mask)
{
	size_t len = strings_at(strings, id).len;

	return (mask >> types[id] & 1) && len > 0 && len <= MAX_LEN;
}

int whole_collect(struct whole_tokens *ret, const struct strings *strings,
		  const uint8_t *types, uint32_t n_tokens, unsigned mask)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_tokens; i++)
		n += is_taken(strings, types, i, mask);
	ret->ids = calloc((size_t)n + 1, sizeof(*ret->ids));
	if (!ret->ids)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_tokens; i++) {
		if (!is_taken(strings, types, i, mask))
			continue;
		ret->ids[ret->n++] = (int32_t)i;
		ret->first[(uint8_t)strings_at(strings, i).data[0]] = true;
	}
	qsort_r(ret->ids, ret->n, sizeof(*ret->ids), text_cmp, (void *)strings);
	return 0;
}

void whole_deinit(struct whole_tokens *set)
{
	free(set->ids);
	*set = (struct whole_tokens){0};
}

static struct gguf_str text_of(const struct whole_tokens *set,
			       const struct strings *strings, uint32_t i)
{
	return strings_at(strings, (uint32_t)set->ids[i]);
}

/* The first of set[lo .. hi) whose byte @at is @byte or more; one that ends before is less. */
static uint32_t lower_bound(const struct whole_tokens *set, const struct strings *strings,
			    uint32_t lo, uint32_t hi, size_t at, unsigned byte)
{
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		struct gguf_str text = text_of(set, strings, mid);

		if (text.len <= at || (uint8_t)text.data[at] < byte)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* They are sorted, so those that agree with the first i bytes are a range, which each further
 * byte narrows; the shortest of a range is its first. */
int32_t whole_at(const struct whole_tokens *set, const struct strings *strings,
		 const uint8_t *s, size_t len, size_t *ret_len)
{
	uint32_t lo = 0, hi = set->n;
	int32_t best = WHOLE_NONE;

	if (!set->first[s[0]])
		return WHOLE_NONE;
	for (size_t i = 0; i < len && lo < hi; i++) {
		lo = lower_bound(set, strings, lo, hi, i, s[i]);
		hi = lower_bound(set, strings, lo, hi, i, s[i] + 1u);
		if (lo < hi && text_of(set, strings, lo).len == i + 1) {
			best = set->ids[lo];
			*ret_len = i + 1;
		}
	}
	return best;
}

int32_t whole_find(const struct whole_tokens *set, const struct strings *strings,
		   const char *text)
{
	size_t len = strlen(text), found = 0;
	int32_t id;

	if (!len)
		return WHOLE_NONE;
	id = whole_at(set, strings, (const uint8_t *)text, len, &found);
	return found == len ? id : WHOLE_NONE;
}
