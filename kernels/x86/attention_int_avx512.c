/* SPDX-License-Identifier: MIT */
/* Integer attention without VNNI: 16-bit products, two added at a time. */
#include "kernels/x86/lanes16.h"
#include "kernels/x86/x86.h"

#include "kernels/x86/attention_words.h"

INLINE struct codes code_load(const uint8_t *p, uint32_t n)
{
	__m512i v = n >= 16 ? _mm512_loadu_si512(p)
			    : _mm512_maskz_loadu_epi32(first_mask(n), (const void *)p);

	return (struct codes){v, v};
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

#include "kernels/x86/attention_int.h"
#include "kernels/x86/attention_k4.h"

enum { NV1 = 4, NV2 = 4, NV3 = 4, NV4 = 2, NV6 = 2 };
enum { ND1 = 4, ND2 = 4, ND3 = 4, ND4 = 2, ND6 = 2 };

INT_SPANS(avx512)
