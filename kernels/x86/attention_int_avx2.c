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

/* One sum is enough: registers are few. */
INLINE void dot(vint *a, vint *b, struct codes c, const uint8_t *p, const uint8_t *q)
{
	*a = _mm256_add_epi32(*a, _mm256_madd_epi16(c.even, dword(p)));
	*a = _mm256_add_epi32(*a, _mm256_madd_epi16(c.odd, dword(q)));
}

INLINE vint dot_sum(vint a, vint b)
{
	return a;
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

INLINE int16_t code_at(const uint8_t *codes, uint32_t n, uint32_t d)
{
	int16_t c;

	memcpy(&c, codes + (d % 2 ? n : 0) + d / 4 * 4 + d % 4 / 2 * 2, 2);
	return c;
}

#define U_DWORD(i) (i)

#include "kernels/x86/attention_int.h"

INLINE void u_codes(const uint32_t *x, const uint8_t *a, const uint8_t *m, uint32_t n,
		    uint8_t *u, int32_t *ret_u, int32_t *ret_m)
{
	const __m256i half = _mm256_set1_epi32(128 << 16);
	__m256i su = _mm256_setzero_si256(), sm = su;
	uint32_t plane = (n + 63) / 64 * 64;

	for (uint32_t d = 0; d < n; d += 8) {
		__m256i q = _mm256_load_si256((const void *)(x + d));
		__m256i pa = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(a + d)));
		__m256i pm = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(m + d)));
		__m256i v = _mm256_srai_epi32(
			_mm256_madd_epi16(q, _mm256_or_si256(pa, half)), 8);

		/* c * a + 1 * 128, and c * m + 1 * 0 */
		sm = _mm256_add_epi32(sm, _mm256_madd_epi16(q, pm));
		su = _mm256_add_epi32(su, v);
		split(v, u + d, u + plane + d);
	}
	*ret_u = sum_i(su);
	*ret_m = sum_i(sm);
}

enum { NV1 = 4, NV2 = 2, NV3 = 2, NV4 = 1, NV6 = 1 };
enum { ND1 = 4, ND2 = 2, ND3 = 2, ND4 = 1, ND6 = 1 };

INT_SPANS(avx2)

void kv_query_avx2(const float *q, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		   uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
