/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_MODEL_GGUF_H
#define KVD_DAEMON_MODEL_GGUF_H

/*
 * Bounds-checked reader of GGUF model files, versions 2 and 3, little-endian.
 *
 * Owns the mapping of the file and indexes of its keys and tensors; what it hands out points into
 * the mapping and lives as long as the struct gguf. The whole structure is checked at open: no
 * accessor can leave the image. A file that loses bytes meanwhile reads as zeros (mapping.h): a
 * reader ends with gguf_check_read(). Thread: one at a time to open and free; a const struct gguf
 * may be read by several. Source: ggml docs/gguf.md.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/error.h"

#define GGUF_MAX_KV      (UINT64_C(1) << 16)
#define GGUF_MAX_TENSORS (UINT64_C(1) << 16)
#define GGUF_MAX_STRING  (UINT64_C(1) << 24)
#define GGUF_MAX_KEY     UINT64_C(65535)
#define GGUF_MAX_NAME    UINT64_C(64)
#define GGUF_MAX_ARRAY   (UINT64_C(1) << 24)
#define GGUF_MAX_DEPTH   4 /* arrays inside arrays */
#define GGUF_MAX_DIMS    4
#define GGUF_MAX_ALIGN   (UINT32_C(1) << 16)

enum gguf_value_type {
	GGUF_U8 = 0,
	GGUF_I8 = 1,
	GGUF_U16 = 2,
	GGUF_I16 = 3,
	GGUF_U32 = 4,
	GGUF_I32 = 5,
	GGUF_F32 = 6,
	GGUF_BOOL = 7,
	GGUF_STRING = 8,
	GGUF_ARRAY = 9,
	GGUF_U64 = 10,
	GGUF_I64 = 11,
	GGUF_F64 = 12,
};

/* Tensor types that kvd multiplies; the numbers are the file's. */
enum gguf_tensor_type {
	GGUF_TENSOR_F32 = 0,
	GGUF_TENSOR_F16 = 1,
	GGUF_TENSOR_Q4_0 = 2,
	GGUF_TENSOR_Q4_1 = 3,
	GGUF_TENSOR_Q5_0 = 6,
	GGUF_TENSOR_Q5_1 = 7,
	GGUF_TENSOR_Q8_0 = 8,
	GGUF_TENSOR_Q4_K = 12,
	GGUF_TENSOR_Q5_K = 13,
	GGUF_TENSOR_Q6_K = 14,
	GGUF_TENSOR_BF16 = 30,
};

/* Bytes inside the image; not terminated, may hold any byte (UTF-8 is not promised). */
struct gguf_str {
	const char *data;
	size_t len;
};

/* A metadata value. An array: @n elements of @elem_type, packed from @data on; a scalar: n = 1 and
 * elem_type = type. @end is one past the value's last byte. */
struct gguf_kv {
	struct gguf_str key;
	uint32_t type;
	uint32_t elem_type;
	uint64_t n;
	const uint8_t *data;
	const uint8_t *end;
};

struct gguf_tensor {
	struct gguf_str name;
	uint32_t type;
	uint32_t n_dims;
	uint64_t dims[GGUF_MAX_DIMS]; /* fastest first; unused ones are 1 */
	const uint8_t *data;          /* aligned to general.alignment in the file */
	size_t n_bytes;
};

struct gguf;

/* Maps and checks a model file, a regular one. @err: filled on failure. Return: 0; -EINVAL:
 * malformed or truncated; -ENOTSUP: well-formed, but refused by name (version 1, big-endian, a
 * split file, a tensor type); -errno from opening and mapping; -EIO as gguf_check_read();
 * -ENOMEM. */
int gguf_open(struct gguf **ret, const char *path, struct load_error *err);

/* The same over an image of @len bytes, any alignment, that the caller keeps alive. @name: for
 * @err. */
int gguf_open_memory(struct gguf **ret, const char *name, const void *data, size_t len,
		     struct load_error *err);
void gguf_free(struct gguf *gguf);

/* Whether what was read were the file's own bytes. Return: @code, what reading came to; -EIO, with
 * @err in the place of what it was, if bytes of the file were lost. */
int gguf_check_read(const struct gguf *gguf, int code, struct load_error *err);

const char *gguf_name(const struct gguf *gguf);
uint64_t gguf_n_tensors(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint64_t i);
/* Key @i in the order of the keys; NULL past the last. */
const struct gguf_kv *gguf_kv_at(const struct gguf *gguf, uint64_t i);
/* Borrowed; NULL when absent. */
const struct gguf_kv *gguf_find(const struct gguf *gguf, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);
/* Which file it was, and as of when. Equal stamps mean equal bytes, unless somebody keeps a
 * writable mapping of the file. */
struct gguf_stamp {
	uint64_t dev;
	uint64_t ino;
	uint64_t size;
	int64_t mtime_ns;
	int64_t ctime_ns;
};

/* Return: false of memory, and of a file that changed just before it was opened. */
bool gguf_stamp(const struct gguf *gguf, struct gguf_stamp *ret);

/* The whole image, for a digest over it. */
const uint8_t *gguf_image(const struct gguf *gguf, size_t *ret_len);

/* Typed access. Return: 0; 1: the key is absent (*ret untouched); -EINVAL, with @err filled:
 * another type or out of range. Integers of any width are accepted where they fit; a float key
 * accepts F32 and F64. */
int gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *ret,
		 struct load_error *err);
int gguf_get_f32(const struct gguf *gguf, const char *key, float *ret,
		 struct load_error *err);
int gguf_get_bool(const struct gguf *gguf, const char *key, bool *ret,
		  struct load_error *err);
int gguf_get_str(const struct gguf *gguf, const char *key, struct gguf_str *ret,
		 struct load_error *err);
/* The value of an integer that is not negative, a float or a boolean. Return: false: another. */
bool gguf_number(const struct gguf_kv *kv, double *ret);
/* An array of @elem_type; *ret borrowed. */
int gguf_get_array(const struct gguf *gguf, const char *key, uint32_t elem_type,
		   const struct gguf_kv **ret, struct load_error *err);

/* Walks a string array: *cursor starts as kv->data and never passes kv->end, even if the file has
 * been written to since it was opened. */
struct gguf_str gguf_next_str(const struct gguf_kv *kv, const uint8_t **cursor);
/* Element @i of an F32, I32 or U32 array. */
float gguf_array_f32(const struct gguf_kv *kv, uint64_t i);
int32_t gguf_array_i32(const struct gguf_kv *kv, uint64_t i);

bool gguf_str_eq(struct gguf_str str, const char *s);

/* "Q4_1"; "?" for a number that names no known type. */
const char *gguf_tensor_type_name(uint32_t type);
/* The types that kvd reads, separated by spaces, as far as @size goes. */
void gguf_tensor_type_list(char *buf, size_t size);
/* Elements and bytes of one block. Return: false for a type that kvd does not read. */
bool gguf_tensor_type_block(uint32_t type, uint32_t *ret_elems, uint32_t *ret_bytes);

/* Writes "name: text" into @err. Return: @code. */
int gguf_fail(struct load_error *err, const struct gguf *gguf, int code, const char *fmt,
	      ...) __attribute__((format(printf, 4, 5)));

#endif
