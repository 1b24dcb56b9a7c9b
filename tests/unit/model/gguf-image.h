/* SPDX-License-Identifier: MIT */
#ifndef KVD_TESTS_UNIT_MODEL_GGUF_IMAGE_H
#define KVD_TESTS_UNIT_MODEL_GGUF_IMAGE_H

/*
 * Builds small GGUF images in memory for tests: an append-only buffer and one function
 * for each thing that the format knows. It checks nothing on purpose, so that a test can
 * write what a hostile file would hold. Little-endian hosts only.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct image {
	uint8_t *data;
	size_t len;
	size_t cap;
};

static inline void image_put(struct image *im, const void *data, size_t len)
{
	if (im->len + len >= im->cap) {
		im->cap = 2 * (im->len + len) + 64;
		im->data = realloc(im->data, im->cap);
		if (!im->data)
			abort();
	}
	memcpy(im->data + im->len, data, len);
	im->len += len;
}

static inline void image_u32(struct image *im, uint32_t v)
{
	image_put(im, &v, sizeof(v));
}

static inline void image_u64(struct image *im, uint64_t v)
{
	image_put(im, &v, sizeof(v));
}

static inline void image_str(struct image *im, const char *s)
{
	image_u64(im, strlen(s));
	image_put(im, s, strlen(s));
}

static inline void image_header(struct image *im, uint32_t version, uint64_t n_tensors,
				uint64_t n_kv)
{
	image_put(im, "GGUF", 4);
	image_u32(im, version);
	image_u64(im, n_tensors);
	image_u64(im, n_kv);
}

static inline void image_kv_str(struct image *im, const char *key, const char *value)
{
	image_str(im, key);
	image_u32(im, 8);
	image_str(im, value);
}

static inline void image_kv_u32(struct image *im, const char *key, uint32_t value)
{
	image_str(im, key);
	image_u32(im, 4);
	image_u32(im, value);
}

static inline void image_kv_f32(struct image *im, const char *key, float value)
{
	image_str(im, key);
	image_u32(im, 6);
	image_put(im, &value, sizeof(value));
}

static inline void image_kv_bool(struct image *im, const char *key, uint8_t value)
{
	image_str(im, key);
	image_u32(im, 7);
	image_put(im, &value, 1);
}

static inline void image_kv_array(struct image *im, const char *key, uint32_t elem_type,
				  uint64_t n)
{
	image_str(im, key);
	image_u32(im, 9);
	image_u32(im, elem_type);
	image_u64(im, n);
}

static inline void image_kv_strs(struct image *im, const char *key,
				 const char *const *values, size_t n)
{
	image_kv_array(im, key, 8, n);
	for (size_t i = 0; i < n; i++)
		image_str(im, values[i]);
}

static inline void image_tensor(struct image *im, const char *name, uint64_t ne0,
				uint64_t ne1, uint32_t type, uint64_t off)
{
	image_str(im, name);
	image_u32(im, 2);
	image_u64(im, ne0);
	image_u64(im, ne1);
	image_u32(im, type);
	image_u64(im, off);
}

static inline void image_pad(struct image *im, size_t align)
{
	static const uint8_t zero[1];

	while (im->len % align)
		image_put(im, zero, 1);
}

static inline void image_free(struct image *im)
{
	free(im->data);
	im->data = NULL;
	im->len = 0;
	im->cap = 0;
}

#endif
