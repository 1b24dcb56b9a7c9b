/* SPDX-License-Identifier: MIT */
/*
 * Weight times activations with SDOT: four products of signed bytes added to a 32-bit lane, one
 * lane per column. A file of this folder is compiled for its bundle only, and is entered only
 * through the table. The arithmetic is that of kernels/c/linear_c.c.
 *
 * Activation codes of a group lie as 32 high bytes, then 32 low bytes, a = 128 hi + lo with lo
 * in -64..63. Codes of bytes are up to 255: 128 less of each is signed, and the sum of the
 * activations, times 128, is added again. All of it stays within 32 bits
 * (32 * 128 * 16256 < 2^27).
 */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels/arm64/arm64.h"
#include "kernels/half.h"

#define INLINE static inline __attribute__((always_inline))

/* Columns of a tile are 4 TILE_VECS; all of a panel are read in two tiles. */
enum { TILE_ROWS = 2, TILE_VECS = 4 };

/* How a form's record lies. Constant at every call, so that the branches go. */
struct form {
	bool nibbles, has_min, halves, wide; /* wide: float scales, else fp16 */
};

static float top_of(const float *x, uint32_t k)
{
	uint32x4_t top = vdupq_n_u32(0);

	for (uint32_t i = 0; i < k; i += 4)
		top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)),
					       vdupq_n_u32(0x7fffffff)));
	return kv_float_from_bits(vmaxvq_u32(top));
}

void kv_act_dotprod(const float *x, const struct kv_act *act, uint32_t row)
{
	uint32_t k = act->k, n_groups = k / KV_GROUP;
	int8_t *codes = (int8_t *)act->codes + (size_t)row * k * 2;
	float *sum = act->sum + (size_t)row * n_groups;
	int32_t *half_sum = act->half_sum + (size_t)row * n_groups * 2;
	float top = top_of(x, k);
	float32x4_t inv;

	if (!(top >= 1e-30f) || isinf(top)) {
		memset(codes, 0, (size_t)k * 2);
		memset(sum, 0, n_groups * sizeof(*sum));
		memset(half_sum, 0, n_groups * 2 * sizeof(*half_sum));
		act->scale[row] = top < 1e-30f ? 0 : NAN;
		return;
	}
	inv = vdupq_n_f32(KV_ACT_MAX / top);
	act->scale[row] = top / KV_ACT_MAX;
	for (uint32_t h = 0; h < n_groups * 2; h++) {
		int8_t *high = codes + h / 2 * 64 + h % 2 * 16;
		int32x4_t s = vdupq_n_s32(0);

		for (uint32_t i = 0; i < 16; i += 8) {
			const float *p = x + h * 16 + i;
			int32x4_t a = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(p), inv));
			int32x4_t b = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(p + 4), inv));
			int16x8_t w = vcombine_s16(vmovn_s32(a), vmovn_s32(b)), up;

			s = vaddq_s32(s, vaddq_s32(a, b));
			up = vshrq_n_s16(vaddq_s16(w, vdupq_n_s16(64)), 7);
			vst1_s8(high + i, vmovn_s16(up));
			vst1_s8(high + 32 + i,
				vmovn_s16(vsubq_s16(w, vshlq_n_s16(up, 7))));
		}
		half_sum[h] = vaddvq_s32(s);
	}
	for (uint32_t g = 0; g < n_groups; g++)
		sum[g] = (float)(half_sum[2 * g] + half_sum[2 * g + 1]);
}

INLINE size_t record_codes(struct form f)
{
	return f.nibbles ? 512 : 1024;
}

INLINE size_t record_bytes(struct form f)
{
	return record_codes(f) + (size_t)KV_PANEL * (f.wide ? 4 : 2) *
					 ((f.halves ? 2 : 1) + (f.has_min ? 1 : 0));
}

/* Columns 4 v .. of the i-th row of scales at p. */
INLINE float32x4_t scale_load(struct form f, const uint8_t *p, int i, int v)
{
	if (f.wide)
		return vld1q_f32((const float *)(p + i * 128 + v * 16));
	return vcvt_f32_f16(vld1_f16((const void *)(p + i * 64 + v * 8)));
}

/* Codes of quad q, columns 4 v .., as signed bytes: those of bytes 128 less. */
INLINE int8x16_t codes_load(struct form f, const uint8_t *p, int q, int v)
{
	uint8x16_t c;

	if (!f.nibbles)
		return vreinterpretq_s8_u8(
			veorq_u8(vld1q_u8(p + q * 128 + v * 16), vdupq_n_u8(128)));
	c = vld1q_u8(p + q / 2 * 128 + v * 16);
	return vreinterpretq_s8_u8(q % 2 ? vshrq_n_u8(c, 4)
					 : vandq_u8(c, vdupq_n_u8(15)));
}

/* Four activation bytes in all lanes. */
INLINE int8x16_t four(const uint8_t *p)
{
	return vreinterpretq_s8_u32(vld1q_dup_u32((const void *)p));
}

