/* SPDX-License-Identifier: MIT */
/*
 * From an embedded member back to the object that holds it.
 *
 * Watches, timers and deferred calls live inside the objects that use them, so a
 * callback gets the member and asks for its owner here. Pure arithmetic, any thread.
 */
#ifndef KVD_DAEMON_CONTAINER_OF_H
#define KVD_DAEMON_CONTAINER_OF_H

#include <stddef.h>

/* The statement expression refuses a pointer that is not of the member's own type. */
#define container_of(ptr, type, member)                                                  \
	({                                                                               \
		__typeof__(((type *)0)->member) *member_ptr_ = (ptr);                    \
		(type *)((char *)member_ptr_ - offsetof(type, member));                  \
	})

#endif
