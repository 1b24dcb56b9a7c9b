/* SPDX-License-Identifier: MIT */
#include "ipc/status.h"

#include <stddef.h>
#include <string.h>

#include <kvd/abi.h>

#include "ipc/base.h"

static const struct {
	int status;
	const char *name;
	const char *text;
} statuses[] = {
	{KVD_E_PROTO, "KVD_E_PROTO", "The peer does not keep to kvd's protocol"},
	{KVD_E_VERSION, "KVD_E_VERSION",
	 "Client and daemon speak different ABI versions; upgrade the older one"},
	{KVD_E_RESTARTED, "KVD_E_RESTARTED",
	 "The daemon restarted and the request was lost; send it again"},
	{KVD_E_QUOTA, "KVD_E_QUOTA", "A limit of this user is reached"},
	{KVD_E_MODEL_NONE, "KVD_E_MODEL_NONE", "The daemon serves no model"},
	{KVD_E_CONTEXT, "KVD_E_CONTEXT",
	 "The prompt does not fit the model's context length"},
	{KVD_E_TEMPLATE, "KVD_E_TEMPLATE",
	 "The model's chat template is not known to kvd; send plain text or tokens"},
	{KVD_E_DRAINING, "KVD_E_DRAINING",
	 "The daemon finishes what runs and takes nothing new for now"},
	{KVD_E_TOKENIZER, "KVD_E_TOKENIZER",
	 "The model has no usable tokenizer; send tokens"},
	{KVD_E_TOKEN, "KVD_E_TOKEN", "A token id is not in the model's vocabulary"},
	{KVD_E_TEXT, "KVD_E_TEXT", "The text is not valid UTF-8"},
	{KVD_E_EMPTY, "KVD_E_EMPTY", "The input has no tokens"},
	{KVD_E_POOL, "KVD_E_POOL", "The request is larger than the whole cache"},
	{KVD_E_DEVICE, "KVD_E_DEVICE", "The compute device failed"},
	{KVD_E_BUSY, "KVD_E_BUSY", "Too many requests in flight on this ring"},
	{KVD_E_DEADLINE, "KVD_E_DEADLINE", "The request's deadline has passed"},
	{KVD_E_UNSUPPORTED, "KVD_E_UNSUPPORTED", "The daemon does not offer this"},
	{KVD_E_NUMERIC, "KVD_E_NUMERIC",
	 "The model computes no finite number for this input; trying again does not help"},
};

static int status_find(int status)
{
	size_t i;

	for (i = 0; i < KVD_ARRAY_LEN(statuses); i++)
		if (statuses[i].status == status)
			return (int)i;
	return -1;
}

const char *status_name(int status)
{
	const char *name;
	int i;

	if (status >= 0)
		return "OK";
	i = status_find(status);
	if (i >= 0)
		return statuses[i].name;
	name = status > KVD_E_BASE ? strerrorname_np(-status) : NULL;
	return name ? name : "UNKNOWN";
}

const char *status_text(int status)
{
	const char *text;
	int i;

	if (status >= 0)
		return "Success";
	i = status_find(status);
	if (i >= 0)
		return statuses[i].text;
	text = status > KVD_E_BASE ? strerrordesc_np(-status) : NULL;
	return text ? text : "Unknown status";
}
