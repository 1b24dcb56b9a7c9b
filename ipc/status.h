/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_STATUS_H
#define KVD_IPC_STATUS_H

/* Names and texts of -errno and KVD_E_*. Static strings, never NULL, any thread. */

/* "ENOENT", "KVD_E_QUOTA"; "OK" for 0 and above; "UNKNOWN". */
const char *status_name(int status);

/* One sentence without a full stop, for the client. */
const char *status_text(int status);

#endif
