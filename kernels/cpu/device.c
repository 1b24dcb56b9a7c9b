/* SPDX-License-Identifier: MIT */
/* The CPU backend's table: devices, memory and pools. Ops are in their own files. */
#include "kernels/cpu/device.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/memory.h"
#include "kernels/cpu_backend.h"
#include "kernels/cpu_features.h"

/* Stepped when an op's definition in kernels/c/ differs from that of the last release, since
 * kept blocks then differ. The bundle is not part of it: all bundles give the same bits. */
#define ARITHMETIC_VERSION 1

int scratch_reserve(struct scratch *s, size_t size)
{
	void *mem;

	if (size <= s->size)
		return 0;
	mem = memory_alloc(size);
	if (!mem)
		return -ENOMEM;
	memory_free(s->mem, s->size);
	s->mem = mem;
	s->size = size;
	return 0;
}

void scratch_release(struct scratch *s)
{
	memory_free(s->mem, s->size);
	*s = (struct scratch){0};
}

static uint32_t usable_cpus(void)
{
	cpu_set_t set;
	int n;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	n = CPU_COUNT(&set);
	return n < 1 ? 1 : n > KV_MAX_THREADS ? KV_MAX_THREADS : (uint32_t)n;
}

static int refuse(char *error, size_t size, int code, const char *text)
{
	snprintf(error, size, "%s: %s", text, strerror(-code));
	return code;
}

static int cpu_open(const struct kv_options *options, char *error, size_t error_size,
		    struct kv_device **ret_dev)
{
	struct kv_cpu_options cpu =
		options->cpu ? *options->cpu : (struct kv_cpu_options){0};
	struct kv_device *dev;
	char text[64];
	int r;

	if (options->device)
		return refuse(error, error_size, -ENODEV, "the CPU is device 0");
	if (cpu.cpu_mask & ~(uint32_t)KV_CPU_ALL)
		return refuse(error, error_size, -EINVAL, "no such instruction set");
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return refuse(error, error_size, -ENOMEM, "no memory for a device");
	memory_arena_init(&dev->weights);
	dev->features = kv_cpu_features_masked(cpu.cpu_mask);
	kv_cpu_ops_init(&dev->ops, dev->features);
	snprintf(dev->variant, sizeof(dev->variant), "cpu-%d", ARITHMETIC_VERSION);

	if (!cpu.n_threads)
		cpu.n_threads = usable_cpus();
	if (!cpu.spin_us)
		cpu.spin_us = 50;
	r = threads_new(cpu.n_threads, cpu.spin_us, cpu.affinity, &dev->threads);
	if (r < 0) {
		free(dev);
		snprintf(text, sizeof(text), "cannot start %u compute threads",
			 cpu.n_threads);
		return refuse(error, error_size, r, text);
	}
	*ret_dev = dev;
	return 0;
}

static void cpu_close(struct kv_device *dev)
{
	if (!dev)
		return;
	threads_free(dev->threads);
	memory_arena_deinit(&dev->weights);
	free(dev);
}

static void cpu_get_props(const struct kv_device *dev, struct kv_props *ret_props)
{
	*ret_props = (struct kv_props){
		.name = "cpu",
		.isa = kv_cpu_bundle_name(dev->features),
		.variant = dev->variant,
		.n_threads = threads_count(dev->threads),
		.max_rows = KV_MAX_OP_ROWS,
		.act_bytes = sizeof(float),
		.formats = (1u << KV_FORMAT_N) - 1,
		.host_memory = true,
	};
}

/* The kernel's own estimate of what can be had without swapping. */
static int cpu_mem_info(const struct kv_device *dev, uint64_t *ret_free,
			uint64_t *ret_total)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long total = 0, available = 0;
	char line[128];

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		(void)sscanf(line, "MemTotal: %llu kB", &total);
		(void)sscanf(line, "MemAvailable: %llu kB", &available);
	}
	fclose(f);
	if (!total)
		return -ENOTSUP;
	*ret_free = (uint64_t)available << 10;
	*ret_total = (uint64_t)total << 10;
	return 0;
}

