/* SPDX-License-Identifier: MIT */
/* Partial blocks and fp8 planes with 8 lanes. */
#include "kernels/x86/lanes8.h"
#include "kernels/x86/x86.h"

INLINE void fp8_widen(const uint8_t *src, uint16_t *dst, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 16) {
		__m256i h =
			_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(src + i)));

		h = _mm256_and_si256(_mm256_slli_epi16(h, 7),
				     _mm256_set1_epi16((short)0xbfff));
		_mm256_store_si256((void *)(dst + i), h);
	}
}

#include "kernels/x86/attention_own.h"

ATTENTION_OWN(avx2)
