/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_DOORBELL_H
#define KVD_IPC_DOORBELL_H

/*
 * The two doorbells of a ring: descriptors that one side signals and the other
 * polls. When to signal is decided in ring.c; this file only makes, signals and
 * empties them, and never blocks, whatever the peer does to its end. Any thread.
 *
 *   submit    client -> daemon   eventfd; the client writes, the daemon reads
 *   complete  daemon -> client   pipe; the daemon writes, the client reads
 */

#include <stdbool.h>

/* Daemon: make them. ret_fds[0] is read, ret_fds[1] written. Return: 0, -errno. */
int doorbell_init_submit(int *ret_fd);
int doorbell_init_complete(int ret_fds[2]);

/* Client: signal the daemon. A signal that is pending already is enough. */
void doorbell_signal_submit(int fd);

/* Daemon: signal the client. SIGPIPE cannot rise: the daemon keeps both ends. */
void doorbell_signal_complete(int write_fd);

/* Daemon, client: take pending signals off, so that poll waits for new ones. */
void doorbell_clear_submit(int fd);
/* Return: false once the daemon has closed its end, or died. */
bool doorbell_clear_complete(int read_fd);

#endif