static int cpu_stream_open(struct kv_device *dev, struct kv_stream **ret_st)
{
	struct kv_stream *st = calloc(1, sizeof(*st));

	if (!st)
		return -ENOMEM;
	st->dev = dev;
	*ret_st = st;
	return 0;
}

static void cpu_stream_close(struct kv_stream *st)
{
	if (!st)
		return;
	scratch_release(&st->row_entry);
	scratch_release(&st->act_codes);
	scratch_release(&st->act_sums);
	scratch_release(&st->gemm);
	scratch_release(&st->plan.entry_mem);
	scratch_release(&st->plan.member_mem);
	scratch_release(&st->plan.group_mem);
	scratch_release(&st->plan.prefixes);
	scratch_release(&st->own.kept0);
	scratch_release(&st->own.full);
	scratch_release(&st->own.planes);
	scratch_release(&st->partials);
	scratch_release(&st->queries);
	scratch_release(&st->query_codes);
	scratch_release(&st->heaps);
	free(st);
}

static int cpu_stream_sync(struct kv_stream *st)
{
	return 0;
}

static int cpu_mem_alloc(struct kv_device *dev, size_t size, void **ret_mem)
{
	void *mem;

	if (size == 0)
		return -EINVAL;
	mem = memory_alloc(size);
	if (!mem)
		return -ENOMEM;
	*ret_mem = mem;
	return 0;
}

static void cpu_mem_free(struct kv_device *dev, void *mem, size_t size)
{
	memory_free(mem, size);
}

static int cpu_copy(struct kv_stream *st, void *dst, const void *src, size_t size)
{
	memcpy(dst, src, size);
	return 0;
}

static int cpu_pool_open(struct kv_device *dev, const struct kv_layout *layout,
			 uint32_t n_blocks, uint32_t n_tails, int fd, uint64_t off,
			 struct kv_pool **ret_pool)
{
	struct kv_pool *pool;
	size_t size, tails_size;

	if (n_blocks == 0 || off % KV_POOL_ALIGN != 0 || off > INT64_MAX)
		return -EINVAL;
	if (!kv_layout_needs_tail(layout))
		n_tails = 0;
	if (__builtin_mul_overflow(layout->tail_bytes, (size_t)n_tails, &tails_size))
		return -ENOMEM;
	if (__builtin_mul_overflow(layout->block_bytes, (size_t)n_blocks, &size))
		return -ENOMEM;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->dev = dev;
	pool->layout = *layout;
	pool->n_blocks = n_blocks;
	pool->n_tails = n_tails;
	pool->id = ++dev->next_id;
	if (tails_size > 0) {
		pool->tails = memory_alloc(tails_size);
		if (!pool->tails) {
			free(pool);
			return -ENOMEM;
		}
	}
	if (fd < 0) {
		pool->base = memory_alloc(size);
		if (!pool->base) {
			memory_free(pool->tails, tails_size);
			free(pool);
			return -ENOMEM;
		}
	} else {
		pool->base = memory_map(fd, off, size);
		if (!pool->base) {
			memory_free(pool->tails, tails_size);
			free(pool);
			return -ENOMEM;
		}
		pool->map_bytes = size;
	}
	*ret_pool = pool;
	return 0;
}

static void cpu_pool_close(struct kv_pool *pool)
{
	if (!pool)
		return;
	if (pool->map_bytes)
		memory_unmap(pool->base, pool->map_bytes);
	else
		memory_free(pool->base, pool->layout.block_bytes * pool->n_blocks);
	memory_free(pool->tails, pool->layout.tail_bytes * pool->n_tails);
	free(pool);
}

static void *cpu_pool_base(const struct kv_pool *pool)
{
	return pool->base;
}

static int cpu_copy_blocks(struct kv_stream *st, struct kv_pool *pool,
			   const struct kv_block_copy *copies, uint32_t n_copies)
{
	size_t bytes = pool->layout.block_bytes;

	for (uint32_t i = 0; i < n_copies; i++)
		if (copies[i].src >= pool->n_blocks || copies[i].dst >= pool->n_blocks)
			return -EINVAL;
	for (uint32_t i = 0; i < n_copies; i++)
		memmove(pool->base + copies[i].dst * bytes,
			pool->base + copies[i].src * bytes, bytes);
	return 0;
}

