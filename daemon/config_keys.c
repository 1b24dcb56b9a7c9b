/* SPDX-License-Identifier: MIT */
#include "daemon/config_keys.h"

#include <kvd/abi.h>

#include "ipc/base.h"
#include "kernels/format.h"

#define KIB(n)     ((uint64_t)(n) << 10)
#define MIB(n)     ((uint64_t)(n) << 20)
#define TIB(n)     ((uint64_t)(n) << 40)
#define SECONDS(n) ((uint64_t)(n)*1000000000)

static const struct config_choice log_levels[] = {
	{"error", LOG_ERR}, {"warning", LOG_WARNING}, {"notice", LOG_NOTICE},
	{"info", LOG_INFO}, {"debug", LOG_DEBUG},     {NULL},
};

static const struct config_choice log_targets[] = {
	{"auto", LOG_TARGET_AUTO},
	{"journal", LOG_TARGET_JOURNAL},
	{"stderr", LOG_TARGET_STDERR},
	{"json", LOG_TARGET_JSON},
	{NULL},
};

static const struct config_choice io_backends[] = {
	{"auto", LOOP_BACKEND_AUTO},
	{"io_uring", LOOP_BACKEND_IO_URING},
	{"epoll", LOOP_BACKEND_EPOLL},
	{NULL},
};

static const struct config_choice chat_templates[] = {
	{"auto", CONFIG_CHAT_AUTO},
	{"chatml", CONFIG_CHAT_CHATML},
	{"plain", CONFIG_CHAT_PLAIN},
	{NULL},
};

/* Names that people bring along from vLLM and llama.cpp mean what they mean there, or
 * lead to what comes nearest. */
static const struct config_choice kv_dtypes[] = {
	{"fp16", KV_FORMAT_FP16},
	{"int8", KV_FORMAT_INT8},
	{"int4", KV_FORMAT_INT4},
	{"fp8_e4m3", KV_FORMAT_FP8_E4M3},
	{"auto", KV_FORMAT_FP16},
	{"fp8", KV_FORMAT_FP8_E4M3},
	{"f16", 0, "the name here is fp16"},
	{"float16", 0, "the name here is fp16"},
	{"half", 0, "the name here is fp16"},
	{"bf16", 0, "use fp16, which takes as much memory and is closer"},
	{"bfloat16", 0, "use fp16, which takes as much memory and is closer"},
	{"f32", 0, "use fp16"},
	{"float32", 0, "use fp16"},
	{"fp8_e5m2", 0, "use fp8_e4m3, which takes as much memory and is closer"},
	{"q8_0", 0, "use int8, which is as close in as many bytes"},
	{"q4_0", 0, "use int4, which takes as much memory and is closer"},
	{"q4_1", 0, "use int4, which takes less memory and is closer"},
	{NULL},
};

static const struct config_choice kv_qualities[] = {
	{"fallback", CONFIG_QUALITY_FALLBACK},
	{"refuse", CONFIG_QUALITY_REFUSE},
	{"warn", CONFIG_QUALITY_WARN},
	{"off", CONFIG_QUALITY_OFF},
	{NULL},
};

static const struct config_choice block_sizes[] = {
	{"16", 16},
	{"32", 32},
	{NULL},
};

static const struct config_choice backends[] = {
	{"auto", CONFIG_BACKEND_AUTO},
	{"cpu", CONFIG_BACKEND_CPU},
	{"cuda", 0, "this build has no GPU backend; use auto"},
	{"gpu", 0, "this build has no GPU backend; use auto"},
	{NULL},
};

static const struct config_choice isas[] = {
	{"auto", CONFIG_ISA_AUTO},
	{"c", CONFIG_ISA_C},
	{"avx2", CONFIG_ISA_AVX2},
	{"avx512", CONFIG_ISA_AVX512},
	{"avx512vnni", CONFIG_ISA_AVX512VNNI},
	{"amx", CONFIG_ISA_AMX},
	{"dotprod", CONFIG_ISA_DOTPROD},
	{NULL},
};

static const struct config_choice huge_pages[] = {
	{"auto", CONFIG_HUGE_PAGES_AUTO},
	{"never", CONFIG_HUGE_PAGES_NEVER},
	{NULL},
};

