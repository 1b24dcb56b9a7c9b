/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_RES_H
#define KVD_DAEMON_RES_H

#include <stdint.h>

/* What a request comes to, as its client hears it: the res of a CQE, the status of a reply. 0 or a
 * count is success; negative is -errno or KVD_E_*, also for the client's mistakes. Never a positive
 * condition of the layers below: who calls those translates them (engine_refused(),
 * chat_result()). */
typedef int32_t kvd_res;

#endif
