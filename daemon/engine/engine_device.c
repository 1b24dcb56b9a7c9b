/* SPDX-License-Identifier: MIT */
/* See engine_device.h. */
#include "daemon/engine/engine_device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "daemon/config.h"
#include "daemon/host_limits.h"
#include "daemon/log.h"
#include "daemon/msgid.h"
#include "ipc/base.h"
#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"

_Static_assert(CONFIG_MAX_THREADS == KV_CPU_MAX_THREADS,
	       "what passes the check also starts");

static int fail(char *error, size_t size, int code, const char *text)
{
	snprintf(error, size, "%s: %s", text, strerror(-code));
	return code;
}

/* The backend's own line, with what the daemon knows of: EAGAIN comes from pthread_create(), of
 * a limit that its text does not name. */
static int open_device(struct engine_device *device, const struct kv_options *options,
		       char *error, size_t size)
{
	char why[160] = "";
	int r;

	r = device->backend->open(options, why, sizeof(why), &device->dev);
	if (r)
		snprintf(error, size, "cannot open the device \"%s\": %s%s",
			 device->backend->name, *why ? why : strerror(-r),
			 r == -EAGAIN ? "; are they more than TasksMax= or RLIMIT_NPROC "
					"permits?"
				      : "");
	return r;
}

static uint32_t isa_mask(int isa)
{
	static const char *const names[] = {
		[CONFIG_ISA_C] = "c",           [CONFIG_ISA_AVX2] = "avx2",
		[CONFIG_ISA_AVX512] = "avx512", [CONFIG_ISA_AVX512VNNI] = "avx512vnni",
		[CONFIG_ISA_AMX] = "amx",       [CONFIG_ISA_DOTPROD] = "dotprod",
	};
	int mask = isa == CONFIG_ISA_AUTO ? 0 : kv_cpu_mask_parse(names[isa]);

	return mask > 0 ? (uint32_t)mask : 0;
}

/* Transparent huge pages are asked for by the backend; this forbids them. */
static void set_huge_pages(const struct config *config)
{
	if (config->cpu.huge_pages == CONFIG_HUGE_PAGES_NEVER &&
	    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0)
		log_errno(LOG_WARNING, -errno,
			  "[cpu] huge_pages: cannot switch huge pages off");
}

/* Which part of the CPUs and threads a device has. */
struct share {
	uint32_t rank, n_ranks;
};

/* Of n things, at least one. */
static uint32_t share_of(const struct share *share, uint32_t n)
{
	uint32_t from = n * share->rank / share->n_ranks;
	uint32_t to = n * (share->rank + 1) / share->n_ranks;

	return to > from ? to - from : 1;
}

/* Leave the share's part of the CPUs; all where there are too few. */
static void take_cpus(const struct share *share, cpu_set_t *cpus)
{
	uint32_t n = (uint32_t)CPU_COUNT(cpus), i = 0;
	uint32_t from = n * share->rank / share->n_ranks;
	uint32_t to = n * (share->rank + 1) / share->n_ranks;

	for (int cpu = 0; to > from && cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, cpus))
			continue;
		if (i < from || i >= to)
			CPU_CLR(cpu, cpus);
		i++;
	}
}

/* How many threads @usable and the CPU quota have room for, and the default of them. */
static void choose_threads(struct engine_device *device, const struct share *share,
			   struct kv_cpu_options *cpu, const cpu_set_t *usable)
{
	uint32_t n = host_limits_cpus("", (uint32_t)CPU_COUNT(usable));

	device->n_cpus = n;
	if (!cpu->n_threads)
		cpu->n_threads = n < CONFIG_MAX_THREADS ? n : CONFIG_MAX_THREADS;
	else if (cpu->n_threads > n && share->rank == 0)
		log_warning("[cpu] threads is %u, but the CPUs and the CPU quota of the "
			    "control groups have room for %u; the threads will wait for "
			    "each other",
			    cpu->n_threads, n);
	cpu->n_threads = share_of(share, cpu->n_threads);
}

/*
 * Go on without [cpu] affinity: the threads are as many as they would be, and run anywhere.
 * What refuses is the filter of kvd.service, unless a drop-in opens it.
 */