static int cpu_zero_blocks(struct kv_stream *st, struct kv_pool *pool,
			   const uint32_t *ids, uint32_t n_ids)
{
	size_t bytes = pool->layout.block_bytes;

	for (uint32_t i = 0; i < n_ids; i++)
		if (ids[i] >= pool->n_blocks)
			return -EINVAL;
	for (uint32_t i = 0; i < n_ids; i++)
		memset(pool->base + ids[i] * bytes, 0, bytes);
	return 0;
}

static int cpu_weight_pack(struct kv_device *dev, const struct kv_weight_part *parts,
			   uint32_t n_parts, struct kv_weight **ret_w)
{
	return weight_pack(dev->threads, &dev->weights, parts, n_parts, ret_w);
}

static int cpu_table_new(struct kv_device *dev, const struct kv_weight_part *part,
			 struct kv_table **ret_table)
{
	int64_t row_bytes = kv_wtype_row_bytes(part->type, part->k);
	struct kv_table *table;
	size_t size;
	bool filled;
	void *rows;

	if (row_bytes < 0 || part->n == 0 || part->n > KV_MAX_ROWS || part->row_stride ||
	    part->col0)
		return -EINVAL;
	if (__builtin_mul_overflow((size_t)row_bytes, (size_t)part->n, &size))
		return -ENOMEM;
	table = calloc(1, sizeof(*table));
	if (!table)
		return -ENOMEM;
	rows = memory_cut(&dev->weights, size, &table->chunk, &filled);
	if (!rows) {
		free(table);
		return -ENOMEM;
	}
	if (!filled)
		memcpy(rows, part->data, size);
	table->dev = dev;
	table->part = *part;
	table->part.data = rows;
	table->row_bytes = (size_t)row_bytes;
	*ret_table = table;
	return 0;
}

static void cpu_table_free(struct kv_table *table)
{
	if (!table)
		return;
	memory_unref(table->chunk);
	free(table);
}

static void cpu_weights_begin(struct kv_device *dev, int fd, uint64_t off, bool filled)
{
	memory_arena_use(&dev->weights, fd, off, filled);
}

static int cpu_weights_end(struct kv_device *dev)
{
	return memory_arena_freeze(&dev->weights);
}

static const struct kv_backend cpu_backend = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.get_props = cpu_get_props,
	.mem_info = cpu_mem_info,
	.comm_open = cpu_comm_open,
	.stream_open = cpu_stream_open,
	.stream_close = cpu_stream_close,
	.stream_sync = cpu_stream_sync,
	.mem_alloc = cpu_mem_alloc,
	.mem_free = cpu_mem_free,
	.upload = cpu_copy,
	.download = cpu_copy,
	.pool_open = cpu_pool_open,
	.pool_close = cpu_pool_close,
	.pool_base = cpu_pool_base,
	.copy_blocks = cpu_copy_blocks,
	.zero_blocks = cpu_zero_blocks,
	.weight_pack = cpu_weight_pack,
	.weight_free = weight_free,
	.weight_bytes = weight_bytes,
	.table_new = cpu_table_new,
	.table_free = cpu_table_free,
	.weights_begin = cpu_weights_begin,
	.weights_end = cpu_weights_end,
	.rope_new = cpu_rope_new,
	.rope_free = cpu_rope_free,
	.batch_load = cpu_batch_load,
	.embed = cpu_embed,
	.rms_norm = cpu_rms_norm,
	.linear = cpu_linear,
	.rope_kv_write = cpu_rope_kv_write,
	.attention = cpu_attention,
	.silu_mul = cpu_silu_mul,
	.gather_rows = cpu_gather_rows,
	.sample = cpu_sample,
	.top = cpu_top,
};

const struct kv_backend *kv_backend_cpu(void)
{
	return &cpu_backend;
}
