/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_STATUS_H
#define KVD_IPC_STATUS_H

/*
 * Names and texts of status codes: -errno and KVD_E_*, as in kvd_cqe.res and
 * kvd_msg_hdr.status. One table, static strings, never NULL, any thread.
 */

/* "ENOENT", "KVD_E_QUOTA"; "OK" for 0 and above; "UNKNOWN". */
const char *status_name(int status);

/* One sentence without a full stop: what it means to the one who asked. */
const char *status_text(int status);

#endif
