/* SPDX-License-Identifier: MIT */
/*
 * Speck with blocks of 64 bits and keys of 128 (Beaulieu and others, "The SIMON and SPECK Families
 * of Lightweight Block Ciphers", 2013): a block cipher that is as wide as an id. Where 0 would come
 * out it is put in again, and so no other id is 0.
 */
#include "daemon/cache/ids.h"

#include <endian.h>
#include <string.h>

static uint32_t rotate_left(uint32_t x, int n)
{
	return x << n | x >> (32 - n);
}

static uint32_t rotate_right(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

void ids_init(struct ids *ids, const uint32_t key[4])
{
	uint32_t l[IDS_N_ROUNDS + 2] = {key[1], key[2], key[3]}, k = key[0];

	for (uint32_t i = 0; i < IDS_N_ROUNDS; i++) {
		ids->round_keys[i] = k;
		if (i + 1 == IDS_N_ROUNDS)
			break;
		l[i + 3] = (k + rotate_right(l[i], 8)) ^ i;
		k = rotate_left(k, 3) ^ l[i + 3];
	}
}

int ids_derive(struct ids *ids, struct prefix_keyer *keyer)
{
	struct prefix_secret secret;
	uint32_t key[4];
	int r = prefix_key_derive(keyer, "prefix ids", &secret);

	if (r)
		return r;
	memcpy(key, secret.bytes, sizeof(key));
	for (int i = 0; i < 4; i++)
		key[i] = le32toh(key[i]);
	ids_init(ids, key);
	explicit_bzero(&secret, sizeof(secret));
	explicit_bzero(key, sizeof(key));
	return 0;
}

static uint64_t encrypt(const struct ids *ids, uint64_t block)
{
	uint32_t x = (uint32_t)(block >> 32), y = (uint32_t)block;

	for (int i = 0; i < IDS_N_ROUNDS; i++) {
		x = (rotate_right(x, 8) + y) ^ ids->round_keys[i];
		y = rotate_left(y, 3) ^ x;
	}
	return (uint64_t)x << 32 | y;
}

static uint64_t decrypt(const struct ids *ids, uint64_t block)
{
	uint32_t x = (uint32_t)(block >> 32), y = (uint32_t)block;

	for (int i = IDS_N_ROUNDS; i-- > 0;) {
		y = rotate_right(y ^ x, 3);
		x = rotate_left((x ^ ids->round_keys[i]) - y, 8);
	}
	return (uint64_t)x << 32 | y;
}

uint64_t ids_hide(const struct ids *ids, uint64_t name)
{
	uint64_t id = name ? encrypt(ids, name) : 0;

	return name && !id ? encrypt(ids, 0) : id;
}

uint64_t ids_show(const struct ids *ids, uint64_t id)
{
	uint64_t name = id ? decrypt(ids, id) : 0;

	return id && !name ? decrypt(ids, 0) : name;
}
