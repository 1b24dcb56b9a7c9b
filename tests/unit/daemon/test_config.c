/* SPDX-License-Identifier: MIT */
/* Keys, values, mistakes, and the documents that list the keys. */
#include "daemon/config.h"
#include "daemon/config_keys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "daemon/config_file.h"
#include "ipc/base.h"
#include "kernels/cpu_backend.h"
#include "kernels/format.h"
#include "tests/unit/daemon/config_text.h"
#include "tests/unit/suite.h"

#define SECOND UINT64_C(1000000000)

struct collected {
	struct config_report report;
	char text[8192];
};

static struct config config;
static struct collected got;

static void collect(struct config_report *report, const char *text)
{
	struct collected *c = (struct collected *)report;

	ck_assert_ptr_null(strchr(text, '\n'));
	ck_assert_uint_lt(strlen(c->text) + strlen(text) + 2, sizeof(c->text));
	strcat(c->text, text);
	strcat(c->text, "\n");
}

static void setup(void)
{
	got = (struct collected){.report.fn = collect};
	ck_assert_int_eq(config_init(&config), 0);
}

static void teardown(void)
{
	config_deinit(&config);
}

static int load(const char *text)
{
	return config_load_text(&config, "t.conf", text, strlen(text), &got.report);
}

START_TEST(defaults)
{
	ck_assert_str_eq(config.daemon.socket, "/run/kvd/kvd.sock");
	ck_assert_int_eq(config.daemon.log_level, LOG_INFO);
	ck_assert_uint_eq(config.daemon.max_clients, 1024);
	ck_assert_uint_eq(config.daemon.spin_us, 50);
	ck_assert_uint_eq(config.daemon.log_rate_interval_ns, 30 * SECOND);
	ck_assert_str_eq(config.model.path, "");
	ck_assert_uint_eq(config.cache.kv_cache_memory, UINT64_C(512) << 20);
	ck_assert_uint_eq(config.cache.block_size, 16);
	ck_assert(config.cache.enable_prefix_caching);
	ck_assert_uint_eq(config.scheduler.max_num_seqs, 128);
	ck_assert_uint_eq(config.scheduler.max_num_batched_tokens, 512);
	ck_assert_int_eq(CPU_COUNT(&config.cpu.affinity), 0);
	ck_assert_int_eq(config_check(&config, &got.report), 0);
}
END_TEST

START_TEST(values_of_every_type)
{
	ck_assert_int_eq(load("\xef\xbb\xbf# a comment\r\n"
			      "[daemon]\r\n"
			      "socket = /tmp/a b.sock ; said so\r\n"
			      "log_level=debug\n"
			      "   log_rate_interval = 1500 ms\n"
			      "io_backend = epoll\n"
			      "[cache]; the pool\n"
			      "kv_cache_memory = 3GiB\n"
			      "block_size = 32\n"
			      "enable_prefix_caching = Off\n"
			      "gpu_memory_utilization = 0.0\n"
			      "[device]\n"
			      "backend = cpu\n"
			      "[cpu]\n"
			      "affinity = 0-2,7, 9-9\n"
			      "[model]\n"
			      "path = \" /x\"\n"
			      "name = a\n"
			      "name ="),
			 0);
	ck_assert_str_eq(got.text, "");
	ck_assert_str_eq(config.daemon.socket, "/tmp/a b.sock");
	ck_assert_int_eq(config.daemon.log_level, LOG_DEBUG);
	ck_assert_uint_eq(config.daemon.log_rate_interval_ns, SECOND * 3 / 2);
	ck_assert_int_eq(config.daemon.io_backend, LOOP_BACKEND_EPOLL);
	ck_assert_uint_eq(config.cache.kv_cache_memory, UINT64_C(3) << 30);
	ck_assert_uint_eq(config.cache.block_size, 32);
	ck_assert(!config.cache.enable_prefix_caching);
	ck_assert_int_eq(config.device.backend, CONFIG_BACKEND_CPU);
	ck_assert_int_eq(CPU_COUNT(&config.cpu.affinity), 5);
	ck_assert(CPU_ISSET(7, &config.cpu.affinity));
	ck_assert_str_eq(config.model.path, " /x");
	ck_assert_str_eq(config.model.name, "");
}
END_TEST

