/* SPDX-License-Identifier: MIT */
/* The sections [domain NAME], of which there can be many. See config.h. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config_keys.h"

#define DOMAIN_PREFIX "domain "
#define N_QUOTA_KEYS  7

static const char *const quota_keys[N_QUOTA_KEYS] = {
	"guaranteed_blocks", "max_blocks", "max_running", "max_waiting",
	"max_connections",   "max_rings",  "max_arena",
};

bool config_domain_section(const char *section, const char **ret_name)
{
	const char *name = section + strlen(DOMAIN_PREFIX);

	if (strncmp(section, DOMAIN_PREFIX, strlen(DOMAIN_PREFIX)) != 0 || !*name ||
	    strlen(name) >= CONFIG_DOMAIN_NAME)
		return false;
	for (const char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
			return false;
	*ret_name = name;
	return true;
}

static struct config_domain *domain_find(struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->n_domains; i++)
		if (strcmp(config->domains[i].name, name) == 0)
			return &config->domains[i];
	return NULL;
}

static void domain_deinit(struct config_domain *domain)
{
	free(domain->users);
	free(domain->groups);
	free(domain->users_where);
	free(domain->groups_where);
}

static int set_string(char **field, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	free(*field);
	*field = copy;
	return 0;
}

static struct config_domain *domain_add(struct config *config, const char *name)
{
	struct config_domain *grown, *domain;

	grown = reallocarray(config->domains, config->n_domains + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	config->domains = grown;
	domain = &grown[config->n_domains];
	memset(domain, 0, sizeof(*domain));
	memcpy(domain->name, name, strlen(name));
	domain->users = strdup("");
	domain->groups = strdup("");
	domain->users_where = strdup("");
	domain->groups_where = strdup("");
	if (!domain->users || !domain->groups || !domain->users_where ||
	    !domain->groups_where) {
		domain_deinit(domain);
		return NULL;
	}
	config->n_domains++;
	return domain;
}

/* The row of [quota] that a domain's key of the same name is like. */
static const struct config_key *quota_row(const char *name)
{
	for (size_t i = 0; i < config_n_keys; i++)
		if (strcmp(config_keys[i].section, "quota") == 0 &&
		    strcmp(config_keys[i].name, name) == 0)
			return &config_keys[i];
	return NULL;
}

static int set_quota(struct config_domain *domain, uint32_t i, const char *value,
		     char *problem, size_t size)
{
	const struct config_key *row = quota_row(quota_keys[i]);
	size_t offset = row->offset - offsetof(struct config, quota);
	int r = 0;

	domain->quota_set &= ~(1u << i);
	if (*value)
		r = config_value_parse(row, value, (char *)&domain->quota + offset,
				       problem, size);
	if (*value && !r)
		domain->quota_set |= 1u << i;
	return r;
}

int config_domain_set(struct config *config, const char *where, const char *name,
		      const char *key, const char *value, struct config_report *report)
{
	struct config_domain *domain;
	char problem[512];
	char **list = NULL, **list_where = NULL;
	int r;

	domain = domain_find(config, name);
	if (!domain && config->n_domains >= CONFIG_MAX_DOMAINS) {
		config_report_error(report, where, "more than %d domains",
				    CONFIG_MAX_DOMAINS);
		return 1;
	}
	if (!domain)
		domain = domain_add(config, name);
	if (!domain)
		return -ENOMEM;
	if (strcmp(key, "users") == 0) {
		list = &domain->users;
		list_where = &domain->users_where;
	} else if (strcmp(key, "groups") == 0) {
		list = &domain->groups;
		list_where = &domain->groups_where;
	}
	if (list) {
		r = set_string(list, value);
		return r ? r : set_string(list_where, where);
	}
	for (uint32_t i = 0; i < N_QUOTA_KEYS; i++) {
		if (strcmp(key, quota_keys[i]) != 0)
			continue;
		r = set_quota(domain, i, value, problem, sizeof(problem));
		if (r > 0)
			config_report_error(report, where, "[domain %s] %s: %s", name,
					    key, problem);
		return r;
	}
	config_report_error(
		report, where,
		"[domain %s]: unknown key; a domain has users, groups and the "
		"keys of [quota]",
		name);
	return 1;
}

void config_domain_deinit(struct config *config)
{
	for (uint32_t i = 0; i < config->n_domains; i++)
		domain_deinit(&config->domains[i]);
	free(config->domains);
	config->domains = NULL;
	config->n_domains = 0;
}
