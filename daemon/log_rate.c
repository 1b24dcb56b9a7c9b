/* SPDX-License-Identifier: MIT */
/*
 * A bucket holds time: full at interval_ns, an entry costs interval_ns / burst, and what passes
 * on the clock flows back in. A uid whose bucket is full again may be forgotten, since a new one is
 * no fuller. While none is, all uids that find no bucket share the last one, so that many of them
 * cause no more than one would.
 */
#include "daemon/log_rate.h"

static uint64_t credit_at(const struct log_rate *rate,
			  const struct log_rate_bucket *bucket, uint64_t now_ns)
{
	uint64_t passed = now_ns - bucket->seen_ns;

	return passed > rate->interval_ns - bucket->credit_ns
		       ? rate->interval_ns
		       : bucket->credit_ns + passed;
}

static struct log_rate_bucket *bucket_find(struct log_rate *rate, uid_t uid,
					   uint64_t now_ns, struct log_rate_note *note)
{
	struct log_rate_bucket *shared = &rate->buckets[LOG_RATE_UIDS], *bucket = shared;

	for (size_t i = 0; i < LOG_RATE_UIDS; i++) {
		struct log_rate_bucket *b = &rate->buckets[i];

		if (b->used && b->uid == uid)
			return b;
		if (!b->used ||
		    (bucket == shared && credit_at(rate, b, now_ns) == rate->interval_ns))
			bucket = b;
	}
	if (bucket == shared && shared->used)
		return shared;
	if (bucket->used && bucket->n_suppressed)
		*note = (struct log_rate_note){.uid = bucket->uid,
					       .n_suppressed = bucket->n_suppressed};
	*bucket = (struct log_rate_bucket){
		.uid = uid,
		.used = true,
		.credit_ns = rate->interval_ns,
		.seen_ns = now_ns,
	};
	return bucket;
}

static void put_note(const struct log_rate *rate, struct log_rate_bucket *bucket,
		     struct log_rate_note *ret_note)
{
	*ret_note = (struct log_rate_note){
		.uid = bucket->uid,
		.many = bucket == &rate->buckets[LOG_RATE_UIDS],
		.n_suppressed = bucket->n_suppressed,
	};
	bucket->n_suppressed = 0;
}

bool log_rate_take(struct log_rate *rate, uid_t uid, uint64_t now_ns,
		   struct log_rate_note *ret_note)
{
	uint64_t cost = rate->burst ? rate->interval_ns / rate->burst : 0;
	struct log_rate_bucket *bucket;

	*ret_note = (struct log_rate_note){0};
	if (!cost)
		return true;
	bucket = bucket_find(rate, uid, now_ns, ret_note);
	bucket->credit_ns = credit_at(rate, bucket, now_ns);
	bucket->seen_ns = now_ns;
	if (bucket->credit_ns < cost) {
		bucket->n_suppressed++;
		return false;
	}
	bucket->credit_ns -= cost;
	if (bucket->n_suppressed)
		put_note(rate, bucket, ret_note);
	return true;
}

bool log_rate_drain(struct log_rate *rate, struct log_rate_note *ret_note)
{
	for (size_t i = 0; i < LOG_RATE_UIDS + 1; i++) {
		if (!rate->buckets[i].n_suppressed)
			continue;
		put_note(rate, &rate->buckets[i], ret_note);
		return true;
	}
	return false;
}
