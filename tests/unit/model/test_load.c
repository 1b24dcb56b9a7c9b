/* SPDX-License-Identifier: MIT */
/* What the loader takes and what it refuses: metadata, shapes, values. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/finite.h"
#include "ipc/base.h"
#include "kernels/cpu_backend.h"
#include "kernels/wtype.h"
#include "tests/unit/model/harness.h"
#include "tests/unit/model/tiny-model.h"
#include "tests/unit/suite.h"

static const uint32_t types[] = {
	GGUF_TENSOR_F32,  GGUF_TENSOR_F16,  GGUF_TENSOR_BF16, GGUF_TENSOR_Q4_0,
	GGUF_TENSOR_Q4_1, GGUF_TENSOR_Q5_0, GGUF_TENSOR_Q5_1, GGUF_TENSOR_Q8_0,
	GGUF_TENSOR_Q4_K, GGUF_TENSOR_Q5_K, GGUF_TENSOR_Q6_K,
};

#define N_TYPES KVD_ARRAY_LEN(types)

static void random_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
	uint64_t state = seed * 2 + 1;

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)(tiny_random(&state) >> 16) & 63;
}

static void open_tiny(struct harness *h, const struct image *im)
{
	struct load_error err;
	struct gguf *gguf;

	ck_assert_int_eq(gguf_open_memory(&gguf, "tiny", im->data, im->len, &err), 0);
	harness_init(h, gguf, 0, 1, 1, TINY_CONTEXT, 400);
	gguf_free(gguf);
}

static void replace(struct image *im, const char *from, const char *to)
{
	uint8_t *p = memmem(im->data, im->len, from, strlen(from));

	ck_assert_ptr_nonnull(p);
	ck_assert_uint_eq(strlen(from), strlen(to));
	memcpy(p, to, strlen(to));
}

static void set_u32(struct image *im, const char *key, uint32_t value)
{
	uint8_t *p = memmem(im->data, im->len, key, strlen(key));

	ck_assert_ptr_nonnull(p);
	memcpy(p + strlen(key) + 4, &value, sizeof(value));
}

/* A model on a device of its own. */
struct loaded {
	struct kv_device *dev;
	struct gguf *gguf;
	struct model model;
	struct load_error err;
};

static int load(struct loaded *l, struct image im, const uint8_t *fingerprint)
{
	const struct kv_backend *be = kv_backend_cpu();
	struct kv_cpu_options cpu = {.n_threads = 1};
	struct kv_options options = {.cpu = &cpu};

	*l = (struct loaded){0};
	ck_assert_int_eq(be->open(&options, NULL, 0, &l->dev), 0);
	ck_assert_int_eq(gguf_open_memory(&l->gguf, "m.gguf", im.data, im.len, &l->err),
			 0);
	return model_load(&l->model, l->gguf, be, l->dev, NULL, fingerprint, &l->err);
}

static void unload(struct loaded *l)
{
	gguf_free(l->gguf);
	kv_backend_cpu()->close(l->dev);
}

static void refuse(struct image im, int code, const char *text)
{
	struct loaded l;

	ck_assert_int_eq(load(&l, im, NULL), code);
	ck_assert_msg(strstr(l.err.text, text) != NULL, "%s", l.err.text);
	unload(&l);
	image_free(&im);
}

START_TEST(a_known_fingerprint_is_not_made_again)
{
	struct image im = tiny_model(GGUF_TENSOR_Q4_0, 1, 5);
	const uint8_t known[32] = {9, 8, 7};
	struct loaded l;

	ck_assert_int_eq(load(&l, im, known), 0);
	ck_assert_mem_eq(l.model.fingerprint, known, 32);
	model_unload(&l.model);
	unload(&l);
	image_free(&im);
}
END_TEST

