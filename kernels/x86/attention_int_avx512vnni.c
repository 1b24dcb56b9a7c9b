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

/* Packing leaves the four codes of each vector in every fourth dword. */
INLINE void split_64(const vint *c, uint8_t *p, uint8_t *q)
{
	const __m512i order =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	const __m512i low = _mm512_set1_epi16(127);
	__m512i a = _mm512_packs_epi32(c[0], c[1]), b = _mm512_packs_epi32(c[2], c[3]);
	__m512i high =
		_mm512_packs_epi16(_mm512_srai_epi16(a, 7), _mm512_srai_epi16(b, 7));

	a = _mm512_packs_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
	_mm512_store_si512(p, _mm512_permutexvar_epi32(order, high));
	_mm512_store_si512(q, _mm512_permutexvar_epi32(order, a));
}

INLINE void query_words(const uint8_t *p, const uint8_t *q, int16_t *x)
{
	__m128i high = _mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)p));
	__m128i low = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)q));

	_mm_storeu_si128((void *)x, _mm_or_si128(_mm_slli_epi16(high, 7), low));
}

INLINE vsum dot_u(vsum a, vint v, vint u)
{
	return (vsum)_mm512_dpbusd_epi32((__m512i)a, v, u);
}

enum { DOT_DWORDS = KV_HEAD_DIM_MAX / 8 };

INLINE vint dot_wide(vsum a)
{
	return (vint)a;
}

/* In one instruction, which the compiler does not know it may take. */
INLINE vsum dot_dword(vsum a, vint v, const uint8_t *u)
{
	const struct four {
		uint8_t bytes[4];
	} *four = (const void *)u;

	__asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(v), "m"(*four));
	return a;
}

/* Where they are: as codes, 16 times as much. */
INLINE vint nibbles_high(vint v)
{
	return _mm512_and_si512(v, _mm512_set1_epi8((char)0xf0));
}

INLINE vint score_add(vint sum, vint a, vint b)
{
	return add_i(sum, add_i(times_16(a), b));
}

#include "kernels/x86/attention_int.h"
#include "kernels/x86/attention_k4.h"

enum { NV1 = 8, NV2 = 4, NV3 = 4, NV4 = 2, NV6 = 2 };
enum { ND1 = 4, ND2 = 4, ND3 = 4, ND4 = 2, ND6 = 2 };

INT_SPANS(avx512vnni)