/* All mistakes of a file are named, each with its line; right lines count. */
START_TEST(mistakes)
{
	ck_assert_int_eq(load("block_size = 16\n"
			      "[cache]\n"
			      "block_sise = 16\n"
			      "kv_cache_memory = many\n"
			      "kv_cache_memory = 12P\n"
			      "kv_cache_memory = 1K\n"
			      "kv_cache_memory = 99999999999999999999\n"
			      "kv_cache_dtype = q8_0\n"
			      "kv_cache_dtype = int9\n"
			      "block_size = 64\n"
			      "enable_prefix_caching = perhaps\n"
			      "gpu_memory_utilization = 0.9\n"
			      "max_num_seqs = 4\n"
			      "gpu_memory_utilization = 90%\n"
			      "gpu_memory_utilization = nan\n"
			      "gpu_memory_utilization = 0%\n"
			      "block_size = 32\n"
			      "[sheduler]\n"
			      "max_num_seqs = 0\n"
			      "[scheduler]\n"
			      "max_num_seqs = 0\n"
			      "max_num_seqs = -1\n"
			      "max_num_seqs = 0x10\n"
			      "max_num_seqs\n"
			      "= 3\n"
			      "a:b = 3\n"
			      "[cpu] x\n"
			      "[cpu\n"
			      "[cpu]\n"
			      "affinity = 3-1\n"
			      "affinity = 1024\n"
			      "affinity = 1,\n"
			      "zzzz = 1\n"
			      "[model]\n"
			      "tensor_parallel_size = 17\n"
			      "path = \x1b[31m\n"
			      "[device]\n"
			      "backend = cuda\n"
			      "backend = x\n"),
			 1);
	ck_assert_str_eq(
		got.text,
		"t.conf:1: key before the first [section]\n"
		"t.conf:3: [cache] block_sise: unknown key; did you mean block_size?\n"
		"t.conf:4: [cache] kv_cache_memory: \"many\" is not a size such as 4096, "
		"64K, 512M or 2G\n"
		"t.conf:5: [cache] kv_cache_memory: \"12P\" is not a size such as 4096, "
		"64K, 512M or 2G\n"
		"t.conf:6: [cache] kv_cache_memory: 1K is out of range (1M to 64T)\n"
		"t.conf:7: [cache] kv_cache_memory: 99999999999999999999 is out of range "
		"(1M to 64T)\n"
		"t.conf:8: [cache] kv_cache_dtype: q8_0 is not available: use int8, which "
		"is as close in as many bytes\n"
		"t.conf:9: [cache] kv_cache_dtype: \"int9\" is not one of fp16, int8, "
		"int4, fp8_e4m3, auto, fp8\n"
		"t.conf:10: [cache] block_size: \"64\" is not one of 16, 32\n"
		"t.conf:11: [cache] enable_prefix_caching: \"perhaps\" is neither yes nor "
		"no\n"
		"t.conf:12: [cache] gpu_memory_utilization: 0.9 is out of range (only 0): "
		"this build has no GPU backend; use kv_cache_memory\n"
		"t.conf:13: [cache] max_num_seqs: unknown key; it belongs to [scheduler]\n"
		"t.conf:14: [cache] gpu_memory_utilization: 90% is out of range (only 0): "
		"this build has no GPU backend; use kv_cache_memory\n"
		"t.conf:15: [cache] gpu_memory_utilization: \"nan\" is not a share such as "
		"0.9 or 90%\n"
		"t.conf:18: [sheduler]: unknown section; did you mean [scheduler]?\n"
		"t.conf:21: [scheduler] max_num_seqs: 0 is out of range (1 to 4096)\n"
		"t.conf:22: [scheduler] max_num_seqs: \"-1\" is not a number\n"
		"t.conf:23: [scheduler] max_num_seqs: \"0x10\" is not a number\n"
		"t.conf:24: neither a [section] nor a key = value\n"
		"t.conf:25: no key before the =\n"
		"t.conf:26: a colon or semicolon in the name of a key\n"
		"t.conf:27: text after the section's ]\n"
		"t.conf:28: section without ]\n"
		"t.conf:30: [cpu] affinity: \"3-1\" is not a list of CPUs such as 0-3,6\n"
		"t.conf:31: [cpu] affinity: \"1024\" is not a list of CPUs such as 0-3,6\n"
		"t.conf:32: [cpu] affinity: \"1,\" is not a list of CPUs such as 0-3,6\n"
		"t.conf:33: [cpu] zzzz: unknown key\n"
		"t.conf:35: [model] tensor_parallel_size: 17 is out of range (1 to 16)\n"
		"t.conf:36: [model] path: \"\\x1b[31m\" has control characters\n"
		"t.conf:38: [device] backend: cuda is not available: this build has no GPU "
		"backend; use auto\n"
		"t.conf:39: [device] backend: \"x\" is not one of auto, cpu\n");
	ck_assert_uint_eq(got.report.n_errors, 31);
	ck_assert_uint_eq(config.cache.block_size, 32);
	ck_assert_uint_eq(config.scheduler.max_num_seqs, 128);
	ck_assert_str_eq(config.model.path, "");
}
END_TEST

