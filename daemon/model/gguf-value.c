/* SPDX-License-Identifier: MIT */
/* Typed access to the metadata of a parsed file. Every offset was checked at open, but lengths of
 * strings are read again, and a file that is written to has others by then. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf-internal.h"

int gguf_fail(struct load_error *err, const struct gguf *gguf, int code, const char *fmt,
	      ...)
{
	va_list ap;

	va_start(ap, fmt);
	load_vfail(err, gguf->name, code, fmt, ap);
	va_end(ap);
	return code;
}

int gguf_str_cmp(struct gguf_str a, struct gguf_str b)
{
	int r = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

	if (r)
		return r;
	return a.len < b.len ? -1 : a.len > b.len;
}

int gguf_kv_cmp(const void *a, const void *b)
{
	const struct gguf_kv *ka = a, *kb = b;

	return gguf_str_cmp(ka->key, kb->key);
}

const struct gguf_kv *gguf_kv_at(const struct gguf *gguf, uint64_t i)
{
	return i < gguf->n_kv ? &gguf->kvs[i] : NULL;
}

bool gguf_str_eq(struct gguf_str str, const char *s)
{
	return strlen(s) == str.len && !memcmp(str.data, s, str.len);
}

const struct gguf_kv *gguf_find(const struct gguf *gguf, const char *key)
{
	struct gguf_kv want = {.key = {.data = key, .len = strlen(key)}};

	return bsearch(&want, gguf->kvs, gguf->n_kv, sizeof(*gguf->kvs), gguf_kv_cmp);
}

static uint64_t load_uint(const uint8_t *p, size_t size)
{
	uint64_t v = 0;

	for (size_t i = 0; i < size; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

/* Return: false when the value is no integer or is negative. */
static bool value_uint(const struct gguf_kv *kv, uint64_t *ret)
{
	int64_t v;

	switch (kv->type) {
	case GGUF_U8:
		*ret = load_uint(kv->data, 1);
		return true;
	case GGUF_U16:
		*ret = load_uint(kv->data, 2);
		return true;
	case GGUF_U32:
		*ret = load_uint(kv->data, 4);
		return true;
	case GGUF_U64:
		*ret = load_uint(kv->data, 8);
		return true;
	case GGUF_I8:
		v = (int8_t)load_uint(kv->data, 1);
		break;
	case GGUF_I16:
		v = (int16_t)load_uint(kv->data, 2);
		break;
	case GGUF_I32:
		v = (int32_t)load_uint(kv->data, 4);
		break;
	case GGUF_I64:
		v = (int64_t)load_uint(kv->data, 8);
		break;
	default:
		return false;
	}
	*ret = (uint64_t)v;
	return v >= 0;
}

int gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *ret,
		 struct load_error *err)
{
	const struct gguf_kv *kv = gguf_find(gguf, key);
	uint64_t v;

	if (!kv)
		return 1;
	if (!value_uint(kv, &v) || v > UINT32_MAX)
		return gguf_fail(err, gguf, -EINVAL,
				 "key %s is not an integer from 0 to 4294967295", key);
	*ret = (uint32_t)v;
	return 0;
}

static bool value_float(const struct gguf_kv *kv, double *ret)
{
	uint64_t bits;

	if (kv->type == GGUF_F32) {
		*ret = (double)gguf_array_f32(kv, 0);
		return true;
	}
	if (kv->type != GGUF_F64)
		return false;
	bits = load_uint(kv->data, 8);
	memcpy(ret, &bits, sizeof(*ret));
	return true;
}

bool gguf_number(const struct gguf_kv *kv, double *ret)
{
	uint64_t integer;

	if (value_float(kv, ret))
		return true;
	if (kv->type == GGUF_BOOL)
		integer = kv->data[0] != 0;
	else if (!value_uint(kv, &integer))
		return false;
	*ret = (double)integer;
	return true;
}

int gguf_get_f32(const struct gguf *gguf, const char *key, float *ret,
		 struct load_error *err)
{
	const struct gguf_kv *kv = gguf_find(gguf, key);
	double value;

	if (!kv)
		return 1;
	if (!value_float(kv, &value))
		return gguf_fail(err, gguf, -EINVAL, "key %s is not a float", key);
	*ret = (float)value;
	return 0;
}

int gguf_get_bool(const struct gguf *gguf, const char *key, bool *ret,
		  struct load_error *err)
{
	const struct gguf_kv *kv = gguf_find(gguf, key);

	if (!kv)
		return 1;
	if (kv->type != GGUF_BOOL)
		return gguf_fail(err, gguf, -EINVAL, "key %s is not a boolean", key);
	*ret = kv->data[0] != 0;
	return 0;
}

int gguf_get_str(const struct gguf *gguf, const char *key, struct gguf_str *ret,
		 struct load_error *err)
{
	const struct gguf_kv *kv = gguf_find(gguf, key);
	const uint8_t *cursor;

	if (!kv)
		return 1;
	if (kv->type != GGUF_STRING)
		return gguf_fail(err, gguf, -EINVAL, "key %s is not a string", key);
	cursor = kv->data;
	*ret = gguf_next_str(kv, &cursor);
	return 0;
}

int gguf_get_array(const struct gguf *gguf, const char *key, uint32_t elem_type,
		   const struct gguf_kv **ret, struct load_error *err)
{
	static const char *const names[] = {
		"u8",   "i8",     "u16",    "i16", "u32", "i32", "f32",
		"bool", "string", "arrays", "u64", "i64", "f64",
	};
	const struct gguf_kv *kv = gguf_find(gguf, key);

	if (!kv)
		return 1;
	if (kv->type != GGUF_ARRAY || kv->elem_type != elem_type)
		return gguf_fail(err, gguf, -EINVAL, "key %s is not an array of %s", key,
				 elem_type <= GGUF_F64 ? names[elem_type] : "?");
	*ret = kv;
	return 0;
}

struct gguf_str gguf_next_str(const struct gguf_kv *kv, const uint8_t **cursor)
{
	size_t left = (size_t)(kv->end - *cursor);
	struct gguf_str str = {.data = (const char *)kv->end};
	uint64_t len;

	if (left < 8) {
		*cursor = kv->end;
		return str;
	}
	len = load_uint(*cursor, 8);
	str.data = (const char *)*cursor + 8;
	str.len = len < left - 8 ? (size_t)len : left - 8;
	*cursor += 8 + str.len;
	return str;
}

float gguf_array_f32(const struct gguf_kv *kv, uint64_t i)
{
	uint32_t bits = (uint32_t)load_uint(kv->data + i * 4, 4);
	float v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

int32_t gguf_array_i32(const struct gguf_kv *kv, uint64_t i)
{
	return (int32_t)load_uint(kv->data + i * 4, 4);
}