START_TEST(refuses_models_by_name)
{
	struct image im;

#define MODEL() (im = tiny_model(GGUF_TENSOR_Q4_0, 0, 1))
	MODEL();
	memcpy(memmem(im.data, im.len, "\5\0\0\0\0\0\0\0llama", 13),
	       "\5\0\0\0\0\0\0\0olmo2", 13);
	refuse(im, -ENOTSUP, "olmo2");
	MODEL();
	replace(&im, "blk.1.ffn_up", "blk.1.ffn_uq");
	refuse(im, -EINVAL, "tensor blk.1.ffn_up.weight is missing");
	MODEL();
	/* a tensor that the graph has no place for would be left out in silence */
	replace(&im, "output.weight", "output.biases");
	refuse(im, -ENOTSUP, "tensor output.biases");
	MODEL();
	set_u32(&im, "llama.feed_forward_length", 256);
	refuse(im, -EINVAL, "tensor blk.0.ffn_gate.weight");
	MODEL();
	set_u32(&im, "llama.attention.head_count_kv", 3);
	refuse(im, -EINVAL, "3");
	MODEL();
	set_u32(&im, "llama.attention.head_count_kv", 0);
	refuse(im, -ENOTSUP, "llama.attention.head_count_kv is 0");
	MODEL();
	set_u32(&im, "llama.block_count", 3);
	refuse(im, -EINVAL, "tensor blk.2.attn_norm.weight is missing");
	MODEL();
	replace(&im, "llama.context_length", "llamaxcontext_length");
	refuse(im, -EINVAL, "llama.context_length is missing");
#undef MODEL
}
END_TEST

/* The bytes of a tensor in an image. */
static uint8_t *tensor_bytes(struct image *im, const char *name)
{
	const struct gguf_tensor *tensor;
	struct load_error err;
	struct gguf *gguf;
	size_t at, len;

	ck_assert_int_eq(gguf_open_memory(&gguf, "m.gguf", im->data, im->len, &err), 0);
	tensor = gguf_find_tensor(gguf, name);
	ck_assert_ptr_nonnull(tensor);
	at = (size_t)(tensor->data - gguf_image(gguf, &len));
	gguf_free(gguf);
	return im->data + at;
}

START_TEST(values_that_are_not_finite_are_refused)
{
	const float nan = NAN;
	const uint16_t half_inf = 0xfc00;
	struct image im = tiny_model(GGUF_TENSOR_F16, 0, 1);

	memcpy(tensor_bytes(&im, "blk.1.ffn_norm.weight") + 40, &nan, sizeof(nan));
	refuse(im, -EINVAL,
	       "tensor blk.1.ffn_norm.weight holds values that are not finite");
	im = tiny_model(GGUF_TENSOR_F16, 0, 1);
	memcpy(tensor_bytes(&im, "blk.0.attn_q.weight") + 2000, &half_inf, 2);
	refuse(im, -EINVAL,
	       "tensor blk.0.attn_q.weight holds values that are not finite");
	im = tiny_model(GGUF_TENSOR_Q6_K, 0, 1);
	memcpy(tensor_bytes(&im, "output.weight") + 210 + 208, &half_inf, 2);
	refuse(im, -EINVAL, "tensor output.weight holds values that are not finite");
}
END_TEST

/* Of each type, blocks of random bytes: finite are those of which all values are. */
START_TEST(finite_means_each_value)
{
	uint32_t type = types[_i], elems, bytes;
	uint64_t state = 77 + 2 * (uint64_t)_i;
	unsigned n[2] = {0};
	uint8_t block[256];
	float values[256];
	int wtype = 0;

	ck_assert(gguf_tensor_type_block(type, &elems, &bytes));
	while (strcmp(kv_wtype_name((enum kv_wtype)wtype), gguf_tensor_type_name(type)) !=
	       0)
		wtype++;
	for (int round = 0; round < 20000; round++) {
		struct gguf_tensor tensor = {
			.type = type, .data = block, .n_bytes = bytes};
		bool finite = true;

		for (uint32_t i = 0; i < bytes; i++)
			block[i] = (uint8_t)(tiny_random(&state) >> 20);
		ck_assert_int_eq(
			kv_row_dequantize((enum kv_wtype)wtype, elems, block, values), 0);
		for (uint32_t i = 0; i < elems; i++)
			finite = finite && isfinite(values[i]);
		ck_assert_int_eq(tensor_is_finite(&tensor), finite);
		n[finite]++;
	}
	ck_assert_msg(n[0] > 10 && n[1] > 10, "%u and %u", n[0], n[1]);
}
END_TEST

