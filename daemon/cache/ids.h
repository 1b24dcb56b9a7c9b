/* SPDX-License-Identifier: MIT */
/*
 * Names of prefixes as clients see them: numbers of 64 bits, permuted under a key that follows from
 * the secret of the keys, so that a name says nothing of what others have cached before it or
 * beside it, and nobody can guess one. They last as long as that secret. Loop thread.
 */
#ifndef KVD_CACHE_IDS_H
#define KVD_CACHE_IDS_H

#include "daemon/cache/key.h"

#include <stdint.h>

#define IDS_N_ROUNDS 27

/* Of Speck64/128. */
struct ids {
	uint32_t round_keys[IDS_N_ROUNDS];
};

/* @key: 128 bits, as four words, the least significant first. */
void ids_init(struct ids *ids, const uint32_t key[4]);

/* Under the secret of @keyer. Return: 0 or -ENOMEM. */
int ids_derive(struct ids *ids, struct prefix_keyer *keyer);

/* 0 stays 0, and nothing else becomes 0. */
uint64_t ids_hide(const struct ids *ids, uint64_t name);
uint64_t ids_show(const struct ids *ids, uint64_t id);

#endif
