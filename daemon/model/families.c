/* SPDX-License-Identifier: MIT */
/* See families.h. */
#include "daemon/model/families.h"
#include "ipc/base.h"

#include <errno.h>
#include <stdio.h>

static const struct model_family families[] = {
	{.name = "llama", .rope = KV_ROPE_NORMAL},
};

#define N_FAMILIES KVD_ARRAY_LEN(families)

/* "llama, qwen2"; cut off where @size ends. */
static void list_names(char *buf, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < N_FAMILIES && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", i ? ", " : "",
					families[i].name);
}

int model_family_find(const struct gguf *gguf, const struct model_family **ret,
		      struct load_error *err)
{
	struct gguf_str name = {0};
	char known[160];
	int r;

	r = gguf_get_str(gguf, "general.architecture", &name, err);
	if (r > 0)
		return gguf_fail(err, gguf, -EINVAL,
				 "metadata key general.architecture is missing");
	if (r < 0)
		return r;
	for (size_t i = 0; i < N_FAMILIES; i++) {
		if (gguf_str_eq(name, families[i].name)) {
			*ret = &families[i];
			return 0;
		}
	}
	list_names(known, sizeof(known));
	return gguf_fail(err, gguf, -ENOTSUP,
			 "architecture \"%.*s\" is not supported; supported: %s",
			 (int)(name.len < 32 ? name.len : 32), name.data, known);
}
