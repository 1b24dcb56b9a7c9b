/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf-internal.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The image. Nothing in it is trusted: each length is compared with what is left before use,
 * each multiplication is checked, counts are capped before anything is allocated for them.
 *
 *   "GGUF" | u32 version | u64 n_tensors | u64 n_kv | kv[n_kv] | info[n_tensors]
 *          | padding to general.alignment | tensor data
 *   kv   = string key | u32 type | value       string = u64 length | bytes
 *   info = string name | u32 n_dims | u64 dims[n_dims], fastest first | u32 type
 *          | u64 offset from the start of the tensor data
 */
#define GGUF_MAGIC         0x46554747u
#define GGUF_DEFAULT_ALIGN 32u

/* A reading position; what is left is always end - pos, so it cannot wrap. */
struct cursor {
	const struct gguf *gguf;
	const uint8_t *pos;
	const uint8_t *end;
	struct load_error *err;
};

static int cursor_fail(const struct cursor *cur, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int cursor_fail(const struct cursor *cur, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	load_vfail(cur->err, cur->gguf->name, code, fmt, ap);
	va_end(ap);
	return code;
}

static int truncated(const struct cursor *cur, const char *what)
{
	return cursor_fail(cur, -EINVAL, "truncated inside %s at byte %zu of %zu", what,
			   (size_t)(cur->pos - cur->gguf->image), cur->gguf->len);
}

static size_t cursor_left(const struct cursor *cur)
{
	return (size_t)(cur->end - cur->pos);
}

static uint32_t load_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t load_u64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static int read_u32(struct cursor *cur, const char *what, uint32_t *ret)
{
	if (cursor_left(cur) < 4) {
		truncated(cur, what);
		return -EINVAL;
	}
	*ret = load_u32(cur->pos);
	cur->pos += 4;
	return 0;
}

static int read_u64(struct cursor *cur, const char *what, uint64_t *ret)
{
	if (cursor_left(cur) < 8) {
		truncated(cur, what);
		return -EINVAL;
	}
	*ret = load_u64(cur->pos);
	cur->pos += 8;
	return 0;
}

static int read_str(struct cursor *cur, const char *what, uint64_t max,
		    struct gguf_str *ret)
{
	uint64_t len;
	int r;

	r = read_u64(cur, what, &len);
	if (r < 0)
		return r;
	if (len > max)
		return cursor_fail(cur, -EINVAL,
				   "%s is %llu bytes long, the limit is %llu", what,
				   (unsigned long long)len, (unsigned long long)max);
	if (len > cursor_left(cur))
		return truncated(cur, what);
	ret->data = (const char *)cur->pos;
	ret->len = (size_t)len;
	cur->pos += len;
	return 0;
}

static size_t scalar_size(uint32_t type)
{
	switch (type) {
	case GGUF_U8:
	case GGUF_I8:
	case GGUF_BOOL:
		return 1;
	case GGUF_U16:
	case GGUF_I16:
		return 2;
	case GGUF_U32:
	case GGUF_I32:
	case GGUF_F32:
		return 4;
	case GGUF_U64:
	case GGUF_I64:
	case GGUF_F64:
		return 8;
	default:
		return 0;
	}
}

/* Steps over @n values of @type. Each value takes at least one byte of the image, so the
 * walk is bounded by the file's size whatever the counts say. */
static int skip_values(struct cursor *cur, const char *key, uint32_t type, uint64_t n,
		       unsigned depth, uint32_t *ret_elem_type, uint64_t *ret_n)
{
	size_t size = scalar_size(type);
	struct gguf_str str;
	int r;

	if (size) {
		/* n <= GGUF_MAX_ARRAY, so the product cannot wrap */
		if (n * size > cursor_left(cur))
			return truncated(cur, key);
		cur->pos += n * size;
		return 0;
	}
	if (type == GGUF_STRING) {
		for (uint64_t i = 0; i < n; i++) {
			r = read_str(cur, key, GGUF_MAX_STRING, &str);
			if (r < 0)
				return r;
		}
		return 0;
	}
	if (type != GGUF_ARRAY)
		return cursor_fail(cur, -EINVAL, "key %s has unknown value type %u", key,
				   type);
	if (depth >= GGUF_MAX_DEPTH)
		return cursor_fail(cur, -EINVAL, "key %s nests more than %d arrays", key,
				   GGUF_MAX_DEPTH);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t elem_type;
		uint64_t count;

		r = read_u32(cur, key, &elem_type);
		if (r < 0)
			return r;
		r = read_u64(cur, key, &count);
		if (r < 0)
			return r;
		if (count > GGUF_MAX_ARRAY)
			return cursor_fail(
				cur, -EINVAL,
				"key %s is an array of %llu values, the limit is %llu",
				key, (unsigned long long)count,
				(unsigned long long)GGUF_MAX_ARRAY);
		if (ret_elem_type) {
			*ret_elem_type = elem_type;
			*ret_n = count;
		}
		r = skip_values(cur, key, elem_type, count, depth + 1, NULL, NULL);
		if (r < 0)
			return r;
	}
	return 0;
}

