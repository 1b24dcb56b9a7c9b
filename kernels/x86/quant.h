/* SPDX-License-Identifier: MIT */
/*
 * Rotation, and writing of K and V as codes, written once for all bundles over the wrappers of
 * lanes8.h or lanes16.h, one of which is included first, and of what the includer defines:
 *   butterfly(x, l)              x with each pair of lanes l apart, l < LANES, replaced by sum
 *                                and difference
 *   flip(x, bits)                x with the sign changed of each lane whose bit is set
 *   range_of(lo, hi, low, high)  least lane of lo and largest of hi, in four lanes each; no lane
 *                                of lo is above 0, none of hi below
 *   nan_in(a, b)                 not 0 where a lane of a or of b is NaN
 *   store_every_4th(dst, c, i, n)   the lanes of c, n at most, as bytes to dst[i], dst[4 + i] ..,
 *                                changing nothing else
 * Rows that end inside a vector are copied to where a whole one can be read; zeros behind
 * them change no range, since every range holds 0.
 */
#ifndef KVD_KERNELS_X86_QUANT_H
#define KVD_KERNELS_X86_QUANT_H

#include <math.h>
#include <string.h>

#include "kernels/half.h"

/* --- rotation ----------------------------------------------------------------------- */

/* Bit i: kv_rotation_flips(i), which checkkern compares. */
static const uint8_t flips[KV_HEAD_DIM_MAX / 8] = {
	0x5c, 0xae, 0xcb, 0xf7, 0xb2, 0xf0, 0x16, 0x1b, 0xc6, 0x3a, 0x2e,
	0x2e, 0xce, 0x4e, 0x78, 0x86, 0x95, 0xf3, 0x1f, 0xcd, 0x6c, 0xba,
	0xa4, 0x7b, 0x11, 0xd1, 0x87, 0x85, 0x78, 0x88, 0x2d, 0x23,
};

INLINE __m256 flip_8(__m256 x, uint32_t bits)
{
	__m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
	__m256i on = _mm256_and_si256(_mm256_set1_epi32((int)bits), bit);
	__m256i sign = _mm256_slli_epi32(_mm256_cmpeq_epi32(on, bit), 31);

	return _mm256_xor_ps(x, _mm256_castsi256_ps(sign));
}

/* In vectors as wide as those that rotate_piece() loads next, where there is room. */
INLINE void flip_signs(float *x, uint32_t n)
{
	uint32_t i = 0;

	for (; i + LANES <= n; i += LANES)
		store_f(x + i, flip(load_f(x + i), flips + i / 8));
	for (; i < n; i += 8)
		_mm256_storeu_ps(x + i, flip_8(_mm256_loadu_ps(x + i), flips[i / 8]));
}

INLINE __m256 butterfly_8(__m256 x, int l)
{
	__m256 p = l == 1   ? _mm256_permute_ps(x, 0xb1)
		   : l == 2 ? _mm256_permute_ps(x, 0x4e)
			    : _mm256_permute2f128_ps(x, x, 1);
	__m256 sum = _mm256_add_ps(x, p), diff = _mm256_sub_ps(p, x);

	return l == 1   ? _mm256_blend_ps(sum, diff, 0xaa)
	       : l == 2 ? _mm256_blend_ps(sum, diff, 0xcc)
			: _mm256_blend_ps(sum, diff, 0xf0);
}

/* One piece of n = LANES * nv elements. */
INLINE void rotate_piece(float *x, int nv, float r)
{
	vfloat v[KV_HEAD_DIM_MAX / LANES];

#pragma GCC unroll 32
	for (int i = 0; i < nv; i++) {
		v[i] = load_f(x + i * LANES);
		v[i] = butterfly(v[i], 1);
		v[i] = butterfly(v[i], 2);
		v[i] = butterfly(v[i], 4);
		if (LANES == 16)
			v[i] = butterfly(v[i], 8);
	}
#pragma GCC unroll 5
	for (int l = 1; l < nv; l *= 2)
#pragma GCC unroll 32
		for (int i = 0; i < nv; i++)
			if (!(i & l)) {
				vfloat a = v[i], b = v[i + l];

				v[i] = add_f(a, b);
				v[i + l] = sub_f(a, b);
			}
#pragma GCC unroll 32
	for (int i = 0; i < nv; i++)
		store_f(x + i * LANES, mul_f(v[i], set_f(r)));
}

INLINE void rotate_8(float *x)
{
	__m256 v = _mm256_loadu_ps(x);

	v = butterfly_8(butterfly_8(butterfly_8(v, 1), 2), 4);
	_mm256_storeu_ps(x, _mm256_mul_ps(v, _mm256_set1_ps((float)(1 / sqrt(8)))));
}

