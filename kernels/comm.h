/* SPDX-License-Identifier: MIT */
/*
 * Sums and copies among the ranks of a model that is spread over several devices.
 *
 * Each rank has one end, made by comm_open() and used by its own worker, on its own stream. All
 * ranks call the same operations in the same order with the same sizes, and wait for each other.
 * Sums are taken element by element in the order of ranks, with the same bits on every rank.
 *
 * A rank that cannot go on calls abort(), on any thread: pending and later calls of the others
 * return -ECANCELED. Once all ranks have stopped, one of them makes the ends usable by reset().
 */
#ifndef KVD_KERNELS_COMM_H
#define KVD_KERNELS_COMM_H

#include <stddef.h>
#include <stdint.h>

enum { KV_MAX_RANKS = 16 };

struct kv_comm;
struct kv_stream;

/**
 * struct kv_comm_ops - arrays are device addresses, n counts activations (props.act_bytes)
 * @all_reduce: x[n] becomes the sum of all ranks' x
 * @all_gather: dst[n_ranks][n] becomes src of each rank, in the order of ranks
 * @broadcast: x[n] becomes that of rank @root
 *
 * Return: 0; -ECANCELED; or a failure of the device.
 */
struct kv_comm_ops {
	int (*all_reduce)(struct kv_comm *comm, struct kv_stream *st, void *x, size_t n);
	int (*all_gather)(struct kv_comm *comm, struct kv_stream *st, const void *src,
			  void *dst, size_t n);
	int (*broadcast)(struct kv_comm *comm, struct kv_stream *st, void *x, size_t n,
			 uint32_t root);
	void (*abort)(struct kv_comm *comm);
	void (*reset)(struct kv_comm *comm);
	void (*close)(struct kv_comm *comm);
};

struct kv_comm {
	const struct kv_comm_ops *ops;
	uint32_t rank, n_ranks;
};

#endif