/* Rows of one section stand together; this is also the order in which help is printed. */
const struct config_key config_keys[] = {
	{
		.name = "socket",
		.section = "daemon",
		.type = CONFIG_STRING,
		.offset = offsetof(struct config, daemon.socket),
		.default_text = "/run/kvd/kvd.sock",
		.help = "Where clients connect. Not used when the service manager hands the\n"
			"socket over.",
	},
	{
		.name = "log_level",
		.section = "daemon",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, daemon.log_level),
		.default_text = "info",
		.choices = log_levels,
		.live = true,
		.help = "Least important kind of message that is written.",
	},
	{
		.name = "log_target",
		.section = "daemon",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, daemon.log_target),
		.default_text = "auto",
		.choices = log_targets,
		.live = true,
		.help = "auto: the journal if standard error leads there, else plain lines on\n"
			"standard error. json: one object a line on standard error.",
	},
	{
		.name = "log_rate_interval",
		.section = "daemon",
		.type = CONFIG_DURATION,
		.offset = offsetof(struct config, daemon.log_rate_interval_ns),
		.default_text = "30s",
		.max = SECONDS(86400),
		.live = true,
		.help = "Messages that one user can cause are limited to log_rate_burst in this\n"
			"time. 0 switches the limit off.",
	},
	{
		.name = "log_rate_burst",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.log_rate_burst),
		.default_text = "100",
		.min = 1,
		.max = 1000000,
		.live = true,
		.help = "See log_rate_interval.",
	},
	{
		.name = "io_backend",
		.section = "daemon",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, daemon.io_backend),
		.default_text = "auto",
		.choices = io_backends,
		.help = "auto: io_uring where the kernel allows it, else epoll.",
	},
	{
		.name = "max_clients",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.max_clients),
		.default_text = "1024",
		.min = 1,
		.max = 65536,
		.live = true,
		.help = "Connections at one time. When all are taken, a user with less than an\n"
			"even share gets the place of one that has not said HELLO.",
	},
	{
		.name = "max_clients_per_uid",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.max_clients_per_uid),
		.default_text = "32",
		.min = 1,
		.max = 65536,
		.live = true,
		.help = "Connections of one user at one time.",
	},
	{
		.name = "max_rings_per_client",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.max_rings_per_client),
		.default_text = "16",
		.min = 1,
		.max = KVD_MAX_RINGS,
		.live = true,
		.help = "Rings that one connection may open.",
	},
	{
		.name = "max_inflight_per_client",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.max_inflight_per_client),
		.default_text = "1024",
		.min = 1,
		.max = 65536,
		.live = true,
		.help = "Requests of one connection that were accepted and not yet completed.",
	},
	{
		.name = "max_arena_per_ring",
		.section = "daemon",
		.type = CONFIG_SIZE,
		.offset = offsetof(struct config, daemon.max_arena_per_ring),
		.default_text = "64M",
		.min = KIB(64),
		.max = KVD_MAX_ARENA_BYTES,
		.live = true,
		.help = "Largest input arena, and largest output arena, of a ring.",
	},
	{
		.name = "spin_us",
		.section = "daemon",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, daemon.spin_us),
		.default_text = "50",
		.max = 10000,
		.live = true,
		.help = "Microseconds for which the daemon looks for new requests before it goes\n"
			"to sleep. More answers faster and burns more CPU time; 0 never spins.",
	},
	{
		.name = "path",
		.section = "model",
		.type = CONFIG_STRING,
		.offset = offsetof(struct config, model.path),
		.default_text = "",
		.help = "The model, a GGUF file.",
	},
	{
		.name = "name",
		.section = "model",
		.type = CONFIG_STRING,
		.offset = offsetof(struct config, model.name),
		.default_text = "",
		.help = "What clients call the model; empty: what the file says.",
	},
	{
		.name = "chat_template",
		.section = "model",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, model.chat_template),
		.default_text = "auto",
		.choices = chat_templates,
		.help = "How chats become text. auto: as the model file says; a file whose\n"
			"template is unknown is refused.",
	},
	{
		.name = "tensor_parallel_size",
		.section = "model",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, model.tensor_parallel_size),
		.default_text = "1",
		.min = 1,
		.max = CONFIG_MAX_RANKS,
		.help = "Devices that share the model: each has a part of the heads and of the\n"
			"feed-forward layers, which the number has to divide.",
	},
	{
		.name = "kv_cache_dtype",
		.section = "cache",
		.type = CONFIG_KV_DTYPE,
		.offset = offsetof(struct config, cache.kv_cache_dtype),
		.default_text = "fp16",
		.choices = kv_dtypes,
		.help = "How keys and values are stored: one format for both, or one for each.\n"
			"int8 takes half the memory of fp16 and int4 less than a third. auto is\n"
			"fp16, fp8 is fp8_e4m3.",
	},
	{
		.name = "kv_quality_check",
		.section = "cache",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, cache.kv_quality_check),
		.default_text = "fallback",
		.choices = kv_qualities,
		.help = "What to do when int4 costs the model too much quality, which a short\n"
			"run at the start shows: use int8 in its place, refuse to start, or warn.\n"
			"off leaves the run out.",
	},
	{
		.name = "block_size",
		.section = "cache",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, cache.block_size),
		.default_text = "16",
		.choices = block_sizes,
		.help = "Tokens in a block, the unit that is shared and evicted.",
	},
	{
		.name = "kv_cache_memory",
		.section = "cache",
		.type = CONFIG_SIZE,
		.offset = offsetof(struct config, cache.kv_cache_memory),
		.default_text = "512M",
		.min = MIB(1),
		.max = TIB(64),
		.help = "Memory for the block pool.",
	},
	{
		.name = "gpu_memory_utilization",
		.section = "cache",
		.type = CONFIG_FRACTION,
		.offset = offsetof(struct config, cache.gpu_memory_utilization),
		.default_text = "0",
		.max = 0,
		.range_note = "this build has no GPU backend; use kv_cache_memory",
		.help = "Share of a GPU's memory for weights and pool together; 0: not used.",
	},
	{
		.name = "enable_prefix_caching",
		.section = "cache",
		.type = CONFIG_BOOL,
		.offset = offsetof(struct config, cache.enable_prefix_caching),
		.default_text = "yes",
		.help = "Whether requests reuse what earlier ones have computed.",
	},
	{
		.name = "max_num_seqs",
		.section = "scheduler",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, scheduler.max_num_seqs),
		.default_text = "128",
		.min = 1,
		.max = 4096,
		.help = "Sequences in one step; further ones wait.",
	},
	{
		.name = "max_num_batched_tokens",
		.section = "scheduler",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, scheduler.max_num_batched_tokens),
		.default_text = "512",
		.min = 1,
		.max = 65536,
		.help = "Tokens in one step. More makes long prompts faster and the next token\n"
			"of the others later. At least max_num_seqs.",
	},
	{
		.name = "max_model_len",
		.section = "scheduler",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, scheduler.max_model_len),
		.default_text = "0",
		.max = 16 << 20,
		.help = "Longest sequence, prompt and answer together; 0: what the model can do.",
	},
	{
		.name = "guaranteed_blocks",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.guaranteed_blocks),
		.live = true,
		.default_text = "0",
		.max = INT32_MAX,
		.help = "Cache blocks that a user's running requests keep when others want them.",
	},
	{
		.name = "max_blocks",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.max_blocks),
		.live = true,
		.default_text = "0",
		.max = INT32_MAX,
		.help = "Cache blocks that a user's running requests may hold; 0: the whole pool.",
	},
	{
		.name = "max_running",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.max_running),
		.live = true,
		.default_text = "0",
		.max = 4096,
		.help = "Requests of a user that run at one time; 0: a quarter of max_num_seqs.",
	},
	{
		.name = "max_waiting",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.max_waiting),
		.live = true,
		.default_text = "4096",
		.max = 65536,
		.help = "Requests of a user that wait; a further one is refused. 0: no limit.",
	},
	{
		.name = "max_connections",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.max_connections),
		.live = true,
		.default_text = "0",
		.max = 65536,
		.help = "Connections of a user; 0: as [daemon] max_clients_per_uid.",
	},
	{
		.name = "max_rings",
		.section = "quota",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, quota.max_rings),
		.live = true,
		.default_text = "64",
		.max = 65536,
		.help = "Rings of a user, over all its connections; 0: no limit.",
	},
	{
		.name = "max_arena",
		.section = "quota",
		.type = CONFIG_SIZE,
		.offset = offsetof(struct config, quota.max_arena),
		.live = true,
		.default_text = "1G",
		.max = TIB(1),
		.help = "Memory of all rings of a user, queues and arenas; 0: no limit.",
	},

	{
		.name = "backend",
		.section = "device",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, device.backend),
		.default_text = "auto",
		.choices = backends,
		.help = "What computes; auto: the best that this build has, which is the CPU.",
	},
	{
		.name = "threads",
		.section = "cpu",
		.type = CONFIG_UINT,
		.offset = offsetof(struct config, cpu.threads),
		.default_text = "0",
		.max = CONFIG_MAX_THREADS,
		.help = "Threads that compute; 0: one for each CPU that may be used, as far as a\n"
			"CPU quota reaches.",
	},
	{
		.name = "isa",
		.section = "cpu",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, cpu.isa),
		.default_text = "auto",
		.choices = isas,
		.help = "Instruction set of the kernels; auto: the best that the CPU has. One\n"
			"that the CPU lacks is an error.",
	},
	{
		.name = "affinity",
		.section = "cpu",
		.type = CONFIG_CPUS,
		.offset = offsetof(struct config, cpu.affinity),
		.default_text = "",
		.help = "CPUs for the computing threads, such as 0-3,6, one for each thread;\n"
			"empty: any. In kvd.service it takes the drop-in 50-affinity.conf.",
	},
	{
		.name = "huge_pages",
		.section = "cpu",
		.type = CONFIG_CHOICE,
		.offset = offsetof(struct config, cpu.huge_pages),
		.default_text = "auto",
		.choices = huge_pages,
		.help = "auto: ask for transparent huge pages, do without if there are none.\n"
			"never: switch them off.",
	},
};

const size_t config_n_keys = KVD_ARRAY_LEN(config_keys);
