/* SPDX-License-Identifier: MIT */
/*
 * Keys of the prefix index: chains of hashes over blocks of tokens. Loop thread. Owns one digest
 * context of libcrypto, fetched once, and the secret. Knows no blocks.
 *
 *   base   = SHA-256( field(tag, bytes) ... )     field = u8 tag, u32 length, bytes
 *   root   = HMAC-SHA-256( secret, field(tag, base), field(tag, domain) ... )
 *   key[0] = SHA-256( root   || tokens of block 0 as u32 little endian )
 *   key[i] = SHA-256( key[i-1] || tokens of block i )
 *
 * The fields are everything besides tokens that makes the bytes of a block differ, and what must
 * not be shared; tags and lengths keep them apart. Equal keys mean equal prefixes.
 *
 * The secret is drawn at random when the cache starts cold, and never leaves daemon and image. A
 * root is unknown to who does not have it, and so is each key: its hash begins with 32 unknown
 * bytes and is over a text of one length. So nobody can look for prompts whose keys share a bucket.
 */
#ifndef KVD_CACHE_KEY_H
#define KVD_CACHE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_KEY_LEN 32

struct prefix_key {
	uint8_t bytes[PREFIX_KEY_LEN];
};

/* All zero in tests only. */
struct prefix_secret {
	uint8_t bytes[32];
};

/* What all keys of one space have in common; strings borrowed, NULL is "". @fingerprint: SHA-256 of
 * the weights. @backend: variant whose arithmetic wrote the block, such as "cpu-1". @keys_only: its
 * chains come with keys; no part of the digest */
struct prefix_model {
	uint8_t fingerprint[32];
	const char *k_format;
	const char *v_format;
	const char *backend;
	const char *rope;
	uint32_t block_tokens;
	bool keys_only;
};

/* @key_bits: those that prefix_key_next() keeps, the rest is zero: 256, or few in a test. */
struct prefix_keyer {
	void *md;
	void *ctx;
	struct prefix_secret secret;
	uint32_t key_bits;
};

/* Fetches SHA-256. @secret: copied. Return: 0, -EINVAL, -ENOMEM (also when libcrypto has none). */
int prefix_keyer_init(struct prefix_keyer *keyer, const struct prefix_secret *secret,
		      uint32_t key_bits);
/* Wipes the secret. */
void prefix_keyer_deinit(struct prefix_keyer *keyer);

/* Digest of the common fields, the base of a space; the same with every secret. */
int prefix_key_base(struct prefix_keyer *keyer, const struct prefix_model *model,
		    struct prefix_key *ret_base);

/* Where a chain begins: all 256 bits. @adapter of the weights and @salt may be empty. Return: 0 or
 * -ENOMEM, and so below. */
int prefix_key_root(struct prefix_keyer *keyer, const struct prefix_key *base,
		    uint32_t domain, const void *adapter, size_t adapter_len,
		    const void *salt, size_t salt_len, struct prefix_key *ret_key);

/* A secret for another @purpose, which is as secret and lasts as long. */
int prefix_key_derive(struct prefix_keyer *keyer, const char *purpose,
		      struct prefix_secret *ret_secret);

/* Key of the block of @tokens that follows @parent, root or key, which may be @ret_key. */
int prefix_key_next(struct prefix_keyer *keyer, const struct prefix_key *parent,
		    const int32_t *tokens, uint32_t n_tokens, struct prefix_key *ret_key);

#endif