static int parse_kv(struct cursor *cur, struct gguf_kv *kv)
{
	char key[80];
	int r;

	r = read_str(cur, "a metadata key", GGUF_MAX_KEY, &kv->key);
	if (r < 0)
		return r;
	if (!kv->key.len)
		return cursor_fail(cur, -EINVAL, "a metadata key is empty");
	snprintf(key, sizeof(key), "%.*s", (int)kv->key.len, kv->key.data);
	r = read_u32(cur, key, &kv->type);
	if (r < 0)
		return r;
	kv->elem_type = kv->type;
	kv->n = 1;
	kv->data = cur->pos;
	r = skip_values(cur, key, kv->type, 1, 0, &kv->elem_type, &kv->n);
	if (r < 0)
		return r;
	kv->end = cur->pos;
	if (kv->type == GGUF_ARRAY)
		kv->data += 12; /* its element type and count */
	return 0;
}

static int parse_tensor(struct cursor *cur, struct gguf_tensor *tensor, uint64_t *ret_off)
{
	char name[80], known[160];
	uint32_t elems, bytes;
	uint64_t n = 1, size;
	int r;

	r = read_str(cur, "a tensor name", GGUF_MAX_NAME, &tensor->name);
	if (r < 0)
		return r;
	if (!tensor->name.len)
		return cursor_fail(cur, -EINVAL, "a tensor name is empty");
	snprintf(name, sizeof(name), "tensor %.*s", (int)tensor->name.len,
		 tensor->name.data);
	r = read_u32(cur, name, &tensor->n_dims);
	if (r < 0)
		return r;
	if (tensor->n_dims < 1 || tensor->n_dims > GGUF_MAX_DIMS)
		return cursor_fail(cur, -EINVAL,
				   "%s has %u dimensions, 1 to %d are legal", name,
				   tensor->n_dims, GGUF_MAX_DIMS);
	for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++) {
		tensor->dims[d] = 1;
		if (d >= tensor->n_dims)
			continue;
		r = read_u64(cur, name, &tensor->dims[d]);
		if (r < 0)
			return r;
		if (!tensor->dims[d] || __builtin_mul_overflow(n, tensor->dims[d], &n) ||
		    n > INT64_MAX)
			return cursor_fail(cur, -EINVAL,
					   "%s: dimension %u (%llu) is out of range",
					   name, d, (unsigned long long)tensor->dims[d]);
	}
	r = read_u32(cur, name, &tensor->type);
	if (r < 0)
		return r;
	r = read_u64(cur, name, ret_off);
	if (r < 0)
		return r;
	if (!gguf_tensor_type_block(tensor->type, &elems, &bytes)) {
		gguf_tensor_type_list(known, sizeof(known));
		return cursor_fail(
			cur, -ENOTSUP, "%s: type %s (%u) is not supported; supported: %s",
			name, gguf_tensor_type_name(tensor->type), tensor->type, known);
	}
	if (tensor->dims[0] % elems)
		return cursor_fail(cur, -EINVAL,
				   "%s: rows of %llu are not a multiple of %u (%s)", name,
				   (unsigned long long)tensor->dims[0], elems,
				   gguf_tensor_type_name(tensor->type));
	if (__builtin_mul_overflow(n / elems, (uint64_t)bytes, &size) || size > SIZE_MAX)
		return cursor_fail(cur, -EINVAL, "%s is too large", name);
	tensor->n_bytes = (size_t)size;
	return 0;
}

