/* SPDX-License-Identifier: MIT */
#include "daemon/cache/key.h"

#include <endian.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>

/* Changes whenever a key would mean something else. */
#define KEY_SCHEME 3

/* Bytes that SHA-256 takes in at once, as HMAC pads its key (RFC 2104). */
#define HMAC_BLOCK 64

enum key_tag {
	TAG_SCHEME = 1,
	TAG_FINGERPRINT = 2,
	TAG_K_FORMAT = 3,
	TAG_BACKEND = 4,
	TAG_ROPE = 5,
	TAG_BLOCK_TOKENS = 6,
	TAG_COMMON = 7,
	TAG_DOMAIN = 8,
	TAG_ADAPTER = 9,
	TAG_SALT = 10,
	TAG_V_FORMAT = 11,
	TAG_PURPOSE = 12,
};

static bool hash_begin(struct prefix_keyer *k)
{
	return EVP_DigestInit_ex(k->ctx, k->md, NULL) == 1;
}

static bool hash_field(struct prefix_keyer *k, uint8_t tag, const void *data, size_t len)
{
	uint32_t le_len = htole32((uint32_t)len);

	return len <= UINT32_MAX && EVP_DigestUpdate(k->ctx, &tag, sizeof(tag)) == 1 &&
	       EVP_DigestUpdate(k->ctx, &le_len, sizeof(le_len)) == 1 &&
	       (!len || EVP_DigestUpdate(k->ctx, data, len) == 1);
}

static bool hash_u32(struct prefix_keyer *k, uint8_t tag, uint32_t value)
{
	value = htole32(value);
	return hash_field(k, tag, &value, sizeof(value));
}

static bool hash_string(struct prefix_keyer *k, uint8_t tag, const char *string)
{
	return hash_field(k, tag, string, string ? strlen(string) : 0);
}

static bool hash_end(struct prefix_keyer *k, uint8_t *ret)
{
	return EVP_DigestFinal_ex(k->ctx, ret, NULL) == 1;
}

/* One of the two hashes that HMAC nests begins. */
static bool hmac_pad(struct prefix_keyer *k, uint8_t pad)
{
	uint8_t block[HMAC_BLOCK];
	bool ok;

	memset(block, pad, sizeof(block));
	for (size_t i = 0; i < sizeof(k->secret.bytes); i++)
		block[i] ^= k->secret.bytes[i];
	ok = hash_begin(k) && EVP_DigestUpdate(k->ctx, block, sizeof(block)) == 1;
	OPENSSL_cleanse(block, sizeof(block));
	return ok;
}

static bool hmac_begin(struct prefix_keyer *k)
{
	return hmac_pad(k, 0x36);
}

/* @ret: [PREFIX_KEY_LEN] */
static bool hmac_end(struct prefix_keyer *k, uint8_t *ret)
{
	return hash_end(k, ret) && hmac_pad(k, 0x5c) &&
	       EVP_DigestUpdate(k->ctx, ret, PREFIX_KEY_LEN) == 1 && hash_end(k, ret);
}

int prefix_keyer_init(struct prefix_keyer *keyer, const struct prefix_secret *secret,
		      uint32_t key_bits)
{
	memset(keyer, 0, sizeof(*keyer));
	if (!key_bits || key_bits > 8 * PREFIX_KEY_LEN)
		return -EINVAL;
	/* What follows crashes where libcrypto had no memory to begin with. */
	if (!OSSL_LIB_CTX_get0_global_default())
		return -ENOMEM;
	keyer->md = EVP_MD_fetch(NULL, "SHA256", NULL);
	keyer->ctx = EVP_MD_CTX_new();
	keyer->secret = *secret;
	keyer->key_bits = key_bits;
	if (keyer->md && keyer->ctx)
		return 0;
	prefix_keyer_deinit(keyer);
	return -ENOMEM;
}

int prefix_key_base(struct prefix_keyer *keyer, const struct prefix_model *model,
		    struct prefix_key *ret_base)
{
	if (hash_begin(keyer) && hash_u32(keyer, TAG_SCHEME, KEY_SCHEME) &&
	    hash_field(keyer, TAG_FINGERPRINT, model->fingerprint,
		       sizeof(model->fingerprint)) &&
	    hash_string(keyer, TAG_K_FORMAT, model->k_format) &&
	    hash_string(keyer, TAG_V_FORMAT, model->v_format) &&
	    hash_string(keyer, TAG_BACKEND, model->backend) &&
	    hash_string(keyer, TAG_ROPE, model->rope) &&
	    hash_u32(keyer, TAG_BLOCK_TOKENS, model->block_tokens) &&
	    hash_end(keyer, ret_base->bytes))
		return 0;
	return -ENOMEM;
}

void prefix_keyer_deinit(struct prefix_keyer *keyer)
{
	EVP_MD_CTX_free(keyer->ctx);
	EVP_MD_free(keyer->md);
	OPENSSL_cleanse(keyer, sizeof(*keyer));
}

int prefix_key_root(struct prefix_keyer *keyer, const struct prefix_key *base,
		    uint32_t domain, const void *adapter, size_t adapter_len,
		    const void *salt, size_t salt_len, struct prefix_key *ret_key)
{
	if (hmac_begin(keyer) &&
	    hash_field(keyer, TAG_COMMON, base->bytes, PREFIX_KEY_LEN) &&
	    hash_u32(keyer, TAG_DOMAIN, domain) &&
	    hash_field(keyer, TAG_ADAPTER, adapter, adapter_len) &&
	    hash_field(keyer, TAG_SALT, salt, salt_len) &&
	    hmac_end(keyer, ret_key->bytes))
		return 0;
	return -ENOMEM;
}

int prefix_key_derive(struct prefix_keyer *keyer, const char *purpose,
		      struct prefix_secret *ret_secret)
{
	if (hmac_begin(keyer) && hash_string(keyer, TAG_PURPOSE, purpose) &&
	    hmac_end(keyer, ret_secret->bytes))
		return 0;
	return -ENOMEM;
}

static bool hash_tokens(struct prefix_keyer *k, const int32_t *tokens, uint32_t n)
{
#if __BYTE_ORDER == __LITTLE_ENDIAN
	size_t len = (size_t)n * sizeof(*tokens);

	return EVP_DigestUpdate(k->ctx, tokens, len) == 1;
#else
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = htole32((uint32_t)tokens[i]);

		if (EVP_DigestUpdate(k->ctx, &token, sizeof(token)) != 1)
			return false;
	}
	return true;
#endif
}

static void key_cut(struct prefix_key *key, uint32_t bits)
{
	uint32_t whole = bits / 8;

	if (whole == PREFIX_KEY_LEN)
		return;
	key->bytes[whole] &= (uint8_t) ~(0xff >> bits % 8);
	memset(key->bytes + whole + 1, 0, PREFIX_KEY_LEN - whole - 1);
}

int prefix_key_next(struct prefix_keyer *keyer, const struct prefix_key *parent,
		    const int32_t *tokens, uint32_t n_tokens, struct prefix_key *ret_key)
{
	if (!hash_begin(keyer) ||
	    EVP_DigestUpdate(keyer->ctx, parent->bytes, PREFIX_KEY_LEN) != 1 ||
	    !hash_tokens(keyer, tokens, n_tokens) || !hash_end(keyer, ret_key->bytes))
		return -ENOMEM;
	key_cut(ret_key, keyer->key_bits);
	return 0;
}
