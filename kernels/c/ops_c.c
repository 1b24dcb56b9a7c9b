/* SPDX-License-Identifier: MIT */
#include "kernels/c/c.h"

void kv_cpu_ops_c(struct kv_cpu_ops *ops)
{
	*ops = (struct kv_cpu_ops){
		.act = kv_act_c,
		.gemm =
			{
				[KV_FORM_NIB_SYM] = kv_gemm_nib_sym_c,
				[KV_FORM_NIB_MIN] = kv_gemm_nib_min_c,
				[KV_FORM_NIB_MIN32] = kv_gemm_nib_min32_c,
				[KV_FORM_BYTE_SYM] = kv_gemm_byte_sym_c,
				[KV_FORM_BYTE_MIN] = kv_gemm_byte_min_c,
				[KV_FORM_BYTE_MIN32] = kv_gemm_byte_min32_c,
				[KV_FORM_BYTE_HALF] = kv_gemm_byte_half_c,
				[KV_FORM_F32] = kv_gemm_f32_c,
				[KV_FORM_F16] = kv_gemm_f16_c,
				[KV_FORM_BF16] = kv_gemm_bf16_c,
			},
		.scores = {[KV_FORMAT_FP16] = kv_scores_fp16_c},
		.softmax = kv_softmax_c,
		.sums = {[KV_FORMAT_FP16] = kv_sums_fp16_c},
		.merge = kv_merge_c,
		.rms_norm = kv_rms_norm_c,
		.silu_mul = kv_silu_mul_c,
		.logits = kv_logits_c,
		.rope = kv_rope_c,
		.store_k = {[KV_FORMAT_FP16] = kv_store_k_fp16_c},
		.store_v = {[KV_FORMAT_FP16] = kv_store_v_fp16_c},
	};
}
