/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_PLANNER_H
#define KVD_DAEMON_PLANNER_H

/*
 * What each KV format takes for a model, a batch and a context, and what fits a memory size:
 * kvd in another role, as `kvd --plan`, which `kvctl plan` runs. So the figures come from the
 * code that serves requests, and need no daemon. Thread: main, before anything was started.
 */

/* Return: an exit status. 0; 1: the file is unreadable or no layout fits; 2: wrong usage. */
int planner_main(int argc, char **argv);

#endif
