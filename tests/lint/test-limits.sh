#!/bin/sh
# SPDX-License-Identifier: MIT
# Limits that follow from a constant in another file: units, manual, configuration and code
# name the same numbers, or leave the room that the other one needs.
# usage: test-limits.sh SOURCE_ROOT
set -eu
exec python3 - "${1:-.}" <<'PY'
import os
import re
import sys

root = sys.argv[1]
bad = seen = 0
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read(path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def number(path, pattern):
    """The one number that the pattern's group finds in a file."""
    found = re.findall(pattern, read(path), re.M)
    if len(set(found)) != 1:
        print(f"{path}: {pattern!r} finds {found}; the pattern in this test is stale")
        sys.exit(1)
    digits, unit = re.fullmatch(r"(\d+)\s*([KMGT]?)", found[0]).groups()
    return int(digits) * UNITS[unit]


def rows():
    """The table of keys: name, and each member as it is written."""
    for row in re.findall(r"^\t{\n(.*?)\n\t},", read("daemon/config_keys.c"), re.M | re.S):
        members = dict(re.findall(r"\.(\w+) = \"?([^\",]+)\"?,(?:\n|$)", row))
        if "name" in members:
            yield members["name"], members


def value(text):
    """A number as C or a manual writes it."""
    text = re.sub(r"[()]|(?<=\d)u", " ", text).strip()
    for unit in "KMGT":
        text = re.sub(rf"^{unit}IB\s+(\d+)$|^(\d+)\s*{unit}$",
                      lambda m: str(int(m.group(1) or m.group(2)) * UNITS[unit]), text)
    if "<<" in text:
        n, shift = text.split("<<")
        return value(n) << int(shift)
    if text.isdecimal():
        return int(text)
    if text == "INT32_MAX":
        return 2**31 - 1
    for header in ("ipc/include/kvd/abi.h", "daemon/config.h"):
        found = re.search(rf"#define {text} +([^/\n]+)", read(header))
        if found:
            return value(found.group(1))
    return None


def rule(holds, text):
    global bad, seen
    seen += 1
    if not holds:
        bad += 1
        print(text)


def same(what, *places):
    """Each place is a name and what stands there."""
    rule(len({value for _, value in places}) == 1,
         f"{what}: " + ", ".join(f"{value} in {name}" for name, value in places))


UNIT, SLICE, SOCKET = "systemd/kvd.service.in", "systemd/kvd.slice", "systemd/kvd.socket"
CONF, MAN = "docs/man/kvd.conf.5.scd", "docs/man/kvd.8.scd"
KEYS = dict(rows())

# Tasks: the compute threads; loop, worker, pages, encoder and the hash of a model's file;
# --reload and the probe of the sandbox.
threads = number("kernels/cpu_backend.h", r"KV_CPU_MAX_THREADS = (\d+)")
same("compute threads", ("kernels/cpu_backend.h", threads),
     ("daemon/config.h", number("daemon/config.h", r"define CONFIG_MAX_THREADS (\d+)")),
     (CONF, number(CONF, r"Threads that compute, at most (\d+)")),
     (UNIT, number(UNIT, r"compute threads, of which there can be (\d+)")))
tasks = number(UNIT, r"^TasksMax=(\d+)")
rule(tasks >= threads + 16, f"{UNIT}: TasksMax={tasks} has no room for {threads} threads and "
     "the daemon's own 16")
rule(number(SLICE, r"^TasksMax=(\d+)") >= 2 * tasks,
     f"{SLICE}: TasksMax= is less than that of two daemons")

# A start that fails pauses longer than the manager's limit of attempts needs.
pause = number("daemon/main.c", r"define RETRY_PAUSE_S (\d+)")
rule(pause * number(UNIT, r"^StartLimitBurst=(\d+)") > number(UNIT, r"^StartLimitIntervalSec=(\d+)"),
     f"daemon/main.c: RETRY_PAUSE_S {pause} reaches StartLimitBurst= of {UNIT}")
same("watchdog", (UNIT, number(UNIT, r"^WatchdogSec=(\d+)")),
     (MAN, number(MAN, r"\*WatchdogSec\*=(\d+)")))

# What the ABI bounds cannot be set higher.
for name, constant in (("max_rings_per_client", "KVD_MAX_RINGS"),
                       ("max_arena_per_ring", "KVD_MAX_ARENA_BYTES"),
                       ("threads", "CONFIG_MAX_THREADS")):
    same(f"maximum of {name}", ("daemon/config_keys.c", KEYS[name]["max"]), ("its bound", constant))

# Where the manual names a range it is the table's.
ranges = 0
for name, members in KEYS.items():
    entry = re.search(rf"^\*{name}\* =.*\n((?:\t.*\n)+)", read(CONF), re.M)
    told = entry and re.search(r"from (\w+)\s+to\s+(\w+)", entry.group(1))
    if told:
        ranges += 1
        same(f"range of {name}", (CONF, (value(told.group(1)), value(told.group(2)))),
             ("daemon/config_keys.c", (value(members.get("min", "0")), value(members["max"]))))
rule(ranges >= 5, f"{CONF}: {ranges} ranges found; the pattern in this test is stale")

# Open files: those of the daemon and of administrators, and of each client with one ring; of
# all clients with as many rings as they may have, too.
own = number("daemon/daemon.c", r"define OWN_FILES +(\d+)") + \
    number("daemon/serve/admit.h", r"define ADMIT_RESERVE +(\d+)")
each = number("daemon/daemon.c", r"define CLIENT_FILES +(\d+)")
files = number(UNIT, r"^LimitNOFILE=(\d+)")
rule(files >= own + each * int(KEYS["max_clients"]["default_text"]),
     f"{UNIT}: LimitNOFILE={files} has no room for max_clients with {each} descriptors each")
rings = int(KEYS["max_rings_per_client"]["default_text"])
rule(files >= own + (1 + (each - 1) * rings) * int(KEYS["max_clients"]["default_text"]),
     f"{UNIT}: LimitNOFILE={files} has no room for max_clients with {rings} rings each")

# The FD store: kvpool, kvimage, kvweights, and each client once and as it is replaced.
clients = int(KEYS["max_clients"]["default_text"])
store = number(UNIT, r"^FileDescriptorStoreMax=(\d+)")
same("FD store", (UNIT, store), ("KVD_FDSTORE_MAX", number(UNIT, r"KVD_FDSTORE_MAX=(\d+)")),
     ("3 and twice max_clients", 3 + 2 * clients))
same("backlog", (SOCKET, number(SOCKET, r"^Backlog=(\d+)")),
     ("daemon/listener.h", number("daemon/listener.h", r"define LISTENER_BACKLOG (\d+)")))

# The manual's numbers.
for what, where, pattern, source, constant in (
        ("bytes of a line", CONF, r"A line has at most (\d+) bytes", "daemon/config_file.h",
         r"define CONFIG_LINE_MAX (\d+)"),
        ("domains", CONF, r"at most (\d+) domains", "daemon/config.h",
         r"define CONFIG_MAX_DOMAINS (\d+)"),
        ("requests that wait", CONF, r"together may be (\d+) beside", "daemon/engine/engine.h",
         r"define ENGINE_MAX_WAITING (\d+)"),
):
    same(what, (where, number(where, pattern)), (source, number(source, constant)))

# Where models cannot lie.
hidden = re.search(r"^InaccessiblePaths=(.*)", read(UNIT), re.M).group(1).split()
for path in [p.lstrip("-") for p in hidden] + ["/home", "/root", "/tmp"]:
    rule(f"_{path}_" in read(MAN), f"{MAN}: does not say that {UNIT} takes {path} away")

print(f"{seen} limits compared")
sys.exit(1 if bad else 0)
PY