INLINE void rotate(float *x, uint32_t head_dim, bool back)
{
	float *at = x;

	if (!back)
		flip_signs(x, head_dim);
	if (head_dim & 256) {
		rotate_piece(at, 256 / LANES, (float)(1 / sqrt(256)));
		at += 256;
	}
	if (head_dim & 128) {
		rotate_piece(at, 128 / LANES, (float)(1 / sqrt(128)));
		at += 128;
	}
	if (head_dim & 64) {
		rotate_piece(at, 64 / LANES, (float)(1 / sqrt(64)));
		at += 64;
	}
	if (head_dim & 32) {
		rotate_piece(at, 32 / LANES, (float)(1 / sqrt(32)));
		at += 32;
	}
	if (head_dim & 16) {
		rotate_piece(at, 16 / LANES, (float)(1 / sqrt(16)));
		at += 16;
	}
	if (head_dim & 8)
		rotate_8(at);
	if (back)
		flip_signs(x, head_dim);
}

/* --- codes of one token ------------------------------------------------------------- */

struct token_params {
	uint16_t scale, zero;
	__m128 r, zero_f; /* lane 0 */
};

INLINE uint16_t half_bits(__m128i h)
{
	return (uint16_t)_mm_cvtsi128_si32(h);
}

/*
 * Bits of the scale of codes 0 .. top, of lanes that hold the least and the largest elements of
 * a row, if these are not 0. One number follows from another all the way to the codes, and
 * rows overlap only as far as the CPU looks ahead: so they stay in vector registers.
 */
INLINE __m128i scale_of(vfloat lo, vfloat hi, float top, __m128 *ret_low)
{
	__m128 high;

	range_of(lo, hi, ret_low, &high);
	return _mm_cvtps_ph(_mm_div_ps(_mm_sub_ps(high, *ret_low), _mm_set1_ps(top)),
			    _MM_FROUND_TO_NEAREST_INT);
}

/* The rest of the parameters, of a scale that is finite and above 0. */
INLINE struct token_params params_of(__m128i scale, __m128 low, float top)
{
	__m128 r = _mm_div_ps(_mm_set1_ps(1), _mm_cvtph_ps(scale));
	__m128 zero = _mm_fnmadd_ps(low, r, _mm_setzero_ps()); /* 0 - low * r */
	__m128i h = _mm_cvtps_ph(_mm_min_ps(zero, _mm_set1_ps(top)),
				 _MM_FROUND_TO_NEAREST_INT);

	return (struct token_params){half_bits(scale), half_bits(h), r, _mm_cvtph_ps(h)};
}

/* Parameters for x[n], n a multiple of 16. Where r is 0, all codes are. */
INLINE struct token_params asymmetric(const float *x, uint32_t n, float top)
{
	struct token_params p = {0x7e00, 0, _mm_setzero_ps(), _mm_setzero_ps()};
	vfloat lo = set_f(0), hi = set_f(0);
	uint32_t nan = 0;
	__m128i scale;
	__m128 low;

	for (uint32_t d = 0; d < n; d += LANES) {
		nan |= nan_in(load_f(x + d), load_f(x + d));
		lo = min_f(load_f(x + d), lo);
		hi = max_f(load_f(x + d), hi);
	}
	scale = scale_of(lo, hi, top, &low);
	/* An infinite element has made the scale so. */
	if (nan || half_bits(scale) >= 0x7c00)
		return p;
	p.scale = half_bits(scale);
	return p.scale == 0 ? p : params_of(scale, low, top);
}

/* What is not finite in a row without codes becomes NaN here, and max_f() makes that 0. */
INLINE vint codes_of(vfloat x, vfloat r, vfloat zero, float top)
{
	return round_i(min_f(max_f(fma_f(x, r, zero), set_f(0)), set_f(top)));
}

INLINE void put_params(const struct kv_plane *dst, uint32_t token,
		       const struct token_params *p)
{
	uint16_t *params = dst->params;

	params[token] = p->scale;
	params[dst->block_tokens + token] = p->zero;
}

/* x[n], or a copy in row with zeros up to a multiple of 16, which is the new n. */
INLINE const float *padded_row(const float *x, uint32_t *n, float *row)
{
	uint32_t round = (*n + 15) / 16 * 16;

	if (round == *n)
		return x;
	memcpy(row, x, *n * sizeof(float));
	memset(row + *n, 0, (round - *n) * sizeof(float));
	*n = round;
	return row;
}

