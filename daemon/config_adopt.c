/* SPDX-License-Identifier: MIT */
/* A reload: which keys differ, and which of them take effect at once. See config.h. */
#include "daemon/config.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config_keys.h"

static size_t value_size(const struct config_key *key)
{
	switch (key->type) {
	case CONFIG_STRING:
		return sizeof(char *);
	case CONFIG_BOOL:
		return sizeof(bool);
	case CONFIG_UINT:
	case CONFIG_CHOICE:
		return sizeof(uint32_t);
	case CONFIG_SIZE:
	case CONFIG_DURATION:
		return sizeof(uint64_t);
	case CONFIG_FRACTION:
		return sizeof(double);
	case CONFIG_KV_DTYPE:
		return sizeof(struct config_kv_dtype);
	case CONFIG_CPUS:
		return sizeof(cpu_set_t);
	}
	return 0;
}

bool config_value_equal(const struct config_key *key, const void *a, const void *b)
{
	if (key->type == CONFIG_STRING)
		return strcmp(*(char *const *)a, *(char *const *)b) == 0;
	return memcmp(a, b, value_size(key)) == 0;
}

static bool same_members(const struct config *a, const struct config *b)
{
	if (a->n_domains != b->n_domains)
		return false;
	for (uint32_t i = 0; i < a->n_domains; i++) {
		const struct config_domain *x = &a->domains[i], *y = &b->domains[i];

		if (strcmp(x->name, y->name) != 0 || strcmp(x->users, y->users) != 0 ||
		    strcmp(x->groups, y->groups) != 0)
			return false;
	}
	return true;
}

/* Limits of each domain that is in both. Return: how many domains have others now. */
static unsigned int adopt_limits(struct config *config, const struct config *fresh)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < config->n_domains; i++) {
		struct config_domain *x = &config->domains[i];
		const struct config_domain *y = NULL;

		for (uint32_t k = 0; k < fresh->n_domains && !y; k++)
			if (strcmp(x->name, fresh->domains[k].name) == 0)
				y = &fresh->domains[k];
		if (!y || (x->quota_set == y->quota_set &&
			   memcmp(&x->quota, &y->quota, sizeof(x->quota)) == 0))
			continue;
		x->quota = y->quota;
		x->quota_set = y->quota_set;
		n++;
	}
	return n;
}

unsigned int config_adopt(struct config *config, const struct config *fresh, char *later,
			  size_t later_size)
{
	unsigned int n_adopted = 0;
	size_t used = 0;

	if (later_size)
		later[0] = '\0';
	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];
		const void *value = (const char *)fresh + key->offset;

		if (config_value_equal(key, config_field(config, key), value))
			continue;
		if (key->live) {
			/* A string would need an owner. */
			assert(key->type != CONFIG_STRING);
			memcpy(config_field(config, key), value, value_size(key));
			n_adopted++;
		} else if (used < later_size) {
			used += (size_t)snprintf(later + used, later_size - used,
						 "%s[%s] %s", used ? ", " : "",
						 key->section, key->name);
		}
	}
	n_adopted += adopt_limits(config, fresh);
	if (!same_members(config, fresh) && used < later_size)
		snprintf(later + used, later_size - used, "%s[domain]", used ? ", " : "");
	return n_adopted;
}
