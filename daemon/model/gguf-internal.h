/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_GGUF_INTERNAL_H
#define KVD_DAEMON_MODEL_GGUF_INTERNAL_H

/* What the files of gguf.h share, of which each calls those after it: gguf.c (opening),
 * gguf-parse.c (the one walk over the image), gguf-value.c and gguf-type.c (look-up). Nobody else
 * includes it. Thread: as gguf.h. */

#include "daemon/model/gguf.h"
#include "daemon/model/mapping.h"

/* @map: closed: the image is the caller's. @stamp: size 0: see gguf_stamp(). @kvs: sorted by key
 * once parsed. @tensors: in file order; @by_name: indexes into them, sorted by name */
struct gguf {
	char *name;
	const uint8_t *image;
	size_t len;
	struct mapping map;
	struct gguf_stamp stamp;
	uint32_t align;
	uint64_t n_kv;
	uint64_t n_tensors;
	struct gguf_kv *kvs;
	struct gguf_tensor *tensors;
	uint32_t *by_name;
};

/* Checks the whole image and fills the indexes. Return: as gguf_open(). What was allocated stays
 * with @gguf also on failure. */
int gguf_parse(struct gguf *gguf, struct load_error *err);

/* Order of the indexes: bytes, then length. */
int gguf_str_cmp(struct gguf_str a, struct gguf_str b);
int gguf_kv_cmp(const void *a, const void *b);

#endif