/* K, codes c[hd] of one token. */
INLINE void put_k8(const struct kv_plane *dst, uint32_t token, const uint8_t *c,
		   uint32_t hd)
{
	uint8_t *codes = (uint8_t *)dst->codes + (size_t)token * 4;

	for (uint32_t d = 0; d < hd; d += 4)
		memcpy(codes + (size_t)d * dst->block_tokens, c + d, 4);
}

/* Not inlined: what it keeps on the stack would cost the common shape, too. */
static __attribute__((noinline)) void
store_int8_any(const float *x, const struct kv_plane *dst, uint32_t token, bool v)
{
	_Alignas(64) float row[KV_HEAD_DIM_MAX];
	_Alignas(64) uint8_t c[KV_HEAD_DIM_MAX];
	uint32_t hd = dst->head_dim, n = hd;
	const float *from = padded_row(x, &n, row);
	struct token_params p = asymmetric(from, n, 255);
	vfloat r = first_f(p.r), zero = first_f(p.zero_f);
	uint8_t *codes = (uint8_t *)dst->codes + (size_t)token / 4 * hd * 4;

	put_params(dst, token, &p);
	for (uint32_t d = 0; d < n; d += LANES) {
		vint lanes = codes_of(load_f(from + d), r, zero, 255);

		if (!v)
			store_bytes(c + d, lanes);
		else if (d < hd)
			store_every_4th(codes + d * 4, lanes, token % 4, hd - d);
	}
	if (!v)
		put_k8(dst, token, c, hd);
}

/*
 * The most common head_dim on its own: registers hold the row. A scale that is a normal half is
 * right to 2^-11, zero to 2^-4: so no code is further than 0.2 outside 0 .. 255 before it is
 * rounded, and none has to be clamped. Rows with other scales go the long way.
 */
INLINE void store_int8_64(const float *row, const struct kv_plane *dst, uint32_t token,
			  bool v)
{
	enum { N = 64 / LANES };
	_Alignas(64) uint8_t c[64];
	vfloat x[N], lo[N], hi[N], r, zero;
	uint8_t *codes = (uint8_t *)dst->codes + (size_t)token / 4 * 64 * 4;
	struct token_params p;
	uint32_t nan = 0;
	__m128i scale;
	__m128 low;

#pragma GCC unroll 8
	for (int i = 0; i < N; i++)
		lo[i] = hi[i] = x[i] = load_f(row + i * LANES);
#pragma GCC unroll 8
	for (int i = 0; i < N; i += 2)
		nan |= nan_in(x[i], x[i + 1]);
#pragma GCC unroll 3
	for (int l = N / 2; l > 0; l /= 2)
#pragma GCC unroll 4
		for (int i = 0; i < l; i++) {
			lo[i] = min_f(lo[i], lo[i + l]);
			hi[i] = max_f(hi[i], hi[i + l]);
		}
	scale = scale_of(min_f(lo[0], set_f(0)), max_f(hi[0], set_f(0)), 255, &low);
	if (nan || half_bits(scale) < 0x0400 || half_bits(scale) >= 0x7c00) {
		store_int8_any(row, dst, token, v);
		return;
	}
	p = params_of(scale, low, 255);
	r = first_f(p.r);
	zero = first_f(p.zero_f);
	put_params(dst, token, &p);
#pragma GCC unroll 8
	for (int i = 0; i < N; i++) {
		vint lanes = round_i(fma_f(x[i], r, zero));

		if (v)
			store_every_4th(codes + i * LANES * 4, lanes, token % 4, 64);
		else
			store_bytes(c + i * LANES, lanes);
	}
	if (!v)
		put_k8(dst, token, c, 64);
}

INLINE void store_int8(const float *x, const struct kv_plane *dst, uint32_t token, bool v)
{
	if (dst->head_dim == 64)
		store_int8_64(x, dst, token, v);
	else
		store_int8_any(x, dst, token, v);
}

/* --- fp8 ---------------------------------------------------------------------------- */

typedef uint32_t vbits __attribute__((vector_size(LANES * 4)));

INLINE vbits pick(vbits mask, vbits yes, vbits no)
{
	return (mask & yes) | (~mask & no);
}

/* As kv_e4m3_from_float(). */
INLINE vbits e4m3(vfloat x)
{
	vbits u = (vbits)x, sign = u >> 24 & 0x80, small, c;

	u &= 0x7fffffff;
	small = (vbits)add_f((vfloat)u, set_f(0x1p14f)) & 0xff;
	c = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3);
	c = pick((vbits)(u < 0x3c800000), small, c);
	return sign | pick((vbits)(u >= 0x43e00000), c - c + 0x7e, c);
}