START_TEST(long_lines_and_nul_bytes)
{
	char text[1024];
	int n;

	/* 198 bytes are the most; one more would be cut in silence by inih. */
	n = sprintf(text, "[model]\npath = /%0*d\n", 198 - 8, 0);
	ck_assert_int_eq(config_load_text(&config, "t", text, (size_t)n, &got.report), 0);
	ck_assert_uint_eq(strlen(config.model.path), 198 - 7);
	n = sprintf(text, "[model]\npath = /%0*d\nname = x\n", 198 - 7, 0);
	ck_assert_int_eq(config_load_text(&config, "t", text, (size_t)n, &got.report), 1);
	ck_assert_str_eq(got.text, "t:2: line is longer than 198 bytes\n");
	ck_assert_str_eq(config.model.name, "x");
	got.text[0] = '\0';
	ck_assert_int_eq(
		config_load_text(&config, "t", "[model]\nname = y\0z", 18, &got.report),
		1);
	ck_assert_str_eq(got.text, "t:2: line has a NUL byte\n");
	ck_assert_str_eq(config.model.name, "x");
}
END_TEST

START_TEST(options)
{
	ck_assert_int_eq(
		config_set_option(&config, "daemon.socket=/tmp/a=b.c", &got.report), 0);
	ck_assert_str_eq(config.daemon.socket, "/tmp/a=b.c");
	ck_assert_int_eq(config_set_option(&config, "daemon.spin_us=0", &got.report), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 0);
	ck_assert_int_eq(config_set_option(&config, "daemon.spin_us=", &got.report), 0);
	ck_assert_uint_eq(config.daemon.spin_us, 50);
	ck_assert_int_eq(config_set_option(&config, "spin_us=3", &got.report), 1);
	ck_assert_int_eq(config_set_option(&config, "daemon.spin=3", &got.report), 1);
	ck_assert_int_eq(config_set_option(&config, "daemn.spin_us=3", &got.report), 1);
	ck_assert_int_eq(config_set_option(&config, ".=", &got.report), 1);
	ck_assert_str_eq(got.text,
			 "-o: \"spin_us=3\" is not of the form section.key=value\n"
			 "-o: [daemon] spin: unknown key\n"
			 "-o: [daemn]: unknown section; did you mean [daemon]?\n"
			 "-o: \".=\" is not of the form section.key=value\n");
}
END_TEST

START_TEST(adopting_what_may_change)
{
	struct config fresh;
	char later[64];

	ck_assert_int_eq(config_init(&fresh), 0);
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, sizeof(later)), 0);
	ck_assert_str_eq(later, "");
	config_set_option(&fresh, "daemon.log_level=debug", &got.report);
	config_set_option(&fresh, "daemon.max_clients=7", &got.report);
	config_set_option(&fresh, "daemon.max_arena_per_ring=1M", &got.report);
	config_set_option(&fresh, "model.path=/m", &got.report);
	config_set_option(&fresh, "cpu.affinity=0-1", &got.report);
	ck_assert_str_eq(got.text, "");
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, sizeof(later)), 3);
	ck_assert_str_eq(later, "[model] path, [cpu] affinity");
	ck_assert_int_eq(config.daemon.log_level, LOG_DEBUG);
	ck_assert_uint_eq(config.daemon.max_clients, 7);
	ck_assert_uint_eq(config.daemon.max_arena_per_ring, 1 << 20);
	ck_assert_str_eq(config.model.path, "");
	/* Again: the ones are the same now, the others still differ; cut to fit. */
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, 13), 0);
	ck_assert_str_eq(later, "[model] path");
	/* a domain, which takes effect at the next start as well */
	ck_assert_int_eq(
		config_domain_set(&fresh, "here", "lab", "users", "1001", &got.report),
		0);
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, sizeof(later)), 0);
	ck_assert_str_eq(later, "[model] path, [cpu] affinity, [domain]");
	/* its members, that is: limits of a domain that is there change at once, as [quota] */
	ck_assert_int_eq(
		config_domain_set(&config, "here", "lab", "users", "1001", &got.report),
		0);
	config_domain_set(&fresh, "here", "lab", "max_blocks", "7", &got.report);
	config_set_option(&fresh, "quota.max_running=3", &got.report);
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, sizeof(later)), 2);
	ck_assert_str_eq(later, "[model] path, [cpu] affinity");
	ck_assert_uint_eq(config.domains[0].quota.max_blocks, 7);
	ck_assert_uint_eq(config.quota.max_running, 3);
	ck_assert_uint_eq(config_adopt(&config, &fresh, later, sizeof(later)), 0);
	config_deinit(&fresh);
}
END_TEST

