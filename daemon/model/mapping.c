/* SPDX-License-Identifier: MIT */
/* See mapping.h. */
#include "daemon/model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_MAPPINGS 4

/*
 * The kernel says by SIGBUS to the thread that touches it that a page is missing. What the
 * handler knows, which may run in any thread: a slot's base is stored last and taken back first,
 * with release and acquire order; a mapping is closed when nobody reads it. Signals that concern
 * no mapping go to the handler before.
 */
static struct {
	_Atomic uintptr_t base; /* 0: free */
	_Atomic size_t len;
	atomic_bool lost;
} slots[MAX_MAPPINGS];

static struct sigaction former;
static unsigned n_open;
static uintptr_t page_mask; /* read by the handler, where sysconf() may not be called */

/* Zeros from the page at @at to the end of the mapping: one fault for all that is lost. Return:
 * whether the address is in a slot and can be read now. */
static bool fill(unsigned slot, uintptr_t at)
{
	uintptr_t base = atomic_load_explicit(&slots[slot].base, memory_order_acquire);
	size_t len = atomic_load_explicit(&slots[slot].len, memory_order_relaxed);
	uintptr_t page = at & ~page_mask;

	if (!base || at < base || at - base >= len)
		return false;
	atomic_store_explicit(&slots[slot].lost, true, memory_order_release);
	return mmap((void *)page, base + len - page, PROT_READ,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
		    0) != MAP_FAILED;
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
	int saved = errno;
	bool filled = false;

	for (unsigned i = 0; !filled && i < MAX_MAPPINGS; i++)
		filled = fill(i, (uintptr_t)info->si_addr);
	/* The access is repeated, and then the handler before is asked. */
	if (!filled)
		sigaction(SIGBUS, &former, NULL);
	errno = saved;
}

static int install(void)
{
	struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

	if (n_open)
		return 0;
	page_mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, &former) < 0 ? -errno : 0;
}

int mapping_open(struct mapping *ret, int fd, size_t len)
{
	unsigned slot = 0;
	void *data;
	int own, r;

	while (slot < MAX_MAPPINGS && slots[slot].base)
		slot++;
	if (slot == MAX_MAPPINGS)
		return -EMFILE;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return -errno;
	data = mmap(NULL, len, PROT_READ, MAP_PRIVATE, own, 0);
	r = data == MAP_FAILED ? -errno : install();
	if (r < 0) {
		if (data != MAP_FAILED)
			munmap(data, len);
		close(own);
		return r;
	}
	n_open++;
	slots[slot].len = len;
	slots[slot].lost = false;
	atomic_store_explicit(&slots[slot].base, (uintptr_t)data, memory_order_release);
	*ret = (struct mapping){.data = data, .len = len, .fd = own, .slot = slot};
	return 0;
}

void mapping_close(struct mapping *map)
{
	if (!map->data)
		return;
	atomic_store_explicit(&slots[map->slot].base, 0, memory_order_release);
	munmap((void *)map->data, map->len);
	close(map->fd);
	if (!--n_open)
		sigaction(SIGBUS, &former, NULL);
	*map = (struct mapping){0};
}

size_t mapping_size_now(const struct mapping *map)
{
	struct stat st;

	if (fstat(map->fd, &st) < 0 || (uint64_t)st.st_size > map->len)
		return map->len;
	return (size_t)st.st_size;
}

/* A cut within the last page raises no signal: the kernel fills that page up with zeros. */
bool mapping_lost(const struct mapping *map)
{
	return map->data &&
	       (atomic_load_explicit(&slots[map->slot].lost, memory_order_acquire) ||
		mapping_size_now(map) < map->len);
}
