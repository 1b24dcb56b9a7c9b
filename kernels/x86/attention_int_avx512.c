/* SPDX-License-Identifier: MIT */
/* Integer attention without VNNI: 16-bit products, two added at a time. */
#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

/* Of each lane's four codes 0 and 2, and 1 and 3, as 16-bit numbers. */
struct codes {
	__m512i even, odd;
};

INLINE struct codes code_load(const uint8_t *p, uint32_t n)
{
	__m512i v = n >= 16 ? _mm512_loadu_si512(p)
			    : _mm512_maskz_loadu_epi32(first_mask(n), (const void *)p);

	return (struct codes){v, v};
}

INLINE struct codes code_bytes(struct codes c)
{
	return (struct codes){_mm512_and_si512(c.even, _mm512_set1_epi16(255)),
			      _mm512_srli_epi16(c.even, 8)};
}

INLINE struct codes code_low(struct codes c)
{
	const __m512i low = _mm512_set1_epi16(15);

	return (struct codes){_mm512_and_si512(c.even, low),
			      _mm512_and_si512(_mm512_srli_epi16(c.even, 8), low)};
}

INLINE struct codes code_high(struct codes c)
{
	const __m512i low = _mm512_set1_epi16(15);

	return (struct codes){_mm512_and_si512(_mm512_srli_epi16(c.even, 4), low),
			      _mm512_srli_epi16(c.even, 12)};
}

enum { ONE_SUM = true };

INLINE vsum dot_p(vsum a, struct codes c, const uint8_t *p)
{
	return a + (vsum)_mm512_madd_epi16(c.even, dword(p));
}

INLINE vsum dot_q(vsum b, struct codes c, const uint8_t *q)
{
	return b + (vsum)_mm512_madd_epi16(c.odd, dword(q));
}

INLINE vint dot_sum(vsum a, vsum b)
{
	return (vint)a;
}

INLINE void split(vint c, uint8_t *p, uint8_t *q)
{
	/* 16-bit codes 0 2, 1 3 of each four, then all first pairs, all second ones. */
	const __m256i pairs =
		_mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
				 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
	const __m256i apart = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
	__m256i v = _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(c), pairs);

	v = _mm256_permutevar8x32_epi32(v, apart);
	_mm_storeu_si128((void *)p, _mm256_castsi256_si128(v));
	_mm_storeu_si128((void *)q, _mm256_extracti128_si256(v, 1));
}

INLINE void split_64(const vint *c, uint8_t *p, uint8_t *q)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < 64 / LANES; i++)
		split(c[i], p + i * LANES, q + i * LANES);
}

INLINE void query_words(const uint8_t *p, const uint8_t *q, int16_t *x)
{
	__m128i even = _mm_loadl_epi64((const void *)p);
	__m128i odd = _mm_loadl_epi64((const void *)q);

	_mm_storeu_si128((void *)x, _mm_unpacklo_epi16(even, odd));
}

/* Two products, of at most 15 * 127 each, fit in a word. */
INLINE vsum dot_u(vsum a, vint v, vint u)
{
	vint pairs = _mm512_maddubs_epi16(v, u);

	return a + (vsum)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

INLINE vsum dot_dword(vsum a, vint v, const uint8_t *u)
{
	return dot_u(a, v, dword(u));
}

/* 16 times as much would not fit. */
INLINE vint nibbles_high(vint v)
{
	return bytes_low(_mm512_srli_epi16(v, 4));
}

INLINE vint score_start(int32_t u)
{
	return zero_i();
}

INLINE vint score_sum(vint a, vint b, int32_t u)
{
	return sub_i(times_16(add_i(a, b)), set_i(u));
}

#include "kernels/x86/attention_int.h"
#include "kernels/x86/attention_k4.h"

enum { NV1 = 4, NV2 = 4, NV3 = 4, NV4 = 2, NV6 = 2 };
enum { ND1 = 4, ND2 = 4, ND3 = 4, ND4 = 2, ND6 = 2 };

INT_SPANS(avx512)

void kv_query_avx512(const float *q, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		     uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
