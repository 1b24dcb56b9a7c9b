/* SPDX-License-Identifier: MIT */
#ifndef KVD_DAEMON_PLANNER_H
#define KVD_DAEMON_PLANNER_H

/*
 * The planner: what each KV format takes for a model, a batch and a context, and what fits
 * a memory size. It is kvd in another role, as `kvd --plan`, which `kvctl plan` runs: so
 * the figures come from the layout code and the file reader that serve requests, and need
 * no daemon that runs.
 *
 * Thread: main, before anything was started. Reads a model's header at most; keeps nothing.
 */

/**
 * planner_main() - the arguments after `kvd`, --plan among them, to an exit status
 *
 * Prints to stdout what was asked for, or one line to stderr. Return: 0; 1: the file is
 * unreadable or no layout fits the model; 2: wrong usage.
 */
int planner_main(int argc, char **argv);

#endif
