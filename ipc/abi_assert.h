/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_ABI_ASSERT_H
#define KVD_IPC_ABI_ASSERT_H

/*
 * The layout of <kvd/abi.h> and <kvd/proto.h>, as the compiler sees it, must be
 * the one that their comments promise. Both sides include this in the file that
 * touches the structs; the installed headers stay free of C11.
 */

#include <stddef.h>

#include <kvd/abi.h>
#include <kvd/proto_admin.h>

#define ABI_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define ABI_AT(type, field, off)                                                         \
	_Static_assert(offsetof(struct type, field) == (off), #type "." #field)

ABI_SIZE(kvd_ring_geometry, 96);
ABI_AT(kvd_ring_geometry, sq_entries, 0);
ABI_AT(kvd_ring_geometry, cq_entries, 4);
ABI_AT(kvd_ring_geometry, sq_off, 8);
ABI_AT(kvd_ring_geometry, cq_off, 16);
ABI_AT(kvd_ring_geometry, in_off, 24);
ABI_AT(kvd_ring_geometry, in_bytes, 32);
ABI_AT(kvd_ring_geometry, out_off, 40);
ABI_AT(kvd_ring_geometry, out_bytes, 48);
ABI_AT(kvd_ring_geometry, c2d_bytes, 56);
ABI_AT(kvd_ring_geometry, d2c_bytes, 64);

ABI_SIZE(kvd_client_page, 4096);
ABI_AT(kvd_client_page, cq_pos, 0);
ABI_AT(kvd_client_page, flags, 128);

ABI_SIZE(kvd_daemon_page, 4096);
ABI_AT(kvd_daemon_page, magic, 0);
ABI_AT(kvd_daemon_page, version, 4);
ABI_AT(kvd_daemon_page, geometry, 8);
ABI_AT(kvd_daemon_page, sq_pos, 128);
ABI_AT(kvd_daemon_page, flags, 256);

ABI_SIZE(kvd_sqe, 64);
ABI_AT(kvd_sqe, seq, 0);
ABI_AT(kvd_sqe, user_data, 8);
ABI_AT(kvd_sqe, opcode, 16);
ABI_AT(kvd_sqe, flags, 17);
ABI_AT(kvd_sqe, input, 18);
ABI_AT(kvd_sqe, in_len, 20);
ABI_AT(kvd_sqe, in_off, 24);
ABI_AT(kvd_sqe, out_off, 32);
ABI_AT(kvd_sqe, out_len, 40);
ABI_AT(kvd_sqe, params_len, 44);
ABI_AT(kvd_sqe, params_off, 48);
ABI_AT(kvd_sqe, arg, 56);

ABI_SIZE(kvd_cqe, 64);
ABI_AT(kvd_cqe, seq, 0);
ABI_AT(kvd_cqe, user_data, 8);
ABI_AT(kvd_cqe, res, 16);
ABI_AT(kvd_cqe, flags, 20);
ABI_AT(kvd_cqe, u, 24);
ABI_SIZE(kvd_cqe_token, 40);
ABI_AT(kvd_cqe_token, token, 0);
ABI_AT(kvd_cqe_token, logprob, 4);
ABI_AT(kvd_cqe_token, n_bytes, 8);
ABI_AT(kvd_cqe_token, bytes, 12);
ABI_SIZE(kvd_cqe_usage, 40);
ABI_AT(kvd_cqe_usage, prompt_tokens, 0);
ABI_AT(kvd_cqe_usage, cached_tokens, 4);
ABI_AT(kvd_cqe_usage, generated_tokens, 8);
ABI_AT(kvd_cqe_usage, finish_reason, 12);
ABI_AT(kvd_cqe_usage, ttft_ns, 16);
ABI_AT(kvd_cqe_usage, total_ns, 24);
ABI_AT(kvd_cqe_usage, detail, 32);

ABI_SIZE(kvd_gen_params, KVD_GEN_PARAMS_SIZE_1);
ABI_AT(kvd_gen_params, size, 0);
ABI_AT(kvd_gen_params, flags, 4);
ABI_AT(kvd_gen_params, max_tokens, 8);
ABI_AT(kvd_gen_params, n, 12);
ABI_AT(kvd_gen_params, top_k, 16);
ABI_AT(kvd_gen_params, temperature, 20);
ABI_AT(kvd_gen_params, top_p, 24);
ABI_AT(kvd_gen_params, min_p, 28);
ABI_AT(kvd_gen_params, seed, 32);
ABI_AT(kvd_gen_params, n_stop, 40);
ABI_AT(kvd_gen_params, priority, 44);
ABI_AT(kvd_gen_params, timeout_ms, 48);
ABI_AT(kvd_gen_params, fork_at, 52);
ABI_AT(kvd_gen_params, salt, 56);

ABI_SIZE(kvd_msg_hdr, 16);
ABI_AT(kvd_msg_hdr, len, 0);
ABI_AT(kvd_msg_hdr, type, 4);
ABI_AT(kvd_msg_hdr, flags, 6);
ABI_AT(kvd_msg_hdr, tag, 8);
ABI_AT(kvd_msg_hdr, status, 12);

ABI_SIZE(kvd_msg_hello, 96);
ABI_AT(kvd_msg_hello, magic, 16);
ABI_AT(kvd_msg_hello, version, 20);
ABI_AT(kvd_msg_hello, features, 24);
ABI_AT(kvd_msg_hello, name, 32);

ABI_SIZE(kvd_model_info, 216);
ABI_AT(kvd_model_info, name, 0);
ABI_AT(kvd_model_info, arch, 64);
ABI_AT(kvd_model_info, n_layers, 96);
ABI_AT(kvd_model_info, context_length, 112);
ABI_AT(kvd_model_info, block_tokens, 116);
ABI_AT(kvd_model_info, bos_id, 120);
ABI_AT(kvd_model_info, block_bytes, 128);
ABI_AT(kvd_model_info, fingerprint, 136);
ABI_AT(kvd_model_info, reserved, 168);

ABI_SIZE(kvd_server_info, 120);
ABI_AT(kvd_server_info, features, 24);
ABI_AT(kvd_server_info, generation, 32);
ABI_AT(kvd_server_info, max_in_bytes, 40);
ABI_AT(kvd_server_info, release, 56);
ABI_AT(kvd_server_info, reserved, 88);

ABI_SIZE(kvd_msg_welcome, 352);
ABI_AT(kvd_msg_welcome, server, 16);
ABI_AT(kvd_msg_welcome, model, 136);

ABI_SIZE(kvd_msg_error, 264);
ABI_AT(kvd_msg_error, detail, 16);
ABI_AT(kvd_msg_error, text, 24);

ABI_SIZE(kvd_msg_notice, 32);
ABI_AT(kvd_msg_notice, kind, 16);
ABI_AT(kvd_msg_notice, hello_tag, 20);
ABI_AT(kvd_msg_notice, generation, 24);

ABI_SIZE(kvd_msg_ring_open, 48);
ABI_AT(kvd_msg_ring_open, sq_entries, 16);
ABI_AT(kvd_msg_ring_open, in_bytes, 32);
ABI_SIZE(kvd_msg_ring_opened, 120);
ABI_AT(kvd_msg_ring_opened, ring_id, 16);
ABI_AT(kvd_msg_ring_opened, geometry, 24);
ABI_SIZE(kvd_msg_ring_close, 24);

/* Append-only: the size may grow, what is there stays where it is. */
ABI_AT(kvd_stats, size, 0);
ABI_AT(kvd_stats, generation, 8);
ABI_AT(kvd_stats, release, 24);
ABI_AT(kvd_stats, model, 88);
ABI_AT(kvd_stats, cache_format, 304);
ABI_AT(kvd_stats, pool_bytes, 336);
ABI_AT(kvd_stats, bytes_per_token, 344);
ABI_AT(kvd_stats, blocks_total, 352);
ABI_AT(kvd_stats, requests_running, 424);
ABI_AT(kvd_stats, tokens_prompt, 464);
ABI_AT(kvd_stats, clients, 480);
ABI_AT(kvd_stats, sessions_faulty, 496);
ABI_AT(kvd_stats, tail_bytes, 504);
ABI_AT(kvd_msg_stats_reply, stats, 16);

ABI_SIZE(kvd_msg_clients, 32);
ABI_SIZE(kvd_msg_clients_reply, 32);
ABI_SIZE(kvd_client_info, 184);
ABI_AT(kvd_client_info, name, 24);
ABI_AT(kvd_client_info, requests_running, 88);
ABI_AT(kvd_client_info, tokens_prompt, 96);
ABI_AT(kvd_client_info, requests_failed, 136);
ABI_AT(kvd_client_info, arena, 152);
ABI_AT(kvd_client_info, reserved, 160);

ABI_SIZE(kvd_msg_cache_flush, 152);
ABI_SIZE(kvd_flush_counts, 64);
ABI_SIZE(kvd_msg_cache_flush_reply, 80);

ABI_SIZE(kvd_event, 176);
ABI_AT(kvd_event, ttft_ns, 48);
ABI_AT(kvd_event, name, 80);
ABI_SIZE(kvd_msg_events_reply, 32);

ABI_SIZE(kvd_msg_drain, 24);
ABI_SIZE(kvd_msg_drain_reply, 40);

#undef ABI_SIZE
#undef ABI_AT

#endif
