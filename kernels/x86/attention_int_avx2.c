/* SPDX-License-Identifier: MIT */
/* Integer attention with 8 lanes: 16-bit products, two added at a time. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

#include "kernels/x86/attention_words.h"

INLINE struct codes code_load(const uint8_t *p, uint32_t n)
{
	__m256i v = _mm256_loadu_si256((const void *)p);

	return (struct codes){v, v};
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

#include "kernels/x86/attention_int.h"

#include "kernels/x86/attention_k4.h"

enum { NV1 = 4, NV2 = 2, NV3 = 2, NV4 = 1, NV6 = 1 };
enum { ND1 = 4, ND2 = 2, ND3 = 2, ND4 = 1, ND6 = 1 };

INT_SPANS(avx2)