static void do_without_affinity(struct engine_device *device)
{
	device->affinity_refused = true;
	log_event(LOG_WARNING, LOG_FIELDS(.message_id = MSGID_AFFINITY_REFUSED),
		  "[cpu] affinity has no effect: the system call sched_setaffinity is "
		  "refused; install the drop-in 50-affinity.conf, or set CPUAffinity= of "
		  "the unit instead");
}

/*
 * Open the CPU so that its threads get the CPUs of [cpu] affinity, one each: a thread inherits
 * the mask of the one that makes it. This thread gets its own mask back, and the worker, which
 * computes too, takes the first of the CPUs.
 */
static int open_bound(struct engine_device *device, const cpu_set_t *wanted,
		      const struct share *share, struct kv_cpu_options *cpu, char *error,
		      size_t size)
{
	const struct kv_options options = {.cpu = cpu};
	cpu_set_t old, usable;
	int r;

	CPU_ZERO(&old);
	if (sched_getaffinity(0, sizeof(old), &old) < 0)
		return fail(error, size, -errno, "cannot read the CPU affinity");
	if (!CPU_COUNT(wanted)) {
		choose_threads(device, share, cpu, &old);
		return open_device(device, &options, error, size);
	}
	CPU_AND(&usable, &old, wanted);
	if (!CPU_COUNT(&usable)) {
		snprintf(error, size,
			 "[cpu] affinity names no CPU that this process may use");
		return error_origin(-EINVAL);
	}
	choose_threads(device, share, cpu, &usable);
	take_cpus(share, &usable);
	if (sched_setaffinity(0, sizeof(usable), &usable) == 0)
		cpu->affinity = true;
	else if (errno == EPERM)
		do_without_affinity(device);
	else
		return fail(error, size, -errno, "cannot set [cpu] affinity");
	r = open_device(device, &options, error, size);
	if (!cpu->affinity)
		return r;
	sched_setaffinity(0, sizeof(old), &old);
	if (r)
		return r;
	for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&device->worker_cpus); i++)
		if (CPU_ISSET(i, &usable))
			CPU_SET(i, &device->worker_cpus);
	return 0;
}

static int open_cpu(struct engine_device *device, const struct config *config,
		    const struct share *share, char *error, size_t size)
{
	uint32_t mask = isa_mask(config->cpu.isa);
	struct kv_cpu_options cpu = {
		.n_threads = config->cpu.threads,
		.cpu_mask = mask,
	};

	if (mask & ~kv_cpu_features_masked(mask)) {
		snprintf(error, size,
			 "[cpu] isa asks for %s, which this CPU does not offer, or the "
			 "kernel refuses; use auto",
			 kv_cpu_bundle_name(mask));
		return error_origin(-ENOTSUP);
	}
	set_huge_pages(config);
	return open_bound(device, &config->cpu.affinity, share, &cpu, error, size);
}

/* Backends in the order in which one is looked for. */
static const struct device_kind {
	enum config_backend choice;
	const struct kv_backend *(*backend)(void);
	int (*open)(struct engine_device *device, const struct config *config,
		    const struct share *share, char *error, size_t size);
} kinds[] = {
	{CONFIG_BACKEND_CPU, kv_backend_cpu, open_cpu},
};

static const struct device_kind *kind_of(int choice)
{
	for (size_t i = 0; i < KVD_ARRAY_LEN(kinds); i++)
		if (choice == CONFIG_BACKEND_AUTO || choice == (int)kinds[i].choice)
			return &kinds[i];
	return NULL;
}

int engine_device_open(struct engine_device *device, const struct config *config,
		       uint32_t rank, uint32_t n_ranks, char *error, size_t size)
{
	const struct share share = {rank, n_ranks};
	const struct device_kind *kind = kind_of(config->device.backend);
	int r;

	if (!kind) {
		snprintf(error, size, "[device] backend: this build has no such backend");
		return error_origin(-ENOTSUP);
	}
	*device = (struct engine_device){.backend = kind->backend()};
	r = kind->open(device, config, &share, error, size);
	if (r)
		return r;
	device->backend->get_props(device->dev, &device->props);
	snprintf(device->name, sizeof(device->name), "%s-%s", device->props.name,
		 device->props.isa);
	return 0;
}

void engine_device_close(struct engine_device *device)
{
	if (device->dev)
		device->backend->close(device->dev);
	device->dev = NULL;
}
