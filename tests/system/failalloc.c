/* SPDX-License-Identifier: MIT */
/*
 * Preloaded into kvd or a client: allocations fail, wherever they are made.
 *
 *   KVD_FAILALLOC=N[+]     the N-th fails; with + all later ones do, too; 0: none
 *   KVD_FAILALLOC_BEGIN    set: counting begins before main(), also failcall's, for a
 *                          program that does not say where
 *   KVD_FAILALLOC_REPORT   file that gets "SEEN FAILED LIVE WHERE" at the exit, and with
 *                          N = 0 the numbers of the first three calls of each place
 *
 * Counting begins when the program calls prctl(PR_SET_DUMPABLE), which kvd does first of
 * all. LIVE is how many allocations made by the program itself or by libkvclient, not by
 * other libraries, were not freed; WHERE is the image and the offset that asked for the
 * first one to fail, for addr2line. Looking up users and groups is left alone: without
 * memory the C library crashes there. Not for builds with sanitizers, which bring an allocator
 * of their own. Any thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);

#define N_LIVE (1u << 18)

static struct {
	uintptr_t begin, end;
} images[2];
static size_t n_images;

static unsigned long nth, n_seen, n_failed;
static bool all, armed;
static __thread bool spared;
static uintptr_t first_site;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *live[N_LIVE];
static long n_live;

#define N_SITES 4096
static struct {
	const void *site;
	unsigned long first[3];
	unsigned int n;
} sites[N_SITES];

static int add_image(struct dl_phdr_info *info, size_t size, void *arg)
{
	/* The program itself comes first and has no name. */
	if (info->dlpi_name[0] && !strstr(info->dlpi_name, "libkvclient"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum && n_images < 2; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
			images[n_images].begin = info->dlpi_addr + p->p_vaddr;
			images[n_images++].end =
				info->dlpi_addr + p->p_vaddr + p->p_memsz;
			break;
		}
	}
	return 0;
}

static bool is_ours(const void *site)
{
	for (size_t i = 0; i < n_images; i++)
		if ((uintptr_t)site >= images[i].begin && (uintptr_t)site < images[i].end)
			return true;
	return false;
}

/* Few enough to try them all, and each place in the sources is among them. */
static void sample(const void *site, unsigned long i)
{
	size_t at = (uintptr_t)site % N_SITES, n = 0;

	pthread_mutex_lock(&lock);
	while (n++ < N_SITES && sites[at].site && sites[at].site != site)
		at = (at + 1) % N_SITES;
	sites[at].site = site;
	if (sites[at].n < 3)
		sites[at].first[sites[at].n++] = i;
	pthread_mutex_unlock(&lock);
}

static bool fails(const void *site)
{
	unsigned long i;

	if (spared || !__atomic_load_n(&armed, __ATOMIC_ACQUIRE))
		return false;
	i = __atomic_add_fetch(&n_seen, 1, __ATOMIC_RELAXED);
	if (!nth)
		sample(site, i);
	if (!nth || i < nth || (i > nth && !all))
		return false;
	if (__atomic_fetch_add(&n_failed, 1, __ATOMIC_RELAXED) == 0)
		first_site = (uintptr_t)site;
	errno = ENOMEM;
	return true;
}

static size_t slot_of(const void *p)
{
	return (uintptr_t)p / 16 * 2654435761u % N_LIVE;
}

/* Open addressing; what is taken out leaves a mark that searches pass over. */
#define GONE ((void *)1)

static void *note(void *p, const void *site)
{
	if (!p || !armed || !is_ours(site))
		return p;
	pthread_mutex_lock(&lock);
	for (size_t i = slot_of(p), n = 0; n < N_LIVE; n++, i = (i + 1) % N_LIVE)
		if (!live[i] || live[i] == GONE) {
			live[i] = p;
			n_live++;
			break;
		}
	pthread_mutex_unlock(&lock);
	return p;
}

static void forget(const void *p)
{
	if (!p || !armed)
		return;
	pthread_mutex_lock(&lock);
	for (size_t i = slot_of(p), n = 0; n < N_LIVE && live[i];
	     n++, i = (i + 1) % N_LIVE)
		if (live[i] == p) {
			live[i] = GONE;
			n_live--;
			break;
		}
	pthread_mutex_unlock(&lock);
}

#define SITE __builtin_return_address(0)

void *malloc(size_t size)
{
	return fails(SITE) ? NULL : note(__libc_malloc(size), SITE);
}

void *calloc(size_t n, size_t size)
{
	return fails(SITE) ? NULL : note(__libc_calloc(n, size), SITE);
}

static void *resize(void *p, size_t size, const void *site)
{
	void *q;

	if (fails(site))
		return NULL;
	forget(p);
	q = __libc_realloc(p, size);
	note(q ? q : p, site);
	return q;
}

void *realloc(void *p, size_t size)
{
	return resize(p, size, SITE);
}

void *reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return resize(p, bytes, SITE);
}

void *memalign(size_t align, size_t size)
{
	return fails(SITE) ? NULL : note(__libc_memalign(align, size), SITE);
}

void *aligned_alloc(size_t align, size_t size)
{
	return fails(SITE) ? NULL : note(__libc_memalign(align, size), SITE);
}

int posix_memalign(void **ret, size_t align, size_t size)
{
	void *p = fails(SITE) ? NULL : note(__libc_memalign(align, size), SITE);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

void free(void *p)
{
	forget(p);
	__libc_free(p);
}

/* Five arguments, as the kernel has it; fewer were given where the option takes fewer. */
int prctl(int option, ...)
{
	unsigned long args[4];
	va_list list;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		args[i] = va_arg(list, unsigned long);
	va_end(list);
	if (option == PR_SET_DUMPABLE)
		__atomic_store_n(&armed, true, __ATOMIC_RELEASE);
	return (int)syscall(SYS_prctl, option, args[0], args[1], args[2], args[3]);
}

#define LOOK_UP(type, name, arg_type)                                                    \
	type *name(arg_type key)                                                         \
	{                                                                                \
		type *(*real)(arg_type), *found;                                         \
                                                                                         \
		spared = true;                                                           \
		*(void **)&real = dlsym(RTLD_NEXT, #name);                               \
		found = real(key);                                                       \
		spared = false;                                                          \
		return found;                                                            \
	}

LOOK_UP(struct passwd, getpwuid, uid_t)
LOOK_UP(struct passwd, getpwnam, const char *)
LOOK_UP(struct group, getgrgid, gid_t)

static __attribute__((constructor)) void begin(void)
{
	const char *text = getenv("KVD_FAILALLOC");
	char *end;

	dl_iterate_phdr(add_image, NULL);
	nth = text ? strtoul(text, &end, 10) : 0;
	all = text && *end == '+';
	if (getenv("KVD_FAILALLOC_BEGIN"))
		(void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static __attribute__((destructor)) void report(void)
{
	const char *path = getenv("KVD_FAILALLOC_REPORT");
	Dl_info info = {0};
	FILE *f;

	__atomic_store_n(&armed, false, __ATOMIC_RELEASE);
	if (!path || !(f = fopen(path, "we")))
		return;
	if (first_site)
		(void)dladdr((void *)first_site, &info);
	fprintf(f, "%lu %lu %ld %s+%#lx\n", n_seen, n_failed, n_live,
		info.dli_fname ? info.dli_fname : "?",
		(unsigned long)(first_site - (uintptr_t)info.dli_fbase));
	for (size_t i = 0; !nth && i < N_SITES; i++)
		for (unsigned int k = 0; k < sites[i].n; k++)
			fprintf(f, "%lu\n", sites[i].first[k]);
	fclose(f);
}
