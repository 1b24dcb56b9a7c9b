/* SPDX-License-Identifier: MIT */
/*
 * The configuration: what can be set, its defaults, and how text becomes a value.
 *
 * Plain data, owned by its holder: filled before the loop starts, then changed by config_adopt()
 * alone, on the loop thread. Files are read by config_file.h. Logs nothing: mistakes go to a
 * report, one line each, so that all mistakes of a file are seen at once.
 */
#ifndef KVD_DAEMON_CONFIG_H
#define KVD_DAEMON_CONFIG_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/log.h"
#include "daemon/loop.h"

enum config_chat_template {
	CONFIG_CHAT_AUTO, /* what the model file says, an unknown one is refused */
	CONFIG_CHAT_CHATML,
	CONFIG_CHAT_PLAIN,
};

/* How the two halves of a block are stored; the numbers are those of enum kv_format. */
struct config_kv_dtype {
	int k, v;
};

/* What is done with a model that int4 costs too much quality. */
enum config_kv_quality {
	CONFIG_QUALITY_FALLBACK, /* int8 in place of int4 */
	CONFIG_QUALITY_REFUSE,
	CONFIG_QUALITY_WARN,
	CONFIG_QUALITY_OFF, /* not looked at */
};

/* What computes. */
enum config_backend {
	CONFIG_BACKEND_AUTO, /* the first that this build has */
	CONFIG_BACKEND_CPU,
};

enum config_isa {
	CONFIG_ISA_AUTO,
	CONFIG_ISA_C,
	CONFIG_ISA_AVX2,
	CONFIG_ISA_AVX512,
	CONFIG_ISA_AVX512VNNI,
	CONFIG_ISA_AMX,
	CONFIG_ISA_DOTPROD,
};

enum config_huge_pages {
	CONFIG_HUGE_PAGES_AUTO,  /* asked for, no failure if there are none */
	CONFIG_HUGE_PAGES_NEVER, /* switched off for the whole process */
};

/* What one user may have at a time; 0 is no limit, but for guaranteed_blocks. */
struct config_quota {
	uint32_t guaranteed_blocks;
	uint32_t max_blocks;
	uint32_t max_running;
	uint32_t max_waiting;
	uint32_t max_connections;
	uint32_t max_rings;
	uint64_t max_arena; /* bytes, of all rings */
};

/* KV_MAX_RANKS and KV_CPU_MAX_THREADS; TasksMax= of the unit has to have room for the threads. */
#define CONFIG_MAX_RANKS   16
#define CONFIG_MAX_THREADS 256
#define CONFIG_MAX_DOMAINS 32
#define CONFIG_DOMAIN_NAME 40

/* [domain NAME]: users that share one cache. @users, @groups: names or numbers, separated by commas
 * or blanks; @..._where: "kvd.conf:12". @quota: of each user; @quota_set: bits of the keys that
 * were given, in the order of the fields: the others are as in [quota] */
struct config_domain {
	char name[CONFIG_DOMAIN_NAME];
	char *users;
	char *groups;
	char *users_where;
	char *groups_where;
	struct config_quota quota;
	uint32_t quota_set;
};

/* All strings are owned by the config and never NULL; "" means not set. An int holds the enum of
 * its name. */
struct config {
	struct {
		char *socket;
		int log_level; /* syslog priority */
		int log_target;
		uint64_t log_rate_interval_ns;
		uint32_t log_rate_burst;
		int io_backend;
		uint32_t max_clients;
		uint32_t max_clients_per_uid;
		uint32_t max_rings_per_client;
		uint32_t max_inflight_per_client;
		uint64_t max_arena_per_ring; /* bytes, for each of the two arenas */
		uint32_t spin_us;
	} daemon;
	struct {
		char *path;
		char *name; /* "": what the file says */
		int chat_template;
		uint32_t tensor_parallel_size;
	} model;
	struct {
		struct config_kv_dtype kv_cache_dtype;
		int kv_quality_check;
		uint32_t block_size;           /* tokens: 16 or 32 */
		uint64_t kv_cache_memory;      /* bytes */
		double gpu_memory_utilization; /* 0: not used */
		bool enable_prefix_caching;
	} cache;
	struct {
		uint32_t max_num_seqs;
		uint32_t max_num_batched_tokens;
		uint32_t max_model_len; /* 0: the model's */
	} scheduler;
	struct {
		int backend;
	} device;
	struct {
		uint32_t threads; /* 0: as many as CPUs and quota permit */
		int isa;
		cpu_set_t affinity; /* empty: not set */
		int huge_pages;
	} cpu;
	struct config_quota quota;
	struct config_domain *domains;
	uint32_t n_domains;
};

/* Where mistakes go. @text is one line without newline, such as "kvd.conf:12: [cache] block_sise:
 * unknown key; did you mean block_size?". @unread: a file may be right, but could not be read */
struct config_report {
	void (*fn)(struct config_report *report, const char *text);
	unsigned int n_errors;
	bool unread;
};

/* All defaults. Return: 0 or -ENOMEM; config_deinit() is safe after failure. */
int config_init(struct config *config);
void config_deinit(struct config *config);

/* Sets one key from text; "" restores the default. @where: what a mistake names ("kvd.conf:12",
 * "-o"). Return: 0; 1: a mistake was reported and nothing was changed; -ENOMEM. */
int config_set(struct config *config, const char *where, const char *section,
	       const char *key, const char *value, struct config_report *report);

/* As config_set() for the argument of -o: "section.key=value". */
int config_set_option(struct config *config, const char *option,
		      struct config_report *report);

/* Whether the values of all sources fit together. Return: 0; 1: a mistake was reported. */
int config_check(const struct config *config, struct config_report *report);

/* Takes over those values of @fresh, which was checked, that may change while the daemon runs.
 * @later: [later_size] the other keys that differ, as "[cache] block_size, ...", cut to fit; they
 * keep their value until the next start. Return: how many keys took a new value. */
unsigned int config_adopt(struct config *config, const struct config *fresh, char *later,
			  size_t later_size);

/* Reports one mistake: "WHERE: text". @where may be NULL. */
void config_report_error(struct config_report *report, const char *where,
			 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The table of keys, for --help-config. */
void config_print_help(FILE *out);

#endif
