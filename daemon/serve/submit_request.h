/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_SERVE_SUBMIT_REQUEST_H
#define KVD_DAEMON_SERVE_SUBMIT_REQUEST_H

/* What an operation asks of the scheduler: who asks, limits, domain, salt. Thread: loop. */

#include <stdint.h>

#include "daemon/config.h"
#include "daemon/sched/request.h"

struct op;
struct token_list;

/* @salt: the domain's name, then the client's salt; desc points into it */
struct submit_request {
	struct request_desc desc;
	char salt[CONFIG_DOMAIN_NAME + sizeof(uint64_t)];
};

/* @salt: the client's own, which only narrows; 0: none. The tokens stay the caller's. */
void submit_request_init(struct submit_request *request, struct op *op,
			 const struct token_list *list, uint64_t salt);

#endif