INLINE void store_fp8(const float *x, const struct kv_plane *dst, uint32_t token, bool v)
{
	_Alignas(64) float row[KV_HEAD_DIM_MAX];
	_Alignas(64) uint8_t c[KV_HEAD_DIM_MAX] = {0};
	uint32_t hd = dst->head_dim, bt = dst->block_tokens, n = hd;
	const float *from = padded_row(x, &n, row);
	float top = top_of(from, n), scale;
	uint16_t *params = dst->params;
	uint8_t *codes = dst->codes;

	params[token] = 0x7e00;
	if (isfinite(top)) {
		uint16_t half = _cvtss_sh(top / 448, _MM_FROUND_TO_NEAREST_INT);

		scale = _cvtsh_ss(half);
		if (isfinite(scale))
			params[token] = half;
		if (isfinite(scale) && scale > 0)
			for (uint32_t d = 0; d < n; d += LANES)
				store_bytes(c + d, (vint)e4m3(mul_f(load_f(from + d),
								    set_f(1 / scale))));
	}
	if (v)
		memcpy(codes + (size_t)token * hd, c, hd);
	else
		for (uint32_t d = 0; d < hd; d++)
			codes[(size_t)d * bt + token] = c[d];
}

/* --- int4, whole blocks ------------------------------------------------------------- */

/* Bytes of four rows side by side, 8 of each, the high nibbles from four others. */
INLINE void interleave(const uint8_t *low, const uint8_t *high, size_t step, uint8_t *dst)
{
	__m128i r[4], a, b;

	for (int j = 0; j < 4; j++)
		r[j] = _mm_or_si128(
			_mm_loadl_epi64((const void *)(low + j * step)),
			_mm_slli_epi16(_mm_loadl_epi64((const void *)(high + j * step)),
				       4));
	a = _mm_unpacklo_epi8(r[0], r[1]);
	b = _mm_unpacklo_epi8(r[2], r[3]);
	_mm_storeu_si128((void *)dst, _mm_unpacklo_epi16(a, b));
	_mm_storeu_si128((void *)(dst + 16), _mm_unpackhi_epi16(a, b));
}

INLINE void pack_v4(const uint16_t *src, const struct kv_plane *dst)
{
	_Alignas(64) uint8_t c[8][KV_HEAD_DIM_MAX];
	_Alignas(64) float row[KV_HEAD_DIM_MAX] = {0};
	uint32_t hd = dst->head_dim, round = (hd + 15) / 16 * 16;
	uint8_t *codes = dst->codes;

	for (uint32_t t = 0; t < dst->block_tokens; t++, src += hd) {
		struct token_params p;

		for (uint32_t d = 0; d < hd; d += 8)
			_mm256_storeu_ps(row + d, _mm256_cvtph_ps(_mm_loadu_si128(
							  (const void *)(src + d))));
		p = asymmetric(row, round, 15);
		for (uint32_t d = 0; d < round; d += LANES)
			store_bytes(c[t % 8] + d, codes_of(load_f(row + d), first_f(p.r),
							   first_f(p.zero_f), 15));
		put_params(dst, t, &p);
		if (t % 8 < 7)
			continue;
		for (uint32_t d = 0; d < hd; d += 8, codes += 32)
			interleave(c[0] + d, c[4] + d, sizeof(c[0]), codes);
	}
}

/* The range of each dim over the block's tokens; s = (hi - lo) / 15, mid in the middle.
 * Return: whether all is finite. */
INLINE bool dim_ranges(const uint16_t *src, const struct kv_plane *dst, float *s,
		       float *mid)
{
	uint32_t bt = dst->block_tokens;
	__m256i bits = _mm256_setzero_si256();
	const __m256i inf = _mm256_set1_epi16(0x7c00);

	for (uint32_t d = 0; d < dst->head_dim; d++, src += bt) {
		vfloat lo = half_load(src), hi = lo;
		float low, high;

		for (uint32_t t = 0; t < bt; t += 16) {
			__m256i h = _mm256_loadu_si256((const void *)(src + t));

			/* Only infinities and NaN have all five bits of the exponent. */
			bits = _mm256_or_si256(
				bits, _mm256_cmpeq_epi16(_mm256_and_si256(h, inf), inf));
		}
		for (uint32_t t = LANES; t < bt; t += LANES) {
			lo = min_f(half_load(src + t), lo);
			hi = max_f(half_load(src + t), hi);
		}
		low = lanes_min(lo);
		high = lanes_max(hi);
		s[d] = (high - low) / 15;
		mid[d] = 0.5f * (low + high);
	}
	return _mm256_testz_si256(bits, bits);
}

