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

enum { ONE_SUM = false };

INLINE vsum dot_p(vsum a, struct codes c, const uint8_t *p)
{
	return (vsum)_mm512_dpbusd_epi32((__m512i)a, c.v, dword(p));
}

INLINE vsum dot_q(vsum b, struct codes c, const uint8_t *q)
{
	return (vsum)_mm512_dpbusd_epi32((__m512i)b, c.v, dword(q));
}

INLINE vint dot_sum(vsum a, vsum b)
{
	return (vint)((a << 7) + b);
}

INLINE void split(vint c, uint8_t *p, uint8_t *q)
{
	vint low = _mm512_and_si512(c, _mm512_set1_epi32(127));

	_mm_store_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_srai_epi32(c, 7)));
	_mm_store_si128((void *)q, _mm512_cvtepi32_epi8(low));
}

INLINE void query_dwords(const uint8_t *codes, uint32_t n, uint32_t *x)
{
	uint32_t end = (n + 63) / 64 * 64;

	for (uint32_t d = 0; d < end; d += 16) {
		__mmask16 mask = n > d ? first_mask(n - d) : 0;
		__m512i high =
			_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, codes + d));
		__m512i c =
			_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, codes + n + d));

		c = _mm512_add_epi32(_mm512_slli_epi32(high, 7), c);
		c = _mm512_and_si512(c, _mm512_set1_epi32(0xffff));
		c = _mm512_maskz_or_epi32(mask, c, _mm512_set1_epi32(1 << 16));
		_mm512_store_si512(x + d, c);
	}
}

/* Packing 64 codes to bytes leaves dword 4 k + l of every 16 where l + 4 k is due. */
#define U_DWORD(i) (((i) & ~15u) | ((i)&3) << 2 | ((i) >> 2 & 3))

#include "kernels/x86/attention_int.h"
#include "kernels/x86/sums_of16.h"

INLINE void u_codes(struct block_query *bq, int nq, uint32_t b,
		    const uint32_t (*x)[KV_HEAD_DIM_MAX], const uint8_t *const *qc,
		    const uint8_t *a, const uint8_t *m, uint32_t n)
{
	const __m512i one = _mm512_set1_epi8(1), low = _mm512_set1_epi16(127);
	const __m512i half = _mm512_set1_epi32(128 << 16);
	uint32_t plane = (n + 63) / 64 * 64;
	vsum uh[INT_QUERIES], ul[INT_QUERIES], mh[INT_QUERIES], ml[INT_QUERIES];

#pragma GCC unroll 6
	for (int j = 0; j < nq; j++)
		uh[j] = ul[j] = mh[j] = ml[j] = (vsum){0};
	for (uint32_t d = 0; d < n; d += 64) {
		uint32_t left = n - d;
		__mmask64 mask = left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
		__m512i bytes = _mm512_maskz_loadu_epi8(mask, a + d), scale[4];
		__m512i mid = _mm512_maskz_loadu_epi8(mask, m + d);

		scale[0] = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(bytes));
		scale[1] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 1));
		scale[2] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 2));
		scale[3] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 3));
#pragma GCC unroll 4
		for (int i = 0; i < 4; i++)
			scale[i] = _mm512_or_si512(scale[i], half);
#pragma GCC unroll 6
		for (int j = 0; j < nq; j++) {
			uint8_t *u = bq[j].u + (size_t)b * plane * 2 + d;
			__m512i v[4], w[2], h, l;

			/* c * a + 1 * 128 */
#pragma GCC unroll 4
			for (int i = 0; i < 4; i++) {
				v[i] = _mm512_load_si512(&x[j][d + i * 16]);
				v[i] = _mm512_srai_epi32(
					_mm512_madd_epi16(v[i], scale[i]), 8);
			}
			w[0] = _mm512_packs_epi32(v[0], v[1]);
			w[1] = _mm512_packs_epi32(v[2], v[3]);
			h = _mm512_packs_epi16(_mm512_srai_epi16(w[0], 7),
					       _mm512_srai_epi16(w[1], 7));
			l = _mm512_packs_epi16(_mm512_and_si512(w[0], low),
					       _mm512_and_si512(w[1], low));
			_mm512_store_si512(u, h);
			_mm512_store_si512(u + plane, l);
			uh[j] = (vsum)_mm512_dpbusd_epi32((__m512i)uh[j], one, h);
			ul[j] = (vsum)_mm512_dpbusd_epi32((__m512i)ul[j], one, l);
			h = _mm512_maskz_loadu_epi8(mask, qc[j] + d);
			l = _mm512_maskz_loadu_epi8(mask, qc[j] + n + d);
			mh[j] = (vsum)_mm512_dpbusd_epi32((__m512i)mh[j], mid, h);
			ml[j] = (vsum)_mm512_dpbusd_epi32((__m512i)ml[j], mid, l);
		}
	}
#pragma GCC unroll 6
	for (int j = 0; j < nq; j++) {
		bq[j].u_sum[b] = dot_sum(uh[j], ul[j]);
		bq[j].m_sum[b] = dot_sum(mh[j], ml[j]);
	}
}

enum { NV1 = 8, NV2 = 4, NV3 = 4, NV4 = 2, NV6 = 2 };
enum { ND1 = 4, ND2 = 4, ND3 = 4, ND4 = 2, ND6 = 2 };

INT_SPANS(avx512vnni)

void kv_query_avx512vnni(const float *q, uint8_t *codes, float *ret_scale,
			 int32_t *ret_sum, uint32_t head_dim)
{
	query(q, codes, ret_scale, ret_sum, head_dim);
}
