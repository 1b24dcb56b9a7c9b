/* SPDX-License-Identifier: MIT */
/* Integer attention with VPDPBUSD: codes are the unsigned side; of the signed one the high
 * bytes are c >> 7, the low ones c & 127. */
#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

struct codes {
	__m512i v;
};

INLINE struct codes code_load(const uint8_t *p, uint32_t n)
{
	if (n >= 16)
		return (struct codes){_mm512_loadu_si512(p)};
	return (struct codes){
		_mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), (const void *)p)};
}

INLINE struct codes code_bytes(struct codes c)
{
	return c;
}

INLINE struct codes code_low(struct codes c)
{
	return (struct codes){_mm512_and_si512(c.v, _mm512_set1_epi8(15))};
}

INLINE struct codes code_high(struct codes c)
{
	return (struct codes){
		_mm512_and_si512(_mm512_srli_epi16(c.v, 4), _mm512_set1_epi8(15))};
}

INLINE void dot(vint *a, vint *b, struct codes c, const uint8_t *p, const uint8_t *q)
{
	*a = _mm512_dpbusd_epi32(*a, c.v, dword(p));
	*b = _mm512_dpbusd_epi32(*b, c.v, dword(q));
}

INLINE vint dot_sum(vint a, vint b)
{
	return _mm512_add_epi32(_mm512_slli_epi32(a, 7), b);
}

INLINE void split(vint c, uint8_t *p, uint8_t *q)
{
	vint low = _mm512_and_si512(c, _mm512_set1_epi32(127));

	_mm_store_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_srai_epi32(c, 7)));
	_mm_store_si128((void *)q, _mm512_cvtepi32_epi8(low));
}

INLINE int16_t code_at(const uint8_t *codes, uint32_t n, uint32_t d)
{
	return (int16_t)((int8_t)codes[d] * 128 + codes[n + d]);
}

/* Packing 64 codes to bytes leaves dword 4 k + l of every 16 where l + 4 k is due. */
#define U_DWORD(i) (((i) & ~15u) | ((i)&3) << 2 | ((i) >> 2 & 3))

#include "kernels/x86/attention_int.h"

INLINE void u_codes(const uint32_t *x, const uint8_t *a, const uint8_t *m, uint32_t n,
		    uint8_t *u, int32_t *ret_u, int32_t *ret_m)
{
	const __m512i one = _mm512_set1_epi8(1), low = _mm512_set1_epi16(127);
	const __m512i half = _mm512_set1_epi32(128 << 16);
	__m512i su_high = _mm512_setzero_si512(), su_low = su_high, sm = su_high;
	uint32_t plane = (n + 63) / 64 * 64;

	for (uint32_t d = 0; d < n; d += 64) {
		__m512i v[4], w[2], h, l;

#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t at = d + i * 16, left = n > at ? n - at : 0;
			__mmask16 mask =
				left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
			__m512i q = _mm512_load_si512(x + at);
			__m512i pa =
				_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, a + at));
			__m512i pm =
				_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, m + at));

			/* c * a + 1 * 128, and c * m + 1 * 0 */
			v[i] = _mm512_srai_epi32(
				_mm512_madd_epi16(q, _mm512_or_si512(pa, half)), 8);
			sm = _mm512_add_epi32(sm, _mm512_madd_epi16(q, pm));
		}
		w[0] = _mm512_packs_epi32(v[0], v[1]);
		w[1] = _mm512_packs_epi32(v[2], v[3]);
		h = _mm512_packs_epi16(_mm512_srai_epi16(w[0], 7),
				       _mm512_srai_epi16(w[1], 7));
		l = _mm512_packs_epi16(_mm512_and_si512(w[0], low),
				       _mm512_and_si512(w[1], low));
		_mm512_store_si512(u + d, h);
		_mm512_store_si512(u + plane + d, l);
		su_high = _mm512_dpbusd_epi32(su_high, one, h);
		su_low = _mm512_dpbusd_epi32(su_low, one, l);
	}
	*ret_u = sum_i(dot_sum(su_high, su_low));
	*ret_m = sum_i(sm);
}

enum { NV1 = 8, NV2 = 4, NV3 = 4, NV4 = 2, NV6 = 2 };
enum { ND1 = 4, ND2 = 4, ND3 = 4, ND4 = 2, ND6 = 2 };

INT_SPANS(avx512vnni)

void kv_query_avx512vnni(const float *q, uint8_t *codes, float *ret_scale,
			 int32_t *ret_sum, uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
