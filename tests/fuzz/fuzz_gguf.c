/* SPDX-License-Identifier: MIT */
/* Any bytes as a GGUF image: refused with a line, or every accessor stays inside. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/finite.h"
#include "daemon/model/gguf.h"
#include "daemon/model/shape.h"
#include "ipc/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static volatile uint8_t sink;

static void read_all(const struct gguf *gguf, struct load_error *err)
{
	static const char *const keys[] = {"general.architecture", "a.u32",
					   "tokenizer.ggml.tokens",
					   "tokenizer.ggml.token_type"};
	const struct gguf_kv *kv;
	struct gguf_str str;
	uint32_t u32;
	float f32;
	bool b;

	for (size_t i = 0; i < KVD_ARRAY_LEN(keys); i++) {
		(void)gguf_get_u32(gguf, keys[i], &u32, err);
		(void)gguf_get_f32(gguf, keys[i], &f32, err);
		(void)gguf_get_bool(gguf, keys[i], &b, err);
		if (gguf_get_str(gguf, keys[i], &str, err) == 0 && str.len)
			sink ^= (uint8_t)str.data[str.len - 1];
		if (gguf_get_array(gguf, keys[i], GGUF_I32, &kv, err) == 0 && kv->n)
			sink ^= (uint8_t)gguf_array_i32(kv, kv->n - 1);
		if (gguf_get_array(gguf, keys[i], GGUF_STRING, &kv, err) == 0) {
			const uint8_t *cursor = kv->data;

			for (uint64_t k = 0; k < kv->n; k++) {
				str = gguf_next_str(kv, &cursor);
				if (str.len)
					sink ^= (uint8_t)str.data[str.len - 1];
			}
			if (cursor != kv->end)
				abort();
		}
	}
	for (uint64_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);

		sink ^= tensor->data[0] ^ tensor->data[tensor->n_bytes - 1];
		sink ^= tensor_is_finite(tensor);
	}
}

/* A shape that was taken is one that the kernels can be asked for. */
static void read_shape(const struct gguf *gguf, struct load_error *err)
{
	const struct model_family *family;
	struct model_params p;

	(void)model_shape_read(gguf, &p, err);
	if (model_family_find(gguf, &family, err) < 0 ||
	    model_params_read(gguf, family, &p, err) < 0) {
		if (!err->text[0])
			abort();
		return;
	}
	if (!p.n_layers || p.n_layers > KV_MAX_LAYERS || !p.d_model ||
	    p.d_model > KV_MAX_COLS || !p.d_ff || p.d_ff > KV_MAX_COLS || !p.n_kv_heads ||
	    p.n_heads % p.n_kv_heads || !p.head_dim || p.head_dim > KV_HEAD_DIM_MAX ||
	    p.head_dim % 8 || !p.context_length || !p.n_vocab ||
	    p.rope.rope_dims > p.head_dim || !(p.eps > 0) || !(p.rope.freq_base > 0) ||
	    !(p.rope.freq_scale > 0))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct load_error err = {""};
	struct gguf *gguf;

	if (gguf_open_memory(&gguf, "fuzz", data, len, &err) < 0) {
		if (!err.text[0] || memchr(err.text, '\n', strlen(err.text)))
			abort();
		return 0;
	}
	read_all(gguf, &err);
	read_shape(gguf, &err);
	gguf_free(gguf);
	return 0;
}