static int name_cmp(const void *a, const void *b, void *arg)
{
	const struct gguf_tensor *tensors = arg;

	return gguf_str_cmp(tensors[*(const uint32_t *)a].name,
			    tensors[*(const uint32_t *)b].name);
}

static int parse_header(struct gguf *gguf, struct cursor *cur)
{
	uint32_t magic, version;
	int r;

	r = read_u32(cur, "the header", &magic);
	if (r < 0)
		return r;
	if (magic != GGUF_MAGIC)
		return cursor_fail(cur, -EINVAL, "not a GGUF file (no GGUF magic)");
	r = read_u32(cur, "the header", &version);
	if (r < 0)
		return r;
	/* a small number read with the wrong byte order */
	if (version && !(version & 0xffff))
		return cursor_fail(cur, -ENOTSUP,
				   "big-endian GGUF files are not supported");
	if (version != 2 && version != 3)
		return cursor_fail(cur, -ENOTSUP,
				   "GGUF version %u is not supported; supported: 2 3",
				   version);
	r = read_u64(cur, "the header", &gguf->n_tensors);
	if (r < 0)
		return r;
	r = read_u64(cur, "the header", &gguf->n_kv);
	if (r < 0)
		return r;
	if (gguf->n_tensors > GGUF_MAX_TENSORS)
		return cursor_fail(cur, -EINVAL,
				   "the header claims %llu tensors, the limit is %llu",
				   (unsigned long long)gguf->n_tensors,
				   (unsigned long long)GGUF_MAX_TENSORS);
	if (gguf->n_kv > GGUF_MAX_KV)
		return cursor_fail(
			cur, -EINVAL,
			"the header claims %llu metadata keys, the limit is %llu",
			(unsigned long long)gguf->n_kv, (unsigned long long)GGUF_MAX_KV);
	return 0;
}

static int parse_metadata(struct gguf *gguf, struct cursor *cur)
{
	uint32_t n_split = 0;
	int r;

	gguf->kvs = calloc(gguf->n_kv + 1, sizeof(*gguf->kvs));
	if (!gguf->kvs)
		return cursor_fail(cur, -ENOMEM, "out of memory");
	for (uint64_t i = 0; i < gguf->n_kv; i++) {
		r = parse_kv(cur, &gguf->kvs[i]);
		if (r < 0) {
			gguf->n_kv = 0;
			return r;
		}
	}
	qsort(gguf->kvs, gguf->n_kv, sizeof(*gguf->kvs), gguf_kv_cmp);
	for (uint64_t i = 1; i < gguf->n_kv; i++) {
		if (!gguf_kv_cmp(&gguf->kvs[i - 1], &gguf->kvs[i]))
			return cursor_fail(
				cur, -EINVAL, "metadata key %.*s appears twice",
				(int)gguf->kvs[i].key.len, gguf->kvs[i].key.data);
	}
	r = gguf_get_u32(gguf, "split.count", &n_split, cur->err);
	if (r < 0)
		return r;
	if (n_split > 1)
		return cursor_fail(cur, -ENOTSUP,
				   "split GGUF files are not supported (this is one of "
				   "%u parts); merge them first",
				   n_split);
	gguf->align = GGUF_DEFAULT_ALIGN;
	r = gguf_get_u32(gguf, "general.alignment", &gguf->align, cur->err);
	if (r < 0)
		return r;
	if (gguf->align < 8 || gguf->align > GGUF_MAX_ALIGN ||
	    (gguf->align & (gguf->align - 1)))
		return cursor_fail(cur, -EINVAL,
				   "general.alignment is %u, a power of two from 8 to %u "
				   "is legal",
				   gguf->align, GGUF_MAX_ALIGN);
	return 0;
}

