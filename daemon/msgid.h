/* SPDX-License-Identifier: MIT */
/*
 * One 128-bit id for each kind of event that is worth a catalog entry (MESSAGE_ID= in the
 * journal). Constants only.
 *
 * Ids are part of the interface: people and tests search for them, so an id is never
 * changed or given to another kind of event. A new kind gets a random one
 * (`systemd-id128 new`). KVD_MESSAGE_IDS() lists them all, so that tests can prove that
 * they are well formed and distinct; each one has its entry in systemd/kvd.catalog, which
 * the lint suite checks.
 */
#ifndef KVD_DAEMON_MSGID_H
#define KVD_DAEMON_MSGID_H

#define MSGID_STARTED          "e1c30038ee3446ccbb9b9c5c75f969da"
#define MSGID_STOPPING         "c7f5680f4c6a4cfca7d6bd2331c43ff4"
#define MSGID_START_FAILED     "f54ea2fef4874de6b33839f84d888b6e"
#define MSGID_CONFIG_BAD       "9d8671a3dd334812881e7728d5748e7c"
#define MSGID_CONFIG_RELOADED  "c0ffe2d68b734e50a393f840988f60c0"
#define MSGID_IO_URING_REFUSED "3ae78eafce75463281abb1b6a833bade"
#define MSGID_MODEL_LOADED     "daf0297ba6224549b8ddb32e801fea8a"
#define MSGID_MODEL_BAD        "d2415b26edda4a79964ada0cf547116c"
#define MSGID_CLIENT_CONNECTED "6dc98854fdd9486fa91ce4260832eb60"
#define MSGID_CLIENT_GONE      "296020c8fd1b4cb6b606f36131128bb0"
#define MSGID_CLIENT_PROTOCOL  "c3c5cb7897264ce0b62fd82aae9b65b1"
#define MSGID_CLIENT_REFUSED   "5099896cc7a74b1e8da5ff980e61edaf"
#define MSGID_LIMIT_REACHED    "c61b4adf8fa148a19de3dff626031ca0"
#define MSGID_LOG_SUPPRESSED   "e052706cf958450f901a4afe0af4ef42"
#define MSGID_LOG_LOST         "8673d4852c404b908387efb10f199106"
#define MSGID_CACHE_FLUSHED    "1e9a2aa16dbe4d0ab31f5931deb05d1e"
#define MSGID_BACKEND_FAILED   "7807ff0dc1dd4d8b9924e3ab6a16b145"
#define MSGID_OUT_OF_MEMORY    "bca9593efc084cad936712a514bef871"
#define MSGID_SANDBOX_WEAK     "9d6f5c029f224c42b9876c0100f672f3"
#define MSGID_RLIMIT_SMALL     "ffea88df22e047cca0459196b5016074"
#define MSGID_STEP_STALLED     "9c14281a5bbd4e3ca17e9a23bb102c8e"
#define MSGID_FORMAT_FAR       "ddeb8a31febf4ec7a29495af4c926894"
#define MSGID_CLIENTS_KEPT     "e173d392ab20498b89a55cb9a54d821c"
#define MSGID_WARM_START       "2103b159a0464c35866dd0fbbb5e0ec9"
#define MSGID_COLD_START       "13990343a3d54dfe90c81e26a4c2b46f"
#define MSGID_BLOCKS_DAMAGED   "e1071a44d278475c878f8fa4567a2fe9"
#define MSGID_FDSTORE_STRANGE  "421ca29679804f0e904cbeff12289e9b"
#define MSGID_PREFIX_PINNED    "87396f9ca9cd49a98dd01d0ad6c8f562"
#define MSGID_PREFIX_UNPINNED  "b81fb5ba040040bc83fe3ac397253725"
#define MSGID_QUOTA_CHANGED    "549f5af417934c63b32e16be6d3818c8"
#define MSGID_DRAINING         "87a503ba89e8426d9240dd161891a540"
#define MSGID_DRAIN_ENDED      "c88b04648aa74acb9db888adcb52bfc3"
#define MSGID_AFFINITY_REFUSED "d05f577ad414454c87d578fca5f1f970"
#define MSGID_USERS_HIDDEN     "5f0ce6d1b7a94c2e8d3b90a74e6152fc"

/* X(NAME, "what happened") */
#define KVD_MESSAGE_IDS(X)                                                               \
	X(STARTED, "the daemon serves")                                                  \
	X(STOPPING, "the daemon was told to stop")                                       \
	X(START_FAILED, "the daemon cannot start")                                       \
	X(CONFIG_BAD, "the configuration has errors")                                    \
	X(CONFIG_RELOADED, "the configuration was read again")                           \
	X(IO_URING_REFUSED, "io_uring may not be used, epoll takes its place")           \
	X(MODEL_LOADED, "a model is ready")                                              \
	X(MODEL_BAD, "a model file cannot be used")                                      \
	X(CLIENT_CONNECTED, "a client connected")                                        \
	X(CLIENT_GONE, "a client went away")                                             \
	X(CLIENT_PROTOCOL, "a client broke the protocol and was cut off")                \
	X(CLIENT_REFUSED, "a client was turned away")                                    \
	X(LIMIT_REACHED, "a user reached a limit")                                       \
	X(LOG_SUPPRESSED, "messages about one user were left out")                       \
	X(LOG_LOST, "messages found no room in the log")                                 \
	X(CACHE_FLUSHED, "the cache was flushed")                                        \
	X(BACKEND_FAILED, "a device or its worker failed")                               \
	X(OUT_OF_MEMORY, "memory ran out")                                               \
	X(SANDBOX_WEAK, "the sandbox permits what it should not")                        \
	X(RLIMIT_SMALL, "a resource limit is smaller than it should be")                 \
	X(STEP_STALLED, "a step of the worker makes no progress")                        \
	X(FORMAT_FAR, "the model's answers suffer from the cache's format")              \
	X(WARM_START, "the cache of the former daemon is used again")                    \
	X(COLD_START, "the cache of the former daemon is dropped, or will be")           \
	X(BLOCKS_DAMAGED, "blocks that came back were damaged")                          \
	X(CLIENTS_KEPT, "connections of clients outlived a restart")                     \
	X(FDSTORE_STRANGE, "the FD store held descriptors that nobody knows")            \
	X(PREFIX_PINNED, "an administrator pinned a prefix")                             \
	X(PREFIX_UNPINNED, "an administrator let a pinned prefix go")                    \
	X(QUOTA_CHANGED, "an administrator changed limits of a user")                    \
	X(DRAINING, "new requests are refused, those that run finish")                   \
	X(DRAIN_ENDED, "new requests are taken again")                                   \
	X(AFFINITY_REFUSED, "threads may not choose their CPUs")                         \
	X(USERS_HIDDEN, "the user namespace hides who clients are")

#endif
