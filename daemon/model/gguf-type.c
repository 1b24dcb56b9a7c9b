/* SPDX-License-Identifier: MIT */
/* The types of tensors, see gguf.h. */
#include <stddef.h>
#include <stdio.h>

#include "daemon/model/gguf.h"
#include "ipc/base.h"

static const struct {
	uint32_t type, elems, bytes; /* elems 0: known by name only */
	const char *name;
} tensor_types[] = {
	{GGUF_TENSOR_F32, 1, 4, "F32"},
	{GGUF_TENSOR_F16, 1, 2, "F16"},
	{GGUF_TENSOR_BF16, 1, 2, "BF16"},
	{GGUF_TENSOR_Q4_0, 32, 18, "Q4_0"},
	{GGUF_TENSOR_Q4_1, 32, 20, "Q4_1"},
	{GGUF_TENSOR_Q5_0, 32, 22, "Q5_0"},
	{GGUF_TENSOR_Q5_1, 32, 24, "Q5_1"},
	{GGUF_TENSOR_Q8_0, 32, 34, "Q8_0"},
	{GGUF_TENSOR_Q4_K, 256, 144, "Q4_K"},
	{GGUF_TENSOR_Q5_K, 256, 176, "Q5_K"},
	{GGUF_TENSOR_Q6_K, 256, 210, "Q6_K"},
	{9, 0, 0, "Q8_1"},
	{10, 0, 0, "Q2_K"},
	{11, 0, 0, "Q3_K"},
	{15, 0, 0, "Q8_K"},
	{16, 0, 0, "IQ2_XXS"},
	{17, 0, 0, "IQ2_XS"},
	{18, 0, 0, "IQ3_XXS"},
	{19, 0, 0, "IQ1_S"},
	{20, 0, 0, "IQ4_NL"},
	{21, 0, 0, "IQ3_S"},
	{22, 0, 0, "IQ2_S"},
	{23, 0, 0, "IQ4_XS"},
	{24, 0, 0, "I8"},
	{25, 0, 0, "I16"},
	{26, 0, 0, "I32"},
	{27, 0, 0, "I64"},
	{28, 0, 0, "F64"},
	{29, 0, 0, "IQ1_M"},
	{34, 0, 0, "TQ1_0"},
	{35, 0, 0, "TQ2_0"},
	{39, 0, 0, "MXFP4"},
	{40, 0, 0, "NVFP4"},
};

#define N_TENSOR_TYPES KVD_ARRAY_LEN(tensor_types)

const char *gguf_tensor_type_name(uint32_t type)
{
	for (size_t i = 0; i < N_TENSOR_TYPES; i++) {
		if (tensor_types[i].type == type)
			return tensor_types[i].name;
	}
	return "?";
}

bool gguf_tensor_type_block(uint32_t type, uint32_t *ret_elems, uint32_t *ret_bytes)
{
	for (size_t i = 0; i < N_TENSOR_TYPES; i++) {
		if (tensor_types[i].type == type && tensor_types[i].elems) {
			*ret_elems = tensor_types[i].elems;
			*ret_bytes = tensor_types[i].bytes;
			return true;
		}
	}
	return false;
}

void gguf_tensor_type_list(char *buf, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < N_TENSOR_TYPES && len < size; i++)
		if (tensor_types[i].elems)
			len += (size_t)snprintf(buf + len, size - len, "%s%s",
						i ? " " : "", tensor_types[i].name);
}
