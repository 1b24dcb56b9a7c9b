/* SPDX-License-Identifier: MIT */
/* Names, sizes and values of weight types; 16-bit floats; block geometry. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "ipc/base.h"
#include "kernels/half.h"
#include "tests/kern/checkkern.h"
#include "tests/kern/vectors.h"

/* A half by its definition: sign, 5 exponent bits biased by 15, 10 mantissa bits. */
static double half_value(uint16_t h)
{
	int exp = h >> 10 & 31, man = h & 1023;
	double v;

	if (exp == 31)
		v = man ? NAN : INFINITY;
	else
		v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
	return h & 0x8000 ? -v : v;
}

static void check_half(void)
{
	ck_context("half");
	for (uint32_t h = 0; h < 65536; h++) {
		float f = kv_half_to_float((uint16_t)h);
		double want = half_value((uint16_t)h);

		if (isnan(want)) {
			CK(isnan(f));
			CK(isnan(kv_half_to_float(kv_half_from_float(f))));
			continue;
		}
		CK((double)f == want && !signbit(f) == !signbit(want));
		CK(kv_half_from_float(f) == h);
	}
	/* Between two neighbours the nearer one is taken, in the middle the even one. */
	for (uint32_t h = 0; h < 0x7c00; h++) {
		double a = half_value((uint16_t)h), b = half_value((uint16_t)(h + 1));
		float mid;

		if (h == 0x7bff)
			b = 65536;
		mid = (float)((a + b) / 2);
		CK(kv_half_from_float(mid) == h + (h & 1));
		CK(kv_half_from_float(nextafterf(mid, 0)) == h);
		CK(kv_half_from_float(nextafterf(mid, INFINITY)) == h + 1);
		CK(kv_half_from_float(-mid) == (0x8000 | (h + (h & 1))));
	}
}

void check_wtype(const struct ck *ck)
{
	/* Source: type sizes of the GGUF specification. */
	static const struct {
		const char *name;
		uint64_t k;
		int64_t bytes;
	} sizes[KV_WTYPE_N] = {
		{"F32", 3, 12},     {"F16", 3, 6},      {"BF16", 3, 6},
		{"Q4_0", 64, 36},   {"Q4_1", 64, 40},   {"Q5_0", 64, 44},
		{"Q5_1", 64, 48},   {"Q8_0", 64, 68},   {"Q4_K", 512, 288},
		{"Q5_K", 512, 352}, {"Q6_K", 512, 420},
	};

	if (strcmp(ck->bundle, "c") != 0)
		return;
	check_half();
	for (int i = 0; i < KV_WTYPE_N; i++) {
		ck_context("sizes of %s", sizes[i].name);
		CK(strcmp(kv_wtype_name(i), sizes[i].name) == 0);
		CK(kv_wtype_row_bytes(i, sizes[i].k) == sizes[i].bytes);
		CK(kv_wtype_row_bytes(i, 0) == -EINVAL);
		CK(kv_wtype_row_bytes(i, KV_MAX_COLS + 256) == -EINVAL);
		if (kv_wtype_group(i) > 1)
			CK(kv_wtype_row_bytes(i, kv_wtype_group(i) + 1) == -EINVAL);
	}
	CK(kv_wtype_name(KV_WTYPE_N) == NULL && kv_wtype_group(KV_WTYPE_N) == 0);
	CK(kv_wtype_row_bytes(KV_WTYPE_N, 32) == -EINVAL);

	for (size_t i = 0; i < KVD_ARRAY_LEN(vectors); i++) {
		uint8_t *src = ck_alloc(vectors[i].n_bytes);
		float *dst = ck_alloc(VECTOR_N * sizeof(float)), want[VECTOR_N];

		ck_context("values of %s", kv_wtype_name(vectors[i].type));
		CK(kv_wtype_row_bytes(vectors[i].type, VECTOR_N) == vectors[i].n_bytes);
		memcpy(src, vectors[i].bytes, vectors[i].n_bytes);
		CK(kv_row_dequantize(vectors[i].type, VECTOR_N, src, dst) == 0);
		memcpy(want, vectors[i].values, sizeof(want));
		ck_same("value", dst, want, VECTOR_N);
	}
}

void check_format(const struct ck *ck)
{
	static const uint32_t dims[] = {8, 64, 80, 96, 100, 104, 112, 128, 192, 256};
	struct kv_layout l;

	if (strcmp(ck->bundle, "c") != 0)
		return;
	CK(kv_layout_init(&l, KV_FORMAT_FP16, KV_FORMAT_FP16, 30, 3, 64, 16) == 0);
	CK(l.v_at == 2048 && l.block_bytes == 30 * 3 * 4096);
	CK(kv_layout_bytes_per_token(&l) == 23040);
	CK(kv_layout_head_off(&l, 29, 2) + l.head_bytes == l.block_bytes);

	CK(kv_layout_init(&l, KV_FORMAT_N, KV_FORMAT_FP16, 30, 3, 64, 16) == -EINVAL);
	CK(kv_layout_init(&l, 0, 0, 0, 3, 64, 16) == -EINVAL);
	CK(kv_layout_init(&l, 0, 0, 1, 0, 64, 16) == -EINVAL);
	CK(kv_layout_init(&l, 0, 0, 1, 1, 64, 24) == -EINVAL);
	CK(kv_layout_init(&l, 0, 0, 1, 1, 264, 16) == -EINVAL);

	/* Every element of a block has a byte range of its own. */
	for (size_t i = 0; i < KVD_ARRAY_LEN(dims); i++) {
		for (uint32_t bt = 16; bt <= 32; bt *= 2) {
			static uint8_t used[1 << 17];
			bool twice = false;

			ck_context("block of head_dim %u, %u tokens", dims[i], bt);
			if (kv_layout_init(&l, 0, 0, 2, 2, dims[i], bt) < 0) {
				CK(dims[i] % 8 != 0);
				continue;
			}
			CK(l.block_bytes % 64 == 0 && l.block_bytes <= sizeof(used));
			memset(used, 0, sizeof(used));
			for (uint32_t n = 0; n < 4 * bt * dims[i]; n++) {
				uint32_t layer = n & 1, head = n >> 1 & 1,
					 t = (n >> 2) % bt;
				uint32_t d = (n >> 2) / bt;
				size_t k = kv_layout_head_off(&l, layer, head) +
					   2 * kv_fp16_k_index(&l, t, d);
				size_t v = kv_layout_head_off(&l, layer, head) + l.v_at +
					   2 * kv_fp16_v_index(&l, t, d);

				twice |= used[k]++ || used[v]++;
			}
			CK(!twice);
			CK(kv_layout_head_off(&l, 1, 1) % 64 == 0);
			CK((kv_layout_head_off(&l, 1, 1) + l.v_at) % 64 == 0);
		}
	}
}
