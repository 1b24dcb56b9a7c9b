/* SPDX-License-Identifier: MIT */
/* Rotation, and writing of K and V as codes, the reference. */
#include <math.h>

#include "kernels/c/c.h"
#include "kernels/c/fma_c.h"
#include "kernels/half.h"

static const uint16_t half_nan = 0x7e00;

/* Unnormalized Walsh-Hadamard transform of n elements, a power of two. */
static void butterflies(float *x, uint32_t n)
{
	for (uint32_t l = 1; l < n; l *= 2) {
		for (uint32_t i = 0; i < n; i++) {
			float a = x[i], b;

			if (i & l)
				continue;
			b = x[i + l];
			x[i] = a + b;
			x[i + l] = a - b;
		}
	}
}

static void flip_signs(float *x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (kv_rotation_flips(i))
			x[i] = -x[i];
}

/*
 * H works on the pieces of kernels/format.h. A piece of n = 2^m elements: for l = 1, 2, 4 ..
 * n / 2, all pairs (a, b) of elements l apart in runs of 2 l become (a + b, a - b); then each
 * is multiplied by 1/sqrt(n) rounded to float.
 */
void kv_rotate_c(float *x, uint32_t head_dim, bool back)
{
	uint32_t done = 0;

	if (!back)
		flip_signs(x, head_dim);
	for (uint32_t n = KV_HEAD_DIM_MAX; n > 0; n /= 2) {
		float r = (float)(1 / sqrt(n));

		if (!(head_dim & n))
			continue;
		butterflies(x + done, n);
		for (uint32_t i = done; i < done + n; i++)
			x[i] *= r;
		done += n;
	}
	if (back)
		flip_signs(x, head_dim);
}

static float clamp(float x, float lo, float hi)
{
	return x < lo ? lo : x > hi ? hi : x;
}

/*
 * One token as codes 0 .. top, 255 for int8 and 15 for int4 V:
 *   lo = min(0, x), hi = max(0, x); scale = fp16((hi - lo) / top);
 *   x or scale not finite: scale = NaN, zero = 0, c = 0;
 *   scale = 0: zero = 0, c = 0; else
 *   r = 1 / scale, zero = fp16(min(0 - lo * r, top)),
 *   c = clamp(round_to_even(fma(x, r, zero)), 0, top)
 */
struct token_params {
	uint16_t scale, zero;
	float r, zero_f;
};

static struct token_params asymmetric(const float *x, uint32_t n, float top)
{
	float lo = 0, hi = 0, scale, zero;
	bool finite = true;
	struct token_params p = {half_nan, 0, 0, 0};

	for (uint32_t i = 0; i < n; i++) {
		finite = finite && isfinite(x[i]);
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	scale = kv_half_to_float(kv_half_from_float((hi - lo) / top));
	if (!finite || !isfinite(scale))
		return p;
	p.scale = kv_half_from_float(scale);
	if (scale > 0) {
		p.r = 1 / scale;
		zero = 0 - lo * p.r;
		p.zero = kv_half_from_float(zero < top ? zero : top);
		p.zero_f = kv_half_to_float(p.zero);
	}
	return p;
}

static uint8_t code(const struct token_params *p, float x, float top)
{
	if (p->r == 0)
		return 0;
	return (uint8_t)rintf(clamp(kv_fma_c(x, p->r, p->zero_f), 0, top));
}

static void put_params(const struct kv_plane *dst, uint32_t token,
		       const struct token_params *p)
{
	uint16_t *params = dst->params;

	params[token] = p->scale;
	params[dst->block_tokens + token] = p->zero;
}

void kv_store_k_int8_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	struct token_params p = asymmetric(x, dst->head_dim, 255);
	uint8_t *codes = (uint8_t *)dst->codes + token * 4;

	put_params(dst, token, &p);
	for (uint32_t d = 0; d < dst->head_dim; d++)
		codes[d / 4 * dst->block_tokens * 4 + d % 4] = code(&p, x[d], 255);
}

void kv_store_v_int8_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	struct token_params p = asymmetric(x, dst->head_dim, 255);
	uint8_t *codes =
		(uint8_t *)dst->codes + token / 4 * dst->head_dim * 4 + token % 4;

	put_params(dst, token, &p);
	for (uint32_t d = 0; d < dst->head_dim; d++)
		codes[d * 4] = code(&p, x[d], 255);
}

/*
 * One token's codes, stride bytes apart: top = max |x|, scale = fp16(top / 448); not finite
 * and 0 as for int8; else c = e4m3(x * (1 / scale)), to nearest even, past 448 to 448.
 */
static void store_fp8(const float *x, const struct kv_plane *dst, uint32_t token,
		      uint8_t *codes, uint32_t stride)
{
	uint16_t *params = dst->params;
	float top = 0, scale, r = 0;
	bool finite = true;

	for (uint32_t d = 0; d < dst->head_dim; d++) {
		finite = finite && isfinite(x[d]);
		top = fabsf(x[d]) > top ? fabsf(x[d]) : top;
	}
	params[token] = kv_half_from_float(top / 448);
	scale = kv_half_to_float(params[token]);
	if (!finite || !isfinite(scale))
		params[token] = half_nan;
	else if (scale > 0)
		r = 1 / scale;
	for (uint32_t d = 0; d < dst->head_dim; d++)
		codes[d * stride] = r > 0 ? kv_e4m3_from_float(x[d] * r) : 0;
}

