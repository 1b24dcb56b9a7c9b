#!/bin/sh
# SPDX-License-Identifier: MIT
# Every #include against the table of layers in docs/architecture.md.
# usage: test-includes.sh SOURCE_ROOT
set -eu
exec python3 - "${1:-.}" <<'PY'
import os
import re
import subprocess
import sys

root = sys.argv[1]
# First match wins. Paths are from the root; "<...>" are installed headers of ours. The
# system's headers are free but for those in BARRED.
SHELL = ["daemon/config.h", "daemon/fdstore.h", "daemon/host_limits.h", "daemon/listener.h",
         "daemon/log.h", "daemon/loop.h", "daemon/msgid.h", "daemon/res.h"]
# What kernels/ is to the daemon; the folders below it are nobody else's business.
KERNELS = ["kernels/" + name for name in (
    "backend.h", "batch.h", "clock.h", "comm.h", "cpu_backend.h", "cpu_features.h", "format.h",
    "rope.h", "wtype.h")]
TABLE = [
    ("client/kvctl/", ["client/kvctl/", "ipc/utf8.h", "<kvclient.h>", "<kvd/"]),
    ("client/examples/", ["<kvclient.h>", "<kvd/"]),
    ("client/", ["client/", "ipc/", "<kvclient.h>", "<kvd/"]),
    ("ipc/include/", ["<kvd/"]),
    ("ipc/", ["ipc/", "<kvd/"]),
    ("kernels/", ["kernels/"]),
    ("daemon/cache/", ["daemon/cache/", "kernels/format.h", "kernels/backend.h"]),
    ("daemon/sched/", ["daemon/sched/", "daemon/cache/", "kernels/batch.h"]),
    ("daemon/model/", ["daemon/model/", "daemon/cache/", "daemon/sched/plan.h", *KERNELS,
                       "ipc/base.h", "ipc/utf8.h"]),
    ("daemon/engine/", ["daemon/engine/", "daemon/cache/", "daemon/sched/", "daemon/model/",
                        *SHELL, "ipc/", *KERNELS, "<kvd/"]),
    ("daemon/serve/", ["daemon/serve/", "daemon/engine/engine.h", "daemon/engine/worker.h",
                       "daemon/cache/", "daemon/sched/", "daemon/model/", *SHELL,
                       "daemon/turns.h", "daemon/user.h", "ipc/", "<kvd/"]),
    ("daemon/", ["daemon/", "ipc/", *KERNELS, "<kvd/"]),
]
# What a layer must never see, whatever header brings it.
BARRED = {
    "": ["<cuda", "<nccl"],
    "ipc/": ["<systemd/", "<liburing", "<ini.h>", "<pcre2", "<openssl/"],
    "kernels/": ["<systemd/", "<liburing", "<ini.h>", "<pcre2", "<openssl/", "<sys/socket.h>"],
    "client/": ["<systemd/", "<liburing", "<ini.h>", "<pcre2", "<openssl/", "<pthread.h>"],
    "daemon/cache/": ["<systemd/", "<liburing", "<ini.h>", "<pcre2", "<sys/socket.h>",
                      "<stdio.h>", "<fcntl.h>"],
    "daemon/sched/": ["<systemd/", "<liburing", "<ini.h>", "<pcre2", "<openssl/",
                      "<sys/socket.h>", "<time.h>", "<stdio.h>", "<fcntl.h>"],
    "daemon/model/": ["<systemd/", "<liburing", "<ini.h>", "<sys/socket.h>"],
}
# A client is thread-safe: its one lock lives here.
ALLOWED = {("client/", "<pthread.h>")}
# A plug-in's own folder, and what it alone may use.
HOME = {"<cuda": "kernels/cuda/", "<nccl": "kernels/cuda/"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])')

files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard",
                        "*.c", "*.h", "*.cu"], cwd=root, text=True, capture_output=True,
                       check=True).stdout.split("\n")
bad = seen = 0
for name in files:
    if not name or name.startswith("tests/") or not os.path.exists(os.path.join(root, name)):
        continue
    row = next((r for r in TABLE if name.startswith(r[0])), None)
    with open(os.path.join(root, name), encoding="utf-8") as f:
        lines = f.read().split("\n")
    for i, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        seen += 1
        target = found.group(1)
        problem = None
        ours = target.startswith(('"', "<kvclient.h>", "<kvd/"))
        if ours:
            path = target.strip('"') if target.startswith('"') else target
            if row is None:
                problem = "folder is in no layer"
            elif target.startswith('"') and "/" not in path:
                problem = "name it by its path from the root"
            elif not any(path.startswith(p) for p in row[1]):
                problem = f"{row[0]} may not include it"
        else:
            for prefix, barred in BARRED.items():
                if name.startswith(prefix) and any(target.startswith(b) for b in barred) \
                        and (prefix, target) not in ALLOWED \
                        and not any(target.startswith(b) and name.startswith(home)
                                    for b, home in HOME.items()):
                    problem = f"{prefix or 'no folder'} may not use it"
        if problem:
            bad += 1
            print(f"{name}:{i}: {target}: {problem}")
if bad:
    print(f"{bad} of {seen} includes are against the layers")
sys.exit(1 if bad else 0)
PY