START_TEST(the_last_domain_takes_all_its_keys)
{
	char name[16];

	for (int i = 0; i < CONFIG_MAX_DOMAINS; i++) {
		snprintf(name, sizeof(name), "d%d", i);
		ck_assert_int_eq(config_domain_set(&config, "here", name, "users", "1",
						   &got.report),
				 0);
		ck_assert_int_eq(config_domain_set(&config, "here", name, "max_blocks",
						   "5", &got.report),
				 0);
	}
	ck_assert_uint_eq(config.n_domains, CONFIG_MAX_DOMAINS);
	ck_assert_str_eq(got.text, "");
	ck_assert_int_eq(
		config_domain_set(&config, "here", "more", "users", "1", &got.report), 1);
	ck_assert_ptr_nonnull(strstr(got.text, "more than 32 domains"));
}
END_TEST

START_TEST(values_that_do_not_fit_together)
{
	char option[256] = "daemon.socket=";

	memset(option + strlen(option), 'x', 120);
	ck_assert_int_eq(config_set_option(&config, option, &got.report), 0);
	ck_assert_int_eq(config_set_option(&config, "scheduler.max_num_batched_tokens=64",
					   &got.report),
			 0);
	ck_assert_int_eq(config_check(&config, &got.report), 1);
	ck_assert_uint_eq(got.report.n_errors, 3);
	ck_assert_ptr_nonnull(strstr(got.text, "socket: not an absolute path\n"));
	ck_assert_ptr_nonnull(strstr(got.text, "socket: longer than 107 bytes"));
	ck_assert_ptr_nonnull(strstr(got.text, "max_num_batched_tokens: 64 is less than "
					       "max_num_seqs (128)"));
}
END_TEST

static char *printed(void)
{
	char *text;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	config_text(&config, out);
	fclose(out);
	return text;
}

/* A semicolon begins a comment after a blank; a value that begins with one is quoted. */
/* What passes --check-config is not refused at the start. */
START_TEST(threads_are_as_many_as_the_cpu_backend_takes)
{
	ck_assert_int_eq(load("[cpu]\nthreads = 256\n"), 0);
	ck_assert_uint_eq(config.cpu.threads, KV_CPU_MAX_THREADS);
	ck_assert_int_eq(load("[cpu]\nthreads = 257\n"), 1);
	ck_assert_str_eq(got.text,
			 "t.conf:2: [cpu] threads: 257 is out of range (0 to 256)\n");
}
END_TEST

START_TEST(semicolons)
{
	char *text;

	ck_assert_int_eq(load("[daemon]\nsocket =; c\n[model]\npath = a;b ;c\n"), 0);
	ck_assert_str_eq(config.daemon.socket, "; c");
	ck_assert_str_eq(config.model.path, "a;b");
	text = printed();
	ck_assert_ptr_nonnull(strstr(text, "\nsocket = \"; c\"\n"));
	config_deinit(&config);
	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(load(text), 0);
	ck_assert_str_eq(config.daemon.socket, "; c");
	free(text);
	ck_assert_int_eq(config_set_option(&config, "model.path=/a ;b", &got.report), 1);
	ck_assert_ptr_nonnull(strstr(got.text, "has a semicolon after a blank"));
	ck_assert_int_eq(config_set_option(&config, "model.path=/a;b", &got.report), 0);
	ck_assert_str_eq(config.model.path, "/a;b");
}
END_TEST

