/* SPDX-License-Identifier: MIT */
/*
 * See weights_keep.h. Packing reads the whole model and is most of a warm start; a daemon that
 * finds the file of its own executable and of the same model maps it instead. Any other is dropped:
 * the packed form is no format that another build would know. The weights are not looked at: that
 * they are what was packed is the kernel's word, by the seals.
 */
#include "daemon/engine/weights_keep.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/region.h"

#define WEIGHTS_MAGIC 0x0073746867696577 /* "weights" */

/* How long the manager may take to let go of a file. */
#define DROP_NS ((uint64_t)1000000000)

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int64_t time_ns(const struct timespec *ts)
{
	return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

/* Nobody can write to a file that is being run, so it needs no age as the model's does. Every
 * backend is linked into it: none can pack in another way without another stamp. */
static bool stamp_exe(struct image_file *ret)
{
	struct stat st;

	if (stat("/proc/self/exe", &st) < 0)
		return false;
	*ret = (struct image_file){
		.dev = st.st_dev,
		.ino = st.st_ino,
		.size = (uint64_t)st.st_size,
		.mtime_ns = time_ns(&st.st_mtim),
		.ctime_ns = time_ns(&st.st_ctim),
	};
	return true;
}

/* Sealed against every change, and marked with just that. */
static bool is_marked(int fd, const struct weights_mark *want)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct weights_mark mark;

	return seals >= 0 && (seals & SEALS) == SEALS &&
	       pread(fd, &mark, sizeof(mark), 0) == (ssize_t)sizeof(mark) &&
	       memcmp(&mark, want, sizeof(mark)) == 0;
}

/* Others may be made next: both at once might not fit into the memory limit. */
static void drop(struct fdstore *store, int fd)
{
	if (fd >= 0)
		close(fd);
	(void)fdstore_remove(store, FDSTORE_WEIGHTS);
	(void)fdstore_barrier(store, DROP_NS);
}

void weights_keep_begin(struct weights_keep *keep, struct fdstore *store,
			const struct kv_backend *backend, struct kv_device *dev,
			const struct image_file *file, const uint8_t *fingerprint)
{
	bool known;

	*keep = (struct weights_keep){
		.store = store, .backend = backend, .dev = dev, .fd = -1};
	if (!store || !fdstore_is_there(store))
		return;
	known = file && backend->weights_begin && stamp_exe(&keep->mark.exe);
	if (known) {
		keep->mark.magic = WEIGHTS_MAGIC;
		strncpy(keep->mark.version, KVD_VERSION, sizeof(keep->mark.version) - 1);
		keep->mark.model = *file;
	}
	keep->fd = fdstore_take(store, FDSTORE_WEIGHTS);
	if (keep->fd >= 0 && known && fingerprint) {
		memcpy(keep->mark.fingerprint, fingerprint,
		       sizeof(keep->mark.fingerprint));
		keep->filled = is_marked(keep->fd, &keep->mark);
	}
	if (!keep->filled) {
		if (keep->fd != -ENOENT)
			drop(store, keep->fd);
		keep->fd = known ? memfd_sealable(FDSTORE_WEIGHTS) : -1;
	}
	if (keep->fd >= 0)
		backend->weights_begin(dev, keep->fd, KV_WEIGHTS_ALIGN, keep->filled);
}

/* All weights are made. What came back and could not be used leaves the store. */
int weights_keep_end(struct weights_keep *keep, const uint8_t *fingerprint)
{
	struct weights_mark *mark = &keep->mark;
	int r;

	if (keep->fd < 0)
		return 0;
	r = keep->backend->weights_end(keep->dev);
	if (r < 0)
		return r;
	if (r > 0 && keep->filled) {
		drop(keep->store, keep->fd);
		keep->fd = -1;
		keep->filled = false;
	}
	if (r > 0 || keep->filled)
		return 0;
	memcpy(mark->fingerprint, fingerprint, sizeof(mark->fingerprint));
	keep->sealed =
		pwrite(keep->fd, mark, sizeof(*mark), 0) == (ssize_t)sizeof(*mark) &&
		fcntl(keep->fd, F_ADD_SEALS, SEALS) == 0;
	return 0;
}

void weights_keep_push(struct weights_keep *keep)
{
	if (keep->sealed)
		(void)fdstore_push(keep->store, FDSTORE_WEIGHTS, keep->fd);
}

void weights_keep_close(struct weights_keep *keep)
{
	if (keep->store && keep->fd >= 0)
		close(keep->fd);
	*keep = (struct weights_keep){.fd = -1};
}

void weights_keep_discard(struct fdstore *store)
{
	int fd = fdstore_take(store, FDSTORE_WEIGHTS);

	if (fd != -ENOENT)
		drop(store, fd);
}
