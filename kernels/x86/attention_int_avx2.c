/* SPDX-License-Identifier: MIT */
/* Integer attention with 8 lanes: 16-bit products, two added at a time. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

/* Of each lane's four codes 0 and 2, and 1 and 3, as 16-bit numbers. */
struct codes {
	__m256i even, odd;
};

INLINE struct codes code_load(const uint8_t *p, uint32_t n)
{
	__m256i v = _mm256_loadu_si256((const void *)p);

	return (struct codes){v, v};
}

INLINE struct codes code_bytes(struct codes c)
{
	return (struct codes){_mm256_and_si256(c.even, _mm256_set1_epi16(255)),
			      _mm256_srli_epi16(c.even, 8)};
}

INLINE struct codes code_low(struct codes c)
{
	const __m256i low = _mm256_set1_epi16(15);

	return (struct codes){_mm256_and_si256(c.even, low),
			      _mm256_and_si256(_mm256_srli_epi16(c.even, 8), low)};
}

INLINE struct codes code_high(struct codes c)
{
	const __m256i low = _mm256_set1_epi16(15);

	return (struct codes){_mm256_and_si256(_mm256_srli_epi16(c.even, 4), low),
			      _mm256_srli_epi16(c.even, 12)};
}

enum { ONE_SUM = true };

INLINE vsum dot_p(vsum a, struct codes c, const uint8_t *p)
{
	return a + (vsum)_mm256_madd_epi16(c.even, dword(p));
}

INLINE vsum dot_q(vsum b, struct codes c, const uint8_t *q)
{
	return b + (vsum)_mm256_madd_epi16(c.odd, dword(q));
}

INLINE vint dot_sum(vsum a, vsum b)
{
	return (vint)a;
}

INLINE void split(vint c, uint8_t *p, uint8_t *q)
{
	/* 16-bit codes 0 2, 1 3 of each four; packing doubles each half. */
	const __m256i pairs =
		_mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
				 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
	const __m256i apart = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
	__m256i v = _mm256_shuffle_epi8(_mm256_packs_epi32(c, c), pairs);

	v = _mm256_permutevar8x32_epi32(v, apart);
	_mm_storel_epi64((void *)p, _mm256_castsi256_si128(v));
	_mm_storel_epi64((void *)q, _mm_unpackhi_epi64(_mm256_castsi256_si128(v),
						       _mm256_castsi256_si128(v)));
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
	vint pairs = _mm256_maddubs_epi16(v, u);

	return a + (vsum)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE vsum dot_dword(vsum a, vint v, const uint8_t *u)
{
	return dot_u(a, v, dword(u));
}

/* 16 times as much would not fit. */
INLINE vint nibbles_high(vint v)
{
	return bytes_low(_mm256_srli_epi16(v, 4));
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

enum { NV1 = 4, NV2 = 2, NV3 = 2, NV4 = 1, NV6 = 1 };
enum { ND1 = 4, ND2 = 2, ND3 = 2, ND4 = 1, ND6 = 1 };

INT_SPANS(avx2)

void kv_query_avx2(const float *q, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		   uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