static const struct {
	const char *text;
	int k, v; /* -1: refused */
	const char *printed;
} kv_dtypes[] = {
	{"fp16", KV_FORMAT_FP16, KV_FORMAT_FP16, "fp16"},
	{"auto", KV_FORMAT_FP16, KV_FORMAT_FP16, "fp16"},
	{"fp8", KV_FORMAT_FP8_E4M3, KV_FORMAT_FP8_E4M3, "fp8_e4m3"},
	{"int4", KV_FORMAT_INT4, KV_FORMAT_INT4, "int4"},
	{"k=int8,v=int4", KV_FORMAT_INT8, KV_FORMAT_INT4, "k=int8,v=int4"},
	{" v = fp8 ,  k = auto ", KV_FORMAT_FP16, KV_FORMAT_FP8_E4M3,
	 "k=fp16,v=fp8_e4m3"},
	{"v=int8,k=int8", KV_FORMAT_INT8, KV_FORMAT_INT8, "int8"},
	{"k=int8", -1, -1, "\"k=int8\" is not of the form k=int8,v=int4"},
	{"k=int8,", -1, -1, "\"k=int8,\" is not of the form k=int8,v=int4"},
	{"k=int8,k=int8", -1, -1, "\"k=int8,k=int8\" is not of the form k=int8,v=int4"},
	{"k=int8,v=int4,", -1, -1, "is not of the form k=int8,v=int4"},
	{"k=,v=int4", -1, -1, "is not of the form k=int8,v=int4"},
	{"x=int8,v=int4", -1, -1, "is not of the form k=int8,v=int4"},
	{"=", -1, -1, "\"=\" is not of the form k=int8,v=int4"},
	{"k=int8,v=q4_0", -1, -1, "q4_0 is not available: use int4"},
	{"INT8", -1, -1, "\"INT8\" is not one of fp16, int8"},
	{"k=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,v=int4", -1, -1, "is not of the form"},
};

START_TEST(kv_cache_dtype)
{
	struct config_kv_dtype *dtype = &config.cache.kv_cache_dtype;
	char option[128], line[128], *text;
	int r;

	for (size_t i = 0; i < KVD_ARRAY_LEN(kv_dtypes); i++) {
		snprintf(option, sizeof(option), "cache.kv_cache_dtype=%s",
			 kv_dtypes[i].text);
		*dtype = (struct config_kv_dtype){-2, -2};
		got.text[0] = '\0';
		r = config_set_option(&config, option, &got.report);
		ck_assert_msg(r == (kv_dtypes[i].k < 0), "%s", option);
		if (r) {
			ck_assert_msg(strstr(got.text, kv_dtypes[i].printed) != NULL,
				      "%s", got.text);
			ck_assert_int_eq(dtype->k, -2);
			continue;
		}
		ck_assert_int_eq(dtype->k, kv_dtypes[i].k);
		ck_assert_int_eq(dtype->v, kv_dtypes[i].v);
		snprintf(line, sizeof(line), "\nkv_cache_dtype = %s\n",
			 kv_dtypes[i].printed);
		text = printed();
		ck_assert_ptr_nonnull(strstr(text, line));
		free(text);
	}
}
END_TEST

static char *file_text(const char *name)
{
	const char *root = getenv("KVD_SOURCE_ROOT");
	char path[4096], *text = NULL;
	size_t len = 0;
	FILE *file;

	ck_assert_ptr_nonnull(root);
	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "r");
	ck_assert_msg(file != NULL, "%s", path);
	ck_assert_int_gt(getdelim(&text, &len, '\0', file), 0);
	fclose(file);
	return text;
}

/* The shipped file names each key once, below its section, with its default. */
START_TEST(shipped_file_covers_the_table)
{
	char *text = file_text("etc/kvd.conf"), section[64] = "", key[64];
	size_t i = 0;
	char *rest = text;
	char *line;

	while ((line = strsep(&rest, "\n"))) {
		if (sscanf(line, "[%63[a-z_]]", section) == 1 || !*line)
			continue;
		ck_assert_msg(*line == '#', "nothing is set: %s", line);
		if (sscanf(line, "#%63[a-z_] =", key) != 1)
			continue;
		ck_assert_msg(i < config_n_keys, "one key too many: %s", line);
		ck_assert_str_eq(section, config_keys[i].section);
		ck_assert_str_eq(key, config_keys[i].name);
		ck_assert_str_eq(strchr(line, '=') + 1 +
					 (*config_keys[i].default_text != '\0'),
				 config_keys[i].default_text);
		i++;
	}
	ck_assert_uint_eq(i, config_n_keys);
	free(text);
}
END_TEST