static int place_tensors(struct gguf *gguf, struct cursor *cur, const uint64_t *offs)
{
	size_t start = (size_t)(cur->pos - gguf->image);
	size_t room;

	if (!gguf->n_tensors)
		return 0;
	start = (start + gguf->align - 1) & ~((size_t)gguf->align - 1);
	if (start > gguf->len)
		return truncated(cur, "the padding before the tensor data");
	room = gguf->len - start;
	for (uint64_t i = 0; i < gguf->n_tensors; i++) {
		struct gguf_tensor *tensor = &gguf->tensors[i];

		if (offs[i] % gguf->align)
			return cursor_fail(
				cur, -EINVAL,
				"tensor %.*s: offset %llu is not a multiple of %u",
				(int)tensor->name.len, tensor->name.data,
				(unsigned long long)offs[i], gguf->align);
		if (offs[i] > room || tensor->n_bytes > room - offs[i])
			return cursor_fail(
				cur, -EINVAL,
				"tensor %.*s: %zu bytes at offset %llu end outside the "
				"file (%zu bytes of tensor data); is it truncated?",
				(int)tensor->name.len, tensor->name.data, tensor->n_bytes,
				(unsigned long long)offs[i], room);
		tensor->data = gguf->image + start + offs[i];
	}
	return 0;
}

static int parse_tensors(struct gguf *gguf, struct cursor *cur)
{
	uint64_t *offs;
	int r;

	gguf->tensors = calloc(gguf->n_tensors + 1, sizeof(*gguf->tensors));
	gguf->by_name = calloc(gguf->n_tensors + 1, sizeof(*gguf->by_name));
	offs = calloc(gguf->n_tensors + 1, sizeof(*offs));
	if (!gguf->tensors || !gguf->by_name || !offs) {
		free(offs);
		return cursor_fail(cur, -ENOMEM, "out of memory");
	}
	for (uint64_t i = 0; i < gguf->n_tensors; i++) {
		gguf->by_name[i] = (uint32_t)i;
		r = parse_tensor(cur, &gguf->tensors[i], &offs[i]);
		if (r < 0)
			goto out;
	}
	qsort_r(gguf->by_name, gguf->n_tensors, sizeof(*gguf->by_name), name_cmp,
		gguf->tensors);
	for (uint64_t i = 1; i < gguf->n_tensors; i++) {
		struct gguf_str name = gguf->tensors[gguf->by_name[i]].name;

		if (!gguf_str_cmp(gguf->tensors[gguf->by_name[i - 1]].name, name)) {
			r = cursor_fail(cur, -EINVAL, "tensor %.*s appears twice",
					(int)name.len, name.data);
			goto out;
		}
	}
	r = place_tensors(gguf, cur, offs);
out:
	free(offs);
	return r;
}

int gguf_parse(struct gguf *gguf, struct load_error *err)
{
	struct cursor cur = {
		.gguf = gguf,
		.pos = gguf->image,
		.end = gguf->image + gguf->len,
		.err = err,
	};
	int r;

	r = parse_header(gguf, &cur);
	if (r < 0)
		return r;
	r = parse_metadata(gguf, &cur);
	if (r < 0)
		return r;
	return parse_tensors(gguf, &cur);
}
