/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/model/gguf-internal.h"

/* More than the coarsest times of a file system. */
#define STAMP_AGE_S 2

static const struct {
	uint32_t type, elems, bytes; /* elems 0: known by name only */
	const char *name;
} tensor_types[] = {
	{GGUF_TENSOR_F32, 1, 4, "F32"},
	{GGUF_TENSOR_F16, 1, 2, "F16"},
	{GGUF_TENSOR_BF16, 1, 2, "BF16"},
	{GGUF_TENSOR_Q4_0, 32, 18, "Q4_0"},
	{GGUF_TENSOR_Q4_1, 32, 20, "Q4_1"},
	{GGUF_TENSOR_Q5_0, 32, 22, "Q5_0"},
	{GGUF_TENSOR_Q5_1, 32, 24, "Q5_1"},
	{GGUF_TENSOR_Q8_0, 32, 34, "Q8_0"},
	{GGUF_TENSOR_Q4_K, 256, 144, "Q4_K"},
	{GGUF_TENSOR_Q5_K, 256, 176, "Q5_K"},
	{GGUF_TENSOR_Q6_K, 256, 210, "Q6_K"},
	{9, 0, 0, "Q8_1"},
	{10, 0, 0, "Q2_K"},
	{11, 0, 0, "Q3_K"},
	{15, 0, 0, "Q8_K"},
	{16, 0, 0, "IQ2_XXS"},
	{17, 0, 0, "IQ2_XS"},
	{18, 0, 0, "IQ3_XXS"},
	{19, 0, 0, "IQ1_S"},
	{20, 0, 0, "IQ4_NL"},
	{21, 0, 0, "IQ3_S"},
	{22, 0, 0, "IQ2_S"},
	{23, 0, 0, "IQ4_XS"},
	{24, 0, 0, "I8"},
	{25, 0, 0, "I16"},
	{26, 0, 0, "I32"},
	{27, 0, 0, "I64"},
	{28, 0, 0, "F64"},
	{29, 0, 0, "IQ1_M"},
	{34, 0, 0, "TQ1_0"},
	{35, 0, 0, "TQ2_0"},
	{39, 0, 0, "MXFP4"},
	{40, 0, 0, "NVFP4"},
};

#define N_TENSOR_TYPES (sizeof(tensor_types) / sizeof(tensor_types[0]))

const char *gguf_tensor_type_name(uint32_t type)
{
	for (size_t i = 0; i < N_TENSOR_TYPES; i++) {
		if (tensor_types[i].type == type)
			return tensor_types[i].name;
	}
	return "?";
}

bool gguf_tensor_type_block(uint32_t type, uint32_t *ret_elems, uint32_t *ret_bytes)
{
	for (size_t i = 0; i < N_TENSOR_TYPES; i++) {
		if (tensor_types[i].type == type && tensor_types[i].elems) {
			*ret_elems = tensor_types[i].elems;
			*ret_bytes = tensor_types[i].bytes;
			return true;
		}
	}
	return false;
}

/* Error lines reach terminals and logs: bytes of the file that are not plain printable
 * ASCII must not. */
static void make_printable(char *s)
{
	for (; *s; s++) {
		if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
			*s = '?';
	}
}

int gguf_vfail(struct load_error *err, const char *name, int code, const char *fmt,
	       va_list ap)
{
	int n;

	if (!err)
		return code;
	n = snprintf(err->text, sizeof(err->text), "%.160s: ", name);
	if (n > 0 && (size_t)n < sizeof(err->text)) {
		vsnprintf(err->text + n, sizeof(err->text) - (size_t)n, fmt, ap);
		make_printable(err->text + n);
	}
	return code;
}