/* What --help-config prints is that file without its introduction. */
START_TEST(help_is_the_shipped_file)
{
	char *text = file_text("etc/kvd.conf"), *help;
	size_t len;
	FILE *out = open_memstream(&help, &len);

	config_print_help(out);
	fclose(out);
	ck_assert_ptr_nonnull(strstr(text, "\n[daemon]"));
	ck_assert_str_eq(strstr(text, "\n[daemon]") + 1, help);
	free(text);
	free(help);
}
END_TEST

START_TEST(shipped_file_uncommented_is_the_default)
{
	char *text = file_text("etc/kvd.conf"), *before = printed(), *after;

	for (char *p = text; *p; p++)
		if (*p == '#' && p[1] >= 'a' && p[1] <= 'z')
			*p = ' ';
	ck_assert_int_eq(load(text), 0);
	after = printed();
	ck_assert_str_eq(before, after);
	free(text);
	free(before);
	free(after);
}
END_TEST

START_TEST(manual_names_each_key)
{
	char *page = file_text("docs/man/kvd.conf.5.scd"), entry[128];

	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *info = &config_keys[i];

		/* Each has an entry of its own, "*key* = default". */
		snprintf(entry, sizeof(entry), "\n*%s* =", info->name);
		ck_assert_msg(strstr(page, entry) != NULL, "kvd.conf(5) lacks %s",
			      info->name);
		if (*info->default_text) {
			snprintf(entry, sizeof(entry), "\n*%s* = %s\n", info->name,
				 info->default_text);
			ck_assert_msg(strstr(page, entry) != NULL,
				      "kvd.conf(5) gives another default for %s",
				      info->name);
		}
		snprintf(entry, sizeof(entry), "\n# [%s]", info->section);
		for (char *p = entry; *p; p++)
			if (*p >= 'a' && *p <= 'z')
				*p = (char)(*p - 'a' + 'A');
		ck_assert_msg(strstr(page, entry) != NULL, "kvd.conf(5) lacks [%s]",
			      info->section);
	}
	free(page);
}
END_TEST

START_TEST(printed_is_read_back)
{
	char *before, *after;

	ck_assert_int_eq(load("[daemon]\nsocket=\"\"\nlog_rate_interval = 90s\n"
			      "[model]\npath=\" a \"\nname=\"\"x\"\"\n"
			      "[cpu]\naffinity=1-3,5\nisa=avx2\n"
			      "[cache]\nkv_cache_memory=1537K\n"
			      "kv_cache_dtype=v=int4,k=fp8\n"),
			 0);
	before = printed();
	ck_assert_ptr_nonnull(strstr(before, "kv_cache_memory = 1573888\n"));
	ck_assert_ptr_nonnull(strstr(before, "log_rate_interval = 90000000000ns\n"));
	ck_assert_ptr_nonnull(strstr(before, "affinity = 1-3,5\n"));
	config_deinit(&config);
	ck_assert_int_eq(config_init(&config), 0);
	ck_assert_int_eq(load(before), 0);
	after = printed();
	ck_assert_str_eq(before, after);
	free(before);
	free(after);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("config");

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, defaults);
	tcase_add_test(tcase, values_of_every_type);
	tcase_add_test(tcase, mistakes);
	tcase_add_test(tcase, long_lines_and_nul_bytes);
	tcase_add_test(tcase, options);
	tcase_add_test(tcase, adopting_what_may_change);
	tcase_add_test(tcase, values_that_do_not_fit_together);
	tcase_add_test(tcase, the_last_domain_takes_all_its_keys);
	tcase_add_test(tcase, threads_are_as_many_as_the_cpu_backend_takes);
	tcase_add_test(tcase, semicolons);
	tcase_add_test(tcase, kv_cache_dtype);
	tcase_add_test(tcase, shipped_file_covers_the_table);
	tcase_add_test(tcase, help_is_the_shipped_file);
	tcase_add_test(tcase, shipped_file_uncommented_is_the_default);
	tcase_add_test(tcase, manual_names_each_key);
	tcase_add_test(tcase, printed_is_read_back);
	return run_case("config", tcase);
}
