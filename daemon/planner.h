/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_PLANNER_H
#define KVD_DAEMON_PLANNER_H

/* `kvd --plan`, which `kvctl plan` runs: what each KV format takes for a model, a batch and a
 * context, and what fits a memory size, by the code that serves. Thread: main, before anything is
 * started. */

/* Return: an exit status. 0; 1: the file is unreadable or no layout fits; 2: wrong usage. */
int planner_main(int argc, char **argv);

#endif
