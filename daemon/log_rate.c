/* SPDX-License-Identifier: MIT */
/*
 * A bucket holds time: full at interval_ns, an entry costs interval_ns / burst, and what passes
 * on the clock flows back in. When the table is full the uid that was silent longest is
 * forgotten, which gives it a full bucket.
 */
#include "daemon/log_rate.h"

static struct log_rate_bucket *bucket_find(struct log_rate *rate, uid_t uid,
					   uint64_t now_ns, struct log_rate_note *note)
{
	struct log_rate_bucket *victim = &rate->buckets[0];

	for (size_t i = 0; i < LOG_RATE_UIDS; i++) {
		struct log_rate_bucket *bucket = &rate->buckets[i];

		if (bucket->used && bucket->uid == uid)
			return bucket;
		if (victim->used && (!bucket->used || bucket->seen_ns < victim->seen_ns))
			victim = bucket;
	}
	if (victim->used && victim->n_suppressed)
		*note = (struct log_rate_note){victim->uid, victim->n_suppressed};
	*victim = (struct log_rate_bucket){
		.uid = uid,
		.used = true,
		.credit_ns = rate->interval_ns,
		.seen_ns = now_ns,
	};
	return victim;
}

bool log_rate_take(struct log_rate *rate, uid_t uid, uint64_t now_ns,
		   struct log_rate_note *ret_note)
{
	uint64_t cost = rate->burst ? rate->interval_ns / rate->burst : 0, passed;
	struct log_rate_bucket *bucket;

	*ret_note = (struct log_rate_note){0};
	if (!cost)
		return true;
	bucket = bucket_find(rate, uid, now_ns, ret_note);
	passed = now_ns - bucket->seen_ns;
	bucket->seen_ns = now_ns;
	if (passed > rate->interval_ns - bucket->credit_ns)
		bucket->credit_ns = rate->interval_ns;
	else
		bucket->credit_ns += passed;
	if (bucket->credit_ns < cost) {
		bucket->n_suppressed++;
		return false;
	}
	bucket->credit_ns -= cost;
	if (bucket->n_suppressed) {
		*ret_note = (struct log_rate_note){uid, bucket->n_suppressed};
		bucket->n_suppressed = 0;
	}
	return true;
}

bool log_rate_drain(struct log_rate *rate, struct log_rate_note *ret_note)
{
	for (size_t i = 0; i < LOG_RATE_UIDS; i++) {
		struct log_rate_bucket *bucket = &rate->buckets[i];

		if (!bucket->n_suppressed)
			continue;
		*ret_note = (struct log_rate_note){bucket->uid, bucket->n_suppressed};
		bucket->n_suppressed = 0;
		return true;
	}
	return false;
}