int gguf_fail(struct load_error *err, const struct gguf *gguf, int code, const char *fmt,
	      ...)
{
	va_list ap;

	va_start(ap, fmt);
	gguf_vfail(err, gguf->name, code, fmt, ap);
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

static struct gguf *gguf_new(const char *name)
{
	struct gguf *gguf = calloc(1, sizeof(*gguf));

	if (!gguf)
		return NULL;
	gguf->name = strdup(name);
	if (!gguf->name) {
		free(gguf);
		return NULL;
	}
	return gguf;
}

static int open_fail(struct load_error *err, const char *path, int code, const char *fmt,
		     ...) __attribute__((format(printf, 4, 5)));

static int open_fail(struct load_error *err, const char *path, int code, const char *fmt,
		     ...)
{
	va_list ap;

	va_start(ap, fmt);
	gguf_vfail(err, path, code, fmt, ap);
	va_end(ap);
	return code;
}

int gguf_open_memory(struct gguf **ret, const char *name, const void *data, size_t len,
		     struct load_error *err)
{
	struct gguf *gguf = gguf_new(name);
	int r;

	if (!gguf)
		return open_fail(err, name, -ENOMEM, "out of memory");
	gguf->image = data;
	gguf->len = len;
	r = gguf_parse(gguf, err);
	if (r < 0) {
		gguf_free(gguf);
		return r;
	}
	*ret = gguf;
	return 0;
}

static int64_t time_ns(const struct timespec *ts)
{
	return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

/* Of a file that is open, and not read yet. */
static void take_stamp(struct gguf *gguf, const struct stat *st)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) < 0 ||
	    st->st_ctim.tv_sec >= now.tv_sec - STAMP_AGE_S)
		return;
	gguf->stamp = (struct gguf_stamp){
		.dev = st->st_dev,
		.ino = st->st_ino,
		.size = (uint64_t)st->st_size,
		.mtime_ns = time_ns(&st->st_mtim),
		.ctime_ns = time_ns(&st->st_ctim),
	};
}

static int map_file(struct gguf *gguf, const char *path, struct load_error *err)
{
	struct stat st;
	void *map;
	int fd, r = 0;

	/* O_NONBLOCK: a FIFO must be refused, not waited for */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		r = -errno;
		return open_fail(err, path, r, "cannot open: %s", strerror(-r));
	}
	if (fstat(fd, &st) < 0) {
		r = -errno;
		open_fail(err, path, r, "cannot stat: %s", strerror(-r));
	} else if (!S_ISREG(st.st_mode)) {
		r = open_fail(err, path, -EINVAL, "not a regular file");
	} else if (st.st_size < 24) {
		r = open_fail(err, path, -EINVAL,
			      "%lld bytes are too few for a GGUF file",
			      (long long)st.st_size);
	} else if ((uint64_t)st.st_size > SIZE_MAX / 2) {
		r = open_fail(err, path, -EINVAL, "too large to map");
	}
	if (r < 0)
		goto out;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED) {
		r = -errno;
		open_fail(err, path, r, "cannot map: %s", strerror(-r));
		goto out;
	}
	gguf->image = map;
	gguf->len = (size_t)st.st_size;
	gguf->mapped = true;
	take_stamp(gguf, &st);
out:
	close(fd);
	return r;
}

int gguf_open(struct gguf **ret, const char *path, struct load_error *err)
{
	struct gguf *gguf = gguf_new(path);
	int r;

	if (!gguf)
		return open_fail(err, path, -ENOMEM, "out of memory");
	r = map_file(gguf, path, err);
	if (r == 0)
		r = gguf_parse(gguf, err);
	if (r < 0) {
		gguf_free(gguf);
		return r;
	}
	*ret = gguf;
	return 0;
}

void gguf_free(struct gguf *gguf)
{
	if (!gguf)
		return;
	if (gguf->mapped)
		munmap((void *)gguf->image, gguf->len);
	free(gguf->kvs);
	free(gguf->tensors);
	free(gguf->by_name);
	free(gguf->name);
	free(gguf);
}

const char *gguf_name(const struct gguf *gguf)
{
	return gguf->name;
}

uint64_t gguf_n_tensors(const struct gguf *gguf)
{
	return gguf->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint64_t i)
{
	return i < gguf->n_tensors ? &gguf->tensors[i] : NULL;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *gguf, uint64_t i)
{
	return i < gguf->n_kv ? &gguf->kvs[i] : NULL;
}

bool gguf_stamp(const struct gguf *gguf, struct gguf_stamp *ret)
{
	*ret = gguf->stamp;
	return ret->size > 0;
}

const uint8_t *gguf_image(const struct gguf *gguf, size_t *ret_len)
{
	*ret_len = gguf->len;
	return gguf->image;
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

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
	struct gguf_str want = {.data = name, .len = strlen(name)};
	uint64_t lo = 0, hi = gguf->n_tensors;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		const struct gguf_tensor *tensor = &gguf->tensors[gguf->by_name[mid]];
		int r = gguf_str_cmp(want, tensor->name);

		if (!r)
			return tensor;
		if (r < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}
