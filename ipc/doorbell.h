/* SPDX-License-Identifier: MIT */
#ifndef KVD_IPC_DOORBELL_H
#define KVD_IPC_DOORBELL_H

/* The two doorbells of a ring: submit, an eventfd, from the client to the daemon; complete, a pipe,
 * back. Nothing blocks, whatever the peer does to its end. Any thread. */

#include <stdbool.h>
#include <stdint.h>

/* Daemon. ret_fds[0] is read, ret_fds[1] written. Return: 0, -errno. */
int doorbell_init_submit(int *ret_fd);
int doorbell_init_complete(int ret_fds[2]);

/* Client. */
void doorbell_signal_submit(int fd);

/* Daemon. SIGPIPE cannot rise: the daemon keeps both ends. @exact: by the time of this thread
 * alone, which takes two system calls. Return: what it took, in ns: all who wait for the pipe, in
 * however many sets of epoll(7), are looked at meanwhile. */
uint64_t doorbell_signal_complete(int write_fd, bool exact);

/* Daemon: has the client emptied it since? */
bool doorbell_heard(int read_fd);

/* Take pending signals off. Who reads a submit doorbell shares its flags: RWF_NOWAIT. */
void doorbell_clear_submit(int fd);
/* Client. Return: false once the daemon has closed its end, or died. */
bool doorbell_clear_complete(int read_fd);

#endif
