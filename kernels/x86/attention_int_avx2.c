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

INLINE void query_dwords(const uint8_t *codes, uint32_t n, uint32_t *x)
{
	uint32_t end = (n + 63) / 64 * 64;

	for (uint32_t d = 0; d < n; d += 4) {
		uint32_t p, q;

		memcpy(&p, codes + d, 4);
		memcpy(&q, codes + n + d, 4);
		x[d] = (p & 0xffff) | 1u << 16;
		x[d + 1] = (q & 0xffff) | 1u << 16;
		x[d + 2] = p >> 16 | 1u << 16;
		x[d + 3] = q >> 16 | 1u << 16;
	}
	memset(x + n, 0, (end - n) * sizeof(*x));
}

#define U_DWORD(i) (i)

#include "kernels/x86/attention_int.h"

INLINE void sums_of(const vint *v, int32_t *ret)
{
	for (uint32_t i = 0; i < KV_SPAN_BLOCKS; i++)
		ret[i] = sum_i(v[i]);
}

INLINE void u_codes(struct block_query *bq, int nq, uint32_t b,
		    const uint32_t (*x)[KV_HEAD_DIM_MAX], const uint8_t *const *qc,
		    const uint8_t *a, const uint8_t *m, uint32_t n)
{
	const __m256i half = _mm256_set1_epi32(128 << 16);
	uint32_t plane = (n + 63) / 64 * 64;

	for (int j = 0; j < nq; j++) {
		uint8_t *u = bq[j].u + (size_t)b * plane * 2;
		__m256i su = _mm256_setzero_si256(), sm = su;

		for (uint32_t d = 0; d < n; d += 8) {
			__m256i q = _mm256_load_si256((const void *)&x[j][d]);
			__m256i pa = _mm256_cvtepu8_epi32(
				_mm_loadl_epi64((const void *)(a + d)));
			__m256i pm = _mm256_cvtepu8_epi32(
				_mm_loadl_epi64((const void *)(m + d)));
			__m256i v = _mm256_madd_epi16(q, _mm256_or_si256(pa, half));

			/* c * a + 1 * 128, and c * m + 1 * 0 */
			v = _mm256_srai_epi32(v, 8);
			sm = _mm256_add_epi32(sm, _mm256_madd_epi16(q, pm));
			su = _mm256_add_epi32(su, v);
			split(v, u + d, u + plane + d);
		}
		bq[j].u_sum[b] = su;
		bq[j].m_sum[b] = sm;
	}
}

enum { NV1 = 4, NV2 = 2, NV3 = 2, NV4 = 1, NV6 = 1 };
enum { ND1 = 4, ND2 = 2, ND3 = 2, ND4 = 1, ND6 = 1 };

INT_SPANS(avx2)

void kv_query_avx2(const float *q, uint8_t *codes, float *ret_scale, int32_t *ret_sum,
		   uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