/* Codes of one dim; the parameters a and m are those of a finite block. */
INLINE void dim_codes(const uint16_t *src, uint32_t bt, float r, float shift, uint8_t *c)
{
	for (uint32_t t = 0; t < bt; t += LANES) {
		vfloat x = sub_f(half_load(src + t), set_f(shift));

		x = fma_f(x, set_f(r), set_f(7.5f));
		x = min_f(max_f(x, set_f(0)), set_f(15));
		store_bytes(c + t, round_i(x));
	}
}

INLINE void pack_k4(const uint16_t *src, const struct kv_plane *dst)
{
	_Alignas(64) float s[KV_HEAD_DIM_MAX] = {0}, mid[KV_HEAD_DIM_MAX] = {0};
	_Alignas(64) uint8_t a[KV_HEAD_DIM_MAX], m[KV_HEAD_DIM_MAX];
	_Alignas(64) uint8_t c[8][KV_BLOCK_TOKENS_MAX];
	uint32_t hd = dst->head_dim, bt = dst->block_tokens, round = (hd + 15) / 16 * 16;
	uint8_t *codes = dst->codes, *params = dst->params;
	float fa, fb, ra, rb;

	if (!dim_ranges(src, dst, s, mid)) {
		dst->pair[0] = dst->pair[1] = 0x7e00;
		memset(params, 1, hd);
		memset(params + hd, 128, hd);
		memset(codes, 0, (size_t)hd * bt / 2);
		return;
	}
	dst->pair[0] = _cvtss_sh(top_of(s, round) / 255, _MM_FROUND_TO_NEAREST_INT);
	dst->pair[1] = _cvtss_sh(top_of(mid, round) / 127, _MM_FROUND_TO_NEAREST_INT);
	fa = _cvtsh_ss(dst->pair[0]);
	fb = _cvtsh_ss(dst->pair[1]);
	ra = fa > 0 ? 1 / fa : 0;
	rb = fb > 0 ? 1 / fb : 0;
	for (uint32_t d = 0; d < round; d += LANES) {
		vfloat x = mul_f(load_f(s + d), set_f(ra));
		vfloat y = mul_f(load_f(mid + d), set_f(rb));

		store_bytes(a + d, round_i(min_f(max_f(x, set_f(1)), set_f(255))));
		y = min_f(max_f(y, set_f(-127)), set_f(127));
		store_bytes(m + d, add_i(round_i(y), set_i(128)));
	}
	memcpy(params, a, hd);
	memcpy(params + hd, m, hd);
	for (uint32_t d = 0; d < hd; d++, src += bt) {
		float r = fa > 0 ? 1 / (fa * a[d]) : 0, shift = fb * ((float)m[d] - 128);

		dim_codes(src, bt, r, shift, c[d % 8]);
		if (d % 8 < 7)
			continue;
		for (uint32_t t = 0; t < bt; t += 8, codes += 32)
			interleave(c[0] + t, c[4] + t, sizeof(c[0]), codes);
	}
}

#define QUANT(isa)                                                                       \
	void kv_rotate_##isa(float *x, uint32_t head_dim, bool back)                     \
	{                                                                                \
		rotate(x, head_dim, back);                                               \
	}                                                                                \
	void kv_store_k_int8_##isa(const float *x, const struct kv_plane *dst,           \
				   uint32_t t)                                           \
	{                                                                                \
		store_int8(x, dst, t, false);                                            \
	}                                                                                \
	void kv_store_v_int8_##isa(const float *x, const struct kv_plane *dst,           \
				   uint32_t t)                                           \
	{                                                                                \
		store_int8(x, dst, t, true);                                             \
	}                                                                                \
	void kv_store_k_fp8_##isa(const float *x, const struct kv_plane *dst,            \
				  uint32_t t)                                            \
	{                                                                                \
		store_fp8(x, dst, t, false);                                             \
	}                                                                                \
	void kv_store_v_fp8_##isa(const float *x, const struct kv_plane *dst,            \
				  uint32_t t)                                            \
	{                                                                                \
		store_fp8(x, dst, t, true);                                              \
	}                                                                                \
	void kv_pack_k4_##isa(const uint16_t *src, const struct kv_plane *dst)           \
	{                                                                                \
		pack_k4(src, dst);                                                       \
	}                                                                                \
	void kv_pack_v4_##isa(const uint16_t *src, const struct kv_plane *dst)           \
	{                                                                                \
		pack_v4(src, dst);                                                       \
	}

#endif
