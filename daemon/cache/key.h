/* SPDX-License-Identifier: MIT */
/*
 * Keys of the prefix index: SHA-256 chains over blocks of tokens.
 *
 * Owns: one digest context of libcrypto, fetched once. Runs on the loop thread. Knows no
 * blocks.
 *
 *   root   = SHA-256( field(tag, bytes) ... )     field = u8 tag, u32 length, bytes
 *   key[0] = SHA-256( root   || tokens of block 0 as u32 little endian )
 *   key[i] = SHA-256( key[i-1] || tokens of block i )
 *
 * The root's fields are everything besides tokens that makes the bytes of a block differ,
 * and what must not be shared: version of this scheme, weights, formats of K and V, backend
 * variant, rope settings, block size, adapter, domain, salt. Tags and lengths keep one
 * field's bytes from being read as another's. Since a key fixes all that came before it,
 * equal keys mean equal prefixes; the index compares tokens and parent all the same.
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

/**
 * struct prefix_model - what all keys of one space have in common
 * @fingerprint: SHA-256 of the weights
 * @k_format, @v_format: how a block stores the two, e.g. "int8"
 * @backend: backend variant whose arithmetic wrote the block, e.g. "cpu-1"
 * @rope: rope settings in any canonical spelling
 * @block_tokens: tokens per block
 * @keys_only: its chains come with keys; no part of the digest
 *
 * Strings are borrowed during the call only; NULL counts as "".
 */
struct prefix_model {
	uint8_t fingerprint[32];
	const char *k_format;
	const char *v_format;
	const char *backend;
	const char *rope;
	uint32_t block_tokens;
	bool keys_only;
};

/**
 * struct prefix_keyer - makes keys
 * @md, @ctx: libcrypto's EVP_MD and EVP_MD_CTX
 * @key_bits: bits that prefix_key_next() keeps, the rest is zero: 256, or few in a test
 *	that wants collisions
 */
struct prefix_keyer {
	void *md;
	void *ctx;
	uint32_t key_bits;
};

/**
 * prefix_keyer_init() - fetch SHA-256
 * @keyer: caller's memory
 * @key_bits: 1 .. 256; 256 outside tests
 *
 * Return: 0, -EINVAL, -ENOMEM (also when libcrypto offers no SHA-256).
 */
int prefix_keyer_init(struct prefix_keyer *keyer, uint32_t key_bits);
void prefix_keyer_deinit(struct prefix_keyer *keyer);

/* Digest of the common fields, the base of a space. Return: 0 or -ENOMEM. */
int prefix_key_base(struct prefix_keyer *keyer, const struct prefix_model *model,
		    struct prefix_key *ret_base);

/**
 * prefix_key_root() - where a chain begins
 * @keyer: keyer
 * @base: of its space
 * @domain: inside which sharing is allowed
 * @adapter, @adapter_len: adapter of the weights; empty for none
 * @salt, @salt_len: narrows sharing to those who know it; empty for none
 * @ret_key: always the full 256 bits
 *
 * Return: 0, or -ENOMEM.
 */
int prefix_key_root(struct prefix_keyer *keyer, const struct prefix_key *base,
		    uint32_t domain, const void *adapter, size_t adapter_len,
		    const void *salt, size_t salt_len, struct prefix_key *ret_key);

/**
 * prefix_key_next() - key of the block that follows @parent
 * @keyer: keyer
 * @parent: root or key of the block before
 * @tokens: [n_tokens] of one block
 * @ret_key: may be @parent's memory
 *
 * Return: 0, or -ENOMEM.
 */
int prefix_key_next(struct prefix_keyer *keyer, const struct prefix_key *parent,
		    const int32_t *tokens, uint32_t n_tokens, struct prefix_key *ret_key);

#endif