/* Add one group, or its half h, to rows' f. */
INLINE void add_group(const struct kv_gemm *g, struct form form, const uint8_t *record,
		      const uint8_t *act, const int32_t *half_sum, int rows, int v0,
		      int h, float32x4_t f[][TILE_VECS])
{
	int quads = form.halves ? 4 : 8;
	int32_t offset = (form.nibbles ? 0 : 128) -
			 (form.has_min ? 0 : (int32_t)1 << g->zero_shift);
	int32x4_t hi[TILE_ROWS][TILE_VECS], lo[TILE_ROWS][TILE_VECS];

	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			hi[r][v] = lo[r][v] = vdupq_n_s32(0);
#pragma GCC unroll 8
	for (int q = h * quads; q < (h + 1) * quads; q++) {
		for (int v = 0; v < TILE_VECS; v++) {
			int8x16_t w = codes_load(form, record, q, v0 + v);

			for (int r = 0; r < rows; r++) {
				const uint8_t *a = act + (size_t)r * g->k * 2 + q * 4;

				hi[r][v] = vdotq_s32(hi[r][v], w, four(a));
				lo[r][v] = vdotq_s32(lo[r][v], w, four(a + 32));
			}
		}
	}
	for (int r = 0; r < rows; r++) {
		const int32_t *hs = half_sum + (size_t)r * (g->k / KV_GROUP) * 2;
		int32x4_t z = vdupq_n_s32((form.halves ? hs[h] : hs[0] + hs[1]) * offset);

		for (int v = 0; v < TILE_VECS; v++) {
			int32x4_t s = vaddq_s32(vshlq_n_s32(hi[r][v], 7), lo[r][v]);

			f[r][v] = vfmaq_f32(
				f[r][v], vcvtq_f32_s32(vaddq_s32(s, z)),
				scale_load(form, record + record_codes(form), h, v0 + v));
		}
	}
}

/* f is the finished sum of row m, columns 4 v .. */
INLINE void row_store(const struct kv_gemm *g, uint32_t m, int v, float32x4_t f)
{
	float *y = g->y + m * g->ldy + 4 * v, lanes[4];

	vst1q_f32(lanes, vmulq_f32(f, vdupq_n_f32(g->act->scale[m])));
	for (uint32_t c = 0; c < 4 && 4 * (uint32_t)v + c < g->n_cols; c++) {
		float x = g->bias ? lanes[c] + g->bias[4 * v + (int)c] : lanes[c];

		y[c] = x;
	}
}

/* rows rows from m, columns 4 v0 .. 4 (v0 + TILE_VECS) - 1. */
INLINE void tile(const struct kv_gemm *g, struct form form, uint32_t m, int rows, int v0)
{
	uint32_t n_groups = g->k / KV_GROUP;
	const uint8_t *record = g->panel, *act = g->act->codes + (size_t)m * g->k * 2;
	const float *sum = g->act->sum + (size_t)m * n_groups;
	const int32_t *half_sum = g->act->half_sum + (size_t)m * n_groups * 2;
	float32x4_t f[TILE_ROWS][TILE_VECS];

	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			f[r][v] = vdupq_n_f32(0);
	for (uint32_t i = 0; i < n_groups; i++) {
		add_group(g, form, record, act, half_sum + 2 * i, rows, v0, 0, f);
		if (form.halves)
			add_group(g, form, record, act, half_sum + 2 * i, rows, v0, 1, f);
		for (int r = 0; form.has_min && r < rows; r++)
			for (int v = 0; v < TILE_VECS; v++)
				f[r][v] = vfmaq_f32(
					f[r][v],
					vdupq_n_f32(sum[(size_t)r * n_groups + i]),
					scale_load(form, record + record_codes(form), 1,
						   v0 + v));
		record += record_bytes(form);
		act += 64;
	}
	for (int r = 0; r < rows; r++)
		for (int v = 0; v < TILE_VECS; v++)
			row_store(g, m + (uint32_t)r, v0 + v, f[r][v]);
}

INLINE void gemm(const struct kv_gemm *g, struct form form)
{
	uint32_t m = g->m0;

	for (; m + TILE_ROWS <= g->m1; m += TILE_ROWS)
		for (int v = 0; v < KV_PANEL / 4; v += TILE_VECS)
			tile(g, form, m, TILE_ROWS, v);
	for (; m < g->m1; m++)
		for (int v = 0; v < KV_PANEL / 4; v += TILE_VECS)
			tile(g, form, m, 1, v);
}

#define GEMM(name, ...)                                                                  \
	void kv_gemm_##name##_dotprod(const struct kv_gemm *g)                           \
	{                                                                                \
		gemm(g, (struct form){__VA_ARGS__});                                     \
	}

GEMM(nib_sym, .nibbles = true)
GEMM(nib_min, .nibbles = true, .has_min = true)
GEMM(nib_min32, .nibbles = true, .has_min = true, .wide = true)
GEMM(byte_sym, 0)
GEMM(byte_min, .has_min = true)
GEMM(byte_min32, .has_min = true, .wide = true)
GEMM(byte_half, .halves = true, .wide = true)
