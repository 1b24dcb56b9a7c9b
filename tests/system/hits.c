/* SPDX-License-Identifier: MIT */
/*
 * Short prompts, each asked for one token, and how long it took: a spy's view of the cache.
 *
 * Reads lines of two numbers, a set and an index: each pair means one prompt of 17 tokens,
 * a block of 16 and one more, that differs from all others in its first token. Prints for
 * each line how many tokens were cached and the nanoseconds to the first token.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <kvclient.h>

#define N_PROMPT 17

/* Steele, Lea, Flood: splitmix64. */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

int main(void)
{
	struct kvc_gen_opts opts = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvd_model_info model;
	struct kvc_client *client;
	unsigned set, index;

	opts.max_tokens = 1;
	opts.gen_flags = KVD_GEN_IGNORE_EOS;
	if (kvc_connect(&client, NULL) < 0 || kvc_get_model_info(client, &model) < 0) {
		fprintf(stderr, "hits: %s\n", kvc_errmsg());
		return 1;
	}
	while (scanf("%u %u", &set, &index) == 2) {
		uint32_t tokens[N_PROMPT];
		struct kvc_input input = kvc_tokens(tokens, N_PROMPT);
		struct kvc_result result;

		for (unsigned i = 0; i < N_PROMPT; i++)
			tokens[i] = (uint32_t)(mix(((uint64_t)set << 40) +
						   ((uint64_t)index << 8) + i) %
					       (model.n_vocab - 100)) +
				    100;
		/* no two begin alike: rows of a block that has begun are shared as well */
		tokens[0] = 100 + (set * 10000 + index) % (model.n_vocab - 100);
		if (kvc_generate_input(client, &input, &opts, NULL, NULL, &result) < 0) {
			fprintf(stderr, "hits: %s\n", kvc_errmsg());
			return 1;
		}
		printf("%u %" PRIu64 "\n", result.usage.cached_tokens,
		       (uint64_t)result.usage.ttft_ns);
		kvc_result_clear(&result);
	}
	kvc_close(client);
	return 0;
}
