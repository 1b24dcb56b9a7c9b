/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/ops.h"

#include "kernels/cpu_features.h"

void kv_cpu_ops_init(struct kv_cpu_ops *ops, uint32_t features)
{
	kv_cpu_ops_c(ops);
#ifdef KV_HAVE_X86
	if (features & KV_CPU_AVX2)
		kv_cpu_ops_avx2(ops);
	if (features & KV_CPU_AVX512)
		kv_cpu_ops_avx512(ops);
	if (features & KV_CPU_AVX512VNNI)
		kv_cpu_ops_avx512vnni(ops);
	if (features & KV_CPU_AMX)
		kv_cpu_ops_amx(ops);
#endif
#ifdef KV_HAVE_ARM64
	if (features & KV_CPU_DOTPROD)
		kv_cpu_ops_dotprod(ops);
#endif
}