/* Each way that files say "positions are divided by 4", and those that say they are not. */
START_TEST(rope_scaling_in_each_form)
{
	static const struct {
		const char *type;
		float factor, scale_linear; /* 0: no such key */
		double want;
	} forms[] = {
		{"linear", 4, 0, 4}, {NULL, 4, 0, 4},     {NULL, 0, 4, 4},
		{"linear", 0, 4, 4}, {"linear", 4, 2, 4}, {"none", 4, 4, 1},
		{NULL, 0, 0, 1},     {"linear", 0, 0, 1},
	};
	double want[200], sum = 0;
	int32_t tokens[200];
	struct image keys = {0}, im;
	float got[200];
	struct harness h;
	uint32_t n = 0;

	if (forms[_i].type && ++n)
		image_kv_str(&keys, "llama.rope.scaling.type", forms[_i].type);
	if (forms[_i].factor > 0 && ++n)
		image_kv_f32(&keys, "llama.rope.scaling.factor", forms[_i].factor);
	if (forms[_i].scale_linear > 0 && ++n)
		image_kv_f32(&keys, "llama.rope.scale_linear", forms[_i].scale_linear);
	im = tiny_model_with(GGUF_TENSOR_F32, 0, 3, &keys, n);
	random_tokens(tokens, 200, 7);
	tiny_reference_scaled(&im, tokens, 200, forms[_i].want, want);
	open_tiny(&h, &im);
	harness_score_all(&h, 0, tokens, 200, 64, got);
	for (int i = 1; i < 200; i++)
		sum += fabs(got[i] - want[i]);
	ck_assert_msg(sum / 199 <= 0.005, "mean error %g", sum / 199);
	harness_deinit(&h);
	image_free(&keys);
	image_free(&im);
}
END_TEST

enum { N_ROPE_FORMS = 8 };

static void refuse_key(const struct image *key, const char *text)
{
	refuse(tiny_model_with(GGUF_TENSOR_Q4_0, 0, 1, key, 1), -ENOTSUP, text);
}

/* Metadata that changes the arithmetic and is read by nobody, and the value of such a key
 * that changes nothing. */
START_TEST(no_key_is_left_out)
{
	static const struct {
		const char *key;
		float wrong, neutral;
	} floats[] = {
		{"llama.rope.scaling.attn_factor", 2, 1},
		{"llama.rope.scaling.yarn_ext_factor", 1, 0},
		{"llama.attention.clamp_kqv", 8, 0},
		{"llama.final_logit_softcapping", 30, 0},
		{"llama.embedding_scale", 12, 1},
		{"llama.logit_scale", 0.0625f, 1},
	};
	static const char *const unknown[] = {
		"llama.rope.freq_base_swa",  "llama.rope.scaling.yarn_beta_fast",
		"llama.rope.a_new_one",      "llama.attention.scale",
		"llama.attention.a_new_one", "llama.a_new_one",
	};
	struct image key = {0}, im;
	struct harness h;

	for (size_t i = 0; i < KVD_ARRAY_LEN(floats); i++) {
		image_kv_f32(&key, floats[i].key, floats[i].wrong);
		refuse_key(&key, floats[i].key);
		key.len = 0;
		image_kv_f32(&key, floats[i].key, floats[i].neutral);
		im = tiny_model_with(GGUF_TENSOR_Q4_0, 0, 1, &key, 1);
		open_tiny(&h, &im);
		harness_deinit(&h);
		image_free(&im);
		key.len = 0;
	}
	for (size_t i = 0; i < KVD_ARRAY_LEN(unknown); i++) {
		image_kv_f32(&key, unknown[i], 1);
		refuse_key(&key, unknown[i]);
		key.len = 0;
	}
	image_kv_u32(&key, "llama.attention.sliding_window", 4096);
	refuse_key(&key, "llama.attention.sliding_window");
	key.len = 0;
	image_kv_bool(&key, "llama.attention.causal", 0);
	refuse_key(&key, "llama.attention.causal");
	key.len = 0;
	image_kv_u32(&key, "llama.expert_count", 8);
	refuse_key(&key, "llama.expert_count");
	key.len = 0;
	/* a key that says nothing about the computation, and one of another prefix */
	image_kv_u32(&key, "llama.vocab_size", 96);
	image_kv_u32(&key, "llamax.a_new_one", 1);
	im = tiny_model_with(GGUF_TENSOR_Q4_0, 0, 1, &key, 2);
	open_tiny(&h, &im);
	harness_deinit(&h);
	image_free(&im);
	image_free(&key);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("load");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, refuses_models_by_name);
	tcase_add_test(tc, a_known_fingerprint_is_not_made_again);
	tcase_add_test(tc, no_key_is_left_out);
	tcase_add_loop_test(tc, rope_scaling_in_each_form, 0, N_ROPE_FORMS);
	tcase_add_test(tc, values_that_are_not_finite_are_refused);
	tcase_add_loop_test(tc, finite_means_each_value, 0, N_TYPES);
	return run_case("load", tc);
}
