/* SPDX-License-Identifier: MIT */
/*
 * The table of keys, private to config*.c. Constant data, any thread.
 *
 * A new key is a field in struct config, a row in config_keys.c, a commented line in etc/kvd.conf
 * and an entry in kvd.conf(5); tests find what is missing.
 */
#ifndef KVD_DAEMON_CONFIG_KEYS_H
#define KVD_DAEMON_CONFIG_KEYS_H

#include "daemon/config.h"

/* What the field is, and so how its text is read. */
enum config_type {
	CONFIG_STRING, /* char *, no control bytes */
	CONFIG_BOOL,   /* bool: yes/no, true/false, on/off, 1/0 */
	CONFIG_UINT,
	CONFIG_SIZE,     /* uint64_t bytes: 4096, 512K, 1G; factors of 1024 */
	CONFIG_DURATION, /* uint64_t ns: 250ms, 30s, 5min; a bare number is seconds */
	CONFIG_FRACTION, /* double: 0.9 or 90% */
	CONFIG_CHOICE,   /* int or uint32_t: one of `choices` */
	CONFIG_CPUS,     /* cpu_set_t: 0-3,6 */
	CONFIG_KV_DTYPE, /* struct config_kv_dtype: one of `choices`, or k=X,v=Y of them */
};

/* @text: NULL ends the list; of two with one value the first is shown. @refusal: why a known name
 * is not to be had, or NULL */
struct config_choice {
	const char *text;
	int value;
	const char *refusal;
};

/* @offset: in struct config. @min, @max: in the unit of the field; of a fraction, in percent.
 * @range_note: why the range is what it is, or NULL. @live: a reload takes a new value over; not
 * for strings and CPUs. @help: lines of at most 78 bytes */
struct config_key {
	const char *name;
	const char *section;
	enum config_type type;
	size_t offset;
	const char *default_text;
	uint64_t min, max;
	const char *range_note;
	const struct config_choice *choices;
	bool live;
	const char *help;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* Text to @field, the field's place in a struct config. @problem: [size] what is wrong, as `"many"
 * is not a number`. Return: 0; 1: with @problem, and the field unchanged; -ENOMEM. */
int config_value_parse(const struct config_key *key, const char *text, void *field,
		       char *problem, size_t size);

bool config_value_equal(const struct config_key *key, const void *a, const void *b);

/* What a key takes: "16, 32" or "1 to 1048576". */
void config_value_describe(const struct config_key *key, FILE *out);

/* Whether @section is "domain NAME" with a good name; *ret_name is in @section. */
bool config_domain_section(const char *section, const char **ret_name);

/* config_set() for a key of [domain NAME]; makes the domain at its first key. */
int config_domain_set(struct config *config, const char *where, const char *name,
		      const char *key, const char *value, struct config_report *report);
void config_domain_deinit(struct config *config);

bool config_section_known(const char *section);

/* Report an unknown section or key, with the nearest known one as a hint. */
void config_report_section(struct config_report *report, const char *where,
			   const char *section);
void config_report_key(struct config_report *report, const char *where,
		       const char *section, const char *name);

#define CONFIG_NAME_SHOWN 64 /* bytes of a wrong name in a message, escaped */

static inline void *config_field(struct config *config, const struct config_key *key)
{
	return (char *)config + key->offset;
}

#endif
