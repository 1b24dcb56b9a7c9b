/* SPDX-License-Identifier: MIT */
#include "kernels/arm64/arm64.h"

void kv_cpu_ops_dotprod(struct kv_cpu_ops *ops)
{
	ops->act = kv_act_dotprod;
	ops->gemm[KV_FORM_NIB_SYM] = kv_gemm_nib_sym_dotprod;
	ops->gemm[KV_FORM_NIB_MIN] = kv_gemm_nib_min_dotprod;
	ops->gemm[KV_FORM_NIB_MIN32] = kv_gemm_nib_min32_dotprod;
	ops->gemm[KV_FORM_BYTE_SYM] = kv_gemm_byte_sym_dotprod;
	ops->gemm[KV_FORM_BYTE_MIN] = kv_gemm_byte_min_dotprod;
	ops->gemm[KV_FORM_BYTE_MIN32] = kv_gemm_byte_min32_dotprod;
	ops->gemm[KV_FORM_BYTE_HALF] = kv_gemm_byte_half_dotprod;
}
