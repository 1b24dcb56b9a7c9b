/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/model/gguf-internal.h"

/* Times of files are coarse: one that changed within these seconds may change again and keep
 * them. */
#define STAMP_AGE_S 2

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

int gguf_open_memory(struct gguf **ret, const char *name, const void *data, size_t len,
		     struct load_error *err)
{
	struct gguf *gguf = gguf_new(name);
	int r;

	if (!gguf)
		return load_fail(err, name, -ENOMEM, "out of memory");
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
	int fd, r = 0;

	/* O_NONBLOCK: a FIFO must be refused, not waited for */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		r = -errno;
		return load_fail(err, path, r, "cannot open: %s", strerror(-r));
	}
	if (fstat(fd, &st) < 0) {
		r = -errno;
		load_fail(err, path, r, "cannot stat: %s", strerror(-r));
	} else if (!S_ISREG(st.st_mode)) {
		r = load_fail(err, path, -EINVAL, "not a regular file");
	} else if (st.st_size < 24) {
		r = load_fail(err, path, -EINVAL,
			      "%lld bytes are too few for a GGUF file",
			      (long long)st.st_size);
	} else if ((uint64_t)st.st_size > SIZE_MAX / 2) {
		r = load_fail(err, path, -EINVAL, "too large to map");
	}
	if (r < 0)
		goto out;
	r = mapping_open(&gguf->map, fd, (size_t)st.st_size);
	if (r < 0) {
		load_fail(err, path, r, "cannot map: %s", strerror(-r));
		goto out;
	}
	gguf->image = gguf->map.data;
	gguf->len = gguf->map.len;
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
		return load_fail(err, path, -ENOMEM, "out of memory");
	r = map_file(gguf, path, err);
	if (r == 0)
		r = gguf_check_read(gguf, gguf_parse(gguf, err), err);
	if (r < 0) {
		gguf_free(gguf);
		return r;
	}
	*ret = gguf;
	return 0;
}

int gguf_check_read(const struct gguf *gguf, int code, struct load_error *err)
{
	size_t now;

	if (!mapping_lost(&gguf->map))
		return code;
	now = mapping_size_now(&gguf->map);
	if (now < gguf->len)
		return gguf_fail(err, gguf, -EIO,
				 "became shorter while it was read: %zu of %zu bytes are "
				 "left",
				 now, gguf->len);
	return gguf_fail(err, gguf, -EIO, "cannot be read: %s", strerror(EIO));
}

void gguf_free(struct gguf *gguf)
{
	if (!gguf)
		return;
	mapping_close(&gguf->map);
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