void kv_store_k_fp8_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	store_fp8(x, dst, token, (uint8_t *)dst->codes + token, dst->block_tokens);
}

void kv_store_v_fp8_c(const float *x, const struct kv_plane *dst, uint32_t token)
{
	store_fp8(x, dst, token, (uint8_t *)dst->codes + token * dst->head_dim, 1);
}

/* --- int4, whole blocks ------------------------------------------------------------- */

void kv_pack_v4_c(const uint16_t *src, const struct kv_plane *dst)
{
	uint32_t hd = dst->head_dim;
	uint8_t *codes = dst->codes;
	float x[KV_HEAD_DIM_MAX];

	for (uint32_t t = 0; t < dst->block_tokens; t++) {
		struct token_params p;

		for (uint32_t d = 0; d < hd; d++)
			x[d] = kv_half_to_float(src[t * hd + d]);
		p = asymmetric(x, hd, 15);
		put_params(dst, t, &p);
		for (uint32_t d = 0; d < hd; d++) {
			uint8_t *byte = &codes[(t / 8 * hd + d) * 4 + t % 4];
			uint8_t c = code(&p, x[d], 15);

			/* Token t + 4, which is later, fills the high nibble. */
			*byte = t % 8 < 4 ? c : (uint8_t)(*byte | c << 4);
		}
	}
}

/* The range of each dim over the block's tokens. Return: whether all is finite. */
static bool dim_ranges(const uint16_t *src, const struct kv_plane *dst, float *s,
		       float *mid)
{
	uint32_t bt = dst->block_tokens;
	bool finite = true;

	for (uint32_t d = 0; d < dst->head_dim; d++) {
		float lo = INFINITY, hi = -INFINITY;

		for (uint32_t t = 0; t < bt; t++) {
			float x = kv_half_to_float(src[d * bt + t]);

			finite = finite && isfinite(x);
			lo = x < lo ? x : lo;
			hi = x > hi ? x : hi;
		}
		s[d] = (hi - lo) / 15;
		mid[d] = 0.5f * (lo + hi);
	}
	return finite;
}

static float largest(const float *x, uint32_t n)
{
	float top = 0;

	for (uint32_t i = 0; i < n; i++)
		top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
	return top;
}

/*
 * lo, hi: least and largest of a dim over the tokens; s = (hi - lo) / 15, mid = 0.5 * (lo + hi);
 * A = fp16(largest s / 255), B = fp16(largest |mid| / 127);
 * an x, A or B that is not finite: A = B = NaN, a = 1, m = 128, c = 0; else
 * a = clamp(round_to_even(s * (1 / A)), 1, 255), 1 if A = 0;
 * m = 128 + clamp(round_to_even(mid * (1 / B)), -127, 127), 128 if B = 0;
 * r = 1 / (A * a), 0 if A = 0;
 * c = clamp(round_to_even(fma(x - B * (m - 128), r, 7.5)), 0, 15)
 */
void kv_pack_k4_c(const uint16_t *src, const struct kv_plane *dst)
{
	uint32_t hd = dst->head_dim, bt = dst->block_tokens;
	uint8_t *codes = dst->codes, *a = dst->params, *m = a + hd;
	float s[KV_HEAD_DIM_MAX], mid[KV_HEAD_DIM_MAX], fa, fb, ra, rb;
	bool finite = dim_ranges(src, dst, s, mid);

	dst->pair[0] = kv_half_from_float(largest(s, hd) / 255);
	dst->pair[1] = kv_half_from_float(largest(mid, hd) / 127);
	fa = kv_half_to_float(dst->pair[0]);
	fb = kv_half_to_float(dst->pair[1]);
	if (!finite || !isfinite(fa) || !isfinite(fb)) {
		dst->pair[0] = dst->pair[1] = half_nan;
		fa = fb = 0;
		finite = false;
	}
	ra = fa > 0 ? 1 / fa : 0;
	rb = fb > 0 ? 1 / fb : 0;
	for (uint32_t d = 0; d < hd; d++) {
		float shift, r;

		a[d] = !finite ? 1 : (uint8_t)rintf(clamp(s[d] * ra, 1, 255));
		m[d] = !finite ? 128
			       : (uint8_t)(128 + rintf(clamp(mid[d] * rb, -127, 127)));
		shift = fb * ((float)m[d] - 128);
		r = fa > 0 ? 1 / (fa * a[d]) : 0;
		for (uint32_t t = 0; t < bt; t++) {
			uint8_t *byte = &codes[(d / 8 * bt + t) * 4 + d % 4];
			float x = kv_half_to_float(src[d * bt + t]);
			uint8_t c = 0;

			if (finite)
				c = (uint8_t)rintf(
					clamp(kv_fma_c(x - shift, r, 7.5f), 0, 15));
			/* Dim d + 4, which is later, fills the high nibble. */
			*byte = d % 8 < 4 ? c : (uint8_t)(*byte | c << 4);
		}
	}
}
