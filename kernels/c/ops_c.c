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
		.scores =
			{
				[KV_FORMAT_FP16] = kv_scores_fp16_c,
				[KV_FORMAT_INT8] = kv_scores_int8_c,
				[KV_FORMAT_INT4] = kv_scores_int4_c,
				[KV_FORMAT_FP8_E4M3] = kv_scores_fp8_c,
			},
		.query = kv_query_c,
		.scores_own = kv_scores_own_c,
		.sums_own = kv_sums_own_c,
		.softmax = kv_softmax_c,
		.sums =
			{
				[KV_FORMAT_FP16] = kv_sums_fp16_c,
				[KV_FORMAT_INT8] = kv_sums_int8_c,
				[KV_FORMAT_INT4] = kv_sums_int4_c,
				[KV_FORMAT_FP8_E4M3] = kv_sums_fp8_c,
			},
		.merge = kv_merge_c,
		.rms_norm = kv_rms_norm_c,
		.silu_mul = kv_silu_mul_c,
		.logits = kv_logits_c,
		.rope = kv_rope_c,
		.rotate = kv_rotate_c,
		.pack_k4 = kv_pack_k4_c,
		.pack_v4 = kv_pack_v4_c,
		.store_k =
			{
				[KV_FORMAT_FP16] = kv_store_k_fp16_c,
				[KV_FORMAT_INT8] = kv_store_k_int8_c,
				[KV_FORMAT_FP8_E4M3] = kv_store_k_fp8_c,
			},
		.store_v =
			{
				[KV_FORMAT_FP16] = kv_store_v_fp16_c,
				[KV_FORMAT_INT8] = kv_store_v_int8_c,
				[KV_FORMAT_FP8_E4M3] = kv_store_v_fp8_c,
			},
	};
}
